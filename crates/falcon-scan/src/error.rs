//! The reasons for which a scan is refused or fails, with the values that caused them and what to do about them.

use falcon_kernels::solvers::SolverError;
use safetensors::SafeTensorError;
use thiserror::Error;

/// Why a scan was refused or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The bytes are not a safetensors file.
    #[error("not a valid safetensors file: {0}; write it again with the safetensors library")]
    Format(#[from] SafeTensorError),
    /// A header that names a tensor twice.
    #[error("the safetensors header names {name:?} twice: every tensor needs a name of its own")]
    Duplicate {
        /// The repeated name.
        name: String,
    },
    /// Metadata without an entry `meta`.
    #[error(
        "the file has no metadata entry \"meta\": save it with metadata={{\"meta\": json.dumps({{...}})}}, \
         see `falcon scan --help`"
    )]
    NoMeta,
    /// `meta` is not JSON.
    #[error("the metadata entry \"meta\" must be a JSON object: {0}")]
    MetaJson(#[from] serde_json::Error),
    /// `meta` is JSON, but not an object.
    #[error("the metadata entry \"meta\" must be a JSON object: it is {value}")]
    MetaNoObject {
        /// Its value, as JSON.
        value: String,
    },
    /// A key that the variant needs is missing from `meta`.
    #[error("meta has no {key:?}, which {needed_by} needs: add it, {expected}")]
    MetaMissing {
        /// The key.
        key: &'static str,
        /// What needs it.
        needed_by: String,
        /// The values allowed.
        expected: String,
    },
    /// A value of `meta` that cannot be used.
    #[error("meta key {key:?} is {value}: expected {expected}")]
    MetaValue {
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
        /// The values allowed.
        expected: String,
    },
    /// `meta` and the tensors disagree.
    #[error("meta key {key:?} is {value}, but {fact}: correct one of them, or leave the key out")]
    MetaConflict {
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
        /// The fact that contradicts it.
        fact: String,
    },
    /// A tensor that is missing.
    #[error("{tensor} is missing: {why}")]
    Missing {
        /// Which tensor.
        tensor: String,
        /// What needs it.
        why: String,
    },
    /// A tensor that the variant does not use with the options of the file.
    #[error("{variant} does not use {tensor} with these options: leave it out, or check its name")]
    Unused {
        /// Which tensor.
        tensor: String,
        /// Which variant.
        variant: &'static str,
    },
    /// A tensor of the wrong shape.
    #[error("{tensor} has shape {got:?}, expected {expected} ({axes})")]
    Shape {
        /// Which tensor.
        tensor: String,
        /// Its shape.
        got: Vec<usize>,
        /// The shape that fits the other tensors.
        expected: String,
        /// The meaning of the axes.
        axes: &'static str,
    },
    /// A size that must not be zero.
    #[error("{tensor} has shape {shape:?}: {what} must be at least 1")]
    Zero {
        /// Which tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Which size.
        what: &'static str,
    },
    /// Heads that cannot be grouped.
    #[error("in.v has {heads} heads and in.q {key_heads}: the heads of in.v must be a multiple of those of in.q")]
    Groups {
        /// Value heads.
        heads: usize,
        /// Query and key heads.
        key_heads: usize,
    },
    /// A tensor in a number format that is not read.
    #[error("{tensor} is {dtype}: use {allowed}")]
    Dtype {
        /// Which tensor.
        tensor: String,
        /// Its number format.
        dtype: String,
        /// The formats that can be read.
        allowed: &'static str,
    },
    /// NaN or infinity in the input.
    #[error("{tensor}{index:?} is {value}: inputs must be finite")]
    NotFinite {
        /// Which tensor.
        tensor: String,
        /// Its index.
        index: Vec<usize>,
        /// The value.
        value: f64,
    },
    /// A finite number that the chosen arithmetic cannot hold.
    #[error("{tensor}{index:?} is {value:e}, too large for f32: use --dtype f64")]
    TooLarge {
        /// Which tensor.
        tensor: String,
        /// Its index.
        index: Vec<usize>,
        /// The value.
        value: f64,
    },
    /// A number outside the range its meaning allows.
    #[error("{tensor}{index:?} is {value}: {meaning} must be {allowed}")]
    Range {
        /// Which tensor.
        tensor: String,
        /// Its index.
        index: Vec<usize>,
        /// The value.
        value: f64,
        /// What the number means.
        meaning: String,
        /// The values allowed.
        allowed: String,
    },
    /// Offsets that do not cut the tokens into sequences.
    #[error(
        "in.cu_seqlens[{position}] is {got}: offsets must start at 0, never fall, and end at {tokens} (the tokens)"
    )]
    Offsets {
        /// Its index.
        position: usize,
        /// The value.
        got: i64,
        /// Number of tokens.
        tokens: usize,
    },
    /// A fresh sequence without tokens, beside sequences that have some.
    #[error(
        "sequence {sequence} of in.cu_seqlens is fresh and has no tokens, so that out.k_last would have no key for it: \
         leave the empty sequence out"
    )]
    EmptySequence {
        /// Which sequence.
        sequence: usize,
    },
    /// More memory than allowed.
    #[error(
        "this needs about {} of memory, more than the {} allowed: use smaller sizes, a smaller window B, \
         another --form or --chunk, or raise --max-memory", gib(*needed), gib(*allowed as f64)
    )]
    Memory {
        /// Bytes needed, as estimated.
        needed: f64,
        /// Bytes allowed.
        allowed: u64,
    },
    /// A result that is not finite.
    #[error("the result {tensor}{index:?} is {value}: the inputs are too large for {dtype}; {advice}")]
    Overflow {
        /// Which tensor.
        tensor: String,
        /// Its index.
        index: Vec<usize>,
        /// The value.
        value: f64,
        /// The arithmetic.
        dtype: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The kernels refused the call for a reason not covered above.
    #[error(transparent)]
    Kernel(#[from] falcon_kernels::Error),
    /// A solver refused the call for a reason not covered above.
    #[error(transparent)]
    Solver(#[from] SolverError),
}

fn gib(bytes: f64) -> String {
    let (unit, name) = if bytes < f64::from(1 << 30) { (1 << 20, "MiB") } else { (1 << 30, "GiB") };
    format!("{:.1} {name}", bytes / f64::from(unit))
}
