//! The coefficients of every step, from gains and decays, and the adjoint.
//!
//! ```text
//! E = ‖x‖²                       window 1
//!   = mean ‖x_j‖² over window    inner product, window > 1
//!   = λ_max(Σ x_j x_jᵀ) / B      regression, window > 1
//! λ = ridge, or ridge · E        η = β / (E + λ + ε), or given
//! γ = max(1 − ηλ, ε_γ), or given
//! w = η                          e = w, or γ w (decayed regression), or 0 (inner product)
//! ```
//!
//! The arrays `write` and `erase` of a segment are `w / B` and `e / B`, where `B` is the number of pairs in the window.

use crate::Real;
use crate::eigen::{LANES, Lanes, top_eigenpairs};
use crate::real::{add, axpy, dot, dot_f64, multiply, scale};
use crate::rule::{Decay, Gain, Objective, Rule};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;

/// What the coefficients are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Forward,
    /// Also compute what the gradient needs.
    Backward,
    /// For inspection: also compute the energy where the rule does not use it.
    Show,
}

/// The coefficients of a segment. `eta` and the `gamma` of the segment are per step, or per step and column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coefficients<F> {
    /// `β` or `η` as given, `[steps, width]`; empty for unit gains.
    pub gain: Vec<F>,
    /// `λ`, `λ̄` or `γ` as given; empty without decay.
    pub decay: Vec<F>,
    pub eta: Vec<F>,
    pub lambda: Vec<F>,
    pub energy: Vec<F>,
    /// `E + λ + ε`.
    denominator: Vec<F>,
    /// Leading eigenvector of the window of each step, `[steps, window]`; only for the gradient of windowed regression.
    top: Vec<f64>,
    /// `‖x_r‖²` of every row, for rules whose energy is a mean of them.
    squares: Vec<f64>,
    /// `x_r · x_{r−m}` for `m < window`, `[rows, window]`; only for windowed regression.
    band: Vec<f64>,
    /// Gram matrices of [`LANES`] windows, and their eigenvectors.
    grams: Vec<Lanes>,
    vectors: Vec<Lanes>,
    /// `Xᵀu` of one window.
    along: Vec<F>,
    width: usize,
}

impl<F: Real> Coefficients<F> {
    /// Fills `eta`, `lambda`, `energy` and the segment's `write`, `erase`, `gamma` from `gain` and `decay`.
    #[inline(always)]
    pub fn forward(&mut self, rule: &Rule, segment: &mut Segment<F>, purpose: Purpose) {
        let (steps, width) = (segment.steps, segment.gain_width());
        self.width = width;
        fill(&mut self.energy, steps, F::zero());
        fill(&mut self.lambda, steps, F::zero());
        fill(&mut self.denominator, steps, F::zero());
        fill(&mut self.eta, steps * width, F::zero());
        fill(&mut segment.gamma, steps * width, F::one());
        fill(&mut segment.write, steps * width, F::zero());
        fill(&mut segment.erase, steps * width, F::zero());
        if purpose == Purpose::Show || rule.uses_energy() {
            self.energies(rule, segment, purpose == Purpose::Backward);
        }
        for step in 0..steps {
            let pairs = segment.window(step).len();
            // The first token of a fresh sequence has no pair: η = 0 and γ = 1 for any ridge.
            if pairs == 0 {
                continue;
            }
            let lambda = match rule.decay {
                Decay::None | Decay::Gate => F::zero(),
                Decay::Ridge => self.decay[step],
                Decay::ScaledRidge { .. } => self.decay[step] * self.energy[step],
            };
            self.lambda[step] = lambda.min(huge());
            self.denominator[step] = self.energy[step] + self.lambda[step] + epsilon(rule);
            self.step_sizes(rule, segment, step);
            let here = row(step, width);
            let (eta, gamma) = (&self.eta[here.clone()], &segment.gamma[here.clone()]);
            let (write, erase) = (&mut segment.write[here.clone()], &mut segment.erase[here]);
            let share = F::one() / F::of(pairs as f64);
            for (write, eta) in write.iter_mut().zip(eta) {
                *write = share * *eta;
            }
            if rule.erases() {
                erase.copy_from_slice(write);
            }
            if rule.objective == Objective::DecayedRegression {
                multiply(erase, gamma);
            }
        }
    }

    /// `η` and `γ` of one step.
    #[inline(always)]
    fn step_sizes(&mut self, rule: &Rule, segment: &mut Segment<F>, step: usize) {
        let (lambda, denominator) = (self.lambda[step], self.denominator[step]);
        let here = row(step, self.width);
        let (eta, gamma) = (&mut self.eta[here.clone()], &mut segment.gamma[here.clone()]);
        match rule.gain {
            Gain::Unit => eta.fill(F::one()),
            Gain::Eta => eta.copy_from_slice(&self.gain[here.clone()]),
            // A zero denominator means a zero key, which writes nothing. One too small to divide by is treated as zero.
            Gain::Beta if vanishes(denominator) => {}
            Gain::Beta => {
                for (eta, beta) in eta.iter_mut().zip(&self.gain[here.clone()]) {
                    *eta = *beta / denominator;
                }
            }
        }
        match (rule.decay, rule.gain) {
            (Decay::None, _) => return,
            (Decay::Gate, _) => return gamma.copy_from_slice(&self.decay[here]),
            // 1 − βλ/(E + λ + ε), written without cancellation.
            (_, Gain::Beta) if !vanishes(denominator) => {
                let rest = self.energy[step] + epsilon(rule);
                for (gamma, beta) in gamma.iter_mut().zip(&self.gain[here]) {
                    *gamma = (rest + (F::one() - *beta) * lambda) / denominator;
                }
            }
            _ => {
                for (gamma, eta) in gamma.iter_mut().zip(eta) {
                    *gamma = F::one() - *eta * lambda;
                }
            }
        }
        if let Some(least) = rule.clamp.map(F::of) {
            for gamma in gamma {
                *gamma = if *gamma <= least { least } else { *gamma };
            }
        }
    }

    #[inline(always)]
    fn energies(&mut self, rule: &Rule, segment: &Segment<F>, gradient: bool) {
        if rule.window > 1 && rule.erases() {
            return self.curvatures(segment, gradient);
        }
        self.squares.clear();
        self.squares.extend((0..segment.rows()).map(|r| dot_f64(segment.x_row(r), segment.x_row(r))));
        for step in 0..segment.steps {
            let window = segment.window(step);
            let pairs = window.len();
            if pairs > 0 {
                let sum: f64 = self.squares[window].iter().sum();
                self.energy[step] = F::of(sum / pairs as f64).min(huge());
            }
        }
    }

    /// The largest eigenvalue of the Gram matrix of every window, divided by its pairs, for several windows at a time.
    /// With `gradient`, the eigenvectors too.
    #[inline(always)]
    fn curvatures(&mut self, segment: &Segment<F>, gradient: bool) {
        // A window that is longer than the segment has at most as many pairs as there are rows.
        let size = segment.window.min(segment.rows());
        fill(&mut self.band, segment.rows() * size, 0.0);
        for r in segment.first..segment.rows() {
            for m in 0..size.min(r + 1 - segment.first) {
                self.band[r * size + m] = dot_f64(segment.x_row(r), segment.x_row(r - m));
            }
        }
        fill(&mut self.top, if gradient { segment.steps * size } else { 0 }, 0.0);
        fill(&mut self.vectors, if gradient { size * size } else { 0 }, [0.0; LANES]);
        for start in (0..segment.steps).step_by(LANES) {
            // Windows with fewer pairs are padded with zeros, which only adds zero eigenvalues.
            fill(&mut self.grams, size * size, [0.0; LANES]);
            let steps = start..(start + LANES).min(segment.steps);
            for (lane, step) in steps.clone().enumerate() {
                let window = segment.window(step);
                for (a, r) in window.clone().enumerate() {
                    for (b, l) in (window.start..=r).enumerate() {
                        let entry = self.band[r * size + r - l];
                        self.grams[a * size + b][lane] = entry;
                        self.grams[b * size + a][lane] = entry;
                    }
                }
            }
            let precision = F::epsilon().wide() / 128.0;
            let top = top_eigenpairs(&mut self.grams, size, precision, &mut self.vectors);
            for (lane, step) in steps.enumerate() {
                let pairs = segment.window(step).len();
                if pairs > 0 {
                    self.energy[step] = F::of(top[lane] / pairs as f64).min(huge());
                }
                if gradient {
                    for i in 0..size {
                        self.top[step * size + i] = self.vectors[i][lane];
                    }
                }
            }
        }
    }

    /// Adjoint of [`Coefficients::forward`]: from the gradients of `write`, `erase` and `gamma` to those of the gains
    /// and decays, which go to `grad_gain` and `grad_decay`, and of `x`.
    ///
    /// ```text
    /// dη̂ = dη − λ dγ               (the whole gradient of η; D = E + λ + ε)
    /// dβ = dη̂ / D                  dE = −η·dη̂ / D
    /// dλ = −(η·dη + (E + ε) η·dγ) / D    (D − λ = E + ε: no cancellation; · sums over columns)
    /// ```
    #[inline(always)]
    pub fn backward(
        &mut self,
        rule: &Rule,
        segment: &Segment<F>,
        grad: &mut SegmentGrad<F>,
        grad_gain: &mut Vec<F>,
        grad_decay: &mut Vec<F>,
    ) {
        fill(grad_gain, self.gain.len(), F::zero());
        fill(grad_decay, self.decay.len(), F::zero());
        fill(&mut self.along, segment.dim_k, F::zero());
        for step in 0..segment.steps {
            let window = segment.window(step);
            if window.is_empty() {
                continue;
            }
            let (here, lambda) = (row(step, self.width), self.lambda[step]);
            let (eta, gamma) = (&self.eta[here.clone()], &segment.gamma[here.clone()]);
            let (grad_eta, grad_gamma) = (&mut grad.write[here.clone()], &mut grad.gamma[here.clone()]);
            let grad_erase = &grad.erase[here.clone()];
            if rule.objective == Objective::DecayedRegression {
                let write = &segment.write[here.clone()];
                for i in 0..self.width {
                    grad_eta[i] += gamma[i] * grad_erase[i];
                    grad_gamma[i] += write[i] * grad_erase[i];
                }
            } else if rule.erases() {
                add(grad_eta, grad_erase);
            }
            scale(grad_eta, F::one() / F::of(window.len() as f64));
            match (rule.decay, rule.clamp.map(F::of)) {
                (Decay::None, _) => grad_gamma.fill(F::zero()),
                (Decay::Gate, _) => {
                    grad_decay[here.clone()].copy_from_slice(grad_gamma);
                    grad_gamma.fill(F::zero());
                }
                // A clamped γ passes no gradient.
                (_, Some(least)) => {
                    for (grad, gamma) in grad_gamma.iter_mut().zip(gamma) {
                        *grad = if *gamma == least { F::zero() } else { *grad };
                    }
                }
                (_, None) => {}
            }
            let (mut grad_energy, mut grad_lambda) = (F::zero(), -dot(eta, grad_gamma));
            match rule.gain {
                Gain::Unit => {}
                Gain::Eta => {
                    for (i, grad_gain) in grad_gain[here].iter_mut().enumerate() {
                        *grad_gain = grad_eta[i] - lambda * grad_gamma[i];
                    }
                }
                Gain::Beta => {
                    let denominator = self.denominator[step];
                    if vanishes(denominator) {
                        continue;
                    }
                    let (through, carried) = (dot(eta, grad_eta), -grad_lambda);
                    grad_energy = -(through - lambda * carried) / denominator;
                    grad_lambda = -(through + (self.energy[step] + epsilon::<F>(rule)) * carried) / denominator;
                    for (i, grad_gain) in grad_gain[here].iter_mut().enumerate() {
                        *grad_gain = (grad_eta[i] - lambda * grad_gamma[i]) / denominator;
                    }
                }
            }
            match rule.decay {
                Decay::None | Decay::Gate => {}
                Decay::Ridge => grad_decay[step] = grad_lambda,
                Decay::ScaledRidge { detach } => {
                    grad_decay[step] = grad_lambda * self.energy[step];
                    if !detach {
                        grad_energy += grad_lambda * self.decay[step];
                    }
                }
            }
            if rule.uses_energy() {
                let grad_x = &mut grad.qx[segment.steps * segment.dim_k..];
                self.energy_backward(rule, segment, step, grad_energy, grad_x);
            }
        }
    }

    /// `d‖x‖² = 2x`; for a window's curvature `μ = |Xᵀu|²/B`, u its top eigenvector, `dx_j = 2 u_j (Xᵀu) / B`.
    #[inline(always)]
    fn energy_backward(
        &mut self,
        rule: &Rule,
        segment: &Segment<F>,
        step: usize,
        grad_energy: F,
        grad_x: &mut [F],
    ) {
        let window = segment.window(step);
        let scale = F::of(2.0) * grad_energy / F::of(window.len() as f64);
        let dim_k = segment.dim_k;
        if rule.window > 1 && rule.erases() {
            let size = rule.window.min(segment.rows());
            let top = &self.top[step * size..][..window.len()];
            self.along.fill(F::zero());
            for (j, u) in window.clone().zip(top) {
                axpy(&mut self.along, F::of(*u), segment.x_row(j));
            }
            for (j, u) in window.zip(top) {
                axpy(&mut grad_x[row(j, dim_k)], scale * F::of(*u), &self.along);
            }
        } else {
            for j in window {
                axpy(&mut grad_x[row(j, dim_k)], scale, segment.x_row(j));
            }
        }
    }
}

/// The largest energy, ridge or ε. The sum `E + λ + ε` of three of them must not overflow, or `γ` would be `∞/∞`.
#[inline(always)]
fn huge<F: Real>() -> F {
    F::max_value() / F::of(4.0)
}

/// `ε` of the step size, limited to the range of the number type.
#[inline(always)]
fn epsilon<F: Real>(rule: &Rule) -> F {
    F::of(rule.eps).min(huge())
}

#[inline(always)]
fn vanishes<F: Real>(denominator: F) -> bool {
    denominator < F::min_positive_value()
}

fn fill<T: Copy>(buffer: &mut Vec<T>, len: usize, value: T) {
    buffer.clear();
    buffer.resize(len, value);
}
