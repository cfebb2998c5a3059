//! The adjoint of [`super::columns`]. It runs backwards in time, by the same blocks of steps, and keeps
//! `D̃O_s(t) = D[τ_s][t] ⊙ do_s` and `Ỹ_s(t) = −D[s][t] ⊙ e_s ⊙ a_s` decayed to the current time:
//!
//! ```text
//! a_i = D[T][i+1] ⊙ Λ_Tᵀx_i + Σ_s (q_s·x_i) D̃O_s(i+1) + Σ_{s>i} (x_s·x_i) Ỹ_s(i+1)       a = dL/db
//! ```
//!
//! The gradient of the decay factor follows from `F_t = ⟨Λ_t, S_t⟩` of each column, without the matrices themselves:
//!
//! ```text
//! γ_i dγ_i = F_{i+1} − a_i ⊙ b_i        F_i = F_{i+1} − w_i ⊙ v_i ⊙ a_i + (o ⊙ do of the read at time i)
//! ```
//!
//! `F` is a running sum in `f64` that starts in every chunk from the exact `⟨Λ_T, S_T⟩`.

use std::ops::Range;

use super::columns::{Sweep, blocks, lengths};
use super::delta::BLOCK;
use crate::Real;
use crate::mat::{Mat, MatMut, lower_matmul, lower_matmul_t, matmul};
use crate::real::{combine, dot, multiply};
use crate::scratch::{Scratch, room, split};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;
use crate::step::scale_columns;

/// The gradient of a decay factor is recovered by a division by that factor. Below this value the division would lose accuracy,
/// and the backward pass of the chunk runs step by step instead.
const LEAST_DECAY: f64 = 1.0 / 16.0;

/// Whether [`backward`] would lose accuracy on this chunk.
pub(super) fn needs_steps<F: Real>(segment: &Segment<F>) -> bool {
    segment.gamma.iter().any(|gamma| *gamma < F::of(LEAST_DECAY))
}

#[inline(always)]
pub(super) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
    scratch: &mut Scratch<F>,
) {
    let (columns, dim_k, steps) = (segment.columns, segment.dim_k, segment.steps);
    let [l0, l1, l2, l3, l4, l5] = lengths(segment);
    let [products, p, b, decayed, since_start, local, out, last, rest] = scratch.split([
        l0,
        l1,
        l2,
        l3,
        l4,
        l5,
        steps * columns,
        memory.len(),
        room::<F>(&Reverse::lengths(segment)),
    ]);
    let mut sweep = Sweep::new([products, p, b, decayed, since_start, local]);
    sweep.run(segment, memory, out);
    last.copy_from_slice(memory);
    sweep.finish(segment, last);
    let x = Mat::new(segment.x(), dim_k);

    let mut inner = Inner::new(columns, last, adjoint);
    let mut reverse = Reverse::new(segment, rest);
    matmul(MatMut::new(reverse.a, columns), F::zero(), x, Mat::new(adjoint, columns));
    reverse.reads.copy_from_slice(grad_out);
    for block in blocks(steps).rev() {
        reverse.enter(segment, &sweep, block.clone());
        reverse.local.fill(F::one());
        for step in block.clone().rev() {
            if let Some(reader) = segment.reader(step + 1) {
                inner.read(&out[row(reader, columns)], &grad_out[row(reader, columns)]);
            }
            reverse.complete(segment, &sweep, block.clone(), step);
            inner.step(segment, step, &reverse.a[row(step, columns)], &sweep.b[row(step, columns)], grad);
            reverse.gather(segment, &sweep, step, grad);
            reverse.leave(segment, block.clone(), step);
        }
        reverse.leave_block(segment, block);
    }

    // `reads` and `erased` are now decayed to time 0, the time of the incoming memory.
    let Reverse { until_end, reads, erased, grad_attention, grad_gram, .. } = reverse;
    let (reads, erased, s0) = (Mat::new(reads, columns), Mat::new(erased, columns), Mat::new(memory, columns));
    let (q, grad_attention, grad_gram) =
        (Mat::new(segment.q(), dim_k), Mat::new(grad_attention, steps), Mat::new(grad_gram, steps));
    let (grad_q, grad_x) = grad.qx.split_at_mut(steps * dim_k);
    let seen = |step: usize| segment.read_time(step);
    matmul(MatMut::new(grad_q, dim_k), F::zero(), reads, s0.t());
    lower_matmul(grad_q, grad_attention, x, seen);
    let to_x = MatMut::new(grad_x, dim_k);
    matmul(to_x, F::zero(), Mat::new(sweep.decayed, columns), Mat::new(adjoint, columns).t());
    lower_matmul_t(grad_x, grad_attention, q, seen);
    if segment.erases() {
        matmul(MatMut::new(grad_x, dim_k), F::one(), erased, s0.t());
        lower_matmul(grad_x, grad_gram, x, |step| step);
        lower_matmul_t(grad_x, grad_gram, x, |step| step);
    }
    scale_columns(adjoint, columns, until_end);
    matmul(MatMut::new(adjoint, columns), F::one(), q.t(), reads);
    if segment.erases() {
        matmul(MatMut::new(adjoint, columns), F::one(), x.t(), erased);
    }
}

/// The substitution backwards in time, by the same blocks as [`Sweep`].
struct Reverse<'a, F> {
    /// `a_i`, `[steps, columns]`.
    a: &'a mut [F],
    /// `D̃O_s` at the current time, and at the end of the current block for the rows after it, `[steps, columns]`.
    reads: &'a mut [F],
    /// `Ỹ_s`, likewise.
    erased: &'a mut [F],
    /// Gradient of `QXᵀ`, `[steps, steps]`, where it is computed.
    grad_attention: &'a mut [F],
    /// Gradient of `XXᵀ`, likewise.
    grad_gram: &'a mut [F],
    /// A column of `QXᵀ` or `XXᵀ`.
    weights: &'a mut [F],
    /// `D[T][I]` for the end `I` of the current block, and finally `D[T][0]`.
    until_end: &'a mut [F],
    /// `D[I][t]` at the current time.
    local: &'a mut [F],
    /// `D[I][i+1] ⊙ b_i` of the steps of a block, `[BLOCK, columns]`.
    decayed: &'a mut [F],
}

impl<'a, F: Real> Reverse<'a, F> {
    fn lengths(segment: &Segment<F>) -> [usize; 9] {
        let (steps, columns) = (segment.steps, segment.columns);
        let values = steps * columns;
        let block = BLOCK.min(steps) * columns;
        [values, values, values, steps * steps, steps * steps, steps, columns, columns, block]
    }

    #[inline(always)]
    fn new(segment: &Segment<F>, buffer: &'a mut [F]) -> Self {
        let [a, reads, erased, grad_attention, grad_gram, weights, until_end, local, decayed] =
            split(buffer, Self::lengths(segment));
        // Where a step does not see a write, nothing is computed.
        grad_attention.fill(F::zero());
        grad_gram.fill(F::zero());
        until_end.fill(F::one());
        Self { a, reads, erased, grad_attention, grad_gram, weights, until_end, local, decayed }
    }

    /// What the steps of a block exchange with reads and writes after it: their part of `a`, and the gradients of the
    /// products.
    #[inline(always)]
    fn enter(&mut self, segment: &Segment<F>, sweep: &Sweep<'_, F>, block: Range<usize>) {
        let (columns, steps) = (segment.columns, segment.steps);
        let Self { a, reads, erased, grad_attention, grad_gram, local, decayed, .. } = self;
        scale_columns(&mut a[block.start * columns..block.end * columns], columns, self.until_end);
        if block.end == steps {
            return;
        }
        local.fill(F::one());
        for step in block.clone().rev() {
            let b = &sweep.b[row(step, columns)];
            for ((to, local), b) in decayed[row(step - block.start, columns)].iter_mut().zip(&**local).zip(b) {
                *to = *local * *b;
            }
            multiply(local, &segment.gamma[row(step, columns)]);
        }
        let after = block.end..steps;
        let b = Mat::new(&decayed[..block.len() * columns], columns);
        let mut exchange = |later: &[F], products: &[F], grad_products: &mut [F]| {
            let later = Mat::new(later, columns).rows(after.clone());
            let products = Mat::new(products, steps).rows(after.clone()).cols(block.clone());
            let a = MatMut::new(a, columns).block(block.clone(), 0..columns);
            matmul(a, F::one(), products.t(), later);
            let grad_products = MatMut::new(grad_products, steps).block(after.clone(), block.clone());
            matmul(grad_products, F::zero(), later, b.t());
        };
        let (attention, gram) = sweep.products.split_at(steps * steps);
        exchange(reads, attention, grad_attention);
        if segment.erases() {
            exchange(erased, gram, grad_gram);
        }
    }

    /// Completes `a` of a step, and its part of the gradients of the products, within its block.
    #[inline(always)]
    fn complete(&mut self, segment: &Segment<F>, sweep: &Sweep<'_, F>, block: Range<usize>, step: usize) {
        let (columns, steps) = (segment.columns, segment.steps);
        let Self { a, reads, erased, grad_attention, grad_gram, weights, local, .. } = self;
        let (attention, gram) = sweep.products.split_at(steps * steps);
        let (a, b) = (&mut a[row(step, columns)], &sweep.b[row(step, columns)]);
        multiply(a, local);
        let mut exchange = |later: &[F], products: &[F], grad_products: &mut [F], first: usize| {
            for s in first..block.end {
                weights[s] = products[s * steps + step];
                grad_products[s * steps + step] = dot(&later[row(s, columns)], b);
            }
            combine(a, &weights[first..block.end], &later[first * columns..], columns);
        };
        exchange(reads, attention, grad_attention, seen_by(segment, step));
        if segment.erases() {
            exchange(erased, gram, grad_gram, step + 1);
        }
    }

    /// The gradients of the value and of the gains of a step.
    #[inline(always)]
    fn gather(&self, segment: &Segment<F>, sweep: &Sweep<'_, F>, step: usize, grad: &mut SegmentGrad<F>) {
        let here = row(step, segment.columns);
        let a = &self.a[here.clone()];
        let (write, v, p) = (&segment.write[here.clone()], &segment.v[here.clone()], &sweep.p[here.clone()]);
        let grad_v = &mut grad.v[here.clone()];
        let grad_write = &mut grad.write[here.clone()];
        for c in 0..a.len() {
            grad_v[c] = write[c] * a[c];
            grad_write[c] = a[c] * v[c];
        }
        if segment.erases() {
            for ((grad, a), p) in grad.erase[here].iter_mut().zip(a).zip(p) {
                *grad -= *a * *p;
            }
        }
    }

    /// Goes from after a step to before it.
    #[inline(always)]
    fn leave(&mut self, segment: &Segment<F>, block: Range<usize>, step: usize) {
        let (here, columns) = (row(step, segment.columns), segment.columns);
        let (gamma, end) = (&segment.gamma[here.clone()], block.end * columns);
        multiply(self.local, gamma);
        scale_columns(&mut self.reads[seen_by(segment, step) * columns..end], columns, gamma);
        if segment.erases() {
            scale_columns(&mut self.erased[here.end..end], columns, gamma);
            let erased = self.erased[here.clone()].iter_mut().zip(&segment.erase[here.clone()]);
            for ((erased, erase), a) in erased.zip(&self.a[here]) {
                *erased = -*erase * *a;
            }
        }
    }

    /// Takes the rows after a block from its end to its start.
    #[inline(always)]
    fn leave_block(&mut self, segment: &Segment<F>, block: Range<usize>) {
        let columns = segment.columns;
        scale_columns(&mut self.reads[block.end * columns..], columns, self.local);
        if segment.erases() {
            scale_columns(&mut self.erased[block.end * columns..], columns, self.local);
        }
        multiply(self.until_end, self.local);
    }
}

/// The first step whose read includes the write of `step`.
#[inline(always)]
fn seen_by<F: Real>(segment: &Segment<F>, step: usize) -> usize {
    if segment.read_before { step + 1 } else { step }
}

/// `F = ⟨Λ, S⟩` of every column, at the current time.
struct Inner(Vec<f64>);

impl Inner {
    #[inline(always)]
    fn new<F: Real>(columns: usize, memory: &[F], adjoint: &[F]) -> Self {
        let mut inner = vec![0.0; columns];
        for (adjoint, memory) in adjoint.chunks_exact(columns).zip(memory.chunks_exact(columns)) {
            for ((inner, adjoint), memory) in inner.iter_mut().zip(adjoint).zip(memory) {
                *inner += adjoint.wide() * memory.wide();
            }
        }
        Self(inner)
    }

    #[inline(always)]
    fn read<F: Real>(&mut self, out: &[F], grad_out: &[F]) {
        for (inner, (out, grad)) in self.0.iter_mut().zip(out.iter().zip(grad_out)) {
            *inner += out.wide() * grad.wide();
        }
    }

    #[inline(always)]
    fn step<F: Real>(&mut self, segment: &Segment<F>, step: usize, a: &[F], b: &[F], grad: &mut SegmentGrad<F>) {
        let here = row(step, segment.columns);
        let (gamma, write, v) =
            (&segment.gamma[here.clone()], &segment.write[here.clone()], &segment.v[here.clone()]);
        let grad_gamma = &mut grad.gamma[here];
        for (c, inner) in self.0.iter_mut().enumerate() {
            let a = a[c].wide();
            grad_gamma[c] += F::of((*inner - a * b[c].wide()) / gamma[c].wide());
            *inner -= a * write[c].wide() * v[c].wide();
        }
    }
}
