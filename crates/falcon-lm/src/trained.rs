//! A trained model with its tokenizer.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_nn::{CONFIG_FILE, FileError, Model, WEIGHTS_FILE, WeightFormat};
use thiserror::Error;

use crate::config::RUN_FILE;
use crate::data::{TOKENIZER_FILE, Tokenizer, TokenizerError};
use crate::train::{CheckpointError, FolderError, best_checkpoint, load_model, tokenizer_fingerprints};

/// A trained model and its tokenizer.
#[derive(Debug)]
pub struct Trained {
    /// The model.
    pub model: Model,
    /// The tokenizer that the model was trained with.
    pub tokenizer: Tokenizer,
    /// The folder of the model.
    pub folder: PathBuf,
    /// The first 16 hexadecimal digits of the SHA-256 of its weights, and their format if they were packed after they
    /// were read.
    pub weights: String,
}

/// Why a trained model cannot be opened or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainedError {
    /// The folder holds neither a run nor a model.
    #[error(
        "{path}: neither a run nor a model: a run has {RUN_FILE}, a model has {CONFIG_FILE} and {WEIGHTS_FILE}"
    )]
    None {
        /// The folder.
        path: PathBuf,
    },
    /// The run has no checkpoint yet.
    #[error("{path}: the run has no checkpoint yet")]
    Early {
        /// The run.
        path: PathBuf,
    },
    /// The run's folder cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file of the model cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The model is damaged, or cannot be read.
    #[error(transparent)]
    Weights(#[from] Box<CheckpointError>),
    /// No tokenizer was found.
    #[error(
        "{path}: no {TOKENIZER_FILE} beside the model or above it: name one with --tokenizer; `falcon train` writes it when a \
         run starts or resumes"
    )]
    NoTokenizer {
        /// The model.
        path: PathBuf,
    },
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The weights were converted to another format earlier.
    #[error(
        "{path}: its weights were converted to {held}, and what was rounded away is lost: for {asked} take the model \
         that it was made from, or leave out --weights"
    )]
    Converted {
        /// The model.
        path: PathBuf,
        /// The format of its weights.
        held: WeightFormat,
        /// The format asked for.
        asked: WeightFormat,
    },
    /// The model computes a value that is not finite.
    #[error("{path}: {what} is {got}: the model is broken, and its predictions cannot be evaluated")]
    NotFinite {
        /// The model.
        path: PathBuf,
        /// What was computed.
        what: String,
        /// The value.
        got: f64,
    },
    /// The tokenizer cannot encode a text.
    #[error("{what}: {source}")]
    Text {
        /// Which text.
        what: String,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// The tokenizer has the size of the model's vocabulary, but is not the one that the model was trained with.
    #[error(
        "{name}: the tokenizer has the fingerprint {tokenizer}, and the model in {path} was trained with {model}: its tokens \
         mean other text; name the model's own tokenizer with --tokenizer"
    )]
    OtherTokenizer {
        /// The model.
        path: PathBuf,
        /// The tokenizer: a file, or the name it was given by.
        name: PathBuf,
        /// Fingerprint of the tokenizer.
        tokenizer: String,
        /// Fingerprint of the one that the model was trained with.
        model: String,
    },
    /// The tokenizer does not have the size of the model's vocabulary.
    #[error(
        "{name}: the tokenizer has {tokenizer} tokens, the model in {path} was made for {model}: it belongs to another model; \
         name the model's own tokenizer with --tokenizer"
    )]
    Mismatch {
        /// The model.
        path: PathBuf,
        /// The tokenizer: a file, or the name it was given by.
        name: PathBuf,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Tokens of the model.
        model: usize,
    },
}

impl Trained {
    /// The folder of the model that [`Trained::open`] would open: `path` itself, or the best checkpoint of the run in
    /// it.
    pub fn check(path: &Path) -> Result<PathBuf, TrainedError> {
        if path.join(CONFIG_FILE).is_file() {
            Ok(path.to_path_buf())
        } else if path.join(RUN_FILE).is_file() {
            best_checkpoint(path)?.ok_or_else(|| TrainedError::Early { path: path.into() })
        } else {
            Err(TrainedError::None { path: path.into() })
        }
    }

    /// Opens the model in a folder, or the best checkpoint of a run. The tokenizer is the one named, or the one beside
    /// the model or in a folder above it.
    pub fn open(path: &Path, tokenizer: Option<&str>, device: &Device) -> Result<Self, TrainedError> {
        let folder = Self::check(path)?;
        let (name, tokenizer) = match tokenizer {
            Some(name) => (name.into(), Tokenizer::open(name)?),
            None => {
                let found = near_tokenizer(&folder);
                let found = found.ok_or_else(|| TrainedError::NoTokenizer { path: folder.clone() })?;
                let tokenizer = Tokenizer::read(&found)?;
                (found, tokenizer)
            }
        };
        let (model, weights) = load_model(&folder, device).map_err(Box::new)?;
        if tokenizer.size() != model.config().vocab_size {
            let (tokenizer, model) = (tokenizer.size(), model.config().vocab_size);
            return Err(TrainedError::Mismatch { path: folder, name, tokenizer, model });
        }
        if let Some([tokenizer, model]) = tokenizer_fingerprints(&folder, &tokenizer).map_err(Box::new)?
            && tokenizer != model
        {
            return Err(TrainedError::OtherTokenizer { path: folder, name, tokenizer, model });
        }
        Ok(Self { model, tokenizer, folder, weights: short(weights) })
    }

    /// The model with its weights in this format, see [`Model::packed`]; without one, or if it was converted to this
    /// format earlier, as it is. What a packed model says differs slightly from what the model says, so neither its
    /// results nor its states are taken for those of the model.
    pub fn with_weights(self, format: Option<WeightFormat>) -> Result<Self, TrainedError> {
        let held = self.model.weights();
        match format {
            None => Ok(self),
            Some(format) if format == held => Ok(self),
            Some(asked) if held != WeightFormat::F32 => {
                Err(TrainedError::Converted { path: self.folder, held, asked })
            }
            Some(format) => {
                let weights = format!("{}-{format}", self.weights);
                Ok(Self { model: self.model.packed(format), weights, ..self })
            }
        }
    }
}

/// The tokenizer's file beside a model, or in a folder above it: checkpoints are two folders below their run.
pub(crate) fn near_tokenizer(folder: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.into());
    real.ancestors().take(3).map(|folder| folder.join(TOKENIZER_FILE)).find(|path| path.is_file())
}

/// The part of the SHA-256 of weights that identifies them in results.
pub(crate) fn short(mut weights: String) -> String {
    weights.truncate(16);
    weights
}

#[cfg(test)]
mod tests {
    use falcon_nn::ModelConfig;

    use super::*;

    /// The name of the folder is not UTF-8. Every error about a tokenizer says which one does not fit the model.
    #[cfg(unix)]
    #[test]
    fn a_model_is_opened_with_its_own_tokenizer_only() {
        use std::os::unix::ffi::OsStrExt;
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        let model = ModelConfig::preset("retnet", "micro", 257).unwrap().init(0, &Device::flex()).unwrap();
        model.save(&folder).unwrap();
        let open = |tokenizer| Trained::open(&folder, tokenizer, &Device::flex());
        assert!(open(None).unwrap_err().to_string().contains("name one with --tokenizer"));
        Tokenizer::bytes().save(&folder.join(TOKENIZER_FILE)).unwrap();
        let trained = open(None).unwrap();
        assert_eq!(trained.tokenizer, Tokenizer::bytes());
        assert_eq!(trained.weights, short(crate::train::sum(&folder.join(WEIGHTS_FILE)).unwrap()));
        // A tokenizer of the same size, but not the one that the model was trained with.
        model.save_for(&folder, Some("0123456789abcdef")).unwrap();
        let error = open(None).unwrap_err().to_string();
        let fingerprint = Tokenizer::bytes().vocabulary_fingerprint();
        assert!(error.contains(&fingerprint) && error.contains("trained with 0123456789abcdef"), "{error}");
        fs::write(folder.join(CONFIG_FILE), model.config().to_json()).unwrap();
        fs::write(folder.join("progress.json"), r#"{"task": {"tokenizer": "fedcba9876543210"}}"#).unwrap();
        let error = open(None).unwrap_err().to_string();
        assert!(error.contains("trained with fedcba9876543210"), "{error}");
        model.save_for(&folder, Some(&fingerprint)).unwrap();
        assert!(open(None).is_ok());
        let other = root.path().join("other.json");
        Tokenizer::learn(260, ["one two ".repeat(9)].into_iter()).unwrap().save(&other).unwrap();
        let error = open(other.to_str()).unwrap_err().to_string();
        assert!(
            error.contains("other.json: the tokenizer has 260 tokens") && error.contains("made for 257"),
            "{error}"
        );
    }
}
