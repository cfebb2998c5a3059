//! Errors of the files of models and states.

use std::path::PathBuf;

use falcon_base::PathError;
use safetensors::Dtype;
use safetensors::tensor::SafeTensorError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::ops::packed::{LARGEST_SCALE, UnknownFormat, WeightFormat};

/// Why a file of a model or a state cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be opened, read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The matrices are in a format that does not exist.
    #[error("{path}: weight_format: {source}")]
    WeightFormat {
        /// The configuration.
        path: PathBuf,
        /// The format.
        source: UnknownFormat,
    },
    /// A matrix is not in the format that the configuration names.
    #[error(
        "{path}: tensor {name:?} is {got:?}, and where config.json says weight_format {weights} it must be \
         {expected:?}; convert the model again"
    )]
    PackedType {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Its number type.
        got: Dtype,
        /// The number type that the format requires.
        expected: Dtype,
        /// The format.
        weights: WeightFormat,
    },
    /// A factor of 8-bit integers that is out of range.
    #[error(
        "{path}: tensor {name:?} holds {got} at index {index:?}, and a scale is from 0 to {LARGEST_SCALE:e}: use a \
         copy from before it was damaged"
    )]
    Scale {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Index of the first such factor.
        index: Vec<usize>,
        /// The factor.
        got: f32,
    },
    /// `config.json` is not text.
    #[error("{path}: not UTF-8: {source}")]
    Text {
        /// The file.
        path: PathBuf,
        /// Where the text ends.
        source: std::str::Utf8Error,
    },
    /// `config.json` is not a valid configuration.
    #[error("{path}: {source}")]
    Config {
        /// The file.
        path: PathBuf,
        /// Why the configuration is refused.
        source: ConfigError,
    },
    /// The file ends within a tensor or before it.
    #[error("{path}: cut off: tensor {name:?} ends at byte {end}, the file at {length}")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The first tensor that is not complete.
        name: String,
        /// Where the tensor should end.
        end: usize,
        /// Length of the file.
        length: usize,
    },
    /// Not a safetensors file.
    #[error("{path}: not a safetensors file: {source}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        source: SafeTensorError,
    },
    /// A tensor is missing.
    #[error("{path}: no tensor {name:?}, of shape {shape:?}; {hint}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The shape that it should have.
        shape: Vec<usize>,
        /// A similar name in the file, or another explanation.
        hint: String,
    },
    /// A tensor that the configuration has no place for.
    #[error("{path}: tensor {name:?} belongs to no part of the model that its configuration describes; {hint}")]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// A similar name that was expected, or another explanation.
        hint: String,
    },
    /// A tensor whose shape differs from the configuration.
    #[error("{path}: tensor {name:?} has shape {got:?}, its configuration says {expected:?}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The shape in the file.
        got: Vec<usize>,
        /// The shape that the configuration requires.
        expected: Vec<usize>,
    },
    /// Far fewer numbers than the configuration describes.
    #[error("{path}: {got} numbers, its configuration describes a model of {expected}")]
    Count {
        /// The file.
        path: PathBuf,
        /// How many numbers the file can hold at most.
        got: usize,
        /// How many the configuration describes.
        expected: usize,
    },
    /// A saved state with impossible contents.
    #[error("{path}: not a state: {name:?} holds {got}")]
    Number {
        /// The file.
        path: PathBuf,
        /// Name of the array.
        name: String,
        /// Its contents.
        got: String,
    },
    /// A tensor of an unsupported number type.
    #[error(
        "{path}: tensor {name:?} is {got:?}; only F32, F16 and BF16 can be read, and I8 for the matrices of a model \
         whose config.json says weight_format int8"
    )]
    Type {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Its number type.
        got: Dtype,
    },
    /// A non-finite number in a tensor.
    #[error(
        "{path}: tensor {name:?} holds {got} at index {index:?}; nothing can be computed from it: use a copy from before it was damaged"
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Index of the first such number, one coordinate for each dimension.
        index: Vec<usize>,
        /// The number.
        got: f32,
    },
    /// The index of sharded weights cannot be parsed.
    #[error("{path}: not an index of sharded weights: {source}")]
    IndexJson {
        /// The index.
        path: PathBuf,
        /// What is wrong with the JSON.
        source: serde_json::Error,
    },
    /// The index of sharded weights does not match the shards.
    #[error("{path}: {what}")]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong, and with which value.
        what: String,
    },
    /// An optional tensor that contradicts the rest of the model.
    #[error("{path}: tensor {name:?} may be left out of a file, but where it is there {what}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// What it should be.
        what: &'static str,
    },
    /// A saved state that is damaged or of another format version.
    #[error("{path}: {what}")]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
}
