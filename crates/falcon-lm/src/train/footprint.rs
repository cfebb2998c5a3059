//! How much memory a run will need, estimated from its configuration before anything is allocated.
//!
//! The factors were fitted to the peak memory of runs of ten presets (widths of 128 and 256, 64 to 16,384 tokens per
//! step, vocabularies of 257 and 50,257). The estimate is meant to tell 2 GiB from 20, not from 2.2.

use std::fmt;

use falcon_nn::{MixerConfig, ModelConfig, OutputGate};
use serde::Serialize;
use thiserror::Error;

use crate::config::RunConfig;
use crate::memory::{self, human};

/// Bytes of memory, by what needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// The weights, their gradients, and copies while a checkpoint is written.
    pub parameters: u64,
    /// What AdamW remembers: two numbers for each weight.
    pub optimizer: u64,
    /// What the forward pass of a step keeps for the backward pass, and the logits.
    pub activations: u64,
    /// Held-out data, and one batch.
    pub data: u64,
}

/// The program itself, before it has a model.
const PROGRAM: u64 = 45 << 20;

impl Footprint {
    /// What a run needs.
    pub fn of(config: &RunConfig) -> Self {
        let count = config.model.parameter_count() as u64;
        let batch = config.train.batch as u64 * config.task.tokens_per_sequence() as u64;
        // A batch is computed in parts; the largest has at most one sequence more than the others.
        let part = batch.div_ceil(config.train.accumulate as u64);
        let held_out = config.task.held_out_tokens() as u64;
        Self {
            parameters: 4 * 4 * count,
            optimizer: 2 * 4 * count,
            activations: part.saturating_mul(4 * per_token(&config.model)),
            // A token and its target.
            data: 12 * (batch + held_out),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        let Self { parameters, optimizer, activations, data } = *self;
        [PROGRAM, parameters, optimizer, activations, data].into_iter().fold(0, u64::saturating_add)
    }

    /// Refuses a run that needs more memory than there is. Where the system does not say how much that is, everything
    /// passes.
    pub fn check(&self) -> Result<(), FootprintError> {
        match memory::obtainable() {
            Some(available) if available < self.total() => Err(FootprintError { footprint: *self, available }),
            _ => Ok(()),
        }
    }
}

/// Numbers that the forward pass keeps of every token.
fn per_token(model: &ModelConfig) -> u64 {
    let MixerConfig { num_heads, num_key_heads, head_dim, head_v_dim, output_gate, .. } = model.mixer;
    let (keys, values) = ((num_heads + num_key_heads) * head_dim, num_heads * head_v_dim);
    let gate = if output_gate == OutputGate::None { 0 } else { values };
    let layer = 4.0 * model.hidden_size as f64
        + 1.6 * keys as f64
        + 3.0 * values as f64
        + 4.0 * gate as f64
        + 2.05 * model.intermediate_size as f64;
    // Logits, their gradient, and what the loss and the accuracy make of them.
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

/// A run that does not fit into memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "this run needs {footprint}, but {} are available; use a smaller train.batch, a larger train.accumulate (which \
     divides the activations), shorter sequences or a smaller model; --no-memory-check tries it all the same",
    human(*available)
)]
pub struct FootprintError {
    /// What it needs.
    pub footprint: Footprint,
    /// What there is, in bytes.
    pub available: u64,
}
