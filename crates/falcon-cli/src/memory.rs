//! What the program does with memory it no longer needs.

/// Keeps freed memory for the next time. By default the C library returns every large array to the system as soon as it is freed, and the
/// system clears the pages when they are asked for again: for tapes and gradients, made anew at every step, that is up to a third of the
/// time.
pub fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` sets numbers of the allocator, under its own lock.
    unsafe {
        // No array is mapped on its own, the heap never shrinks, and all threads share it.
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
