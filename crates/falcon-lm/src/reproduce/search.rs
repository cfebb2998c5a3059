//! A small search before an experiment: every model gets the learning rate and the initial scale of the embedding
//! that suit it, from one grid and by one effort, so that a table does not compare models by whom the settings
//! favour.

use std::path::Path;

use falcon_nn::write_file;
use serde::{Deserialize, Serialize};

use super::fingerprint::Fingerprint;
use super::rows::{self, Row, RowError};
use crate::config::{Layer, RunConfig, RunConfigError};
use crate::report::{table_head, table_line};
use crate::tasks::VALIDATION;
use crate::train::{Changes, METRICS_FILE, Record, RunFolder, TrainError, Watch, read_metrics};

/// The seed of all runs of a search. No reported run has it, so that no reported run was chosen for its luck.
pub const SEARCH_SEED: u64 = 1000;

/// A grid, the same for every row, and how long its points are trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Values of `train.lr`, in ascending order.
    pub lr: &'static [f64],
    /// Values of `model.initializer_range`, in ascending order.
    pub initializer_range: &'static [f64],
    /// Steps of each run, at most those of a full one.
    pub steps: u64,
}

/// A point of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// `train.lr`.
    pub lr: f64,
    /// `model.initializer_range`.
    pub initializer_range: f64,
}

impl Point {
    fn of(config: &RunConfig) -> Self {
        Self { lr: config.train.schedule.lr, initializer_range: config.model.initializer_range }
    }

    /// What it sets.
    pub fn layers(&self) -> [Layer; 2] {
        [Layer::of("train", "lr", self.lr), Layer::of("model", "initializer_range", self.initializer_range)]
    }
}

impl Search {
    /// Three learning rates and two scales of the embedding, for 250 steps. Larger scales are not worth trying: where
    /// logits are multiplied by 8 (a width of 128), a scale of 0.1 cost both models that were tried more than 0.3 nats.
    pub const SMALL: Self = Self { lr: &[2e-3, 4e-3, 8e-3], initializer_range: &[0.005, 0.02], steps: 250 };

    /// The points to be tried for a row whose full configuration is `config`, made with the layers `more`. A value
    /// that the row or a layer sets is kept.
    pub fn grid(&self, row: &Row, more: &[Layer], config: &RunConfig) -> Result<Vec<Point>, RunConfigError> {
        let of_row = row.set.iter().map(|set| Layer::set(set)).collect::<Result<Vec<_>, _>>()?;
        let set = |section, key| of_row.iter().chain(more).any(|layer| layer.has(section, key));
        let fixed = Point::of(config);
        let lr = if set("train", "lr") { &[fixed.lr] } else { self.lr };
        let ranges = match set("model", "initializer_range") {
            true => &[fixed.initializer_range],
            false => self.initializer_range,
        };
        let point = |lr: &f64| {
            let lr = *lr;
            ranges.iter().map(move |range| Point { lr, initializer_range: *range })
        };
        Ok(lr.iter().flat_map(point).collect())
    }

    /// What makes a run of a point out of a full run: fewer steps with a whole schedule, whose warm-up takes the
    /// same part of it, and one checkpoint, as nothing but the loss is wanted.
    pub fn layers(&self, point: &Point, full: &RunConfig) -> Vec<Layer> {
        let schedule = &full.train.schedule;
        let steps = self.steps.min(schedule.steps);
        let warmup = u128::from(schedule.warmup) * u128::from(steps) / u128::from(schedule.steps);
        let warmup = u64::try_from(warmup).expect("no longer than the run");
        let of = |key: &str, value: u64| Layer::of("train", key, value);
        let [lr, range] = point.layers();
        vec![lr, range, of("steps", steps), of("warmup", warmup), of("keep", 1)]
    }
}

/// What became of a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The point.
    #[serde(flatten)]
    pub point: Point,
    /// The lowest validation loss that was measured; none if the run diverged.
    pub loss: Option<f64>,
    /// Time in training and validation.
    pub seconds: f64,
    /// The run. Trials recorded by earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
}

/// Name of the file in a run's folder that says how it diverged. There is no finished checkpoint to tell that.
const DIVERGED_FILE: &str = "diverged.txt";

/// Trains a point of a search in `folder`, or finds it done. None if it was interrupted. `fingerprint` is that of the
/// run.
pub fn run_trial(
    config: &RunConfig,
    folder: &Path,
    fingerprint: Fingerprint,
    watch: &mut dyn Watch,
) -> Result<Option<Trial>, RowError> {
    let trial = |loss, seconds| Trial { point: Point::of(config), loss, seconds, fingerprint: Some(fingerprint) };
    let path = folder.join(DIVERGED_FILE);
    let diverged = || -> Result<Option<Trial>, RowError> {
        let seconds = rows::seconds(&read_metrics(&folder.join(METRICS_FILE))?);
        Ok(Some(trial(None, seconds)))
    };
    if path.exists() {
        // Only if it is a run of this configuration that did.
        let opened = RunFolder::open(folder, config).map_err(TrainError::from)?;
        opened.reconcile(config, None, Changes::Refuse).map_err(TrainError::from)?;
        return diverged();
    }
    let run = match rows::train(config, folder, watch) {
        Err(RowError::Train(error @ TrainError::Bad { .. })) => {
            write_file(&path, format!("{error}\n").as_bytes()).map_err(|error| RowError::Io { path, error })?;
            return diverged();
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
    /// The rows that were trained with what was found for it.
    pub rows: Vec<String>,
    /// Every point of its grid; none if there was but one, which needs no trial.
    pub trials: Vec<Trial>,
    /// The point that was chosen; none if all diverged.
    pub chosen: Option<Point>,
}

/// The point of the lowest loss, the first of several. None if all diverged.
pub fn choose(trials: &[Trial]) -> Option<Point> {
    let measured = trials.iter().filter_map(|trial| Some((trial.point, trial.loss?)));
    measured.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(point, _)| point)
}

impl ModelSearch {
    fn trial(&self, point: &Point) -> Option<&Trial> {
        self.trials.iter().find(|trial| trial.point == *point)
    }

    /// The chosen value of a coordinate, marked if it is the first or last of those that were tried.
    fn shown(&self, value: fn(&Point) -> f64, format: fn(f64) -> String) -> String {
        let Some(chosen) = self.chosen.as_ref().map(value) else { return "–".into() };
        let (mut below, mut above) = (false, false);
        for tried in self.trials.iter().map(|trial| value(&trial.point)) {
            below |= tried < chosen;
            above |= tried > chosen;
        }
        let edge = match (below, above) {
            (true, false) => " ↑",
            (false, true) => " ↓",
            // Between others, or the only one: then nothing was searched for.
            _ => "",
        };
        format(chosen) + edge
    }

    /// The chosen learning rate.
    pub(super) fn lr(&self) -> String {
        self.shown(|point| point.lr, |lr| format!("{lr:e}"))
    }

    /// The chosen scale of the embedding.
    pub(super) fn initializer_range(&self) -> String {
        self.shown(|point| point.initializer_range, |range| range.to_string())
    }
}

/// The searches of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchRecord {
    /// The seed of all its runs.
    pub seed: u64,
    /// Steps of each.
    pub steps: u64,
    /// Of every model.
    pub models: Vec<ModelSearch>,
}

impl SearchRecord {
    /// The trial of a run, if it is recorded.
    pub fn recorded(&self, run: Fingerprint) -> Option<Trial> {
        let mut trials = self.models.iter().flat_map(|model| &model.trials);
        trials.find(|trial| trial.fingerprint == Some(run)).copied()
    }

    /// The search that a row's settings come from.
    pub(super) fn of(&self, row: &str) -> Option<&ModelSearch> {
        self.models.iter().find(|model| model.rows.iter().any(|name| name == row))
    }

    /// All points that were tried for any model.
    fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for trial in self.models.iter().flat_map(|model| &model.trials) {
            if !points.contains(&trial.point) {
                points.push(trial.point);
            }
        }
        points
    }

    /// What was chosen for each model, and the losses it was chosen by.
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

    /// How it was done, in words.
    pub(super) fn notes(&self) -> String {
        let trials = || self.models.iter().flat_map(|model| &model.trials);
        let points = self.points();
        let same = self.models.iter().all(|model| points.iter().all(|point| model.trial(point).is_some()));
        let grid = match same {
            true => "All rows had the same grid and the same effort:",
            false => {
                "All rows had the same grid, but for values that a row or the command sets (– was not tried):"
            }
        };
        let shared = match self.models.iter().all(|model| model.rows.len() == 1) {
            true => "",
            false => " Rows made of one model share the point that was found for it as it is.",
        };
        format!(
            "The learning rate and the initial scale of the embedding (`model.initializer_range`) of every row were \
             chosen by a search before. {grid} each point was trained once, for {} steps with a schedule of its \
             own and with seed {}, which no reported run has; the lowest loss on the part of the validation text \
             that is measured while training was chosen.{shared} ↑ and ↓ mark a value at the upper or lower edge \
             of the grid: the best may lie beyond. The search took {} runs and {:.0} minutes of all together, \
             which are not in the times of the rows.\n",
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
    use crate::reproduce::language::{Corpus, SCALES, config};

    /// Which run it is makes no difference to what is tested here.
    const RUN: Fingerprint = Fingerprint::ZERO;

    const SEARCH: Search = Search { lr: &[1.0, 2.0, 4.0], initializer_range: &[0.1, 0.2], steps: 20 };

    fn full(row: &str, sets: &[&str]) -> (Row, Vec<Layer>, RunConfig) {
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        let (row, more) = (Row::of(row), sets.iter().map(|set| Layer::set(set).unwrap()).collect::<Vec<_>>());
        let config = config(&corpus, &SCALES[0], &row, SEARCH_SEED, &more).unwrap();
        (row, more, config)
    }

    fn grid(row: &str, sets: &[&str]) -> Vec<(f64, f64)> {
        let (row, more, config) = full(row, sets);
        let points = SEARCH.grid(&row, &more, &config).unwrap();
        points.into_iter().map(|point| (point.lr, point.initializer_range)).collect()
    }

    #[test]
    fn what_is_set_is_not_searched_for() {
        let all = [(1.0, 0.1), (1.0, 0.2), (2.0, 0.1), (2.0, 0.2), (4.0, 0.1), (4.0, 0.2)];
        assert_eq!(grid("retnet", &["train.batch=2"]), all);
        assert_eq!(grid("retnet", &["train.lr=3"]), [(3.0, 0.1), (3.0, 0.2)]);
        assert_eq!(grid("retnet+train.lr=3", &[]), [(3.0, 0.1), (3.0, 0.2)]);
        let ranges = grid("retnet+model.initializer_range=0.5", &[]);
        assert_eq!(ranges, [(1.0, 0.5), (2.0, 0.5), (4.0, 0.5)]);
        // What the row is called wins, as it does without a search.
        assert_eq!(grid("retnet+train.lr=3+model.initializer_range=0.5", &["train.lr=7"]), [(3.0, 0.5)]);
    }

    #[test]
    fn short_runs_have_a_whole_schedule() {
        let point = Point { lr: 2.0, initializer_range: 0.2 };
        let short = |sets: &[&str]| {
            let (row, mut more, full) = full("retnet", sets);
            more.extend(SEARCH.layers(&point, &full));
            let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
            let config = config(&corpus, &SCALES[0], &row, SEARCH_SEED, &more).unwrap();
            assert_eq!((Point::of(&config), config.train.seed), (point, 1000));
            (config.train.schedule.steps, config.train.schedule.warmup)
        };
        // A tenth of 20, and a half of it.
        assert_eq!(short(&["train.steps=200"]), (20, 2));
        assert_eq!(short(&["train.steps=1000", "train.warmup=500"]), (20, 10));
        assert_eq!(short(&["train.steps=7"]), (7, 0), "no longer than what it is for");
    }

    fn trial(lr: f64, range: f64, loss: Option<f64>) -> Trial {
        Trial { point: Point { lr, initializer_range: range }, loss, seconds: 30.0, fingerprint: None }
    }

    fn searched(name: &str, trials: Vec<Trial>) -> ModelSearch {
        ModelSearch { name: name.into(), rows: vec![name.into()], chosen: choose(&trials), trials }
    }

    #[test]
    fn the_lowest_loss_is_chosen_and_edges_are_marked() {
        let of = |losses: [Option<f64>; 3]| {
            let rates = [5e-4, 1e-3, 2e-3].into_iter().zip(losses);
            searched("a", rates.map(|(lr, loss)| trial(lr, 0.02, loss)).collect())
        };
        let lowest = of([Some(3.0), Some(2.0), Some(4.0)]);
        assert_eq!(lowest.chosen, Some(Point { lr: 1e-3, initializer_range: 0.02 }));
        assert_eq!((lowest.lr().as_str(), lowest.initializer_range().as_str()), ("1e-3", "0.02"));
        assert_eq!(of([Some(2.0), Some(2.0), Some(2.0)]).lr(), "5e-4 ↓", "the first of equals");
        assert_eq!(of([None, None, Some(9.0)]).lr(), "2e-3 ↑", "what diverged is worse than anything");
        let none = of([None, None, None]);
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
        assert!(!notes.contains("made of one model"), "{notes}");
        record.models.push(searched("c", vec![trial(7e-3, 0.02, Some(3.0))]));
        record.models[2].rows = vec!["c align=next".into(), "c align=same".into()];
        assert!(record.table().contains("| c | 7e-3 | 0.02 | – | – | 3.000 |"), "{}", record.table());
        let notes = record.notes();
        assert!(notes.contains("but for values that a row") && notes.contains("made of one model"), "{notes}");
        assert_eq!(record.of("c align=same").map(|model| model.name.as_str()), Some("c"));
        assert_eq!(record.of("c"), None);
    }

    /// Asks to stop before the last of so many steps.
    struct Steps(u64);

    impl Watch for Steps {
        fn stop(&mut self) -> bool {
            self.0 = self.0.saturating_sub(1);
            self.0 == 0
        }
    }

    fn tiny(lr: &str) -> RunConfig {
        let keys =
            ["model.size=micro", "model.preset=retnet", "task.max_width=1", "task.beyond=1", "train.batch=2"];
        let more = ["train.steps=6", "train.eval_every=2", "model.hidden_size=16", "model.num_heads=2", lr];
        let layers: Vec<Layer> = keys.into_iter().chain(more).map(|key| Layer::set(key).unwrap()).collect();
        RunConfig::resolve(&layers).unwrap()
    }

    #[test]
    fn trials_go_on_and_are_not_done_again() {
        let config = tiny("train.lr=0.01");
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let whole = run_trial(&config, one.path(), RUN, &mut ()).unwrap().unwrap();
        let metrics = std::fs::read(one.path().join(METRICS_FILE)).unwrap();
        assert_eq!(run_trial(&config, one.path(), RUN, &mut ()).unwrap(), Some(whole));
        assert_eq!(std::fs::read(one.path().join(METRICS_FILE)).unwrap(), metrics);
        assert_eq!(run_trial(&config, other.path(), RUN, &mut Steps(4)).unwrap(), None);
        let resumed = run_trial(&config, other.path(), RUN, &mut ()).unwrap().unwrap();
        assert_eq!((resumed.point, resumed.loss), (whole.point, whole.loss));
        let losses = read_metrics(&one.path().join(METRICS_FILE)).unwrap();
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
    fn a_trial_that_diverges_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let config = tiny("train.lr=1e38");
        let trial = run_trial(&config, folder.path(), RUN, &mut ()).unwrap().unwrap();
        assert_eq!((trial.loss, trial.point.lr), (None, 1e38));
        let said = std::fs::read_to_string(folder.path().join(DIVERGED_FILE)).unwrap();
        assert!(said.starts_with("step "), "{said}");
        let metrics = std::fs::read(folder.path().join(METRICS_FILE)).unwrap();
        assert_eq!(run_trial(&config, folder.path(), RUN, &mut ()).unwrap(), Some(trial));
        assert_eq!(std::fs::read(folder.path().join(METRICS_FILE)).unwrap(), metrics);
        let other = run_trial(&tiny("train.lr=0.01"), folder.path(), RUN, &mut ()).unwrap_err().to_string();
        assert!(other.contains("another configuration") && other.contains("train.lr"), "{other}");
    }
}
