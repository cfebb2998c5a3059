//! An array whose heads are written by several threads.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::simd::prefetch;

/// A `[tokens, heads, width]` array that is divided by sequence and head. The rows of one head are not adjacent, so the
/// slice cannot be split among tasks with `split_at_mut`.
pub(crate) struct SharedHeads<'a, F> {
    data: *mut F,
    offsets: &'a [usize],
    heads: usize,
    width: usize,
    claimed: Vec<AtomicBool>,
    marker: PhantomData<&'a mut [F]>,
}

// SAFETY: the array is only accessed through `claim`, which gives every row to at most one caller.
unsafe impl<F: Send> Sync for SharedHeads<'_, F> {}

/// The rows of one head in one sequence.
pub(crate) struct HeadRows<'a, F> {
    first: *mut F,
    stride: usize,
    width: usize,
    len: usize,
    marker: PhantomData<&'a mut [F]>,
}

impl<'a, F> SharedHeads<'a, F> {
    /// `offsets` cut the tokens into sequences.
    pub fn new(data: &'a mut [F], offsets: &'a [usize], heads: usize, width: usize) -> Self {
        let tokens = offsets.last().copied().unwrap_or(0);
        // Checked, because a product that wrapped around would allow accesses outside of the array.
        let needed = tokens.checked_mul(heads).and_then(|rows| rows.checked_mul(width));
        assert_eq!(needed, Some(data.len()), "[{tokens}, {heads}, {width}]");
        assert!(offsets.is_sorted(), "offsets must not fall");
        let sequences = offsets.len().saturating_sub(1);
        let claimed = (0..sequences * heads).map(|_| AtomicBool::new(false)).collect();
        Self { data: data.as_mut_ptr(), offsets, heads, width, claimed, marker: PhantomData }
    }

    /// The rows of `head` in `sequence`, which can be claimed only once.
    pub fn claim(&self, sequence: usize, head: usize) -> HeadRows<'_, F> {
        assert!(head < self.heads && sequence + 1 < self.offsets.len(), "no such rows");
        let taken = self.claimed[sequence * self.heads + head].swap(true, Ordering::Relaxed);
        assert!(!taken, "head {head} of sequence {sequence} is claimed already");
        let start = self.offsets[sequence];
        // An empty sequence at the end has no row, so its pointer may lie outside of the array and is never read.
        let first = self.data.wrapping_add((start * self.heads + head) * self.width);
        let len = self.offsets[sequence + 1] - start;
        HeadRows { first, stride: self.heads * self.width, width: self.width, len, marker: PhantomData }
    }
}

impl<F> HeadRows<'_, F> {
    /// The row of a token, counted from the start of the sequence.
    #[inline(always)]
    pub fn row(&mut self, token: usize) -> &mut [F] {
        assert!(token < self.len, "token {token} of {}", self.len);
        // SAFETY: rows below `len` lie within the array, since `new` checked its length and the offsets. They belong to
        // this value alone, because `claim` gives out each sequence and head once and different ones share no row;
        // `&mut self` keeps two of its rows from being borrowed at once.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(token * self.stride), self.width) }
    }
}

impl<F> HeadRows<'_, F> {
    /// Asks the processor to fetch the rows of some tokens, which will be written soon.
    #[inline(always)]
    pub fn prefetch(&mut self, tokens: Range<usize>) {
        for token in tokens {
            prefetch(self.row(token));
        }
    }
}

// SAFETY: the value is a mutable borrow of its rows, and of nothing else.
unsafe impl<F: Send> Send for HeadRows<'_, F> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_reached_once() {
        let (offsets, heads, width) = ([0, 3, 3, 5], 2, 3);
        let mut data = vec![0; 5 * heads * width];
        let shared = SharedHeads::new(&mut data, &offsets, heads, width);
        std::thread::scope(|scope| {
            for sequence in 0..3 {
                for head in 0..heads {
                    let mut rows = shared.claim(sequence, head);
                    scope.spawn(move || {
                        for token in 0..offsets[sequence + 1] - offsets[sequence] {
                            rows.row(token)
                                .iter_mut()
                                .for_each(|x| *x += 1 + head + 10 * (offsets[sequence] + token));
                        }
                    });
                }
            }
        });
        for (i, x) in data.iter().enumerate() {
            let (token, head) = (i / (heads * width), i / width % heads);
            assert_eq!(*x, 1 + head + 10 * token);
        }
    }

    #[test]
    #[should_panic(expected = "claimed already")]
    fn a_head_cannot_be_claimed_twice() {
        let mut data = [0; 4];
        let shared = SharedHeads::new(&mut data, &[0, 2], 2, 1);
        shared.claim(0, 1);
        shared.claim(0, 1);
    }

    #[test]
    #[should_panic(expected = "None")]
    fn sizes_that_overflow_are_refused() {
        SharedHeads::<f32>::new(&mut [], &[0, 1 << 63], 2, 1);
    }

    #[test]
    #[should_panic(expected = "token 2 of 2")]
    fn rows_end_with_the_sequence() {
        let mut data = [0; 6];
        SharedHeads::new(&mut data, &[0, 2, 3], 2, 1).claim(0, 0).row(2);
    }
}
