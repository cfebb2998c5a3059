//! Thread pools.

pub use falcon_lab::threads::ThreadsError;
pub(crate) use falcon_lab::threads::pool;
use rayon::ThreadPoolBuilder;

/// The number of cores.
pub(crate) fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Sets the number of threads of the whole program; without a number, the program uses all cores.
pub(crate) fn use_threads(threads: Option<usize>) -> Result<(), ThreadsError> {
    let Some(threads) = threads else { return Ok(()) };
    ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(|source| ThreadsError { threads, source })
}
