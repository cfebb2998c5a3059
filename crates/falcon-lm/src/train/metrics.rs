//! What a run tells about itself: `metrics.jsonl`, one record per line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::in_line;

/// Name of the records in a run's folder.
pub(crate) const METRICS_FILE: &str = "metrics.jsonl";

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// The program began, or went on.
    Start(StartRecord),
    /// A step of training.
    Train(TrainRecord),
    /// A measurement on held-out data.
    Eval(EvalRecord),
    /// What the gates of each layer do.
    Gates(GatesRecord),
    /// The program stopped by itself.
    Stop(StopRecord),
}

/// The program began, or went on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartRecord {
    /// Steps done before.
    pub step: u64,
    /// Of the program.
    pub version: String,
    /// Threads it computes with.
    pub threads: usize,
    /// Numbers the model learns.
    pub parameters: usize,
    /// The machine it runs on. Runs of earlier versions do not say.
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
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// Tokens read.
    pub tokens: usize,
    /// Time it took.
    pub seconds: f64,
    /// What the task makes of itself as training goes on, such as the width it has reached.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub task: BTreeMap<String, f64>,
}

/// A measurement on held-out data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Steps done.
    pub step: u64,
    /// Which data: `validation`, or another name that the task gives.
    pub split: String,
    /// All of it.
    #[serde(flatten)]
    pub total: Scores,
    /// Parts of it, such as one width each, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<(String, Scores)>,
    /// What else the task has to say of it, such as perplexities.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub about: BTreeMap<String, f64>,
    /// How good the task thinks it is, the largest being best: by this the best checkpoint is chosen. Of validation only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Time it took.
    pub seconds: f64,
}

/// How good predictions are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Cross-entropy in nats per target token.
    pub loss: f64,
    /// Fraction of target tokens whose largest logit is right.
    pub accuracy: f64,
    /// Fraction of sequences all of whose targets are.
    pub exact: f64,
    /// Target tokens measured.
    pub tokens: usize,
    /// Sequences measured.
    pub sequences: usize,
}

/// What the gates of each layer do, on average over validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatesRecord {
    /// Steps done.
    pub step: u64,
    /// By layer, first to last: the mean of `beta` or `eta`, and of `gamma` or `lambda`, where it has them.
    pub layers: Vec<BTreeMap<String, f64>>,
}

/// The program stopped by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopRecord {
    /// Steps done.
    pub step: u64,
    /// `finished`, `interrupted`, or what went wrong.
    pub reason: String,
    /// The most memory it held, in bytes, if the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
}

impl Record {
    /// Steps done when it was written.
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

/// What is wrong with records.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A line is no record.
    #[error("{path}, line {line}: not a record of a run: {error}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        error: String,
    },
}

/// Reads records. A last line that was cut off, as a kill leaves it, is passed over.
pub fn read_metrics(path: &Path) -> Result<Vec<Record>, MetricsError> {
    Ok(parse(path, &read(path)?)?.into_iter().map(|(record, _)| record).collect())
}

fn read(path: &Path) -> Result<String, MetricsError> {
    std::fs::read_to_string(path).map_err(|error| MetricsError::Io { path: path.into(), error })
}

/// Records, each with its line.
fn parse<'t>(path: &Path, text: &'t str) -> Result<Vec<(Record, &'t str)>, MetricsError> {
    let mut records = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate().filter(|(_, line)| line.ends_with('\n')) {
        let wrong = |error| MetricsError::Line { path: path.into(), line: index + 1, error: in_line(&error) };
        records.push((serde_json::from_str(line.trim_end()).map_err(wrong)?, line));
    }
    Ok(records)
}

/// Writes records, each at once.
#[derive(Debug)]
pub(crate) struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Goes on after `step`: what was written about later steps will happen again.
    ///
    /// A line that is no record does not keep a run from going on: it is left out, `warn` is told, and the file as it was stays beside.
    pub fn resume(path: &Path, step: u64, warn: &mut dyn FnMut(&str)) -> Result<Self, MetricsError> {
        let io = |error| MetricsError::Io { path: path.into(), error };
        // Damage need not be text.
        let bytes = if path.exists() { std::fs::read(path).map_err(io)? } else { Vec::new() };
        let text = String::from_utf8_lossy(&bytes);
        let records = match parse(path, &text) {
            Ok(records) => records,
            Err(error) => {
                let beside = path.with_extension("damaged.jsonl");
                falcon_nn::write_file(&beside, &bytes).map_err(io)?;
                warn(&format!("{error}; left out, and the file as it was kept as {}", beside.display()));
                let good = |line| serde_json::from_str(line).ok().map(|record: Record| (record, line));
                text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(good).collect()
            }
        };
        let now = records.into_iter().filter(|(record, _)| record.step() <= step);
        let kept: String = now.map(|(_, line)| line).collect();
        falcon_nn::write_file(path, kept.as_bytes()).map_err(io)?;
        let file = File::options().append(true).open(path).map_err(io)?;
        Ok(Self { path: path.into(), file })
    }

    pub fn write(&mut self, record: &Record) -> Result<(), MetricsError> {
        let io = |error| MetricsError::Io { path: self.path.clone(), error };
        // One call per line: a kill leaves whole lines but for the last.
        self.file.write_all(&line(record)).map_err(io)
    }

    /// Returns when everything is on the disk.
    pub fn sync(&mut self) -> Result<(), MetricsError> {
        self.file.sync_data().map_err(|error| MetricsError::Io { path: self.path.clone(), error })
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
    fn what_is_written_is_read_and_later_steps_are_forgotten() {
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
        // As a kill in the middle of a line would leave it.
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"kind\":\"tr").unwrap();
        assert_eq!(read_metrics(&path).unwrap(), all);
        let mut log = MetricsLog::resume(&path, 2, &mut |warning| panic!("{warning}")).unwrap();
        log.write(&train(3)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), all);
        std::fs::write(&path, "{\"kind\":\"train\"}\n{}\n").unwrap();
        let said = read_metrics(&path).unwrap_err().to_string();
        assert!(said.contains("line 1") && said.contains("missing field"), "{said}");
        std::fs::write(&path, "{\"kind\":\n").unwrap();
        let said = read_metrics(&path).unwrap_err().to_string();
        assert!(said.ends_with("line 1: not a record of a run: EOF while parsing a value, column 8"), "{said}");
    }

    #[test]
    fn a_damaged_line_does_not_end_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let damaged = [&line(&train(1))[..], b"{\"kind\":\xff\n", &line(&train(2))].concat();
        std::fs::write(&path, &damaged).unwrap();
        let mut warnings = Vec::new();
        let log = MetricsLog::resume(&path, 5, &mut |warning| warnings.push(warning.to_string()));
        log.unwrap().write(&train(3)).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), [train(1), train(2), train(3)]);
        assert!(warnings.len() == 1 && warnings[0].contains("line 2"), "{warnings:?}");
        assert_eq!(std::fs::read(folder.path().join("metrics.damaged.jsonl")).unwrap(), damaged);
    }
}
