//! Thread pools of a given size.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use thiserror::Error;

/// The threads of a pool could not be started.
#[derive(Debug, Error)]
#[error("cannot start {threads} threads: {source}; use a smaller --threads")]
pub struct ThreadsError {
    /// The number of threads asked for.
    pub threads: usize,
    /// The reason given by the system.
    #[source]
    pub source: ThreadPoolBuildError,
}

/// Starts a pool of `threads` threads.
pub fn pool(threads: usize) -> Result<ThreadPool, ThreadsError> {
    ThreadPoolBuilder::new().num_threads(threads).build().map_err(|source| ThreadsError { threads, source })
}
