//! AdamW with decoupled weight decay, and clipping by the global norm of the gradients.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
//! θ ← θ − r (m̂ / (√v̂ + ε) + w θ)        m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)
//! ```
//!
//! `r` is the learning rate times the parameter's width multiplier ([`falcon_nn::mup`]); `w` is the weight decay for
//! matrices and 0 for everything else. The decay is multiplied by the learning rate alone, so it does not shrink with
//! the width.
//!
//! Gradients and moments are indexed as [`Model::parameters`] are. One parallel pass over all of them updates
//! parameters and moments in place; clipping is a factor that this pass multiplies the gradients by.

use falcon_nn::{Model, mup};
use rayon::prelude::*;

use crate::recipe::AdamWConfig;

/// The moments of one parameter's gradient.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Moments {
    /// Running mean of the gradient.
    pub mean: Vec<f32>,
    /// Running mean of its square.
    pub square: Vec<f32>,
}

/// AdamW and its moments.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    config: AdamWConfig,
    steps: u64,
    /// One entry for each parameter; empty before the first step.
    moments: Vec<Moments>,
}

/// Number of values that one parallel task processes.
const BLOCK: usize = 1 << 14;

impl AdamW {
    /// An optimizer before its first step.
    pub fn new(config: AdamWConfig) -> Self {
        Self { config, steps: 0, moments: Vec::new() }
    }

    /// An optimizer restored after `steps` steps.
    pub(super) fn resumed(config: AdamWConfig, steps: u64, moments: Vec<Moments>) -> Self {
        Self { config, steps, moments }
    }

    /// The moments of each parameter; empty before the first step.
    pub(super) fn moments(&self) -> &[Moments] {
        &self.moments
    }

    /// One step at the learning rate `lr`, for the gradients that [`Model::gradients`] returns, scaled by `clip`.
    /// Parameters that no clone of the model shares are updated in place.
    pub fn step(&mut self, model: &mut Model, gradients: &[Vec<f32>], clip: Clip, lr: f64) {
        self.steps += 1;
        if self.moments.is_empty() {
            let zeros = |gradient: &Vec<f32>| vec![0.0; gradient.len()];
            let moments = |gradient| Moments { mean: zeros(gradient), square: zeros(gradient) };
            self.moments = gradients.iter().map(moments).collect();
        }
        let (parameters, config) = (model.parameters(), model.config().clone());
        assert_eq!(parameters.len(), gradients.len(), "a gradient for every parameter");
        model.update_parameters(|values| {
            let mut blocks = Vec::new();
            let parameters = parameters.iter().zip(values).zip(&mut self.moments).zip(gradients);
            for (((parameter, values), Moments { mean, square }), gradient) in parameters {
                let rate = lr * mup::learning_rate_multiplier(&config, &parameter.name, &parameter.shape);
                let decay = if parameter.shape.len() == 2 { lr * self.config.weight_decay } else { 0.0 };
                let update = Update::new(&self.config, self.steps, rate, decay, clip.scale);
                let moments = mean.chunks_mut(BLOCK).zip(square.chunks_mut(BLOCK));
                let values = values.chunks_mut(BLOCK).zip(moments).zip(gradient.chunks(BLOCK));
                blocks.extend(
                    values.map(|((values, (mean, square)), gradient)| (update, values, mean, square, gradient)),
                );
            }
            blocks.into_par_iter().for_each(|(update, values, mean, square, gradient)| {
                update.apply(values, mean, square, gradient);
            });
        });
    }
}

/// The constants of one parameter's update. The bias corrections are folded into the rate and into `ε`.
#[derive(Clone, Copy, Debug)]
struct Update {
    beta1: f32,
    beta2: f32,
    /// `1 − β`, subtracted in 64 bits: for `β` close to 1 the difference would be inexact in 32.
    new1: f32,
    new2: f32,
    rate: f32,
    eps: f32,
    /// The factor that weight decay multiplies a parameter by.
    keep: f32,
    /// The factor that clipping multiplies the gradient by.
    clip: f32,
}

impl Update {
    fn new(config: &AdamWConfig, steps: u64, rate: f64, decay: f64, clip: f32) -> Self {
        let AdamWConfig { beta1, beta2, eps, .. } = *config;
        let correction = |beta: f64| 1.0 - beta.powf(steps as f64);
        let root = correction(beta2).sqrt();
        Self {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            new1: (1.0 - beta1) as f32,
            new2: (1.0 - beta2) as f32,
            rate: (rate * root / correction(beta1)) as f32,
            eps: (eps * root) as f32,
            keep: (1.0 - decay) as f32,
            clip,
        }
    }

    fn apply(self, values: &mut [f32], mean: &mut [f32], square: &mut [f32], gradient: &[f32]) {
        for (((x, m), v), g) in values.iter_mut().zip(mean).zip(square).zip(gradient) {
            let g = self.clip * g;
            *m = self.beta1 * *m + self.new1 * g;
            *v = self.beta2 * *v + self.new2 * g * g;
            *x = self.keep * *x - self.rate * *m / (v.sqrt() + self.eps);
        }
    }
}

/// The global norm of gradients, and the factor that clips them to a largest norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// Norm of all gradients together, before clipping.
    pub norm: f64,
    /// The factor to multiply the gradients by: below 1 if the norm is too large.
    pub scale: f32,
}

/// Measures the global norm of gradients, and the factor that brings it down to at most `largest`.
pub fn clip(gradients: &[Vec<f32>], largest: f64) -> Clip {
    // Blocks are summed in a fixed order, so that the number of threads does not change the sum.
    let blocks: Vec<&[f32]> = gradients.iter().flat_map(|gradient| gradient.chunks(BLOCK)).collect();
    let sums: Vec<f64> = blocks.into_par_iter().map(sum_of_squares).collect();
    let norm = sums.iter().sum::<f64>().sqrt();
    // A non-finite norm is left to the caller, who stops the run.
    Clip { norm, scale: if norm > largest { (largest / norm) as f32 } else { 1.0 } }
}

/// Sums in 64 bits, and in lanes so that the compiler vectorises the loop.
fn sum_of_squares(values: &[f32]) -> f64 {
    let (blocks, rest) = values.as_chunks::<16>();
    let mut lanes = [0.0; 16];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane += f64::from(*x) * f64::from(*x);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use burn::tensor::Device;
    use falcon_nn::{ModelConfig, Sequences, cross_entropy};

    use super::*;

    #[test]
    fn updates_follow_the_definition_of_adamw() {
        let config = AdamWConfig { weight_decay: 0.0, ..AdamWConfig::default() };
        let (mut mean, mut square, mut x) = ([0.0; 3], [0.0; 3], [1.0, -2.0, 0.5]);
        let (mut m, mut v, mut y) = ([0.0; 3], [0.0; 3], [1.0, -2.0, 0.5]);
        for step in 1..=5u64 {
            let grad = [0.3, -1e-4 * step as f32, 2.0 - step as f32];
            Update::new(&config, step, 1e-2, 1e-3, 0.5).apply(&mut x, &mut mean, &mut square, &grad);
            for i in 0..3 {
                let g = 0.5 * f64::from(grad[i]);
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                let (m, v) = (m[i] / (1.0 - 0.9f64.powf(step as f64)), v[i] / (1.0 - 0.95f64.powf(step as f64)));
                y[i] -= 1e-2 * m / (v.sqrt() + 1e-8) + 1e-3 * y[i];
                assert!((f64::from(x[i]) - y[i]).abs() < 1e-6, "step {step}: {} and {}", x[i], y[i]);
            }
        }
    }

    #[test]
    fn clipping_is_global() {
        let gradients = [vec![3.0f32, 0.0], vec![4.0]];
        assert_eq!(clip(&gradients, 1.0), Clip { norm: 5.0, scale: 0.2 });
        assert_eq!(clip(&gradients, 5.0), Clip { norm: 5.0, scale: 1.0 });
        let non_finite = clip(&[vec![f32::NAN]], 1.0);
        assert!(non_finite.norm.is_nan() && non_finite.scale == 1.0);
        let many: Vec<f32> = (0..3 * BLOCK + 5).map(|i| (i as f32 * 0.1).sin()).collect();
        let expected = many.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        assert!((clip(&[many], 1.0).norm / expected - 1.0).abs() < 1e-12);
    }

    fn train(steps: u64, threads: usize) -> (Vec<f32>, Model, AdamW) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let device = Device::flex().autodiff();
            let mut model = ModelConfig::preset("falcon-3.3", "tiny", 16).unwrap().init(1, &device).unwrap();
            let mut optimizer = AdamW::new(AdamWConfig::default());
            let ids: Vec<u32> = (0..40).map(|i| (i * i + 3 * i) % 16).collect();
            let targets: Vec<Option<u32>> = ids.iter().map(|id| Some((id * 5 + 1) % 16)).collect();
            let sequences = Sequences::uniform(2, 20);
            let mut losses = Vec::new();
            for _ in 0..steps {
                let loss = cross_entropy(model.run(&ids, &sequences, &mut model.state(2)), &targets);
                let gradients = model.gradients(loss.backward());
                optimizer.step(&mut model, &gradients, clip(&gradients, 1.0), 3e-3);
                losses.push(loss.into_scalar());
            }
            (losses, model, optimizer)
        })
    }

    #[test]
    fn training_learns_and_repeats_to_the_bit() {
        let (losses, _, optimizer) = train(12, 2);
        assert!(losses[11] < 0.5 * losses[0], "{losses:?}");
        assert_eq!(optimizer.steps, 12);
        let (again, ..) = train(12, 1);
        assert_eq!(losses, again, "the number of threads must not change the losses");
    }

    /// Vectors do not decay, and the wider the model, the smaller the steps of matrices inside the blocks.
    #[test]
    fn decay_and_rates_are_per_parameter() {
        let device = Device::flex();
        let config = ModelConfig { mup_base_width: 32, ..ModelConfig::preset("falcon-1.3", "tiny", 16).unwrap() };
        let model = config.init(1, &device).unwrap();
        let gradients = |value: f32| -> Vec<Vec<f32>> {
            model.parameters().iter().map(|parameter| vec![value; parameter.shape.iter().product()]).collect()
        };
        let moved = |value: f32, weight_decay: f64| {
            let config = AdamWConfig { weight_decay, ..AdamWConfig::default() };
            let mut after = model.clone();
            AdamW::new(config).step(&mut after, &gradients(value), Clip { norm: 1.0, scale: 1.0 }, 1e-2);
            let numbers = |model: &Model| {
                let mut first = BTreeMap::new();
                model.visit_parameters(|name, _, values| {
                    first.insert(name.to_string(), values.to_vec()[0]);
                });
                first
            };
            let (before, after) = (numbers(&model), numbers(&after));
            let change: BTreeMap<_, _> = after.iter().map(|(name, x)| (name.clone(), x - before[name])).collect();
            (change, before)
        };
        let (change, _) = moved(1.0, 0.0);
        assert!((change["model.embeddings.weight"] + 1e-2).abs() < 1e-6);
        assert!(
            (change["model.layers.0.attn.q_proj.weight"] + 2.5e-3).abs() < 1e-6,
            "a quarter at four times the width"
        );
        assert!((change["model.norm.weight"] + 1e-2).abs() < 1e-6);
        let (change, before) = moved(0.0, 0.1);
        let matrix = "model.layers.2.mlp.up_proj.weight";
        assert!((change[matrix] + 1e-3 * before[matrix]).abs() < 1e-6);
        assert_eq!(change["model.layers.0.attn_norm.weight"], 0.0);
        assert_eq!(change["model.layers.0.attn.q_conv1d.weight"], 0.0);
    }
}
