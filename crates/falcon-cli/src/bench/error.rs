//! What can go wrong with a benchmark.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::threads::ThreadsError;

/// Why a benchmark was refused or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Sizes that would not fit into memory.
    #[error("all of it together needs about {gib} GiB, the limit is {limit}: use fewer or smaller {options}")]
    TooLarge {
        /// Memory needed.
        gib: usize,
        /// Memory allowed.
        limit: usize,
        /// What it comes from.
        options: &'static str,
    },
    /// A rule that does not exist.
    #[error("there is no rule {name:?}: it is one of {known}")]
    Rule {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A request that is not one.
    #[error("request {line}: {reason}")]
    Request {
        /// Which line of stdin.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A model that cannot be.
    #[error(transparent)]
    Model(#[from] falcon_nn::ConfigError),
    /// The kernels refused.
    #[error(transparent)]
    Kernel(#[from] falcon_kernels::Error),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// A run in a process of its own failed.
    #[error("the process that measures {name} {reason}")]
    Child {
        /// What it was to measure.
        name: String,
        /// What it did.
        reason: String,
    },
    /// A file cannot be written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Reading requests or printing results failed.
    #[error("stdin or stdout: {0}")]
    Io(#[from] io::Error),
}

impl BenchError {
    /// Whether the reader of stdout has seen enough, which is no failure.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
