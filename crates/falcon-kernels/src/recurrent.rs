//! The recurrent form: the definition, step by step, and its adjoint.

use crate::Real;
use crate::real::dot;
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;
use crate::step::{apply, outer, predict, read, residual_backward, scale_columns, write};

/// Runs the steps of `segment` on `memory`; `out` is `[steps, columns]`.
pub(crate) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F]) {
    let columns = segment.columns;
    let mut p = vec![F::zero(); segment.window * columns];
    let mut z = p.clone();
    for step in 0..segment.steps {
        let out = &mut out[row(step, columns)];
        if segment.read_before {
            read(memory, segment.q_row(step), out);
        }
        predict(segment, step, memory, &mut p, &mut z);
        write(segment, step, &z, memory);
        if !segment.read_before {
            read(memory, segment.q_row(step), out);
        }
    }
}

/// Adjoint of [`forward`]. `memory` is the incoming memory. `adjoint` is `Λ = dL/dS` after the last step and becomes
/// that of the incoming memory.
///
/// ```text
/// a_j = Λᵀ x_j = dL/dz_j    b_j = −dL/dp_j, by the residual's adjoint    dγ = ⟨Λ, S⟩
/// dx_j += Λ z_j − S b_j     Λ ← γ Λ − Σ x_j b_jᵀ                         a read adds q doᵀ,  dq = S do
/// ```
pub(crate) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
) {
    let (columns, dim_k, size) = (segment.columns, segment.dim_k, memory.len());
    grad.clear_rows();
    let mut p = vec![F::zero(); segment.window * columns];
    let mut z = p.clone();
    // The memory at every time of the segment.
    let mut history = Vec::with_capacity((segment.steps + 1) * size);
    history.extend_from_slice(memory);
    for step in 0..segment.steps {
        history.extend_from_within(step * size..);
        let (before, after) = history[step * size..].split_at_mut(size);
        predict(segment, step, before, &mut p, &mut z);
        write(segment, step, &z, after);
    }
    let mut b = vec![F::zero(); segment.window * columns];
    for step in (0..segment.steps).rev() {
        let before = &history[row(step, size)];
        let (q, grad_o) = (segment.q_row(step), &grad_out[row(step, columns)]);
        if !segment.read_before {
            apply(&mut grad.qx[row(step, dim_k)], F::one(), &history[row(step + 1, size)], grad_o);
            outer(adjoint, F::one(), q, grad_o);
        }
        predict(segment, step, before, &mut p, &mut z);
        for (slot, j) in segment.window(step).enumerate() {
            let here = row(slot, columns);
            let b = &mut b[here.clone()];
            read(adjoint, segment.x_row(j), b);
            residual_backward(segment, step, j, &p[here.clone()], b, grad);
            let grad_x = &mut grad.qx[row(segment.steps + j, dim_k)];
            apply(grad_x, F::one(), adjoint, &z[here]);
            apply(grad_x, -F::one(), before, b);
        }
        for (line, before) in adjoint.chunks_exact(columns).zip(before.chunks_exact(columns)) {
            if segment.each_column {
                for c in 0..columns {
                    grad.gamma[step * columns + c] += line[c] * before[c];
                }
            } else {
                grad.gamma[step] += dot(line, before);
            }
        }
        scale_columns(adjoint, columns, segment.gains(&segment.gamma, step));
        for (slot, j) in segment.window(step).enumerate() {
            outer(adjoint, -F::one(), segment.x_row(j), &b[row(slot, columns)]);
        }
        if segment.read_before {
            apply(&mut grad.qx[row(step, dim_k)], F::one(), before, grad_o);
            outer(adjoint, F::one(), q, grad_o);
        }
    }
}
