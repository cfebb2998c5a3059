//! The rules in plain tensor operations: for devices that the CPU kernels do not reach.
//!
//! One step takes the memory `S` from one time to the next, and a token reads it,
//!
//! ```text
//! S_t = γ_t S_{t−1} + Σ_{j ∈ window} x_j (w_t v_j − e_t S_{t−1}ᵀ x_j)ᵀ        o_t = S_tᵀ q_t
//! ```
//!
//! in three stages, each a module: `rows` lays out which key meets which value, `coefficients` makes `w`, `e` and `γ` out
//! of gains and decays, `chunked` runs the steps, many at a time. Everything is differentiable by autodiff; nothing is a
//! loop over tokens.
//!
//! Sequences that lie one after the other and are alike (as long, as much tail, started or not) run as one batch.

mod chunked;
mod coefficients;
mod rows;
mod triangle;

#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use falcon_kernels::{Rule, Sizes, State};

pub(crate) use self::rows::last;

/// One call of a rule, `[tokens, heads, dim]`, sequences one after the other.
#[derive(Clone, Debug)]
pub(crate) struct RuleInputs {
    /// `[tokens, key_heads, dim_k]`.
    pub q: Tensor<3>,
    /// `[tokens, key_heads, dim_k]`.
    pub k: Tensor<3>,
    /// `[tokens, heads, dim_v]`.
    pub v: Tensor<3>,
    /// `β` or `η`, `[tokens, heads, 1 | dim_v]`; absent for unit gains.
    pub gain: Option<Tensor<3>>,
    /// `λ`, `λ̄` or `γ`, `[tokens, heads, 1 | dim_v]`; absent without decay.
    pub decay: Option<Tensor<3>>,
}

impl RuleInputs {
    fn tokens(&self, range: Range<usize>) -> Self {
        let cut = |of: &Tensor<3>| of.clone().slice_dim(0, range.clone());
        Self {
            q: cut(&self.q),
            k: cut(&self.k),
            v: cut(&self.v),
            gain: self.gain.as_ref().map(cut),
            decay: self.decay.as_ref().map(cut),
        }
    }
}

/// The state of a batch of sequences, as in [`falcon_kernels::State`].
#[derive(Clone, Debug)]
pub(crate) struct TensorState {
    /// `[sequences, heads, dim_k, columns]`.
    pub memory: Tensor<4>,
    /// `[sequences, key_heads, dim_k]`.
    pub last_key: Tensor<3>,
    /// `[sequences, window − 1, key_heads, dim_k]`, oldest first; absent for window 1.
    pub tail_x: Option<Tensor<4>>,
    /// `[sequences, window − 1, heads, dim_v]`; absent for window 1.
    pub tail_v: Option<Tensor<4>>,
    /// How many pairs the tail of each sequence holds.
    pub tail_len: Vec<usize>,
    /// Whether each sequence has seen a token.
    pub started: Vec<bool>,
}

impl TensorState {
    /// From numbers.
    pub fn from_state(state: &State<f32>, device: &Device) -> Self {
        let [memory, last_key, tail_x, tail_v] = state.shapes();
        let tail = |data: &[f32], shape: Vec<usize>| (!data.is_empty()).then(|| tensor(data, shape, device));
        Self {
            memory: tensor(&state.memory, memory, device),
            last_key: tensor(&state.last_key, last_key, device),
            tail_x: tail(&state.tail_x, tail_x),
            tail_v: tail(&state.tail_v, tail_v),
            tail_len: state.tail_len.clone(),
            started: state.started.clone(),
        }
    }

    /// As numbers.
    pub fn to_state(&self, rule: &Rule) -> State<f32> {
        let [sequences, heads, dim_k, columns] = self.memory.dims();
        let [_, key_heads, _] = self.last_key.dims();
        let dim_v = columns - usize::from(rule.normaliser.is_some());
        let mut state = State::fresh(rule, &Sizes { tokens: 0, sequences, heads, key_heads, dim_k, dim_v });
        let tail = |tail: &Option<Tensor<4>>| tail.as_ref().map_or_else(Vec::new, numbers);
        (state.memory, state.last_key) = (numbers(&self.memory), numbers(&self.last_key));
        (state.tail_x, state.tail_v) = (tail(&self.tail_x), tail(&self.tail_v));
        state.tail_len.clone_from(&self.tail_len);
        state.started.clone_from(&self.started);
        state
    }

    /// The same numbers without a past to send gradients to.
    pub fn detach(self) -> Self {
        Self {
            memory: self.memory.detach(),
            last_key: self.last_key.detach(),
            tail_x: self.tail_x.map(Tensor::detach),
            tail_v: self.tail_v.map(Tensor::detach),
            ..self
        }
    }

    /// How many numbers it holds.
    pub fn numbers(&self) -> usize {
        let tails = [&self.tail_x, &self.tail_v].into_iter().flatten();
        self.memory.shape().num_elements()
            + self.last_key.shape().num_elements()
            + tails.map(|tail| tail.shape().num_elements()).sum::<usize>()
    }

    fn sequences(&self, range: Range<usize>) -> Self {
        let cut = |of: &Tensor<4>| of.clone().slice_dim(0, range.clone());
        Self {
            memory: cut(&self.memory),
            last_key: self.last_key.clone().slice_dim(0, range.clone()),
            tail_x: self.tail_x.as_ref().map(cut),
            tail_v: self.tail_v.as_ref().map(cut),
            tail_len: self.tail_len[range.clone()].to_vec(),
            started: self.started[range].to_vec(),
        }
    }

    fn join(parts: Vec<Self>) -> Self {
        let tail = |of: fn(&Self) -> Option<Tensor<4>>| {
            let parts: Option<Vec<_>> = parts.iter().map(of).collect();
            parts.map(|parts| Tensor::cat(parts, 0))
        };
        Self {
            memory: Tensor::cat(parts.iter().map(|part| part.memory.clone()).collect(), 0),
            last_key: Tensor::cat(parts.iter().map(|part| part.last_key.clone()).collect(), 0),
            tail_x: tail(|part| part.tail_x.clone()),
            tail_v: tail(|part| part.tail_v.clone()),
            tail_len: parts.iter().flat_map(|part| part.tail_len.clone()).collect(),
            started: parts.iter().flat_map(|part| part.started.clone()).collect(),
        }
    }
}

fn tensor<const D: usize>(data: &[f32], shape: Vec<usize>, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(data.to_vec(), shape), device)
}

/// The numbers of a state, row-major.
pub(crate) fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().expect("states are f32")
}

/// Outputs `[tokens, heads, dim_v]` and the outgoing state. Sequence `s` has the tokens `offsets[s]..offsets[s + 1]`; `chunk`
/// is the most steps worked on at once, of which some rules take fewer.
pub(crate) fn scan(
    rule: &Rule,
    inputs: RuleInputs,
    offsets: &[usize],
    state: TensorState,
    chunk: usize,
) -> (Tensor<3>, TensorState) {
    let runs = alike(offsets, &state);
    if let [run] = &runs[..] {
        // The usual batch: nothing to cut and nothing to join.
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

/// The longest runs of sequences that are alike.
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
