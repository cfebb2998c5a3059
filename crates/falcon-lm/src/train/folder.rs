//! A run's folder: its configuration, its records, its checkpoints; and a lock, so that one process writes it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_nn::write_file;
use thiserror::Error;

use super::checkpoint::{ASIDE, Checkpoint, CheckpointError, best_of, is_checkpoint, move_to_free_name, remove};
use crate::config::{RUN_FILE, RunConfig, RunConfigError, differences};

const LOCK_FILE: &str = "lock";
const CHECKPOINTS: &str = "checkpoints";
const STEP: &str = "step-";

/// A folder that this process alone writes to.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Released when the process ends, however it ends.
    lock: File,
}

/// What is wrong with a run's folder.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Something else is there.
    #[error("{path} holds files, but is no run: it has no {RUN_FILE}; choose another folder")]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// Another process writes to it.
    #[error("{path}: another process{by} is training in it; wait until it is done, or choose another folder")]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Which.
        by: String,
    },
    /// What is asked for is not the run that is there.
    #[error("{path} holds a run of another configuration:\n{differences}{advice}")]
    Different {
        /// The folder.
        path: PathBuf,
        /// A line for each key.
        differences: String,
        /// What to do instead.
        advice: String,
    },
    /// The configuration in the folder was edited in a way that a run cannot follow.
    #[error(
        "{path}: edited since the last checkpoint:\n{differences}a run keeps these values from its beginning to its \
         end: put the old ones back, or start another run"
    )]
    Edited {
        /// The file.
        path: PathBuf,
        /// A line for each key.
        differences: String,
    },
    /// Fewer steps are asked for than the run has done.
    #[error("{path}: the run has done {done} steps; train.steps = {steps} asks for fewer, which nothing can undo")]
    Past {
        /// The folder.
        path: PathBuf,
        /// Steps done.
        done: u64,
        /// Steps asked for.
        steps: u64,
    },
    /// The folder was removed, moved or replaced while the run was writing to it.
    #[error(
        "{path} was removed, moved or replaced during training, so nothing more can be saved there. If you moved it, \
         continue by `falcon train --run NEW_PLACE`"
    )]
    Gone {
        /// The folder.
        path: PathBuf,
    },
    /// Its configuration does not do.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// None of its checkpoints can be read.
    #[error(
        "{path}: none of its checkpoints can be used; the last: {error}. Mend that, or begin again in another folder"
    )]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong with the last.
        error: Box<CheckpointError>,
    },
}

/// Whether a run that is continued may be given other values for keys of `[train]`: all but `seed`, `batch` and
/// `init_from`, which decide what the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Any other value is an error.
    Refuse,
    /// They hold from the last checkpoint on.
    Accept,
}

/// A key whose value is not the one that the run was trained with so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Such as `train.lr`.
    pub key: String,
    /// The value up to now.
    pub before: String,
    /// The value from now on.
    pub now: String,
}

impl Change {
    fn line(&self) -> String {
        format!("  {} is {} in the run, {} here\n", self.key, self.before, self.now)
    }
}

/// The value of a key in the text of a configuration.
fn value(config: &str, key: &str) -> Option<String> {
    let (section, key) = key.split_once('.')?;
    Some(toml::from_str::<toml::Table>(config).ok()?.get(section)?.get(key)?.to_string())
}

/// Where data is found. A run compares what is in these files with what it began with, so that they may move.
const PLACES: [&str; 3] = ["task.train", "task.valid", "task.tokenizer"];

/// Keys of `[train]` that decide which data a step sees, and thereby the run itself.
const FIXED: [&str; 3] = ["train.seed", "train.batch", "train.init_from"];

/// Whether a run may be continued with another value of a key.
fn may_change(key: &str) -> bool {
    key.starts_with("train.") && !FIXED.contains(&key)
}

impl RunFolder {
    /// Takes hold of a folder for a run of `config`: a new one, or one that has a run already.
    pub fn open(path: &Path, config: &RunConfig) -> Result<Self, FolderError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |error| FolderError::Io { path, error }
        };
        fs::create_dir_all(path).map_err(io(path))?;
        let file = path.join(RUN_FILE);
        // What a kill at the very beginning may leave.
        let ours = |name: &str| [RUN_FILE, LOCK_FILE, CHECKPOINTS].contains(&name) || name.starts_with(ASIDE);
        let mut entries = fs::read_dir(path).map_err(io(path))?.flatten();
        if !file.exists() && entries.any(|entry| !ours(&entry.file_name().to_string_lossy())) {
            return Err(FolderError::Foreign { path: path.into() });
        }
        let lock = lock(path)?;
        if !file.exists() {
            write_file(&file, config.with_absolute_paths().to_toml().as_bytes()).map_err(io(&file))?;
        }
        let checkpoints = path.join(CHECKPOINTS);
        fs::create_dir_all(&checkpoints).map_err(io(&checkpoints))?;
        let folder = Self { path: path.into(), lock };
        folder.clear().map_err(io(&checkpoints))?;
        Ok(folder)
    }

    /// Compares `config` with the configuration that the run was trained with: that of its last checkpoint, or of
    /// its file before there is one. Changes that are accepted are written to the file and returned.
    pub(crate) fn reconcile(
        &self,
        config: &RunConfig,
        trained_with: Option<&str>,
        changes: Changes,
    ) -> Result<Vec<Change>, FolderError> {
        let file = self.path.join(RUN_FILE);
        let io = |error| FolderError::Io { path: file.clone(), error };
        let written = fs::read_to_string(&file).map_err(io)?;
        let wanted = config.with_absolute_paths().to_toml();
        let differences = differences(trained_with.unwrap_or(&written), &wanted)
            .map_err(|error| RunConfigError::Toml { from: file.display().to_string(), error })?;
        let mut changed: Vec<Change> = differences
            .into_iter()
            .map(|(key, before, now)| Change { key, before, now })
            .filter(|change| !PLACES.contains(&change.key.as_str()))
            .collect();
        // The run uses its copy of the tokenizer, so that another one in the file would be ignored without a word.
        const TOKENIZER: &str = "task.tokenizer";
        let named = [trained_with.unwrap_or(&written), &written, &wanted].map(|text| value(text, TOKENIZER));
        if let [Some(before), Some(now), wanted] = named
            && before != now
            && wanted.as_ref() != Some(&now)
        {
            let differences = Change { key: TOKENIZER.into(), before, now }.line();
            return Err(FolderError::Edited { path: file.clone(), differences });
        }
        let refused = |change: &Change| changes == Changes::Refuse || !may_change(&change.key);
        if changed.iter().any(refused) {
            changed.retain(refused);
            let differences = changed.iter().map(Change::line).collect();
            let same = |change: &Change| value(&written, &change.key).is_some_and(|value| value == change.now);
            return Err(match trained_with.is_some() && changed.iter().all(same) {
                true => FolderError::Edited { path: file.clone(), differences },
                false => self.different(&changed, differences),
            });
        }
        if wanted != written {
            write_file(&file, wanted.as_bytes()).map_err(io)?;
        }
        Ok(changed)
    }

    fn different(&self, changed: &[Change], differences: String) -> FolderError {
        let run = self.path.display();
        let advice = match changed.iter().all(|change| may_change(&change.key)) {
            true => format!(
                "choose another folder by --run, or name this one to continue it with the new values: \
                 `falcon train --run {run} --set KEY=VALUE`"
            ),
            false => format!(
                "choose another folder by --run; continue this run as it is by `falcon train --run {run}`; or start \
                 a new one from its weights by `falcon train --init-from {run} --run OTHER`. During a run, only keys \
                 of [train] may change, and not seed or batch, which decide the order of the data"
            ),
        };
        FolderError::Different { path: self.path.clone(), differences, advice }
    }

    /// Fails if the folder is no longer the one that was opened.
    pub(super) fn check(&self) -> Result<(), FolderError> {
        let same = same_file(&self.path.join(LOCK_FILE), &self.lock) && self.path.join(RUN_FILE).exists();
        if same { Ok(()) } else { Err(FolderError::Gone { path: self.path.clone() }) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what a kill left half written or half removed.
    fn clear(&self) -> io::Result<()> {
        for folder in [self.path.clone(), self.path.join(CHECKPOINTS)] {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                match entry.file_name().to_string_lossy().starts_with(ASIDE) {
                    true if entry.file_type()?.is_dir() => fs::remove_dir_all(entry.path())?,
                    true => fs::remove_file(entry.path())?,
                    false => {}
                }
            }
        }
        Ok(())
    }

    /// Where the checkpoint of a step is.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.path.join(CHECKPOINTS).join(format!("{STEP}{step:06}"))
    }

    /// The steps of its checkpoints, in order.
    pub fn steps(&self) -> Result<Vec<u64>, FolderError> {
        checkpoint_steps(&self.path)
    }

    /// The last checkpoint that is whole; none if there never was one. Damaged ones after it are told to `warn` and put aside, so that they
    /// do not count among those to keep. If none is whole, all stay as they are: it may be the disk.
    pub fn last(
        &self,
        config: &RunConfig,
        device: &Device,
        mut warn: impl FnMut(&str),
    ) -> Result<Option<Checkpoint>, FolderError> {
        let mut damaged = Vec::new();
        for step in self.steps()?.into_iter().rev() {
            match Checkpoint::load(&self.checkpoint(step), config.train.optimizer, device) {
                Ok(checkpoint) => {
                    for (step, error) in damaged {
                        warn(&format!("{error}; using the checkpoint before it"));
                        self.put_aside(step)?;
                    }
                    return Ok(Some(checkpoint));
                }
                Err(error) => damaged.push((step, error)),
            }
        }
        match damaged.into_iter().next() {
            Some((_, error)) => Err(FolderError::Damaged { path: self.path.clone(), error: Box::new(error) }),
            None => Ok(None),
        }
    }

    /// Gives a checkpoint a name that the run does not look at.
    fn put_aside(&self, step: u64) -> Result<(), FolderError> {
        move_to_free_name(&self.checkpoint(step), "damaged")
            .map(drop)
            .map_err(|error| FolderError::Damaged { path: self.path.clone(), error: Box::new(error) })
    }

    /// Removes all checkpoints but the last `keep` and that of step `best`.
    pub fn prune(&self, keep: usize, best: Option<u64>) -> Result<(), CheckpointError> {
        let steps = self.steps().unwrap_or_default();
        let old = &steps[..steps.len().saturating_sub(keep)];
        old.iter().filter(|step| Some(**step) != best).try_for_each(|step| remove(&self.checkpoint(*step)))
    }
}

/// The steps of the checkpoints in a run's folder, in order.
pub fn checkpoint_steps(run: &Path) -> Result<Vec<u64>, FolderError> {
    let path = run.join(CHECKPOINTS);
    let entries = fs::read_dir(&path).map_err(|error| FolderError::Io { path, error })?;
    let step = |entry: fs::DirEntry| {
        let step = entry.file_name().to_str()?.strip_prefix(STEP)?.parse().ok()?;
        is_checkpoint(&entry.path()).then_some(step)
    };
    let mut steps: Vec<u64> = entries.filter_map(|entry| step(entry.ok()?)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// The checkpoint of a run that was best on validation data, as its last one says; none before the first.
pub(crate) fn best_checkpoint(run: &Path) -> Result<Option<PathBuf>, FolderError> {
    let steps = checkpoint_steps(run)?;
    let Some(last) = steps.last() else { return Ok(None) };
    let of = |step: u64| run.join(CHECKPOINTS).join(format!("{STEP}{step:06}"));
    let best = best_of(&of(*last)).filter(|best| steps.contains(best));
    Ok(Some(of(best.unwrap_or(*last))))
}

/// Whether a path still leads to a file that was opened.
fn same_file(path: &Path, file: &File) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |found: io::Result<fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        identity(fs::metadata(path)) == identity(file.metadata())
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        path.exists()
    }
}

/// Holds the lock of a folder, which says who does.
fn lock(folder: &Path) -> Result<File, FolderError> {
    let path = folder.join(LOCK_FILE);
    let io = |error| FolderError::Io { path: path.clone(), error };
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut by = String::new();
            let _ = file.read_to_string(&mut by);
            let by = by.trim().parse::<u32>().map_or_else(|_| String::new(), |id| format!(" ({id})"));
            return Err(FolderError::Locked { path: folder.into(), by });
        }
        Err(TryLockError::Error(error)) => return Err(io(error)),
    }
    file.set_len(0).map_err(io)?;
    file.write_all(std::process::id().to_string().as_bytes()).map_err(io)?;
    Ok(file)
}
