//! What a mixer keeps of a sequence.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use falcon_kernels::{Rule, Sizes, State};

use super::attention::Cache;
use super::project::ConvState;
use crate::config::MixerConfig;
use crate::files::FileError;
use crate::ops::Path;
use crate::ops::rule::RuleState;

/// What a mixer keeps of a batch of sequences: of fixed size, unless it is softmax attention.
///
/// It carries no gradient: a piece of a sequence learns from its own tokens, and what came before is given.
#[derive(Clone, Debug)]
pub struct MixerState {
    pub(crate) conv: ConvState,
    pub(crate) memory: Memory,
    /// Tokens of each sequence so far.
    pub(crate) positions: Vec<usize>,
}

/// The memory proper.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// Always there between calls.
    Rule(Option<RuleState>),
    Cache(Cache),
}

/// Shape and numbers.
pub(crate) type Array = (Vec<usize>, Vec<f32>);

/// Which mixer a state belongs to.
pub(crate) struct Owner<'a> {
    pub config: &'a MixerConfig,
    pub rule: Option<&'a Rule>,
    pub path: Path,
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

    /// The state before any token.
    pub fn fresh(&self, sequences: usize) -> MixerState {
        let memory = match self.rule {
            Some(rule) => {
                let state = State::fresh(rule, &self.sizes(sequences));
                Memory::Rule(Some(RuleState::new(self.path, rule, state, &self.device)))
            }
            None => Memory::Cache(Cache::default()),
        };
        MixerState { conv: [None, None, None], memory, positions: vec![0; sequences] }
    }

    /// Everything in a state but the positions, by name.
    pub fn arrays(&self, state: &MixerState) -> Vec<(String, Array)> {
        let mut arrays = Vec::new();
        let mut add = |name: &str, shape: Vec<usize>, data: Vec<f32>| arrays.push((name.into(), (shape, data)));
        for (past, name) in state.conv.iter().zip(CONVS) {
            if let Some(past) = past {
                add(name, past.dims().to_vec(), numbers(past));
            }
        }
        match (&state.memory, self.rule) {
            (Memory::Rule(memory), Some(rule)) => {
                let state = memory.as_ref().expect("a call puts the state back").to_state(rule);
                let [memory, last_key, tail_keys, tail_values] = state.shapes();
                if rule.tail_capacity() > 0 {
                    add("tail_keys", tail_keys, state.tail_x);
                    add("tail_values", tail_values, state.tail_v);
                }
                let counts = state.tail_len.iter().map(|length| *length as f32);
                let started = state.started.iter().map(|started| f32::from(u8::from(*started)));
                add("counts", vec![2, state.started.len()], counts.chain(started).collect());
                add("memory", memory, state.memory);
                add("last_key", last_key, state.last_key);
            }
            (Memory::Cache(cache), _) => {
                for (part, (k, v)) in cache.parts().iter().enumerate() {
                    add(&format!("cache.{part}.keys"), k.dims().to_vec(), numbers(k));
                    add(&format!("cache.{part}.values"), v.dims().to_vec(), numbers(v));
                }
            }
            (Memory::Rule(_), None) => panic!("the state is of another mixer"),
        }
        arrays
    }

    /// Undoes [`Owner::arrays`], taking what it needs.
    pub fn restore(&self, positions: Vec<usize>, mut arrays: Arrays<'_>) -> Result<MixerState, FileError> {
        let sequences = positions.len();
        let mut state = self.fresh(sequences);
        let begun = positions.iter().any(|position| *position > 0);
        let MixerConfig { num_heads, num_key_heads, head_dim, head_v_dim, conv_size, .. } = *self.config;
        if begun && conv_size > 1 {
            let (keys, values) = (num_key_heads * head_dim, num_heads * head_v_dim);
            for ((past, name), channels) in state.conv.iter_mut().zip(CONVS).zip([keys, keys, values]) {
                *past = Some(arrays.tensor(name, [sequences, conv_size - 1, channels], &self.device)?);
            }
        }
        match (&mut state.memory, self.rule) {
            (Memory::Rule(memory), Some(rule)) => {
                let numbers = arrays.rule_state(rule, &self.sizes(sequences))?;
                *memory = Some(RuleState::new(self.path, rule, numbers, &self.device));
            }
            (Memory::Cache(cache), _) if begun => {
                // Equally long sequences are one part, others one each.
                let together = positions.iter().all(|position| *position == positions[0]);
                let (count, batch) = if together { (1, sequences) } else { (sequences, 1) };
                let mut parts = Vec::new();
                for (part, time) in positions.iter().enumerate().take(count) {
                    let keys = [batch, num_heads, *time, head_dim];
                    let values = [batch, num_heads, *time, head_v_dim];
                    let k = arrays.tensor(&format!("cache.{part}.keys"), keys, &self.device)?;
                    let v = arrays.tensor(&format!("cache.{part}.values"), values, &self.device)?;
                    parts.push((k, v));
                }
                *cache = Cache::from_parts(parts);
            }
            _ => {}
        }
        state.positions = positions;
        Ok(state)
    }
}

/// The arrays of a file, of which one mixer takes those that begin with its prefix.
pub(crate) struct Arrays<'a> {
    pub of: &'a mut BTreeMap<String, Array>,
    pub prefix: String,
}

impl Arrays<'_> {
    fn take(&mut self, name: &str, expected: &[usize]) -> Result<Vec<f32>, FileError> {
        let name = format!("{}{name}", self.prefix);
        let (got, data) = self.of.remove(&name).unwrap_or_default();
        if got == expected { Ok(data) } else { Err(FileError::State { name, got, expected: expected.to_vec() }) }
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

    fn rule_state(&mut self, rule: &Rule, sizes: &Sizes) -> Result<State<f32>, FileError> {
        let mut state = State::fresh(rule, sizes);
        let [memory, last_key, tail_keys, tail_values] = state.shapes();
        (state.memory, state.last_key) = (self.take("memory", &memory)?, self.take("last_key", &last_key)?);
        if rule.tail_capacity() > 0 {
            state.tail_x = self.take("tail_keys", &tail_keys)?;
            state.tail_v = self.take("tail_values", &tail_values)?;
        }
        let counts = self.take("counts", &[2, sizes.sequences])?;
        let (tails, started) = counts.split_at(sizes.sequences);
        state.tail_len = tails.iter().map(|length| *length as usize).collect();
        state.started = started.iter().map(|started| *started != 0.0).collect();
        match state.check(rule, sizes) {
            Ok(()) => Ok(state),
            Err(error) => Err(FileError::Counts { name: format!("{}counts", self.prefix), error }),
        }
    }
}

/// Names of the convolutions' states.
const CONVS: [&str; 3] = ["conv.queries", "conv.keys", "conv.values"];

impl MixerState {
    /// Numbers held, in bytes.
    pub fn bytes(&self) -> usize {
        let conv: usize = self.conv.iter().flatten().map(|past| past.dims().iter().product::<usize>()).sum();
        let memory = match &self.memory {
            Memory::Rule(memory) => memory.as_ref().map_or(0, RuleState::numbers),
            Memory::Cache(cache) => {
                let sizes = cache
                    .parts()
                    .iter()
                    .map(|(k, v)| k.dims().iter().product::<usize>() + v.dims().iter().product::<usize>());
                sizes.sum()
            }
        };
        (conv + memory) * size_of::<f32>()
    }
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().expect("states are f32")
}
