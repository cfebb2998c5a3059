//! Width scaling (μP): hyperparameters found on a narrow model transfer to a wide one.
//!
//! With `m` the hidden size divided by [`ModelConfig::mup_base_width`], and AdamW:
//!
//! | parameters | initial deviation | learning rate |
//! |---|---|---|
//! | matrices inside the blocks | `1 / √fan_in` | `1 / m` |
//! | embedding, and the output matrix | constant | 1 |
//! | norms, convolutions, biases | constant | 1 |
//!
//! Logits are multiplied by `1 / m`. Wider models have more heads, not wider ones, so that the scale of attention does
//! not change. The initial deviations need no option, because they are those that models have without width scaling.

use crate::config::ModelConfig;

/// The factor that logits are multiplied by.
pub(crate) fn output_multiplier(config: &ModelConfig) -> f64 {
    config.mup_base_width as f64 / config.hidden_size as f64
}

/// The factor of a parameter's learning rate, from its name in a checkpoint and its shape.
pub fn learning_rate_multiplier(config: &ModelConfig, name: &str, shape: &[usize]) -> f64 {
    let inside = shape.len() == 2 && name.contains(".layers.");
    if inside { output_multiplier(config) } else { 1.0 }
}
