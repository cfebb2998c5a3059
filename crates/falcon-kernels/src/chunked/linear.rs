//! Nothing is erased: the memory is a weighted sum of pairs, and the weights are numbers.
//!
//! ```text
//! S at time t = c_t S₀ + Σ_r m_{t,r} x_r v_rᵀ        m_{t+1,r} = γ_t m_{t,r} + [r in window of t] w_t
//! O = diag(c_τ) Q S₀ + (QXᵀ ⊙ m_τ) V                 c_{t+1} = γ_t c_t
//! ```
//!
//! Serves 1A, 3A, linear attention, RetNet/Lightning and Mamba-2.

use super::{scale_rows, scaled_rows};
use crate::Real;
use crate::mat::{Mat, matmul, product};
use crate::real::{add, dot};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;

/// The weights of every time: `m` is `[steps + 1, rows]`, `c` is `[steps + 1]`.
struct Weights<F> {
    m: Vec<F>,
    c: Vec<F>,
}

impl<F: Real> Weights<F> {
    fn new(segment: &Segment<F>) -> Self {
        let rows = segment.rows();
        let mut m = vec![F::zero(); (segment.steps + 1) * rows];
        let mut c = vec![F::one(); segment.steps + 1];
        for step in 0..segment.steps {
            let gamma = segment.gamma[step];
            c[step + 1] = gamma * c[step];
            let (before, after) = m[step * rows..].split_at_mut(rows);
            for r in 0..segment.tail + step {
                after[r] = gamma * before[r];
            }
            for r in segment.window(step) {
                after[r] += segment.write[step];
            }
        }
        Self { m, c }
    }

    /// The weights that step `i` reads with.
    fn read(&self, segment: &Segment<F>, step: usize) -> &[F] {
        &self.m[row(segment.read_time(step), segment.rows())]
    }

    /// The weights after the last step.
    fn last(&self, segment: &Segment<F>) -> &[F] {
        &self.m[row(segment.steps, segment.rows())]
    }
}

pub(super) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F]) {
    let (columns, dim_k, steps) = (segment.columns, segment.dim_k, segment.steps);
    let weights = Weights::new(segment);
    let (q, x, v) = matrices(segment);
    let mut attention = product(q, x.t());
    mask(&mut attention, segment, &weights);

    matmul(out, F::zero(), q, Mat::new(memory, columns));
    scale_rows(out, columns, |i| weights.c[segment.read_time(i)]);
    matmul(out, F::one(), Mat::new(&attention, segment.rows()), v);

    let weighted = scaled_rows(&segment.x, dim_k, |r| weights.last(segment)[r]);
    matmul(memory, weights.c[steps], Mat::new(&weighted, dim_k).t(), v);
}

/// Adjoint of [`forward`]. The weights are numbers, so their gradients are too, and the recursion that made the
/// weights, run backwards, takes them to `γ` and `w`.
pub(super) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
) {
    let (columns, dim_k, steps, rows) = (segment.columns, segment.dim_k, segment.steps, segment.rows());
    let weights = Weights::new(segment);
    let (q, x, v) = matrices(segment);
    let (s0, grad_o) = (Mat::new(memory, columns), Mat::new(grad_out, columns));

    let attention = product(q, x.t());
    let prior = product(q, s0);
    // dP = dO Vᵀ, where P = QXᵀ ⊙ m.
    let mut grad_attention = product(grad_o, v.t());
    // Rows not yet written have weight 0 at that time and before, so what lands on them here goes nowhere.
    let grad_m: Vec<F> = grad_attention.iter().zip(&attention).map(|(g, a)| *g * *a).collect();
    mask(&mut grad_attention, segment, &weights);
    let mut masked = attention;
    mask(&mut masked, segment, &weights);

    let final_x = product(x, Mat::new(adjoint, columns));
    let grad_last: Vec<F> = (0..rows).map(|r| dot(&final_x[row(r, columns)], segment.v_row(r))).collect();
    weights_backward(
        segment,
        &weights,
        grad,
        |step| {
            let read = dot(&prior[row(step, columns)], &grad_out[row(step, columns)]);
            (read, &grad_m[row(step, rows)])
        },
        (dot(memory, adjoint), &grad_last),
    );

    matmul(&mut grad.q, F::one(), Mat::new(&grad_attention, rows), x);
    let reads = scaled_rows(grad_out, columns, |i| weights.c[segment.read_time(i)]);
    matmul(&mut grad.q, F::one(), Mat::new(&reads, columns), s0.t());

    matmul(&mut grad.x, F::one(), Mat::new(&grad_attention, rows).t(), q);
    let weighted = scaled_rows(&segment.v, columns, |r| weights.last(segment)[r]);
    matmul(&mut grad.x, F::one(), Mat::new(&weighted, columns), Mat::new(adjoint, columns).t());

    matmul(&mut grad.v, F::one(), Mat::new(&masked, rows).t(), grad_o);
    add(&mut grad.v, &scaled_rows(&final_x, columns, |r| weights.last(segment)[r]));

    matmul(adjoint, weights.c[steps], Mat::new(&segment.q, dim_k).t(), Mat::new(&reads, columns));
}

/// `m_{t+1} = γ m_t + w` backwards. `read(i)` gives the gradients of `c` and `m` from the read of step `i`, `last`
/// those from the final memory.
fn weights_backward<'a, F: Real>(
    segment: &Segment<F>,
    weights: &Weights<F>,
    grad: &mut SegmentGrad<F>,
    read: impl Fn(usize) -> (F, &'a [F]),
    last: (F, &[F]),
) {
    let rows = segment.rows();
    let (mut grad_c, mut grad_m) = (last.0, last.1.to_vec());
    for step in (0..segment.steps).rev() {
        if let Some(reader) = segment.reader(step + 1) {
            let (c, m) = read(reader);
            grad_c += c;
            add(&mut grad_m, m);
        }
        grad.write[step] += segment.window(step).map(|r| grad_m[r]).sum();
        let before = &weights.m[row(step, rows)];
        grad.gamma[step] += grad_c * weights.c[step] + dot(&grad_m, before);
        let gamma = segment.gamma[step];
        grad_c *= gamma;
        grad_m.iter_mut().for_each(|g| *g *= gamma);
    }
}

/// `P = A ⊙ m_τ`, by selection: what is not yet written is 0, not something times 0.
fn mask<F: Real>(attention: &mut [F], segment: &Segment<F>, weights: &Weights<F>) {
    let rows = segment.rows();
    for step in 0..segment.steps {
        let written = segment.tail + segment.read_time(step);
        let line = &mut attention[row(step, rows)];
        for (a, m) in line[..written].iter_mut().zip(weights.read(segment, step)) {
            *a *= *m;
        }
        line[written..].fill(F::zero());
    }
}

fn matrices<F: Real>(segment: &Segment<F>) -> (Mat<'_, F>, Mat<'_, F>, Mat<'_, F>) {
    let Segment { q, x, v, dim_k, columns, .. } = segment;
    (Mat::new(q, *dim_k), Mat::new(x, *dim_k), Mat::new(v, *columns))
}
