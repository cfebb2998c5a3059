//! What an experiment leaves behind: a file with everything, and tables and pictures made from it.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use falcon_nn::{ModelConfig, write_file};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fingerprint::Origin;
use crate::evaluate::mean_and_variance;
use crate::report::{table_head, table_line, thousands};

/// Name of the file with everything.
pub const RESULTS_FILE: &str = "results.json";

/// The line after the tables' place in a page.
const END: &str = "<!-- end -->";

/// What became of one model and seed.
pub trait ResultRow: Clone + Send {
    /// The row.
    fn name(&self) -> &str;

    /// The seed of its initial values and data.
    fn seed(&self) -> u64;

    /// Numbers the model learnt.
    fn parameters(&self) -> usize;

    /// Where it comes from. Rows recorded by earlier versions do not say.
    fn origin(&self) -> Option<&Origin>;

    /// The same row with an origin.
    fn with_origin(self, origin: Origin) -> Self;
}

/// An experiment, done.
pub trait Results: Serialize + DeserializeOwned {
    /// What became of one model and seed.
    type Row: ResultRow;

    /// What became of each model and seed.
    fn rows(&self) -> &[Self::Row];

    /// The configuration of the first row.
    fn config(&self) -> &str;

    /// The machine that wrote the record.
    fn machine(&self) -> &str;

    /// The version of the program that wrote it.
    fn version(&self) -> &str;

    /// The line before the tables' place in a page, such as `<!-- addition quick -->`.
    fn marker(&self) -> String;

    /// The tables, in Markdown.
    fn table(&self) -> String;

    /// What of them is put into a page.
    fn summary(&self) -> String {
        self.table()
    }

    /// Files beside [`RESULTS_FILE`], by name.
    fn files(&self) -> Vec<(&'static str, String)>;

    /// The command that repeats it.
    fn command(&self) -> &str;

    /// Runs that belong to it, if not all of them are done.
    fn planned(&self) -> Option<usize>;

    /// The line above the tables of an experiment that is not done.
    fn mark(&self) -> String {
        self.planned().map_or_else(String::new, |planned| {
            format!("**Partial: {} of {planned} runs are done.**\n\n", self.rows().len())
        })
    }

    /// Writes what there is of an experiment that goes on, unless the record there has all of it and more: an
    /// experiment that is continued finds its runs again one after the other.
    fn keep(&self, folder: &Path) -> Result<(), RecordError> {
        let key =
            |row: &Self::Row| (row.name().to_string(), row.seed(), row.origin().map(|origin| origin.fingerprint));
        let more = |there: Self| {
            let known: Vec<_> = there.rows().iter().map(key).collect();
            there.command() == self.command()
                && known.len() > self.rows().len()
                && self.rows().iter().all(|row| known.contains(&key(row)))
        };
        if Self::read(folder).is_ok_and(more) { Ok(()) } else { self.write(folder) }
    }

    /// Where the rows were trained and by which versions of the program, in words. Rows that do not say were trained
    /// where the record was written.
    fn machines(&self) -> String {
        let mut machines: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut versions: Vec<&str> = Vec::new();
        for row in self.rows() {
            let of = row.origin().map(|origin| (origin.machine.as_str(), origin.version.as_str()));
            let (machine, version) = of.unwrap_or((self.machine(), self.version()));
            if !versions.contains(&version) {
                versions.push(version);
            }
            let known = machines.iter().position(|(known, _)| *known == machine);
            let index = known.unwrap_or_else(|| {
                machines.push((machine, Vec::new()));
                machines.len() - 1
            });
            if !machines[index].1.contains(&row.name()) {
                machines[index].1.push(row.name());
            }
        }
        let machines = match machines.as_slice() {
            [] => self.machine().to_string(),
            [(only, _)] => only.to_string(),
            several => {
                let of = several.iter().map(|(machine, names)| format!("{machine} ({})", names.join(", ")));
                format!("Trained on {} machines: {}", several.len(), of.collect::<Vec<_>>().join("; "))
            }
        };
        let versions = if versions.is_empty() { self.version().to_string() } else { versions.join(" and ") };
        format!("{machines}. Falcon {versions}")
    }

    /// Reads what [`Results::write`] wrote.
    fn read(folder: &Path) -> Result<Self, RecordError> {
        Self::read_file(&folder.join(RESULTS_FILE))
    }

    /// The same from the file itself.
    fn read_file(path: &Path) -> Result<Self, RecordError> {
        let json = fs::read(path).map_err(|error| RecordError::Io { path: path.into(), error })?;
        serde_json::from_slice(&json).map_err(|error| RecordError::Json { path: path.into(), error })
    }

    /// Writes everything, and what is made from it.
    fn write(&self, folder: &Path) -> Result<(), RecordError> {
        fs::create_dir_all(folder).map_err(|error| RecordError::Io { path: folder.into(), error })?;
        let json = serde_json::to_string_pretty(self).expect("results are plain data") + "\n";
        for (name, text) in std::iter::once((RESULTS_FILE, json)).chain(self.files()) {
            let path = folder.join(name);
            write_file(&path, text.as_bytes()).map_err(|error| RecordError::Io { path, error })?;
        }
        Ok(())
    }

    /// A Markdown page with the summary in its place.
    fn put_into(&self, page: &str) -> Result<String, RecordError> {
        let begin = self.marker() + "\n";
        let place = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = place.ok_or_else(|| RecordError::NoPlace { begin: self.marker(), end: END })?;
        Ok(format!("{before}{begin}{}{END}{after}", self.summary()))
    }
}

/// Why results cannot be kept or read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// They are none.
    #[error("{path}: not a record of this experiment: {error}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// A page that has no place for the tables.
    #[error("no place for the table: it goes between a line {begin:?} and one {end:?}")]
    NoPlace {
        /// The line before.
        begin: String,
        /// The line after.
        end: &'static str,
    },
}

/// How many numbers a model keeps of what it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateSize {
    /// So many, whatever was read.
    Fixed(usize),
    /// More with every token, as a Transformer does.
    Grows,
}

impl StateSize {
    /// Of one sequence.
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

/// A mean and how far its parts are from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub mean: f64,
    /// Standard deviation over seeds; none of a single one.
    pub deviation: Option<f64>,
}

impl Spread {
    pub fn of(values: &[f64]) -> Self {
        let (mean, variance) = mean_and_variance(values);
        Self { mean, deviation: variance.map(f64::sqrt) }
    }

    /// With so many digits after the point.
    pub fn show(&self, digits: usize) -> String {
        match self.deviation {
            Some(deviation) => format!("{:.digits$} ± {deviation:.digits$}", self.mean),
            None => format!("{:.digits$}", self.mean),
        }
    }

    /// Of fractions of 1.
    pub fn percent(&self) -> String {
        let deviation = self.deviation.map(|deviation| 100.0 * deviation);
        Self { mean: 100.0 * self.mean, deviation }.show(1)
    }
}

/// A column of a table that has a line for each name.
pub(super) struct Column<'a> {
    title: String,
    /// Whether it is one of those that a reader wants first.
    first: bool,
    cell: Box<dyn Fn(&str) -> String + 'a>,
}

impl<'a> Column<'a> {
    pub fn new(first: bool, title: impl Into<String>, cell: impl Fn(&str) -> String + 'a) -> Self {
        Self { title: title.into(), first, cell: Box::new(cell) }
    }
}

/// The columns that a reader wants first.
pub(super) fn first(columns: Vec<Column<'_>>) -> Vec<Column<'_>> {
    columns.into_iter().filter(|column| column.first).collect()
}

/// A table in Markdown.
pub(super) fn table_of(names: &[&str], columns: &[Column<'_>]) -> String {
    let mut out = String::new();
    if names.is_empty() {
        return out;
    }
    table_head(&mut out, &columns.iter().map(|column| column.title.clone()).collect::<Vec<_>>());
    for name in names {
        table_line(&mut out, &columns.iter().map(|column| (column.cell)(name)).collect::<Vec<_>>());
    }
    out
}

/// Names of rows, in the order they were run.
pub(super) fn names<'a>(rows: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in rows {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The row of the paper that a row is compared with: the same preset, which may have been trained otherwise, but is the
/// same model.
pub(super) fn paper_row(name: &str) -> Option<&str> {
    let (preset, changes) = name.split_once(' ').unwrap_or((name, ""));
    changes.split_whitespace().all(|change| change.starts_with("train.")).then_some(preset)
}

/// Seeds of the row that has fewest, and of the one that has most.
pub(super) fn seeds(counts: impl Iterator<Item = usize> + Clone) -> (usize, usize) {
    (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0))
}

/// The same in words.
pub(super) fn seeds_in_words((least, most): (usize, usize)) -> String {
    if least == most { format!("{most} seeds") } else { format!("{least} to {most} seeds") }
}

/// How long all runs took, and with how many threads, in words.
pub(super) fn cost(runs: impl Iterator<Item = (f64, usize)> + Clone) -> String {
    let minutes = runs.clone().map(|(seconds, _)| seconds).sum::<f64>() / 60.0;
    let threads = runs.map(|(_, threads)| threads);
    let threads = match (threads.clone().min().unwrap_or(0), threads.max().unwrap_or(0)) {
        (1, 1) => "one thread per run".to_string(),
        (least, most) if least == most => format!("{most} threads per run"),
        (least, most) => format!("{least} to {most} threads per run"),
    };
    format!("{threads}, {minutes:.0} minutes of all runs together")
}
