//! The identity of a run: a hash of its complete configuration and of the data it is trained on.
//!
//! Two runs with the same fingerprint are the same run, whichever machine they were trained on and wherever their
//! files are.

use std::collections::BTreeMap;
use std::fmt;

use falcon_base::hex;
use falcon_lm::config::RunConfig;
use falcon_lm::monitor::Monitor;
use falcon_lm::tasks::{TaskConfig, TaskError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The SHA-256 of a run's configuration and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint([u8; 32]);

/// A text that is not a fingerprint.
#[derive(Debug, Error)]
#[error("a fingerprint must be 64 hexadecimal digits, got {0:?}")]
pub struct FingerprintError(String);

/// Hashes that identify the data of a task: those of its tokens and of its tokenizer. Null for a task that reads no
/// files.
#[derive(Clone, Debug, PartialEq)]
pub struct DataHash(Value);

impl DataHash {
    /// Reads the data of a task. Text is tokenized if that was not done before; `monitor` is given the number of
    /// bytes done.
    pub fn of(task: &TaskConfig, monitor: &mut dyn Monitor) -> Result<Self, TaskError> {
        Ok(Self(match task {
            TaskConfig::Addition(_) => Value::Null,
            TaskConfig::Text(_) => task.open(task.open_tokenizer()?, monitor)?.state(),
        }))
    }
}

/// Keys of the task that are paths. The contents of those files are in [`DataHash`].
const PATHS: [&str; 3] = ["train", "valid", "tokenizer"];

impl Fingerprint {
    /// A fingerprint that no run has.
    #[cfg(test)]
    pub(super) const ZERO: Self = Self([0; 32]);

    /// The fingerprint of a run of `config` on `data`.
    ///
    /// The names of the preset and of the size are left out, because all values that they stand for are included. An
    /// option that is not set (null) is left out too, so that adding an option later does not change the fingerprints
    /// of runs that do not set it.
    pub fn of(config: &RunConfig, data: &DataHash) -> Self {
        let mut keys = BTreeMap::from([("data".to_string(), data.0.clone())]);
        let mut add = |section: &str, values: serde_json::Result<Value>| {
            let Ok(Value::Object(values)) = values else { unreachable!("a section is a table") };
            keys.extend(values.into_iter().map(|(key, value)| (format!("{section}.{key}"), value)));
        };
        add("model", serde_json::to_value(&config.model));
        add("task", serde_json::to_value(&config.task));
        add("train", serde_json::to_value(&config.train));
        if matches!(config.task, TaskConfig::Text(_)) {
            keys.retain(|key, _| !PATHS.iter().any(|path| key.strip_prefix("task.") == Some(path)));
        }
        keys.retain(|_, value| !value.is_null());
        let hash =
            keys.iter().fold(Sha256::new(), |hash, (key, value)| hash.chain_update(format!("{key}={value}\n")));
        Self(hash.finalize().into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintError;

    fn try_from(text: String) -> Result<Self, FingerprintError> {
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let bytes =
            digits.map(|digits| digits.chunks(2).map(|pair| pair.iter().fold(0, |a, b| a << 4 | b)).collect());
        match bytes.map(Vec::try_into) {
            Some(Ok(bytes)) if text.len() == 64 => Ok(Self(bytes)),
            _ => Err(FingerprintError(text)),
        }
    }
}

/// The run that a row of a record was made from, and where it was trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The fingerprint of the run.
    pub fingerprint: Fingerprint,
    /// The machine that finished training it.
    pub machine: String,
    /// The version of the program on that machine.
    pub version: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::TableRow;
    use crate::reproduce::addition::{SCALES, config};
    use falcon_lm::config::Layer;

    fn addition(row: &str, seed: u64, sets: &[&str]) -> Fingerprint {
        let more: Vec<Layer> = sets.iter().map(|set| Layer::set(set).unwrap()).collect();
        let config = config(&SCALES[0], &TableRow::parse(row), seed, &more).unwrap();
        Fingerprint::of(&config, &DataHash::of(&config.task, &mut ()).unwrap())
    }

    #[test]
    fn every_value_changes_the_fingerprint_however_it_is_set() {
        let one = addition("retnet", 0, &[]);
        assert_eq!(addition("retnet", 0, &["train.lr=3e-3"]), one, "the value that the scale sets");
        let others = [
            addition("retnet", 1, &[]),
            addition("mamba2", 0, &[]),
            addition("retnet+train.steps=1001", 0, &[]),
            addition("retnet+model.conv_size=4", 0, &[]),
            addition("retnet", 0, &["task.beyond=7"]),
            addition("retnet", 0, &["train.batch=3"]),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(*other != one && !others[..index].contains(other), "run {index} has the same fingerprint");
        }
        let short = addition("retnet+train.steps=77", 0, &[]);
        assert_eq!(short, addition("retnet", 0, &["train.steps=77"]), "however it was set");
        assert_eq!(short, addition("retnet+train.steps=77", 0, &["train.steps=99"]), "the row has precedence");
    }

    #[test]
    fn text_is_identified_by_content_not_path() {
        let folder = tempfile::tempdir().unwrap();
        let text = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text.repeat(100)).unwrap();
            path.to_str().unwrap().to_string()
        };
        let fingerprint = |train: &str, valid: &str| {
            let sets =
                ["task.name=text".to_string(), format!("task.train={train}"), format!("task.valid={valid}")];
            let layers: Vec<Layer> =
                sets.iter().map(|set| Layer::set(set).unwrap()).chain([Layer::of("task", "length", 8)]).collect();
            let config = RunConfig::resolve(&layers).unwrap();
            Fingerprint::of(&config, &DataHash::of(&config.task, &mut ()).unwrap())
        };
        let [one, same, other, valid] = [("a", "rain "), ("b", "rain "), ("c", "snow "), ("v", "hail ")]
            .map(|(name, words)| text(name, words));
        assert_eq!(fingerprint(&one, &valid), fingerprint(&same, &valid));
        assert_ne!(fingerprint(&one, &valid), fingerprint(&other, &valid));
        assert_ne!(fingerprint(&one, &valid), fingerprint(&one, &other));
    }

    #[test]
    fn fingerprints_round_trip_through_json() {
        let one = addition("retnet", 0, &[]);
        let json = serde_json::to_string(&one).unwrap();
        assert_eq!(json.len(), 66);
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), one);
        for bad in ["\"\"", "\"abc\"", &json.replace('"', "").replacen(|_: char| true, "\"x", 1), "3"] {
            assert!(serde_json::from_str::<Fingerprint>(bad).is_err(), "{bad}");
        }
        let long = format!("\"{one}00\"");
        assert!(
            serde_json::from_str::<Fingerprint>(&long).unwrap_err().to_string().contains("64 hexadecimal digits")
        );
    }
}
