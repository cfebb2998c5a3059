//! Working memory that kernels reuse from chunk to chunk.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Real;

static POISONED: AtomicBool = AtomicBool::new(false);

/// Fills working memory with NaN before every use from now on. Tests use this to find kernels that read numbers they
/// did not write.
#[doc(hidden)]
pub fn poison_scratch() {
    POISONED.store(true, Ordering::Relaxed);
}

/// A buffer that only grows. Its slices hold arbitrary numbers from earlier uses.
#[derive(Default)]
pub(crate) struct Scratch<F> {
    buffer: Vec<F>,
}

impl<F: Real> Scratch<F> {
    /// Disjoint slices of these lengths.
    pub fn split<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [F]; N] {
        let total = lengths.iter().sum();
        if self.buffer.len() < total {
            self.buffer.resize(total, F::zero());
        }
        if POISONED.load(Ordering::Relaxed) {
            self.buffer.fill(F::nan());
        }
        split(&mut self.buffer, lengths)
    }
}

/// Disjoint slices of these lengths, from the front of `buffer`.
pub(crate) fn split<F, const N: usize>(buffer: &mut [F], lengths: [usize; N]) -> [&mut [F]; N] {
    let mut rest = buffer;
    lengths.map(|length| {
        let (slice, after) = std::mem::take(&mut rest).split_at_mut(length);
        rest = after;
        slice
    })
}
