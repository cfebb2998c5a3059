//! Rules that do not erase and have one gain for all columns: the memory is a weighted sum of pairs, with scalar
//! weights.
//!
//! ```text
//! S at time t = c_t S₀ + Σ_r m_{t,r} x_r v_rᵀ        m_{t+1,r} = γ_t m_{t,r} + [r in window of t] w_t
//! O = diag(c_τ) Q S₀ + (QXᵀ ⊙ m_τ) V                 c_{t+1} = γ_t c_t
//! ```
//!
//! Used by Falcon-1A, Falcon-3A, linear attention, RetNet/Lightning and Mamba-2.

use super::rows::{copy_scaled, scale_rows};
use crate::Real;
use crate::mat::{Mat, MatMut, lower_matmul, lower_matmul_t, matmul, matmul_memory, product_lower};
use crate::real::{add, dot, multiply, scale};
use crate::scratch::{Scratch, room, split, split_shared};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;

/// What [`prepare`] computes: `QXᵀ ⊙ m_τ`, `[steps, rows]`; the keys times their last weights, `[rows, dim_k]`; `c`,
/// `[steps + 1]`; and, while it runs, the weights.
fn lengths<F: Real>(segment: &Segment<F>) -> [usize; 4] {
    let (steps, rows) = (segment.steps, segment.rows());
    [steps * rows, rows * segment.dim_k, steps + 1, rows]
}

pub(super) fn prepared_len<F: Real>(segment: &Segment<F>) -> usize {
    room::<F>(&lengths(segment))
}

/// The part of the forward pass that does not depend on the memory.
#[inline(always)]
pub(super) fn prepare<F: Real>(segment: &Segment<F>, prepared: &mut [F]) {
    let (steps, rows) = (segment.steps, segment.rows());
    let [attention, weighted, c, m] = split(prepared, lengths(segment));
    let (q, x, _) = matrices(segment);
    product_lower(attention, q, x.t(), |step| written(segment, step));
    // The weights at one time after the other.
    m.fill(F::zero());
    c[0] = F::one();
    for step in 0..steps {
        let (done, rest) = attention[row(step, rows)].split_at_mut(written(segment, step));
        if segment.read_before {
            multiply(done, &m[..done.len()]);
        }
        write(segment, step, m);
        c[step + 1] = segment.gamma[step] * c[step];
        if !segment.read_before {
            multiply(done, &m[..done.len()]);
        }
        // Set rather than multiplied by 0, because the products with later tokens may not be finite.
        rest.fill(F::zero());
    }
    copy_scaled(weighted, segment.x(), segment.dim_k, |r| m[r]);
}

/// The rest of the forward pass.
#[inline(always)]
pub(super) fn finish<F: Real>(segment: &Segment<F>, prepared: &[F], memory: &mut [F], out: &mut [F]) {
    let (columns, dim_k, steps, rows) = (segment.columns, segment.dim_k, segment.steps, segment.rows());
    let [attention, weighted, c, _] = split_shared(prepared, lengths(segment));
    let (q, _, v) = matrices(segment);
    matmul_memory(out, F::zero(), q, Mat::new(memory, columns));
    scale_rows(out, columns, |step| c[segment.read_time(step)]);
    lower_matmul(out, Mat::new(attention, rows), v, |step| written(segment, step));
    matmul(MatMut::new(memory, columns), c[steps], Mat::new(weighted, dim_k).t(), v);
}

/// Adjoint of [`prepare`] and [`finish`]. The gradients of the weights are scalars, too, and the recursion of the weights, run
/// backwards, turns them into those of `γ` and `w`.
#[inline(always)]
pub(super) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
    scratch: &mut Scratch<F>,
) {
    let (columns, dim_k, steps, rows) = (segment.columns, segment.dim_k, segment.steps, segment.rows());
    let [attention, grad_attention, grad_m, m, c, final_x, reads, through_s0] = scratch.split([
        steps * rows,
        steps * rows,
        (steps + 1) * rows,
        (steps + 1) * rows,
        steps + 1,
        rows * columns,
        steps * columns,
        steps * dim_k,
    ]);
    let (q, x, v) = matrices(segment);
    let grad_o = Mat::new(grad_out, columns);
    weights(segment, m, c);

    // P = QXᵀ ⊙ m, so dA = dP ⊙ m and dm = dP ⊙ A.
    product_lower(attention, q, x.t(), |step| written(segment, step));
    product_lower(grad_attention, grad_o, v.t(), |step| written(segment, step));
    for step in 0..steps {
        let (here, done) = (row(step, rows), written(segment, step));
        let m = &m[row(segment.read_time(step), rows)];
        let (a, a_rest) = attention[here.clone()].split_at_mut(done);
        let (grad_a, grad_rest) = grad_attention[here.clone()].split_at_mut(done);
        let grad_m = &mut grad_m[here];
        for r in 0..done {
            grad_m[r] = grad_a[r] * a[r];
            grad_a[r] *= m[r];
            a[r] *= m[r];
        }
        grad_m[done..].fill(F::zero());
        a_rest.fill(F::zero());
        grad_rest.fill(F::zero());
    }
    let bound = |step: usize| written(segment, step);
    let (masked, grad_attention) = (Mat::new(attention, rows), Mat::new(grad_attention, rows));

    // The read of the incoming memory: dq = c S₀ do, and dc = q·(S₀ do).
    matmul_memory(through_s0, F::zero(), grad_o, Mat::new(memory, columns).t());
    let grad_c = |step: usize| dot(segment.q_row(step), &through_s0[row(step, dim_k)]);
    matmul_memory(final_x, F::zero(), x, Mat::new(adjoint, columns));
    let (grad_m, grad_last) = grad_m.split_at_mut(steps * rows);
    for r in 0..rows {
        grad_last[r] = dot(&final_x[row(r, columns)], segment.v_row(r));
    }
    let mut carried = dot(memory, adjoint);
    // m_{t+1} = γ m_t + w and c_{t+1} = γ c_t, backwards.
    for step in (0..steps).rev() {
        if let Some(reader) = segment.reader(step + 1) {
            carried += grad_c(reader);
            add(grad_last, &grad_m[row(reader, rows)]);
        }
        grad.write[step] += segment.window(step).map(|r| grad_last[r]).sum();
        grad.gamma[step] += carried * c[step] + dot(grad_last, &m[row(step, rows)]);
        carried *= segment.gamma[step];
        scale(grad_last, segment.gamma[step]);
    }

    let (grad_q, grad_x) = grad.qx.split_at_mut(steps * dim_k);
    copy_scaled(grad_q, through_s0, dim_k, |step| c[segment.read_time(step)]);
    lower_matmul(grad_q, grad_attention, x, bound);
    // The part of each pair in the outgoing memory comes first.
    let last = &m[row(steps, rows)];
    copy_scaled(&mut grad.v, final_x, columns, |r| last[r]);
    lower_matmul_t(&mut grad.v, masked, grad_o, bound);
    copy_scaled(final_x, &segment.v, columns, |r| last[r]);
    matmul_memory(grad_x, F::zero(), Mat::new(final_x, columns), Mat::new(adjoint, columns).t());
    lower_matmul_t(grad_x, grad_attention, q, bound);
    copy_scaled(reads, grad_out, columns, |step| c[segment.read_time(step)]);
    matmul(MatMut::new(adjoint, columns), c[steps], q.t(), Mat::new(reads, columns));
}

/// The weights of every time: `m` is `[steps + 1, rows]`, `c` is `[steps + 1]`.
#[inline(always)]
fn weights<F: Real>(segment: &Segment<F>, m: &mut [F], c: &mut [F]) {
    let rows = segment.rows();
    m[..rows].fill(F::zero());
    c[0] = F::one();
    for step in 0..segment.steps {
        let (before, after) = m[step * rows..][..2 * rows].split_at_mut(rows);
        after.copy_from_slice(before);
        write(segment, step, after);
        c[step + 1] = segment.gamma[step] * c[step];
    }
}

/// Takes the weights `m` of all rows from before `step` to after it.
#[inline(always)]
fn write<F: Real>(segment: &Segment<F>, step: usize, m: &mut [F]) {
    // Later rows have not been written.
    scale(&mut m[..segment.tail + step], segment.gamma[step]);
    for r in segment.window(step) {
        m[r] += segment.write[step];
    }
}

/// How many rows have been written when `step` reads.
#[inline(always)]
fn written<F: Real>(segment: &Segment<F>, step: usize) -> usize {
    segment.tail + segment.read_time(step)
}

#[inline(always)]
fn matrices<F: Real>(segment: &Segment<F>) -> (Mat<'_, F>, Mat<'_, F>, Mat<'_, F>) {
    let Segment { v, dim_k, columns, .. } = segment;
    (Mat::new(segment.q(), *dim_k), Mat::new(segment.x(), *dim_k), Mat::new(v, *columns))
}
