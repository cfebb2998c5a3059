//! How a run trains.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{AdamWConfig, Schedule, ScheduleError};

/// How a run trains: the paper's recipe by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// Of the initial model and of the order of the data.
    pub seed: u64,
    /// Sequences per step.
    pub batch: usize,
    /// Parts that a batch is computed in, to save memory; their gradients add up to those of the whole.
    pub accumulate: usize,
    /// Steps and learning rate.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// AdamW.
    #[serde(flatten)]
    pub optimizer: AdamWConfig,
    /// Largest norm of all gradients together.
    pub clip: f64,
    /// Stop when the loss is this many times what it was of late, and worse than guessing. 0 never stops.
    pub spike: f64,
    /// Steps between measurements on held-out data.
    pub eval_every: u64,
    /// Steps between checkpoints. There is also one at every best measurement and at the end.
    pub save_every: u64,
    /// Checkpoints to keep beside the best.
    pub keep: usize,
    /// The model whose weights the run started from: a folder. None starts from random weights.
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
            spike: 4.0,
            eval_every: 100,
            save_every: 100,
            keep: 2,
            init_from: None,
        }
    }
}

/// What TOML can hold.
const LARGEST: u64 = i64::MAX as u64;

/// What is wrong with it.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TrainConfigError {
    /// A number outside its range.
    #[error("train.{name} must be {range}, got {got}")]
    Number {
        /// Which.
        name: &'static str,
        /// What it may be.
        range: &'static str,
        /// What it is.
        got: f64,
    },
    /// A schedule that cannot be.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

impl TrainConfig {
    /// The same with absolute paths.
    pub fn with_absolute_paths(&self) -> Self {
        let absolute = |path: &String| {
            std::path::absolute(path).map_or_else(|_| path.clone(), |path| path.to_string_lossy().into_owned())
        };
        Self { init_from: self.init_from.as_ref().map(absolute), ..self.clone() }
    }

    /// Everything that can be wrong.
    pub fn validate(&self) -> Result<(), TrainConfigError> {
        self.schedule.validate()?;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.optimizer;
        let memory = 0.0..1.0;
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
                self.spike,
                self.spike == 0.0 || (self.spike.is_finite() && self.spike > 1.0),
                "above 1, or 0",
            ),
            ("eval_every", self.eval_every as f64, self.eval_every > 0, "at least 1"),
            ("save_every", self.save_every as f64, self.save_every > 0, "at least 1"),
            ("keep", self.keep as f64, self.keep > 0, "at least 1"),
            ("beta1", beta1, memory.contains(&(beta1 as f32)), "from 0 to below 1, in 32 bits"),
            ("beta2", beta2, memory.contains(&(beta2 as f32)), "from 0 to below 1, in 32 bits"),
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
