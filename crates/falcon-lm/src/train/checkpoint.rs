//! Checkpoints: the model, the optimizer's moments and the progress of a run after some step.
//!
//! ```text
//! step-000060/  model.safetensors  config.json        the model, in the form that other programs read
//!               optimizer.safetensors                 first and second moments
//!               progress.json                         format version, step, best score, state of the task
//!               SHA256SUMS                            checksums of all of these, for `sha256sum -c`
//! ```
//!
//! A checkpoint is written to a temporary folder and moved into place by one rename, so that after a crash it is
//! complete or absent. Random numbers follow from the seed and the step, so no generator has to be saved.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_base::files::{ASIDE, read_file, write_file};
use falcon_base::{AtPath, PathError, hex};
use falcon_nn::{
    CONFIG_FILE, FileError, Model, NamedArrays, WEIGHTS_FILE, arrays_from_bytes, tokenizer_fingerprint,
    write_arrays,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::optimizer::{AdamW, Moments};
use crate::data::Tokenizer;
use crate::recipe::AdamWConfig;

const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const PROGRESS_FILE: &str = "progress.json";
const SUMS_FILE: &str = "SHA256SUMS";
/// The files of a checkpoint except for the checksums.
const FILES: [&str; 4] = [WEIGHTS_FILE, CONFIG_FILE, OPTIMIZER_FILE, PROGRESS_FILE];

/// Version of the files of a checkpoint. A checkpoint of a later version is refused.
const FORMAT: u32 = 1;

/// The progress of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunProgress {
    /// Version of the checkpoint format. Falcon 0.1 did not write it; its checkpoints are version 1.
    #[serde(default = "first_format")]
    pub format: u32,
    /// Number of steps taken.
    pub step: u64,
    /// The best validation so far.
    pub best: Option<Best>,
    /// Exponentially smoothed training loss.
    pub recent_loss: Option<f64>,
    /// State of the task.
    pub task: Value,
    /// The configuration that this checkpoint was trained with, as the text of a `config.toml`. Checkpoints of
    /// Falcon 0.1 may lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Fingerprint of the tokenizer's vocabulary, also written to `config.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
}

fn first_format() -> u32 {
    1
}

impl Default for RunProgress {
    /// The progress of a run before its first step.
    fn default() -> Self {
        let (best, recent_loss, task, config, tokenizer) = Default::default();
        Self { format: FORMAT, step: 0, best, recent_loss, task, config, tokenizer }
    }
}

/// The best validation of a run so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step of that validation.
    pub step: u64,
    /// Its score, as the task computes it; higher is better.
    pub score: f64,
}

/// The state of a run after some step.
#[derive(Debug)]
pub struct Checkpoint {
    /// The model.
    pub model: Model,
    /// The optimizer with its moments.
    pub optimizer: AdamW,
    /// The progress of the run.
    pub progress: RunProgress,
}

/// Why a checkpoint cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file of the model or of the optimizer cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file has changed since it was written.
    #[error("{path}: damaged: its SHA-256 is not the one in {SUMS_FILE}")]
    Sum {
        /// The file.
        path: PathBuf,
    },
    /// The checksums lack a file.
    #[error("{path}: damaged: it does not list {file}")]
    Unlisted {
        /// The file with the checksums.
        path: PathBuf,
        /// The file.
        file: &'static str,
    },
    /// A file matches its checksum, but its content is invalid or belongs to another model.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl Checkpoint {
    /// Writes a checkpoint to `folder`, replacing any checkpoint there. A folder with files that the run did not write
    /// is renamed to `kept-NAME`.
    pub fn save(
        folder: &Path,
        model: &Model,
        optimizer: &AdamW,
        progress: &RunProgress,
    ) -> Result<(), CheckpointError> {
        let parent = folder.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).at(parent)?;
        // Deleted on drop if a step below fails.
        let temporary = tempfile::Builder::new().prefix(ASIDE).tempdir_in(parent).at(parent)?;
        let path = temporary.path();
        model.save_for(path, progress.tokenizer.as_deref())?;
        write_arrays(&path.join(OPTIMIZER_FILE), &moments_to_arrays(model, optimizer))?;
        let json = serde_json::to_vec_pretty(progress).expect("progress is plain data");
        write_file(&path.join(PROGRESS_FILE), &json)?;
        let mut sums = String::new();
        for name in FILES {
            sums += &format!("{}  {name}\n", sum(&path.join(name))?);
        }
        write_file(&path.join(SUMS_FILE), sums.as_bytes())?;
        sync_folder(path)?;
        if folder.exists() {
            remove(folder)?;
        }
        if folder.exists() {
            // `remove` has left the files that the run did not write.
            move_to_free_name(folder, "kept")?;
        }
        fs::rename(path, folder).at(folder)?;
        // It has been moved, so there is nothing to delete on drop.
        let _ = temporary.keep();
        sync_folder(parent)
    }

    /// Reads a checkpoint, and verifies the checksums of all its files.
    pub fn load(folder: &Path, config: AdamWConfig, device: &Device) -> Result<Self, CheckpointError> {
        let sums = ListedSums::read(folder)?;
        let (model, _) = load_model(folder, device)?;
        let (path, json) = sums.read_checked(PROGRESS_FILE)?;
        let progress: RunProgress = serde_json::from_slice(&json).map_err(|error| CheckpointError::Content {
            path,
            what: format!("not the progress of a run: {error}"),
        })?;
        if progress.format > FORMAT {
            let what = format!(
                "the checkpoint has format version {}, and this program reads versions up to {FORMAT}; resume it with the \
                 program that wrote it",
                progress.format
            );
            return Err(CheckpointError::Content { path: folder.join(PROGRESS_FILE), what });
        }
        let (path, bytes) = sums.read_checked(OPTIMIZER_FILE)?;
        let moments = moments_from_arrays(&model, arrays_from_bytes(&bytes, &path)?)
            .map_err(|what| CheckpointError::Content { path, what })?;
        let optimizer = AdamW::resumed(config, progress.step, moments);
        Ok(Self { model, optimizer, progress })
    }
}

/// The step of the best validation of a run, as one of its checkpoints records it.
pub(super) fn best_step(folder: &Path) -> Option<u64> {
    let progress: RunProgress = serde_json::from_slice(&fs::read(folder.join(PROGRESS_FILE)).ok()?).ok()?;
    Some(progress.best?.step)
}

/// Names of the arrays that hold the moments of a parameter.
fn moment_names(parameter: &str) -> [String; 2] {
    [format!("mean.{parameter}"), format!("square.{parameter}")]
}

fn moments_to_arrays(model: &Model, optimizer: &AdamW) -> NamedArrays {
    let mut arrays = BTreeMap::new();
    // Before the first step there are no moments.
    for (parameter, moments) in model.parameters().into_iter().zip(optimizer.moments()) {
        let [mean, square] = moment_names(&parameter.name);
        arrays.insert(mean, (parameter.shape.clone(), moments.mean.clone()));
        arrays.insert(square, (parameter.shape, moments.square.clone()));
    }
    arrays
}

fn moments_from_arrays(model: &Model, mut arrays: NamedArrays) -> Result<Vec<Moments>, String> {
    let mut moments = Vec::new();
    let before_first_step = arrays.is_empty();
    for parameter in model.parameters().into_iter().filter(|_| !before_first_step) {
        let [mean, square] = moment_names(&parameter.name).map(|name| match arrays.remove(&name) {
            Some((shape, numbers)) if shape == parameter.shape => Ok(numbers),
            Some((shape, _)) => Err(format!(
                "{name:?} has shape {shape:?}, but the model's parameter has shape {:?}",
                parameter.shape
            )),
            None => Err(format!("there is no {name:?}")),
        });
        moments.push(Moments { mean: mean?, square: square? });
    }
    match arrays.into_keys().next() {
        Some(name) => Err(format!("{name:?} belongs to no parameter of the model")),
        None => Ok(moments),
    }
}

/// The checksums in a checkpoint.
struct ListedSums {
    path: PathBuf,
    text: String,
}

impl ListedSums {
    fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(SUMS_FILE);
        let text = fs::read_to_string(&path).at(&path)?;
        Ok(Self { path, text })
    }

    /// Reads a file of the checkpoint once, and compares it with its checksum.
    fn read_checked(&self, file: &'static str) -> Result<(PathBuf, Vec<u8>), CheckpointError> {
        let path = self.path.with_file_name(file);
        let bytes = fs::read(&path).at(&path)?;
        self.check(file, &hex(&Sha256::digest(&bytes)))?;
        Ok((path, bytes))
    }

    /// Compares the checksum of a file with the one listed.
    fn check(&self, file: &'static str, sum: &str) -> Result<(), CheckpointError> {
        let listed = self.text.lines().filter_map(|line| line.split_once("  ")).find(|(_, name)| *name == file);
        match listed {
            Some((expected, _)) if expected == sum => Ok(()),
            Some(_) => Err(CheckpointError::Sum { path: self.path.with_file_name(file) }),
            None => Err(CheckpointError::Unlisted { path: self.path.clone(), file }),
        }
    }
}

/// Loads the model in `folder`, reading every file once, and returns it with the SHA-256 of its weights. Where there
/// are checksums they must match; models that other programs saved have none.
pub(crate) fn load_model(folder: &Path, device: &Device) -> Result<(Model, String), CheckpointError> {
    let sums = folder.join(SUMS_FILE).exists().then(|| ListedSums::read(folder)).transpose()?;
    let mut weights = Vec::new();
    let model = Model::load_checked(folder, device, |path, bytes| {
        let sum = hex(&Sha256::digest(bytes));
        let file = if path.ends_with(CONFIG_FILE) { CONFIG_FILE } else { WEIGHTS_FILE };
        if let Some(sums) = &sums {
            sums.check(file, &sum)?;
        }
        if file == WEIGHTS_FILE {
            weights.push(sum);
        }
        Ok::<_, CheckpointError>(())
    })?;
    let weights = match &weights[..] {
        [single] => single.clone(),
        shards => hex(&Sha256::digest(shards.concat())),
    };
    Ok((model, weights))
}

/// The fingerprint of `tokenizer` and that of the tokenizer that the model in `folder` was trained with, or `None` if
/// the latter is not recorded. Both are fingerprints of the vocabulary if `config.json` has one; otherwise both are
/// hashes of the tokenizer's file, as `progress.json` records it.
pub(crate) fn tokenizer_fingerprints(
    folder: &Path,
    tokenizer: &Tokenizer,
) -> Result<Option<[String; 2]>, CheckpointError> {
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
pub fn sum(path: &Path) -> Result<String, CheckpointError> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).at(path)?;
    io::copy(&mut file, &mut Hashing(&mut hasher)).at(path)?;
    Ok(hex(&hasher.finalize()))
}

/// A writer that updates a hash with the bytes written.
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

/// Whether a folder holds a checkpoint, complete or not: at least one of its files.
pub(super) fn is_checkpoint(folder: &Path) -> bool {
    FILES.into_iter().chain([SUMS_FILE]).any(|file| folder.join(file).is_file())
}

/// Removes a checkpoint. A folder that holds nothing else is removed by one rename; otherwise the files of the
/// checkpoint are moved out one by one, and the other files stay.
pub(super) fn remove(folder: &Path) -> Result<(), CheckpointError> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new().prefix(ASIDE).tempdir_in(parent).at(parent)?;
    let in_checkpoint = |name: &std::ffi::OsStr| FILES.into_iter().chain([SUMS_FILE]).any(|file| name == file);
    let names: Vec<_> = fs::read_dir(folder).at(folder)?.flatten().map(|entry| entry.file_name()).collect();
    if names.iter().all(|name| in_checkpoint(name)) {
        fs::rename(folder, temporary.path().join("old")).at(folder)?;
    } else {
        for name in names.iter().filter(|name| in_checkpoint(name)) {
            fs::rename(folder.join(name), temporary.path().join(name)).at(folder)?;
        }
    }
    Ok(temporary.close().at(folder)?)
}

/// Renames `folder` to `PREFIX-NAME`, or to `PREFIX-NAME-2` and so on if that exists, so that nothing is replaced.
pub(super) fn move_to_free_name(folder: &Path, prefix: &str) -> Result<PathBuf, CheckpointError> {
    let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let numbered = (2..).map(|number| format!("{prefix}-{name}-{number}"));
    let mut free =
        std::iter::once(format!("{prefix}-{name}")).chain(numbered).map(|name| folder.with_file_name(name));
    let free = free.find(|path| !path.exists()).expect("there are more numbers than folders");
    fs::rename(folder, &free).at(folder)?;
    Ok(free)
}

/// Flushes the entries of a folder to the disk, where the system supports it.
fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    #[cfg(unix)]
    File::open(folder).and_then(|folder| folder.sync_all()).at(folder)?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

#[cfg(test)]
mod tests {
    use falcon_nn::ModelConfig;

    use super::*;

    /// The checksums are right, but the files do not belong to a run of this model.
    #[test]
    fn intact_files_of_another_model_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step-000001");
        let model = ModelConfig::preset("retnet", "micro", 12).unwrap().init(0, &Device::flex()).unwrap();
        let error_with = |file: &str, bytes: &[u8]| {
            let optimizer = AdamW::new(AdamWConfig::default());
            Checkpoint::save(&path, &model, &optimizer, &RunProgress::default()).unwrap();
            fs::write(path.join(file), bytes).unwrap();
            let sums = FILES.map(|name| format!("{}  {name}\n", sum(&path.join(name)).unwrap())).concat();
            fs::write(path.join(SUMS_FILE), sums).unwrap();
            match Checkpoint::load(&path, AdamWConfig::default(), &Device::flex()) {
                Err(error @ CheckpointError::Content { .. }) => error.to_string(),
                other => panic!("{file}: {other:?}"),
            }
        };
        let progress = error_with(PROGRESS_FILE, b"{\"step\": 1}");
        assert!(progress.contains(PROGRESS_FILE) && progress.contains("not the progress of a run"), "{progress}");
        let mut later = serde_json::to_value(RunProgress::default()).unwrap();
        later["format"] = (FORMAT + 1).into();
        let later = error_with(PROGRESS_FILE, later.to_string().as_bytes());
        assert!(later.contains("has format version 2, and this program reads versions up to 1"), "{later}");
        // Falcon 0.1 did not write the version.
        let mut first = serde_json::to_value(RunProgress::default()).unwrap();
        first.as_object_mut().unwrap().remove("format");
        assert_eq!(serde_json::from_value::<RunProgress>(first).unwrap(), RunProgress::default());
        let error_with_array = |name: &str, shape: Vec<usize>| {
            let file = folder.path().join("a.safetensors");
            let numbers = vec![0.0; shape.iter().product()];
            write_arrays(&file, &BTreeMap::from([(name.to_string(), (shape, numbers))])).unwrap();
            error_with(OPTIMIZER_FILE, &fs::read(file).unwrap())
        };
        let first = &model.parameters()[0];
        let [mean, _] = moment_names(&first.name);
        let missing = error_with_array("mean.other", vec![2]);
        assert!(
            missing.contains(OPTIMIZER_FILE) && missing.contains(&format!("there is no {mean:?}")),
            "{missing}"
        );
        let shape = error_with_array(&mean, vec![2]);
        assert!(
            shape.contains(&format!(
                "{mean:?} has shape [2], but the model's parameter has shape {:?}",
                first.shape
            )),
            "{shape}"
        );
    }
}
