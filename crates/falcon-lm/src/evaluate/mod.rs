//! How good a model's predictions are: on held-out data, on text, and on the paper's benchmarks.

mod asked;
mod choices;
mod likelihood;
mod measure;
mod perplexity;
mod python_random;
mod questions;

use std::ops::AddAssign;

use burn::tensor::{Device, Int, Tensor, TensorData};
use falcon_nn::{Model, Prediction, predictions};

pub use self::asked::Asked;
pub(crate) use self::choices::mean_and_variance;
pub use self::choices::{BENCHMARKS, Benchmark, BenchmarkResult, Estimate};
pub use self::likelihood::{Likelihood, Request};
pub use self::measure::{Answers, Exam, ExamText, ModelResult, OnProgress, TextResult};
pub use self::perplexity::TextScore;
use self::perplexity::{Reading, text_score};
pub use self::questions::{BenchmarkError, Item, Questions};
use crate::tasks::{Batch, Split};
use crate::train::Scores;

/// Tokens that are measured in one call.
const TOKENS: usize = 8192;

/// Parameters times tokens of one call where it should be possible to stop after the call: a few tenths of a second
/// on two cores.
const WORK: usize = 1 << 34;
/// Fewer tokens in a call are not worth it: reading the weights would take most of the time.
const FEWEST: usize = 128;

/// Tokens that a model reads in one call where it should be possible to stop after each: fewer of a larger model.
/// They follow from the model alone, so that a measurement has the same result on every machine but for its rounding.
pub(crate) fn tokens_per_call(model: &Model) -> usize {
    (WORK / model.config().parameter_count().max(1)).clamp(FEWEST, TOKENS)
}

/// A split's name, its scores, and those of its groups.
pub(crate) type SplitScores = (String, Scores, Vec<(String, Scores)>);

/// The scores of all splits. `model` should not track gradients ([`burn::module::Module::valid`]): they would cost memory.
pub(crate) fn evaluate(model: &Model, splits: &[Split]) -> Vec<SplitScores> {
    let of = |split: &Split| {
        let tallies: Vec<(String, Tally)> =
            split.groups.iter().map(|(name, batch)| (name.clone(), measure(model, batch))).collect();
        let mut total = Tally::default();
        tallies.iter().for_each(|(_, tally)| total += *tally);
        let groups = tallies.into_iter().filter(|(name, _)| !name.is_empty());
        (split.name.clone(), total.scores(), groups.map(|(name, tally)| (name, tally.scores())).collect())
    };
    splits.iter().map(of).collect()
}

fn measure(model: &Model, batch: &Batch) -> Tally {
    let mut total = Tally::default();
    for part in parts(batch) {
        let mut state = model.state(part.sequences.count());
        let hidden = model.hidden(tokens(&part, &model.device()), &part.sequences, &mut state);
        total += Tally::of(&part, &predict(model, hidden, &part.targets));
    }
    total
}

/// The same sequences in batches that are measured in one call each.
pub(crate) fn parts(batch: &Batch) -> Vec<Batch> {
    batch.split(batch.tokens.len().div_ceil(TOKENS))
}

/// Numbers in the logits that are held at once.
const LOGITS: usize = 1 << 25;

/// What a model says after each row of `hidden`, by blocks: all logits of a large vocabulary at once would need gigabytes.
pub(crate) fn predict(model: &Model, hidden: Tensor<2>, targets: &[i64]) -> Vec<Option<Prediction>> {
    let rows = (LOGITS / model.config().vocab_size).max(1);
    let blocks = targets.chunks(rows).enumerate().map(|(block, targets)| {
        let hidden = hidden.clone().slice_dim(0, block * rows..block * rows + targets.len());
        predictions(model.logits(hidden), targets)
    });
    blocks.flatten().collect()
}

/// Logits `[tokens, vocabulary]` of fresh sequences.
pub(crate) fn logits(model: &Model, batch: &Batch) -> Tensor<2> {
    let mut state = model.state(batch.sequences.count());
    model.run(tokens(batch, &model.device()), &batch.sequences, &mut state)
}

pub(crate) fn tokens(batch: &Batch, device: &Device) -> Tensor<1, Int> {
    whole_numbers(batch.tokens.clone(), device)
}

/// Tokens as a model takes them.
pub(crate) fn ids(tokens: &[u32], device: &Device) -> Tensor<1, Int> {
    whole_numbers(tokens.iter().map(|token| *token as i32).collect(), device)
}

/// The same of numbers that are tokens or places.
pub(crate) fn whole_numbers(numbers: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let count = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [count]), device)
}

/// What scores are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    loss: f64,
    right: usize,
    tokens: usize,
    exact: usize,
    sequences: usize,
}

impl Tally {
    pub fn of(batch: &Batch, predictions: &[Option<Prediction>]) -> Self {
        let mut total = Self::default();
        for window in batch.sequences.offsets().windows(2) {
            let asked: Vec<_> = predictions[window[0]..window[1]].iter().flatten().collect();
            let right = asked.iter().filter(|prediction| prediction.right).count();
            total += Self {
                loss: asked.iter().map(|prediction| prediction.loss).sum(),
                right,
                tokens: asked.len(),
                exact: usize::from(right == asked.len()),
                sequences: 1,
            };
        }
        total
    }

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

#[cfg(test)]
mod tests {
    use falcon_nn::{IGNORED, ModelConfig};

    use super::*;

    #[test]
    fn scores_are_counted_by_token_and_by_sequence() {
        let batch = Batch::new([(vec![0; 3], vec![IGNORED, 1, 2]), (vec![0; 2], vec![3, 4])]);
        let said = |loss: f64, right| Some(Prediction { loss, right });
        let tally =
            Tally::of(&batch, &[None, said(1.0, true), said(2.0, true), said(3.0, true), said(6.0, false)]);
        let scores = tally.scores();
        assert_eq!((scores.loss, scores.accuracy, scores.exact), (3.0, 0.75, 0.5));
        assert_eq!((scores.tokens, scores.sequences), (4, 2));
        assert_eq!(Tally::default().scores(), Scores::default(), "nothing is not NaN");
    }

    #[test]
    fn parts_make_the_whole() {
        let model = ModelConfig::preset("falcon-1a.3", "tiny", 12).unwrap().init(0, &Device::flex()).unwrap();
        let sequence = |seed: usize, n: usize| {
            let token = |i: usize| (i * i + seed * i + seed) % 12;
            ((0..n).map(|i| token(i) as i32).collect(), (1..=n).map(|i| token(i) as i64).collect())
        };
        let (long, short) = (Batch::new((0..9).map(|seed| sequence(seed, 1000))), Batch::new([sequence(10, 7)]));
        assert!(long.tokens.len() > TOKENS, "more than one call");
        let split = |groups: Vec<(&str, &Batch)>| Split {
            name: "validation".into(),
            groups: groups.into_iter().map(|(name, batch)| (name.to_string(), batch.clone())).collect(),
        };
        let scores = evaluate(&model, &[split(vec![("a", &long), ("b", &short)]), split(vec![("", &long)])]);
        let (_, total, groups) = &scores[0];
        assert_eq!(groups.iter().map(|(_, scores)| scores.tokens).collect::<Vec<_>>(), [9000, 7]);
        let mean = (9000.0 * groups[0].1.loss + 7.0 * groups[1].1.loss) / 9007.0;
        assert!((total.loss - mean).abs() < 1e-12);
        assert_eq!((scores[1].1, scores[1].2.len()), (groups[0].1, 0));
        for ((_, parts), batch) in groups.iter().zip([&long, &short]) {
            let whole = Tally::of(batch, &predictions(logits(&model, batch), &batch.targets)).scores();
            assert!((parts.loss - whole.loss).abs() < 1e-6 * whole.loss, "{parts:?} {whole:?}");
            assert_eq!(Scores { loss: whole.loss, ..*parts }, whole);
        }
    }
}
