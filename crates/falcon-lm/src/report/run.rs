//! What a run's folder holds, and what the page asks of it.

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::config::RUN_FILE;
use crate::tasks::VALIDATION;
use crate::train::{
    EvalRecord, GatesRecord, METRICS_FILE, MetricsError, Record, StartRecord, StopRecord, TrainRecord,
    read_metrics,
};

/// A run: what it was asked to do, and what it told about itself.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// It is called so on the page; the name of its folder.
    pub name: String,
    /// Where it is. The page takes parents' names from here if runs have the same name, and shows no more of it.
    pub folder: PathBuf,
    /// `config.toml`.
    pub config: toml::Table,
    /// `metrics.jsonl`.
    pub records: Vec<Record>,
}

/// A run on the page.
#[derive(Clone)]
pub(super) struct Shown<'a> {
    /// Its number, which is its colour everywhere.
    pub index: usize,
    /// What it is called.
    pub label: String,
    run: &'a RunRecord,
}

impl<'a> Shown<'a> {
    /// All runs, with labels that tell them apart.
    pub fn all(runs: &'a [RunRecord]) -> Vec<Self> {
        let labelled = runs.iter().zip(labels(runs)).enumerate();
        labelled.map(|(index, (run, label))| Self { index, label, run }).collect()
    }
}

impl Deref for Shown<'_> {
    type Target = RunRecord;

    fn deref(&self) -> &RunRecord {
        self.run
    }
}

/// Why a folder cannot be reported on.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Nothing, or nothing that a run leaves, is there.
    #[error("{}: not a run: no folder with {RUN_FILE} and {METRICS_FILE}", folder.display())]
    NotARun {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The configuration is no TOML.
    #[error("{}: {error}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        error: toml::de::Error,
    },
    /// The records cannot be read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

/// The records of one kind.
macro_rules! of_kind {
    ($run:ident, $kind:ident) => {
        $run.records
            .iter()
            .filter_map(|record| if let Record::$kind(record) = record { Some(record) } else { None })
    };
}

impl RunRecord {
    /// Reads a run's folder. A run that has only begun has no records.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let (config_path, metrics_path) = (folder.join(RUN_FILE), folder.join(METRICS_FILE));
        if !config_path.exists() && !metrics_path.exists() {
            return Err(ReportError::NotARun { folder: folder.into() });
        }
        let io = |path: &Path| {
            let path = path.to_path_buf();
            |error| ReportError::Io { path, error }
        };
        let config = std::fs::read_to_string(&config_path).map_err(io(&config_path))?;
        let config = config.parse().map_err(|error| ReportError::Config { path: config_path, error })?;
        let records = if metrics_path.exists() { read_metrics(&metrics_path)? } else { Vec::new() };
        // The folder may be `.`, which names nothing.
        let folder = folder.canonicalize().map_err(io(folder))?;
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, folder, config, records })
    }

    pub(super) fn starts(&self) -> impl Iterator<Item = &StartRecord> {
        of_kind!(self, Start)
    }

    pub(super) fn steps(&self) -> impl Iterator<Item = &TrainRecord> {
        of_kind!(self, Train)
    }

    pub(super) fn evals(&self) -> impl Iterator<Item = &EvalRecord> {
        of_kind!(self, Eval)
    }

    pub(super) fn gates(&self) -> impl Iterator<Item = &GatesRecord> {
        of_kind!(self, Gates)
    }

    pub(super) fn stops(&self) -> impl Iterator<Item = &StopRecord> {
        of_kind!(self, Stop)
    }

    pub(super) fn steps_done(&self) -> u64 {
        self.records.iter().map(Record::step).max().unwrap_or(0)
    }

    pub(super) fn last_eval<'a>(&'a self, split: &str) -> Option<&'a EvalRecord> {
        self.evals().filter(|eval| eval.split == split).last()
    }

    pub(super) fn last_validation(&self) -> Option<&EvalRecord> {
        self.last_eval(VALIDATION)
    }

    /// The validation that the task thinks best, or has the lowest loss if it does not say; the first of equals.
    pub(super) fn best_validation(&self) -> Option<&EvalRecord> {
        let finite = |eval: &&EvalRecord| eval.split == VALIDATION && eval.total.loss.is_finite();
        let worse = |eval: &EvalRecord| eval.score.map_or(eval.total.loss, |score| -score);
        self.evals().filter(finite).min_by(|a, b| worse(a).total_cmp(&worse(b)))
    }

    /// What was measured on `split` when validation was best.
    pub(super) fn best_eval<'a>(&'a self, split: &str) -> Option<&'a EvalRecord> {
        let best = self.best_validation()?.step;
        self.evals().filter(|eval| eval.split == split && eval.step == best).last()
    }

    /// A value of the configuration, as people write it.
    pub(super) fn setting(&self, table: &str, key: &str) -> Option<String> {
        self.config.get(table)?.get(key).map(plain)
    }
}

/// A value without the quotes that TOML puts around text.
pub(super) fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// All splits that occur: validation, then the others as they come.
pub(super) fn splits<'a>(runs: &'a [Shown<'_>]) -> Vec<&'a str> {
    let mut splits: Vec<&str> = Vec::new();
    for eval in runs.iter().flat_map(|run| run.evals()) {
        if !splits.contains(&eval.split.as_str()) {
            splits.push(&eval.split);
        }
    }
    splits.sort_by_key(|&split| split != VALIDATION);
    splits
}

/// A label each, all different: the name; with as many parents as tell equal names apart; or else with a number.
pub(super) fn labels(runs: &[RunRecord]) -> Vec<String> {
    let deepest = runs.iter().map(|run| run.folder.ancestors().count()).max().unwrap_or(0);
    let label = |index: usize, run: &RunRecord| {
        let alone = |depth: &usize| {
            let others = runs.iter().enumerate().filter(|(other, _)| *other != index);
            others.into_iter().all(|(_, other)| with_parents(other, *depth) != with_parents(run, *depth))
        };
        (0..deepest).find(alone).map_or(run.name.clone(), |depth| with_parents(run, depth))
    };
    let mut labels: Vec<String> = runs.iter().enumerate().map(|(index, run)| label(index, run)).collect();
    for index in 0..labels.len() {
        let mut number = 1;
        while labels[..index].contains(&labels[index]) {
            number += 1;
            labels[index] = format!("{} ({number})", runs[index].name);
        }
    }
    labels
}

/// The name after the names of up to `depth` folders around it.
fn with_parents(run: &RunRecord, depth: usize) -> String {
    let parents = run.folder.ancestors().skip(1).filter_map(Path::file_name).take(depth);
    parents.fold(run.name.clone(), |label, parent| format!("{}/{label}", parent.to_string_lossy()))
}
