//! One head over consecutive steps, packed into contiguous arrays: the unit that every form computes on.
//!
//! A segment is a whole sequence (masked form), a chunk (chunked form) or the steps between two saved memories
//! (recurrent form). Each form has two functions on this type, `forward` and `backward`.
//!
//! Step `i` takes the memory from time `i` to time `i + 1`, and time 0 is the incoming memory. Row `r` is a pair
//! `(x_r, v_r)`: first `tail` pairs from before the segment, then one pair for each step. Step `i` adds row `tail + i`
//! and writes the rows of [`Segment::window`].

use std::ops::Range;

use crate::Real;
use crate::aligned::Aligned;
use crate::rule::{Columns, Objective, Read, Rule};
use crate::scratch;
use crate::simd::copy_row;
use crate::state::row;

#[derive(Clone, Debug, Default)]
pub(crate) struct Segment<F> {
    pub steps: usize,
    pub tail: usize,
    /// The first row that is a pair: 1 if row 0 is the first token of a fresh sequence and has no pair, else 0.
    pub first: usize,
    pub window: usize,
    pub dim_k: usize,
    /// Columns of a value.
    pub values: usize,
    /// Columns of the memory: those of a value, and that of the normaliser.
    pub columns: usize,
    pub read_before: bool,
    pub objective: Objective,
    /// Whether `write`, `erase` and `gamma` are `[steps, columns]` rather than `[steps]`.
    pub each_column: bool,
    /// Queries `[steps, dim_k]`, and below them the keys that are written `[rows, dim_k]`, in one matrix so that one
    /// product with the memory gives both reads and predictions.
    pub qx: Aligned<F>,
    /// Values `[rows, columns]`.
    pub v: Aligned<F>,
    /// `w / B`: the gain `w` of the value ([`crate::rule`]), divided by the number of pairs in the window. The
    /// equations of the kernels call this `w`.
    pub write: Vec<F>,
    /// `e / B`: the gain `e` of the prediction, likewise divided, and 0 for rules that do not erase. The equations of
    /// the kernels call this `e`.
    pub erase: Vec<F>,
    /// The decay factor `γ`.
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

    /// Becomes `whole` with the given columns of its values only; for rules without a normaliser, with one gain for all
    /// columns.
    pub fn copy_columns(&mut self, whole: &Self, columns: Range<usize>) {
        let Self { steps, tail, first, .. } = *whole;
        (self.steps, self.tail, self.first) = (steps, tail, first);
        (self.values, self.columns) = (columns.len(), columns.len());
        self.qx.resize(whole.qx.len());
        self.qx.copy_from_slice(&whole.qx);
        self.v.resize(whole.rows() * columns.len());
        for (to, from) in self.v.chunks_exact_mut(columns.len()).zip(whole.v.chunks_exact(whole.columns)) {
            copy_row(to, &from[columns.clone()]);
        }
        for (to, from) in
            [(&mut self.write, &whole.write), (&mut self.erase, &whole.erase), (&mut self.gamma, &whole.gamma)]
        {
            to.clone_from(from);
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

    /// The rows that `step` writes: the latest `window` pairs.
    #[inline(always)]
    pub fn window(&self, step: usize) -> Range<usize> {
        let newest = self.tail + step;
        let oldest = (newest + 1).saturating_sub(self.window);
        oldest.max(self.first)..newest + 1
    }

    /// The time at which `step` reads the memory.
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

    /// The keys that are written, `[rows, dim_k]`.
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
    pub fn gains<'a>(&self, gains: &'a [F], step: usize) -> &'a [F] {
        &gains[row(step, self.gain_width())]
    }

    /// The gain of one column, from `write`, `erase` or `gamma`.
    #[inline(always)]
    pub fn gain(&self, gains: &[F], step: usize, column: usize) -> F {
        if self.each_column { gains[step * self.columns + column] } else { gains[step] }
    }
}

/// The accumulated gradients of the arrays of a [`Segment`].
#[derive(Default)]
pub(crate) struct SegmentGrad<F> {
    pub qx: Aligned<F>,
    pub v: Aligned<F>,
    pub write: Vec<F>,
    pub erase: Vec<F>,
    pub gamma: Vec<F>,
}

impl<F: Real> SegmentGrad<F> {
    /// Makes room for the gradients of `segment`. Those of gains and decay factors become 0; those of queries, keys and
    /// values are not specified, because every form writes them.
    pub fn reset(&mut self, segment: &Segment<F>) {
        for (grad, like) in [(&mut self.qx, &segment.qx), (&mut self.v, &segment.v)] {
            grad.resize(like.len());
            scratch::poison(grad);
        }
        for (grad, like) in [
            (&mut self.write, &segment.write),
            (&mut self.erase, &segment.erase),
            (&mut self.gamma, &segment.gamma),
        ] {
            grad.clear();
            grad.resize(like.len(), F::zero());
        }
    }

    /// Sets the gradients of queries, keys and values to 0, for forms that only add to them.
    pub fn clear_rows(&mut self) {
        self.qx.fill(F::zero());
        self.v.fill(F::zero());
    }

    /// Adds to the gradient of the gain of a step: that of `column`, or that which all columns share.
    #[inline(always)]
    pub fn add_gain(grad: &mut [F], segment: &Segment<F>, step: usize, column: usize, value: F) {
        let index = if segment.each_column { step * segment.columns + column } else { step };
        grad[index] += value;
    }
}
