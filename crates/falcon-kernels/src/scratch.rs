//! Memory that kernels reuse from chunk to chunk.

use crate::Real;

/// A buffer that only grows. What is handed out holds whatever was there before.
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
        // In debug builds nobody gets away with reading what they did not write.
        #[cfg(debug_assertions)]
        self.buffer.fill(F::nan());
        let mut rest = &mut self.buffer[..];
        lengths.map(|length| {
            let (slice, after) = std::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            slice
        })
    }
}
