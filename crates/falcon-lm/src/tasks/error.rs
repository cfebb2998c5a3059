//! Errors of tasks.

use std::path::PathBuf;

use thiserror::Error;

use crate::data::{CacheError, TokenizerError};

/// Why a task cannot be configured, opened or resumed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TaskError {
    /// A number is outside its range.
    #[error("task.{name} must be {range}, got {got}")]
    Number {
        /// The key.
        name: &'static str,
        /// The values that are allowed.
        range: String,
        /// The value given.
        got: String,
    },
    /// No data is configured.
    #[error("task.{name} names no file: give it one, such as --set task.{name}=book.txt")]
    NoData {
        /// The key.
        name: &'static str,
    },
    /// The data cannot be read or encoded.
    #[error("task.{name}: {source}")]
    Data {
        /// The key that names the data.
        name: &'static str,
        /// What went wrong.
        source: Box<CacheError>,
    },
    /// The tokenizer cannot be opened or saved.
    #[error("task.tokenizer: {0}")]
    Tokenizer(#[source] TokenizerError),
    /// A text is shorter than one training sequence.
    #[error(
        "task.{name}: {what} has {got} tokens, too few for one sequence of {needed}; set task.length lower or give more text"
    )]
    Short {
        /// The key.
        name: &'static str,
        /// The file, or the part of it.
        what: String,
        /// Tokens there are.
        got: usize,
        /// Tokens that a sequence and its last target need.
        needed: usize,
    },
    /// A file is used for training and for validation.
    #[error(
        "task.valid: {path} is in task.train too, so that it would be trained on; move it out of there, or leave out \
         task.valid"
    )]
    Overlap {
        /// The file.
        path: String,
    },
    /// A file is in two of the training texts.
    #[error(
        "task.train: {path} is named twice; name it once, and give it a weight if it should be drawn more often"
    )]
    Twice {
        /// The file.
        path: String,
    },
    /// The copy of the text that was read from standard input is missing.
    #[error(
        "task.train: {path}, the text that was read from standard input, is no longer there; give the same text again \
         on standard input with --set task.train=-"
    )]
    StdinGone {
        /// The file that held the copy.
        path: PathBuf,
    },
    /// The data differs from the data that the run was started with.
    #[error("task.{name}: {path} has changed since the run began; restore it, or start another run")]
    Changed {
        /// The key.
        name: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The weights of the texts differ from those that the run was started with.
    #[error(
        "task.train: the weights of its texts are not those that the run began with; restore them, or start another run"
    )]
    Weights,
    /// A checkpoint holds a state that does not fit the task.
    #[error("the checkpoint's state of the task does not fit: {0}")]
    State(#[source] serde_json::Error),
}

/// Returns [`TaskError::Number`] unless `good`.
pub(super) fn check(name: &'static str, good: bool, range: &str, got: impl ToString) -> Result<(), TaskError> {
    if good { Ok(()) } else { Err(TaskError::Number { name, range: range.into(), got: got.to_string() }) }
}
