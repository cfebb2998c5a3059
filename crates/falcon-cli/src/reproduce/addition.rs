//! `falcon reproduce addition`.

use falcon_lm::reproduce::addition::{AdditionRecord, SCALES, config, run_row};
use falcon_lm::tasks::TaskConfig;
use falcon_lm::train::Outcome;

use super::plan::{Plan, Planned, families};
use super::{AdditionArgs, ReproduceError, again, command, machine, results_folder, run_and_record, scale};
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
    let plan = Plan::new(families(&args.rows, scale)?, &args.rows, scale, None, &output, config)?.runs;
    let first = &plan[0].config;
    let TaskConfig::Addition(task) = &first.task else { unreachable!("the task is addition") };
    let run = |planned: &Planned, show: &mut Show| {
        run_row(&planned.row, &planned.config, scale.samples, &planned.folder, show)
    };
    run_and_record(&args.rows, &plan, plan.len(), &output, run, |rows, planned| AdditionRecord {
        scale: scale.name.into(),
        command: command("addition", &args.rows, Vec::new()),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine(),
        max_width: task.max_width,
        samples: scale.samples,
        config: first.to_toml(),
        planned,
        rows,
    })
}
