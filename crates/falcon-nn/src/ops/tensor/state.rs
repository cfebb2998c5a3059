//! The inputs of a rule and its state, as tensors.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use falcon_kernels::{Rule, Sizes, State};

/// The inputs of one call of a rule, with sequences one after the other.
#[derive(Clone, Debug)]
pub(crate) struct RuleInputs {
    /// `[tokens, key_heads, dim_k]`.
    pub q: Tensor<3>,
    /// `[tokens, key_heads, dim_k]`.
    pub k: Tensor<3>,
    /// `[tokens, heads, dim_v]`.
    pub v: Tensor<3>,
    /// `β` or `η`, `[tokens, heads, 1 | dim_v]`; none for unit gains.
    pub gain: Option<Tensor<3>>,
    /// `λ`, `λ̄` or `γ`, `[tokens, heads, 1 | dim_v]`; none without decay.
    pub decay: Option<Tensor<3>>,
}

impl RuleInputs {
    pub fn tokens(&self, range: Range<usize>) -> Self {
        let cut = |x: &Tensor<3>| x.clone().slice_dim(0, range.clone());
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
    /// `[sequences, window − 1, key_heads, dim_k]`, oldest first; none for window 1.
    pub tail_x: Option<Tensor<4>>,
    /// `[sequences, window − 1, heads, dim_v]`; none for window 1.
    pub tail_v: Option<Tensor<4>>,
    /// How many pairs the tail of each sequence holds.
    pub tail_len: Vec<usize>,
    /// Whether each sequence has had a token.
    pub started: Vec<bool>,
}

impl TensorState {
    /// The same state as tensors on `device`.
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

    /// The inverse of [`TensorState::from_state`].
    pub fn to_state(&self, rule: &Rule) -> State<f32> {
        let [sequences, heads, dim_k, columns] = self.memory.dims();
        let [_, key_heads, _] = self.last_key.dims();
        let dim_v = columns - usize::from(rule.normaliser.is_some());
        let mut state = State::fresh(rule, &Sizes { tokens: 0, sequences, heads, key_heads, dim_k, dim_v });
        let tail = |tail: &Option<Tensor<4>>| tail.as_ref().map_or_else(Vec::new, numbers);
        (state.memory, state.last_key) = (numbers(&self.memory).into(), numbers(&self.last_key));
        (state.tail_x, state.tail_v) = (tail(&self.tail_x), tail(&self.tail_v));
        state.tail_len.clone_from(&self.tail_len);
        state.started.clone_from(&self.started);
        state
    }

    /// The same numbers, without gradients to what they were computed from.
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
    pub fn size(&self) -> usize {
        let tails = [&self.tail_x, &self.tail_v].into_iter().flatten();
        self.memory.shape().num_elements()
            + self.last_key.shape().num_elements()
            + tails.map(|tail| tail.shape().num_elements()).sum::<usize>()
    }

    pub fn sequences(&self, range: Range<usize>) -> Self {
        let cut = |x: &Tensor<4>| x.clone().slice_dim(0, range.clone());
        Self {
            memory: cut(&self.memory),
            last_key: self.last_key.clone().slice_dim(0, range.clone()),
            tail_x: self.tail_x.as_ref().map(cut),
            tail_v: self.tail_v.as_ref().map(cut),
            tail_len: self.tail_len[range.clone()].to_vec(),
            started: self.started[range].to_vec(),
        }
    }

    pub fn join(parts: Vec<Self>) -> Self {
        let tail = |field: fn(&Self) -> Option<Tensor<4>>| {
            let parts: Option<Vec<_>> = parts.iter().map(field).collect();
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
