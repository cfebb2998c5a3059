//! A gain and a carry for every value column: Falcon-2 where it erases, Falcon-2A where it does not.
//!
//! Each column has a triangular system and a mask of its own, but none is ever built. Substitution runs over
//! rows with all columns side by side, on rows kept decayed to the current time, `B̃_s(t) = D[t][s+1] ⊙ b_s`:
//!
//! ```text
//! p_i = c_i ⊙ S₀ᵀx_i + Σ_{s<i} (x_i·x_s) B̃_s(i)      b_i = w_i ⊙ v_i − e_i ⊙ p_i
//! o_i = c_τ ⊙ S₀ᵀq_i + Σ_{s<τ} (q_i·x_s) B̃_s(τ)      S_T = S₀ diag(c_T) + Xᵀ B̃(T)
//! ```

use crate::Real;
use crate::mat::{Mat, matmul, product};
use crate::real::{axpy, dot};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;
use crate::step::scale_columns;

/// Below this carry the gradient of a decay, recovered by dividing by it, would lose digits: such a chunk is
/// differentiated step by step instead.
const LEAST_CARRY: f64 = 1.0 / 16.0;

pub(super) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F]) {
    Sweep::forward(segment, memory, out).finish(segment, memory);
}

/// The forward pass inside a chunk, with what its adjoint needs.
struct Sweep<F> {
    /// `XXᵀ` where the rule erases, else empty.
    gram: Vec<F>,
    /// `QXᵀ`.
    attention: Vec<F>,
    /// `p_i`, `[steps, columns]`.
    p: Vec<F>,
    /// `b_i`, `[steps, columns]`.
    b: Vec<F>,
    /// `b_s` decayed to the end of the chunk.
    decayed: Vec<F>,
    /// `c_t`, `[steps + 1, columns]`.
    carry: Vec<F>,
}

impl<F: Real> Sweep<F> {
    /// Fills `out`; `memory` is the incoming one.
    fn forward(segment: &Segment<F>, memory: &[F], out: &mut [F]) -> Self {
        let (columns, dim_k, steps) = (segment.columns, segment.dim_k, segment.steps);
        let (q, x) = (Mat::new(&segment.q, dim_k), Mat::new(&segment.x, dim_k));
        matmul(out, F::zero(), q, Mat::new(memory, columns));
        let mut sweep = Self {
            gram: if segment.erases { product(x, x.t()) } else { Vec::new() },
            attention: product(q, x.t()),
            p: if segment.erases {
                product(x, Mat::new(memory, columns))
            } else {
                vec![F::zero(); steps * columns]
            },
            b: vec![F::zero(); steps * columns],
            decayed: vec![F::zero(); steps * columns],
            carry: vec![F::one(); (steps + 1) * columns],
        };
        for step in 0..steps {
            let here = row(step, columns);
            if segment.read_before {
                sweep.read(segment, step, step, &mut out[here.clone()]);
            }
            if segment.erases {
                let p = &mut sweep.p[here.clone()];
                multiply(p, &sweep.carry[here.clone()]);
                for s in 0..step {
                    axpy(p, sweep.gram[step * steps + s], &sweep.decayed[row(s, columns)]);
                }
            }
            for c in here.clone() {
                sweep.b[c] = segment.write[c] * segment.v[c] - segment.erase[c] * sweep.p[c];
            }
            let gamma = &segment.gamma[here.clone()];
            scale_columns(&mut sweep.decayed[..step * columns], columns, gamma);
            sweep.decayed[here.clone()].copy_from_slice(&sweep.b[here.clone()]);
            sweep.carry.copy_within(here.clone(), here.end);
            multiply(&mut sweep.carry[row(step + 1, columns)], gamma);
            if !segment.read_before {
                sweep.read(segment, step, step + 1, &mut out[here]);
            }
        }
        sweep
    }

    /// `o` of one step, from `S₀ᵀq` in `out`, while `decayed` is as of `time`.
    fn read(&self, segment: &Segment<F>, step: usize, time: usize, out: &mut [F]) {
        multiply(out, &self.carry[row(time, segment.columns)]);
        for s in 0..time {
            axpy(out, self.attention[step * segment.steps + s], &self.decayed[row(s, segment.columns)]);
        }
    }

    /// The memory after the chunk, from the one before it.
    fn finish(&self, segment: &Segment<F>, memory: &mut [F]) {
        scale_columns(memory, segment.columns, &self.carry[row(segment.steps, segment.columns)]);
        let x = Mat::new(&segment.x, segment.dim_k);
        matmul(memory, F::one(), x.t(), Mat::new(&self.decayed, segment.columns));
    }
}

/// Adjoint of [`forward`]. Backwards in time, with `D̃O_s(t) = D[τ_s][t] ⊙ do_s` and `Ỹ_s(t) = −D[s][t] ⊙ e_s ⊙ a_s`
/// kept decayed to the current time,
///
/// ```text
/// a_i = D[T][i+1] ⊙ Λ_Tᵀx_i + Σ_s (q_s·x_i) D̃O_s(i+1) + Σ_{s>i} (x_s·x_i) Ỹ_s(i+1)       a = dL/db
/// ```
///
/// The gradient of the carry comes without any matrix from `F_t = ⟨Λ_t, S_t⟩`, column by column:
///
/// ```text
/// γ_i dγ_i = F_{i+1} − a_i ⊙ b_i        F_i = F_{i+1} − w_i ⊙ v_i ⊙ a_i + (o ⊙ do of the read at time i)
/// ```
///
/// a running sum in `f64`, begun anew in every chunk from the exact `⟨Λ_T, S_T⟩`.
pub(super) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
) {
    if segment.gamma.iter().any(|gamma| *gamma < F::of(LEAST_CARRY)) {
        return crate::recurrent::backward(segment, memory, grad_out, adjoint, grad);
    }
    let (columns, dim_k, steps) = (segment.columns, segment.dim_k, segment.steps);
    let mut out = vec![F::zero(); steps * columns];
    let sweep = Sweep::forward(segment, memory, &mut out);
    let x = Mat::new(&segment.x, dim_k);

    let mut inner = Inner::new(segment, &sweep, memory, adjoint);
    let final_x = product(x, Mat::new(adjoint, columns));
    // Λ_T decayed to the current time, D[T][t].
    let mut final_carry = vec![F::one(); columns];
    let mut reads = grad_out.to_vec();
    let mut erased = vec![F::zero(); steps * columns];
    let mut grad_attention = vec![F::zero(); steps * steps];
    let mut grad_gram = vec![F::zero(); steps * steps];
    let mut a = vec![F::zero(); columns];
    for step in (0..steps).rev() {
        let here = row(step, columns);
        if let Some(reader) = segment.reader(step + 1) {
            inner.read(&out[row(reader, columns)], &grad_out[row(reader, columns)]);
        }
        // The steps whose read sees this write.
        let seen_by = if segment.read_before { step + 1 } else { step };
        a.copy_from_slice(&final_x[here.clone()]);
        multiply(&mut a, &final_carry);
        for s in seen_by..steps {
            axpy(&mut a, sweep.attention[s * steps + step], &reads[row(s, columns)]);
        }
        if segment.erases {
            for s in step + 1..steps {
                axpy(&mut a, sweep.gram[s * steps + step], &erased[row(s, columns)]);
            }
        }
        let b = &sweep.b[here.clone()];
        for s in seen_by..steps {
            grad_attention[s * steps + step] = dot(&reads[row(s, columns)], b);
        }
        if segment.erases {
            for s in step + 1..steps {
                grad_gram[s * steps + step] = dot(&erased[row(s, columns)], b);
            }
        }
        inner.step(segment, step, &a, b, grad);
        for (c, i) in here.clone().enumerate() {
            grad.v[i] += segment.write[i] * a[c];
            grad.write[i] += a[c] * segment.v[i];
            grad.erase[i] -= a[c] * sweep.p[i];
        }

        // From after the step to before it.
        let gamma = &segment.gamma[here.clone()];
        multiply(&mut final_carry, gamma);
        scale_columns(&mut reads[seen_by * columns..], columns, gamma);
        if segment.erases {
            scale_columns(&mut erased[here.end..], columns, gamma);
            for (c, i) in here.enumerate() {
                erased[i] = -segment.erase[i] * a[c];
            }
        }
    }

    // `reads` and `erased` are decayed to time 0 now, where they meet the incoming memory.
    matmul(&mut grad.q, F::one(), Mat::new(&grad_attention, steps), x);
    matmul(&mut grad.q, F::one(), Mat::new(&reads, columns), Mat::new(memory, columns).t());
    matmul(&mut grad.x, F::one(), Mat::new(&grad_attention, steps).t(), Mat::new(&segment.q, dim_k));
    matmul(&mut grad.x, F::one(), Mat::new(&sweep.decayed, columns), Mat::new(adjoint, columns).t());
    scale_columns(adjoint, columns, &final_carry);
    matmul(adjoint, F::one(), Mat::new(&segment.q, dim_k).t(), Mat::new(&reads, columns));
    if segment.erases {
        matmul(&mut grad.x, F::one(), Mat::new(&grad_gram, steps), x);
        matmul(&mut grad.x, F::one(), Mat::new(&grad_gram, steps).t(), x);
        matmul(&mut grad.x, F::one(), Mat::new(&erased, columns), Mat::new(memory, columns).t());
        matmul(adjoint, F::one(), x.t(), Mat::new(&erased, columns));
    }
}

/// `F = ⟨Λ, S⟩` of every column, at the current time.
struct Inner(Vec<f64>);

impl Inner {
    fn new<F: Real>(segment: &Segment<F>, sweep: &Sweep<F>, memory: &[F], adjoint: &[F]) -> Self {
        let columns = segment.columns;
        let mut last = memory.to_vec();
        sweep.finish(segment, &mut last);
        let mut inner = vec![0.0; columns];
        for (adjoint, last) in adjoint.chunks_exact(columns).zip(last.chunks_exact(columns)) {
            for c in 0..columns {
                inner[c] += adjoint[c].wide() * last[c].wide();
            }
        }
        Self(inner)
    }

    fn read<F: Real>(&mut self, out: &[F], grad_out: &[F]) {
        for (inner, (out, grad)) in self.0.iter_mut().zip(out.iter().zip(grad_out)) {
            *inner += out.wide() * grad.wide();
        }
    }

    fn step<F: Real>(&mut self, segment: &Segment<F>, step: usize, a: &[F], b: &[F], grad: &mut SegmentGrad<F>) {
        for (c, i) in row(step, segment.columns).enumerate() {
            let a = a[c].wide();
            let carried = self.0[c] - a * b[c].wide();
            grad.gamma[i] += F::of(carried / segment.gamma[i].wide());
            self.0[c] -= a * segment.write[i].wide() * segment.v[i].wide();
        }
    }
}

/// `y ⊙= x`.
fn multiply<F: Real>(y: &mut [F], x: &[F]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y *= *x;
    }
}
