//! The memory of a rule: how it is made, selected from, joined and saved.

use falcon_kernels::rule::Align;
use falcon_kernels::{Rule, Sizes, State};

use super::arrays::{Arrays, StateArrays};
use super::owner::Owner;
use crate::file_error::FileError;
use crate::ops::rule::RuleState;

pub(super) fn fresh(owner: &Owner<'_>, rule: &Rule, sequences: usize) -> RuleState {
    for_engine(owner, rule, State::fresh(rule, &sizes(owner, sequences)))
}

pub(super) fn select(owner: &Owner<'_>, rule: &Rule, memory: &RuleState, sequences: &[usize]) -> RuleState {
    for_engine(owner, rule, memory.to_state(rule).select(sequences))
}

pub(super) fn join<'a>(
    owner: &Owner<'_>,
    rule: &Rule,
    memories: impl Iterator<Item = &'a RuleState>,
) -> RuleState {
    let states: Vec<_> = memories.map(|memory| memory.to_state(rule)).collect();
    for_engine(owner, rule, State::join(&states))
}

pub(super) fn arrays(rule: &Rule, memory: &RuleState) -> StateArrays {
    let state = memory.to_state(rule);
    let [memory, last_key, tail_keys, tail_values] = state.shapes();
    let mut arrays = Vec::new();
    if rule.tail_capacity() > 0 {
        arrays.push(("tail_keys".into(), (tail_keys, state.tail_x)));
        arrays.push(("tail_values".into(), (tail_values, state.tail_v)));
    }
    arrays.push(("memory".into(), (memory, state.memory.to_vec())));
    arrays.push(("last_key".into(), (last_key, state.last_key)));
    arrays
}

/// The inverse of [`arrays`], for sequences that have read `positions` tokens.
pub(super) fn restore(
    owner: &Owner<'_>,
    rule: &Rule,
    positions: &[usize],
    arrays: &mut Arrays,
) -> Result<RuleState, FileError> {
    let sizes = sizes(owner, positions.len());
    let Sizes { sequences, heads, dim_k, dim_v, .. } = sizes;
    // First of all, so that no state is allocated for sequences whose memory the file does not hold.
    let memory = arrays.take("memory", &[sequences, heads, dim_k, rule.state_columns(dim_v)])?;
    let mut state = State::fresh(rule, &sizes);
    let [_, last_key, tail_keys, tail_values] = state.shapes();
    (state.memory, state.last_key) = (memory.into(), arrays.take("last_key", &last_key)?);
    if rule.tail_capacity() > 0 {
        state.tail_x = arrays.take("tail_keys", &tail_keys)?;
        state.tail_v = arrays.take("tail_values", &tail_values)?;
    }
    state.started = positions.iter().map(|position| *position > 0).collect();
    state.tail_len = positions.iter().map(|position| tail_length(rule, *position)).collect();
    Ok(for_engine(owner, rule, state))
}

/// The state as the engine of the mixer keeps it.
fn for_engine(owner: &Owner<'_>, rule: &Rule, state: State<f32>) -> RuleState {
    RuleState::new(owner.engine, rule, state, &owner.device)
}

fn sizes(owner: &Owner<'_>, sequences: usize) -> Sizes {
    let config = owner.config;
    Sizes {
        tokens: 0,
        sequences,
        heads: config.num_heads,
        key_heads: config.num_key_heads,
        dim_k: config.head_dim,
        dim_v: config.head_v_dim,
    }
}

/// How many pairs the tail of a sequence holds after `position` tokens. With next-latent alignment the first token
/// makes no pair.
fn tail_length(rule: &Rule, position: usize) -> usize {
    let pairs = match rule.align {
        Align::Same => position,
        Align::Next => position.saturating_sub(1),
    };
    pairs.min(rule.tail_capacity())
}
