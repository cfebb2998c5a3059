//! Threads for the kernels: one pool for each number of threads, created on first use.
//!
//! After a fork, the child does not have the threads of its parent's pools, and a call on such a pool would wait
//! forever. Therefore pools record the process that created them, and a child creates its own. There is no lock,
//! because one that another thread held during the fork would stay locked in the child.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The largest number of threads of a pool.
const MAX_THREADS: usize = 256;

struct Pool {
    process: u32,
    pool: ThreadPool,
}

/// The pools by number of threads. A pool is never freed: its threads sleep until the process ends.
static POOLS: [AtomicPtr<Pool>; MAX_THREADS + 1] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_THREADS + 1];

/// The pool with this number of threads.
fn pool(threads: usize) -> PyResult<&'static ThreadPool> {
    let (threads, process) = (threads.clamp(1, MAX_THREADS), std::process::id());
    let slot = &POOLS[threads];
    loop {
        let current = slot.load(Ordering::Acquire);
        // SAFETY: a slot points to a pool that this function has leaked and that is never freed.
        if let Some(pool) = unsafe { current.as_ref() }
            && pool.process == process
        {
            return Ok(&pool.pool);
        }
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("falcon-{index}"))
            .build()
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start {threads} threads: {error}")))?;
        let new = Box::into_raw(Box::new(Pool { process, pool }));
        if slot.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread was faster: use its pool.
            // SAFETY: no other thread has seen this pool.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Runs `work` on a pool of `threads` threads.
pub fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    Ok(pool(threads)?.install(work))
}
