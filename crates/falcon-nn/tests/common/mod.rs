//! What the tests share.

use burn::tensor::Tensor;
use falcon_nn::{MixerConfig, ModelConfig};

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
