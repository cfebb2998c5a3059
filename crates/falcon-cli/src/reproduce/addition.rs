//! `falcon reproduce addition`.

use falcon_lm::config::RunConfig;
use falcon_lm::machine;
use falcon_lm::reproduce::addition::{AdditionRecord, SCALES, config, run_row};
use falcon_lm::reproduce::{Data, Fingerprint};
use falcon_lm::tasks::TaskConfig;
use falcon_lm::train::Outcome;

use super::continued::EarlierRecords;
use super::plan::{Plan, Planned, families};
use super::{AdditionArgs, ReproduceError, again, command, results_folder, run_and_record, scale};
use crate::threads::use_threads;
use crate::train::Show;

pub(super) fn run(args: &AdditionArgs) -> Result<Outcome, ReproduceError> {
    if args.rows.from.is_some() {
        return again::<AdditionRecord>(&args.rows);
    }
    use_threads(args.rows.threads.map(Into::into))?;
    let scale = scale(&SCALES, &args.rows);
    let output = results_folder(&args.rows, "addition", scale);
    let config = Box::new(|row: &_, seed, more: &_| config(scale, row, seed, more));
    let plan = Plan::new(families(&args.rows, scale)?, &args.rows, scale, None, &output, config)?;
    let command = command("addition", &args.rows, Vec::new());
    let earlier = EarlierRecords::<AdditionRecord>::read(&args.rows, &output, &command, &plan)?;
    let plan = plan.runs;
    let first = &plan[0].config;
    let data = Data::of(&first.task, &mut |_| true)?;
    let fingerprint = |config: &RunConfig| Fingerprint::of(config, &data);
    let same_samples = |record: &AdditionRecord, row| Ok((record.samples == scale.samples).then_some(row));
    let taken = earlier.take(&plan, &fingerprint, same_samples)?;
    earlier.set_aside(&output, &taken)?;
    let TaskConfig::Addition(task) = &first.task else { unreachable!("the task is addition") };
    let run = |planned: &Planned, show: &mut Show| {
        let Planned { row, config, folder, .. } = planned;
        run_row(row, config, scale.samples, folder, fingerprint(config), show)
    };
    run_and_record(&args.rows, (&plan, taken), plan.len(), &output, run, |rows, planned| AdditionRecord {
        scale: scale.name.into(),
        command: command.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine::describe(),
        max_width: task.max_width,
        samples: scale.samples,
        config: first.to_toml(),
        planned,
        rows,
    })
}
