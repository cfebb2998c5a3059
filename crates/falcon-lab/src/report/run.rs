//! A run as it is read from its folder, and the values of it that the page shows.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use falcon_base::{AtPath, PathError};
use falcon_lm::batch::VALIDATION;
use falcon_lm::config::RUN_FILE;
use falcon_lm::train::{
    EvalRecord, GatesRecord, METRICS_FILE, Record, StartRecord, StopRecord, TrainRecord, read_intact_metrics,
};

/// A training run: its configuration and its records.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// Its name on the page: that of its folder.
    pub name: String,
    /// Its folder. If several runs have the same name, the page adds the names of parent folders.
    pub folder: PathBuf,
    /// The contents of `config.toml`.
    pub config: toml::Table,
    /// The contents of `metrics.jsonl`.
    pub records: Vec<Record>,
    /// What is wrong with the first line that is not a record. Such lines are left out.
    pub damage: Option<String>,
}

/// A run as it is shown on the page.
#[derive(Clone)]
pub(super) struct ShownRun<'a> {
    /// Its index, which determines its colour in all charts.
    pub index: usize,
    /// Its name, distinct from those of all other runs.
    pub label: String,
    run: &'a RunRecord,
}

impl<'a> ShownRun<'a> {
    /// All runs, with distinct labels.
    pub fn all(runs: &'a [RunRecord]) -> Vec<Self> {
        let labelled = runs.iter().zip(labels(runs)).enumerate();
        labelled.map(|(index, (run, label))| Self { index, label, run }).collect()
    }
}

impl Deref for ShownRun<'_> {
    type Target = RunRecord;

    fn deref(&self) -> &RunRecord {
        self.run
    }
}

/// The folder of a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The folder does not exist or does not hold a run.
    #[error("{}: not a run: there is no folder with {RUN_FILE} and {METRICS_FILE}", folder.display())]
    NotARun {
        /// The folder.
        folder: PathBuf,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The configuration is not valid TOML.
    #[error("{}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        source: toml::de::Error,
    },
}

/// Iterates over the records of one kind.
macro_rules! of_kind {
    ($run:ident, $kind:ident) => {
        $run.records
            .iter()
            .filter_map(|record| if let Record::$kind(record) = record { Some(record) } else { None })
    };
}

impl RunRecord {
    /// Reads the folder of a run. A run that has just started has no records yet.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let (config_path, metrics_path) = (folder.join(RUN_FILE), folder.join(METRICS_FILE));
        if !config_path.exists() && !metrics_path.exists() {
            return Err(ReportError::NotARun { folder: folder.into() });
        }
        let config = std::fs::read_to_string(&config_path).at(&config_path)?;
        let config = config.parse().map_err(|source| ReportError::Config { path: config_path, source })?;
        let (records, damage) =
            if metrics_path.exists() { read_intact_metrics(&metrics_path)? } else { (Vec::new(), None) };
        // The folder may be given as `.`, which has no name.
        let folder = folder.canonicalize().at(folder)?;
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, folder, config, records, damage: damage.map(|damage| damage.to_string()) })
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

    /// The validation with the best score or, if the task does not score, with the lowest loss; the first of equals.
    pub(super) fn best_validation(&self) -> Option<&EvalRecord> {
        let finite = |eval: &&EvalRecord| eval.split == VALIDATION && eval.total.loss.is_finite();
        let worse = |eval: &EvalRecord| eval.score.map_or(eval.total.loss, |score| -score);
        self.evals().filter(finite).min_by(|a, b| worse(a).total_cmp(&worse(b)))
    }

    /// The evaluation on `split` at the step of the best validation.
    pub(super) fn best_eval<'a>(&'a self, split: &str) -> Option<&'a EvalRecord> {
        let best = self.best_validation()?.step;
        self.evals().filter(|eval| eval.split == split && eval.step == best).last()
    }

    /// A value of the configuration, without quotes.
    pub(super) fn setting(&self, table: &str, key: &str) -> Option<String> {
        self.config.get(table)?.get(key).map(plain)
    }
}

/// A TOML value as text, without quotes around strings.
pub(super) fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// All splits of all runs: validation first, then the others in order of appearance.
pub(super) fn splits<'a>(runs: &'a [ShownRun<'_>]) -> Vec<&'a str> {
    let mut splits: Vec<&str> = Vec::new();
    for eval in runs.iter().flat_map(|run| run.evals()) {
        if !splits.contains(&eval.split.as_str()) {
            splits.push(&eval.split);
        }
    }
    splits.sort_by_key(|&split| split != VALIDATION);
    splits
}

/// A distinct label for each run: its name, preceded by the names of as many parent folders as are needed to
/// distinguish equal names, or followed by a number if those are equal too.
pub(super) fn labels(runs: &[RunRecord]) -> Vec<String> {
    let deepest = runs.iter().map(|run| run.folder.ancestors().count()).max().unwrap_or(0);
    let label = |index: usize, run: &RunRecord| {
        let is_distinct = |depth: &usize| {
            let others = runs.iter().enumerate().filter(|(other, _)| *other != index);
            others.into_iter().all(|(_, other)| with_parents(other, *depth) != with_parents(run, *depth))
        };
        (0..deepest).find(is_distinct).map_or(run.name.clone(), |depth| with_parents(run, depth))
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

/// The name of a run, preceded by the names of up to `depth` parent folders.
fn with_parents(run: &RunRecord, depth: usize) -> String {
    let parents = run.folder.ancestors().skip(1).filter_map(Path::file_name).take(depth);
    parents.fold(run.name.clone(), |label, parent| format!("{}/{label}", parent.to_string_lossy()))
}

/// The speed of a step; NaN, which is not drawn, if it took no measurable time.
pub(super) fn tokens_per_second(step: &TrainRecord) -> f64 {
    if step.seconds > 0.0 { step.tokens as f64 / step.seconds } else { f64::NAN }
}
