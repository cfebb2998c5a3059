//! Threads to compute with.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use thiserror::Error;

/// Threads could not be started.
#[derive(Debug, Error)]
#[error("cannot start {threads} threads: {source}; use a smaller --threads")]
pub struct ThreadsError {
    /// How many.
    threads: usize,
    /// What the system said.
    source: ThreadPoolBuildError,
}

/// As many threads as there are cores.
pub(crate) fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Computes with so many threads from now on, or with all cores.
pub(crate) fn use_threads(threads: Option<usize>) -> Result<(), ThreadsError> {
    let Some(threads) = threads else { return Ok(()) };
    ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(|source| ThreadsError { threads, source })
}

/// Threads of their own.
pub(crate) fn pool(threads: usize) -> Result<ThreadPool, ThreadsError> {
    ThreadPoolBuilder::new().num_threads(threads).build().map_err(|source| ThreadsError { threads, source })
}
