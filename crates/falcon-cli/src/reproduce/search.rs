//! The search before an experiment: short runs, and what is chosen by them.

use std::io::{self, Write};

use falcon_lm::reproduce::{ModelSearch, Point, SEARCH_SEED, SearchRecord, Trial, choose, run_trial};
use falcon_lm::train::Outcome;

use super::plan::{FamilySearch, Plan, Planned};
use super::{ReproduceError, RowsArgs, run_all};

/// What a search came to.
pub(super) struct Searched {
    /// The full runs, at the points that were found. Those of models without one are missing.
    pub runs: Vec<Planned>,
    /// None if nothing was searched for.
    pub record: Option<SearchRecord>,
    /// The last model that has no point: of all others it was said.
    pub failed: Option<ReproduceError>,
}

impl Plan<'_> {
    /// Does the search, or finds it done. None if it was interrupted.
    pub fn search(&self, args: &RowsArgs) -> Result<Option<Searched>, ReproduceError> {
        let trials: Vec<Planned> = self.searches.iter().flat_map(|search| search.trials.clone()).collect();
        let done = run_all(
            &trials,
            args,
            |planned, show| {
                let trial = run_trial(&planned.config, &planned.folder, show)?;
                Ok(trial.map(|trial| (planned.row.name.clone(), trial)))
            },
            |_| Ok(()),
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
        let record = trials.first().map(|trial| SearchRecord {
            seed: SEARCH_SEED,
            steps: trial.config.train.schedule.steps,
            models,
        });
        Ok(Some(Searched { runs, record, failed }))
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
    let rows = search.family.rows.iter().map(|row| row.name.clone()).collect();
    ModelSearch { name, rows, trials, chosen }
}
