//! The rules in plain tensor operations, for devices without kernels.
//!
//! A step updates the memory `S`, and a token reads it,
//!
//! ```text
//! S_t = γ_t S_{t−1} + Σ_{j ∈ window} x_j (w_t v_j − e_t S_{t−1}ᵀ x_j)ᵀ        o_t = S_tᵀ q_t
//! ```
//!
//! in three stages: `pairs` and `rows` pair keys with values, `coefficients` computes `w`, `e` and `γ` from gains and
//! decays, `chunked` runs the steps, many at a time. Everything is differentiable by autodiff; nothing is a loop over
//! tokens.
//!
//! Consecutive sequences that are alike (equally long, with equally long tails, all started or none) run as one batch.

mod chunked;
mod coefficients;
mod pairs;
mod rows;
mod state;
mod triangle;

#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::tensor::Tensor;
use falcon_kernels::Rule;

pub(crate) use self::rows::last;
pub(crate) use self::state::{RuleInputs, TensorState, numbers};

/// Outputs `[tokens, heads, dim_v]` and the outgoing state. Sequence `s` has the tokens `offsets[s]..offsets[s + 1]`.
/// Chunks have at most `chunk` steps; some rules use shorter ones.
pub(crate) fn scan(
    rule: &Rule,
    inputs: RuleInputs,
    offsets: &[usize],
    state: TensorState,
    chunk: usize,
) -> (Tensor<3>, TensorState) {
    let runs = alike(offsets, &state);
    if let [run] = &runs[..] {
        // The usual batch: nothing to split and nothing to join.
        return rows::scan(rule, inputs, state, offsets[run.start + 1] - offsets[run.start], chunk);
    }
    let mut outs = Vec::new();
    let mut states = Vec::new();
    for run in runs {
        let tokens = offsets[run.start]..offsets[run.end];
        let before = state.sequences(run.clone());
        if tokens.is_empty() {
            states.push(before);
            continue;
        }
        let length = tokens.len() / run.len();
        let (out, after) = rows::scan(rule, inputs.tokens(tokens), before, length, chunk);
        outs.push(out);
        states.push(after);
    }
    let out = if outs.is_empty() { inputs.v } else { Tensor::cat(outs, 0) };
    let state = if states.is_empty() { state } else { TensorState::join(states) };
    (out, state)
}

/// Divides the sequences into the longest runs of consecutive ones that are alike.
fn alike(offsets: &[usize], state: &TensorState) -> Vec<Range<usize>> {
    let kind = |s: usize| (offsets[s + 1] - offsets[s], state.tail_len[s], state.started[s]);
    let mut runs: Vec<Range<usize>> = Vec::new();
    for sequence in 0..offsets.len().saturating_sub(1) {
        match runs.last_mut() {
            Some(run) if kind(run.start) == kind(sequence) => run.end += 1,
            _ => runs.push(sequence..sequence + 1),
        }
    }
    runs
}
