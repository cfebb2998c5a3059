//! The search before an experiment: short runs, and what is chosen by them.

use std::io::{self, Write};

use falcon_lm::config::RunConfig;
use falcon_lm::reproduce::language::LanguageRecord;
use falcon_lm::reproduce::{
    Fingerprint, ModelSearch, Point, RecordError, SEARCH_SEED, SearchRecord, Trial, choose, run_trial,
};
use falcon_lm::train::Outcome;

use super::continued::EarlierRecords;
use super::plan::{FamilySearch, Plan, Planned};
use super::{ReproduceError, RowsArgs, run_all};

/// What a search came to.
pub(super) struct Searched {
    /// The full runs, at the points that were found. Those of models without one are missing.
    pub runs: Vec<Planned>,
    /// None if nothing was searched for.
    pub search: Option<SearchRecord>,
    /// The last model that has no point: of all others it was said.
    pub failed: Option<ReproduceError>,
}

impl Plan<'_> {
    /// Does the search but for the trials that earlier records have, or finds it done. None if it was interrupted.
    /// After each trial, `keep` is given what is known by then.
    pub fn search(
        &self,
        args: &RowsArgs,
        earlier: &EarlierRecords<LanguageRecord>,
        fingerprint: &(dyn Fn(&RunConfig) -> Fingerprint + Sync),
        keep: impl Fn(SearchRecord) -> Result<(), RecordError> + Sync,
    ) -> Result<Option<Searched>, ReproduceError> {
        let trials: Vec<Planned> = self.searches.iter().flat_map(|search| search.trials.clone()).collect();
        let named = |planned: &Planned, trial: Trial| (planned.row.name.clone(), trial);
        let taken = trials.iter().zip(earlier.trials(&trials, fingerprint));
        let taken = taken.map(|(planned, trial)| Some(named(planned, trial?))).collect();
        let done = run_all(
            &trials,
            taken,
            args,
            |planned, show| {
                let Planned { config, folder, .. } = planned;
                let trial = run_trial(config, folder, fingerprint(config), show)?;
                Ok(trial.map(|trial| named(planned, trial)))
            },
            |done| self.so_far(&done).map_or(Ok(()), &keep),
        )?;
        if done.outcome == Outcome::Interrupted {
            return Ok(None);
        }
        let mut failed = done.failed;
        let (mut runs, mut models) = (Vec::new(), Vec::new());
        for search in &self.searches {
            let name = &search.family.base.name;
            let found: Vec<Trial> =
                done.rows.iter().filter(|(of, _)| of == name).map(|(_, trial)| *trial).collect();
            if found.len() < search.trials.len() {
                // What failed there was said.
                continue;
            }
            let point = match search.grid.as_slice() {
                [] => {
                    runs.extend(self.runs_of(&search.family, None)?);
                    continue;
                }
                [only] => Some(*only),
                _ => choose(&found),
            };
            match &point {
                Some(point) => runs.extend(self.runs_of(&search.family, Some(point))?),
                None => {
                    let before = failed.replace(ReproduceError::Diverged { name: name.clone() });
                    before.iter().for_each(warn);
                }
            }
            models.push(searched(search, found, point));
        }
        Ok(Some(Searched { runs, search: self.record(models), failed }))
    }

    /// What is known of a search that goes on: nothing is chosen yet.
    fn so_far(&self, done: &[(String, Trial)]) -> Option<SearchRecord> {
        let model = |search: &FamilySearch| {
            let name = &search.family.base.name;
            let trials = done.iter().filter(|(of, _)| of == name).map(|(_, trial)| *trial).collect();
            unchosen(search, trials)
        };
        self.record(self.searches.iter().map(model).filter(|model| !model.trials.is_empty()).collect())
    }

    /// None if nothing is searched for.
    fn record(&self, models: Vec<ModelSearch>) -> Option<SearchRecord> {
        let trial = self.searches.iter().flat_map(|search| &search.trials).next()?;
        Some(SearchRecord { seed: SEARCH_SEED, steps: trial.config.train.schedule.steps, models })
    }
}

/// Says what failed, where something else does at the end.
pub(super) fn warn(failed: &ReproduceError) {
    let _ = writeln!(io::stderr(), "warning: {failed}");
}

fn searched(search: &FamilySearch, trials: Vec<Trial>, chosen: Option<Point>) -> ModelSearch {
    let name = search.family.base.name.clone();
    let loss = |point| trials.iter().find(|trial| trial.point == point).and_then(|trial| trial.loss);
    if let Some((point, loss)) = chosen.and_then(|point| Some((point, loss(point)?))) {
        let Point { lr, initializer_range } = point;
        let _ = writeln!(
            io::stderr(),
            "search for {name}: lr {lr:e}, embedding {initializer_range}, with a validation loss of {loss:.4}"
        );
    }
    ModelSearch { chosen, ..unchosen(search, trials) }
}

fn unchosen(search: &FamilySearch, trials: Vec<Trial>) -> ModelSearch {
    let rows = search.family.rows.iter().map(|row| row.name.clone()).collect();
    ModelSearch { name: search.family.base.name.clone(), rows, trials, chosen: None }
}
