//! Helpers of the tests.

#![allow(dead_code, reason = "each test binary uses some of it")]

use burn::tensor::{Device, Int, Tensor, TensorData};
use falcon_nn::{MixerConfig, ModelConfig};

/// Vocabulary size of the models of [`config`].
pub const VOCABULARY: usize = 13;

/// A preset, reduced so that it can be run many times.
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

pub fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i + 7 * i * seed + seed) % VOCABULARY) as u32).collect()
}

pub fn tensor(tokens: &[u32], device: &Device) -> Tensor<1, Int> {
    let tokens: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
    let count = tokens.len();
    Tensor::from_data(TensorData::new(tokens, [count]), device)
}

pub fn assert_near(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
    let error = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
    assert!(error <= 2e-5 * scale, "{what}: {error} of {scale}");
}
