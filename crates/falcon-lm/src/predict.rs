//! Predictions of a model for batches: logits, and the scores of held-out data.

use burn::tensor::{Tensor, TensorData};
use falcon_nn::{Model, Prediction, predictions};

use crate::batch::{Batch, Split};
use crate::scores::{Scores, Tally};

/// The most tokens that a model reads in one call of an evaluation.
pub(crate) const TOKENS: usize = 8192;

/// The largest product of parameters and tokens in one call, within which the work cannot be cancelled: a few tenths of
/// a second on two cores.
const WORK: usize = 1 << 34;
/// The fewest tokens in a call: with fewer, reading the weights would take most of the time.
const FEWEST: usize = 128;

/// Tokens that a model reads between two checks for cancellation: fewer for a larger model. The number depends on the
/// model alone, so that a result is the same on every machine, up to rounding.
pub(crate) fn tokens_per_call(model: &Model) -> usize {
    (WORK / model.config().parameter_count().max(1)).clamp(FEWEST, TOKENS)
}

/// The name of a split, its scores, and those of its groups.
pub(crate) type SplitScores = (String, Scores, Vec<(String, Scores)>);

/// The scores of all splits. `model` should not track gradients ([`burn::module::Module::valid`]), which would take
/// memory.
pub(crate) fn evaluate(model: &Model, splits: &[Split]) -> Vec<SplitScores> {
    let scores = |split: &Split| {
        let tallies: Vec<(String, Tally)> =
            split.groups.iter().map(|(name, batch)| (name.clone(), measure(model, batch))).collect();
        let mut total = Tally::default();
        tallies.iter().for_each(|(_, tally)| total += *tally);
        let groups = tallies.into_iter().filter(|(name, _)| !name.is_empty());
        (split.name.clone(), total.scores(), groups.map(|(name, tally)| (name, tally.scores())).collect())
    };
    splits.iter().map(scores).collect()
}

fn measure(model: &Model, batch: &Batch) -> Tally {
    let mut total = Tally::default();
    for part in parts(batch) {
        let mut state = model.state(part.sequences.count());
        let hidden = model.hidden(&part.tokens, &part.sequences, &mut state);
        total += Tally::of(&part, &predict(model, hidden, &part.targets));
    }
    total
}

/// Splits a batch into parts that are small enough for one call each.
pub fn parts(batch: &Batch) -> Vec<Batch> {
    batch.split(batch.tokens.len().div_ceil(TOKENS))
}

/// Logits that are held in memory at once.
const LOGITS: usize = 1 << 25;

/// The predictions from each row of `hidden`, computed in blocks: the logits of a large vocabulary can take gigabytes.
pub(crate) fn predict(model: &Model, hidden: Tensor<2>, targets: &[Option<u32>]) -> Vec<Option<Prediction>> {
    let rows = (LOGITS / model.config().vocab_size).max(1);
    let blocks = targets.chunks(rows).enumerate().map(|(block, targets)| {
        let hidden = hidden.clone().slice_dim(0, block * rows..block * rows + targets.len());
        predictions(model.logits(hidden), targets)
    });
    blocks.flatten().collect()
}

/// Logits `[tokens, vocabulary]` of a batch, each of whose sequences starts from an empty state.
pub fn logits(model: &Model, batch: &Batch) -> Tensor<2> {
    let mut state = model.state(batch.sequences.count());
    model.run(&batch.tokens, &batch.sequences, &mut state)
}

/// The given rows of a matrix, in their order.
pub fn select_rows(matrix: Tensor<2>, rows: &[usize]) -> Tensor<2> {
    let indices: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
    let indices = Tensor::from_data(TensorData::new(indices, [rows.len()]), &matrix.device());
    matrix.select(0, indices)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::*;

    #[test]
    fn scores_in_parts_equal_those_of_the_whole() {
        let model = ModelConfig::preset("falcon-1a.3", "tiny", 12).unwrap().init(0, &Device::flex()).unwrap();
        let sequence = |seed: usize, n: usize| {
            let token = |i: usize| (i * i + seed * i + seed) % 12;
            ((0..n).map(|i| token(i) as u32).collect(), (1..=n).map(|i| Some(token(i) as u32)).collect())
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
