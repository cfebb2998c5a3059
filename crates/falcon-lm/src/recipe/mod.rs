//! The training recipe: learning-rate schedule, optimizer, batch size, and how often a run evaluates and saves.

mod schedule;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::schedule::{Schedule, ScheduleError};

/// Hyperparameters of AdamW; the paper's by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWConfig {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Weight decay of matrices; vectors have none.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
    }
}

/// A training recipe; the paper's by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// Seed of the initial weights and of the order of the data.
    pub seed: u64,
    /// Sequences per step.
    pub batch: usize,
    /// Number of parts that a batch is split into to save memory; their gradients are summed.
    pub accumulate: usize,
    /// Learning rate and number of steps.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// Hyperparameters of AdamW.
    #[serde(flatten)]
    pub optimizer: AdamWConfig,
    /// Global gradient norm above which gradients are scaled down.
    pub clip: f64,
    /// The run stops when the loss exceeds its recent mean by this factor and is also worse than guessing. `None`,
    /// which is written as 0 in a configuration file, switches this check off.
    #[serde(with = "zero_is_none")]
    pub spike: Option<f64>,
    /// Steps between evaluations.
    pub eval_every: u64,
    /// Steps between checkpoints. A checkpoint is also saved after every best evaluation and after the last step.
    pub save_every: u64,
    /// Number of recent checkpoints to keep besides the best one.
    pub keep: usize,
    /// Folder of a model whose weights the run starts from. None starts from random weights.
    pub init_from: Option<String>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            batch: 32,
            accumulate: 1,
            schedule: Schedule { lr: 1e-3, final_fraction: 0.05, warmup: 100, steps: 2000 },
            optimizer: AdamWConfig::default(),
            clip: 1.0,
            spike: Some(4.0),
            eval_every: 100,
            save_every: 100,
            keep: 2,
            init_from: None,
        }
    }
}

/// The largest integer of TOML.
const LARGEST: u64 = i64::MAX as u64;

/// Why a recipe cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TrainConfigError {
    /// A number is outside its range.
    #[error("train.{name} must be {range}, got {got}")]
    Number {
        /// The key.
        name: &'static str,
        /// The values that are allowed.
        range: &'static str,
        /// The value given.
        got: f64,
    },
    /// The schedule is impossible.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

impl TrainConfig {
    /// The same recipe with absolute paths.
    pub fn with_absolute_paths(&self) -> Self {
        let absolute = |path: &String| {
            std::path::absolute(path).map_or_else(|_| path.clone(), |path| path.to_string_lossy().into_owned())
        };
        Self { init_from: self.init_from.as_ref().map(absolute), ..self.clone() }
    }

    /// Checks all values.
    pub fn validate(&self) -> Result<(), TrainConfigError> {
        self.schedule.validate()?;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.optimizer;
        let rate = 0.0..1.0;
        for (name, got, good, range) in [
            ("batch", self.batch as f64, (1..=1 << 20).contains(&self.batch), "from 1 to 1048576"),
            ("seed", self.seed as f64, self.seed <= LARGEST, "below 2^63"),
            (
                "accumulate",
                self.accumulate as f64,
                (1..=self.batch).contains(&self.accumulate),
                "from 1 to train.batch",
            ),
            ("clip", self.clip, positive(self.clip), "above 0"),
            (
                "spike",
                self.spike.unwrap_or(0.0),
                self.spike.is_none_or(|spike| spike.is_finite() && spike > 1.0),
                "above 1, or 0",
            ),
            ("eval_every", self.eval_every as f64, self.eval_every > 0, "at least 1"),
            ("save_every", self.save_every as f64, self.save_every > 0, "at least 1"),
            ("keep", self.keep as f64, self.keep > 0, "at least 1"),
            ("beta1", beta1, rate.contains(&(beta1 as f32)), "from 0 to below 1, in 32 bits"),
            ("beta2", beta2, rate.contains(&(beta2 as f32)), "from 0 to below 1, in 32 bits"),
            ("eps", eps, positive(eps) && eps as f32 > 0.0, "above 0, in 32 bits"),
            ("weight_decay", weight_decay, weight_decay.is_finite() && weight_decay >= 0.0, "0 or more"),
        ] {
            if !good {
                return Err(TrainConfigError::Number { name, range, got });
            }
        }
        Ok(())
    }
}

/// An optional number that is written as 0 where it is `None`.
mod zero_is_none {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.unwrap_or(0.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(Some(f64::deserialize(deserializer)?).filter(|value| *value != 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_spike_factor_is_written_as_zero() {
        for (spike, written) in [(None, 0.0), (Some(4.0), 4.0)] {
            let config = TrainConfig { spike, ..TrainConfig::default() };
            let json = serde_json::to_value(&config).unwrap();
            assert_eq!(json["spike"], written);
            assert_eq!(serde_json::from_value::<TrainConfig>(json).unwrap(), config);
            assert_eq!(config.validate(), Ok(()));
        }
        let message =
            TrainConfig { spike: Some(0.5), ..TrainConfig::default() }.validate().unwrap_err().to_string();
        assert_eq!(message, "train.spike must be above 1, or 0, got 0.5");
    }
}
