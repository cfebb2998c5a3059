//! Vector instructions, chosen at run time.

use pulp::Arch;

/// Work that is compiled once for each instruction set and run with the best one that the machine has.
pub(crate) trait Vectorised {
    /// This and everything it calls must be `#[inline(always)]` to be compiled for the chosen instructions.
    fn run(self);
}

/// Runs `f`, which should be `#[inline(always)]`, compiled for the vector instructions that the machine has.
pub fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(f)
}

/// Runs `work` with the vector instructions that the machine has.
pub(crate) fn dispatch(work: impl Vectorised) {
    Arch::new().dispatch(
        #[inline(always)]
        || work.run(),
    );
}

/// Copies a row. For the usual sizes of heads, the length is known when this is compiled, and no function is called.
#[inline(always)]
pub(crate) fn copy_row<F: Copy>(to: &mut [F], from: &[F]) {
    #[inline(always)]
    fn fixed<F: Copy, const N: usize>(to: &mut [F], from: &[F]) {
        let to: &mut [F; N] = to.try_into().expect("the length of the row");
        *to = *from.first_chunk().expect("a row of the same length");
    }
    assert_eq!(to.len(), from.len(), "rows of the same length");
    match to.len() {
        32 => fixed::<F, 32>(to, from),
        64 => fixed::<F, 64>(to, from),
        128 => fixed::<F, 128>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Asks the processor to fetch a row that will be read soon.
#[inline(always)]
pub(crate) fn prefetch<F>(row: &[F]) {
    for line in row.chunks(LINE / size_of::<F>()) {
        prefetch_line(line.as_ptr());
    }
}

/// Asks the processor to fetch `numbers[row + start..]`, where loops over `start` have come to a new line of the cache.
/// The numbers need not exist.
#[inline(always)]
pub(crate) fn prefetch_once<F>(numbers: &[F], row: usize, start: usize) {
    if (start * size_of::<F>()).is_multiple_of(LINE) {
        prefetch_line(numbers.as_ptr().wrapping_add(row + start));
    }
}

/// Bytes of a line of the cache.
const LINE: usize = 64;

#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "nothing to ask for"))]
fn prefetch_line<F>(line: *const F) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: prefetching has no effect on the program.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }
}
