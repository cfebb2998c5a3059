//! What the tests share.

#![allow(dead_code, reason = "each test binary uses some of it")]

use burn::tensor::{Device, Int, Tensor, TensorData};
use falcon_nn::{MixerConfig, ModelConfig};

/// Tokens that models of [`config`] know.
pub const VOCABULARY: usize = 13;

/// A preset, small enough to be run many times.
pub fn small(name: &str, vocabulary: usize) -> ModelConfig {
    let config = ModelConfig::preset(name, "tiny", vocabulary).unwrap();
    ModelConfig {
        hidden_size: 16,
        num_hidden_layers: 2,
        intermediate_size: config.intermediate_size.min(24),
        mup_base_width: 16,
        mixer: MixerConfig::preset(name, 16, 2).unwrap(),
        ..config
    }
}

pub fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

pub fn config(name: &str) -> ModelConfig {
    small(name, VOCABULARY)
}

pub fn tokens(count: usize, seed: usize) -> Vec<i32> {
    (0..count).map(|i| ((i * i + 7 * i * seed + seed) % VOCABULARY) as i32).collect()
}

pub fn tensor(tokens: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(tokens.to_vec(), [tokens.len()]), device)
}

pub fn assert_near(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
    let error = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
    assert!(error <= 2e-5 * scale, "{what}: {error} of {scale}");
}
