//! What a mixer keeps for a batch of sequences between two calls.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::{Device, Int, Tensor, TensorData};
use falcon_kernels::rule::Align;
use falcon_kernels::{Rule, Sizes, State};

use super::attention::Cache;
use super::project::ConvState;
use crate::config::Mechanism;
use crate::config::MixerConfig;
use crate::file_error::FileError;
use crate::ops::Engine;
use crate::ops::rule::RuleState;
use crate::ops::tensor::numbers;

/// The state of a batch of sequences in one mixer. Its size is fixed, except with softmax attention.
///
/// It carries no gradient: a piece of a sequence learns from its own tokens only.
#[derive(Clone, Debug)]
pub struct MixerState {
    pub(crate) conv: ConvState,
    pub(super) memory: Memory,
    /// Number of tokens of each sequence so far.
    pub(crate) positions: Vec<usize>,
}

/// The memory of a mechanism.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    Rule(RuleState),
    Cache(Cache),
}

/// Shape and numbers.
pub(crate) type ShapedArray = (Vec<usize>, Vec<f32>);

/// The mixer that a state belongs to.
pub(crate) struct Owner<'a> {
    pub config: &'a MixerConfig,
    pub mechanism: &'a Mechanism,
    pub engine: Engine,
    pub device: Device,
}

impl Owner<'_> {
    fn sizes(&self, sequences: usize) -> Sizes {
        let config = self.config;
        Sizes {
            tokens: 0,
            sequences,
            heads: config.num_heads,
            key_heads: config.num_key_heads,
            dim_k: config.head_dim,
            dim_v: config.head_v_dim,
        }
    }

    fn rule_memory(&self, rule: &Rule, state: State<f32>) -> Memory {
        Memory::Rule(RuleState::new(self.engine, rule, state, &self.device))
    }

    /// The state before any token.
    pub fn fresh(&self, sequences: usize) -> MixerState {
        let memory = match self.mechanism {
            Mechanism::Rule(rule) => self.rule_memory(rule, State::fresh(rule, &self.sizes(sequences))),
            Mechanism::Softmax => Memory::Cache(Cache::default()),
        };
        MixerState { conv: [None, None, None], memory, positions: vec![0; sequences] }
    }

    /// The states of the given sequences, in this order.
    pub fn select(&self, state: &MixerState, sequences: &[usize]) -> MixerState {
        let rows: Vec<i32> = sequences.iter().map(|sequence| *sequence as i32).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [sequences.len()]), &self.device);
        let conv =
            state.conv.each_ref().map(|past| past.as_ref().map(|past| past.clone().select(0, rows.clone())));
        let memory = match (self.mechanism, &state.memory) {
            (Mechanism::Rule(rule), Memory::Rule(memory)) => {
                self.rule_memory(rule, memory.to_state(rule).select(sequences))
            }
            (Mechanism::Softmax, Memory::Cache(cache)) => {
                Memory::Cache(cache.select(sequences, state.positions.len(), rows))
            }
            _ => panic!("{OTHER_MIXER}"),
        };
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
        let memory = match self.mechanism {
            Mechanism::Rule(rule) => {
                let memory = |state: &&MixerState| match &state.memory {
                    Memory::Rule(memory) => memory.to_state(rule),
                    Memory::Cache(_) => panic!("{OTHER_MIXER}"),
                };
                self.rule_memory(rule, State::join(&states.iter().map(memory).collect::<Vec<_>>()))
            }
            Mechanism::Softmax => {
                let cache = |state: &&MixerState| match &state.memory {
                    Memory::Cache(cache) => (cache.clone(), state.positions.len()),
                    Memory::Rule(_) => panic!("{OTHER_MIXER}"),
                };
                Memory::Cache(Cache::join(states.iter().map(cache).collect()))
            }
        };
        let positions = states.iter().flat_map(|state| &state.positions).copied().collect();
        MixerState { conv: std::array::from_fn(past), memory, positions }
    }

    /// The arrays of a state by name. With the positions they are all there is to save.
    pub fn arrays(&self, state: &MixerState) -> Vec<(String, ShapedArray)> {
        let mut arrays = Vec::new();
        let mut add = |name: &str, shape: Vec<usize>, data: Vec<f32>| arrays.push((name.into(), (shape, data)));
        for (past, name) in state.conv.iter().zip(CONVS) {
            if let Some(past) = past {
                add(name, past.dims().to_vec(), numbers(past));
            }
        }
        match (self.mechanism, &state.memory) {
            (Mechanism::Rule(rule), Memory::Rule(memory)) => {
                let state = memory.to_state(rule);
                let [memory, last_key, tail_keys, tail_values] = state.shapes();
                if rule.tail_capacity() > 0 {
                    add("tail_keys", tail_keys, state.tail_x);
                    add("tail_values", tail_values, state.tail_v);
                }
                add("memory", memory, state.memory);
                add("last_key", last_key, state.last_key);
            }
            (Mechanism::Softmax, Memory::Cache(cache)) => {
                for (part, (k, v)) in cache.parts().iter().enumerate() {
                    add(&format!("cache.{part}.keys"), k.dims().to_vec(), numbers(k));
                    add(&format!("cache.{part}.values"), v.dims().to_vec(), numbers(v));
                }
            }
            _ => panic!("{OTHER_MIXER}"),
        }
        arrays
    }

    /// The inverse of [`Owner::arrays`]; takes the arrays it needs. Memory is allocated only for numbers that the file
    /// holds.
    pub fn restore(&self, positions: &[usize], arrays: &mut Arrays) -> Result<MixerState, FileError> {
        let sequences = positions.len();
        let MixerConfig { num_heads, num_key_heads, head_dim, head_v_dim, conv_size, .. } = *self.config;
        let mut conv = [None, None, None];
        // Sequences with tokens have them; fresh ones may, if they were joined with such sequences and selected again.
        if conv_size > 1 && (arrays.shape(CONVS[0]).is_some() || positions.iter().any(|position| *position > 0)) {
            let (keys, values) = (num_key_heads * head_dim, num_heads * head_v_dim);
            for ((past, name), channels) in conv.iter_mut().zip(CONVS).zip([keys, keys, values]) {
                *past = Some(arrays.tensor(name, [sequences, conv_size - 1, channels], &self.device)?);
            }
        }
        let memory = match self.mechanism {
            Mechanism::Rule(rule) => {
                self.rule_memory(rule, arrays.rule_state(rule, &self.sizes(sequences), positions)?)
            }
            Mechanism::Softmax => Memory::Cache(self.cache(positions, arrays)?),
        };
        Ok(MixerState { conv, memory, positions: positions.to_vec() })
    }

    fn cache(&self, positions: &[usize], arrays: &mut Arrays) -> Result<Cache, FileError> {
        let (sequences, config) = (positions.len(), self.config);
        let names = |part: usize| [format!("cache.{part}.keys"), format!("cache.{part}.values")];
        let count = (0..sequences).take_while(|part| arrays.shape(&names(*part)[0]).is_some()).count();
        // One part for all sequences, one for each, or none if all are fresh.
        let together = count == 1 && positions.iter().all(|position| *position == positions[0]);
        let fresh = count == 0 && positions.iter().all(|position| *position == 0);
        if count < sequences && !together && !fresh {
            return Err(arrays.refuse("cache", format!("{count} parts for {sequences} sequences")));
        }
        let batch = if together { sequences } else { 1 };
        let mut parts = Vec::new();
        for (part, time) in positions.iter().enumerate().take(count) {
            let [keys, values] = names(part);
            let k = arrays.tensor(&keys, [batch, config.num_heads, *time, config.head_dim], &self.device)?;
            let v = arrays.tensor(&values, [batch, config.num_heads, *time, config.head_v_dim], &self.device)?;
            parts.push((k, v));
        }
        Ok(Cache::from_parts(parts))
    }
}

/// The arrays of a saved state. Each mixer takes those that begin with its prefix.
pub(crate) struct Arrays {
    pub arrays: BTreeMap<String, ShapedArray>,
    /// The file, for error messages.
    pub path: PathBuf,
    pub prefix: String,
}

impl Arrays {
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.arrays.get(&self.name(name)).map(|(shape, _)| shape.as_slice())
    }

    fn take(&mut self, name: &str, expected: &[usize]) -> Result<Vec<f32>, FileError> {
        let (path, name) = (self.path.clone(), self.name(name));
        match self.arrays.remove(&name) {
            Some((shape, data)) if shape == expected => Ok(data),
            Some((got, _)) => Err(FileError::Shape { path, name, got, expected: expected.to_vec() }),
            None => {
                let hint = "is it the state of another model?".into();
                Err(FileError::Missing { path, name, shape: expected.to_vec(), hint })
            }
        }
    }

    fn tensor<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
        device: &Device,
    ) -> Result<Tensor<D>, FileError> {
        let data = self.take(name, &shape)?;
        Ok(Tensor::from_data(TensorData::new(data, shape), device))
    }

    fn refuse(&self, name: &str, got: String) -> FileError {
        FileError::Number { path: self.path.clone(), name: self.name(name), got }
    }

    fn rule_state(&mut self, rule: &Rule, sizes: &Sizes, positions: &[usize]) -> Result<State<f32>, FileError> {
        let &Sizes { sequences, heads, dim_k, dim_v, .. } = sizes;
        // Before a state is allocated: its size must be that of the file.
        let memory = self.take("memory", &[sequences, heads, dim_k, rule.state_columns(dim_v)])?;
        let mut state = State::fresh(rule, sizes);
        let [_, last_key, tail_keys, tail_values] = state.shapes();
        (state.memory, state.last_key) = (memory, self.take("last_key", &last_key)?);
        if rule.tail_capacity() > 0 {
            state.tail_x = self.take("tail_keys", &tail_keys)?;
            state.tail_v = self.take("tail_values", &tail_values)?;
        }
        state.started = positions.iter().map(|position| *position > 0).collect();
        state.tail_len = positions.iter().map(|position| tail_length(rule, *position)).collect();
        Ok(state)
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

/// Names of the states of the convolutions.
const CONVS: [&str; 3] = ["conv.queries", "conv.keys", "conv.values"];

pub(super) const OTHER_MIXER: &str = "the state belongs to another mixer";

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
        let memory = match &self.memory {
            Memory::Rule(memory) => memory.numbers(),
            Memory::Cache(cache) => cache.numbers(),
        };
        (conv + memory) * size_of::<f32>()
    }
}
