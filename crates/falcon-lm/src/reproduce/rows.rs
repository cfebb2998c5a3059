//! Rows of a table: models that are trained by one configuration, which they share but for the model and the seed.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::fingerprint::{Fingerprint, Origin};
use super::search::Search;
use crate::config::{Layer, RunConfig, RunConfigError};
use crate::data::CacheError;
use crate::machine;
use crate::train::{
    Best, CheckpointError, METRICS_FILE, MetricsError, Outcome, Record, RunFolder, StartRecord, TrainError,
    Trainer, Watch, read_metrics,
};
use crate::trained::TrainedError;

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is called.
    pub name: String,
    /// The preset it is made from.
    pub preset: String,
    /// What differs from the preset, as `--set` has it.
    pub set: Vec<String>,
}

impl Row {
    /// A preset as it is, or with something changed: `falcon-1a.3+model.align=same`.
    pub fn of(spec: &str) -> Self {
        // A number may have a `+` too: 1e+4.
        let begins = |at: &usize| ["model.", "task.", "train."].iter().any(|key| spec[at + 1..].starts_with(key));
        let cuts: Vec<usize> = spec.match_indices('+').map(|(at, _)| at).filter(begins).collect();
        let ends = cuts.iter().skip(1).copied().chain([spec.len()]);
        let set: Vec<String> = cuts.iter().zip(ends).map(|(at, end)| spec[at + 1..end].into()).collect();
        let preset = &spec[..cuts.first().copied().unwrap_or(spec.len())];
        let short = set.iter().map(|set| set.strip_prefix("model.").unwrap_or(set));
        let name = std::iter::once(preset).chain(short).collect::<Vec<_>>().join(" ");
        Self { name, preset: preset.into(), set }
    }
}

/// How large an experiment is.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Its name.
    pub name: &'static str,
    /// The rows it has.
    pub models: &'static [&'static str],
    /// Seeds of each row.
    pub seeds: u64,
    /// The configuration of all rows.
    pub set: &'static [&'static str],
    /// Test samples of each width, or questions of each benchmark.
    pub samples: usize,
    /// What is searched for before, unless it is asked otherwise.
    pub search: Option<Search>,
}

/// Configuration of a row: that of the scale over `task`, then what is asked for all rows, then what the row changes: a
/// row is what its name says.
pub(super) fn config(
    task: &[Layer],
    scale: &Scale,
    row: &Row,
    seed: u64,
    more: &[Layer],
) -> Result<RunConfig, RunConfigError> {
    let of_row = row.set.iter().map(|set| Layer::set(set)).collect::<Result<Vec<_>, _>>()?;
    let of_the_table = "what the rows and seeds of the table are; use --models and --seeds";
    for (section, key, what) in [
        ("model", "preset", of_the_table),
        ("train", "seed", of_the_table),
        ("task", "name", "what the experiment is"),
    ] {
        if let Some(layer) = of_row.iter().chain(more).find(|layer| layer.has(section, key)) {
            return Err(layer.refused(section, key, what));
        }
    }
    let mut layers = task.to_vec();
    layers.push(Layer::of("model", "preset", row.preset.as_str()));
    for set in scale.set {
        layers.push(Layer::set(set)?);
    }
    layers.extend_from_slice(more);
    layers.extend(of_row);
    layers.push(Layer::of("train", "seed", seed));
    RunConfig::resolve(&layers)
}

/// Why a row has no result.
#[derive(Debug, Error)]
pub enum RowError {
    /// The configuration does not do.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// Training did not come to its end.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The trained model cannot be read.
    #[error("the best checkpoint cannot be measured: {0}; remove the row's folder to train it again")]
    Checkpoint(#[from] Box<CheckpointError>),
    /// The same, with its tokenizer.
    #[error("the best checkpoint cannot be measured: {0}; remove the row's folder to train it again")]
    Trained(#[from] TrainedError),
    /// A text cannot be measured.
    #[error(transparent)]
    Text(#[from] CacheError),
    /// The records cannot be read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The result cannot be kept.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

/// What a finished run says of itself.
pub(super) struct Finished {
    /// Its best measurement.
    pub best: Best,
    /// The checkpoint of it.
    pub checkpoint: PathBuf,
    /// Time in training and validation, over all the times the run was taken up.
    pub seconds: f64,
    /// The last time it was started: the threads, the machine and the version of the program.
    start: Option<StartRecord>,
    /// All records.
    pub records: Vec<Record>,
    /// Closed to others while the row is measured.
    _folder: RunFolder,
}

impl Finished {
    /// Threads it was trained with, the last time it was started.
    pub fn threads(&self) -> usize {
        self.start.as_ref().map_or(1, |start| start.threads)
    }

    /// Where a row of this run comes from. A run of an earlier version does not say its machine; that it is here is all
    /// there is to know.
    pub fn origin(&self, fingerprint: Fingerprint) -> Origin {
        let (machine, version) = self.start.clone().map(|start| (start.machine, start.version)).unzip();
        Origin {
            fingerprint,
            machine: machine.flatten().unwrap_or_else(machine::describe),
            version: version.unwrap_or_else(|| env!("CARGO_PKG_VERSION").into()),
        }
    }
}

/// Trains a row in `folder`, or finds it trained. None if it was interrupted.
pub(super) fn train(
    config: &RunConfig,
    folder: &Path,
    watch: &mut dyn Watch,
) -> Result<Option<Finished>, RowError> {
    let mut trainer = match Trainer::open(config, folder, watch) {
        Err(error) if error.is_interrupt() => return Ok(None),
        opened => opened?,
    };
    if trainer.run(watch)? == Outcome::Interrupted {
        return Ok(None);
    }
    let best = trainer.best().expect("a finished run was measured");
    let records = read_metrics(&folder.join(METRICS_FILE))?;
    let start = |record: &Record| match record {
        Record::Start(start) => Some(start.clone()),
        _ => None,
    };
    Ok(Some(Finished {
        best,
        checkpoint: trainer.folder().checkpoint(best.step),
        seconds: seconds(&records),
        start: records.iter().rev().find_map(start),
        records,
        _folder: trainer.into_folder(),
    }))
}

/// Time in training and validation.
pub(super) fn seconds(records: &[Record]) -> f64 {
    let of = |record: &Record| match record {
        Record::Train(record) => record.seconds,
        Record::Eval(record) => record.seconds,
        _ => 0.0,
    };
    records.iter().map(of).sum()
}
