//! Runs the experiment.

use falcon_lm::config::RunConfig;
use falcon_lm::machine;
use falcon_lm::tasks::TaskConfig;

use super::experiment::{
    AdditionExperiment, AdditionMeasured, AdditionRecord, AdditionSettings, AdditionTraining,
};
use super::measure::{evaluate_widths, exact_validation};
use super::scales::config;
use crate::reproduce::earlier::{EarlierRecords, NotTaken};
use crate::reproduce::error::ExperimentError;
use crate::reproduce::fingerprint::{DataHash, Fingerprint};
use crate::reproduce::observer::Observer;
use crate::reproduce::plan::{ExperimentOptions, ExperimentPlan, families};
use crate::reproduce::rows::run_row;
use crate::reproduce::runner::{Ended, run_and_record};

/// Trains and evaluates all rows, except those that earlier records have, and writes the record with its tables and
/// pictures.
pub fn run(
    options: &ExperimentOptions,
    observer: &dyn Observer,
) -> Result<Ended<AdditionExperiment>, ExperimentError> {
    let scale = options.scale;
    let samples = scale.samples.expect("every scale of addition has a number of samples");
    let config = Box::new(|row: &_, seed, more: &_| config(scale, row, seed, more));
    let plan = ExperimentPlan::new(families(options)?, options, None, config)?;
    let earlier = EarlierRecords::<AdditionExperiment>::read(options, &plan)?;
    let runs = plan.runs;
    let first = &runs[0].config;
    let data = DataHash::of(&first.task, &mut ())?;
    let fingerprint = |config: &RunConfig| Fingerprint::of(config, &data);
    let same_samples = |record: &AdditionRecord, row| {
        Ok(Some((record.settings.samples == samples).then_some(row).ok_or(NotTaken::Measured)))
    };
    let taken = earlier.take(&runs, &fingerprint, observer, same_samples)?;
    let Some(taken) = taken else { return Ok(Ended::interrupted()) };
    earlier.set_aside(&options.output, &taken, observer)?;
    let TaskConfig::Addition(task) = &first.task else { unreachable!("the task is addition") };
    run_and_record(
        (&runs, taken),
        runs.len(),
        options,
        observer,
        |planned, watch| {
            run_row(planned, fingerprint(&planned.config), watch, |run| {
                let validation = run.best.score;
                let exact_validation = exact_validation(&run.records, run.best.step);
                let widths = evaluate_widths(run, &planned.config, samples, &planned.folder)?;
                Ok(Some((AdditionTraining { validation, exact_validation }, AdditionMeasured { widths })))
            })
        },
        |rows, planned| AdditionRecord {
            scale: scale.name.into(),
            command: options.command.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            machine: machine::describe(),
            settings: AdditionSettings { max_width: task.max_width, samples },
            config: first.to_toml(),
            planned,
            search: None,
            rows,
        },
    )
}
