//! Options of the tables of kernels and of decoding.

use super::cases::BenchRule;

/// What to time. Empty lists stand for the defaults.
#[derive(Clone, Debug)]
pub struct KernelsOptions {
    /// The rules.
    pub rules: Vec<BenchRule>,
    /// The numbers of tokens per sequence.
    pub tokens: Vec<usize>,
    /// The sizes of keys and values.
    pub dims: Vec<usize>,
    /// The number of heads.
    pub heads: usize,
    /// The number of sequences.
    pub batch: usize,
    /// The numbers of threads. Decoding is always timed on one.
    pub threads: Vec<usize>,
    /// The number of tokens per chunk of the chunked form.
    pub chunk: usize,
    /// The number of timed rounds, after one to warm up.
    pub repeats: u16,
    /// Whether to time kernels.
    pub kernels: bool,
    /// Whether to time decoding.
    pub decode: bool,
}
