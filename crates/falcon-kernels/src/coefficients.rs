//! Gains and ridges to step sizes and carries, and back.
//!
//! ```text
//! E = ‖x‖²                       window 1
//!   = mean ‖x_j‖² over window    inner product, window > 1
//!   = λ_max(Σ x_j x_jᵀ) / B      regression, window > 1
//! λ = ridge, or ridge · E        η = β / (E + λ + ε), or given
//! γ = max(1 − ηλ, ε_γ), or given
//! w = η / B                      e = w, or γ w (decayed regression), or 0 (inner product)
//! ```

use crate::Real;
use crate::eigen::{LANES, Lanes, top_eigenpairs};
use crate::real::axpy;
use crate::rule::{Decay, Gain, Objective, Rule};
use crate::segment::{Segment, SegmentGrad};

/// What coefficients are worked out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Forward,
    /// What the gradient needs, too.
    Backward,
    /// To be looked at: the energy, too, where the rule does not use it.
    Show,
}

/// What the gains of a segment came to. `eta` and the segment's `gamma` are per step, or per step and column.
#[derive(Default)]
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
    /// Where the clamp holds `γ`, it passes no gradient.
    clamped: Vec<bool>,
    /// Top eigenvector of each step's window, `[steps, window]`; only for windowed regression, for its gradient.
    top: Vec<f64>,
    /// `x_r · x_{r−m}` for `m < window`, `[rows, window]`; only for windowed regression.
    band: Vec<f64>,
    /// Gram matrices of [`LANES`] windows, and their eigenvectors.
    grams: Vec<Lanes>,
    vectors: Vec<Lanes>,
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
        fill(&mut self.clamped, steps * width, false);
        fill(&mut segment.gamma, steps * width, F::one());
        fill(&mut segment.write, steps * width, F::zero());
        fill(&mut segment.erase, steps * width, F::zero());
        if purpose == Purpose::Show || rule.uses_energy() {
            self.energies(rule, segment, purpose == Purpose::Backward);
        }
        for step in 0..steps {
            let pairs = segment.window(step).len();
            // The boundary of a fresh sequence has no pair: η = 0 and γ = 1, whatever the ridge.
            if pairs == 0 {
                continue;
            }
            self.lambda[step] = match rule.decay {
                Decay::None | Decay::Gate => F::zero(),
                Decay::Ridge => self.decay[step],
                Decay::ScaledRidge { .. } => self.decay[step] * self.energy[step],
            };
            self.denominator[step] = self.energy[step] + self.lambda[step] + F::of(rule.eps);
            for i in step * width..(step + 1) * width {
                self.step_size(rule, segment, step, i);
                let pairs = F::of(pairs as f64);
                segment.write[i] = self.eta[i] / pairs;
                segment.erase[i] = match rule.objective {
                    Objective::InnerProduct => F::zero(),
                    Objective::Regression => segment.write[i],
                    Objective::DecayedRegression => segment.gamma[i] * segment.write[i],
                };
            }
        }
    }

    /// `η` and `γ` of one step, at index `i` of the gains.
    #[inline(always)]
    fn step_size(&mut self, rule: &Rule, segment: &mut Segment<F>, step: usize, i: usize) {
        let (lambda, denominator) = (self.lambda[step], self.denominator[step]);
        self.eta[i] = match rule.gain {
            Gain::Unit => F::one(),
            Gain::Eta => self.gain[i],
            // A zero denominator means there is nothing to write.
            Gain::Beta if denominator == F::zero() => F::zero(),
            Gain::Beta => self.gain[i] / denominator,
        };
        let carry = match (rule.decay, rule.gain) {
            (Decay::None, _) => F::one(),
            (Decay::Gate, _) => self.decay[self.decay_index(step, i)],
            // 1 − βλ/(E + λ + ε) without the cancellation.
            (_, Gain::Beta) if denominator != F::zero() => {
                let kept = self.energy[step] + F::of(rule.eps) + (F::one() - self.gain[i]) * lambda;
                kept / denominator
            }
            _ => F::one() - self.eta[i] * lambda,
        };
        segment.gamma[i] = match rule.clamp {
            Some(least) if rule.decay != Decay::Gate && carry <= F::of(least) => {
                self.clamped[i] = true;
                F::of(least)
            }
            _ => carry,
        };
    }

    /// A gate has the shape of the gain; a fixed decay may be shared by its columns.
    #[inline(always)]
    fn decay_index(&self, step: usize, i: usize) -> usize {
        if self.decay.len() == self.eta.len() { i } else { step }
    }

    #[inline(always)]
    fn energies(&mut self, rule: &Rule, segment: &Segment<F>, gradient: bool) {
        if rule.window > 1 && rule.erases() {
            return self.curvatures(segment, gradient);
        }
        for step in 0..segment.steps {
            let window = segment.window(step);
            let pairs = window.len();
            if pairs > 0 {
                let sum: f64 = window.map(|j| dot_f64(segment.x_row(j), segment.x_row(j))).sum();
                self.energy[step] = F::of(sum / pairs as f64);
            }
        }
    }

    /// The largest eigenvalue of every window's Gram matrix over its pairs, several windows at a time; with `gradient`, the
    /// eigenvectors too.
    #[inline(always)]
    fn curvatures(&mut self, segment: &Segment<F>, gradient: bool) {
        // A window that reaches back further than there are rows has no more pairs than rows.
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
            // Windows that are not full are filled up with zeros, which changes no eigenvalue but adds 0 to them.
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
                    self.energy[step] = F::of(top[lane] / pairs as f64);
                }
                if gradient {
                    for i in 0..size {
                        self.top[step * size + i] = self.vectors[i][lane];
                    }
                }
            }
        }
    }

    /// Adjoint of [`Coefficients::forward`]: from the gradients of `write`, `erase` and `gamma` to those of the
    /// gain and decay inputs (returned in `grad_gain`, `grad_decay`, like `gain` and `decay`) and of `x`.
    ///
    /// ```text
    /// dη̂ = dη − λ dγ               (everything that reaches η)
    /// dβ = dη̂ / D                  dE = −(η/D) dη̂
    /// dλ = −(η/D)(dη + dγ (E + ε))  (D − λ = E + ε: no cancellation)
    /// ```
    #[inline(always)]
    pub fn backward(
        &self,
        rule: &Rule,
        segment: &Segment<F>,
        grad: &mut SegmentGrad<F>,
        grad_gain: &mut Vec<F>,
        grad_decay: &mut Vec<F>,
    ) {
        fill(grad_gain, self.gain.len(), F::zero());
        fill(grad_decay, self.decay.len(), F::zero());
        for step in 0..segment.steps {
            let window = segment.window(step);
            if window.is_empty() {
                continue;
            }
            let pairs = F::of(window.len() as f64);
            let (mut grad_energy, mut grad_lambda) = (F::zero(), F::zero());
            for i in step * self.width..(step + 1) * self.width {
                let (mut grad_eta, mut grad_gamma) = (grad.write[i], grad.gamma[i]);
                match rule.objective {
                    Objective::InnerProduct => {}
                    Objective::Regression => grad_eta += grad.erase[i],
                    Objective::DecayedRegression => {
                        grad_eta += segment.gamma[i] * grad.erase[i];
                        grad_gamma += segment.write[i] * grad.erase[i];
                    }
                }
                grad_eta /= pairs;
                match rule.decay {
                    Decay::None => grad_gamma = F::zero(),
                    Decay::Gate => {
                        grad_decay[self.decay_index(step, i)] += grad_gamma;
                        grad_gamma = F::zero();
                    }
                    _ if self.clamped[i] => grad_gamma = F::zero(),
                    _ => {}
                }
                let through_eta = grad_eta - self.lambda[step] * grad_gamma;
                match rule.gain {
                    Gain::Unit => grad_lambda -= self.eta[i] * grad_gamma,
                    Gain::Eta => {
                        grad_gain[i] = through_eta;
                        grad_lambda -= self.eta[i] * grad_gamma;
                    }
                    Gain::Beta if self.denominator[step] == F::zero() => {}
                    Gain::Beta => {
                        let slope = self.eta[i] / self.denominator[step];
                        grad_gain[i] = through_eta / self.denominator[step];
                        grad_energy -= slope * through_eta;
                        grad_lambda -= slope * (grad_eta + grad_gamma * (self.energy[step] + F::of(rule.eps)));
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
                self.energy_backward(
                    rule,
                    segment,
                    step,
                    grad_energy,
                    &mut grad.qx[segment.steps * segment.dim_k..],
                );
            }
        }
    }

    /// `d‖x‖² = 2x`; for a window's curvature `μ = |Xᵀu|²/B`, u its top eigenvector, `dx_j = 2 u_j (Xᵀu) / B`.
    #[inline(always)]
    fn energy_backward(&self, rule: &Rule, segment: &Segment<F>, step: usize, grad_energy: F, grad_x: &mut [F]) {
        let window = segment.window(step);
        let scale = F::of(2.0) * grad_energy / F::of(window.len() as f64);
        let dim_k = segment.dim_k;
        if rule.window > 1 && rule.erases() {
            let size = rule.window.min(segment.rows());
            let top = &self.top[step * size..][..window.len()];
            let mut along = vec![F::zero(); dim_k];
            for (j, u) in window.clone().zip(top) {
                axpy(&mut along, F::of(*u), segment.x_row(j));
            }
            for (j, u) in window.zip(top) {
                axpy(&mut grad_x[j * dim_k..][..dim_k], scale * F::of(*u), &along);
            }
        } else {
            for j in window {
                axpy(&mut grad_x[j * dim_k..][..dim_k], scale, segment.x_row(j));
            }
        }
    }
}

fn fill<T: Copy>(buffer: &mut Vec<T>, len: usize, value: T) {
    buffer.clear();
    buffer.resize(len, value);
}

/// Energies span twenty orders of magnitude; in `f64` they cost nothing beside the scan.
#[inline(always)]
fn dot_f64<F: Real>(a: &[F], b: &[F]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] += x[lane].wide() * y[lane].wide();
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += x.wide() * y.wide();
    }
    lanes.iter().sum()
}
