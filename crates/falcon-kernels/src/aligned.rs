//! Memory that begins at a cache line.

use std::ops::{Deref, DerefMut};

use crate::Real;

/// Numbers whose first one is at the start of a cache line, so that vectors of a matrix with rows of whole lines are
/// not divided between two of them. Dereferences to a slice.
#[derive(Debug, Default)]
pub struct Aligned<F> {
    buffer: Vec<F>,
    start: usize,
    len: usize,
}

impl<F> Aligned<F> {
    /// Numbers in a cache line.
    pub(crate) const LINE: usize = 64 / size_of::<F>();
}

impl<F: Real> Aligned<F> {
    /// So many zeros.
    pub fn zeros(len: usize) -> Self {
        let mut zeros = Self::default();
        zeros.resize(len);
        zeros
    }

    /// Changes the length. What the numbers are afterwards is not specified.
    #[inline(always)]
    pub(crate) fn resize(&mut self, len: usize) {
        // An empty array needs no line to begin at.
        if len > 0 && self.buffer.len() < len + Self::LINE {
            self.buffer.resize(len + Self::LINE, F::zero());
            self.start = self.buffer.as_ptr().align_offset(64).min(Self::LINE);
        }
        self.len = len;
    }
}

impl<F> Deref for Aligned<F> {
    type Target = [F];

    #[inline(always)]
    fn deref(&self) -> &[F] {
        &self.buffer[self.start..][..self.len]
    }
}

impl<F> DerefMut for Aligned<F> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [F] {
        &mut self.buffer[self.start..][..self.len]
    }
}

impl<F: Clone> From<&[F]> for Aligned<F> {
    fn from(numbers: &[F]) -> Self {
        let mut buffer: Vec<F> = Vec::with_capacity(numbers.len() + Self::LINE);
        let start = if numbers.is_empty() { 0 } else { buffer.as_ptr().align_offset(64).min(Self::LINE) };
        buffer.extend(numbers.iter().take(1).cycle().take(start).cloned());
        buffer.extend_from_slice(numbers);
        Self { buffer, start, len: numbers.len() }
    }
}

impl<F: Clone> From<Vec<F>> for Aligned<F> {
    fn from(numbers: Vec<F>) -> Self {
        numbers[..].into()
    }
}

impl<F: Clone> FromIterator<F> for Aligned<F> {
    fn from_iter<I: IntoIterator<Item = F>>(numbers: I) -> Self {
        numbers.into_iter().collect::<Vec<F>>().into()
    }
}

/// The copy begins at a cache line of its own.
impl<F: Clone> Clone for Aligned<F> {
    fn clone(&self) -> Self {
        self[..].into()
    }
}

impl<F: PartialEq, T: AsRef<[F]>> PartialEq<T> for Aligned<F> {
    fn eq(&self, other: &T) -> bool {
        self[..] == *other.as_ref()
    }
}

impl<F> AsRef<[F]> for Aligned<F> {
    fn as_ref(&self) -> &[F] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_at_a_cache_line_also_after_copying_and_growing() {
        let at_line = |numbers: &[f32]| numbers.as_ptr().align_offset(64) == 0;
        for len in [1, 5, 64, 1000] {
            let numbers: Aligned<f32> = (0..len).map(|i| i as f32).collect();
            let copies: Vec<_> = (0..5).map(|_| numbers.clone()).collect();
            assert!(at_line(&numbers) && copies.iter().all(|copy| at_line(copy) && *copy == numbers));
            let mut longer = numbers.clone();
            longer.resize(3 * len);
            assert!(at_line(&longer) && longer.len() == 3 * len);
        }
        assert!(Aligned::<f64>::zeros(0).is_empty());
    }
}
