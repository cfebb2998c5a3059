//! Trains the run of a row.

use std::path::{Path, PathBuf};

use falcon_base::PathError;
use falcon_lm::config::{RunConfig, RunConfigError};
use falcon_lm::data::CacheError;
use falcon_lm::machine;
use falcon_lm::train::{
    Best, CheckpointError, METRICS_FILE, MetricsError, Outcome, Record, RunFolder, StartRecord, TrainError,
    Trainer, Watch, read_metrics,
};
use falcon_lm::trained::TrainedError;
use thiserror::Error;

use super::fingerprint::{Fingerprint, Origin};

/// A row could not be trained or evaluated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RowError {
    /// Its configuration is invalid.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The checkpoint cannot be read.
    #[error("the best checkpoint cannot be evaluated: {0}; delete the folder of the row to train it again")]
    Checkpoint(#[from] Box<CheckpointError>),
    /// The checkpoint or its tokenizer cannot be read.
    #[error("the best checkpoint cannot be evaluated: {0}; delete the folder of the row to train it again")]
    Trained(#[from] TrainedError),
    /// A text cannot be read.
    #[error(transparent)]
    Text(#[from] CacheError),
    /// The records of the run cannot be read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// A result cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A run that is trained completely.
pub(super) struct FinishedRun {
    /// Its best validation.
    pub best: Best,
    /// The checkpoint of that step.
    pub checkpoint: PathBuf,
    /// The time spent in training and validation, including that before the run was resumed.
    pub seconds: f64,
    /// The record of its last start or resumption, with the threads, the machine and the version of the program.
    start: Option<StartRecord>,
    /// All records of the run.
    pub records: Vec<Record>,
    /// Keeps the folder locked while the row is evaluated.
    _folder: RunFolder,
}

impl FinishedRun {
    /// The number of threads of the run since it was last resumed.
    pub fn threads(&self) -> usize {
        self.start.as_ref().map_or(1, |start| start.threads)
    }

    /// The origin of a row made from this run. Runs of earlier versions do not record their machine, and are assumed
    /// to come from this one.
    pub fn origin(&self, fingerprint: Fingerprint) -> Origin {
        let (machine, version) = self.start.clone().map(|start| (start.machine, start.version)).unzip();
        Origin {
            fingerprint,
            machine: machine.flatten().unwrap_or_else(machine::describe),
            version: version.unwrap_or_else(|| env!("CARGO_PKG_VERSION").into()),
        }
    }
}

/// Trains a run in `folder`, unless that is done already. None if it was interrupted.
pub(super) fn train_run(
    config: &RunConfig,
    folder: &Path,
    watch: &mut dyn Watch,
) -> Result<Option<FinishedRun>, RowError> {
    let mut trainer = match Trainer::open(config, folder, watch) {
        Err(error) if error.is_interrupt() => return Ok(None),
        opened => opened?,
    };
    if trainer.run(watch)? == Outcome::Interrupted {
        return Ok(None);
    }
    let best = trainer.best().expect("a finished run has a best validation");
    let records = read_metrics(&folder.join(METRICS_FILE))?;
    let start = |record: &Record| match record {
        Record::Start(start) => Some(start.clone()),
        _ => None,
    };
    Ok(Some(FinishedRun {
        best,
        checkpoint: trainer.folder().checkpoint(best.step),
        seconds: training_seconds(&records),
        start: records.iter().rev().find_map(start),
        records,
        _folder: trainer.into_folder(),
    }))
}

/// The time spent in training and validation.
pub(super) fn training_seconds(records: &[Record]) -> f64 {
    let seconds = |record: &Record| match record {
        Record::Train(record) => record.seconds,
        Record::Eval(record) => record.seconds,
        _ => 0.0,
    };
    records.iter().map(seconds).sum()
}
