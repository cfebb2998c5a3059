//! Width scaling: settings found on a narrow model serve a wide one.
//!
//! With `m` the width over [`ModelConfig::mup_base_width`], and AdamW:
//!
//! | parameters | initial deviation | learning rate |
//! |---|---|---|
//! | matrices inside the blocks | `1 / √fan_in` | `1 / m` |
//! | embedding, and the output matrix | constant | 1 |
//! | norms, convolutions, biases | constant | 1 |
//!
//! and logits are multiplied by `1 / m`. Heads grow in number, not in width, so the scale of attention stays. The deviation needs no switch:
//! it is the usual one.

use crate::config::ModelConfig;

/// What logits are multiplied by.
pub(crate) fn output_multiplier(config: &ModelConfig) -> f64 {
    config.mup_base_width as f64 / config.hidden_size as f64
}

/// What the learning rate of a parameter is multiplied by, given its name in a checkpoint and its shape.
pub fn learning_rate_multiplier(config: &ModelConfig, name: &str, shape: &[usize]) -> f64 {
    let inside = shape.len() == 2 && name.contains(".layers.");
    if inside { output_multiplier(config) } else { 1.0 }
}
