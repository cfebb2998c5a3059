//! Benchmark cases: a rule on random inputs of some size.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use falcon_kernels::rule::{Columns, Decay, Gain};
use falcon_kernels::{Call, Form, Inputs, Rule, View};
use falcon_lm::memory;
use rayon::ThreadPool;

use super::error::BenchError;
use crate::threads;

/// A rule and its name.
#[derive(Clone, Copy, Debug)]
pub struct BenchRule {
    /// The name.
    pub name: &'static str,
    /// The rule.
    pub rule: Rule,
}

/// The rule of this name.
pub fn named_rule(name: &str) -> Result<BenchRule, BenchError> {
    named_rules().find(|rule| rule.name == name).ok_or_else(|| BenchError::Rule {
        name: name.into(),
        known: named_rules().map(|rule| rule.name).collect::<Vec<_>>().join(", "),
    })
}

/// All rules.
pub(super) fn named_rules() -> impl Iterator<Item = BenchRule> {
    Rule::ALL.into_iter().map(|(name, rule)| BenchRule { name, rule })
}

/// The sizes of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CaseSize {
    /// Tokens per sequence.
    pub tokens: usize,
    /// The size of a key and of a value.
    pub dim: usize,
    pub heads: usize,
    /// The number of sequences.
    pub batch: usize,
}

impl CaseSize {
    /// The memory of its tensors, in bytes: about twelve arrays, each with a number per token, head and dimension.
    pub fn bytes(self) -> usize {
        let Self { tokens, dim, heads, batch } = self;
        product(&[tokens, dim, heads, batch, 12 * size_of::<f32>()])
    }

    /// Refuses a case that would not fit into memory.
    pub fn check(self) -> Result<Self, BenchError> {
        check_memory([self.bytes()], "tokens, heads or dims").map(|()| self)
    }

    /// The number of tokens of all sequences.
    pub fn all_tokens(self) -> usize {
        self.tokens * self.batch
    }
}

/// The most memory that a benchmark may use, in bytes, where the system has as much.
const LIMIT: u64 = 16 << 30;

/// Refuses a benchmark that needs too much memory in total: a failed allocation would end the process without a
/// message. `options` names the options that determine the size.
pub(super) fn check_memory(
    bytes: impl IntoIterator<Item = usize>,
    options: &'static str,
) -> Result<(), BenchError> {
    let needed = bytes.into_iter().fold(0, usize::saturating_add) as u64;
    let limit = memory::obtainable().map_or(LIMIT, |available| available.min(LIMIT));
    if needed <= limit { Ok(()) } else { Err(BenchError::TooLarge { needed, limit, options }) }
}

/// A product that saturates instead of overflowing.
pub(super) fn product(factors: &[usize]) -> usize {
    factors.iter().copied().fold(1, usize::saturating_mul)
}

/// Random tensors of some size, for any rule.
pub(super) struct CaseTensors {
    pub size: CaseSize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[tokens, heads, dim]`; rules with one gain per head use the first `tokens * heads` numbers.
    beta: Vec<f32>,
    /// Like `beta`.
    eta: Vec<f32>,
    ridge: Vec<f32>,
    gate: Vec<f32>,
    grad_out: Vec<f32>,
    offsets: Vec<usize>,
    /// The outputs, allocated and written before any timing.
    out: RefCell<Vec<f32>>,
}

impl CaseTensors {
    /// Queries and keys of norm 1, normally distributed values, and gains and decays as they occur in training.
    /// `columns`: whether some rule has a gain for each column.
    pub fn new(size: CaseSize, columns: bool) -> Self {
        let CaseSize { dim, heads, .. } = size;
        let rows = size.all_tokens() * heads;
        let gains = if columns { rows * dim } else { rows };
        let mut random = CaseRandom(1);
        Self {
            size,
            q: random.units(rows, dim),
            k: random.units(rows, dim),
            v: random.normals(rows * dim),
            beta: random.uniforms(gains, 0.2, 1.8),
            eta: random.uniforms(gains, 0.1, 0.9),
            ridge: random.uniforms(rows, 0.0, 0.05),
            gate: random.uniforms(rows, 0.95, 1.0),
            grad_out: random.normals(rows * dim),
            offsets: (0..=size.batch).map(|i| i * size.tokens).collect(),
            out: RefCell::new(random.normals(rows * dim)),
        }
    }

    /// The inputs of `rule` for all tokens.
    pub fn inputs(&self, rule: &Rule) -> Result<Inputs<'_, f32>, BenchError> {
        self.inputs_from(rule, 0, self.size.all_tokens(), &self.offsets)
    }

    /// The inputs of `rule` for a single token.
    pub fn token(&self, rule: &Rule, token: usize) -> Result<Inputs<'_, f32>, BenchError> {
        self.inputs_from(rule, token, 1, &[0, 1])
    }

    /// The inputs of `rule` for `tokens` tokens, beginning with the token `start`.
    fn inputs_from<'a>(
        &'a self,
        rule: &Rule,
        start: usize,
        tokens: usize,
        offsets: &'a [usize],
    ) -> Result<Inputs<'a, f32>, BenchError> {
        let CaseSize { dim, heads, .. } = self.size;
        let view = |data: &'a [f32], width: usize| {
            View::new(&data[start * heads * width..][..tokens * heads * width], [tokens, heads, width])
        };
        let width = if rule.columns == Columns::Each { dim } else { 1 };
        let gain = match rule.gain {
            Gain::Unit => None,
            Gain::Beta => Some(view(&self.beta, width)?),
            Gain::Eta => Some(view(&self.eta, width)?),
        };
        let decay = match rule.decay {
            Decay::None => None,
            Decay::Ridge | Decay::ScaledRidge { .. } => Some(view(&self.ridge, 1)?),
            Decay::Gate => Some(view(&self.gate, 1)?),
        };
        let (q, k, v) = (view(&self.q, dim)?, view(&self.k, dim)?, view(&self.v, dim)?);
        Ok(Inputs { q, k, v, gain, decay, offsets })
    }

    /// Seconds of one forward call on `pool`.
    pub fn forward(&self, rule: &Rule, chunk: usize, pool: &ThreadPool) -> Result<f64, BenchError> {
        let (inputs, form) = (self.inputs(rule)?, Form::Chunked { chunk });
        let (mut state, mut out) = (Call::new(rule, form, inputs)?.fresh_state(), self.out.borrow_mut());
        let out = &mut out[..];
        pool.install(|| {
            // The checks are timed: a caller waits for them too.
            let start = Instant::now();
            Call::new(rule, form, inputs)?.forward(&mut state, out)?;
            Ok(start.elapsed().as_secs_f64())
        })
    }

    /// Seconds of one forward and one backward call on `pool`.
    pub fn both(&self, rule: &Rule, chunk: usize, pool: &ThreadPool) -> Result<f64, BenchError> {
        let (inputs, form) = (self.inputs(rule)?, Form::Chunked { chunk });
        let (mut state, mut out) = (Call::new(rule, form, inputs)?.fresh_state(), self.out.borrow_mut());
        let (out, grad_out) = (&mut out[..], &self.grad_out[..]);
        pool.install(|| {
            let start = Instant::now();
            let call = Call::new(rule, form, inputs)?;
            let tape = call.record(&mut state, out)?;
            let grads = tape.backward(&call, grad_out, None)?;
            let seconds = start.elapsed().as_secs_f64();
            // Freeing the gradients is not timed.
            drop(grads);
            Ok(seconds)
        })
    }
}

/// Thread pools by their number of threads.
#[derive(Default)]
pub(super) struct Pools(BTreeMap<usize, ThreadPool>);

impl Pools {
    /// The pool of `threads` threads, which is started if necessary.
    pub fn add(&mut self, threads: usize) -> Result<&ThreadPool, BenchError> {
        use std::collections::btree_map::Entry;
        Ok(match self.0.entry(threads) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(threads::pool(threads)?),
        })
    }

    /// All pools, the smallest first.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &ThreadPool)> {
        self.0.iter().map(|(&threads, pool)| (threads, pool))
    }
}

/// SplitMix64: fast, and with the same numbers in every run.
struct CaseRandom(u64);

impl CaseRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn uniforms(&mut self, len: usize, low: f32, high: f32) -> Vec<f32> {
        (0..len).map(|_| low + (high - low) * ((self.next() >> 40) as f32 / (1u32 << 24) as f32)).collect()
    }

    /// Approximately normal: the sum of four uniform numbers, the quarters of one random word, scaled to variance 1.
    fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| {
                let word = self.next();
                let sum: u64 = (0..4).map(|i| (word >> (16 * i)) & 0xFFFF).sum();
                (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
            })
            .collect()
    }

    /// Rows of norm 1.
    fn units(&mut self, rows: usize, dim: usize) -> Vec<f32> {
        let mut data = self.normals(rows * dim);
        for row in data.chunks_exact_mut(dim) {
            let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            row.iter_mut().for_each(|x| *x /= norm);
        }
        data
    }
}
