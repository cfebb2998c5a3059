//! What a model is trained on: batches to learn from, and held-out data to be measured on.

pub(crate) mod addition;
mod text;
mod texts;

use std::collections::BTreeMap;
use std::path::PathBuf;

use falcon_nn::Sequences;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use self::addition::Addition;
pub use self::addition::{AdditionConfig, Mixture, Operands, Order, Widths};
use self::text::Text;
pub use self::text::TextConfig;
pub use self::texts::{TrainText, TrainTexts};
use crate::data::{CacheError, Check, Tokenizer, TokenizerError};
use crate::train::{Scores, TrainConfig};

/// Names of all tasks.
pub const TASKS: [&str; 2] = ["addition", "text"];

/// A task and its options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum TaskConfig {
    /// Sums of numbers, digit by digit.
    Addition(AdditionConfig),
    /// The next token of text.
    Text(TextConfig),
}

/// What is wrong with a task.
#[derive(Debug, Error)]
pub enum TaskError {
    /// A number outside its range.
    #[error("task.{name} must be {range}, got {got}")]
    Number {
        /// Which.
        name: &'static str,
        /// What it may be.
        range: String,
        /// What it is.
        got: String,
    },
    /// No data is named.
    #[error("task.{name} names no file: give it one, such as --set task.{name}=book.txt")]
    NoData {
        /// The key.
        name: &'static str,
    },
    /// Data cannot be read.
    #[error("task.{name}: {error}")]
    Data {
        /// The key.
        name: &'static str,
        /// What is wrong.
        error: Box<CacheError>,
    },
    /// There is no such tokenizer.
    #[error("task.tokenizer: {0}")]
    Tokenizer(TokenizerError),
    /// There is too little of it.
    #[error(
        "task.{name}: {what} has {got} tokens, too few for one sequence of {needed}; set task.length lower or give more text"
    )]
    Short {
        /// The key.
        name: &'static str,
        /// The file, or the part of it.
        what: String,
        /// How many there are.
        got: usize,
        /// How many a sequence needs.
        needed: usize,
    },
    /// What is measured would be learnt too.
    #[error("task.valid: {path} is in task.train too, and would be learnt; move it out, or leave task.valid away")]
    Overlap {
        /// The file.
        path: String,
    },
    /// A file would be learnt from more often than is meant.
    #[error(
        "task.train: {path} is named twice; name it once, and give it a weight if it should be learnt more often"
    )]
    Twice {
        /// The file.
        path: String,
    },
    /// Text of standard input that was kept is gone.
    #[error(
        "task.train: {path}, the text that was read from standard input, is no longer there; give the same text again \
         on standard input with --set task.train=-"
    )]
    StdinGone {
        /// The file that had it.
        path: PathBuf,
    },
    /// Data is not what a run began with.
    #[error("task.{name}: {path} has changed since the run began; bring it back, or begin another run")]
    Changed {
        /// The key.
        name: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Texts are weighted in another way than when the run began.
    #[error(
        "task.train: the weights of its texts are not those that the run began with; put them back, or start another run"
    )]
    Weights,
    /// A checkpoint of another task.
    #[error("the checkpoint's state of the task does not fit: {0}")]
    State(serde_json::Error),
}

/// Tokens to read, and what should come after each.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// All sequences, one after the other.
    pub tokens: Vec<i32>,
    /// As many; [`falcon_nn::IGNORED`] where nothing is asked.
    pub targets: Vec<i64>,
    /// Where sequences begin and end.
    pub sequences: Sequences,
}

impl Batch {
    /// From sequences of tokens and targets.
    pub fn new(parts: impl IntoIterator<Item = (Vec<i32>, Vec<i64>)>) -> Self {
        let (mut tokens, mut targets, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (part_tokens, part_targets) in parts {
            assert_eq!(part_tokens.len(), part_targets.len(), "a target for every token");
            lengths.push(part_tokens.len());
            tokens.extend(part_tokens);
            targets.extend(part_targets);
        }
        Self { tokens, targets, sequences: Sequences::packed(&lengths) }
    }

    /// Tokens something is asked of.
    pub fn asked(&self) -> usize {
        self.targets.iter().filter(|target| **target != falcon_nn::IGNORED).count()
    }

    /// The same sequences in `count` batches of about as many, fewer if there are fewer sequences; none of none. A document that begins
    /// in a window of text is a sequence of its own, so that batches of text need not be of the same length.
    pub fn split(&self, count: usize) -> Vec<Self> {
        let (offsets, all, count) = (self.sequences.offsets(), self.sequences.count(), count.max(1));
        let cuts: Vec<usize> = (0..=count).map(|i| i * all / count).collect();
        let parts = cuts.windows(2).filter(|w| w[0] < w[1]).map(|w| {
            let range = offsets[w[0]]..offsets[w[1]];
            let lengths: Vec<usize> = offsets[w[0]..=w[1]].windows(2).map(|o| o[1] - o[0]).collect();
            Self {
                tokens: self.tokens[range.clone()].to_vec(),
                targets: self.targets[range].to_vec(),
                sequences: Sequences::packed(&lengths),
            }
        });
        parts.collect()
    }
}

/// Held-out data under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// `validation`, or what else it is.
    pub name: String,
    /// Parts that are also measured each for itself. A single one without a name is the whole.
    pub groups: Vec<(String, Batch)>,
}

/// The split that decides which checkpoint is best.
pub const VALIDATION: &str = "validation";

/// When a batch is drawn. All that is random in it follows from this, so that a run that goes on draws what it would have drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Of the run.
    pub seed: u64,
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
}

impl Moment {
    /// Random numbers of this moment alone.
    pub fn rng(&self) -> StdRng {
        rng(self.seed, self.step.into())
    }

    /// The part of the run that is done.
    pub fn progress(&self) -> f64 {
        self.step as f64 / self.steps as f64
    }
}

/// Random numbers number `stream` of `seed`.
pub(crate) fn rng(seed: u64, stream: u128) -> StdRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..24].copy_from_slice(&stream.to_le_bytes());
    StdRng::from_seed(bytes)
}

/// Something to learn.
///
/// ```
/// use falcon_lm::tasks::{Batch, Moment, Split, Task, VALIDATION};
/// use falcon_lm::train::Scores;
/// use rand::RngExt;
///
/// /// To say every digit again.
/// struct Echo;
///
/// impl Task for Echo {
///     fn batch(&mut self, moment: Moment, count: usize) -> Batch {
///         let mut rng = moment.rng();
///         Batch::new((0..count).map(|_| {
///             let digits: Vec<i32> = (0..8).map(|_| rng.random_range(0..10)).collect();
///             (digits.clone(), digits.into_iter().map(i64::from).collect())
///         }))
///     }
///
///     fn splits(&self) -> Vec<Split> {
///         // Of a seed that no run should have.
///         let held_out = Echo.batch(Moment { seed: u64::MAX, step: 0, steps: 1 }, 32);
///         vec![Split { name: VALIDATION.into(), groups: vec![(String::new(), held_out)] }]
///     }
///
///     fn score(&self, validation: &Scores) -> f64 {
///         validation.accuracy
///     }
/// }
///
/// // Draws follow from the moment alone: a run that goes on at a step draws what it would have drawn.
/// let (mut one, mut other) = (Echo, Echo);
/// let at = |step| Moment { seed: 7, step, steps: 100 };
/// one.batch(at(2), 4);
/// assert_eq!(one.batch(at(3), 4), other.batch(at(3), 4));
/// ```
pub trait Task: Send {
    /// `count` sequences to learn from.
    fn batch(&mut self, moment: Moment, count: usize) -> Batch;

    /// Held-out data, always the same; one of the splits is [`VALIDATION`].
    fn splits(&self) -> Vec<Split>;

    /// How good a validation is; the largest is best.
    fn score(&self, validation: &Scores) -> f64;

    /// What else there is to say of a measurement, such as perplexities.
    fn about(&self, _scores: &Scores) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// Tokens of one pass over the training data; none of a task that draws new samples for ever.
    fn epoch(&self) -> Option<usize> {
        None
    }

    /// What makes text of its tokens, if they are text.
    fn tokenizer(&self) -> Option<&Tokenizer> {
        None
    }

    /// Told how each step went.
    fn observe(&mut self, _accuracy: f64) {}

    /// What it has made of itself as training went on, for people to see.
    fn values(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// The same for [`Task::restore`].
    fn state(&self) -> Value {
        Value::Null
    }

    /// Goes on from a state.
    fn restore(&mut self, _state: Value) -> Result<(), TaskError> {
        Ok(())
    }
}

impl TaskConfig {
    /// A task by name with the options it has by default.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "addition" => Some(Self::Addition(AdditionConfig::default())),
            "text" => Some(Self::Text(TextConfig::default())),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Addition(_) => "addition",
            Self::Text(_) => "text",
        }
    }

    /// Tokens there are; reads the tokenizer if there is one.
    pub fn vocab_size(&self) -> Result<usize, TaskError> {
        match self {
            Self::Addition(_) => Ok(addition::VOCABULARY),
            Self::Text(config) => Ok(Tokenizer::open(&config.tokenizer).map_err(TaskError::Tokenizer)?.size()),
        }
    }

    /// The same with the paths of its data made absolute.
    pub fn with_absolute_paths(&self) -> Self {
        match self {
            Self::Addition(config) => Self::Addition(config.clone()),
            Self::Text(config) => Self::Text(config.with_absolute_paths()),
        }
    }

    /// Tokens of a sequence of training, on average.
    pub fn tokens_per_sequence(&self) -> usize {
        match self {
            Self::Addition(config) => config.tokens_per_sequence(),
            Self::Text(config) => config.length,
        }
    }

    /// Tokens of the held-out data of every measurement, at most.
    pub fn held_out_tokens(&self) -> usize {
        match self {
            Self::Addition(config) => config.held_out_tokens(),
            Self::Text(config) => config.eval_sequences.saturating_mul(config.length),
        }
    }

    /// How to train on it, unless told otherwise.
    pub fn recipe(&self) -> TrainConfig {
        match self {
            Self::Addition(_) => addition::recipe(),
            Self::Text(_) => TrainConfig::default(),
        }
    }

    /// Everything that can be wrong short of reading data.
    pub fn validate(&self) -> Result<(), TaskError> {
        match self {
            Self::Addition(config) => config.validate(),
            Self::Text(config) => config.validate(),
        }
    }

    /// Reads standard input and keeps it, if it is to be learnt from.
    pub fn keep_stdin(&mut self, input: impl std::io::Read) -> Result<(), TaskError> {
        match self {
            Self::Addition(_) => Ok(()),
            Self::Text(config) => config.keep_stdin(input),
        }
    }

    /// Says how much is read to find out whether files are what they were.
    pub fn set_check(&mut self, check: Check) {
        if let Self::Text(config) = self {
            config.check = check;
        }
    }

    /// Ready to draw from; reads the data if there is some, and tells `progress` the bytes of text made into tokens, which may say to stop
    /// by false.
    pub fn open(&self, progress: &mut dyn FnMut(usize) -> bool) -> Result<Box<dyn Task>, TaskError> {
        self.validate()?;
        Ok(match self {
            Self::Addition(config) => Box::new(Addition::new(config.clone())),
            Self::Text(config) => Box::new(Text::open(config, progress)?),
        })
    }
}

/// Refuses a number outside its range.
fn check(name: &'static str, good: bool, range: &str, got: impl ToString) -> Result<(), TaskError> {
    if good { Ok(()) } else { Err(TaskError::Number { name, range: range.into(), got: got.to_string() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_split_by_sequences() {
        let batch = Batch::new((1..=5usize).map(|n| (vec![n as i32; n], vec![n as i64; n])));
        let parts = batch.split(2);
        assert_eq!(parts.iter().map(|part| part.sequences.count()).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(parts[1].tokens, [3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5]);
        assert_eq!(parts.iter().map(Batch::asked).sum::<usize>(), batch.asked());
        assert_eq!(batch.split(1), std::slice::from_ref(&batch));
        assert_eq!(batch.split(9).len(), 5, "no empty batches");
        assert_eq!(batch.split(0), [batch]);
        assert_eq!(Batch::new([]).split(0), []);
    }
}
