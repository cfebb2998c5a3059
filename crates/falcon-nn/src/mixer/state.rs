//! What a mixer keeps of a sequence.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::{Device, Int, Tensor, TensorData};
use falcon_kernels::{Rule, Sizes, State};

use super::attention::Cache;
use super::project::ConvState;
use crate::config::MixerConfig;
use crate::files::FileError;
use crate::ops::Engine;
use crate::ops::rule::RuleState;
use crate::ops::tensor::numbers;

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

    /// The state before any token.
    pub fn fresh(&self, sequences: usize) -> MixerState {
        let memory = match self.rule {
            Some(rule) => {
                let state = State::fresh(rule, &self.sizes(sequences));
                Memory::Rule(Some(RuleState::new(self.engine, rule, state, &self.device)))
            }
            None => Memory::Cache(Cache::default()),
        };
        MixerState { conv: [None, None, None], memory, positions: vec![0; sequences] }
    }

    /// The states of some sequences, in this order.
    pub fn select(&self, state: &MixerState, sequences: &[usize]) -> MixerState {
        let rows: Vec<i32> = sequences.iter().map(|sequence| *sequence as i32).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [sequences.len()]), &self.device);
        let conv =
            state.conv.each_ref().map(|past| past.as_ref().map(|past| past.clone().select(0, rows.clone())));
        let memory = match (&state.memory, self.rule) {
            (Memory::Rule(memory), Some(rule)) => {
                let all = memory.as_ref().expect("a call puts the state back").to_state(rule);
                Memory::Rule(Some(RuleState::new(self.engine, rule, all.select(sequences), &self.device)))
            }
            (Memory::Cache(cache), _) => Memory::Cache(cache.select(sequences, state.positions.len(), rows)),
            (Memory::Rule(_), None) => panic!("the state is of another mixer"),
        };
        let positions = sequences.iter().map(|sequence| state.positions[*sequence]).collect();
        MixerState { conv, memory, positions }
    }

    /// The sequences of all these states, one after the other.
    pub fn join(&self, states: &[&MixerState]) -> MixerState {
        // A sequence that has read nothing has no past to convolve: zeros, as if there were.
        let past = |index: usize| {
            let width = states.iter().find_map(|state| state.conv[index].as_ref()).map(|past| past.dims())?;
            let of = |state: &&MixerState| match &state.conv[index] {
                Some(past) => past.clone(),
                None => Tensor::zeros([state.positions.len(), width[1], width[2]], &self.device),
            };
            Some(Tensor::cat(states.iter().map(of).collect(), 0))
        };
        let memory = match self.rule {
            Some(rule) => {
                let of = |state: &&MixerState| match &state.memory {
                    Memory::Rule(Some(memory)) => memory.to_state(rule),
                    _ => panic!("the state is of another mixer"),
                };
                let all = State::join(&states.iter().map(of).collect::<Vec<_>>());
                Memory::Rule(Some(RuleState::new(self.engine, rule, all, &self.device)))
            }
            None => {
                let of = |state: &&MixerState| match &state.memory {
                    Memory::Cache(cache) => (cache.clone(), state.positions.len()),
                    Memory::Rule(_) => panic!("the state is of another mixer"),
                };
                Memory::Cache(Cache::join(states.iter().map(of).collect()))
            }
        };
        let positions = states.iter().flat_map(|state| &state.positions).copied().collect();
        MixerState { conv: std::array::from_fn(past), memory, positions }
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

    /// Undoes [`Owner::arrays`], taking what it needs. Nothing is made that the file does not hold.
    pub fn restore(&self, positions: &[usize], arrays: &mut Arrays) -> Result<MixerState, FileError> {
        let sequences = positions.len();
        let MixerConfig { num_heads, num_key_heads, head_dim, head_v_dim, conv_size, .. } = *self.config;
        let mut conv = [None, None, None];
        // Sequences that have begun have them; others may, where they were taken from among such.
        if conv_size > 1 && (arrays.shape(CONVS[0]).is_some() || positions.iter().any(|position| *position > 0)) {
            let (keys, values) = (num_key_heads * head_dim, num_heads * head_v_dim);
            for ((past, name), channels) in conv.iter_mut().zip(CONVS).zip([keys, keys, values]) {
                *past = Some(arrays.tensor(name, [sequences, conv_size - 1, channels], &self.device)?);
            }
        }
        let memory = match self.rule {
            Some(rule) => {
                let state = arrays.rule_state(rule, &self.sizes(sequences), positions)?;
                Memory::Rule(Some(RuleState::new(self.engine, rule, state, &self.device)))
            }
            None => Memory::Cache(self.cache(positions, arrays)?),
        };
        Ok(MixerState { conv, memory, positions: positions.to_vec() })
    }

    fn cache(&self, positions: &[usize], arrays: &mut Arrays) -> Result<Cache, FileError> {
        let (sequences, config) = (positions.len(), self.config);
        let names = |part: usize| [format!("cache.{part}.keys"), format!("cache.{part}.values")];
        let count = (0..sequences).take_while(|part| arrays.shape(&names(*part)[0]).is_some()).count();
        // Of all sequences together, or one by one, or of none that has read anything.
        let together = count == 1 && positions.iter().all(|position| *position == positions[0]);
        let nothing = count == 0 && positions.iter().all(|position| *position == 0);
        if count < sequences && !together && !nothing {
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

/// The arrays of a file, of which one mixer takes those that begin with its prefix.
pub(crate) struct Arrays {
    pub of: BTreeMap<String, Array>,
    /// For messages.
    pub path: PathBuf,
    pub prefix: String,
}

impl Arrays {
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.of.get(&self.name(name)).map(|(shape, _)| shape.as_slice())
    }

    fn take(&mut self, name: &str, expected: &[usize]) -> Result<Vec<f32>, FileError> {
        let (path, name) = (self.path.clone(), self.name(name));
        match self.of.remove(&name) {
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

    /// Whole numbers, which files hold as exact floats.
    pub fn counts(&mut self, name: &str, shape: &[usize]) -> Result<Vec<usize>, FileError> {
        let numbers = self.take(name, shape)?;
        let whole = |x: &f32| (*x >= 0.0 && *x < (1 << 24) as f32 && x.fract() == 0.0).then_some(*x as usize);
        let counts: Result<_, f32> = numbers.iter().map(|x| whole(x).ok_or(*x)).collect();
        counts.map_err(|got| self.refuse(name, format!("{got}, which is no count")))
    }

    /// The error that says what an array holds that cannot be.
    pub fn refuse(&self, name: &str, got: String) -> FileError {
        FileError::Number { path: self.path.clone(), name: self.name(name), got }
    }

    fn rule_state(&mut self, rule: &Rule, sizes: &Sizes, positions: &[usize]) -> Result<State<f32>, FileError> {
        let &Sizes { sequences, heads, dim_k, dim_v, .. } = sizes;
        let memory = self.take("memory", &[sequences, heads, dim_k, rule.state_columns(dim_v)])?;
        let mut state = State::fresh(rule, sizes);
        let [_, last_key, tail_keys, tail_values] = state.shapes();
        (state.memory, state.last_key) = (memory, self.take("last_key", &last_key)?);
        if rule.tail_capacity() > 0 {
            state.tail_x = self.take("tail_keys", &tail_keys)?;
            state.tail_v = self.take("tail_values", &tail_values)?;
        }
        let counts = self.counts("counts", &[2, sequences])?;
        let (tails, started) = counts.split_at(sequences);
        state.tail_len = tails.to_vec();
        state.started = started.iter().map(|started| *started > 0).collect();
        if state.started.iter().zip(positions).any(|(started, position)| *started != (*position > 0)) {
            return Err(self.refuse("counts", "sequences that have begun without a token, or the reverse".into()));
        }
        state.check(rule, sizes).map_err(|error| self.refuse("counts", error.to_string()))?;
        Ok(state)
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
            Memory::Cache(cache) => cache.numbers(),
        };
        (conv + memory) * size_of::<f32>()
    }
}
