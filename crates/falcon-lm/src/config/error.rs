//! Why a configuration cannot be used.

use std::path::PathBuf;

use falcon_base::PathError;
use falcon_nn::ConfigError;
use thiserror::Error;

use crate::recipe::TrainConfigError;
use crate::tasks::TaskError;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunConfigError {
    /// A file cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file is not TOML.
    #[error("{from}: {source}")]
    Toml {
        /// The file.
        from: String,
        /// Where it is wrong.
        source: toml::de::Error,
    },
    /// An argument of `--set` does not have the form of a key with a value.
    #[error("{from}: give it as section.key=value, such as train.lr=3e-4")]
    Argument {
        /// The argument.
        from: String,
    },
    /// A number is infinite or not a number.
    #[error("{from}: {key} = {got} is not a finite number")]
    NotFinite {
        /// A file, or an argument.
        from: String,
        /// The key.
        key: String,
        /// The value.
        got: f64,
    },
    /// A section or key is unknown.
    #[error("{from}: unknown key {key}; {hint}")]
    Unknown {
        /// A file, or an argument.
        from: String,
        /// The key.
        key: String,
        /// The nearest known key, or all of them.
        hint: String,
    },
    /// A value has the wrong type.
    #[error("{from}: {key} = {value}: {source}")]
    Value {
        /// A file, or an argument.
        from: String,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A key is not allowed where it was given, or does not have the kind of value that it needs.
    #[error("{from}: {key} = {value}: {what}")]
    Refused {
        /// A file, or an argument.
        from: String,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What it must be, or why it is refused.
        what: String,
    },
    /// A name is not one of those known.
    #[error("unknown {what} {got:?}; {hint}")]
    Name {
        /// What it should name.
        what: &'static str,
        /// The name.
        got: String,
        /// The nearest known name, or all of them.
        hint: String,
    },
    /// The folder holds a run of another model or task.
    #[error(
        "{run} holds a run whose {key} is {there}, not {here}; choose another folder by --run, or start from its \
         weights by --init-from"
    )]
    OtherRun {
        /// The run's folder.
        run: PathBuf,
        /// The key.
        key: String,
        /// The run's value.
        there: String,
        /// The value given.
        here: String,
    },
    /// The model is impossible.
    #[error("model: {0}")]
    Model(#[from] ConfigError),
    /// The model's vocabulary does not have the size of the task's.
    #[error("model.vocab_size must be {task}, the tokens of the task, got {got}; leave it out")]
    Vocabulary {
        /// Tokens of the task.
        task: usize,
        /// Tokens of the model.
        got: usize,
    },
    /// The size of the vocabulary is not known before the tokenizer is opened.
    #[error("model.vocab_size is missing: it is the number of tokens of task.tokenizer, which is not open")]
    NoVocabulary,
    /// The task cannot be used.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The training recipe cannot be used.
    #[error(transparent)]
    Train(#[from] TrainConfigError),
}
