//! The record of an experiment: one file with all results, from which tables and pictures are made.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use falcon_base::files::write_file;
use falcon_base::{AtPath, PathError};
use falcon_nn::ModelConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fingerprint::Origin;
use super::trial::SearchRecord;
use crate::format::thousands;

/// Name of the file that holds the record.
pub const RESULTS_FILE: &str = "results.json";

/// The line after the tables in a Markdown page.
const END: &str = "<!-- end -->";

/// A kind of experiment: what its records hold in addition to what the records of all experiments hold, and its tables.
pub trait Experiment: Clone + fmt::Debug + PartialEq + Sized + 'static {
    /// Its name in commands and folders.
    const NAME: &'static str;

    /// What all rows of a record have in common.
    type Settings: RecordData;

    /// The results of training a row.
    type Training: RecordData;

    /// The results of evaluating a trained row.
    type Measured: RecordData;

    /// All tables, in Markdown.
    fn table(record: &ExperimentRecord<Self>) -> String;

    /// The most important columns of the tables, for a terminal or the page of a project.
    fn summary(record: &ExperimentRecord<Self>) -> String;

    /// The files that are written beside [`RESULTS_FILE`]: their names and contents.
    fn files(record: &ExperimentRecord<Self>) -> Vec<(&'static str, String)>;
}

/// Plain data that is part of a record.
pub trait RecordData: Clone + fmt::Debug + PartialEq + Send + Sync + Serialize + DeserializeOwned {}

impl<T: Clone + fmt::Debug + PartialEq + Send + Sync + Serialize + DeserializeOwned> RecordData for T {}

/// All results of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ExperimentRecord<E: Experiment> {
    /// The name of the scale.
    pub scale: String,
    /// The command that repeats the experiment.
    pub command: String,
    /// The version of the program that wrote the record.
    pub version: String,
    /// The machine that wrote the record.
    pub machine: String,
    /// What all rows have in common.
    #[serde(flatten)]
    pub settings: E::Settings,
    /// The configuration of the first row, in TOML. The other rows differ in the seed and in what their names say.
    pub config: String,
    /// The number of runs of the complete experiment; none if all of them are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<usize>,
    /// How the learning rate and the initial scale of the embedding of each row were chosen; none if they were not
    /// searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRecord>,
    /// The results of each row and seed.
    pub rows: Vec<RowResult<E>>,
}

/// The results of a row for one seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct RowResult<E: Experiment> {
    /// The name of the row.
    pub name: String,
    /// The seed of the initial values and the data.
    pub seed: u64,
    /// The number of parameters of the model.
    pub parameters: usize,
    /// The size of the model's state. Rows recorded by earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateSize>,
    /// The step of the best validation, whose checkpoint was evaluated.
    pub best_step: u64,
    /// The results of training.
    #[serde(flatten)]
    pub training: E::Training,
    /// The time spent in training and validation, in seconds.
    pub seconds: f64,
    /// The number of threads of the run since it was last resumed.
    pub threads: usize,
    /// The results of the evaluation.
    #[serde(flatten)]
    pub measured: E::Measured,
    /// The run that the row was made from. Rows recorded by earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

impl<E: Experiment> ExperimentRecord<E> {
    /// The names of the rows, in order.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        names
    }

    /// The results of all seeds of a row.
    pub(super) fn seeds_of(&self, name: &str) -> Vec<&RowResult<E>> {
        self.rows.iter().filter(|row| row.name == name).collect()
    }

    /// The line above the tables of an experiment that is not complete; empty otherwise.
    pub(super) fn partial_mark(&self) -> String {
        self.planned.map_or_else(String::new, |planned| {
            format!("**Partial: {} of {planned} runs are done.**\n\n", self.rows.len())
        })
    }

    /// The machines on which the rows were trained and the versions of the program, in words. Rows without an origin
    /// were trained where the record was written.
    pub(super) fn machines(&self) -> String {
        let mut machines: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut versions: Vec<&str> = Vec::new();
        for row in &self.rows {
            let origin = row.origin.as_ref().map(|origin| (origin.machine.as_str(), origin.version.as_str()));
            let (machine, version) = origin.unwrap_or((&self.machine, &self.version));
            if !versions.contains(&version) {
                versions.push(version);
            }
            let position = machines.iter().position(|(name, _)| *name == machine);
            let index = position.unwrap_or_else(|| {
                machines.push((machine, Vec::new()));
                machines.len() - 1
            });
            if !machines[index].1.contains(&row.name.as_str()) {
                machines[index].1.push(&row.name);
            }
        }
        let machines = match machines.as_slice() {
            [] => self.machine.clone(),
            [(only, _)] => only.to_string(),
            several => {
                let each = several.iter().map(|(machine, names)| format!("{machine} ({})", names.join(", ")));
                format!("Trained on {} machines: {}", several.len(), each.collect::<Vec<_>>().join("; "))
            }
        };
        let versions = if versions.is_empty() { self.version.clone() } else { versions.join(" and ") };
        format!("{machines}. Falcon {versions}")
    }

    /// All tables, in Markdown.
    pub fn table(&self) -> String {
        E::table(self)
    }

    /// The most important columns of the tables, in Markdown.
    pub fn summary(&self) -> String {
        E::summary(self)
    }

    /// The files that are written beside [`RESULTS_FILE`]: their names and contents.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        E::files(self)
    }

    /// Reads the record in a folder.
    pub fn read(folder: &Path) -> Result<Self, RecordError> {
        Self::read_file(&folder.join(RESULTS_FILE))
    }

    /// Reads a record from its file.
    pub fn read_file(path: &Path) -> Result<Self, RecordError> {
        let json = fs::read(path).at(path)?;
        serde_json::from_slice(&json).map_err(|source| RecordError::Json { path: path.into(), source })
    }

    /// Writes the record to a folder, with all tables and pictures.
    pub fn write(&self, folder: &Path) -> Result<(), RecordError> {
        fs::create_dir_all(folder).at(folder)?;
        let json = serde_json::to_string_pretty(self).expect("a record is plain data") + "\n";
        for (name, text) in std::iter::once((RESULTS_FILE, json)).chain(self.files()) {
            write_file(&folder.join(name), text.as_bytes())?;
        }
        Ok(())
    }

    /// Writes the record of an experiment that is not complete, unless the record in the folder has all of its rows
    /// and more. When an experiment is resumed, it finds its finished runs one after the other, and must not drop
    /// those that it has not found yet.
    pub fn write_partial(&self, folder: &Path) -> Result<(), RecordError> {
        let key = |row: &RowResult<E>| {
            (row.name.clone(), row.seed, row.origin.as_ref().map(|origin| origin.fingerprint))
        };
        let has_more = |existing: Self| {
            let keys: Vec<_> = existing.rows.iter().map(key).collect();
            existing.command == self.command
                && keys.len() > self.rows.len()
                && self.rows.iter().all(|row| keys.contains(&key(row)))
        };
        if Self::read(folder).is_ok_and(has_more) { Ok(()) } else { self.write(folder) }
    }

    /// Replaces the tables in a Markdown page: the lines between a marker such as `<!-- addition quick -->` and `<!--
    /// end -->`.
    pub fn put_into(&self, page: &str) -> Result<String, RecordError> {
        let marker = format!("<!-- {} {} -->", E::NAME, self.scale);
        let begin = format!("{marker}\n");
        let place = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = place.ok_or(RecordError::NoPlace { begin: marker, end: END })?;
        Ok(format!("{before}{begin}{}{END}{after}", self.summary()))
    }
}

/// A record cannot be read, written or put into a page.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The file is not a record of this experiment.
    #[error("{}: not a record of this experiment: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The page does not have the lines between which the tables go.
    #[error("no place for the table: it goes between a line {begin:?} and a line {end:?}")]
    NoPlace {
        /// The line before the tables.
        begin: String,
        /// The line after them.
        end: &'static str,
    },
}

/// The size of a model's state: how many numbers it keeps about the tokens that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateSize {
    /// A fixed number, however many tokens were read.
    Fixed(usize),
    /// More with every token, as in a Transformer.
    Grows,
}

impl StateSize {
    /// The size of the state of one sequence.
    pub(super) fn of(model: &ModelConfig) -> Self {
        model.state_size().map_or(Self::Grows, Self::Fixed)
    }
}

impl fmt::Display for StateSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(numbers) => f.write_str(&thousands(*numbers as u64)),
            Self::Grows => f.write_str("grows"),
        }
    }
}
