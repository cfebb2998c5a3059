//! Trains and evaluates a row.

use falcon_lm::train::Watch;

use super::fingerprint::Fingerprint;
use super::plan::PlannedRun;
use super::record::{Experiment, RowResult, StateSize};
use super::training::{FinishedRun, RowError, train_run};

/// Trains a run, unless that is done already, and evaluates it. None if the training or the evaluation was interrupted.
/// `evaluate` is given the finished run, and `fingerprint` is that of the run.
pub(super) fn run_row<E: Experiment>(
    planned: &PlannedRun,
    fingerprint: Fingerprint,
    watch: &mut dyn Watch,
    evaluate: impl FnOnce(&FinishedRun) -> Result<Option<(E::Training, E::Measured)>, RowError>,
) -> Result<Option<RowResult<E>>, RowError> {
    let PlannedRun { row, config, folder, .. } = planned;
    let Some(run) = train_run(config, folder, watch)? else { return Ok(None) };
    let Some((training, measured)) = evaluate(&run)? else { return Ok(None) };
    Ok(Some(RowResult {
        name: row.name.clone(),
        seed: config.train.seed,
        parameters: config.model.parameter_count(),
        state: Some(StateSize::of(&config.model)),
        best_step: run.best.step,
        training,
        seconds: run.seconds,
        threads: run.threads(),
        measured,
        origin: Some(run.origin(fingerprint)),
    }))
}
