//! What a mixer keeps for a batch of sequences between two calls.

use burn::tensor::{Int, Tensor, TensorData};

use super::arrays::{Arrays, StateArrays};
use super::attention::Cache;
use super::memory::Memory;
use super::owner::Owner;
use super::project::ConvState;
use crate::config::MixerConfig;
use crate::file_error::FileError;
use crate::ops::tensor::numbers;

/// The state of a batch of sequences in one mixer. Its size is fixed, except with softmax attention.
///
/// No gradient flows through it: the gradients of a piece of a sequence come from the tokens of that piece only.
#[derive(Clone, Debug)]
pub struct MixerState {
    pub(crate) conv: ConvState,
    pub(super) memory: Memory,
    /// Number of tokens of each sequence so far.
    pub(crate) positions: Vec<usize>,
}

/// Names of the states of the convolutions.
const CONVS: [&str; 3] = ["conv.queries", "conv.keys", "conv.values"];

impl Owner<'_> {
    /// The state before any token.
    pub fn fresh(&self, sequences: usize) -> MixerState {
        let memory = Memory::fresh(self, sequences);
        MixerState { conv: [None, None, None], memory, positions: vec![0; sequences] }
    }

    /// The states of the given sequences, in this order.
    pub fn select(&self, state: &MixerState, sequences: &[usize]) -> MixerState {
        let rows: Vec<i32> = sequences.iter().map(|sequence| *sequence as i32).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [sequences.len()]), &self.device);
        let conv =
            state.conv.each_ref().map(|past| past.as_ref().map(|past| past.clone().select(0, rows.clone())));
        let memory = state.memory.select(self, sequences, state.positions.len(), rows);
        let positions = sequences.iter().map(|sequence| state.positions[*sequence]).collect();
        MixerState { conv, memory, positions }
    }

    /// One state with the sequences of all given states, one state after the other.
    pub fn join(&self, states: &[&MixerState]) -> MixerState {
        // A fresh sequence has no tokens to convolve; zeros have the same effect.
        let past = |index: usize| {
            let width = states.iter().find_map(|state| state.conv[index].as_ref()).map(|past| past.dims())?;
            let past = |state: &&MixerState| match &state.conv[index] {
                Some(past) => past.clone(),
                None => Tensor::zeros([state.positions.len(), width[1], width[2]], &self.device),
            };
            Some(Tensor::cat(states.iter().map(past).collect(), 0))
        };
        let memories: Vec<_> = states.iter().map(|state| (&state.memory, state.positions.len())).collect();
        let memory = Memory::join(self, &memories);
        let positions = states.iter().flat_map(|state| &state.positions).copied().collect();
        MixerState { conv: std::array::from_fn(past), memory, positions }
    }

    /// The arrays of a state by name. With the positions they are all there is to save.
    pub fn arrays(&self, state: &MixerState) -> StateArrays {
        let convs = state.conv.iter().zip(CONVS).filter_map(|(past, name)| {
            let past = past.as_ref()?;
            Some((name.to_string(), (past.dims().to_vec(), numbers(past))))
        });
        convs.chain(state.memory.arrays(self)).collect()
    }

    /// The inverse of [`Owner::arrays`]; takes the arrays it needs. Memory is allocated only for numbers that the file
    /// holds.
    pub fn restore(&self, positions: &[usize], arrays: &mut Arrays) -> Result<MixerState, FileError> {
        let MixerConfig { num_heads, num_key_heads, head_dim, head_v_dim, conv_size, .. } = *self.config;
        let mut conv = [None, None, None];
        // Sequences with tokens have these arrays. Fresh sequences have them only if they were joined with such
        // sequences and selected again.
        if conv_size > 1 && (arrays.shape(CONVS[0]).is_some() || positions.iter().any(|position| *position > 0)) {
            let (keys, values) = (num_key_heads * head_dim, num_heads * head_v_dim);
            for ((past, name), channels) in conv.iter_mut().zip(CONVS).zip([keys, keys, values]) {
                *past = Some(arrays.tensor(name, [positions.len(), conv_size - 1, channels], &self.device)?);
            }
        }
        let memory = Memory::restore(self, positions, arrays)?;
        Ok(MixerState { conv, memory, positions: positions.to_vec() })
    }
}

impl MixerState {
    /// Moves the state out, and leaves one without sequences. If a call panics before it puts the new state back, later
    /// calls refuse what is left.
    pub(super) fn take(&mut self) -> Self {
        let empty =
            Self { conv: [None, None, None], memory: Memory::Cache(Cache::default()), positions: Vec::new() };
        std::mem::replace(self, empty)
    }

    /// Size of all its numbers, in bytes.
    pub fn bytes(&self) -> usize {
        let conv: usize = self.conv.iter().flatten().map(|past| past.dims().iter().product::<usize>()).sum();
        (conv + self.memory.size()) * size_of::<f32>()
    }
}
