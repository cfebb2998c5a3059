//! Threads for the kernels: a pool of each size that is asked for, made on first use.
//!
//! A fork leaves a child without the threads of its parent's pools, and a call on such a pool would wait forever. So
//! pools remember the process that made them, and a child makes its own. There is no lock: one that another thread held
//! during the fork would stay locked in the child.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// More threads than this are not used.
const MOST: usize = 256;

struct Pool {
    process: u32,
    pool: ThreadPool,
}

/// The pool of each number of threads. A pool is never freed: its threads sleep until the process ends.
static POOLS: [AtomicPtr<Pool>; MOST + 1] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST + 1];

/// The pool of so many threads.
fn pool(threads: usize) -> PyResult<&'static ThreadPool> {
    let (threads, process) = (threads.clamp(1, MOST), std::process::id());
    let slot = &POOLS[threads];
    loop {
        let known = slot.load(Ordering::Acquire);
        // SAFETY: what a slot points to was leaked by this function, and is never freed.
        if let Some(pool) = unsafe { known.as_ref() }
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
        if slot.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread was faster: take its pool.
            // SAFETY: nobody else has seen this one.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Runs `work` on so many threads.
pub fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    Ok(pool(threads)?.install(work))
}
