//! The chunked form, for training: a chunk is a segment that is computed by matrix products, and the memory is passed
//! from chunk to chunk.
//!
//! Every decay is a product `D[t][s] = Π_{s ≤ r < t} γ_r` with `s ≤ t`. The clamp, gates and gains up to 2 ensure
//! `|γ| ≤ 1`, so nothing is multiplied by more than 1, and nothing is divided by a decay: a chunk whose steps are all
//! clamped is as accurate as one without decay. The one exception is the backward pass of [`columns_backward`], which runs step
//! by step where a division would lose accuracy.

mod columns;
mod columns_backward;
mod delta;
mod delta_backward;
mod linear;
mod rows;

use crate::Real;
use crate::aligned::Aligned;
use crate::scratch::{self, Scratch};
use crate::segment::{Segment, SegmentGrad};
use crate::simd::{Vectorised, dispatch};

/// The same as [`crate::recurrent::forward`].
pub(crate) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F], scratch: &mut Scratch<F>) {
    dispatch(Forward { segment, memory, out, scratch });
}

struct Forward<'a, F> {
    segment: &'a Segment<F>,
    memory: &'a mut [F],
    out: &'a mut [F],
    scratch: &'a mut Scratch<F>,
}

impl<F: Real> Vectorised for Forward<'_, F> {
    #[inline(always)]
    fn run(self) {
        let Self { segment, memory, out, scratch } = self;
        match segment {
            Segment { each_column: true, .. } => columns::forward(segment, memory, out, scratch),
            _ => {
                let [prepared, scratch] = scratch.split([prepared_len(segment), finish_len(segment)]);
                prepare_here(segment, prepared);
                finish_here(segment, prepared, memory, out, scratch);
            }
        }
    }
}

/// The part of [`forward`] that does not depend on the memory, so that threads can compute it for several chunks at
/// once: what the columns of the memory have in common. For rules with one gain for all columns.
pub(crate) fn prepare<F: Real>(segment: &Segment<F>, prepared: &mut Aligned<F>) {
    prepared.resize(prepared_len(segment));
    scratch::poison(prepared);
    dispatch(Prepare { segment, prepared });
}

/// The rest of [`forward`]. `segment` may have some of the columns of the one that was prepared.
pub(crate) fn finish<F: Real>(
    segment: &Segment<F>,
    prepared: &[F],
    memory: &mut [F],
    out: &mut [F],
    scratch: &mut Scratch<F>,
) {
    let [scratch] = scratch.split([finish_len(segment)]);
    dispatch(Finish { segment, prepared, memory, out, scratch });
}

struct Prepare<'a, F> {
    segment: &'a Segment<F>,
    prepared: &'a mut [F],
}

impl<F: Real> Vectorised for Prepare<'_, F> {
    #[inline(always)]
    fn run(self) {
        prepare_here(self.segment, self.prepared);
    }
}

struct Finish<'a, F> {
    segment: &'a Segment<F>,
    prepared: &'a [F],
    memory: &'a mut [F],
    out: &'a mut [F],
    scratch: &'a mut [F],
}

impl<F: Real> Vectorised for Finish<'_, F> {
    #[inline(always)]
    fn run(self) {
        finish_here(self.segment, self.prepared, self.memory, self.out, self.scratch);
    }
}

fn prepared_len<F: Real>(segment: &Segment<F>) -> usize {
    if segment.erases() { delta::prepared_len(segment) } else { linear::prepared_len(segment) }
}

fn finish_len<F: Real>(segment: &Segment<F>) -> usize {
    if segment.erases() { scratch::room::<F>(&delta::sweep_lengths(segment)) } else { 0 }
}

#[inline(always)]
fn prepare_here<F: Real>(segment: &Segment<F>, prepared: &mut [F]) {
    if segment.erases() { delta::prepare(segment, prepared) } else { linear::prepare(segment, prepared) }
}

#[inline(always)]
fn finish_here<F: Real>(segment: &Segment<F>, prepared: &[F], memory: &mut [F], out: &mut [F], scratch: &mut [F]) {
    if segment.erases() {
        delta::finish(segment, prepared, memory, out, scratch);
    } else {
        linear::finish(segment, prepared, memory, out);
    }
}

/// The same as [`crate::recurrent::backward`].
pub(crate) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
    scratch: &mut Scratch<F>,
) {
    if segment.each_column && columns_backward::needs_steps(segment) {
        return crate::recurrent::backward(segment, memory, grad_out, adjoint, grad);
    }
    dispatch(Backward { segment, memory, grad_out, adjoint, grad, scratch });
}

struct Backward<'a, F> {
    segment: &'a Segment<F>,
    memory: &'a [F],
    grad_out: &'a [F],
    adjoint: &'a mut [F],
    grad: &'a mut SegmentGrad<F>,
    scratch: &'a mut Scratch<F>,
}

impl<F: Real> Vectorised for Backward<'_, F> {
    #[inline(always)]
    fn run(self) {
        let Self { segment, memory, grad_out, adjoint, grad, scratch } = self;
        match segment {
            Segment { each_column: true, .. } => {
                columns_backward::backward(segment, memory, grad_out, adjoint, grad, scratch);
            }
            _ if segment.erases() => delta_backward::backward(segment, memory, grad_out, adjoint, grad, scratch),
            _ => linear::backward(segment, memory, grad_out, adjoint, grad, scratch),
        }
    }
}
