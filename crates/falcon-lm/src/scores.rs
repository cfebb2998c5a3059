//! How good a model's predictions are, in numbers.

use std::ops::AddAssign;

use falcon_nn::Prediction;
use serde::{Deserialize, Serialize};

use crate::batch::Batch;

/// How good predictions are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Cross-entropy in nats per target token.
    pub loss: f64,
    /// Fraction of target tokens whose largest logit is right.
    pub accuracy: f64,
    /// Fraction of sequences whose targets are all right.
    pub exact: f64,
    /// Target tokens measured.
    pub tokens: usize,
    /// Sequences measured.
    pub sequences: usize,
}

/// Running sums over predictions, of which [`Scores`] are the means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    loss: f64,
    right: usize,
    tokens: usize,
    exact: usize,
    sequences: usize,
}

impl Tally {
    /// Sums over all targets of a batch. `predictions` has one entry per token, `None` for tokens without a target.
    pub fn of(batch: &Batch, predictions: &[Option<Prediction>]) -> Self {
        let mut total = Self::default();
        for window in batch.sequences.offsets().windows(2) {
            let predicted: Vec<_> = predictions[window[0]..window[1]].iter().flatten().collect();
            let right = predicted.iter().filter(|prediction| prediction.right).count();
            total += Self {
                loss: predicted.iter().map(|prediction| prediction.loss).sum(),
                right,
                tokens: predicted.len(),
                exact: usize::from(right == predicted.len()),
                sequences: 1,
            };
        }
        total
    }

    /// The means.
    pub fn scores(&self) -> Scores {
        let (tokens, sequences) = (self.tokens.max(1) as f64, self.sequences.max(1) as f64);
        Scores {
            loss: self.loss / tokens,
            accuracy: self.right as f64 / tokens,
            exact: self.exact as f64 / sequences,
            tokens: self.tokens,
            sequences: self.sequences,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.right += other.right;
        self.tokens += other.tokens;
        self.exact += other.exact;
        self.sequences += other.sequences;
    }
}

/// The negative log-likelihood of a text under a model, and the counts that turn it into perplexities.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextScore {
    /// Negative log-likelihood of all predicted tokens, in nats.
    pub nats: f64,
    /// Number of predicted tokens: all tokens of the text.
    pub tokens: usize,
    /// Bytes of the text.
    pub bytes: usize,
    /// Number of words, split at white space.
    pub words: usize,
}

impl TextScore {
    /// `e^(nats / token)`.
    pub fn token_perplexity(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }

    /// `e^(nats / byte)`.
    pub fn byte_perplexity(&self) -> f64 {
        (self.nats / self.bytes as f64).exp()
    }

    /// `e^(nats / word)`.
    pub fn word_perplexity(&self) -> f64 {
        (self.nats / self.words as f64).exp()
    }

    /// `log₂` of the byte perplexity.
    pub fn bits_per_byte(&self) -> f64 {
        self.nats / self.bytes as f64 / 2f64.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_counted_by_token_and_by_sequence() {
        let batch = Batch::new([(vec![0; 3], vec![None, Some(1), Some(2)]), (vec![0; 2], vec![Some(3), Some(4)])]);
        let prediction = |loss: f64, right| Some(Prediction { loss, right });
        let tally = Tally::of(
            &batch,
            &[None, prediction(1.0, true), prediction(2.0, true), prediction(3.0, true), prediction(6.0, false)],
        );
        let scores = tally.scores();
        assert_eq!((scores.loss, scores.accuracy, scores.exact), (3.0, 0.75, 0.5));
        assert_eq!((scores.tokens, scores.sequences), (4, 2));
        assert_eq!(Tally::default().scores(), Scores::default(), "the scores of no predictions are 0 and not NaN");
    }
}
