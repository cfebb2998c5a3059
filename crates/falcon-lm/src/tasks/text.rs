//! The next byte of text.

use std::path::{Path, PathBuf};

use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Batch, Moment, Split, Task, TaskError, VALIDATION, check, rng};
use crate::train::Scores;

/// Values of a byte: the vocabulary.
pub(super) const BYTES: usize = 256;

/// Options of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextConfig {
    /// The file to learn from.
    pub train: PathBuf,
    /// The file to be measured on. Without one, the last twentieth of the other is kept back.
    pub valid: PathBuf,
    /// Bytes of a sequence.
    pub length: usize,
    /// Sequences in a measurement, at most.
    pub eval_sequences: usize,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self { train: PathBuf::new(), valid: PathBuf::new(), length: 256, eval_sequences: 64 }
    }
}

impl TextConfig {
    /// Everything that can be wrong but for the files.
    pub fn validate(&self) -> Result<(), TaskError> {
        check("length", (1..=1 << 20).contains(&self.length), "from 1 to 1048576", self.length)?;
        check("eval_sequences", self.eval_sequences > 0, "at least 1", self.eval_sequences)?;
        if self.train.as_os_str().is_empty() { Err(TaskError::NoData { name: "train" }) } else { Ok(()) }
    }
}

/// Text, read.
#[derive(Debug)]
pub struct Text {
    config: TextConfig,
    train: Vec<u8>,
    valid: Vec<u8>,
    /// The order of the windows in the pass over the text that was drawn from last: the seed and the pass it is of.
    order: Option<(u64, u64, Vec<u32>)>,
}

impl Text {
    /// Reads the files.
    pub fn open(config: &TextConfig) -> Result<Self, TaskError> {
        let mut train = read("train", &config.train)?;
        let valid = if config.valid.as_os_str().is_empty() {
            train.split_off(train.len() - train.len() / 20)
        } else {
            read("valid", &config.valid)?
        };
        // Windows are numbered in 32 bits.
        let most = u32::MAX as usize * config.length;
        check("length", train.len() <= most, "longer, for as much text", config.length)?;
        let needed = config.length + 1;
        let sources = [("train", &config.train, &train), ("valid", &config.valid, &valid)];
        for (name, path, bytes) in sources {
            if bytes.len() < needed {
                let path = if path.as_os_str().is_empty() { &config.train } else { path };
                return Err(TaskError::Short { name, path: path.clone(), got: bytes.len(), needed });
            }
        }
        Ok(Self { config: config.clone(), train, valid, order: None })
    }

    /// The window at which sequence number `index` of a run begins: every pass over the text takes all windows once, in an order of its own.
    fn window(&mut self, seed: u64, index: u64) -> usize {
        let windows = (self.train.len() - 1) / self.config.length;
        let (pass, place) = (index / windows as u64, (index % windows as u64) as usize);
        let order = match &mut self.order {
            Some((of, at, order)) if (*of, *at) == (seed, pass) => order,
            order => {
                let mut fresh: Vec<u32> = (0..windows as u32).collect();
                fresh.shuffle(&mut rng(seed, pass));
                &mut order.insert((seed, pass, fresh)).2
            }
        };
        order[place] as usize * self.config.length
    }
}

fn read(name: &'static str, path: &Path) -> Result<Vec<u8>, TaskError> {
    std::fs::read(path).map_err(|error| TaskError::Io { name, path: path.into(), error })
}

/// Length and hash.
fn fingerprint(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    format!("{} bytes, sha256 {}", bytes.len(), hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// A sequence of the bytes at the start of `bytes`, each followed by the next.
fn sequence(bytes: &[u8], length: usize) -> (Vec<i32>, Vec<i64>) {
    let tokens = bytes[..length].iter().map(|byte| i32::from(*byte)).collect();
    (tokens, bytes[1..=length].iter().map(|byte| i64::from(*byte)).collect())
}

impl Task for Text {
    fn batch(&mut self, moment: Moment, count: usize) -> Batch {
        let first = moment.step * count as u64;
        Batch::new((0..count as u64).map(|i| {
            let start = self.window(moment.seed, first + i);
            sequence(&self.train[start..], self.config.length)
        }))
    }

    fn splits(&self) -> Vec<Split> {
        let length = self.config.length;
        let windows = (self.valid.len() - 1) / length;
        // Spread over the whole text, whatever it is about.
        let count = windows.min(self.config.eval_sequences);
        let starts = (0..count).map(|i| i * windows / count * length);
        let batch = Batch::new(starts.map(|start| sequence(&self.valid[start..], length)));
        vec![Split { name: VALIDATION.into(), groups: vec![(String::new(), batch)] }]
    }

    fn score(&self, validation: &Scores) -> f64 {
        -validation.loss
    }

    /// What was read, so that a run does not go on with other text under the same name.
    fn state(&self) -> Value {
        json!({ "train": fingerprint(&self.train), "valid": fingerprint(&self.valid) })
    }

    fn restore(&mut self, state: Value) -> Result<(), TaskError> {
        for (name, bytes, path) in
            [("train", &self.train, &self.config.train), ("valid", &self.valid, &self.config.valid)]
        {
            let now = fingerprint(bytes);
            if state[name] != now.as_str() {
                let path = if path.as_os_str().is_empty() { &self.config.train } else { path };
                return Err(TaskError::Changed { name, path: path.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], length: usize) -> Result<Text, TaskError> {
        let folder = tempfile::tempdir().unwrap();
        let train = folder.path().join("a.txt");
        std::fs::write(&train, bytes).unwrap();
        Text::open(&TextConfig { train, length, ..TextConfig::default() })
    }

    #[test]
    fn a_pass_takes_every_window_once() {
        let bytes: Vec<u8> = (0..240).collect();
        let mut text = text(&bytes, 10).unwrap();
        assert_eq!((text.train.len(), text.valid.len()), (228, 12));
        let mut starts = |pass: u64| -> Vec<usize> { (0..22).map(|i| text.window(3, pass * 22 + i)).collect() };
        let (first, second) = (starts(0), starts(1));
        let sorted = |mut starts: Vec<usize>| {
            starts.sort_unstable();
            starts
        };
        assert_ne!(first, second, "in an order of its own");
        assert_eq!(sorted(first), (0..22).map(|i| 10 * i).collect::<Vec<_>>());
        assert_eq!(sorted(second), (0..22).map(|i| 10 * i).collect::<Vec<_>>());
    }

    #[test]
    fn targets_are_the_next_bytes() {
        let mut text = text(&(0..=255).collect::<Vec<u8>>(), 4).unwrap();
        let batch = text.batch(Moment { seed: 1, step: 5, steps: 9 }, 3);
        assert_eq!(batch.sequences.lengths().collect::<Vec<_>>(), [4, 4, 4]);
        assert!(batch.tokens.iter().zip(&batch.targets).all(|(token, target)| i64::from(token + 1) == *target));
        let splits = text.splits();
        assert_eq!(splits[0].groups[0].1.tokens[0], 244, "the last twentieth");
    }

    #[test]
    fn another_text_under_the_same_name_is_noticed() {
        let mut one = text(&(0..=255).collect::<Vec<u8>>(), 4).unwrap();
        let state = one.state();
        assert!(one.restore(state.clone()).is_ok());
        let said = text(&[7; 256], 4).unwrap().restore(state).unwrap_err().to_string();
        assert!(said.contains("a.txt has changed since the run began"), "{said}");
    }

    #[test]
    fn files_that_do_not_do_say_why() {
        let said = text(&[1; 30], 64).unwrap_err().to_string();
        assert!(said.contains("task.train") && said.contains("29 bytes") && said.contains("65"), "{said}");
        let missing = TextConfig { train: "no/such/file.txt".into(), ..TextConfig::default() };
        let said = Text::open(&missing).unwrap_err().to_string();
        assert!(said.contains("no/such/file.txt") && said.contains("task.train"), "{said}");
        assert!(TextConfig::default().validate().unwrap_err().to_string().contains("--set task.train="));
    }
}
