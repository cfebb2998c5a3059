//! A model that was trained, and what makes text of its tokens.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_nn::{CONFIG_FILE, FileError, Model, WEIGHTS_FILE};
use thiserror::Error;

use crate::config::RUN_FILE;
use crate::data::{TOKENIZER_FILE, Tokenizer, TokenizerError};
use crate::train::{CheckpointError, FolderError, best_checkpoint, fingerprints, verify_model};

/// A model and its tokenizer.
#[derive(Debug)]
pub struct Trained {
    /// The model.
    pub model: Model,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Where the model is.
    pub folder: PathBuf,
    /// What tells its weights from others: the beginning of their hash.
    pub weights: String,
}

/// Why there is none.
#[derive(Debug, Error)]
pub enum TrainedError {
    /// Nothing there is a model.
    #[error(
        "{path}: neither a run nor a model: a run has {RUN_FILE}, a model has {CONFIG_FILE} and {WEIGHTS_FILE}"
    )]
    None {
        /// The folder.
        path: PathBuf,
    },
    /// A run without a model yet.
    #[error("{path}: the run has no checkpoint yet")]
    Early {
        /// The run.
        path: PathBuf,
    },
    /// The run's folder cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The model cannot be.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its weights cannot be read.
    #[error(transparent)]
    Weights(#[from] Box<CheckpointError>),
    /// It has no tokenizer.
    #[error(
        "{path}: no {TOKENIZER_FILE} beside the model or above it: name one with --tokenizer; a run of `falcon train` writes it when it begins or goes on"
    )]
    NoTokenizer {
        /// The model.
        path: PathBuf,
    },
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// What it computes is no number.
    #[error("{path}: {what} is {got}: the model is broken, and nothing it says can be measured")]
    NotFinite {
        /// The model.
        path: PathBuf,
        /// What was measured.
        what: String,
        /// What came of it.
        got: f64,
    },
    /// A text that the tokenizer cannot encode.
    #[error("{what}: {error}")]
    Text {
        /// What text.
        what: String,
        /// What is wrong with it.
        error: TokenizerError,
    },
    /// A tokenizer of the same size, but not the one that the model was trained with.
    #[error(
        "{name}: the tokenizer has the fingerprint {tokenizer}, and the model in {path} was trained with {model}: its tokens mean other text; name the model's own with --tokenizer"
    )]
    OtherTokenizer {
        /// The model.
        path: PathBuf,
        /// The tokenizer: a file, or what it was called.
        name: PathBuf,
        /// Fingerprint of the tokenizer.
        tokenizer: String,
        /// Fingerprint of the one that the model was trained with.
        model: String,
    },
    /// Another model's.
    #[error(
        "{name}: the tokenizer has {tokenizer} tokens, the model in {path} was made for {model}: it is another one's; name its own with --tokenizer"
    )]
    Mismatch {
        /// The model.
        path: PathBuf,
        /// The tokenizer: a file, or what it was called.
        name: PathBuf,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Tokens of the model.
        model: usize,
    },
}

impl Trained {
    /// The folder of the model that [`Trained::open`] would open.
    pub fn check(path: &Path) -> Result<PathBuf, TrainedError> {
        if path.join(CONFIG_FILE).is_file() {
            Ok(path.to_path_buf())
        } else if path.join(RUN_FILE).is_file() {
            best_checkpoint(path)?.ok_or_else(|| TrainedError::Early { path: path.into() })
        } else {
            Err(TrainedError::None { path: path.into() })
        }
    }

    /// From a run's folder, whose best checkpoint it takes, or from a folder with a model. The tokenizer is the one named, or that beside the
    /// model or in a folder above it.
    pub fn open(path: &Path, tokenizer: Option<&str>, device: &Device) -> Result<Self, TrainedError> {
        let folder = Self::check(path)?;
        let (name, tokenizer) = match tokenizer {
            Some(name) => (name.into(), Tokenizer::open(name)?),
            None => {
                let real = fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone());
                // Checkpoints are two folders below their run.
                let near = real.ancestors().take(3).map(|folder| folder.join(TOKENIZER_FILE));
                let found = near.into_iter().find(|path| path.is_file());
                let found = found.ok_or_else(|| TrainedError::NoTokenizer { path: folder.clone() })?;
                let tokenizer = Tokenizer::read(&found)?;
                (found, tokenizer)
            }
        };
        let mut weights = verify_model(&folder).map_err(Box::new)?;
        let model = Model::load(&folder, device)?;
        if tokenizer.size() != model.config().vocab_size {
            let (tokenizer, model) = (tokenizer.size(), model.config().vocab_size);
            return Err(TrainedError::Mismatch { path: folder, name, tokenizer, model });
        }
        if let Some([tokenizer, model]) = fingerprints(&folder, &tokenizer).map_err(Box::new)?
            && tokenizer != model
        {
            return Err(TrainedError::OtherTokenizer { path: folder, name, tokenizer, model });
        }
        weights.truncate(16);
        Ok(Self { model, tokenizer, folder, weights })
    }
}

#[cfg(test)]
mod tests {
    use falcon_nn::ModelConfig;

    use super::*;

    /// Names of folders need not be text, and a tokenizer that does not fit is named.
    #[cfg(unix)]
    #[test]
    fn models_are_opened_wherever_they_are() {
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
        let mut weights = crate::train::sum(&folder.join(WEIGHTS_FILE)).unwrap();
        weights.truncate(16);
        assert_eq!(trained.weights, weights);
        // One of the same size, but not the one that the model was trained with.
        model.save_for(&folder, Some("0123456789abcdef")).unwrap();
        let said = open(None).unwrap_err().to_string();
        let fingerprint = Tokenizer::bytes().vocabulary_fingerprint();
        assert!(said.contains(&fingerprint) && said.contains("trained with 0123456789abcdef"), "{said}");
        fs::write(folder.join(CONFIG_FILE), model.config().to_json()).unwrap();
        fs::write(folder.join("progress.json"), r#"{"task": {"tokenizer": "fedcba9876543210"}}"#).unwrap();
        let said = open(None).unwrap_err().to_string();
        assert!(said.contains("trained with fedcba9876543210"), "{said}");
        model.save_for(&folder, Some(&fingerprint)).unwrap();
        assert!(open(None).is_ok());
        let other = root.path().join("other.json");
        Tokenizer::learn(260, ["one two ".repeat(9)].into_iter()).unwrap().save(&other).unwrap();
        let said = open(other.to_str()).unwrap_err().to_string();
        assert!(
            said.contains("other.json: the tokenizer has 260 tokens") && said.contains("made for 257"),
            "{said}"
        );
    }
}
