//! Rows of matrices multiplied by a number each.

use crate::Real;

/// Multiplies row `r` of a matrix by `by(r)`.
#[inline(always)]
pub(super) fn scale_rows<F: Real>(matrix: &mut [F], width: usize, by: impl Fn(usize) -> F) {
    for (r, line) in matrix.chunks_exact_mut(width).enumerate() {
        crate::real::scale(line, by(r));
    }
}

/// `to = from`, with row `r` multiplied by `by(r)`.
#[inline(always)]
pub(super) fn copy_scaled<F: Real>(to: &mut [F], from: &[F], width: usize, by: impl Fn(usize) -> F) {
    for (r, (to, from)) in to.chunks_exact_mut(width).zip(from.chunks_exact(width)).enumerate() {
        let by = by(r);
        for (to, from) in to.iter_mut().zip(from) {
            *to = by * *from;
        }
    }
}
