//! AdamW with decoupled weight decay, and clipping by the norm of all gradients together.
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
//! θ ← θ − r (m̂ / (√v̂ + ε) + w θ)        m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)
//! ```
//!
//! `r` is the learning rate times the parameter's width multiplier ([`falcon_nn::mup`]); `w` is 0 but for matrices. The decay is
//! multiplied by the learning rate alone: it does not shrink with the width.

use std::collections::BTreeMap;

use falcon_nn::{Model, mup};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The constants of AdamW; the paper's by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWConfig {
    /// Memory of the mean.
    pub beta1: f64,
    /// Memory of the square.
    pub beta2: f64,
    /// Added to the root.
    pub eps: f64,
    /// Of matrices; vectors do not decay.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
    }
}

/// What AdamW remembers of a parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Moments {
    /// Of the gradient.
    pub mean: Vec<f32>,
    /// Of its square.
    pub square: Vec<f32>,
}

/// AdamW and its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    config: AdamWConfig,
    steps: u64,
    moments: BTreeMap<String, Moments>,
}

/// Numbers that one task takes.
const BLOCK: usize = 1 << 14;

impl AdamW {
    /// Before the first step.
    pub fn new(config: AdamWConfig) -> Self {
        Self { config, steps: 0, moments: BTreeMap::new() }
    }

    /// As it was after `steps` steps.
    pub(super) fn resumed(config: AdamWConfig, steps: u64, moments: BTreeMap<String, Moments>) -> Self {
        Self { config, steps, moments }
    }

    /// What it remembers, by the names of the parameters.
    pub(super) fn moments(&self) -> &BTreeMap<String, Moments> {
        &self.moments
    }

    /// One step down the gradients, which are those of [`Model::gradients`].
    pub fn step(&mut self, model: Model, gradients: &[(String, Vec<f32>)], lr: f64) -> Model {
        self.steps += 1;
        let config = model.config().clone();
        let mut gradients = gradients.iter();
        model.with_parameters(|name, values| {
            let (of, grad) = gradients.next().expect("a gradient for every parameter");
            assert_eq!(of, name, "gradients in the order of the parameters");
            let rate = lr * mup::learning_rate_multiplier(&config, name, &values.shape);
            let decay = if values.shape.len() == 2 { lr * self.config.weight_decay } else { 0.0 };
            let mut numbers = values.to_vec();
            let moments = self
                .moments
                .entry(name.into())
                .or_insert_with(|| Moments { mean: vec![0.0; grad.len()], square: vec![0.0; grad.len()] });
            update(&self.config, self.steps, rate, decay, grad, moments, &mut numbers);
            numbers
        })
    }
}

fn update(
    config: &AdamWConfig,
    steps: u64,
    rate: f64,
    decay: f64,
    grad: &[f32],
    moments: &mut Moments,
    numbers: &mut [f32],
) {
    let AdamWConfig { beta1, beta2, eps, .. } = *config;
    let correction = |beta: f64| 1.0 - beta.powf(steps as f64);
    // Folded into the rate and ε, so that the loop is short.
    let root = correction(beta2).sqrt();
    let rate = (rate * root / correction(beta1)) as f32;
    let (eps, keep) = ((eps * root) as f32, (1.0 - decay) as f32);
    // In 64 bits: a memory close to 1 would lose what is left of it.
    let (new1, new2) = ((1.0 - beta1) as f32, (1.0 - beta2) as f32);
    let (beta1, beta2) = (beta1 as f32, beta2 as f32);
    let Moments { mean, square } = moments;
    numbers
        .par_chunks_mut(BLOCK)
        .zip(mean.par_chunks_mut(BLOCK))
        .zip(square.par_chunks_mut(BLOCK))
        .zip(grad.par_chunks(BLOCK))
        .for_each(|(((numbers, mean), square), grad)| {
            for (((x, m), v), g) in numbers.iter_mut().zip(mean).zip(square).zip(grad) {
                *m = beta1 * *m + new1 * g;
                *v = beta2 * *v + new2 * g * g;
                *x = keep * *x - rate * *m / (v.sqrt() + eps);
            }
        });
}

/// The norm of all gradients together.
fn global_norm(gradients: &[(String, Vec<f32>)]) -> f64 {
    let squares = gradients.iter().map(|(_, grad)| grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>());
    squares.sum::<f64>().sqrt()
}

/// Scales gradients down so that the norm of all together is at most `most`, and returns what it was.
pub fn clip(gradients: &mut [(String, Vec<f32>)], most: f64) -> f64 {
    let norm = global_norm(gradients);
    // A norm that is not a number stays for the caller to see.
    if norm > most {
        let scale = (most / norm) as f32;
        gradients.iter_mut().for_each(|(_, grad)| grad.iter_mut().for_each(|g| *g *= scale));
    }
    norm
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use burn::tensor::{Int, Tensor};
    use falcon_nn::{ModelConfig, cross_entropy};

    use super::*;

    #[test]
    fn steps_are_the_definition() {
        let config = AdamWConfig { weight_decay: 0.0, ..AdamWConfig::default() };
        let (mut moments, mut x) = (Moments { mean: vec![0.0; 3], square: vec![0.0; 3] }, [1.0, -2.0, 0.5]);
        let (mut m, mut v, mut y) = ([0.0; 3], [0.0; 3], [1.0, -2.0, 0.5]);
        for step in 1..=5u64 {
            let grad = [0.3, -1e-4 * step as f32, 2.0 - step as f32];
            update(&config, step, 1e-2, 1e-3, &grad, &mut moments, &mut x);
            for i in 0..3 {
                let g = f64::from(grad[i]);
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
        let of = || vec![("a".to_string(), vec![3.0f32, 0.0]), ("b".to_string(), vec![4.0])];
        let mut grads = of();
        assert_eq!(clip(&mut grads, 1.0), 5.0);
        assert!((global_norm(&grads) - 1.0).abs() < 1e-6);
        assert!((grads[0].1[0] / grads[1].1[0] - 0.75).abs() < 1e-6, "the direction stays");
        let mut small = of();
        assert_eq!((clip(&mut small, 5.0), small), (5.0, of()));
        let mut spoilt = vec![("a".to_string(), vec![f32::NAN])];
        assert!(clip(&mut spoilt, 1.0).is_nan());
    }

    fn train(steps: u64, threads: usize) -> (Vec<f32>, Model, AdamW) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let device = Device::flex().autodiff();
            let mut model = ModelConfig::preset("falcon-3.3", "tiny", 16).unwrap().init(1, &device).unwrap();
            let mut optimizer = AdamW::new(AdamWConfig::default());
            let ids: Vec<i32> = (0..40).map(|i| (i * i + 3 * i) % 16).collect();
            let targets: Vec<i64> = ids.iter().map(|id| i64::from((id * 5 + 1) % 16)).collect();
            let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [2, 20]), &device);
            let mut losses = Vec::new();
            for _ in 0..steps {
                let loss = cross_entropy(model.forward(ids.clone()).reshape([40, 16]), &targets);
                let mut gradients = model.gradients(&loss.backward());
                clip(&mut gradients, 1.0);
                model = optimizer.step(model, &gradients, 3e-3);
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
        assert_eq!(losses, again, "whatever the number of threads");
    }

    /// Vectors do not decay, and matrices inside the blocks take smaller steps the wider the model.
    #[test]
    fn decay_and_rates_are_per_parameter() {
        let device = Device::flex();
        let config = ModelConfig { mup_base_width: 32, ..ModelConfig::preset("falcon-1.3", "tiny", 16).unwrap() };
        let model = config.init(1, &device).unwrap();
        let gradients = |value: f32| -> Vec<_> {
            let parameters = model.parameters().into_iter();
            parameters.map(|p| (p.name, vec![value; p.shape.iter().product()])).collect()
        };
        let moved = |value: f32, weight_decay: f64| {
            let config = AdamWConfig { weight_decay, ..AdamWConfig::default() };
            let after = AdamW::new(config).step(model.clone(), &gradients(value), 1e-2);
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
