//! Training tasks: each makes batches to train on and held-out data to evaluate on.

pub mod addition;
mod error;
mod task;
mod text;
mod text_config;
mod train_texts;

use serde::{Deserialize, Serialize};

use self::addition::Addition;
pub use self::addition::{AdditionConfig, DigitOrder, Mixture, Operands, Widths};
pub use self::error::TaskError;
pub use self::task::Task;
use self::text::Text;
pub use self::text_config::TextConfig;
pub use self::train_texts::{TrainText, TrainTexts};
use crate::data::{Check, Tokenizer};
use crate::monitor::Monitor;
use crate::recipe::TrainConfig;

/// The names of all tasks; the first is the default.
pub const TASKS: &[&str] = &["addition", "text"];

/// A task and its options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum TaskConfig {
    /// Addition of two numbers, digit by digit.
    Addition(AdditionConfig),
    /// Language modelling: the next token of text.
    Text(TextConfig),
}

impl TaskConfig {
    /// The task of this name with its default options.
    pub fn preset(name: &str) -> Option<Self> {
        let all = [Self::Addition(AdditionConfig::default()), Self::Text(TextConfig::default())];
        all.into_iter().find(|task| task.name() == name)
    }

    /// The task's name, one of [`TASKS`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Addition(_) => "addition",
            Self::Text(_) => "text",
        }
    }

    /// The size of the vocabulary, if it is known without opening a tokenizer.
    pub fn vocab_size(&self) -> Option<usize> {
        match self {
            Self::Addition(_) => Some(addition::VOCABULARY),
            Self::Text(config) => config.vocab_size(),
        }
    }

    /// Opens the tokenizer.
    pub fn open_tokenizer(&self) -> Result<Tokenizer, TaskError> {
        match self {
            Self::Addition(_) => Ok(addition::tokenizer()),
            Self::Text(config) => Tokenizer::open(&config.tokenizer).map_err(TaskError::Tokenizer),
        }
    }

    /// The same options with absolute paths.
    pub fn with_absolute_paths(&self) -> Self {
        match self {
            Self::Addition(config) => Self::Addition(config.clone()),
            Self::Text(config) => Self::Text(config.with_absolute_paths()),
        }
    }

    /// The mean number of tokens in a training sequence.
    pub fn tokens_per_sequence(&self) -> usize {
        match self {
            Self::Addition(config) => config.tokens_per_sequence(),
            Self::Text(config) => config.length,
        }
    }

    /// The largest number of held-out tokens in one evaluation.
    pub fn held_out_tokens(&self) -> usize {
        match self {
            Self::Addition(config) => config.held_out_tokens(),
            Self::Text(config) => config.eval_sequences.saturating_mul(config.length),
        }
    }

    /// The training recipe that is used where no key overrides it.
    pub fn recipe(&self) -> TrainConfig {
        match self {
            Self::Addition(_) => addition::recipe(),
            Self::Text(_) => TrainConfig::default(),
        }
    }

    /// Checks the options, without reading any data.
    pub fn validate(&self) -> Result<(), TaskError> {
        match self {
            Self::Addition(config) => config.validate(),
            Self::Text(config) => config.validate(),
        }
    }

    /// If standard input is one of the training texts, copies `input` to a file that takes its place.
    pub fn keep_stdin(&mut self, input: impl std::io::Read) -> Result<(), TaskError> {
        match self {
            Self::Addition(_) => Ok(()),
            Self::Text(config) => config.keep_stdin(input),
        }
    }

    /// Sets how thoroughly files are compared with what they were when they were encoded.
    pub fn set_check(&mut self, check: Check) {
        if let Self::Text(config) = self {
            config.check = check;
        }
    }

    /// Opens the task, with the tokenizer that [`TaskConfig::open_tokenizer`] returned. Text that has not been encoded
    /// before is encoded now, and the number of bytes encoded is reported to `monitor`.
    pub fn open(&self, tokenizer: Tokenizer, monitor: &mut dyn Monitor) -> Result<Box<dyn Task>, TaskError> {
        self.validate()?;
        Ok(match self {
            Self::Addition(config) => Box::new(Addition::new(config.clone(), tokenizer)),
            Self::Text(config) => Box::new(Text::open(config, tokenizer, monitor)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are those by which configuration files choose a task, and each has a preset.
    #[test]
    fn every_task_has_its_name() {
        let known =
            serde_json::from_value::<TaskConfig>(serde_json::json!({ "name": "" })).unwrap_err().to_string();
        let names = TASKS.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ");
        assert!(known.ends_with(&format!("expected {names}")), "{known}");
        for &name in TASKS {
            let task = TaskConfig::preset(name).unwrap();
            assert_eq!(serde_json::to_value(task).unwrap()["name"], name);
        }
        assert_eq!(TaskConfig::preset("poetry"), None);
    }
}
