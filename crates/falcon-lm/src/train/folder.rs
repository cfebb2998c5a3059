//! A run's folder: its configuration, its records, its checkpoints; and a lock, so that one process writes it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_nn::write_file;
use thiserror::Error;

use super::checkpoint::{ASIDE, Checkpoint, CheckpointError, best_of, remove};
use crate::config::{RUN_FILE, RunConfig, RunConfigError};

const LOCK_FILE: &str = "lock";
const CHECKPOINTS: &str = "checkpoints";
const STEP: &str = "step-";

/// A folder that this process alone writes to.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Let go when the process ends, however it ends.
    _lock: File,
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
    /// It is another run's.
    #[error(
        "{path} holds a run of another configuration:\n{differences}choose another folder, or go on with that run by `falcon train --run {path}`"
    )]
    Different {
        /// The folder.
        path: PathBuf,
        /// A line for each key.
        differences: String,
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

impl RunFolder {
    /// Takes hold of a folder for a run of `config`: a new one, or one that has a run of the same.
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
        if file.exists() {
            let there = RunConfig::read(&file)?;
            let differences = there.differences(config);
            if !differences.is_empty() {
                let line = |(key, there, here): &(String, String, String)| {
                    format!("  {key} is {there} there, {here} here\n")
                };
                let differences = differences.iter().map(line).collect();
                return Err(FolderError::Different { path: path.into(), differences });
            }
        } else {
            write_file(&file, config.to_toml().as_bytes()).map_err(io(&file))?;
        }
        let checkpoints = path.join(CHECKPOINTS);
        fs::create_dir_all(&checkpoints).map_err(io(&checkpoints))?;
        let folder = Self { path: path.into(), _lock: lock };
        folder.clear().map_err(io(&checkpoints))?;
        Ok(folder)
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

    /// Gives a checkpoint a name that is none.
    fn put_aside(&self, step: u64) -> Result<(), FolderError> {
        let path = self.checkpoint(step);
        let aside = path.with_file_name(format!("damaged-{STEP}{step:06}"));
        // There may be one from an earlier time.
        let _ = fs::remove_dir_all(&aside);
        fs::rename(&path, &aside).map_err(|error| FolderError::Io { path, error })
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
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut steps: Vec<u64> = names.filter_map(|name| name.strip_prefix(STEP)?.parse().ok()).collect();
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
