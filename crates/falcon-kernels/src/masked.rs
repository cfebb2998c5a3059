//! The masked form: the whole segment as one product like attention, in O(T²). For reading and for testing.
//!
//! Every step `i` writes `x_j z_{j,i}ᵀ` for each pair `j` of its window. Let `a = (i, j)` index these writes, and let
//! `D[t][s] = Π_{s ≤ r < t} γ_r` be the fraction of the memory at time `s` that remains at time `t`. Then
//!
//! ```text
//! z_a = w_i v_j − e_i ( D[i][0] S₀ᵀx_a + Σ_{b before a} D[i][i_b+1] (x_a·x_b) z_b )     a triangular system
//! o_t = D[τ][0] S₀ᵀq_t + Σ_{a by time τ} D[τ][i_a+1] (q_t·x_a) z_a                      masked attention
//! S_T = D[T][0] S₀ + Σ_a D[T][i_a+1] x_a z_aᵀ
//! ```
//!
//! The columns are computed one by one, because with per-column gains every column has its own mask.

use crate::Real;
use crate::real::{axpy, dot};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;
use crate::step::{apply, outer, read};

/// The write of the pair in `row` at `step`.
#[derive(Clone, Copy)]
struct Write {
    step: usize,
    row: usize,
}

/// The products that all columns share.
struct Products<F> {
    writes: Vec<Write>,
    /// `x_a · x_b`.
    gram: Vec<F>,
    /// `q_t · x_a`, `[steps, writes]`.
    attention: Vec<F>,
    /// `S₀ᵀ x_a`, `[writes, columns]`.
    prior_x: Vec<F>,
    /// `S₀ᵀ q_t`, `[steps, columns]`.
    prior_q: Vec<F>,
}

impl<F: Real> Products<F> {
    fn new(segment: &Segment<F>, memory: &[F]) -> Self {
        let writes: Vec<Write> =
            (0..segment.steps).flat_map(|step| segment.window(step).map(move |row| Write { step, row })).collect();
        let key = |write: &Write| segment.x_row(write.row);
        let gram = writes.iter().flat_map(|a| writes.iter().map(|b| dot(key(a), key(b)))).collect();
        let queries = 0..segment.steps;
        let attention =
            queries.clone().flat_map(|t| writes.iter().map(move |a| dot(segment.q_row(t), key(a)))).collect();
        let mut prior_x = vec![F::zero(); writes.len() * segment.columns];
        for (a, write) in writes.iter().enumerate() {
            read(memory, key(write), &mut prior_x[row(a, segment.columns)]);
        }
        let mut prior_q = vec![F::zero(); segment.steps * segment.columns];
        for t in queries {
            read(memory, segment.q_row(t), &mut prior_q[row(t, segment.columns)]);
        }
        Self { writes, gram, attention, prior_x, prior_q }
    }

    /// `z_a` for one column, by forward substitution.
    fn solve(&self, segment: &Segment<F>, column: usize, decay: &Decays<F>) -> Vec<F> {
        let count = self.writes.len();
        let mut z = vec![F::zero(); count];
        for (a, &Write { step, row }) in self.writes.iter().enumerate() {
            let mut p = decay.at(step, 0) * self.prior_x[a * segment.columns + column];
            for (b, earlier) in self.writes[..a].iter().enumerate() {
                if earlier.step < step {
                    p += decay.at(step, earlier.step + 1) * self.gram[a * count + b] * z[b];
                }
            }
            let (write, erase) =
                (segment.gain(&segment.write, step, column), segment.gain(&segment.erase, step, column));
            z[a] = write * segment.v_row(row)[column] - erase * p;
        }
        z
    }
}

/// `D[t][s]`, as products, because sums of logarithms would cancel.
struct Decays<F> {
    times: usize,
    product: Vec<F>,
}

impl<F: Real> Decays<F> {
    fn new(segment: &Segment<F>, column: usize) -> Self {
        let times = segment.steps + 1;
        let mut product = vec![F::zero(); times * times];
        for s in 0..times {
            product[s * times + s] = F::one();
            for t in s + 1..times {
                product[t * times + s] =
                    segment.gain(&segment.gamma, t - 1, column) * product[(t - 1) * times + s];
            }
        }
        Self { times, product }
    }

    fn at(&self, t: usize, s: usize) -> F {
        self.product[t * self.times + s]
    }

    /// Adjoint of `D[t][s] = γ_{t−1} D[t−1][s]`: from the gradients of `D` (in `grad`, which is overwritten) to those
    /// of `γ`.
    fn backward(&self, segment: &Segment<F>, column: usize, grad: &mut [F], grad_gamma: &mut [F]) {
        for s in 0..self.times {
            for t in (s + 1..self.times).rev() {
                let outer = grad[t * self.times + s];
                SegmentGrad::add_gain(grad_gamma, segment, t - 1, column, outer * self.at(t - 1, s));
                grad[(t - 1) * self.times + s] += outer * segment.gain(&segment.gamma, t - 1, column);
            }
        }
    }
}

/// The same as [`crate::recurrent::forward`].
pub(crate) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F]) {
    let columns = segment.columns;
    let products = Products::new(segment, memory);
    let count = products.writes.len();
    let mut decay = Decays::new(segment, 0);
    for c in 0..columns {
        if segment.each_column {
            decay = Decays::new(segment, c);
        }
        let z = products.solve(segment, c, &decay);
        for t in 0..segment.steps {
            let time = segment.read_time(t);
            let mut o = decay.at(time, 0) * products.prior_q[t * columns + c];
            for (a, write) in products.writes.iter().enumerate() {
                if write.step < time {
                    o += decay.at(time, write.step + 1) * products.attention[t * count + a] * z[a];
                }
            }
            out[t * columns + c] = o;
        }
        for k in 0..segment.dim_k {
            let entry = &mut memory[k * columns + c];
            *entry *= decay.at(segment.steps, 0);
            for (a, write) in products.writes.iter().enumerate() {
                *entry += decay.at(segment.steps, write.step + 1) * segment.x_row(write.row)[k] * z[a];
            }
        }
    }
}

/// The same as [`crate::recurrent::backward`]. Once `g = (I + T)⁻ᵀ dz`, the gradient of the right-hand side of the
/// triangular system, is known, all other gradients are those of products.
pub(crate) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
) {
    let (columns, dim_k, steps) = (segment.columns, segment.dim_k, segment.steps);
    grad.clear_rows();
    let products = Products::new(segment, memory);
    let writes = &products.writes;
    let count = writes.len();
    // Gradients of the products that all columns share, summed over columns.
    let mut grad_gram = vec![F::zero(); count * count];
    let mut grad_attention = vec![F::zero(); steps * count];
    let mut grad_prior_x = vec![F::zero(); count * columns];
    let mut grad_prior_q = vec![F::zero(); steps * columns];
    // What remains of each write in the final memory, `[writes, columns]`.
    let mut left = vec![F::zero(); count * columns];

    let mut decay = Decays::new(segment, 0);
    for c in 0..columns {
        if segment.each_column {
            decay = Decays::new(segment, c);
        }
        let z = products.solve(segment, c, &decay);
        let final_adjoint: Vec<F> = (0..dim_k).map(|k| adjoint[k * columns + c]).collect();
        let mut grad_decay = vec![F::zero(); decay.times * decay.times];
        let mut g = vec![F::zero(); count];
        for a in (0..count).rev() {
            let Write { step, row: r } = writes[a];
            let landed = step + 1;
            let along = dot(segment.x_row(r), &final_adjoint);
            g[a] = decay.at(steps, landed) * along;
            grad_decay[steps * decay.times + landed] += along * z[a];
            left[a * columns + c] = decay.at(steps, landed) * z[a];
            for t in 0..steps {
                let time = segment.read_time(t);
                if step < time {
                    let (d, attention) = (decay.at(time, landed), products.attention[t * count + a]);
                    let grad_o = grad_out[t * columns + c];
                    g[a] += d * attention * grad_o;
                    grad_decay[time * decay.times + landed] += attention * grad_o * z[a];
                    grad_attention[t * count + a] += d * grad_o * z[a];
                }
            }
            for b in a + 1..count {
                let later = writes[b].step;
                if step < later {
                    let (d, gram) = (decay.at(later, landed), products.gram[b * count + a]);
                    let erased = segment.gain(&segment.erase, later, c) * g[b];
                    g[a] -= d * gram * erased;
                    grad_decay[later * decay.times + landed] -= gram * erased * z[a];
                    grad_gram[b * count + a] -= d * erased * z[a];
                    SegmentGrad::add_gain(&mut grad.erase, segment, later, c, -g[b] * d * gram * z[a]);
                }
            }
            // Gradients of the right-hand side w v − e D S₀ᵀx.
            let (write, erase) = (segment.gain(&segment.write, step, c), segment.gain(&segment.erase, step, c));
            let (d, prior) = (decay.at(step, 0), products.prior_x[a * columns + c]);
            grad.v[r * columns + c] += write * g[a];
            SegmentGrad::add_gain(&mut grad.write, segment, step, c, g[a] * segment.v_row(r)[c]);
            SegmentGrad::add_gain(&mut grad.erase, segment, step, c, -g[a] * d * prior);
            grad_decay[step * decay.times] -= g[a] * erase * prior;
            grad_prior_x[a * columns + c] = -g[a] * erase * d;
        }
        for t in 0..steps {
            let time = segment.read_time(t);
            grad_prior_q[t * columns + c] = decay.at(time, 0) * grad_out[t * columns + c];
            grad_decay[time * decay.times] += grad_out[t * columns + c] * products.prior_q[t * columns + c];
        }
        for k in 0..dim_k {
            grad_decay[steps * decay.times] += final_adjoint[k] * memory[k * columns + c];
        }
        decay.backward(segment, c, &mut grad_decay, &mut grad.gamma);
    }

    let (grad_q, grad_x) = grad.qx.split_at_mut(steps * dim_k);
    for (a, write) in writes.iter().enumerate() {
        let grad_x = &mut grad_x[row(write.row, dim_k)];
        apply(grad_x, F::one(), adjoint, &left[row(a, columns)]);
        apply(grad_x, F::one(), memory, &grad_prior_x[row(a, columns)]);
        for (b, other) in writes.iter().enumerate() {
            axpy(grad_x, grad_gram[a * count + b] + grad_gram[b * count + a], segment.x_row(other.row));
        }
        for t in 0..steps {
            axpy(grad_x, grad_attention[t * count + a], segment.q_row(t));
            axpy(&mut grad_q[row(t, dim_k)], grad_attention[t * count + a], segment.x_row(write.row));
        }
    }
    for t in 0..steps {
        apply(&mut grad_q[row(t, dim_k)], F::one(), memory, &grad_prior_q[row(t, columns)]);
    }
    for k in 0..dim_k {
        for c in 0..columns {
            adjoint[k * columns + c] *= (0..steps).fold(F::one(), |d, t| d * segment.gain(&segment.gamma, t, c));
        }
    }
    for (a, write) in writes.iter().enumerate() {
        outer(adjoint, F::one(), segment.x_row(write.row), &grad_prior_x[row(a, columns)]);
    }
    for t in 0..steps {
        outer(adjoint, F::one(), segment.q_row(t), &grad_prior_q[row(t, columns)]);
    }
}
