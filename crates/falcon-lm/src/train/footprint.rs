//! Estimates the memory that a run will need from its configuration, before anything is allocated.
//!
//! The factors were fitted to the peak memory of runs of ten presets (widths of 128 and 256, 64 to 16,384 tokens per
//! step, vocabularies of 257 and 50,257). The estimate distinguishes 2 GiB from 20, not from 2.2.

use std::fmt;

use falcon_nn::{MixerConfig, ModelConfig, OutputGate};
use serde::Serialize;
use thiserror::Error;

use crate::config::RunConfig;
use crate::memory::{self, human};

/// The estimated memory of a run in bytes, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Weights, gradients, and copies while a checkpoint is written.
    pub parameters: u64,
    /// The two moments of AdamW.
    pub optimizer: u64,
    /// Activations that the forward pass keeps for the backward pass, and the logits.
    pub activations: u64,
    /// Held-out data and one batch.
    pub data: u64,
}

/// Memory of the program itself, without a model.
const PROGRAM: u64 = 45 << 20;

impl Footprint {
    /// The estimate for a run.
    pub fn of(config: &RunConfig) -> Self {
        let count = config.model.parameter_count() as u64;
        let batch = config.train.batch as u64 * config.task.tokens_per_sequence() as u64;
        // The parts of a batch differ by at most one sequence.
        let part = batch.div_ceil(config.train.accumulate as u64);
        let held_out = config.task.held_out_tokens() as u64;
        Self {
            parameters: 4 * 4 * count,
            optimizer: 2 * 4 * count,
            activations: part.saturating_mul(4 * per_token(&config.model)),
            // A token and its target take 12 bytes.
            data: batch.saturating_add(held_out).saturating_mul(12),
        }
    }

    /// The sum of all parts and the memory of the program itself.
    pub fn total(&self) -> u64 {
        let Self { parameters, optimizer, activations, data } = *self;
        [PROGRAM, parameters, optimizer, activations, data].into_iter().fold(0, u64::saturating_add)
    }

    /// Fails if the run needs more memory than is available. Passes where the system does not report its memory.
    pub fn check(&self) -> Result<(), FootprintError> {
        match memory::obtainable() {
            Some(available) if available < self.total() => Err(FootprintError { footprint: *self, available }),
            _ => Ok(()),
        }
    }
}

/// Number of values that the forward pass keeps per token.
fn per_token(model: &ModelConfig) -> u64 {
    let MixerConfig { num_heads, num_key_heads, head_dim, head_v_dim, output_gate, .. } = model.mixer;
    let (keys, values) = ((num_heads + num_key_heads) * head_dim, num_heads * head_v_dim);
    let gate = if output_gate == OutputGate::None { 0 } else { values };
    let layer = 4.0 * model.hidden_size as f64
        + 1.6 * keys as f64
        + 3.0 * values as f64
        + 4.0 * gate as f64
        + 2.05 * model.intermediate_size as f64;
    // Logits, their gradient, and intermediate values of the loss.
    let logits = 3.6 * model.vocab_size as f64;
    (layer * model.num_hidden_layers as f64 + logits) as u64
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameters, optimizer, activations, data } = *self;
        write!(
            f,
            "about {} (parameters {}, optimizer {}, activations {}, data {})",
            human(self.total()),
            human(parameters),
            human(optimizer),
            human(activations),
            human(data),
        )
    }
}

/// The error that a run does not fit into memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "this run needs {footprint}, but {} are available; use a smaller train.batch, a larger train.accumulate (which \
     divides the activations), shorter sequences or a smaller model; --no-memory-check skips this check",
    human(*available)
)]
pub struct FootprintError {
    /// The estimate.
    pub footprint: Footprint,
    /// The memory available, in bytes.
    pub available: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layer;

    /// A number of sequences that stands for all of them must not wrap around to a small estimate.
    #[test]
    fn an_estimate_does_not_overflow() {
        let of = |sequences: u64| {
            let layers = [Layer::of("task", "name", "text"), Layer::of("task", "eval_sequences", sequences)];
            Footprint::of(&RunConfig::resolve(&layers).unwrap())
        };
        let (few, all) = (of(1), of(i64::MAX as u64));
        assert_eq!((all.data, all.total()), (u64::MAX, u64::MAX));
        assert_eq!(
            (all.parameters, all.optimizer, all.activations),
            (few.parameters, few.optimizer, few.activations)
        );
    }
}
