//! The interface between a task and the trainer.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::TaskError;
use crate::batch::{Batch, Split};
use crate::data::Tokenizer;
use crate::random::Moment;
use crate::scores::Scores;

/// A source of training batches and held-out data.
///
/// ```
/// use falcon_lm::batch::{Batch, Split, VALIDATION};
/// use falcon_lm::random::Moment;
/// use falcon_lm::scores::Scores;
/// use falcon_lm::tasks::Task;
/// use rand::RngExt;
///
/// /// The target of every digit is the digit itself.
/// struct Echo;
///
/// impl Task for Echo {
///     fn batch(&mut self, moment: Moment, count: usize) -> Batch {
///         let mut rng = moment.rng();
///         Batch::new((0..count).map(|_| {
///             let digits: Vec<u32> = (0..8).map(|_| rng.random_range(0..10)).collect();
///             (digits.clone(), digits.into_iter().map(Some).collect())
///         }))
///     }
///
///     fn splits(&self) -> Vec<Split> {
///         // A seed that no run should have.
///         let held_out = Echo.batch(Moment { seed: u64::MAX, step: 0, steps: 1 }, 32);
///         vec![Split { name: VALIDATION.into(), groups: vec![(String::new(), held_out)] }]
///     }
///
///     fn score(&self, validation: &Scores) -> f64 {
///         validation.accuracy
///     }
/// }
///
/// // A batch depends on the moment alone: a resumed run draws what an uninterrupted run draws.
/// let (mut uninterrupted, mut resumed) = (Echo, Echo);
/// let at = |step| Moment { seed: 7, step, steps: 100 };
/// uninterrupted.batch(at(2), 4);
/// assert_eq!(uninterrupted.batch(at(3), 4), resumed.batch(at(3), 4));
/// ```
pub trait Task: Send {
    /// `count` sequences to train on.
    fn batch(&mut self, moment: Moment, count: usize) -> Batch;

    /// Held-out data, the same at every call. One of the splits is [`VALIDATION`](crate::batch::VALIDATION).
    fn splits(&self) -> Vec<Split>;

    /// The score by which the best checkpoint is chosen, from the validation scores; higher is better.
    fn score(&self, validation: &Scores) -> f64;

    /// Further values to record with an evaluation, such as perplexities.
    fn about(&self, _scores: &Scores) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// Tokens of one epoch; `None` for a task that generates new samples without end.
    fn epoch(&self) -> Option<usize> {
        None
    }

    /// The tokenizer that decodes the task's tokens, if they are text.
    fn tokenizer(&self) -> Option<&Tokenizer> {
        None
    }

    /// Called after every step with its training accuracy.
    fn observe(&mut self, _accuracy: f64) {}

    /// Values that change during training, such as the level of a curriculum, to be recorded with every step.
    fn values(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// The state of the task that a checkpoint saves, for [`Task::restore`].
    fn state(&self) -> Value {
        Value::Null
    }

    /// Resumes from the state of a checkpoint.
    fn restore(&mut self, _state: Value) -> Result<(), TaskError> {
        Ok(())
    }
}
