//! Working memory that kernels reuse from chunk to chunk.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Real;
use crate::aligned::Aligned;

static POISONED: AtomicBool = AtomicBool::new(false);

/// Fills working memory with NaN before every use from now on. Tests use this to find kernels that read numbers they
/// did not write.
#[doc(hidden)]
pub fn poison_scratch() {
    POISONED.store(true, Ordering::Relaxed);
}

/// Fills working memory with NaN, if [`poison_scratch`] was called.
pub(crate) fn poison<F: Real>(memory: &mut [F]) {
    if POISONED.load(Ordering::Relaxed) {
        memory.fill(F::nan());
    }
}

/// A buffer that only grows. Its slices hold arbitrary numbers from earlier uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch<F> {
    buffer: Aligned<F>,
}

impl<F: Real> Scratch<F> {
    /// Disjoint slices of these lengths, each at the start of a cache line.
    pub fn split<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [F]; N] {
        let total = room::<F>(&lengths);
        if self.buffer.len() < total {
            self.buffer.resize(total);
        }
        poison(&mut self.buffer);
        split(&mut self.buffer, lengths)
    }
}

/// Disjoint slices of these lengths, from the front of `buffer`. Each begins a whole number of cache lines after the
/// first.
pub(crate) fn split<F, const N: usize>(buffer: &mut [F], lengths: [usize; N]) -> [&mut [F]; N] {
    let mut rest = buffer;
    lengths.map(|length| {
        let (slice, after) = std::mem::take(&mut rest).split_at_mut(length.next_multiple_of(Aligned::<F>::LINE));
        rest = after;
        &mut slice[..length]
    })
}

/// [`split`] to read.
pub(crate) fn split_shared<F, const N: usize>(buffer: &[F], lengths: [usize; N]) -> [&[F]; N] {
    let mut rest = buffer;
    lengths.map(|length| {
        let (slice, after) = rest.split_at(length.next_multiple_of(Aligned::<F>::LINE));
        rest = after;
        &slice[..length]
    })
}

/// The room that [`split`] needs for slices of these lengths.
pub(crate) fn room<F>(lengths: &[usize]) -> usize {
    lengths.iter().map(|length| length.next_multiple_of(Aligned::<F>::LINE)).sum()
}
