//! A run at one step, on disk: the model, what AdamW remembers, and where the run stands.
//!
//! ```text
//! step-000060/  model.safetensors  config.json        the model, as others exchange it
//!               optimizer.safetensors                 first and second moments
//!               progress.json                         step, best, state of the task
//!               SHA256SUMS                            of all of these; `sha256sum -c` knows it
//! ```
//!
//! All of it is written aside, under a name that no one reads, and moved into place by one rename: whatever happens, a checkpoint is there
//! in whole or not at all. What is random follows from the seed and the step, so that there is no generator to save.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_nn::{
    CONFIG_FILE, FileError, Model, NamedArrays, WEIGHTS_FILE, read_arrays, read_file, tokenizer_fingerprint,
    weight_files, write_arrays, write_file,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{AdamW, AdamWConfig, Moments};
use crate::data::{Tokenizer, hex};

const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const PROGRESS_FILE: &str = "progress.json";
const SUMS_FILE: &str = "SHA256SUMS";
/// What a checkpoint has, but for the sums.
const FILES: [&str; 4] = [WEIGHTS_FILE, CONFIG_FILE, OPTIMIZER_FILE, PROGRESS_FILE];
/// How names begin of what is being written or removed.
pub(super) const ASIDE: &str = falcon_nn::ASIDE;

/// Where a run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// The best measurement so far.
    pub best: Option<Best>,
    /// The loss of late, smoothed.
    pub recent_loss: Option<f64>,
    /// State of the task.
    pub task: Value,
    /// The configuration that this checkpoint was trained with, as the text of a `config.toml`. Checkpoints of
    /// version 0.1 have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The fingerprint of the tokenizer that makes text of the tokens, which `config.json` has too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
}

/// The best measurement so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Steps done then.
    pub step: u64,
    /// How good it was.
    pub score: f64,
}

/// A run at one step.
#[derive(Debug)]
pub struct Checkpoint {
    /// What has been learnt.
    pub model: Model,
    /// What AdamW remembers.
    pub optimizer: AdamW,
    /// Where the run stands.
    pub progress: Progress,
}

/// What is wrong with a checkpoint.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file does not do.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what was written.
    #[error("{path}: damaged: its SHA-256 is not the one in {SUMS_FILE}")]
    Sum {
        /// The file.
        path: PathBuf,
    },
    /// The sums leave a file out.
    #[error("{path}: damaged: it does not list {file}")]
    Unlisted {
        /// The sums.
        path: PathBuf,
        /// The file.
        file: &'static str,
    },
    /// A file holds something else.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    move |error| CheckpointError::Io { path: path.into(), error }
}

impl Checkpoint {
    /// Writes a checkpoint to `folder`, in the place of one that may be there.
    pub fn save(
        folder: &Path,
        model: &Model,
        optimizer: &AdamW,
        progress: &Progress,
    ) -> Result<(), CheckpointError> {
        let parent = folder.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(io_error(parent))?;
        // Removed when something fails on the way.
        let aside = tempfile::Builder::new().prefix(ASIDE).tempdir_in(parent).map_err(io_error(parent))?;
        let path = aside.path();
        model.save_for(path, progress.tokenizer.as_deref())?;
        write_arrays(&path.join(OPTIMIZER_FILE), &arrays(model, optimizer))?;
        let json = serde_json::to_vec_pretty(progress).expect("progress is plain data");
        write_file(&path.join(PROGRESS_FILE), &json).map_err(io_error(&path.join(PROGRESS_FILE)))?;
        let mut sums = String::new();
        for name in FILES {
            sums += &format!("{}  {name}\n", sum(&path.join(name))?);
        }
        write_file(&path.join(SUMS_FILE), sums.as_bytes()).map_err(io_error(&path.join(SUMS_FILE)))?;
        sync(path)?;
        if folder.exists() {
            remove(folder)?;
        }
        if folder.exists() {
            // Files of somebody else are in it.
            move_to_free_name(folder, "kept")?;
        }
        fs::rename(path, folder).map_err(io_error(folder))?;
        // Moved: there is nothing left to remove.
        let _ = aside.keep();
        sync(parent)
    }

    /// Reads a checkpoint, every byte of which must be as it was written.
    pub fn load(folder: &Path, config: AdamWConfig, device: &Device) -> Result<Self, CheckpointError> {
        verify(folder, FILES)?;
        let model = Model::load(folder, device)?;
        let path = folder.join(PROGRESS_FILE);
        let json = fs::read(&path).map_err(io_error(&path))?;
        let progress: Progress = serde_json::from_slice(&json).map_err(|error| CheckpointError::Content {
            path,
            what: format!("not the progress of a run: {error}"),
        })?;
        let path = folder.join(OPTIMIZER_FILE);
        let moments =
            moments(&model, read_arrays(&path)?).map_err(|what| CheckpointError::Content { path, what })?;
        let optimizer = AdamW::resumed(config, progress.step, moments);
        Ok(Self { model, optimizer, progress })
    }
}

/// The best step so far, as a checkpoint says.
pub(super) fn best_of(folder: &Path) -> Option<u64> {
    let progress: Progress = serde_json::from_slice(&fs::read(folder.join(PROGRESS_FILE)).ok()?).ok()?;
    Some(progress.best?.step)
}

/// Names of a parameter's moments in the file.
fn names(parameter: &str) -> [String; 2] {
    [format!("mean.{parameter}"), format!("square.{parameter}")]
}

fn arrays(model: &Model, optimizer: &AdamW) -> NamedArrays {
    let mut arrays = BTreeMap::new();
    for parameter in model.parameters() {
        // None before the first step.
        let Some(moments) = optimizer.moments().get(&parameter.name) else { continue };
        let [mean, square] = names(&parameter.name);
        arrays.insert(mean, (parameter.shape.clone(), moments.mean.clone()));
        arrays.insert(square, (parameter.shape, moments.square.clone()));
    }
    arrays
}

fn moments(model: &Model, mut arrays: NamedArrays) -> Result<BTreeMap<String, Moments>, String> {
    let mut moments = BTreeMap::new();
    let none = arrays.is_empty();
    for parameter in model.parameters().into_iter().filter(|_| !none) {
        let [mean, square] = names(&parameter.name).map(|name| match arrays.remove(&name) {
            Some((shape, numbers)) if shape == parameter.shape => Ok(numbers),
            Some((shape, _)) => Err(format!("{name:?} has shape {shape:?}, the model says {:?}", parameter.shape)),
            None => Err(format!("no {name:?}")),
        });
        moments.insert(parameter.name, Moments { mean: mean?, square: square? });
    }
    match arrays.into_keys().next() {
        Some(name) => Err(format!("{name:?} belongs to no parameter of the model")),
        None => Ok(moments),
    }
}

/// Refuses a checkpoint that is not as it was written, and returns the sums of `files`.
fn verify<const N: usize>(folder: &Path, files: [&'static str; N]) -> Result<[String; N], CheckpointError> {
    let path = folder.join(SUMS_FILE);
    let sums = fs::read_to_string(&path).map_err(io_error(&path))?;
    let mut found = [const { String::new() }; N];
    for (file, found) in files.into_iter().zip(&mut found) {
        let listed = sums.lines().filter_map(|line| line.split_once("  ")).find(|(_, name)| *name == file);
        let Some((expected, _)) = listed else { return Err(CheckpointError::Unlisted { path, file }) };
        let path = folder.join(file);
        *found = sum(&path)?;
        if found != expected {
            return Err(CheckpointError::Sum { path });
        }
    }
    Ok(found)
}

/// The sum of a model's weights. Refuses a model that is not as it was written, where that is known: others' models have no sums.
pub(crate) fn verify_model(folder: &Path) -> Result<String, CheckpointError> {
    match folder.join(SUMS_FILE).exists() {
        true => verify(folder, [WEIGHTS_FILE, CONFIG_FILE]).map(|[weights, _]| weights),
        false => match &weight_files(folder)?[..] {
            [file] => sum(file),
            files => {
                let mut hasher = Sha256::new();
                for file in files {
                    hasher.update(sum(file)?);
                }
                Ok(hex(&hasher.finalize()))
            }
        },
    }
}

/// The fingerprints of a tokenizer and of the one that the model in `folder` was trained with, if that is known: from
/// its configuration, or from the progress of a run, where runs of text kept another kind of it before.
pub(crate) fn fingerprints(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<[String; 2]>, CheckpointError> {
    if let Some(trained) = tokenizer_fingerprint(folder)? {
        return Ok(Some([tokenizer.vocabulary_fingerprint(), trained]));
    }
    let path = folder.join(PROGRESS_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let progress: Value = serde_json::from_slice(&read_file(&path, 1 << 24)?).unwrap_or_default();
    Ok(progress["task"]["tokenizer"].as_str().map(|trained| [tokenizer.fingerprint(), trained.into()]))
}

/// SHA-256 of a file, in hexadecimal.
pub(crate) fn sum(path: &Path) -> Result<String, CheckpointError> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).map_err(io_error(path))?;
    io::copy(&mut file, &mut Hashing(&mut hasher)).map_err(io_error(path))?;
    Ok(hex(&hasher.finalize()))
}

/// A hash as something to write to.
struct Hashing<'a>(&'a mut Sha256);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a folder holds a checkpoint, whole or not: one of the files that a run writes.
pub(super) fn is_checkpoint(folder: &Path) -> bool {
    FILES.into_iter().chain([SUMS_FILE]).any(|file| folder.join(file).is_file())
}

/// Removes a checkpoint. What the run wrote disappears in one rename; files that somebody else put into the folder
/// stay where they are.
pub(super) fn remove(folder: &Path) -> Result<(), CheckpointError> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    let aside = tempfile::Builder::new().prefix(ASIDE).tempdir_in(parent).map_err(io_error(parent))?;
    let ours = |name: &std::ffi::OsStr| FILES.into_iter().chain([SUMS_FILE]).any(|file| name == file);
    let names: Vec<_> =
        fs::read_dir(folder).map_err(io_error(folder))?.flatten().map(|entry| entry.file_name()).collect();
    if names.iter().all(|name| ours(name)) {
        fs::rename(folder, aside.path().join("old")).map_err(io_error(folder))?;
    } else {
        for name in names.iter().filter(|name| ours(name)) {
            fs::rename(folder.join(name), aside.path().join(name)).map_err(io_error(folder))?;
        }
    }
    aside.close().map_err(io_error(folder))
}

/// Renames `folder` to `PREFIX-NAME`, or to `PREFIX-NAME-2` and so on where that exists: nothing is replaced.
pub(super) fn move_to_free_name(folder: &Path, prefix: &str) -> Result<PathBuf, CheckpointError> {
    let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let numbered = (2..).map(|number| format!("{prefix}-{name}-{number}"));
    let mut free =
        std::iter::once(format!("{prefix}-{name}")).chain(numbered).map(|name| folder.with_file_name(name));
    let free = free.find(|path| !path.exists()).expect("there are more numbers than folders");
    fs::rename(folder, &free).map_err(io_error(folder))?;
    Ok(free)
}

/// Makes the names in a folder durable, where the system can.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    #[cfg(unix)]
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error(folder))?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

#[cfg(test)]
mod tests {
    use falcon_nn::ModelConfig;

    use super::*;

    /// Files that are as they were written, but not by a run of this model.
    #[test]
    fn whole_files_of_something_else_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step-000001");
        let model = ModelConfig::preset("retnet", "micro", 12).unwrap().init(0, &Device::flex()).unwrap();
        let said = |file: &str, bytes: &[u8]| {
            let optimizer = AdamW::new(AdamWConfig::default());
            Checkpoint::save(&path, &model, &optimizer, &Progress::default()).unwrap();
            fs::write(path.join(file), bytes).unwrap();
            let sums = FILES.map(|name| format!("{}  {name}\n", sum(&path.join(name)).unwrap())).concat();
            fs::write(path.join(SUMS_FILE), sums).unwrap();
            match Checkpoint::load(&path, AdamWConfig::default(), &Device::flex()) {
                Err(error @ CheckpointError::Content { .. }) => error.to_string(),
                other => panic!("{file}: {other:?}"),
            }
        };
        let progress = said(PROGRESS_FILE, b"{\"step\": 1}");
        assert!(progress.contains(PROGRESS_FILE) && progress.contains("not the progress of a run"), "{progress}");
        let of_parameter = |name: &str, shape: Vec<usize>| {
            let file = folder.path().join("a.safetensors");
            let numbers = vec![0.0; shape.iter().product()];
            write_arrays(&file, &BTreeMap::from([(name.to_string(), (shape, numbers))])).unwrap();
            said(OPTIMIZER_FILE, &fs::read(file).unwrap())
        };
        let first = &model.parameters()[0];
        let [mean, _] = names(&first.name);
        let lacking = of_parameter("mean.other", vec![2]);
        assert!(lacking.contains(OPTIMIZER_FILE) && lacking.contains(&format!("no {mean:?}")), "{lacking}");
        let shape = of_parameter(&mean, vec![2]);
        assert!(shape.contains(&format!("{mean:?} has shape [2], the model says {:?}", first.shape)), "{shape}");
    }
}
