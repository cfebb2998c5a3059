//! How the tokens of a call are divided into sequences.

/// The lengths of sequences that are stored one after the other in tensors `[tokens, …]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences {
    offsets: Vec<usize>,
}

impl Sequences {
    /// `batch` sequences of `time` tokens each.
    pub fn uniform(batch: usize, time: usize) -> Self {
        Self { offsets: (0..=batch).map(|i| i * time).collect() }
    }

    /// Sequences of the given lengths, such as documents packed into a batch. Nothing passes from one to the next.
    ///
    /// # Panics
    ///
    /// If a length is 0.
    pub fn packed(lengths: &[usize]) -> Self {
        if let Some(empty) = lengths.iter().position(|length| *length == 0) {
            panic!("sequence {empty} of {} is empty", lengths.len());
        }
        let mut offsets = vec![0];
        offsets.extend(lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        }));
        Self { offsets }
    }

    /// The first token of each sequence, and the end of the last.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Number of sequences.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.offsets[self.count()]
    }

    /// The length of each sequence, in order.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.offsets.windows(2).map(|w| w[1] - w[0])
    }

    /// The common length, if all sequences are equally long.
    pub fn time(&self) -> Option<usize> {
        let first = self.lengths().next().unwrap_or(0);
        self.lengths().all(|length| length == first).then_some(first)
    }
}
