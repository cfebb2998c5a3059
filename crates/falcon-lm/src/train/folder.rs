//! The folder of a run: configuration, records, checkpoints, and a lock that lets one process at a time write to it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_base::files::{ASIDE, write_file};
use falcon_base::{AtPath, PathError};
use thiserror::Error;

use super::checkpoint::{Checkpoint, CheckpointError, best_step, is_checkpoint, move_to_free_name, remove};
use crate::config::{RUN_FILE, RunConfig, RunConfigError, differences};

const LOCK_FILE: &str = "lock";
const CHECKPOINTS: &str = "checkpoints";
const STEP: &str = "step-";

/// The folder of a run, locked by this process.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// The system releases the lock when the process ends, however it ends.
    lock: File,
}

/// Why a folder cannot be used for a run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file or folder cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The folder holds files that do not belong to a run.
    #[error("{path} holds files, but is not a run: it has no {RUN_FILE}; choose another folder")]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// Another process is training in the folder.
    #[error("{path}: another process{by} is training in it; wait until it is done, or choose another folder")]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The id of the process in parentheses, if it is known.
        by: String,
    },
    /// The folder holds a run of another configuration.
    #[error("{path} holds a run of another configuration:\n{differences}{advice}")]
    Different {
        /// The folder.
        path: PathBuf,
        /// A line for each key that differs.
        differences: String,
        /// What to do instead.
        advice: String,
    },
    /// The configuration in the folder was edited, and the change cannot be applied to a run that has started.
    #[error(
        "{path}: edited since the last checkpoint:\n{differences}a run keeps these values from its beginning to its \
         end: put the old ones back, or start another run"
    )]
    Edited {
        /// The file.
        path: PathBuf,
        /// A line for each key that differs.
        differences: String,
    },
    /// The run has done more steps than are configured.
    #[error("{path}: the run has done {done} steps; train.steps = {steps} is fewer; set it to {done} or more")]
    Past {
        /// The folder.
        path: PathBuf,
        /// Steps done.
        done: u64,
        /// Steps configured.
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
    /// The configuration in the folder cannot be used.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// No checkpoint can be read.
    #[error(
        "{path}: none of its checkpoints can be used; the last: {source}. Repair it, or start again in another folder"
    )]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong with the last one.
        source: Box<CheckpointError>,
    },
}

/// Whether a run may be resumed with other values for keys of `[train]`. `seed`, `batch` and `init_from` may never
/// change, because they determine the initial weights and the data of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Any other value is an error.
    Refuse,
    /// Other values are used from the last checkpoint on.
    Accept,
}

/// A key whose value differs from the one that the run was trained with so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key, such as `train.lr`.
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

/// The value of a key in a configuration file.
fn value(config: &str, key: &str) -> Option<String> {
    let (section, key) = key.split_once('.')?;
    Some(toml::from_str::<toml::Table>(config).ok()?.get(section)?.get(key)?.to_string())
}

/// Keys that are paths of data. They may change, because a resumed run checks the content of the files instead.
const DATA_PATHS: [&str; 3] = ["task.train", "task.valid", "task.tokenizer"];

/// Keys of `[train]` that determine the run: the initial weights, and the data of each step.
const FIXED_KEYS: [&str; 3] = ["train.seed", "train.batch", "train.init_from"];

/// Whether a run may be resumed with another value of a key.
fn may_change(key: &str) -> bool {
    key.starts_with("train.") && !FIXED_KEYS.contains(&key)
}

impl RunFolder {
    /// Locks a folder for a run of `config`, and creates it if it does not exist.
    pub fn open(path: &Path, config: &RunConfig) -> Result<Self, FolderError> {
        fs::create_dir_all(path).at(path)?;
        let file = path.join(RUN_FILE);
        // A process that was killed right after its start may have left these files.
        let belongs_to_run =
            |name: &str| [RUN_FILE, LOCK_FILE, CHECKPOINTS].contains(&name) || name.starts_with(ASIDE);
        let mut entries = fs::read_dir(path).at(path)?.flatten();
        if !file.exists() && entries.any(|entry| !belongs_to_run(&entry.file_name().to_string_lossy())) {
            return Err(FolderError::Foreign { path: path.into() });
        }
        let lock = lock(path)?;
        if !file.exists() {
            write_file(&file, config.with_absolute_paths().to_toml().as_bytes())?;
        }
        let checkpoints = path.join(CHECKPOINTS);
        fs::create_dir_all(&checkpoints).at(&checkpoints)?;
        let folder = Self { path: path.into(), lock };
        folder.clear().at(&checkpoints)?;
        Ok(folder)
    }

    /// Compares `config` with the configuration that the run was trained with: that of its last checkpoint, or that of
    /// its file if there is no checkpoint yet. Accepted changes are written to the file and returned.
    pub fn reconcile(
        &self,
        config: &RunConfig,
        trained_with: Option<&str>,
        changes: Changes,
    ) -> Result<Vec<Change>, FolderError> {
        let file = self.path.join(RUN_FILE);
        let written = fs::read_to_string(&file).at(&file)?;
        let wanted = config.with_absolute_paths().to_toml();
        let differences = differences(trained_with.unwrap_or(&written), &wanted)
            .map_err(|source| RunConfigError::Toml { from: file.display().to_string(), source })?;
        let mut changed: Vec<Change> = differences
            .into_iter()
            .map(|(key, before, now)| Change { key, before, now })
            .filter(|change| !DATA_PATHS.contains(&change.key.as_str()))
            .collect();
        // The run uses its own copy of the tokenizer, so another tokenizer named in the file would be ignored silently.
        // It is refused instead.
        const TOKENIZER: &str = "task.tokenizer";
        let tokenizers = [trained_with.unwrap_or(&written), &written, &wanted].map(|text| value(text, TOKENIZER));
        if let [Some(before), Some(now), wanted] = tokenizers
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
            write_file(&file, wanted.as_bytes())?;
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

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes files and folders that a killed process left incomplete.
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

    /// The path of the checkpoint of a step.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        checkpoint_path(&self.path, step)
    }

    /// The steps of the run's checkpoints, in order.
    pub fn steps(&self) -> Result<Vec<u64>, FolderError> {
        checkpoint_steps(&self.path)
    }

    /// The last intact checkpoint; `None` if there is no checkpoint at all. Damaged checkpoints after it are reported
    /// to `warn` and renamed, so that [`RunFolder::prune`] does not count them. If all checkpoints are damaged, this is
    /// an error, and they are left as they are, because the disk may be at fault.
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
                        self.rename_damaged(step)?;
                    }
                    return Ok(Some(checkpoint));
                }
                Err(error) => damaged.push((step, error)),
            }
        }
        match damaged.into_iter().next() {
            Some((_, error)) => Err(FolderError::Damaged { path: self.path.clone(), source: Box::new(error) }),
            None => Ok(None),
        }
    }

    /// Gives a damaged checkpoint a name that the run ignores.
    fn rename_damaged(&self, step: u64) -> Result<(), FolderError> {
        move_to_free_name(&self.checkpoint(step), "damaged")
            .map(drop)
            .map_err(|error| FolderError::Damaged { path: self.path.clone(), source: Box::new(error) })
    }

    /// Removes all checkpoints except for the last `keep` and the one of step `best`.
    pub fn prune(&self, keep: usize, best: Option<u64>) -> Result<(), CheckpointError> {
        let steps = self.steps().unwrap_or_default();
        let old = &steps[..steps.len().saturating_sub(keep)];
        old.iter().filter(|step| Some(**step) != best).try_for_each(|step| remove(&self.checkpoint(*step)))
    }
}

/// The path of the checkpoint of a step in a run's folder.
fn checkpoint_path(run: &Path, step: u64) -> PathBuf {
    run.join(CHECKPOINTS).join(format!("{STEP}{step:06}"))
}

/// The steps of the checkpoints in a run's folder, in order.
pub fn checkpoint_steps(run: &Path) -> Result<Vec<u64>, FolderError> {
    let path = run.join(CHECKPOINTS);
    let entries = fs::read_dir(&path).at(&path)?;
    let step = |entry: fs::DirEntry| {
        let step = entry.file_name().to_str()?.strip_prefix(STEP)?.parse().ok()?;
        // A run writes leading zeros, so a folder such as `step-12` is not its own.
        (entry.path() == checkpoint_path(run, step) && is_checkpoint(&entry.path())).then_some(step)
    };
    let mut steps: Vec<u64> = entries.filter_map(|entry| step(entry.ok()?)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// The best checkpoint of a run on validation data, according to its last checkpoint; `None` if there is none.
pub(crate) fn best_checkpoint(run: &Path) -> Result<Option<PathBuf>, FolderError> {
    let steps = checkpoint_steps(run)?;
    let Some(last) = steps.last() else { return Ok(None) };
    let best = best_step(&checkpoint_path(run, *last)).filter(|best| steps.contains(best));
    Ok(Some(checkpoint_path(run, best.unwrap_or(*last))))
}

/// Whether a path still leads to the file that was opened.
fn same_file(path: &Path, file: &File) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity =
            |metadata: io::Result<fs::Metadata>| metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()));
        identity(fs::metadata(path)) == identity(file.metadata())
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        path.exists()
    }
}

/// Locks a folder. The id of the process is written to the lock file.
fn lock(folder: &Path) -> Result<File, FolderError> {
    let path = folder.join(LOCK_FILE);
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).at(&path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut by = String::new();
            let _ = file.read_to_string(&mut by);
            let by = by.trim().parse::<u32>().map_or_else(|_| String::new(), |id| format!(" ({id})"));
            return Err(FolderError::Locked { path: folder.into(), by });
        }
        Err(TryLockError::Error(error)) => return Err(PathError::new(path, error).into()),
    }
    file.set_len(0).at(&path)?;
    file.write_all(std::process::id().to_string().as_bytes()).at(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that a user made under a name with fewer digits is not a checkpoint of the run.
    #[test]
    fn only_folders_that_a_run_names_are_its_checkpoints() {
        let run = tempfile::tempdir().unwrap();
        for name in ["step-000012", "step-12", "step-+00013", "step-000014-copy", "step-1000000"] {
            let folder = run.path().join(CHECKPOINTS).join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("progress.json"), "{}").unwrap();
        }
        assert_eq!(checkpoint_steps(run.path()).unwrap(), [12, 1_000_000]);
    }
}
