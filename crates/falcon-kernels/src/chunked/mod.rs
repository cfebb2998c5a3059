//! The chunked form: what training runs. A chunk is a segment; inside it matrix products, between chunks the
//! memory.
//!
//! Every decay that occurs is a product `D[t][s] = Π_{s ≤ r < t} γ_r` with `s ≤ t`, so nothing is ever divided by a
//! decay or multiplied by more than 1: a chunk whose every step is clamped is as safe as one that forgets nothing.

mod columns;
mod delta;
mod linear;

use crate::Real;
use crate::segment::{Segment, SegmentGrad};

/// As [`crate::recurrent::forward`].
pub(crate) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F]) {
    match segment {
        Segment { each_column: true, .. } => columns::forward(segment, memory, out),
        Segment { erases: true, .. } => delta::forward(segment, memory, out),
        _ => linear::forward(segment, memory, out),
    }
}

/// As [`crate::recurrent::backward`].
pub(crate) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
) {
    match segment {
        Segment { each_column: true, .. } => columns::backward(segment, memory, grad_out, adjoint, grad),
        Segment { erases: true, .. } => delta::backward(segment, memory, grad_out, adjoint, grad),
        _ => linear::backward(segment, memory, grad_out, adjoint, grad),
    }
}

/// Scales row `r` of a matrix by `by(r)`.
fn scale_rows<F: Real>(matrix: &mut [F], width: usize, by: impl Fn(usize) -> F) {
    for (r, line) in matrix.chunks_exact_mut(width).enumerate() {
        let by = by(r);
        line.iter_mut().for_each(|x| *x *= by);
    }
}

/// A copy of `matrix` whose row `r` is scaled by `by(r)`.
fn scaled_rows<F: Real>(matrix: &[F], width: usize, by: impl Fn(usize) -> F) -> Vec<F> {
    let mut copy = matrix.to_vec();
    scale_rows(&mut copy, width, by);
    copy
}
