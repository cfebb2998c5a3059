//! Models on disk: `config.json` and `model.safetensors`, as the field exchanges them; and their states.

mod arrays;
mod error;
mod shards;
mod states;

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use safetensors::tensor::TensorView;

pub use self::arrays::{
    ASIDE, Metadata, NamedArrays, aside_file, read_arrays, read_file, write_arrays, write_file,
};
pub use self::error::FileError;
pub use self::shards::{INDEX_FILE, weight_files};
use self::shards::{Shard, shards};
pub use self::states::{read_sealed, write_sealed};
use crate::config::{ModelConfig, TOKENIZER_KEY, nearest};
use crate::init::Init;
use crate::model::Model;
use crate::names::Parameter;

/// Name of the configuration in a model's folder.
pub const CONFIG_FILE: &str = "config.json";
/// Name of the weights in a model's folder.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// No configuration is larger.
const LARGEST_CONFIG: u64 = 1 << 24;
/// No header of a safetensors file is larger; the library has the same limit.
const LARGEST_HEADER: u64 = 100_000_000;
/// The output matrix, which a file may have although it is the embedding.
const OUTPUT: &str = "lm_head.weight";
/// The embedding.
const EMBEDDING: &str = "model.embeddings.weight";

impl Model {
    /// Writes `config.json` and `model.safetensors` to `folder`, which is made if need be. Each file is written aside and then put in
    /// its place, so that a kill leaves the old one or the new one.
    pub fn save(&self, folder: &Path) -> Result<(), FileError> {
        self.save_for(folder, None)
    }

    /// The same of a model whose tokenizer has this fingerprint, which `config.json` keeps: with another tokenizer
    /// the model would read and write nonsense.
    pub fn save_for(&self, folder: &Path, tokenizer: Option<&str>) -> Result<(), FileError> {
        std::fs::create_dir_all(folder).map_err(|error| FileError::Io { path: folder.into(), error })?;
        let mut arrays = BTreeMap::new();
        self.visit_parameters(|name, _, values| {
            arrays.insert(name.to_string(), (values.shape.clone(), values.to_vec()));
        });
        write_arrays(&folder.join(WEIGHTS_FILE), &arrays)?;
        let path = folder.join(CONFIG_FILE);
        let json = self.config().to_json_for(tokenizer);
        write_file(&path, json.as_bytes()).map_err(|error| FileError::Io { path, error })
    }

    /// Reads what [`Model::save`] wrote, or the same model as others write it: with weights of 16 bits, which are
    /// converted, in several files that an index lists, and with copies of what follows from the rest. Every name,
    /// shape and number is checked.
    pub fn load(folder: &Path, device: &Device) -> Result<Self, FileError> {
        let path = folder.join(CONFIG_FILE);
        let config = ModelConfig::from_json(&config_text(folder)?)
            .map_err(|error| FileError::Config { path: path.clone(), error })?;
        let shards = shards(folder)?;
        // A configuration of another model could ask for any amount of memory.
        let mut bytes = 0;
        for Shard { path, .. } in &shards {
            let about = std::fs::metadata(path).map_err(|error| FileError::Io { path: path.clone(), error })?;
            bytes += about.len();
        }
        let weights = if shards.len() == 1 { shards[0].path.clone() } else { folder.join(INDEX_FILE) };
        let (got, expected) = (usize::try_from(bytes / 2).unwrap_or(usize::MAX), config.parameter_count());
        if expected > got.saturating_add(1 << 20) {
            return Err(FileError::Count { path: weights, got, expected });
        }
        let model = Self::with_init(&config, &mut Init::new(0, device).blank())
            .map_err(|error| FileError::Config { path, error })?;
        let mut loading = Loading::new(&model);
        shards.iter().try_for_each(|shard| loading.read(shard))?;
        let mut found = loading.finish(&weights)?;
        Ok(model.with_parameters(|name, _| found.remove(name).expect("every parameter was found")))
    }
}

/// The fingerprint of the tokenizer of the model in `folder`, if its configuration has it.
pub fn tokenizer_fingerprint(folder: &Path) -> Result<Option<String>, FileError> {
    // What is wrong with a configuration is said where it is used.
    let json: serde_json::Value = serde_json::from_str(&config_text(folder)?).unwrap_or_default();
    Ok(json[TOKENIZER_KEY].as_str().map(String::from))
}

fn config_text(folder: &Path) -> Result<String, FileError> {
    let path = folder.join(CONFIG_FILE);
    String::from_utf8(read_file(&path, LARGEST_CONFIG)?)
        .map_err(|error| FileError::Io { path, error: std::io::Error::other(error.utf8_error()) })
}

/// The weights of a model on their way from files.
struct Loading<'m> {
    config: &'m ModelConfig,
    parameters: Vec<Parameter>,
    found: BTreeMap<String, Vec<f32>>,
    /// Tensors that are no parameters, with the file of each.
    unexpected: Vec<(String, std::path::PathBuf)>,
    /// A copy of the embedding under the name of the output matrix, and its file.
    copy: Option<(Vec<f32>, std::path::PathBuf)>,
}

impl<'m> Loading<'m> {
    fn new(model: &'m Model) -> Self {
        let (found, unexpected) = (BTreeMap::new(), Vec::new());
        Self { config: model.config(), parameters: model.parameters(), found, unexpected, copy: None }
    }

    fn read(&mut self, shard: &Shard) -> Result<(), FileError> {
        let Shard { path, tensors: listed } = shard;
        // Four bytes for each number, and as much again for what may be there beside them.
        let most = 8 * self.config.parameter_count() as u64 + LARGEST_HEADER;
        let bytes = read_file(path, most)?;
        let file = arrays::open(&bytes, path)?;
        let tensors = file.tensors();
        if let Some(listed) = listed {
            let wrong = |what: String| FileError::Index { path: path.with_file_name(INDEX_FILE), what };
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(name) = listed.iter().find(|name| !tensors.iter().any(|(there, _)| there == *name)) {
                return Err(wrong(format!("tensor {name:?} should be in {file:?}, which does not have it")));
            }
            if let Some((name, _)) = tensors.iter().find(|(name, _)| !listed.contains(name)) {
                return Err(wrong(format!("tensor {name:?} of {file:?} is not listed for that file")));
            }
        }
        tensors.into_iter().try_for_each(|(name, tensor)| self.add(name, &tensor, path))
    }

    fn add(&mut self, name: String, tensor: &TensorView<'_>, path: &Path) -> Result<(), FileError> {
        let config = self.config;
        if let Some(parameter) = self.parameters.iter().find(|parameter| parameter.name == name) {
            if tensor.shape() != parameter.shape {
                let (got, expected) = (tensor.shape().to_vec(), parameter.shape.clone());
                return Err(FileError::Shape { path: path.into(), name, got, expected });
            }
            let numbers = arrays::numbers(&name, tensor, path)?;
            self.found.insert(name, numbers);
        } else if name == OUTPUT && config.tie_word_embeddings {
            self.copy = Some((arrays::numbers(&name, tensor, path)?, path.into()));
        } else if name.ends_with("rotary_emb.inv_freq")
            && let Some(theta) = config.mixer.rope_theta
        {
            let numbers = arrays::numbers(&name, tensor, path)?;
            let dim = config.mixer.head_dim;
            let frequency = |pair: usize| theta.powf(-2.0 * pair as f64 / dim as f64);
            // Within the rounding of 16 bits.
            let near = |(pair, got): (usize, &f32)| (f64::from(*got) / frequency(pair) - 1.0).abs() < 0.01;
            if numbers.len() != dim / 2 || !numbers.iter().enumerate().all(near) {
                let what = "it must be rope_theta^(-2i / head_dim) for every pair i of a head";
                return Err(FileError::Inconsistent { path: path.into(), name, what });
            }
        } else {
            self.unexpected.push((name, path.into()));
        }
        Ok(())
    }

    /// The numbers of every parameter. `weights` is the file that is named where one is missing.
    fn finish(self, weights: &Path) -> Result<BTreeMap<String, Vec<f32>>, FileError> {
        let Self { parameters, found, unexpected, copy, .. } = self;
        if let Some(Parameter { name, shape }) = parameters.iter().find(|one| !found.contains_key(&one.name)) {
            let hint = nearest(name, unexpected.iter().map(|(name, _)| name.as_str()));
            let (path, name, shape) = (weights.into(), name.clone(), shape.clone());
            return Err(FileError::Missing { path, name, shape, hint });
        }
        if let Some((name, path)) = unexpected.into_iter().next() {
            let hint = nearest(&name, parameters.iter().map(|parameter| parameter.name.as_str()));
            return Err(FileError::Unexpected { path, name, hint });
        }
        match copy {
            Some((numbers, path)) if found.get(EMBEDDING) != Some(&numbers) => {
                let what = "it must equal model.embeddings.weight, because config.json says tie_word_embeddings";
                Err(FileError::Inconsistent { path, name: OUTPUT.into(), what })
            }
            _ => Ok(found),
        }
    }
}
