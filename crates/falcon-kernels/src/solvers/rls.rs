//! Recursive least squares: the exact ridge regression over all pairs so far, updated one pair at a time.
//!
//! ```text
//! P_0 = I/λ      p = P x      s = 1 + xᵀp      g = p/s
//! P ← P − g pᵀ   S ← S + g (v − Sᵀx)ᵀ          o = Sᵀq
//! ```
//!
//! From `S_0 = 0`, `S_T` minimises `λ‖S‖² + Σ_t ‖v_t − Sᵀx_t‖²`. A step costs `O(dim_k² + dim_k·dim_v)`. A zero key
//! writes nothing.

use super::{SolverError, length, positive};
use crate::Real;
use crate::real::{add, axpy, dot};
use crate::state::row;

/// One head of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, F> {
    /// Queries `[tokens, dim_k]`.
    pub q: &'a [F],
    /// Keys that are written `[tokens, dim_k]`.
    pub x: &'a [F],
    /// Values `[tokens, dim_v]`.
    pub v: &'a [F],
    /// The ridge `λ > 0`.
    pub lambda: F,
    /// `S_0`, `[dim_k, dim_v]`.
    pub memory: &'a [F],
    /// Width of a key.
    pub dim_k: usize,
    /// Width of a value.
    pub dim_v: usize,
}

/// The results of [`forward`], or, for [`backward`], their gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs<F> {
    /// Reads `[tokens, dim_v]`.
    pub out: Vec<F>,
    /// `S_T`, `[dim_k, dim_v]`.
    pub memory: Vec<F>,
    /// `P_T`, `[dim_k, dim_k]`: the inverse of `λI + Σ x xᵀ`.
    pub covariance: Vec<F>,
}

/// The gradients of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Grads<F> {
    /// `[tokens, dim_k]`.
    pub q: Vec<F>,
    /// `[tokens, dim_k]`.
    pub x: Vec<F>,
    /// `[tokens, dim_v]`.
    pub v: Vec<F>,
    /// Of the ridge.
    pub lambda: F,
    /// Of `S_0`.
    pub memory: Vec<F>,
}

impl<F: Real> Inputs<'_, F> {
    /// Checks that the slices fit each other and that the ridge is positive; returns the number of tokens.
    fn check(&self) -> Result<usize, SolverError> {
        let Self { q, x, v, lambda, memory, dim_k, dim_v } = *self;
        positive("dim_k", dim_k)?;
        positive("dim_v", dim_v)?;
        let tokens = q.len() / dim_k;
        length("q", q, tokens.checked_mul(dim_k))?;
        length("x", x, Some(q.len()))?;
        length("v", v, tokens.checked_mul(dim_v))?;
        length("memory", memory, dim_k.checked_mul(dim_v))?;
        if !(lambda > F::zero() && lambda.is_finite()) {
            let (tensor, value, allowed) = ("lambda", lambda.wide(), "finite and greater than 0");
            return Err(SolverError::Range { tensor, index: None, value, allowed });
        }
        Ok(tokens)
    }
}

/// The two matrices, and the vectors of the latest step.
#[derive(Clone)]
struct Solver<F> {
    memory: Vec<F>,
    covariance: Vec<F>,
    /// `P x` before the step.
    p: Vec<F>,
    /// `v − Sᵀx` before the step.
    residual: Vec<F>,
    /// `1 + xᵀPx`.
    s: F,
}

impl<F: Real> Solver<F> {
    fn new(inputs: &Inputs<'_, F>) -> Self {
        let dim_k = inputs.dim_k;
        let mut covariance = vec![F::zero(); dim_k * dim_k];
        for i in 0..dim_k {
            covariance[i * dim_k + i] = inputs.lambda.recip();
        }
        let (p, residual) = (vec![F::zero(); dim_k], vec![F::zero(); inputs.dim_v]);
        Self { memory: inputs.memory.to_vec(), covariance, p, residual, s: F::one() }
    }

    /// `p`, `s` and the residual of a pair.
    fn look(&mut self, x: &[F], v: &[F]) {
        let (dim_k, dim_v) = (x.len(), v.len());
        for i in 0..dim_k {
            self.p[i] = dot(&self.covariance[row(i, dim_k)], x);
        }
        self.s = F::one() + dot(x, &self.p);
        self.residual.copy_from_slice(v);
        for (i, x) in x.iter().enumerate() {
            axpy(&mut self.residual, -*x, &self.memory[row(i, dim_v)]);
        }
    }

    fn step(&mut self, x: &[F], v: &[F]) {
        self.look(x, v);
        let (dim_k, dim_v) = (x.len(), v.len());
        for i in 0..dim_k {
            axpy(&mut self.memory[row(i, dim_v)], self.p[i] / self.s, &self.residual);
            for j in 0..dim_k {
                // In this order of multiplication P stays exactly symmetric.
                self.covariance[i * dim_k + j] -= self.p[i] * self.p[j] / self.s;
            }
        }
    }

    fn read(&self, q: &[F], out: &mut [F]) {
        for (i, q) in q.iter().enumerate() {
            axpy(out, *q, &self.memory[row(i, out.len())]);
        }
    }
}

/// Runs the recursion of the [module](self).
pub fn forward<F: Real>(inputs: &Inputs<'_, F>) -> Result<Outputs<F>, SolverError> {
    let tokens = inputs.check()?;
    let &Inputs { q, x, v, dim_k, dim_v, .. } = inputs;
    let mut solver = Solver::new(inputs);
    let mut out = vec![F::zero(); v.len()];
    for t in 0..tokens {
        solver.step(&x[row(t, dim_k)], &v[row(t, dim_v)]);
        solver.read(&q[row(t, dim_k)], &mut out[row(t, dim_v)]);
    }
    Ok(Outputs { out, memory: solver.memory, covariance: solver.covariance })
}

/// Adjoint of [`forward`]. With `Λ = dS`, `Π = dP` after a step, and `r` its residual:
///
/// ```text
/// Λ += q doᵀ      dq = S do
/// dg = Λr − Πp    dr = Λᵀg     dv = dr
/// ds = −(dg·g)/s  dp = dg/s − Πᵀg + ds x
/// dx = −S dr + ds p + P dp
/// Λ ← Λ − x drᵀ   Π ← Π + dp xᵀ                 and at the start   dλ = −tr Π / λ²
/// ```
///
/// The matrices of every `√tokens`-th step are saved, and the others are computed again.
pub fn backward<F: Real>(inputs: &Inputs<'_, F>, upstream: &Outputs<F>) -> Result<Grads<F>, SolverError> {
    let tokens = inputs.check()?;
    let &Inputs { q, x, v, lambda, dim_k, dim_v, .. } = inputs;
    length("the gradient of out", &upstream.out, Some(v.len()))?;
    length("the gradient of memory", &upstream.memory, Some(inputs.memory.len()))?;
    length("the gradient of covariance", &upstream.covariance, dim_k.checked_mul(dim_k))?;
    let zeros = |like: &[F]| vec![F::zero(); like.len()];
    let mut grads =
        Grads { q: zeros(q), x: zeros(x), v: zeros(v), lambda: F::zero(), memory: upstream.memory.clone() };
    let mut grad_covariance = upstream.covariance.clone();

    let stretch = tokens.isqrt().max(1);
    let mut solver = Solver::new(inputs);
    let mut starts = Vec::new();
    for t in 0..tokens {
        if t % stretch == 0 {
            starts.push(solver.clone());
        }
        solver.step(&x[row(t, dim_k)], &v[row(t, dim_v)]);
    }
    for (start, mut solver) in starts.into_iter().enumerate().rev() {
        let steps = start * stretch..((start + 1) * stretch).min(tokens);
        let mut befores = Vec::with_capacity(steps.len() + 1);
        for t in steps.clone() {
            befores.push(solver.clone());
            solver.step(&x[row(t, dim_k)], &v[row(t, dim_v)]);
        }
        let mut after = solver;
        for t in steps.rev() {
            let Some(mut before) = befores.pop() else { break };
            let upstream = &upstream.out[row(t, dim_v)];
            for i in 0..dim_k {
                grads.q[t * dim_k + i] = dot(&after.memory[row(i, dim_v)], upstream);
                axpy(&mut grads.memory[row(i, dim_v)], q[t * dim_k + i], upstream);
            }
            before.look(&x[row(t, dim_k)], &v[row(t, dim_v)]);
            step_backward(&before, &x[row(t, dim_k)], t, &mut grads, &mut grad_covariance);
            after = before;
        }
    }
    let trace: F = (0..dim_k).map(|i| grad_covariance[i * dim_k + i]).sum();
    grads.lambda = -(trace / lambda) / lambda;
    Ok(grads)
}

/// The adjoint of the write at `t`, given the matrices `before` it with the vectors of its pair.
fn step_backward<F: Real>(before: &Solver<F>, x: &[F], t: usize, grads: &mut Grads<F>, grad_covariance: &mut [F]) {
    let Solver { memory, covariance, p, residual, s } = before;
    let (dim_k, dim_v, s) = (x.len(), residual.len(), *s);
    let g: Vec<F> = p.iter().map(|p| *p / s).collect();
    let (mut grad_g, mut grad_p) = (vec![F::zero(); dim_k], vec![F::zero(); dim_k]);
    let mut grad_r = vec![F::zero(); dim_v];
    for i in 0..dim_k {
        let (of_memory, of_covariance) = (&grads.memory[row(i, dim_v)], &grad_covariance[row(i, dim_k)]);
        grad_g[i] = dot(of_memory, residual) - dot(of_covariance, p);
        axpy(&mut grad_r, g[i], of_memory);
        axpy(&mut grad_p, -g[i], of_covariance);
    }
    let grad_s = -dot(&grad_g, &g) / s;
    for i in 0..dim_k {
        grad_p[i] += grad_g[i] / s + grad_s * x[i];
    }
    for i in 0..dim_k {
        grads.x[t * dim_k + i] =
            grad_s * p[i] + dot(&covariance[row(i, dim_k)], &grad_p) - dot(&memory[row(i, dim_v)], &grad_r);
        axpy(&mut grads.memory[row(i, dim_v)], -x[i], &grad_r);
        axpy(&mut grad_covariance[row(i, dim_k)], grad_p[i], x);
    }
    add(&mut grads.v[row(t, dim_v)], &grad_r);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_gradient, dot, numbers};
    use super::*;

    const SIZES: (usize, usize, usize) = (11, 3, 2);

    /// Numbers for every input in one vector, and the inputs they stand for.
    fn inputs(data: &[f64]) -> Inputs<'_, f64> {
        let (tokens, dim_k, dim_v) = SIZES;
        let (q, rest) = data.split_at(tokens * dim_k);
        let (x, rest) = rest.split_at(tokens * dim_k);
        let (v, rest) = rest.split_at(tokens * dim_v);
        let (memory, lambda) = rest.split_at(dim_k * dim_v);
        Inputs { q, x, v, lambda: lambda[0], memory, dim_k, dim_v }
    }

    fn data() -> Vec<f64> {
        let (tokens, dim_k, dim_v) = SIZES;
        let mut data = numbers(1, tokens * (2 * dim_k + dim_v) + dim_k * dim_v);
        data.push(0.7);
        data
    }

    #[test]
    fn the_memory_solves_the_normal_equations() {
        let (tokens, dim_k, dim_v) = SIZES;
        let data = data();
        let zero = vec![0.0; dim_k * dim_v];
        let inputs = Inputs { memory: &zero, ..inputs(&data) };
        let found = forward(&inputs).unwrap();
        // (λI + Σ x xᵀ) S = Σ x vᵀ, and the same matrix times P is I.
        for i in 0..dim_k {
            let gram = |j: usize| {
                let sum: f64 = (0..tokens).map(|t| inputs.x[t * dim_k + i] * inputs.x[t * dim_k + j]).sum();
                sum + if i == j { inputs.lambda } else { 0.0 }
            };
            for c in 0..dim_v {
                let left: f64 = (0..dim_k).map(|j| gram(j) * found.memory[j * dim_v + c]).sum();
                let right: f64 = (0..tokens).map(|t| inputs.x[t * dim_k + i] * inputs.v[t * dim_v + c]).sum();
                assert!((left - right).abs() < 1e-12, "S: {left} {right}");
            }
            for c in 0..dim_k {
                let unit: f64 = (0..dim_k).map(|j| gram(j) * found.covariance[j * dim_k + c]).sum();
                assert!((unit - f64::from(u8::from(i == c))).abs() < 1e-12, "P: {unit}");
            }
        }
    }

    #[test]
    fn gradients_match_differences() {
        let (tokens, dim_k, dim_v) = SIZES;
        let data = data();
        let upstream = Outputs {
            out: numbers(2, tokens * dim_v),
            memory: numbers(3, dim_k * dim_v),
            covariance: numbers(4, dim_k * dim_k),
        };
        let loss = |data: &[f64]| {
            let found = forward(&inputs(data)).unwrap();
            dot(&found.out, &upstream.out)
                + dot(&found.memory, &upstream.memory)
                + dot(&found.covariance, &upstream.covariance)
        };
        let found = backward(&inputs(&data), &upstream).unwrap();
        let grads = [found.q, found.x, found.v, found.memory, vec![found.lambda]].concat();
        check_gradient("q, x, v, S0, lambda", &data, &grads, loss);
    }

    #[test]
    fn a_zero_key_writes_nothing() {
        let memory = [0.5, -1.0];
        let inputs =
            Inputs { q: &[1.0], x: &[0.0], v: &[3.0, 4.0], lambda: 2.0, memory: &memory, dim_k: 1, dim_v: 2 };
        let found = forward(&inputs).unwrap();
        assert_eq!((found.out, found.memory, found.covariance), (memory.to_vec(), memory.to_vec(), vec![0.5]));
    }

    #[test]
    fn no_tokens_leave_the_start() {
        let inputs = Inputs { q: &[], x: &[], v: &[], lambda: 4.0, memory: &[1.0], dim_k: 1, dim_v: 1 };
        let upstream = Outputs { out: vec![], memory: vec![3.0], covariance: vec![2.0] };
        assert_eq!(forward(&inputs).unwrap(), Outputs { out: vec![], memory: vec![1.0], covariance: vec![0.25] });
        let grads = backward(&inputs, &upstream).unwrap();
        assert_eq!((grads.memory, grads.lambda), (vec![3.0], -2.0 / 16.0));
    }

    #[test]
    fn bad_inputs_are_named() {
        let data = data();
        let good = inputs(&data);
        let message = |inputs: Inputs<'_, f64>| forward(&inputs).unwrap_err().to_string();
        assert_eq!(message(Inputs { lambda: 0.0, ..good }), "lambda is 0: it must be finite and greater than 0");
        assert!(message(Inputs { lambda: f64::NAN, ..good }).contains("NaN"));
        assert!(message(Inputs { v: &good.v[1..], ..good }).starts_with("v has 21 elements"));
        let wide = message(Inputs { dim_v: usize::MAX, ..good });
        assert_eq!(wide, "v has 22 elements, its shape needs more than can be addressed");
        assert_eq!(message(Inputs { dim_k: 0, ..good }), "dim_k must be at least 1, got 0");
    }
}
