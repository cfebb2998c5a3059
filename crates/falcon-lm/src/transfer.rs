//! The weights of a trained model as the start of another run: for another task, or with another tokenizer.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_nn::{CONFIG_FILE, FileError, Model, ModelConfig, PRESETS};
use thiserror::Error;

use crate::config::{Layer, RUN_FILE, RunConfig, RunConfigError};
use crate::data::{TOKENIZER_FILE, Tokenizer, TokenizerError};
use crate::train::{CheckpointError, verify_model};
use crate::trained::{Trained, TrainedError};

/// Why a run cannot start from a model.
#[derive(Debug, Error)]
pub enum TransferError {
    /// There is no model.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// Its files cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its weights are damaged.
    #[error(transparent)]
    Weights(#[from] Box<CheckpointError>),
    /// Its tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// A parameter of the new model that the old one has in another shape.
    #[error(
        "{path}: {name} has shape {there:?} there and {here:?} in the new model; leave out what changes its shape"
    )]
    Shape {
        /// The folder of the model.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// Its shape in the file.
        there: Vec<usize>,
        /// The shape that is asked for.
        here: Vec<usize>,
    },
    /// A parameter of the new model that the old one does not have.
    #[error("{path}: it has no {name}, which the new model needs; leave out what adds it")]
    Missing {
        /// The folder of the model.
        path: PathBuf,
        /// The parameter.
        name: String,
    },
}

/// A model to start from, with the tokenizer that its embedding belongs to.
#[derive(Debug)]
pub struct Pretrained {
    folder: PathBuf,
    model: Model,
    tokenizer: Option<Tokenizer>,
    weights: String,
}

/// What of a vocabulary could be taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Rows of the embedding that were copied.
    pub copied: usize,
    /// Tokens of the new vocabulary that the old one does not have; their rows start from random values.
    pub new: Vec<String>,
    /// Rows of the new embedding.
    pub all: usize,
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copied, new, all } = self;
        write!(f, "{copied} of {all} rows of the embedding are those of its tokens")?;
        let named: Vec<String> =
            new.iter().filter(|name| !name.is_empty()).take(5).map(|n| format!("{n:?}")).collect();
        match new.len() {
            0 => Ok(()),
            count if named.is_empty() => write!(f, ", {count} start from random values"),
            count => write!(f, ", {count} new tokens, such as {}, start from random values", named.join(" ")),
        }
    }
}

impl Pretrained {
    /// Keys for the configuration of a run that starts from the model in `path`: its architecture, and the preset and
    /// size that it was made from as far as they are known.
    pub fn layer(path: &Path) -> Result<Vec<Layer>, TransferError> {
        let folder = Trained::check(path)?;
        let file = folder.join(CONFIG_FILE);
        let json = std::fs::read_to_string(&file).map_err(|error| FileError::Io { path: file.clone(), error })?;
        let config =
            ModelConfig::from_json(&json).map_err(|error| FileError::Config { path: file.clone(), error })?;
        let mut layers = vec![Layer::of("model", "preset", nearest_preset(&config))];
        // Of a checkpoint, the run's own file says it.
        let run = folder.ancestors().take(3).map(|folder| folder.join(RUN_FILE)).find(|file| file.is_file());
        if let Some(run) = run.and_then(|file| Layer::file(&file).ok()) {
            layers.extend(["preset", "size"].into_iter().filter_map(|key| run.only("model", key)));
        }
        layers.push(Layer::model(&file.display().to_string(), &config));
        Ok(layers)
    }

    /// Opens the model in a folder, or the best checkpoint of a run.
    pub fn open(path: &Path, device: &Device) -> Result<Self, TransferError> {
        let folder = Trained::check(path)?;
        let mut weights = verify_model(&folder).map_err(Box::new)?;
        weights.truncate(16);
        let model = Model::load(&folder, device)?;
        let real = std::fs::canonicalize(&folder).unwrap_or_else(|_| folder.clone());
        let near = real.ancestors().take(3).map(|folder| folder.join(TOKENIZER_FILE)).find(|file| file.is_file());
        let tokenizer = near.map(|file| Tokenizer::read(&file)).transpose()?;
        Ok(Self { folder, model, tokenizer, weights })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The beginning of the hash of its weights.
    pub fn weights(&self) -> &str {
        &self.weights
    }

    /// A model of `config` with these weights. Rows of the embedding and of the output follow their tokens: one that
    /// both vocabularies have keeps its row, one that is new starts from the random values that a new model has.
    pub fn start(
        &self,
        config: &RunConfig,
        tokenizer: Option<&Tokenizer>,
        device: &Device,
    ) -> Result<(Model, Rows), TransferError> {
        let mut old = BTreeMap::new();
        self.model.visit_parameters(|name, _, values| {
            old.insert(name.to_string(), (values.shape.clone(), values.to_vec()));
        });
        let fresh = config.model.init(config.train.seed, device).map_err(RunConfigError::from)?;
        let origin = self.origin(tokenizer, config.model.vocab_size);
        for parameter in fresh.parameters() {
            let path = || self.folder.clone();
            let Some((there, _)) = old.get(&parameter.name) else {
                return Err(TransferError::Missing { path: path(), name: parameter.name });
            };
            let rows = is_vocabulary(&parameter.name) && there[1..] == parameter.shape[1..];
            if *there != parameter.shape && !rows {
                let (name, there, here) = (parameter.name, there.clone(), parameter.shape);
                return Err(TransferError::Shape { path: path(), name, there, here });
            }
        }
        let model = fresh.with_parameters(|name, values| {
            let (shape, numbers) = &old[name];
            if !is_vocabulary(name) {
                return numbers.clone();
            }
            let (mut rows, width) = (values.to_vec(), shape[1]);
            for (new, old) in origin.iter().enumerate().filter_map(|(new, old)| Some((new, (*old)?))) {
                rows[new * width..][..width].copy_from_slice(&numbers[old * width..][..width]);
            }
            rows
        });
        let name = |id: usize| tokenizer.and_then(|tokenizer| tokenizer.token(id as u32)).unwrap_or_default();
        let new = origin.iter().enumerate().filter(|(_, old)| old.is_none()).map(|(id, _)| name(id)).collect();
        let copied = origin.iter().flatten().count();
        Ok((model, Rows { copied, new, all: origin.len() }))
    }

    /// For every row of the new vocabulary, the row of the old one with the same token.
    fn origin(&self, tokenizer: Option<&Tokenizer>, rows: usize) -> Vec<Option<usize>> {
        let old_rows = self.model.config().vocab_size;
        match (&self.tokenizer, tokenizer) {
            // Tasks without a tokenizer number their tokens themselves: the same number is the same token only if
            // there are as many.
            (None, None) if old_rows == rows => (0..rows).map(Some).collect(),
            (Some(old), Some(new)) => {
                let known: BTreeMap<String, usize> =
                    (0..old_rows).filter_map(|id| Some((old.token(id as u32)?, id))).collect();
                (0..rows).map(|id| known.get(&new.token(id as u32)?).copied()).collect()
            }
            _ => vec![None; rows],
        }
    }
}

/// Whether a parameter has a row for every token.
fn is_vocabulary(name: &str) -> bool {
    matches!(name, "model.embeddings.weight" | "lm_head.weight")
}

/// The preset whose mixer has most values in common with that of a model.
fn nearest_preset(config: &ModelConfig) -> &'static str {
    let mixer = serde_json::to_value(&config.mixer).expect("a configuration is plain data");
    let common = |preset: &&&str| {
        let other = ModelConfig::preset(preset, "tiny", config.vocab_size).expect("a preset of ours");
        let other = serde_json::to_value(&other.mixer).expect("a configuration is plain data");
        let keys = mixer.as_object().into_iter().flatten();
        keys.filter(|(key, value)| other.get(key.as_str()) == Some(*value)).count()
    };
    PRESETS.iter().rev().max_by_key(common).expect("there are presets")
}
