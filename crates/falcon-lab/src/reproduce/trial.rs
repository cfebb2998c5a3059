//! The runs of a search, and the values that are chosen from their losses.

use std::path::Path;

use falcon_base::files::write_file;
use falcon_lm::batch::VALIDATION;
use falcon_lm::config::RunConfig;
use falcon_lm::train::{Changes, METRICS_FILE, Record, RunFolder, TrainError, Watch, read_intact_metrics};
use serde::{Deserialize, Serialize};

use super::fingerprint::Fingerprint;
use super::search::SearchPoint;
use super::training::{RowError, train_run, training_seconds};
use crate::tables::{table_head, table_line};

/// The result of a point of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The point.
    #[serde(flatten)]
    pub point: SearchPoint,
    /// The lowest validation loss; none if the run diverged.
    pub loss: Option<f64>,
    /// The time spent in training and validation, in seconds.
    pub seconds: f64,
    /// The fingerprint of the run. Trials recorded by earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
}

/// Name of the file in the folder of a run that diverged. Such a run has no final checkpoint by which it could be
/// recognised as done.
const DIVERGED_FILE: &str = "diverged.txt";

/// Trains a point of a search in `folder`, unless that is done already. None if it was interrupted. `fingerprint` is
/// that of the run.
pub fn run_trial(
    config: &RunConfig,
    folder: &Path,
    fingerprint: Fingerprint,
    watch: &mut dyn Watch,
) -> Result<Option<Trial>, RowError> {
    let trial =
        |loss, seconds| Trial { point: SearchPoint::of(config), loss, seconds, fingerprint: Some(fingerprint) };
    let path = folder.join(DIVERGED_FILE);
    let diverged = |watch: &mut dyn Watch| -> Result<Option<Trial>, RowError> {
        let (records, damage) = read_intact_metrics(&folder.join(METRICS_FILE))?;
        if let Some(damage) = damage {
            watch.warn(&format!("{damage}; the line is left out"));
        }
        Ok(Some(trial(None, training_seconds(&records))))
    };
    if path.exists() {
        // The folder may hold a run with another configuration, which is refused.
        let opened = RunFolder::open(folder, config).map_err(TrainError::from)?;
        opened.reconcile(config, None, Changes::Refuse).map_err(TrainError::from)?;
        return diverged(watch);
    }
    let run = match train_run(config, folder, watch) {
        Err(RowError::Train(error @ TrainError::Bad { .. })) => {
            write_file(&path, format!("{error}\n").as_bytes())?;
            return diverged(watch);
        }
        run => run?,
    };
    let loss = |record: &Record| match record {
        Record::Eval(record) if record.split == VALIDATION => Some(record.total.loss),
        _ => None,
    };
    Ok(run.map(|run| trial(run.records.iter().filter_map(loss).min_by(f64::total_cmp), run.seconds)))
}

/// The search of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSearch {
    /// The model.
    pub name: String,
    /// The rows that were trained with the chosen values.
    pub rows: Vec<String>,
    /// A trial for every point of its grid; empty if there is only one point, which needs no trial.
    pub trials: Vec<Trial>,
    /// The point that was chosen; none if all runs diverged.
    pub chosen: Option<SearchPoint>,
}

/// The point with the lowest loss; the first of several. None if all runs diverged.
pub fn choose(trials: &[Trial]) -> Option<SearchPoint> {
    let measured = trials.iter().filter_map(|trial| Some((trial.point, trial.loss?)));
    measured.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(point, _)| point)
}

impl ModelSearch {
    fn trial(&self, point: &SearchPoint) -> Option<&Trial> {
        self.trials.iter().find(|trial| trial.point == *point)
    }

    /// The chosen value of a coordinate, marked if it is at an edge of the grid.
    fn shown(&self, value: fn(&SearchPoint) -> f64, format: fn(f64) -> String) -> String {
        let Some(chosen) = self.chosen.as_ref().map(value) else { return "–".into() };
        let (mut below, mut above) = (false, false);
        for tried in self.trials.iter().map(|trial| value(&trial.point)) {
            below |= tried < chosen;
            above |= tried > chosen;
        }
        let edge = match (below, above) {
            (true, false) => " ↑",
            (false, true) => " ↓",
            // Within the grid, or the only value, which was not searched for.
            _ => "",
        };
        format(chosen) + edge
    }

    /// The chosen learning rate, as tables show it.
    pub(super) fn lr(&self) -> String {
        self.shown(|point| point.lr, |lr| format!("{lr:e}"))
    }

    /// The chosen initial scale of the embedding, as tables show it.
    pub(super) fn initializer_range(&self) -> String {
        self.shown(|point| point.initializer_range, |range| range.to_string())
    }
}

/// The searches of all models of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchRecord {
    /// The seed of all runs.
    pub seed: u64,
    /// The number of steps of each run.
    pub steps: u64,
    /// The search of each model.
    pub models: Vec<ModelSearch>,
}

impl SearchRecord {
    /// The recorded trial of a run, if there is one.
    pub fn recorded(&self, run: Fingerprint) -> Option<Trial> {
        let mut trials = self.models.iter().flat_map(|model| &model.trials);
        trials.find(|trial| trial.fingerprint == Some(run)).copied()
    }

    /// The search that determined the settings of a row.
    pub(super) fn model_of(&self, row: &str) -> Option<&ModelSearch> {
        self.models.iter().find(|model| model.rows.iter().any(|name| name == row))
    }

    /// All points that were tried for any model.
    fn points(&self) -> Vec<SearchPoint> {
        let mut points: Vec<SearchPoint> = Vec::new();
        for trial in self.models.iter().flat_map(|model| &model.trials) {
            if !points.contains(&trial.point) {
                points.push(trial.point);
            }
        }
        points
    }

    /// A table of the chosen values and of the loss of each point.
    pub(super) fn table(&self) -> String {
        let points = self.points();
        let mut out = String::new();
        let mut titles = vec![
            format!("search: validation loss after {} steps", self.steps),
            "learning rate".into(),
            "embedding scale".into(),
        ];
        titles.extend(points.iter().map(|point| format!("{:e}, {}", point.lr, point.initializer_range)));
        table_head(&mut out, &titles);
        for model in &self.models {
            let mut cells = vec![model.name.clone(), model.lr(), model.initializer_range()];
            cells.extend(points.iter().map(|point| match model.trial(point) {
                None => "–".to_string(),
                Some(Trial { loss: None, .. }) => "diverged".into(),
                Some(Trial { loss: Some(loss), .. }) => format!("{loss:.3}"),
            }));
            table_line(&mut out, &cells);
        }
        out
    }

    /// A paragraph that explains the search.
    pub(super) fn notes(&self) -> String {
        let trials = || self.models.iter().flat_map(|model| &model.trials);
        let points = self.points();
        let same = self.models.iter().all(|model| points.iter().all(|point| model.trial(point).is_some()));
        let grid = match same {
            true => "All rows had the same grid and the same effort:",
            false => {
                "All rows had the same grid, except for values that a row or the command sets (– was not tried):"
            }
        };
        let shared = match self.models.iter().all(|model| model.rows.len() == 1) {
            true => "",
            false => " Rows that are variants of one model share the point that was found for that model.",
        };
        format!(
            "The learning rate and the initial scale of the embedding (`model.initializer_range`) of every row were chosen by \
             a search. {grid} each point was trained once, for {} steps with a complete schedule and with seed {}, which no \
             reported run has; the point with the lowest loss on the part of the validation text that is evaluated during \
             training was chosen.{shared} ↑ and ↓ mark a value at the upper or lower edge of the grid: the optimum may lie \
             beyond it. The search took {} runs and {:.0} minutes in total, which are not included in the times of the rows.\n",
            self.steps,
            self.seed,
            trials().count(),
            trials().map(|trial| trial.seconds).sum::<f64>() / 60.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::search::SEARCH_SEED;
    use falcon_lm::config::Layer;
    use falcon_lm::monitor::Monitor;
    use falcon_lm::train::read_metrics;

    /// The fingerprint does not matter to what is tested here.
    const RUN: Fingerprint = Fingerprint::ZERO;

    fn trial(lr: f64, range: f64, loss: Option<f64>) -> Trial {
        Trial { point: SearchPoint { lr, initializer_range: range }, loss, seconds: 30.0, fingerprint: None }
    }

    fn searched(name: &str, trials: Vec<Trial>) -> ModelSearch {
        ModelSearch { name: name.into(), rows: vec![name.into()], chosen: choose(&trials), trials }
    }

    #[test]
    fn the_lowest_loss_is_chosen_and_edges_are_marked() {
        let search = |losses: [Option<f64>; 3]| {
            let rates = [5e-4, 1e-3, 2e-3].into_iter().zip(losses);
            searched("a", rates.map(|(lr, loss)| trial(lr, 0.02, loss)).collect())
        };
        let lowest = search([Some(3.0), Some(2.0), Some(4.0)]);
        assert_eq!(lowest.chosen, Some(SearchPoint { lr: 1e-3, initializer_range: 0.02 }));
        assert_eq!((lowest.lr().as_str(), lowest.initializer_range().as_str()), ("1e-3", "0.02"));
        assert_eq!(search([Some(2.0), Some(2.0), Some(2.0)]).lr(), "5e-4 ↓", "the first of equals");
        assert_eq!(search([None, None, Some(9.0)]).lr(), "2e-3 ↑", "a run that diverged is never chosen");
        let none = search([None, None, None]);
        assert_eq!((none.chosen, none.lr().as_str()), (None, "–"));
    }

    #[test]
    fn the_table_has_every_point() {
        let mut record = SearchRecord {
            seed: SEARCH_SEED,
            steps: 250,
            models: vec![
                searched("a", vec![trial(1e-3, 0.02, Some(3.25)), trial(1e-3, 0.1, Some(3.125))]),
                searched("b", vec![trial(1e-3, 0.02, Some(3.5)), trial(1e-3, 0.1, None)]),
            ],
        };
        let expected = "\
| search: validation loss after 250 steps | learning rate | embedding scale | 1e-3, 0.02 | 1e-3, 0.1 |
|---|--:|--:|--:|--:|
| a | 1e-3 | 0.1 ↑ | 3.250 | 3.125 |
| b | 1e-3 | 0.02 ↓ | 3.500 | diverged |
";
        assert_eq!(record.table(), expected);
        let notes = record.notes();
        assert!(notes.contains("All rows had the same grid and the same effort: each point"), "{notes}");
        assert!(notes.contains("took 4 runs and 2 minutes") && notes.contains("seed 1000"), "{notes}");
        assert!(!notes.contains("variants of one model"), "{notes}");
        record.models.push(searched("c", vec![trial(7e-3, 0.02, Some(3.0))]));
        record.models[2].rows = vec!["c align=next".into(), "c align=same".into()];
        assert!(record.table().contains("| c | 7e-3 | 0.02 | – | – | 3.000 |"), "{}", record.table());
        let notes = record.notes();
        assert!(
            notes.contains("except for values that a row") && notes.contains("variants of one model"),
            "{notes}"
        );
        assert_eq!(record.model_of("c align=same").map(|model| model.name.as_str()), Some("c"));
        assert_eq!(record.model_of("c"), None);
    }

    /// Cancels a run at its n-th check for cancellation.
    struct CancelAt(u64);

    impl Watch for CancelAt {}

    impl Monitor for CancelAt {
        fn cancelled(&mut self) -> bool {
            self.0 = self.0.saturating_sub(1);
            self.0 == 0
        }
    }

    /// Keeps all warnings.
    #[derive(Default)]
    struct Warnings(Vec<String>);

    impl Watch for Warnings {
        fn warn(&mut self, message: &str) {
            self.0.push(message.into());
        }
    }

    impl Monitor for Warnings {}

    fn tiny(lr: &str) -> RunConfig {
        let keys =
            ["model.size=micro", "model.preset=retnet", "task.max_width=1", "task.beyond=1", "train.batch=2"];
        let more = ["train.steps=6", "train.eval_every=2", "model.hidden_size=16", "model.num_heads=2", lr];
        let layers: Vec<Layer> = keys.into_iter().chain(more).map(|key| Layer::set(key).unwrap()).collect();
        RunConfig::resolve(&layers).unwrap()
    }

    #[test]
    fn trials_are_resumed_and_not_repeated() {
        let config = tiny("train.lr=0.01");
        let [whole_folder, interrupted] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let whole = run_trial(&config, whole_folder.path(), RUN, &mut ()).unwrap().unwrap();
        let metrics = std::fs::read(whole_folder.path().join(METRICS_FILE)).unwrap();
        assert_eq!(run_trial(&config, whole_folder.path(), RUN, &mut ()).unwrap(), Some(whole));
        assert_eq!(std::fs::read(whole_folder.path().join(METRICS_FILE)).unwrap(), metrics);
        assert_eq!(run_trial(&config, interrupted.path(), RUN, &mut CancelAt(4)).unwrap(), None);
        let resumed = run_trial(&config, interrupted.path(), RUN, &mut ()).unwrap().unwrap();
        assert_eq!((resumed.point, resumed.loss), (whole.point, whole.loss));
        let losses = read_metrics(&whole_folder.path().join(METRICS_FILE)).unwrap();
        let losses: Vec<f64> = losses
            .iter()
            .filter_map(|record| match record {
                Record::Eval(record) if record.split == VALIDATION => Some(record.total.loss),
                _ => None,
            })
            .collect();
        assert_eq!(losses.len(), 3);
        assert!(losses.contains(&whole.loss.unwrap()) && losses.iter().all(|loss| *loss >= whole.loss.unwrap()));
    }

    #[test]
    fn a_trial_that_diverged_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let config = tiny("train.lr=1e38");
        let trial = run_trial(&config, folder.path(), RUN, &mut ()).unwrap().unwrap();
        assert_eq!((trial.loss, trial.point.lr), (None, 1e38));
        let reason = std::fs::read_to_string(folder.path().join(DIVERGED_FILE)).unwrap();
        assert!(reason.starts_with("step "), "{reason}");
        let metrics = std::fs::read(folder.path().join(METRICS_FILE)).unwrap();
        assert_eq!(run_trial(&config, folder.path(), RUN, &mut ()).unwrap(), Some(trial));
        assert_eq!(std::fs::read(folder.path().join(METRICS_FILE)).unwrap(), metrics);
        // Only its duration depends on its records.
        std::fs::write(folder.path().join(METRICS_FILE), [b"{\n", &metrics[..]].concat()).unwrap();
        let mut watch = Warnings::default();
        assert_eq!(run_trial(&config, folder.path(), RUN, &mut watch).unwrap(), Some(trial));
        assert!(watch.0.len() == 1 && watch.0[0].contains("line 1"), "{:?}", watch.0);
        let other = run_trial(&tiny("train.lr=0.01"), folder.path(), RUN, &mut ()).unwrap_err().to_string();
        assert!(other.contains("another configuration") && other.contains("train.lr"), "{other}");
    }
}
