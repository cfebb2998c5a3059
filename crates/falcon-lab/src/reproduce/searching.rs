//! Runs the search of an experiment, and plans the full runs with the values that were found.

use falcon_lm::config::RunConfig;
use falcon_lm::train::Outcome;

use super::earlier::EarlierRecords;
use super::error::ExperimentError;
use super::fingerprint::Fingerprint;
use super::observer::Observer;
use super::plan::{ExperimentOptions, ExperimentPlan, FamilySearch, PlannedRun};
use super::record::{Experiment, RecordError};
use super::runner::run_all;
use super::search::{SEARCH_SEED, SearchPoint};
use super::trial::{ModelSearch, SearchRecord, Trial, choose, run_trial};

/// The result of a search.
pub(super) struct SearchOutcome {
    /// The full runs, with the values that were found. A model has none if one of its trials failed or all of them
    /// diverged.
    pub runs: Vec<PlannedRun>,
    /// The record of the search; none if there was nothing to search for.
    pub search: Option<SearchRecord>,
    /// The last failure; earlier ones were shown when they occurred.
    pub failed: Option<ExperimentError>,
}

/// Runs all trials of the plan that earlier records do not have. None if interrupted. After each trial, `keep` is
/// given the record of the search so far.
pub(super) fn run_search<E: Experiment>(
    plan: &ExperimentPlan<'_>,
    earlier: &EarlierRecords<E>,
    fingerprint: &(dyn Fn(&RunConfig) -> Fingerprint + Sync),
    options: &ExperimentOptions,
    observer: &dyn Observer,
    keep: impl Fn(SearchRecord) -> Result<(), RecordError> + Sync,
) -> Result<Option<SearchOutcome>, ExperimentError> {
    let trials: Vec<PlannedRun> = plan.searches.iter().flat_map(|search| search.trials.clone()).collect();
    let named = |planned: &PlannedRun, trial: Trial| (planned.row.name.clone(), trial);
    let taken = trials.iter().zip(earlier.trials(&trials, fingerprint, observer));
    let taken = taken.map(|(planned, trial)| Some(named(planned, trial?))).collect();
    let done = run_all(
        &trials,
        taken,
        options,
        observer,
        |planned, watch| {
            let trial = run_trial(&planned.config, &planned.folder, fingerprint(&planned.config), watch)?;
            Ok(trial.map(|trial| named(planned, trial)))
        },
        |done| partial_record(plan, &done).map_or(Ok(()), &keep),
    )?;
    if done.outcome == Outcome::Interrupted {
        return Ok(None);
    }
    let mut failed = done.failed;
    let (mut runs, mut models) = (Vec::new(), Vec::new());
    for search in &plan.searches {
        let name = &search.family.base.name;
        let trials = trials_of(name, &done.results);
        if trials.len() < search.trials.len() {
            // A trial of this model failed. The failure was shown when it occurred, or is in `failed`.
            continue;
        }
        let point = match search.grid.as_slice() {
            [] => {
                runs.extend(plan.runs_of(&search.family, None)?);
                continue;
            }
            [only] => Some(*only),
            _ => choose(&trials),
        };
        match &point {
            Some(point) => runs.extend(plan.runs_of(&search.family, Some(point))?),
            None => {
                if let Some(previous) = failed.replace(ExperimentError::Diverged { name: name.clone() }) {
                    observer.note(&format!("warning: {previous}"));
                }
            }
        }
        note_choice(name, &trials, point, observer);
        models.push(ModelSearch { chosen: point, ..unchosen(search, trials) });
    }
    Ok(Some(SearchOutcome { runs, search: search_record(plan, models), failed }))
}

/// The trials of one model.
fn trials_of(name: &str, done: &[(String, Trial)]) -> Vec<Trial> {
    done.iter().filter(|(model, _)| model == name).map(|(_, trial)| *trial).collect()
}

/// The record of a search in progress: nothing is chosen yet.
fn partial_record(plan: &ExperimentPlan<'_>, done: &[(String, Trial)]) -> Option<SearchRecord> {
    let model = |search: &FamilySearch| unchosen(search, trials_of(&search.family.base.name, done));
    search_record(plan, plan.searches.iter().map(model).filter(|model| !model.trials.is_empty()).collect())
}

/// The record of a search; none if the plan has no trials.
fn search_record(plan: &ExperimentPlan<'_>, models: Vec<ModelSearch>) -> Option<SearchRecord> {
    let trial = plan.searches.iter().flat_map(|search| &search.trials).next()?;
    Some(SearchRecord { seed: SEARCH_SEED, steps: trial.config.train.schedule.steps, models })
}

/// Shows the point that was chosen for a model, and its loss.
fn note_choice(name: &str, trials: &[Trial], chosen: Option<SearchPoint>, observer: &dyn Observer) {
    let loss = |point| trials.iter().find(|trial| trial.point == point).and_then(|trial| trial.loss);
    if let Some((point, loss)) = chosen.and_then(|point| Some((point, loss(point)?))) {
        let SearchPoint { lr, initializer_range } = point;
        observer.note(&format!(
            "search for {name}: lr {lr:e}, embedding {initializer_range}, with a validation loss of {loss:.4}"
        ));
    }
}

/// The search of one model, as long as no point is chosen.
fn unchosen(search: &FamilySearch, trials: Vec<Trial>) -> ModelSearch {
    let rows = search.family.rows.iter().map(|row| row.name.clone()).collect();
    ModelSearch { name: search.family.base.name.clone(), rows, trials, chosen: None }
}
