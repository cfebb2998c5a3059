//! The learning-rate schedule: linear warm-up, then cosine decay.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Linear warm-up to the peak learning rate, then cosine decay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Peak learning rate, for a model of base width.
    pub lr: f64,
    /// The final learning rate as a fraction of the peak.
    pub final_fraction: f64,
    /// Steps of the warm-up.
    pub warmup: u64,
    /// Steps of the run.
    pub steps: u64,
}

/// Why a schedule is impossible.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
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
    /// The warm-up is longer than the run.
    #[error("train.warmup = {warmup} is longer than train.steps = {steps}; set it lower")]
    Warmup {
        /// Steps of the warm-up.
        warmup: u64,
        /// Steps of the run.
        steps: u64,
    },
}

impl Schedule {
    /// Checks all values.
    pub fn validate(&self) -> Result<(), ScheduleError> {
        let Self { lr, final_fraction, warmup, steps } = *self;
        if !(lr.is_finite() && lr > 0.0) {
            return Err(ScheduleError::Number { name: "lr", range: "above 0", got: lr });
        }
        if !(0.0..=1.0).contains(&final_fraction) {
            let range = "between 0 and 1";
            return Err(ScheduleError::Number { name: "final_fraction", range, got: final_fraction });
        }
        // The limit is more than any run needs, and fits into TOML's integers.
        if !(1..=1 << 40).contains(&steps) {
            let range = "at least 1 and at most 2^40";
            return Err(ScheduleError::Number { name: "steps", range, got: steps as f64 });
        }
        if warmup > steps {
            return Err(ScheduleError::Warmup { warmup, steps });
        }
        Ok(())
    }

    /// Reads the schedule from the text of a run's configuration.
    pub(crate) fn in_file(text: &str) -> Option<Self> {
        let mut table: toml::Table = toml::from_str(text).ok()?;
        table.remove("train")?.try_into().ok()
    }

    /// Explains to the user how the learning rate continues when a run that did `step` steps with the schedule `before`
    /// is resumed with this one.
    pub(crate) fn explain_change(&self, before: &Self, step: u64) -> String {
        let last = self.at(self.steps.saturating_sub(1));
        format!(
            "the learning rate was {:.2e} at step {step}, and is {:.2e} at the next one; it ends with {last:.2e} at step \
             {}, on the schedule of a run that had these values from its beginning",
            before.at(step.saturating_sub(1)),
            self.at(step),
            self.steps,
        )
    }

    /// The learning rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        let rest = (self.steps - self.warmup).max(1) as f64;
        let progress = ((step - self.warmup) as f64 / rest).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        self.lr * (self.final_fraction + (1.0 - self.final_fraction) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Schedule = Schedule { lr: 1e-3, final_fraction: 0.1, warmup: 10, steps: 110 };

    #[test]
    fn warm_up_is_linear_and_decay_is_a_cosine() {
        assert_eq!(RUN.at(0), 1e-4);
        assert_eq!(RUN.at(4), 5e-4);
        assert_eq!(RUN.at(9), 1e-3);
        assert_eq!(RUN.at(10), 1e-3);
        assert!((RUN.at(60) - 5.5e-4).abs() < 1e-12);
        assert!((RUN.at(110) - 1e-4).abs() < 1e-12);
        assert_eq!(RUN.at(110), RUN.at(1000), "the rate is constant after the last step");
        assert!((0..9).all(|step| RUN.at(step) < RUN.at(step + 1)));
        assert!((10..110).all(|step| RUN.at(step) > RUN.at(step + 1)));
    }

    #[test]
    fn impossible_schedules_are_refused_with_the_reason() {
        let message = |schedule: Schedule| schedule.validate().unwrap_err().to_string();
        assert_eq!(RUN.validate(), Ok(()));
        assert_eq!(message(Schedule { lr: -1.0, ..RUN }), "train.lr must be above 0, got -1");
        assert!(message(Schedule { lr: f64::NAN, ..RUN }).contains("NaN"));
        assert!(message(Schedule { final_fraction: 2.0, ..RUN }).contains("between 0 and 1, got 2"));
        assert!(message(Schedule { steps: 0, warmup: 0, ..RUN }).contains("steps must be at least 1"));
        assert!(
            message(Schedule { warmup: 111, ..RUN })
                .contains("train.warmup = 111 is longer than train.steps = 110")
        );
        let short = Schedule { warmup: 3, steps: 3, ..RUN };
        assert_eq!((short.validate(), short.at(2)), (Ok(()), 1e-3));
    }
}
