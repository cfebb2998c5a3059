//! Options of the text task.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{TaskError, check};
use super::train_texts::TrainTexts;
use crate::data::{BYTES, Check, STDIN, Tokenizer, cache_folder, keep_text};

/// Options of the text task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextConfig {
    /// The texts to train on.
    pub train: TrainTexts,
    /// The file or folder to validate on. `None`, which is written as an empty string in a configuration file, holds
    /// out the last twentieth of every training text instead.
    #[serde(with = "empty_is_none")]
    pub valid: Option<PathBuf>,
    /// `bytes`, a `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    pub tokenizer: String,
    /// Tokens in a training sequence.
    pub length: usize,
    /// The largest number of sequences in an evaluation.
    pub eval_sequences: usize,
    /// How thoroughly files are compared with what they were when they were encoded. It has no influence on results.
    #[serde(skip)]
    pub check: Check,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            train: TrainTexts::default(),
            valid: None,
            tokenizer: BYTES.into(),
            length: 256,
            eval_sequences: 64,
            check: Check::Sampled,
        }
    }
}

impl TextConfig {
    /// The same options with absolute paths. The tokenizer `bytes` and standard input are not paths.
    pub fn with_absolute_paths(&self) -> Self {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
        let tokenizer = match self.tokenizer.as_str() {
            BYTES => self.tokenizer.clone(),
            name => absolute(Path::new(name)).to_string_lossy().into_owned(),
        };
        let mut train = self.train.clone();
        let files = train.iter_mut().filter(|text| text.path != Path::new(STDIN));
        files.for_each(|text| text.path = absolute(&text.path));
        Self { train, valid: self.valid.as_deref().map(absolute), tokenizer, ..self.clone() }
    }

    /// The size of the vocabulary, if it is known without opening a file.
    pub(super) fn vocab_size(&self) -> Option<usize> {
        (self.tokenizer == BYTES).then(|| Tokenizer::bytes().size())
    }

    /// Checks the options, without looking at the files.
    pub fn validate(&self) -> Result<(), TaskError> {
        check("length", (1..=1 << 20).contains(&self.length), "from 1 to 1048576", self.length)?;
        check("eval_sequences", self.eval_sequences > 0, "at least 1", self.eval_sequences)?;
        for text in self.train.iter() {
            let (weight, path) = (text.weight, text.path.display());
            let good = weight > 0.0 && weight <= LARGEST_WEIGHT;
            check("train", good, "a list with weights above 0 and up to 1000", format!("{weight} for {path}"))?;
        }
        Ok(())
    }

    /// If standard input is one of the training texts, copies `input` to a file that takes its place. The file is named
    /// by a hash of the text, so that the same text given again yields the same configuration.
    pub fn keep_stdin(&mut self, input: impl std::io::Read) -> Result<(), TaskError> {
        let data_error = |error| TaskError::Data { name: "train", source: Box::new(error) };
        let mut from_stdin = self.train.iter_mut().filter(|text| text.path == Path::new(STDIN));
        if let Some(text) = from_stdin.next() {
            text.path = keep_text(input, &cache_folder().map_err(data_error)?).map_err(data_error)?;
        }
        match from_stdin.next() {
            Some(_) => check("train", false, "a list with standard input at most once", "it more than once"),
            None => Ok(()),
        }
    }
}

/// The largest weight of a text. Beside a text of this weight, texts of weight 1 hardly count.
const LARGEST_WEIGHT: f64 = 1000.0;

/// An optional path that is written as an empty string where it is `None`.
mod empty_is_none {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_deref().unwrap_or(Path::new("")).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        let path = PathBuf::deserialize(deserializer)?;
        Ok(Some(path).filter(|path| !path.as_os_str().is_empty()))
    }
}
