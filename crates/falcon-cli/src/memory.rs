//! Settings of the memory allocator.

/// Returns freed memory to the system, after large arrays that are not needed any more.
pub fn release_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` touches only memory that nothing has allocated, under the allocator's lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Keeps freed memory for reuse. By default the C library returns every large array to the system as soon as it is
/// freed, and the system clears the pages when they are requested again. For tapes and gradients, which are allocated
/// anew at every step, that takes up to a third of the time.
pub fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` sets parameters of the allocator, under the allocator's lock.
    unsafe {
        // No array gets a mapping of its own, the heap never shrinks, and all threads share one heap.
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
