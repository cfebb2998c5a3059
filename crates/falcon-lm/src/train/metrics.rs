//! The records of a run: `metrics.jsonl`, one JSON object per line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use falcon_base::files::write_file;
use falcon_base::{AtPath, PathError};
use serde::{Deserialize, Serialize};

use crate::data::in_line;
use crate::scores::Scores;

/// Name of the file of records in a run's folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// Training started or resumed.
    Start(StartRecord),
    /// A step of training.
    Train(TrainRecord),
    /// An evaluation on held-out data.
    Eval(EvalRecord),
    /// The mean gate values of each layer.
    Gates(GatesRecord),
    /// Training ended, other than by a crash.
    Stop(StopRecord),
}

/// Training started or resumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartRecord {
    /// Steps done before.
    pub step: u64,
    /// The version of the program.
    pub version: String,
    /// Number of threads.
    pub threads: usize,
    /// Number of parameters of the model.
    pub parameters: usize,
    /// The machine. Earlier versions did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// A step of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainRecord {
    /// Steps done, this one included.
    pub step: u64,
    /// Cross-entropy in nats per target token.
    pub loss: f64,
    /// Fraction of target tokens whose largest logit is right.
    pub accuracy: f64,
    /// Learning rate.
    pub lr: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Tokens of the batch.
    pub tokens: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// Values of the task that change during training, such as the level of a curriculum.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub task: BTreeMap<String, f64>,
}

/// An evaluation on held-out data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Steps done.
    pub step: u64,
    /// The split: `validation`, or another name that the task gives.
    pub split: String,
    /// Scores of the whole split.
    #[serde(flatten)]
    pub total: Scores,
    /// Scores of its groups, such as one per width, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<(String, Scores)>,
    /// Further values of the task, such as perplexities.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub about: BTreeMap<String, f64>,
    /// The score by which the best checkpoint is chosen; higher is better. Only the validation split has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// The mean gate values of each layer over validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatesRecord {
    /// Steps done.
    pub step: u64,
    /// For each layer from first to last: the mean of `beta` or `eta`, and of `gamma` or `lambda`, where it has them.
    pub layers: Vec<BTreeMap<String, f64>>,
}

/// Training ended, other than by a crash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopRecord {
    /// Steps done.
    pub step: u64,
    /// `finished`, `interrupted`, or an error message.
    pub reason: String,
    /// Peak resident memory in bytes, where the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
}

impl Record {
    /// Steps done when the record was written.
    pub fn step(&self) -> u64 {
        match self {
            Self::Start(record) => record.step,
            Self::Train(record) => record.step,
            Self::Eval(record) => record.step,
            Self::Gates(record) => record.step,
            Self::Stop(record) => record.step,
        }
    }
}

/// Why records cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A line is not a record.
    #[error("{path}, line {line}: not a record of a run: {}", in_line(source))]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Reads the records of a run. An incomplete last line, which a killed process may leave, is ignored.
pub fn read_metrics(path: &Path) -> Result<Vec<Record>, MetricsError> {
    let (records, damage) = read_intact_metrics(path)?;
    damage.map_or(Ok(records), Err)
}

/// As [`read_metrics`], but lines that are not records are left out. The error names the first of them.
pub fn read_intact_metrics(path: &Path) -> Result<(Vec<Record>, Option<MetricsError>), PathError> {
    // A damaged file need not be UTF-8, and a process may be killed in the middle of a character.
    let bytes = std::fs::read(path).at(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let (records, damage) = parse(path, &text);
    Ok((records.into_iter().map(|(record, _)| record).collect(), damage))
}

/// Parses records, each with its line. The error names the first line that is not a record.
fn parse<'t>(path: &Path, text: &'t str) -> (Vec<(Record, &'t str)>, Option<MetricsError>) {
    let (mut records, mut damage) = (Vec::new(), None);
    for (index, line) in text.split_inclusive('\n').enumerate().filter(|(_, line)| line.ends_with('\n')) {
        match serde_json::from_str(line.trim_end()) {
            Ok(record) => records.push((record, line)),
            Err(source) => {
                damage.get_or_insert(MetricsError::Line { path: path.into(), line: index + 1, source });
            }
        }
    }
    (records, damage)
}

/// Writes records, each at once and as a whole line.
#[derive(Debug)]
pub(crate) struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Opens the records of a run that resumes after `step`, and drops those of later steps, which will be repeated.
    ///
    /// A damaged line does not prevent a run from resuming. The line is left out with a warning, and the damaged file
    /// is kept under another name.
    pub fn resume(path: &Path, step: u64, warn: &mut dyn FnMut(&str)) -> Result<Self, MetricsError> {
        // A damaged file need not be UTF-8.
        let bytes = if path.exists() { std::fs::read(path).at(path)? } else { Vec::new() };
        let text = String::from_utf8_lossy(&bytes);
        let (records, damage) = parse(path, &text);
        if let Some(damage) = damage {
            let copy = path.with_extension("damaged.jsonl");
            write_file(&copy, &bytes)?;
            warn(&format!("{damage}; the line is left out, and the damaged file kept as {}", copy.display()));
        }
        let done = records.into_iter().filter(|(record, _)| record.step() <= step);
        let kept: String = done.map(|(_, line)| line).collect();
        write_file(path, kept.as_bytes())?;
        let file = File::options().append(true).open(path).at(path)?;
        Ok(Self { path: path.into(), file })
    }

    pub fn write(&mut self, record: &Record) -> Result<(), MetricsError> {
        // One call per line, so that a killed process leaves complete lines except for the last.
        Ok(self.file.write_all(&line(record)).at(&self.path)?)
    }

    /// Waits until all records are on the disk.
    pub fn sync(&mut self) -> Result<(), MetricsError> {
        Ok(self.file.sync_data().at(&self.path)?)
    }
}

fn line(record: &Record) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).expect("a record is plain data");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(step: u64) -> Record {
        Record::Train(TrainRecord {
            step,
            loss: 1.0 / step as f64,
            accuracy: 0.5,
            lr: 1e-3,
            grad_norm: 2.0,
            tokens: 100,
            seconds: 0.1,
            task: BTreeMap::from([("width".into(), 3.0)]),
        })
    }

    #[test]
    fn records_are_read_back_and_later_steps_are_dropped_when_a_run_resumes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let mut log = MetricsLog::resume(&path, 0, &mut |warning| panic!("{warning}")).unwrap();
        let scores = Scores { loss: 0.5, accuracy: 0.75, exact: 0.25, tokens: 40, sequences: 4 };
        let eval = Record::Eval(EvalRecord {
            step: 2,
            split: "validation".into(),
            total: scores,
            groups: vec![("width 1".into(), scores)],
            about: BTreeMap::from([("token perplexity".into(), 1.6)]),
            score: Some(-0.5),
            seconds: 0.1,
        });
        let all = [train(1), train(2), eval, train(3)];
        all.iter().for_each(|record| log.write(record).unwrap());
        log.sync().unwrap();
        assert_eq!(read_metrics(&path).unwrap(), all);
        // As a kill in the middle of a line would leave it, even in the middle of a character.
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"kind\":\"\xc3").unwrap();
        assert_eq!(read_metrics(&path).unwrap(), all);
        let mut log = MetricsLog::resume(&path, 2, &mut |warning| panic!("{warning}")).unwrap();
        log.write(&train(3)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), all);
        std::fs::write(&path, "{\"kind\":\"train\"}\n{}\n").unwrap();
        let message = read_metrics(&path).unwrap_err().to_string();
        assert!(message.contains("line 1") && message.contains("missing field"), "{message}");
        std::fs::write(&path, "{\"kind\":\n").unwrap();
        let message = read_metrics(&path).unwrap_err().to_string();
        assert!(
            message.ends_with("line 1: not a record of a run: EOF while parsing a value, column 8"),
            "{message}"
        );
    }

    #[test]
    fn a_damaged_line_does_not_prevent_a_run_from_resuming() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let damaged = [&line(&train(1))[..], b"{\"kind\":\xff\n", &line(&train(2))].concat();
        std::fs::write(&path, &damaged).unwrap();
        let (records, damage) = read_intact_metrics(&path).unwrap();
        assert_eq!(records, [train(1), train(2)]);
        assert!(damage.unwrap().to_string().contains("line 2"));
        let mut warnings = Vec::new();
        let log = MetricsLog::resume(&path, 5, &mut |warning| warnings.push(warning.to_string()));
        log.unwrap().write(&train(3)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [train(1), train(2), train(3)]);
        assert!(warnings.len() == 1 && warnings[0].contains("line 2"), "{warnings:?}");
        assert_eq!(std::fs::read(folder.path().join("metrics.damaged.jsonl")).unwrap(), damaged);
    }
}
