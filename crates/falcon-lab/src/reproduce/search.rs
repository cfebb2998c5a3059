//! The grid of a search for hyperparameters.
//!
//! Before an experiment, every model is given the learning rate and the initial scale of the embedding that suit it
//! best, from the same grid and with the same effort. Otherwise a table would favour the models for which the
//! settings happen to be good.

use falcon_lm::config::{Layer, RunConfig, RunConfigError};
use serde::{Deserialize, Serialize};

use super::row::TableRow;

/// The seed of all runs of a search. No reported run has it, so that no reported run was selected by its own result.
pub const SEARCH_SEED: u64 = 1000;

/// The grid, which is the same for every model, and how long each point is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Values of `train.lr`, in ascending order.
    pub lr: &'static [f64],
    /// Values of `model.initializer_range`, in ascending order.
    pub initializer_range: &'static [f64],
    /// The number of steps of each run, if a full run has at least as many.
    pub steps: u64,
}

/// A point of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchPoint {
    /// The value of `train.lr`.
    pub lr: f64,
    /// The value of `model.initializer_range`.
    pub initializer_range: f64,
}

impl SearchPoint {
    /// The values of a configuration.
    pub(super) fn of(config: &RunConfig) -> Self {
        Self { lr: config.train.schedule.lr, initializer_range: config.model.initializer_range }
    }

    /// The layers that set both values.
    pub fn layers(&self) -> [Layer; 2] {
        [Layer::of("train", "lr", self.lr), Layer::of("model", "initializer_range", self.initializer_range)]
    }
}

impl Search {
    /// Three learning rates and two scales of the embedding, for 250 steps. Larger scales are not worth trying: with
    /// logits multiplied by 8 (a hidden size of 128), a scale of 0.1 cost both models tried more than 0.3 nats.
    pub const SMALL: Self = Self { lr: &[2e-3, 4e-3, 8e-3], initializer_range: &[0.005, 0.02], steps: 250 };

    /// The points to try for a row whose full configuration is `config`, made with the layers `more`. A value that the
    /// row or one of these layers sets is not searched for.
    pub fn grid(
        &self,
        row: &TableRow,
        more: &[Layer],
        config: &RunConfig,
    ) -> Result<Vec<SearchPoint>, RunConfigError> {
        let changes = row.set.iter().map(|set| Layer::set(set)).collect::<Result<Vec<_>, _>>()?;
        let is_set = |section, key| changes.iter().chain(more).any(|layer| layer.has(section, key));
        let fixed = SearchPoint::of(config);
        let lr = if is_set("train", "lr") { &[fixed.lr] } else { self.lr };
        let ranges = match is_set("model", "initializer_range") {
            true => &[fixed.initializer_range],
            false => self.initializer_range,
        };
        let points = |lr: &f64| {
            let lr = *lr;
            ranges.iter().map(move |range| SearchPoint { lr, initializer_range: *range })
        };
        Ok(lr.iter().flat_map(points).collect())
    }

    /// The layers that turn the full run `full` into a run of a point: fewer steps, with a complete schedule whose
    /// warm-up is the same fraction of it, and one checkpoint, because only the loss is needed.
    pub fn layers(&self, point: &SearchPoint, full: &RunConfig) -> Vec<Layer> {
        let schedule = &full.train.schedule;
        let steps = self.steps.min(schedule.steps);
        let warmup = u128::from(schedule.warmup) * u128::from(steps) / u128::from(schedule.steps);
        let warmup = u64::try_from(warmup).expect("no longer than the run");
        let layer = |key: &str, value: u64| Layer::of("train", key, value);
        let [lr, range] = point.layers();
        vec![lr, range, layer("steps", steps), layer("warmup", warmup), layer("keep", 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::language::{Corpus, SCALES, config};

    const SEARCH: Search = Search { lr: &[1.0, 2.0, 4.0], initializer_range: &[0.1, 0.2], steps: 20 };

    fn full(row: &str, sets: &[&str]) -> (TableRow, Vec<Layer>, RunConfig) {
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        let (row, more) =
            (TableRow::parse(row), sets.iter().map(|set| Layer::set(set).unwrap()).collect::<Vec<_>>());
        let config = config(&corpus, &SCALES[0], &row, SEARCH_SEED, &more).unwrap();
        (row, more, config)
    }

    fn grid(row: &str, sets: &[&str]) -> Vec<(f64, f64)> {
        let (row, more, config) = full(row, sets);
        let points = SEARCH.grid(&row, &more, &config).unwrap();
        points.into_iter().map(|point| (point.lr, point.initializer_range)).collect()
    }

    #[test]
    fn values_that_are_set_are_not_searched_for() {
        let all = [(1.0, 0.1), (1.0, 0.2), (2.0, 0.1), (2.0, 0.2), (4.0, 0.1), (4.0, 0.2)];
        assert_eq!(grid("retnet", &["train.batch=2"]), all);
        assert_eq!(grid("retnet", &["train.lr=3"]), [(3.0, 0.1), (3.0, 0.2)]);
        assert_eq!(grid("retnet+train.lr=3", &[]), [(3.0, 0.1), (3.0, 0.2)]);
        let ranges = grid("retnet+model.initializer_range=0.5", &[]);
        assert_eq!(ranges, [(1.0, 0.5), (2.0, 0.5), (4.0, 0.5)]);
        // The row's own value takes precedence, as it does without a search.
        assert_eq!(grid("retnet+train.lr=3+model.initializer_range=0.5", &["train.lr=7"]), [(3.0, 0.5)]);
    }

    #[test]
    fn short_runs_have_a_complete_schedule() {
        let point = SearchPoint { lr: 2.0, initializer_range: 0.2 };
        let short = |sets: &[&str]| {
            let (row, mut more, full) = full("retnet", sets);
            more.extend(SEARCH.layers(&point, &full));
            let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
            let config = config(&corpus, &SCALES[0], &row, SEARCH_SEED, &more).unwrap();
            assert_eq!((SearchPoint::of(&config), config.train.seed), (point, 1000));
            (config.train.schedule.steps, config.train.schedule.warmup)
        };
        // Warm-ups of a tenth and of half the run.
        assert_eq!(short(&["train.steps=200"]), (20, 2));
        assert_eq!(short(&["train.steps=1000", "train.warmup=500"]), (20, 10));
        assert_eq!(short(&["train.steps=7"]), (7, 0), "no longer than the full run");
    }
}
