//! A diagonal state-space model, discretised over steps of length `Δ`.
//!
//! ```text
//! h_t = e^{Δa} h_{t−1} + φ (B_t x_t)        o_t = C_tᵀ h_t
//! φ = (e^{Δa} − 1)/a   zero-order hold, with the limit Δ at a = 0
//!   = Δ                first order
//! ```
//!
//! `a` and `h` have one number per state channel, `φ` acts on each.

use super::{SolverError, length, positive};
use crate::Real;
use crate::real::{axpy, dot};
use crate::state::row;

/// How the input enters the state during a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The input is constant during the step, which is then exact.
    ZeroOrderHold,
    /// `φ = Δ`.
    First,
}

/// One head of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, F> {
    /// Inputs `[tokens, dim_in]`.
    pub x: &'a [F],
    /// The diagonal `a`, `[channels]`.
    pub a: &'a [F],
    /// `B`, `[tokens, channels, dim_in]`.
    pub b: &'a [F],
    /// `C`, `[tokens, channels, dim_out]`.
    pub c: &'a [F],
    /// Step lengths `Δ ≥ 0`, `[tokens]`.
    pub dt: &'a [F],
    /// `h_0`, `[channels]`.
    pub state: &'a [F],
    /// Width of an input.
    pub dim_in: usize,
    /// Width of an output.
    pub dim_out: usize,
    /// The discretisation.
    pub order: Order,
}

/// The results of [`forward`], or, for [`backward`], their gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs<F> {
    /// `[tokens, dim_out]`.
    pub out: Vec<F>,
    /// `h_T`, `[channels]`.
    pub state: Vec<F>,
}

/// The gradients of the inputs, each in the shape of its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Grads<F> {
    /// Of the inputs.
    pub x: Vec<F>,
    /// Of the diagonal.
    pub a: Vec<F>,
    /// Of `B`.
    pub b: Vec<F>,
    /// Of `C`.
    pub c: Vec<F>,
    /// Of the step lengths.
    pub dt: Vec<F>,
    /// Of `h_0`.
    pub state: Vec<F>,
}

impl<F: Real> Inputs<'_, F> {
    /// Checks that the slices fit each other and that no step is negative; returns the number of tokens.
    fn check(&self) -> Result<usize, SolverError> {
        let Self { x, a, b, c, dt, state, dim_in, dim_out, .. } = *self;
        let (tokens, channels) = (dt.len(), a.len());
        positive("channels", channels)?;
        positive("dim_in", dim_in)?;
        positive("dim_out", dim_out)?;
        length("x", x, tokens.checked_mul(dim_in))?;
        length("b", b, tokens.checked_mul(channels).and_then(|size| size.checked_mul(dim_in)))?;
        length("c", c, tokens.checked_mul(channels).and_then(|size| size.checked_mul(dim_out)))?;
        length("state", state, Some(channels))?;
        match dt.iter().position(|dt| !(*dt >= F::zero() && dt.is_finite())) {
            None => Ok(tokens),
            Some(index) => {
                let (tensor, value, allowed) = ("dt", dt[index].wide(), "finite and at least 0");
                Err(SolverError::Range { tensor, index: Some(index), value, allowed })
            }
        }
    }
}

/// `e^{Δa}`, `φ`, and `∂φ/∂Δ`, `∂φ/∂a`.
struct Discrete<F> {
    decay: F,
    phi: F,
    phi_dt: F,
    phi_a: F,
}

impl<F: Real> Discrete<F> {
    fn new(order: Order, dt: F, a: F) -> Self {
        let z = dt * a;
        let decay = z.exp();
        match order {
            Order::First => Self { decay, phi: dt, phi_dt: F::one(), phi_a: F::zero() },
            Order::ZeroOrderHold => {
                // φ = Δ·ψ(z), ψ(z) = (e^z − 1)/z.
                let psi = if z == F::zero() { F::one() } else { z.exp_m1() / z };
                Self { decay, phi: dt * psi, phi_dt: decay, phi_a: dt * dt * psi_slope(z, decay, psi) }
            }
        }
    }
}

/// `ψ'(z) = (e^z − ψ)/z = Σ_k (k+1)/(k+2)! z^k`. The quotient cancels near 0, the series does not.
fn psi_slope<F: Real>(z: F, exp: F, psi: F) -> F {
    if z.abs() > F::one() {
        return (exp - psi) / z;
    }
    // 20 terms; the next one is below 1e-20 for |z| ≤ 1. Horner's rule starts from the last term, and each term is a
    // multiple of the one before.
    let mut sum = F::zero();
    for k in (0..20).rev() {
        let k = f64::from(k);
        // Term k+1 is (k+2)/((k+1)(k+3)) z times term k.
        sum = F::one() + sum * z * F::of((k + 2.0) / ((k + 1.0) * (k + 3.0)));
    }
    sum * F::of(0.5)
}

/// Runs the recurrence of the [module](self).
pub fn forward<F: Real>(inputs: &Inputs<'_, F>) -> Result<Outputs<F>, SolverError> {
    inputs.check()?;
    let (out, mut states) = run(inputs);
    let state = states.split_off(states.len() - inputs.a.len());
    Ok(Outputs { out, state })
}

/// The outputs, and the states `h_0, …, h_T`.
fn run<F: Real>(inputs: &Inputs<'_, F>) -> (Vec<F>, Vec<F>) {
    let &Inputs { x, a, b, c, dt, dim_in, dim_out, order, .. } = inputs;
    let channels = a.len();
    let mut out = vec![F::zero(); dt.len() * dim_out];
    let mut states = inputs.state.to_vec();
    for t in 0..dt.len() {
        for i in 0..channels {
            let Discrete { decay, phi, .. } = Discrete::new(order, dt[t], a[i]);
            let input = dot(&b[row(t * channels + i, dim_in)], &x[row(t, dim_in)]);
            let h = decay * states[t * channels + i] + phi * input;
            states.push(h);
            axpy(&mut out[row(t, dim_out)], h, &c[row(t * channels + i, dim_out)]);
        }
    }
    (out, states)
}

/// Adjoint of [`forward`]. With `δ = dh` after a step and `u = B x`, channel by channel:
///
/// ```text
/// δ += C do       dC = h doᵀ      du = φ δ      dB = du xᵀ      dx = Bᵀ du
/// dΔ = δ (a e^{Δa} h_{t−1} + ∂φ/∂Δ u)           da += δ (Δ e^{Δa} h_{t−1} + ∂φ/∂a u)
/// δ ← e^{Δa} δ
/// ```
pub fn backward<F: Real>(inputs: &Inputs<'_, F>, upstream: &Outputs<F>) -> Result<Grads<F>, SolverError> {
    let tokens = inputs.check()?;
    let &Inputs { x, a, b, c, dt, dim_in, dim_out, order, .. } = inputs;
    length("the gradient of out", &upstream.out, tokens.checked_mul(dim_out))?;
    length("the gradient of state", &upstream.state, Some(a.len()))?;
    let channels = a.len();
    let (_, states) = run(inputs);
    let zeros = |like: &[F]| vec![F::zero(); like.len()];
    let mut grads =
        Grads { x: zeros(x), a: zeros(a), b: zeros(b), c: zeros(c), dt: zeros(dt), state: upstream.state.clone() };
    for t in (0..tokens).rev() {
        let upstream = &upstream.out[row(t, dim_out)];
        for i in 0..channels {
            let Discrete { decay, phi, phi_dt, phi_a } = Discrete::new(order, dt[t], a[i]);
            let (before, after) = (states[t * channels + i], states[(t + 1) * channels + i]);
            let (b_row, c_row) = (row(t * channels + i, dim_in), row(t * channels + i, dim_out));
            let grad_h = grads.state[i] + dot(&c[c_row.clone()], upstream);
            axpy(&mut grads.c[c_row], after, upstream);
            let input = dot(&b[b_row.clone()], &x[row(t, dim_in)]);
            axpy(&mut grads.b[b_row.clone()], phi * grad_h, &x[row(t, dim_in)]);
            axpy(&mut grads.x[row(t, dim_in)], phi * grad_h, &b[b_row]);
            grads.dt[t] += grad_h * (a[i] * decay * before + phi_dt * input);
            grads.a[i] += grad_h * (dt[t] * decay * before + phi_a * input);
            grads.state[i] = decay * grad_h;
        }
    }
    Ok(grads)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_gradient, dot, numbers};
    use super::*;

    const TOKENS: usize = 6;
    const CHANNELS: usize = 4;
    const IN: usize = 2;
    const OUT: usize = 3;

    fn inputs(order: Order, data: &[f64]) -> Inputs<'_, f64> {
        let (x, rest) = data.split_at(TOKENS * IN);
        let (a, rest) = rest.split_at(CHANNELS);
        let (b, rest) = rest.split_at(TOKENS * CHANNELS * IN);
        let (c, rest) = rest.split_at(TOKENS * CHANNELS * OUT);
        let (dt, state) = rest.split_at(TOKENS);
        Inputs { x, a, b, c, dt, state, dim_in: IN, dim_out: OUT, order }
    }

    /// Channels that decay, stand still, nearly stand still, and grow.
    fn data() -> Vec<f64> {
        let dt: Vec<f64> = numbers(7, TOKENS).iter().map(|x| 0.2 + x.abs()).collect();
        [
            numbers(5, TOKENS * IN),
            vec![-1.5, 0.0, -1e-9, 0.8],
            numbers(6, TOKENS * CHANNELS * (IN + OUT)),
            dt,
            numbers(8, CHANNELS),
        ]
        .concat()
    }

    #[test]
    fn gradients_match_differences() {
        let data = data();
        let upstream = Outputs { out: numbers(9, TOKENS * OUT), state: numbers(10, CHANNELS) };
        for order in [Order::ZeroOrderHold, Order::First] {
            let loss = |data: &[f64]| {
                let found = forward(&inputs(order, data)).unwrap();
                dot(&found.out, &upstream.out) + dot(&found.state, &upstream.state)
            };
            let found = backward(&inputs(order, &data), &upstream).unwrap();
            let grads = [found.x, found.a, found.b, found.c, found.dt, found.state].concat();
            check_gradient(&format!("{order:?}"), &data, &grads, loss);
        }
    }

    /// Two half steps with the input held are one whole step: only zero-order hold has this.
    #[test]
    fn holding_is_exact() {
        let (a, x) = ([-0.9, 0.0, 1e-12, 2.0], [0.4, -1.0]);
        let run = |parts: usize| {
            let repeat = |data: &[f64]| data.repeat(parts);
            let (b, c) = (repeat(&numbers(11, CHANNELS * IN)), repeat(&numbers(12, CHANNELS * OUT)));
            let (x, dt, state) = (repeat(&x), vec![1.5 / parts as f64; parts], [1.0, 2.0, -1.0, 0.5]);
            let order = Order::ZeroOrderHold;
            let inputs =
                Inputs { x: &x, a: &a, b: &b, c: &c, dt: &dt, state: &state, dim_in: IN, dim_out: OUT, order };
            forward(&inputs).unwrap().state
        };
        for (once, often) in run(1).into_iter().zip(run(8)) {
            assert!((once - often).abs() <= 1e-13 * once.abs().max(1.0), "{once} {often}");
        }
    }

    #[test]
    fn the_slope_is_smooth_where_the_formula_changes() {
        let slope = |z: f64| psi_slope(z, z.exp(), z.exp_m1() / z);
        for z in [1.0f64, -1.0] {
            // ψ'(±1) in closed form: 1, and 1 − 2/e.
            let expected = if z > 0.0 { 1.0 } else { 1.0 - 2.0 * (-1f64).exp() };
            for z in [z, z * (1.0 + 1e-12)] {
                assert!((slope(z) - expected).abs() < 1e-11, "{z}: {}", slope(z));
            }
        }
        assert_eq!(psi_slope(0.0, 1.0, 1.0), 0.5);
        assert!((slope(1e-7) - (0.5 + 1e-7 / 3.0)).abs() < 1e-14);
    }

    #[test]
    fn bad_inputs_are_named() {
        let data = data();
        let good = inputs(Order::First, &data);
        let message = |inputs: Inputs<'_, f64>| forward(&inputs).unwrap_err().to_string();
        let dt = [0.1, -0.5, 0.1, 0.1, 0.1, 0.1];
        assert_eq!(message(Inputs { dt: &dt, ..good }), "dt[1] is -0.5: it must be finite and at least 0");
        assert!(message(Inputs { b: &good.b[1..], ..good }).starts_with("b has 47 elements"));
        assert_eq!(message(Inputs { a: &[], ..good }), "channels must be at least 1, got 0");
    }
}
