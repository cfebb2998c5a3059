//! Models on disk, as `config.json` and `model.safetensors`, and saved states.

mod arrays;
mod packed;
mod shards;
mod states;

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use falcon_base::{AtPath, files, nearest};
use safetensors::tensor::TensorView;

pub use self::arrays::{Metadata, NamedArrays, arrays_from_bytes, read_arrays, write_arrays};
use self::arrays::{pytorch, write_stored};
use self::packed::Matrices;
pub use self::shards::{INDEX_FILE, WEIGHTS_FILE, weight_files};
use self::shards::{Shard, shards};
pub use self::states::SavedState;
use crate::config::{ConfigError, ModelConfig, TOKENIZER_KEY, WEIGHT_FORMAT_KEY};
use crate::file_error::FileError;
use crate::init::Init;
use crate::model::Model;
use crate::names::Parameter;
use crate::ops::Engine;
use crate::ops::packed::{PackedMatrix, WeightFormat};

/// Name of the configuration file in the folder of a model.
pub const CONFIG_FILE: &str = "config.json";

/// The largest configuration that is read.
const LARGEST_CONFIG: u64 = 1 << 24;
/// The largest header of a safetensors file; the library has the same limit.
const LARGEST_HEADER: u64 = 100_000_000;
/// Name of the output matrix, which a file may hold even if the embedding serves as the output matrix.
const OUTPUT: &str = "lm_head.weight";
/// Name of the embedding.
const EMBEDDING: &str = "model.embeddings.weight";

impl Model {
    /// Writes `config.json` and `model.safetensors` to `folder`, which is created if necessary. Each file is replaced
    /// atomically.
    pub fn save(&self, folder: &Path) -> Result<(), FileError> {
        self.save_for(folder, None)
    }

    /// Like [`Model::save`], with the fingerprint of the model's tokenizer in `config.json`, by which another
    /// tokenizer can be refused.
    pub fn save_for(&self, folder: &Path, tokenizer: Option<&str>) -> Result<(), FileError> {
        std::fs::create_dir_all(folder).at(folder)?;
        write_stored(&folder.join(WEIGHTS_FILE), &packed::stored(self), &pytorch())?;
        Ok(files::write_file(&folder.join(CONFIG_FILE), self.config_json(tokenizer).as_bytes())?)
    }

    /// The text of `config.json`: the configuration, the fingerprint of the tokenizer if it is known, and the format of
    /// the matrices if it is not `f32`.
    pub fn config_json(&self, tokenizer: Option<&str>) -> String {
        let format = (self.weights() != WeightFormat::F32).then(|| self.weights().to_string());
        self.config().to_json_with(tokenizer, format.as_deref())
    }

    /// Reads a model that [`Model::save`] or another program has written. Weights may be 16-bit floats, which are
    /// converted, and may be in several files that an index lists. Copies of tied weights and rotary frequencies are
    /// accepted if they are consistent. Every name, shape and number is checked.
    ///
    /// A packed model that was saved is packed again, as it was; see [`Model::packed`].
    pub fn load(folder: &Path, device: &Device) -> Result<Self, FileError> {
        Self::load_checked(folder, device, |_, _| Ok(()))
    }

    /// Like [`Model::load`], and passes the bytes of every file to `check` before they are used, so that a caller can
    /// compare checksums without reading a file twice.
    pub fn load_checked<E: From<FileError>>(
        folder: &Path,
        device: &Device,
        mut check: impl FnMut(&Path, &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let path = folder.join(CONFIG_FILE);
        let json = config_text(folder)?;
        check(&path, json.as_bytes())?;
        let config =
            ModelConfig::from_json(&json).map_err(|source| FileError::Config { path: path.clone(), source })?;
        let format = weight_format(&json, &path)?;
        let shards = shards(folder)?;
        // The sizes of the files are checked before memory is allocated for the model that the configuration describes.
        let mut bytes = 0;
        for Shard { path, .. } in &shards {
            bytes += std::fs::metadata(path).at(path).map_err(FileError::from)?.len();
        }
        let weights = if shards.len() == 1 { shards[0].path.clone() } else { folder.join(INDEX_FILE) };
        let least = if format == WeightFormat::Int8 { 1 } else { 2 };
        let (got, expected) = (usize::try_from(bytes / least).unwrap_or(usize::MAX), config.parameter_count());
        if expected > got.saturating_add(1 << 20) {
            return Err(FileError::Count { path: weights, got, expected }.into());
        }
        let mut model = Self::with_init(&config, &mut Init::new(0, device).blank())
            .map_err(|source| FileError::Config { path: path.clone(), source })?;
        if format != WeightFormat::F32 && model.engine() != Engine::Kernels {
            let second =
                "Burn's CPU backend, Device::flex(); for other devices load the model that it was made from";
            let source = ConfigError::Together { first: format!("weight_format {format}"), second: second.into() };
            return Err(FileError::Config { path, source }.into());
        }
        let matrices = Matrices::of(&mut model, format);
        let mut loading = Loading::new(&config, model.parameters(), matrices);
        shards.iter().try_for_each(|shard| loading.read(shard, &mut check))?;
        let (mut found, mut matrices) = loading.finish(&weights)?;
        if format != WeightFormat::F32 {
            model = model.with_packed(format, |name, _| matrices.remove(name).expect("every matrix was found"));
        }
        // Of a packed matrix there are no other numbers.
        Ok(model.with_parameters(|name, numbers| found.remove(name).unwrap_or(numbers)))
    }
}

/// The format of the matrices that a configuration names.
fn weight_format(json: &str, path: &Path) -> Result<WeightFormat, FileError> {
    let json: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let name = match json.get(WEIGHT_FORMAT_KEY) {
        None => return Ok(WeightFormat::F32),
        Some(serde_json::Value::String(name)) => name.clone(),
        Some(other) => other.to_string(),
    };
    name.parse().map_err(|source| FileError::WeightFormat { path: path.into(), source })
}

/// The fingerprint of the tokenizer of the model in `folder`, if its configuration holds one.
pub fn tokenizer_fingerprint(folder: &Path) -> Result<Option<String>, FileError> {
    // A configuration that cannot be parsed is reported where the model is loaded.
    let json: serde_json::Value = serde_json::from_str(&config_text(folder)?).unwrap_or_default();
    Ok(json[TOKENIZER_KEY].as_str().map(String::from))
}

fn config_text(folder: &Path) -> Result<String, FileError> {
    let path = folder.join(CONFIG_FILE);
    String::from_utf8(files::read_file(&path, LARGEST_CONFIG)?)
        .map_err(|error| FileError::Text { path, source: error.utf8_error() })
}

/// The numbers of the parameters of a model, and its packed matrices, by name.
type Loaded = (BTreeMap<String, Vec<f32>>, BTreeMap<String, PackedMatrix>);

/// The weights of a model while its files are read.
struct Loading<'m> {
    config: &'m ModelConfig,
    /// All but packed matrices.
    parameters: Vec<Parameter>,
    matrices: Matrices,
    found: BTreeMap<String, Vec<f32>>,
    /// Tensors that are not parameters, with the file of each.
    unexpected: Vec<(String, std::path::PathBuf)>,
    /// A copy of the embedding under the name of the output matrix, with its file.
    copy: Option<(Vec<f32>, std::path::PathBuf)>,
}

impl<'m> Loading<'m> {
    fn new(config: &'m ModelConfig, mut parameters: Vec<Parameter>, matrices: Matrices) -> Self {
        parameters.retain(|parameter| !matrices.contains(&parameter.name));
        Self { config, parameters, matrices, found: BTreeMap::new(), unexpected: Vec::new(), copy: None }
    }

    fn read<E: From<FileError>>(
        &mut self,
        shard: &Shard,
        check: &mut impl FnMut(&Path, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Shard { path, tensors: listed } = shard;
        // Four bytes for each number, and as much again for optional tensors.
        let limit = 8 * self.config.parameter_count() as u64 + LARGEST_HEADER;
        let bytes = files::read_file(path, limit).map_err(FileError::from)?;
        check(path, &bytes)?;
        let file = arrays::open(&bytes, path)?;
        let tensors = file.tensors();
        if let Some(listed) = listed {
            let wrong = |what: String| FileError::Index { path: path.with_file_name(INDEX_FILE), what };
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(name) = listed.iter().find(|name| !tensors.iter().any(|(present, _)| present == *name)) {
                return Err(wrong(format!("tensor {name:?} should be in {file:?}, which does not have it")).into());
            }
            if let Some((name, _)) = tensors.iter().find(|(name, _)| !listed.contains(name)) {
                return Err(wrong(format!("tensor {name:?} of {file:?} is not listed for that file")).into());
            }
        }
        Ok(tensors.into_iter().try_for_each(|(name, tensor)| self.add(name, &tensor, path))?)
    }

    fn add(&mut self, name: String, tensor: &TensorView<'_>, path: &Path) -> Result<(), FileError> {
        let config = self.config;
        if self.matrices.take(&name, tensor, path)? {
            return Ok(());
        }
        if let Some(parameter) = self.parameters.iter().find(|parameter| parameter.name == name) {
            if tensor.shape() != parameter.shape {
                let (got, expected) = (tensor.shape().to_vec(), parameter.shape.clone());
                return Err(FileError::Shape { path: path.into(), name, got, expected });
            }
            let numbers = arrays::numbers(&name, tensor, path)?;
            self.found.insert(name, numbers);
        } else if name == OUTPUT && config.tie_word_embeddings && !self.matrices.contains(EMBEDDING) {
            self.copy = Some((arrays::numbers(&name, tensor, path)?, path.into()));
        } else if name.ends_with("rotary_emb.inv_freq")
            && let Some(theta) = config.mixer.rope_theta
        {
            let numbers = arrays::numbers(&name, tensor, path)?;
            let dim = config.mixer.head_dim;
            let frequency = |pair: usize| theta.powf(-2.0 * pair as f64 / dim as f64);
            // Within the rounding of 16-bit floats.
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

    /// The numbers of every parameter, and the packed matrices. Errors about missing tensors name the file `weights`.
    fn finish(self, weights: &Path) -> Result<Loaded, FileError> {
        let Self { parameters, matrices, found, unexpected, copy, .. } = self;
        let missing = parameters.iter().find(|parameter| !found.contains_key(&parameter.name));
        let missing = missing.map(|Parameter { name, shape }| (name.clone(), shape.clone()));
        if let Some((name, shape)) = missing.or_else(|| matrices.missing()) {
            let hint = nearest(&name, unexpected.iter().map(|(name, _)| name.as_str()));
            return Err(FileError::Missing { path: weights.into(), name, shape, hint });
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
            _ => Ok((found, matrices.finish())),
        }
    }
}
