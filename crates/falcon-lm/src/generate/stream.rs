//! A sequence that a model reads and continues, and the file it is saved in.

use std::path::{Path, PathBuf};

use falcon_nn::{FileError, Metadata, Model, ModelState, SavedState, Sequences};
use thiserror::Error;

use crate::monitor::{Cancelled, Monitor};
use crate::predict::tokens_per_call;

/// A sequence in progress: the model's state, and the last token, which the model has not read yet.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(super) state: ModelState,
    /// The last token; none at the start of a sequence.
    pub(super) last: Option<u32>,
    /// For each token of the vocabulary, whether it occurs in the sequence.
    pub(super) seen: Vec<bool>,
}

/// The most tokens that are read in one call.
pub(super) const MOST_TOKENS: usize = 4096;

/// Keys of the metadata that a state file has in addition to the state of the model: the fingerprint of the model's
/// weights, the last token if there is one, and one bit for each token of the vocabulary, set if it has occurred, in
/// hexadecimal.
const MODEL: &str = "model";
const LAST: &str = "last_token";
const SEEN: &str = "seen_tokens";

impl Stream {
    /// An empty sequence.
    pub fn new(model: &Model) -> Self {
        Self { state: model.state(1), last: None, seen: vec![false; model.config().vocab_size] }
    }

    /// The number of tokens so far.
    pub fn position(&self) -> usize {
        self.state.positions()[0] + usize::from(self.last.is_some())
    }

    /// The last token; none at the start of a sequence.
    pub fn last(&self) -> Option<u32> {
        self.last
    }

    /// The size of the model's state in bytes.
    pub fn bytes(&self) -> usize {
        self.state.bytes()
    }

    /// Appends tokens to the sequence. The number of tokens read is reported to `monitor`. If `monitor` cancels, the
    /// tokens that have been read by then remain part of the sequence.
    pub fn read(&mut self, model: &Model, tokens: &[u32], monitor: &mut dyn Monitor) -> Result<(), Cancelled> {
        let mut done = 0;
        for piece in tokens.chunks(MOST_TOKENS.min(tokens_per_call(model))) {
            piece.iter().for_each(|token| self.seen[*token as usize] = true);
            let (last, before) = piece.split_last().expect("pieces are not empty");
            let read: Vec<u32> = self.last.replace(*last).into_iter().chain(before.iter().copied()).collect();
            if !read.is_empty() {
                model.hidden(&read, &Sequences::uniform(1, read.len()), &mut self.state);
            }
            done += piece.len();
            monitor.report(done, Some(tokens.len()))?;
        }
        Ok(())
    }

    /// Saves the sequence to a file, from which it can be resumed. `weights` is the fingerprint of the model's weights.
    pub fn save(&self, model: &Model, weights: &str, path: &Path) -> Result<(), FileError> {
        let mut texts = Metadata::from([(MODEL.into(), weights.into()), (SEEN.into(), to_hex(&self.seen))]);
        if let Some(token) = self.last {
            texts.insert(LAST.into(), token.to_string());
        }
        SavedState { texts, ..model.export_state(&self.state) }.write(path)
    }

    /// Loads a sequence that [`Stream::save`] wrote, for the model with the same weights.
    pub fn load(model: &Model, weights: &str, path: &Path) -> Result<Self, StreamError> {
        let mut file = SavedState::read(path)?;
        let texts = &mut file.texts;
        let bad = |what: String| StreamError::NotASequence { path: path.into(), what };
        let saved = texts.remove(MODEL).ok_or_else(|| bad("it does not name its model".into()))?;
        if saved != weights {
            return Err(StreamError::OtherWeights { path: path.into(), saved, model: weights.into() });
        }
        let vocabulary = model.config().vocab_size;
        let last = match texts.remove(LAST) {
            None => None,
            Some(text) => match text.parse::<u32>() {
                Ok(token) if (token as usize) < vocabulary => Some(token),
                _ => return Err(bad(format!("its last token is {text:?}, in a vocabulary of {vocabulary}"))),
            },
        };
        let seen = texts.remove(SEEN).and_then(|text| from_hex(&text, vocabulary));
        let seen =
            seen.ok_or_else(|| bad("its list of the tokens that have occurred is missing or invalid".into()))?;
        let state = model.import_state(file, path)?;
        match state.positions().len() {
            1 => Ok(Self { state, last, seen }),
            count => Err(bad(format!("it has {count} sequences instead of one"))),
        }
    }
}

/// Bits as hexadecimal digits, four to a digit.
fn to_hex(bits: &[bool]) -> String {
    let digit =
        |bits: &[bool]| -> u32 { bits.iter().enumerate().map(|(place, bit)| u32::from(*bit) << place).sum() };
    bits.chunks(4).filter_map(|bits| char::from_digit(digit(bits), 16)).collect()
}

/// The inverse of [`to_hex`] for `count` bits.
fn from_hex(text: &str, count: usize) -> Option<Vec<bool>> {
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let bits = || digits.iter().flat_map(|digit| (0..4).map(move |place| (digit >> place) & 1 == 1));
    (digits.len() == count.div_ceil(4) && bits().skip(count).all(|bit| !bit)).then(|| bits().take(count).collect())
}

/// Why a saved sequence cannot be resumed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The file cannot be read, or holds the state of a model of another shape.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds something else.
    #[error(
        "{}: not the saved state of a sequence: {what}; `falcon generate --state-out` writes such files",
        path.display()
    )]
    NotASequence {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was written for a model with other weights.
    #[error(
        "{}: saved with weights of fingerprint {saved}, but this model's weights have {model}: open the model it was saved \
         with, or read the text again with this one",
        path.display()
    )]
    OtherWeights {
        /// The file.
        path: PathBuf,
        /// The fingerprint in the file.
        saved: String,
        /// The fingerprint of the model's weights.
        model: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_written_as_hexadecimal_digits() {
        let bits = [true, false, false, true, false, true];
        assert_eq!(to_hex(&bits), "92");
        assert_eq!(from_hex("92", 6).as_deref(), Some(&bits[..]));
        assert_eq!(
            [from_hex("92", 9), from_hex("9x", 6), from_hex("9f", 6), from_hex("", 6)],
            [None, None, None, None]
        );
    }
}
