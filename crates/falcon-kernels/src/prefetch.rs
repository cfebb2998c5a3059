//! Asking for memory before it is needed.

/// Asks for a row to be brought into the cache. A hint: without effect where the machine has none.
///
/// Rows of one head lie a whole token apart, which no hardware prefetcher follows. Asking for the next chunk while the current
/// one is computed takes the waiting out of packing: a fifth of the time of the linear rules at width 64.
#[inline(always)]
pub(crate) fn prefetch<F>(row: &[F]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let bytes = size_of_val(row);
        for line in (0..bytes).step_by(64) {
            // SAFETY: the address lies within `row`; besides, a prefetch cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().cast::<i8>().add(line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}
