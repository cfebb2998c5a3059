//! What can be wrong with the files of models and states.

use std::path::PathBuf;

use safetensors::Dtype;
use safetensors::tensor::SafeTensorError;
use thiserror::Error;

use crate::config::ConfigError;

/// What can be wrong with a file.
#[derive(Debug, Error)]
pub enum FileError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// `config.json` is not one.
    #[error("{path}: {error}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: ConfigError,
    },
    /// Cut off within a tensor, or before it.
    #[error("{path}: cut off: tensor {name:?} ends at byte {end}, the file at {length}")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The first tensor that is not whole.
        name: String,
        /// Where it should end.
        end: usize,
        /// Where the file ends.
        length: usize,
    },
    /// No safetensors file.
    #[error("{path}: not a safetensors file: {error}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: SafeTensorError,
    },
    /// A tensor is not there.
    #[error("{path}: no tensor {name:?}, of shape {shape:?}; {hint}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape it should have.
        shape: Vec<usize>,
        /// A similar name that is there.
        hint: String,
    },
    /// A tensor is there that the configuration has no place for.
    #[error("{path}: tensor {name:?} belongs to no part of the model that its configuration describes; {hint}")]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// A similar name that was expected.
        hint: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{path}: tensor {name:?} has shape {got:?}, its configuration says {expected:?}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape.
        got: Vec<usize>,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// Far fewer numbers than the configuration describes.
    #[error("{path}: {got} numbers, its configuration describes a model of {expected}")]
    Count {
        /// The file.
        path: PathBuf,
        /// How many there are.
        got: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A saved state with counts that cannot be.
    #[error("{path}: not a state: {name:?} holds {got}")]
    Number {
        /// The file.
        path: PathBuf,
        /// The array.
        name: String,
        /// What is in it.
        got: String,
    },
    /// A tensor has another type.
    #[error("{path}: tensor {name:?} is {got:?}; only F32, F16 and BF16 can be read")]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        got: Dtype,
    },
    /// A number that is infinite or not a number.
    #[error(
        "{path}: tensor {name:?} holds {got} at index {index:?}; nothing can be computed from it: use a copy from before it was damaged"
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Where the first such number is: one index for every dimension.
        index: Vec<usize>,
        /// The number.
        got: f32,
    },
    /// A folder, a device or a pipe.
    #[error("{path}: not a regular file; give the path of a file")]
    NotRegular {
        /// What was named.
        path: PathBuf,
    },
    /// A file that is larger than anything it could hold.
    #[error("{path}: {got} bytes, where at most {most} are expected; is it the file of something else?")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        got: u64,
        /// The largest length that is read.
        most: u64,
    },
    /// The index of sharded weights is wrong.
    #[error("{path}: {what}")]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong, and with which value.
        what: String,
    },
    /// A known extra tensor that contradicts the model.
    #[error("{path}: tensor {name:?} may be left out of a file, but where it is there {what}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What it should be.
        what: &'static str,
    },
    /// A state that cannot be trusted or read.
    #[error("{path}: {what}")]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
}
