//! Rules with a gain and a carry for every column of the values: Falcon-2, which erases, and Falcon-2A, which does not.
//!
//! Each column has its own triangular system and its own mask, but neither is stored. The substitution runs over rows,
//! for all columns at once, and keeps the earlier rows decayed to the current time, `B̃_s(t) = D[t][s+1] ⊙ b_s`:
//!
//! ```text
//! p_i = c_i ⊙ S₀ᵀx_i + Σ_{s<i} (x_i·x_s) B̃_s(i)      b_i = w_i ⊙ v_i − e_i ⊙ p_i
//! o_i = c_τ ⊙ S₀ᵀq_i + Σ_{s<τ} (q_i·x_s) B̃_s(τ)      S_T = S₀ diag(c_T) + Xᵀ B̃(T)
//! ```

use crate::Real;
use crate::mat::{Mat, MatMut, matmul};
use crate::real::{axpy, combine, decay_combine, dot, multiply};
use crate::scratch::Scratch;
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;
use crate::step::scale_columns;

/// The gradient of a carry is recovered by a division by that carry. Below this value the division would lose accuracy,
/// and the backward pass of the chunk runs step by step instead.
const LEAST_CARRY: f64 = 1.0 / 16.0;

/// Whether [`backward`] would lose accuracy on this chunk.
pub(super) fn needs_steps<F: Real>(segment: &Segment<F>) -> bool {
    segment.gamma.iter().any(|gamma| *gamma < F::of(LEAST_CARRY))
}

#[inline(always)]
pub(super) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F], scratch: &mut Scratch<F>) {
    let [products, p, b, decayed, carry] = scratch.split(lengths(segment));
    let mut sweep = Sweep { products, p, b, decayed, carry };
    sweep.run(segment, memory, out);
    sweep.finish(segment, memory);
}

fn lengths<F: Real>(segment: &Segment<F>) -> [usize; 5] {
    let (steps, values) = (segment.steps, segment.steps * segment.columns);
    [2 * steps * steps, values, values, values, values + segment.columns]
}

/// The forward pass inside a chunk, and the arrays that its adjoint needs.
struct Sweep<'a, F> {
    /// `QXᵀ`, and below it `XXᵀ` if the rule erases; `[steps, steps]` each.
    products: &'a mut [F],
    /// `p_i`, `[steps, columns]`.
    p: &'a mut [F],
    /// `b_i`, `[steps, columns]`.
    b: &'a mut [F],
    /// `b_s` decayed to the current time, and finally to the end of the chunk.
    decayed: &'a mut [F],
    /// `c_t`, `[steps + 1, columns]`.
    carry: &'a mut [F],
}

impl<F: Real> Sweep<'_, F> {
    /// Fills `out` from the incoming memory.
    #[inline(always)]
    fn run(&mut self, segment: &Segment<F>, memory: &[F], out: &mut [F]) {
        let (columns, dim_k, steps) = (segment.columns, segment.dim_k, segment.steps);
        let (q, x, s0) = (Mat::new(segment.q(), dim_k), Mat::new(segment.x(), dim_k), Mat::new(memory, columns));
        matmul(MatMut::new(out, columns), F::zero(), q, s0);
        if segment.erases() {
            matmul(MatMut::new(self.products, steps), F::zero(), Mat::new(&segment.qx, dim_k), x.t());
            matmul(MatMut::new(self.p, columns), F::zero(), x, s0);
        } else {
            matmul(MatMut::new(&mut self.products[..steps * steps], steps), F::zero(), q, x.t());
        }
        self.carry[..columns].fill(F::one());
        for step in 0..steps {
            let here = row(step, columns);
            let (b, p) = (&mut self.b[here.clone()], &self.p[here.clone()]);
            let (write, erase) = (&segment.write[here.clone()], &segment.erase[here.clone()]);
            let v = &segment.v[here.clone()];
            for c in 0..columns {
                b[c] = write[c] * v[c];
            }
            if segment.erases() {
                for c in 0..columns {
                    b[c] -= erase[c] * p[c];
                }
            }
            self.advance(segment, step, out);
        }
    }

    /// Advances from before `step` to after it: decays the rows, and in the same pass adds them to the read at that
    /// time and to the prediction of the next step.
    #[inline(always)]
    fn advance(&mut self, segment: &Segment<F>, step: usize, out: &mut [F]) {
        let (columns, steps) = (segment.columns, segment.steps);
        let (gamma, time) = (&segment.gamma[row(step, columns)], step + 1);
        let (before, carry) = self.carry[step * columns..][..2 * columns].split_at_mut(columns);
        for c in 0..columns {
            carry[c] = before[c] * gamma[c];
        }
        let (decayed, b) = (&mut self.decayed[..step * columns], &self.b[row(step, columns)]);
        let read = segment.reader(time).map(|reader| (reader, &mut out[row(reader, columns)]));
        let predict = (segment.erases() && time < steps).then(|| &mut self.p[row(time, columns)]);
        let attention = |reader: usize| &self.products[row(reader, steps)];
        let gram = || &self.products[row(steps + time, steps)];
        match (read, predict) {
            (Some((reader, out)), Some(p)) => {
                multiply(out, carry);
                multiply(p, carry);
                decay_combine(decayed, gamma, [attention(reader), gram()], [&mut *out, &mut *p]);
                axpy(out, attention(reader)[step], b);
                axpy(p, gram()[step], b);
            }
            (Some((reader, out)), None) => {
                multiply(out, carry);
                decay_combine(decayed, gamma, [attention(reader)], [&mut *out]);
                axpy(out, attention(reader)[step], b);
            }
            // With reads before the write, the last step has neither a read nor a prediction left.
            (None, _) => decay_combine(decayed, gamma, [], []),
        }
        self.decayed[row(step, columns)].copy_from_slice(b);
    }

    /// Turns the memory before the chunk into that after it.
    #[inline(always)]
    fn finish(&self, segment: &Segment<F>, memory: &mut [F]) {
        scale_columns(memory, segment.columns, &self.carry[row(segment.steps, segment.columns)]);
        let x = Mat::new(segment.x(), segment.dim_k);
        matmul(MatMut::new(memory, segment.columns), F::one(), x.t(), Mat::new(self.decayed, segment.columns));
    }
}

/// Adjoint of [`forward`]. It runs backwards in time and keeps `D̃O_s(t) = D[τ_s][t] ⊙ do_s` and
/// `Ỹ_s(t) = −D[s][t] ⊙ e_s ⊙ a_s` decayed to the current time:
///
/// ```text
/// a_i = D[T][i+1] ⊙ Λ_Tᵀx_i + Σ_s (q_s·x_i) D̃O_s(i+1) + Σ_{s>i} (x_s·x_i) Ỹ_s(i+1)       a = dL/db
/// ```
///
/// The gradient of the carry follows from `F_t = ⟨Λ_t, S_t⟩` of each column, without the matrices themselves:
///
/// ```text
/// γ_i dγ_i = F_{i+1} − a_i ⊙ b_i        F_i = F_{i+1} − w_i ⊙ v_i ⊙ a_i + (o ⊙ do of the read at time i)
/// ```
///
/// `F` is a running sum in `f64` that starts in every chunk from the exact `⟨Λ_T, S_T⟩`.
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
    let values = steps * columns;
    let [l0, l1, l2, l3, l4] = lengths(segment);
    let [
        products,
        p,
        b,
        decayed,
        carry,
        out,
        a,
        reads,
        erased,
        grad_attention,
        grad_gram,
        weights,
        final_carry,
        last,
    ] = scratch.split([
        l0,
        l1,
        l2,
        l3,
        l4,
        values,
        values,
        values,
        values,
        steps * steps,
        steps * steps,
        steps,
        columns,
        memory.len(),
    ]);
    let mut sweep = Sweep { products, p, b, decayed, carry };
    sweep.run(segment, memory, out);
    last.copy_from_slice(memory);
    sweep.finish(segment, last);
    let x = Mat::new(segment.x(), dim_k);

    let mut inner = Inner::new(columns, last, adjoint);
    matmul(MatMut::new(a, columns), F::zero(), x, Mat::new(adjoint, columns));
    // D[T][t], the decay of Λ_T to the current time.
    final_carry.fill(F::one());
    reads.copy_from_slice(grad_out);
    grad_attention.fill(F::zero());
    grad_gram.fill(F::zero());
    for step in (0..steps).rev() {
        let here = row(step, columns);
        if let Some(reader) = segment.reader(step + 1) {
            inner.read(&out[row(reader, columns)], &grad_out[row(reader, columns)]);
        }
        // The first step whose read includes this write.
        let seen_by = if segment.read_before { step + 1 } else { step };
        let (a, b) = (&mut a[here.clone()], &sweep.b[here.clone()]);
        multiply(a, final_carry);
        for s in seen_by..steps {
            weights[s] = sweep.products[s * steps + step];
            grad_attention[s * steps + step] = dot(&reads[row(s, columns)], b);
        }
        combine(a, &weights[seen_by..], &reads[seen_by * columns..], columns);
        if segment.erases() {
            for s in step + 1..steps {
                weights[s] = sweep.products[(steps + s) * steps + step];
                grad_gram[s * steps + step] = dot(&erased[row(s, columns)], b);
            }
            combine(a, &weights[step + 1..], &erased[here.end..], columns);
        }
        inner.step(segment, step, a, b, grad);
        let (write, v, p) = (&segment.write[here.clone()], &segment.v[here.clone()], &sweep.p[here.clone()]);
        let grad_v = &mut grad.v[here.clone()];
        let grad_write = &mut grad.write[here.clone()];
        for c in 0..columns {
            grad_v[c] += write[c] * a[c];
            grad_write[c] += a[c] * v[c];
        }

        // Go from after the step to before it.
        let gamma = &segment.gamma[here.clone()];
        multiply(final_carry, gamma);
        scale_columns(&mut reads[seen_by * columns..], columns, gamma);
        if segment.erases() {
            scale_columns(&mut erased[here.end..], columns, gamma);
            let (erased, erase) = (&mut erased[here.clone()], &segment.erase[here.clone()]);
            let grad_erase = &mut grad.erase[here];
            for c in 0..columns {
                grad_erase[c] -= a[c] * p[c];
                erased[c] = -erase[c] * a[c];
            }
        }
    }

    // `reads` and `erased` are now decayed to time 0, the time of the incoming memory.
    let (reads, erased, s0) = (Mat::new(reads, columns), Mat::new(erased, columns), Mat::new(memory, columns));
    let (q, grad_attention, grad_gram) =
        (Mat::new(segment.q(), dim_k), Mat::new(grad_attention, steps), Mat::new(grad_gram, steps));
    let (grad_q, grad_x) = grad.qx.split_at_mut(steps * dim_k);
    let mut into_q = |a, b| matmul(MatMut::new(grad_q, dim_k), F::one(), a, b);
    into_q(grad_attention, x);
    into_q(reads, s0.t());
    let mut into_x = |a, b| matmul(MatMut::new(grad_x, dim_k), F::one(), a, b);
    into_x(grad_attention.t(), q);
    into_x(Mat::new(sweep.decayed, columns), Mat::new(adjoint, columns).t());
    if segment.erases() {
        into_x(grad_gram, x);
        into_x(grad_gram.t(), x);
        into_x(erased, s0.t());
    }
    scale_columns(adjoint, columns, final_carry);
    matmul(MatMut::new(adjoint, columns), F::one(), q.t(), reads);
    if segment.erases() {
        matmul(MatMut::new(adjoint, columns), F::one(), x.t(), erased);
    }
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
