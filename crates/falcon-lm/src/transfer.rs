//! Starts a run from the weights of a trained model, also for another task or with another tokenizer.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_base::{AtPath, PathError};
use falcon_nn::{CONFIG_FILE, ConfigError, Model, ModelConfig, PRESETS, WeightFormat};
use thiserror::Error;

use crate::config::{Layer, RUN_FILE, RunConfig, RunConfigError};
use crate::data::{Tokenizer, TokenizerError};
use crate::train::{CheckpointError, load_model};
use crate::trained::{Trained, TrainedError, near_tokenizer, short};

/// Why a run cannot start from a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// No trained model is there.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// The model's configuration cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The model's configuration is impossible.
    #[error("{path}: {source}")]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// The model is damaged, or cannot be read.
    #[error(transparent)]
    Weights(#[from] Box<CheckpointError>),
    /// The model's tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The configuration of the new run is impossible.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// The weights of the model were rounded for inference.
    #[error(
        "{path}: its weights were converted to {weights} to generate with: start from the model that it was made from"
    )]
    Converted {
        /// The folder of the model.
        path: PathBuf,
        /// The format of its weights.
        weights: WeightFormat,
    },
    /// A parameter has another shape in the new model.
    #[error(
        "{path}: {name} has shape {there:?} there and {here:?} in the new model; leave out the keys that change its shape"
    )]
    Shape {
        /// The folder of the model.
        path: PathBuf,
        /// The parameter.
        name: String,
        /// Its shape in the trained model.
        there: Vec<usize>,
        /// Its shape in the new model.
        here: Vec<usize>,
    },
    /// The new model has a parameter that the trained model does not have.
    #[error("{path}: it has no {name}, which the new model needs; leave out the keys that add it")]
    Missing {
        /// The folder of the model.
        path: PathBuf,
        /// The parameter.
        name: String,
    },
}

/// A trained model to start from, with its tokenizer if it has one.
#[derive(Debug)]
pub struct Pretrained {
    folder: PathBuf,
    model: Model,
    tokenizer: Option<Tokenizer>,
    weights: String,
}

/// How many rows of the vocabulary were copied from the trained model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Rows of the embedding that were copied.
    pub copied: usize,
    /// Tokens that the trained model's vocabulary does not have; their rows are initialised at random.
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
    /// Layers for the configuration of a run that starts from the model in `path`: its architecture, and its preset and
    /// size as far as they are known.
    pub fn layer(path: &Path) -> Result<Vec<Layer>, TransferError> {
        let folder = Trained::check(path)?;
        let file = folder.join(CONFIG_FILE);
        let json = std::fs::read_to_string(&file).at(&file)?;
        let config =
            ModelConfig::from_json(&json).map_err(|source| TransferError::Model { path: file.clone(), source })?;
        let mut layers = vec![Layer::of("model", "preset", nearest_preset(&config))];
        // A checkpoint is within the folder of its run, whose configuration has the preset and the size.
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
        let (model, weights) = load_model(&folder, device).map_err(Box::new)?;
        if model.weights() != WeightFormat::F32 {
            return Err(TransferError::Converted { path: folder, weights: model.weights() });
        }
        let tokenizer = near_tokenizer(&folder).map(|file| Tokenizer::read(&file)).transpose()?;
        Ok(Self { folder, model, tokenizer, weights: short(weights) })
    }

    /// The folder of the model.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The first 16 hexadecimal digits of the SHA-256 of its weights.
    pub fn weights(&self) -> &str {
        &self.weights
    }

    /// A model of `config` with these weights. A token that both vocabularies have keeps its row of the embedding and
    /// of the output matrix; the row of a new token is initialised as in a new model.
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
            let (mut rows, width) = (values, shape[1]);
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

    /// For every row of the new vocabulary, the row of the trained model with the same token.
    fn origin(&self, tokenizer: Option<&Tokenizer>, rows: usize) -> Vec<Option<usize>> {
        let old_rows = self.model.config().vocab_size;
        match (&self.tokenizer, tokenizer) {
            // Without tokenizers, the same number is taken for the same token if both vocabularies have the same size.
            (None, None) if old_rows == rows => (0..rows).map(Some).collect(),
            (Some(old), Some(new)) => {
                let old_ids: BTreeMap<String, usize> =
                    (0..old_rows).filter_map(|id| Some((old.token(id as u32)?, id))).collect();
                (0..rows).map(|id| old_ids.get(&new.token(id as u32)?).copied()).collect()
            }
            _ => vec![None; rows],
        }
    }
}

/// Whether a parameter has one row per token.
fn is_vocabulary(name: &str) -> bool {
    matches!(name, "model.embeddings.weight" | "lm_head.weight")
}

/// The preset whose mixer shares the most values with that of a model.
fn nearest_preset(config: &ModelConfig) -> &'static str {
    let mixer = serde_json::to_value(&config.mixer).expect("a configuration is plain data");
    let common = |preset: &&&str| {
        let other = ModelConfig::preset(preset, "tiny", config.vocab_size).expect("presets are valid");
        let other = serde_json::to_value(&other.mixer).expect("a configuration is plain data");
        let keys = mixer.as_object().into_iter().flatten();
        keys.filter(|(key, value)| other.get(key.as_str()) == Some(*value)).count()
    };
    PRESETS.iter().rev().max_by_key(common).expect("there are presets")
}
