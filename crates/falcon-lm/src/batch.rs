//! Sequences of tokens with their targets: what a training step reads, and what a model is measured on.

use falcon_nn::Sequences;

/// Packed sequences of tokens, each token with the target that should follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The tokens of all sequences, one sequence after the other.
    pub tokens: Vec<u32>,
    /// The target of each token; `None` where nothing is predicted.
    pub targets: Vec<Option<u32>>,
    /// Where the sequences begin and end.
    pub sequences: Sequences,
}

impl Batch {
    /// Packs sequences of tokens and targets.
    pub fn new(parts: impl IntoIterator<Item = (Vec<u32>, Vec<Option<u32>>)>) -> Self {
        let (mut tokens, mut targets, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (part_tokens, part_targets) in parts {
            assert_eq!(part_tokens.len(), part_targets.len(), "a target for every token");
            lengths.push(part_tokens.len());
            tokens.extend(part_tokens);
            targets.extend(part_targets);
        }
        Self { tokens, targets, sequences: Sequences::packed(&lengths) }
    }

    /// Number of tokens that have a target.
    pub fn asked(&self) -> usize {
        self.targets.iter().flatten().count()
    }

    /// Splits the sequences into `count` batches of about as many sequences each, or fewer batches if there are fewer
    /// sequences. In a batch of text every document within a window is a sequence of its own, so the parts may differ
    /// in length.
    pub fn split(&self, count: usize) -> Vec<Self> {
        let (offsets, all, count) = (self.sequences.offsets(), self.sequences.count(), count.max(1));
        let cuts: Vec<usize> = (0..=count).map(|i| i * all / count).collect();
        let parts = cuts.windows(2).filter(|w| w[0] < w[1]).map(|w| {
            let range = offsets[w[0]]..offsets[w[1]];
            let lengths: Vec<usize> = offsets[w[0]..=w[1]].windows(2).map(|o| o[1] - o[0]).collect();
            Self {
                tokens: self.tokens[range.clone()].to_vec(),
                targets: self.targets[range].to_vec(),
                sequences: Sequences::packed(&lengths),
            }
        });
        parts.collect()
    }
}

/// A named set of held-out data.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Its name; [`VALIDATION`] for the one that chooses the best checkpoint.
    pub name: String,
    /// Parts that are also scored separately, by name. A single part with an empty name is the whole split.
    pub groups: Vec<(String, Batch)>,
}

/// Name of the split that decides which checkpoint is best.
pub const VALIDATION: &str = "validation";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_split_by_sequences() {
        let batch = Batch::new((1..=5usize).map(|n| (vec![n as u32; n], vec![Some(n as u32); n])));
        let parts = batch.split(2);
        assert_eq!(parts.iter().map(|part| part.sequences.count()).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(parts[1].tokens, [3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5]);
        assert_eq!(parts.iter().map(Batch::asked).sum::<usize>(), batch.asked());
        assert_eq!(batch.split(1), std::slice::from_ref(&batch));
        assert_eq!(batch.split(9).len(), 5, "no empty batches");
        assert_eq!(batch.split(0), [batch]);
        assert_eq!(Batch::new([]).split(0), []);
    }
}
