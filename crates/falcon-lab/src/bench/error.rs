//! Errors of benchmarks.

use std::io;
use std::path::PathBuf;

use falcon_base::PathError;
use falcon_lm::memory::human;
use thiserror::Error;

use super::recorded::RatioFileError;
use crate::threads::ThreadsError;

/// A benchmark was refused or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The sizes would need too much memory.
    #[error("this needs about {}, the limit is {}: use fewer or smaller {options}", human(*needed), human(*limit))]
    TooLarge {
        /// The memory needed, in bytes.
        needed: u64,
        /// The memory allowed, in bytes: what the system has available, or less.
        limit: u64,
        /// The options that determine it.
        options: &'static str,
    },
    /// There is no rule of this name.
    #[error("there is no rule {name:?}; rules are {known}")]
    Rule {
        /// The name asked for.
        name: String,
        /// The names of all rules.
        known: String,
    },
    /// A request for a timing is invalid.
    #[error("request {line}: {reason}")]
    Request {
        /// The line of stdin.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration of a model is invalid.
    #[error(transparent)]
    Model(#[from] falcon_nn::ConfigError),
    /// A kernel refused its inputs.
    #[error(transparent)]
    Kernel(#[from] falcon_kernels::Error),
    /// Threads cannot be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// A process that measures failed.
    #[error("the process that measures {name} {reason}")]
    Child {
        /// What it measures.
        name: String,
        /// What happened to it.
        reason: String,
    },
    /// A file of recorded ratios cannot be used.
    #[error(transparent)]
    Ratios(Box<RatioFileError>),
    /// Nothing was recorded on a machine like this one.
    #[error(
        "{}: it has ratios for {known}, and this machine has {instructions}, with which they cannot be compared: \
         record some with falcon bench --record {}",
        path.display(),
        path.display()
    )]
    NotRecorded {
        /// The file.
        path: PathBuf,
        /// The vector instructions of this machine.
        instructions: &'static str,
        /// The vector instructions that the file has ratios for.
        known: String,
    },
    /// No row has such a name.
    #[error("no row has {asked:?} in its name; the rows are{known}")]
    Rows {
        /// The texts asked for.
        asked: String,
        /// The names of all rows.
        known: String,
    },
    /// A file cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Requests cannot be read, or results cannot be printed.
    #[error("stdin or stdout: {0}")]
    Io(#[from] io::Error),
}

impl BenchError {
    /// Whether stdout was closed by its reader, which is not a failure.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
