//! Models on disk: `config.json` and `model.safetensors`, as the field exchanges them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};
use thiserror::Error;

use crate::config::{ConfigError, ModelConfig, nearest};
use crate::init::Init;
use crate::mixer::Arrays;
use crate::model::{Model, ModelState};

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
    #[error("{path}: tensor {name:?} is {got:?}, only F32 can be read")]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        got: Dtype,
    },
}

/// Name of the configuration in a model's folder.
pub const CONFIG_FILE: &str = "config.json";
/// Name of the weights in a model's folder.
pub const WEIGHTS_FILE: &str = "model.safetensors";

impl Model {
    /// Writes `config.json` and `model.safetensors` to `folder`, which is made if need be. Each file is written aside and then put in
    /// its place, so that a kill leaves the old one or the new one.
    pub fn save(&self, folder: &Path) -> Result<(), FileError> {
        std::fs::create_dir_all(folder).map_err(|error| FileError::Io { path: folder.into(), error })?;
        let mut arrays = BTreeMap::new();
        self.visit_parameters(|name, _, values| {
            arrays.insert(name.to_string(), (values.shape.clone(), values.to_vec()));
        });
        write_arrays(&folder.join(WEIGHTS_FILE), &arrays)?;
        let path = folder.join(CONFIG_FILE);
        write_file(&path, self.config().to_json().as_bytes()).map_err(|error| FileError::Io { path, error })
    }

    /// Reads what [`Model::save`] wrote. Every name and shape is checked.
    pub fn load(folder: &Path, device: &Device) -> Result<Self, FileError> {
        let path = folder.join(CONFIG_FILE);
        let json = std::fs::read_to_string(&path).map_err(|error| FileError::Io { path: path.clone(), error })?;
        let config =
            ModelConfig::from_json(&json).map_err(|error| FileError::Config { path: path.clone(), error })?;
        let weights = folder.join(WEIGHTS_FILE);
        let bytes = std::fs::read(&weights).map_err(|error| FileError::Io { path: weights.clone(), error })?;
        // A configuration of another model could ask for any amount of memory.
        let (got, expected) = (bytes.len() / size_of::<f32>(), config.parameter_count());
        if expected / 2 > got + (1 << 20) {
            return Err(FileError::Count { path: weights, got, expected });
        }
        let model = Self::with_init(&config, &mut Init::new(0, device).blank())
            .map_err(|error| FileError::Config { path, error })?;
        model.with_weights(&bytes, &weights)
    }

    /// This model with the weights of a safetensors file. `path` is for messages.
    fn with_weights(self, bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        let path = path.to_path_buf();
        let file = open(bytes, &path)?;
        let parameters = self.parameters();
        let expected: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        for parameter in &parameters {
            let name = parameter.name.clone();
            let Ok(tensor) = file.tensor(&name) else {
                let others = file.names().into_iter().filter(|other| !expected.contains(other));
                let hint = nearest(&name, others);
                return Err(FileError::Missing { path, name, shape: parameter.shape.clone(), hint });
            };
            if tensor.shape() != parameter.shape {
                let (got, expected) = (tensor.shape().to_vec(), parameter.shape.clone());
                return Err(FileError::Shape { path, name, got, expected });
            }
            if tensor.dtype() != Dtype::F32 {
                return Err(FileError::Type { path, name, got: tensor.dtype() });
            }
        }
        if let Some(name) = file.names().into_iter().find(|name| !expected.contains(name)) {
            return Err(FileError::Unexpected { path, name: name.into(), hint: nearest(name, expected) });
        }
        Ok(self.with_parameters(|name, _| floats(file.tensor(name).expect("checked above").data())))
    }
}

/// The positions in a saved state, a number for each sequence.
const POSITIONS: &str = "positions";

impl Model {
    /// Writes a state to a file, to be gone on from another day.
    pub fn save_state(&self, state: &ModelState, path: &Path) -> Result<(), FileError> {
        write_arrays(path, &self.state_arrays(state))
    }

    /// A state as arrays, for a file that holds more than that.
    pub fn state_arrays(&self, state: &ModelState) -> NamedArrays {
        self.check_depth(state);
        let mut arrays = BTreeMap::new();
        for (index, (layer, state)) in self.layers().iter().zip(&state.layers).enumerate() {
            for (name, array) in layer.mixer().owner().arrays(state) {
                arrays.insert(format!("layers.{index}.{name}"), array);
            }
        }
        // In two halves, so that every position is exact.
        let halves = state.positions().iter().flat_map(|t| [(t >> 24) as f32, (t & 0xff_ffff) as f32]).collect();
        arrays.insert(POSITIONS.into(), (vec![state.positions().len(), 2], halves));
        arrays
    }

    /// Reads what [`Model::save_state`] wrote, with either engine. A state of another model is refused.
    pub fn load_state(&self, path: &Path) -> Result<ModelState, FileError> {
        self.restore_state(read_arrays(path)?, path)
    }

    /// Undoes [`Model::state_arrays`]; errors name `path`, where they came from.
    pub fn restore_state(&self, arrays: NamedArrays, path: &Path) -> Result<ModelState, FileError> {
        let mut arrays = Arrays { of: arrays, path: path.into(), prefix: String::new() };
        let sequences = match arrays.shape(POSITIONS) {
            Some(shape) => shape.first().copied().unwrap_or(0),
            None => {
                return Err(arrays.refuse(POSITIONS, "nothing: is it the state of a model?".into()));
            }
        };
        let halves = arrays.counts(POSITIONS, &[sequences, 2])?;
        let (halves, _) = halves.as_chunks::<2>();
        let positions: Vec<usize> = halves.iter().map(|[high, low]| (high << 24) + low).collect();
        let mut layers = Vec::new();
        for (index, layer) in self.layers().iter().enumerate() {
            arrays.prefix = format!("layers.{index}.");
            layers.push(layer.mixer().owner().restore(&positions, &mut arrays)?);
        }
        match arrays.of.into_keys().next() {
            Some(name) => {
                let (path, hint) = (path.into(), "is it the state of another model?".into());
                Err(FileError::Unexpected { path, name, hint })
            }
            None => Ok(ModelState { layers }),
        }
    }
}

/// Arrays by name: the shape and the numbers, row-major.
pub type NamedArrays = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Reads a safetensors file of F32 tensors.
pub fn read_arrays(path: &Path) -> Result<NamedArrays, FileError> {
    let bytes = std::fs::read(path).map_err(|error| FileError::Io { path: path.into(), error })?;
    let mut arrays = BTreeMap::new();
    for (name, tensor) in open(&bytes, path)?.tensors() {
        if tensor.dtype() != Dtype::F32 {
            return Err(FileError::Type { path: path.into(), name, got: tensor.dtype() });
        }
        arrays.insert(name, (tensor.shape().to_vec(), floats(tensor.data())));
    }
    Ok(arrays)
}

/// Writes a safetensors file by [`write_file`].
pub fn write_arrays(path: &Path, arrays: &NamedArrays) -> Result<(), FileError> {
    write_file(path, &serialise(arrays)).map_err(|error| FileError::Io { path: path.into(), error })
}

fn open<'b>(bytes: &'b [u8], path: &Path) -> Result<SafeTensors<'b>, FileError> {
    SafeTensors::deserialize(bytes).map_err(|error| match cut_off(bytes) {
        Some((end, name)) => FileError::Truncated { path: path.into(), name, end, length: bytes.len() },
        None => FileError::Damaged { path: path.into(), error },
    })
}

/// Where the first tensor ends that reaches beyond the end of a file whose header is whole, and its name.
fn cut_off(bytes: &[u8]) -> Option<(usize, String)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(rest.get(..length)?).ok()?;
    let data = 8 + length;
    let ends = header.into_iter().filter_map(|(name, tensor)| {
        let end = usize::try_from(tensor.get("data_offsets")?.get(1)?.as_u64()?).ok()?;
        Some((data.checked_add(end)?, name))
    });
    ends.filter(|(end, _)| *end > bytes.len()).min()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn serialise(arrays: &NamedArrays) -> Vec<u8> {
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = arrays
        .iter()
        .map(|(name, (shape, data))| (name, shape, data.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(name, shape, data)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), data).expect("as many bytes as the shape has"))
    });
    // Without it, transformers refuse the file.
    let about = std::collections::HashMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::serialize(views, Some(about)).expect("names and views are valid")
}

/// How names begin of what is not yet in its place.
pub const ASIDE: &str = ".aside-";

/// A file to be moved to its place, in the same folder, when it is whole.
pub fn aside_file(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(ASIDE);
    // As any new file, subject to the umask; temporary files are private otherwise.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Writes a file beside its place, to the disk, and moves it there: whatever happens, the old file or the new one is in its place.
pub fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = aside_file(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
