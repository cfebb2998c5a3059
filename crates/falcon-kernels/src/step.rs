//! One write and one read of the memory of one head: the definition that everything else is tested against.

use crate::Real;
use crate::real::{axpy, dot};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;

/// `o = Sᵀ q`.
#[inline(always)]
pub(crate) fn read<F: Real>(memory: &[F], q: &[F], out: &mut [F]) {
    out.fill(F::zero());
    for (k, q) in q.iter().enumerate() {
        axpy(out, *q, &memory[row(k, out.len())]);
    }
}

/// The predictions `p_j = Sᵀ x_j` of one step and the writes `z_j` of its pairs, `[window, columns]` each.
#[inline(always)]
pub(crate) fn predict<F: Real>(segment: &Segment<F>, step: usize, memory: &[F], p: &mut [F], z: &mut [F]) {
    let columns = segment.columns;
    for (slot, j) in segment.window(step).enumerate() {
        let (p, z) = (&mut p[row(slot, columns)], &mut z[row(slot, columns)]);
        read(memory, segment.x_row(j), p);
        residual(segment, step, segment.v_row(j), p, z);
    }
}

/// The write of one pair, `z = w v − e p`, from its value and the prediction for its key.
#[inline(always)]
pub(crate) fn residual<F: Real>(segment: &Segment<F>, step: usize, v: &[F], p: &[F], z: &mut [F]) {
    z.copy_from_slice(v);
    scale_columns(z, v.len(), segment.gains(&segment.write, step));
    if segment.erases() {
        match segment.gains(&segment.erase, step) {
            [erase] => axpy(z, -*erase, p),
            erase => z.iter_mut().zip(erase).zip(p).for_each(|((z, e), p)| *z -= *e * *p),
        }
    }
}

/// Adjoint of [`residual`] for row `j`: adds to the gradients of `v`, `w` and `e`, and replaces `a = dL/dz` by
/// `−dL/dp`.
///
/// ```text
/// dv += w a    dw += a·v    de −= a·p    −dp = e a
/// ```
#[inline(always)]
pub(crate) fn residual_backward<F: Real>(
    segment: &Segment<F>,
    step: usize,
    j: usize,
    p: &[F],
    a: &mut [F],
    grad: &mut SegmentGrad<F>,
) {
    let v = segment.v_row(j);
    for c in 0..segment.columns {
        grad.v[j * segment.columns + c] += segment.gain(&segment.write, step, c) * a[c];
        SegmentGrad::add_gain(&mut grad.write, segment, step, c, a[c] * v[c]);
        SegmentGrad::add_gain(&mut grad.erase, segment, step, c, -a[c] * p[c]);
        a[c] *= segment.gain(&segment.erase, step, c);
    }
}

/// `S ← γ S + Σ_j x_j z_jᵀ`.
#[inline(always)]
pub(crate) fn write<F: Real>(segment: &Segment<F>, step: usize, z: &[F], memory: &mut [F]) {
    let columns = segment.columns;
    scale_columns(memory, columns, segment.gains(&segment.gamma, step));
    for (slot, j) in segment.window(step).enumerate() {
        outer(memory, F::one(), segment.x_row(j), &z[row(slot, columns)]);
    }
}

/// Multiplies every row by one number, or by one number for each column.
#[inline(always)]
pub(crate) fn scale_columns<F: Real>(matrix: &mut [F], columns: usize, by: &[F]) {
    for line in matrix.chunks_exact_mut(columns) {
        match by {
            [by] => line.iter_mut().for_each(|x| *x *= *by),
            _ => line.iter_mut().zip(by).for_each(|(x, by)| *x *= *by),
        }
    }
}

/// `M += scale · x yᵀ`.
#[inline(always)]
pub(crate) fn outer<F: Real>(matrix: &mut [F], scale: F, x: &[F], y: &[F]) {
    for (line, x) in matrix.chunks_exact_mut(y.len()).zip(x) {
        axpy(line, scale * *x, y);
    }
}

/// `y += scale · M x`.
#[inline(always)]
pub(crate) fn apply<F: Real>(y: &mut [F], scale: F, matrix: &[F], x: &[F]) {
    for (y, line) in y.iter_mut().zip(matrix.chunks_exact(x.len())) {
        *y += scale * dot(line, x);
    }
}
