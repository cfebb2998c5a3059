//! One head over a run of consecutive steps, packed: what every form computes on.
//!
//! A segment is a whole sequence (masked form), a chunk (chunked form) or a stretch between two saved states
//! (recurrent form). All three answer the same two calls, `forward` and `backward`, on this type.
//!
//! Times and rows. Step `i` takes the memory from time `i` to time `i + 1`; time 0 is the incoming memory.
//! Row `r` is a pair `(x_r, v_r)`: first `tail` pairs from before the segment, then one for each step, so that
//! step `i` brings row `tail + i` and writes the rows of [`Segment::window`].

use std::ops::Range;

use crate::Real;
use crate::rule::{Columns, Objective, Read, Rule};
use crate::state::row;

#[derive(Clone, Debug, Default)]
pub(crate) struct Segment<F> {
    pub steps: usize,
    pub tail: usize,
    /// The first row that is a pair: 1 where row 0 is the boundary of a fresh sequence, else 0.
    pub first: usize,
    pub window: usize,
    pub dim_k: usize,
    /// Columns of a value.
    pub values: usize,
    /// Columns of the memory: the value's, and the normaliser's.
    pub columns: usize,
    pub read_before: bool,
    pub objective: Objective,
    /// Whether `write`, `erase` and `gamma` are `[steps, columns]` rather than `[steps]`.
    pub each_column: bool,
    /// Queries `[steps, dim_k]`, and below them the write features `[rows, dim_k]`: one matrix, so that one product
    /// with the memory serves reads and predictions.
    pub qx: Vec<F>,
    /// Values `[rows, columns]`.
    pub v: Vec<F>,
    /// `w / B`: the gain `w` of the value ([`crate::rule`]), divided by the pairs in the window. Kernels take this for `w`.
    pub write: Vec<F>,
    /// `e / B`, likewise the gain of the prediction. All 0 where nothing is erased. Kernels take it for `e`.
    pub erase: Vec<F>,
    /// Carry.
    pub gamma: Vec<F>,
}

impl<F: Real> Segment<F> {
    pub fn new(rule: &Rule, dim_k: usize, dim_v: usize) -> Self {
        Self {
            window: rule.window,
            dim_k,
            values: dim_v,
            columns: rule.state_columns(dim_v),
            read_before: rule.read == Read::Before,
            objective: rule.objective,
            each_column: rule.columns == Columns::Each,
            ..Self::default()
        }
    }

    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.tail + self.steps
    }

    #[inline(always)]
    pub fn erases(&self) -> bool {
        self.objective.erases()
    }

    /// Gains per step.
    #[inline(always)]
    pub fn gain_width(&self) -> usize {
        if self.each_column { self.columns } else { 1 }
    }

    /// The rows that step `i` writes: the latest `window` pairs.
    #[inline(always)]
    pub fn window(&self, step: usize) -> Range<usize> {
        let newest = self.tail + step;
        let oldest = (newest + 1).saturating_sub(self.window);
        oldest.max(self.first)..newest + 1
    }

    /// The time at which step `i` reads the memory.
    #[inline(always)]
    pub fn read_time(&self, step: usize) -> usize {
        if self.read_before { step } else { step + 1 }
    }

    /// The step that reads the memory at `time`, if there is one.
    #[inline(always)]
    pub fn reader(&self, time: usize) -> Option<usize> {
        let step = if self.read_before { Some(time) } else { time.checked_sub(1) };
        step.filter(|step| *step < self.steps)
    }

    /// Queries `[steps, dim_k]`.
    pub fn q(&self) -> &[F] {
        &self.qx[..self.steps * self.dim_k]
    }

    /// Write features `[rows, dim_k]`.
    pub fn x(&self) -> &[F] {
        &self.qx[self.steps * self.dim_k..]
    }

    #[inline(always)]
    pub fn q_row(&self, step: usize) -> &[F] {
        &self.qx[row(step, self.dim_k)]
    }

    #[inline(always)]
    pub fn x_row(&self, index: usize) -> &[F] {
        &self.qx[row(self.steps + index, self.dim_k)]
    }

    #[inline(always)]
    pub fn v_row(&self, index: usize) -> &[F] {
        &self.v[row(index, self.columns)]
    }

    /// The gains of a step, one or one for each column, from `write`, `erase` or `gamma`.
    #[inline(always)]
    pub fn gains<'a>(&self, of: &'a [F], step: usize) -> &'a [F] {
        &of[row(step, self.gain_width())]
    }

    /// One column's gain.
    #[inline(always)]
    pub fn gain(&self, of: &[F], step: usize, column: usize) -> F {
        if self.each_column { of[step * self.columns + column] } else { of[step] }
    }
}

/// `d loss / d` each array of a [`Segment`], accumulated.
#[derive(Default)]
pub(crate) struct SegmentGrad<F> {
    pub qx: Vec<F>,
    pub v: Vec<F>,
    pub write: Vec<F>,
    pub erase: Vec<F>,
    pub gamma: Vec<F>,
}

impl<F: Real> SegmentGrad<F> {
    /// All zero, in the sizes of `segment`.
    pub fn reset(&mut self, segment: &Segment<F>) {
        for (grad, like) in [
            (&mut self.qx, &segment.qx),
            (&mut self.v, &segment.v),
            (&mut self.write, &segment.write),
            (&mut self.erase, &segment.erase),
            (&mut self.gamma, &segment.gamma),
        ] {
            grad.clear();
            grad.resize(like.len(), F::zero());
        }
    }

    /// Adds to the gradient of a step's gain, over all columns or for one.
    #[inline(always)]
    pub fn add_gain(of: &mut [F], segment: &Segment<F>, step: usize, column: usize, value: F) {
        let index = if segment.each_column { step * segment.columns + column } else { step };
        of[index] += value;
    }
}
