//! How the tokens of a call fall into sequences.

/// Sequences that lie one after the other in `[tokens, …]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences {
    offsets: Vec<usize>,
}

impl Sequences {
    /// `batch` sequences of `time` tokens each.
    pub fn uniform(batch: usize, time: usize) -> Self {
        Self { offsets: (0..=batch).map(|i| i * time).collect() }
    }

    /// Sequences of these lengths, none of them empty: documents packed into a batch, say. Nothing passes from one to the next.
    ///
    /// # Panics
    ///
    /// If one is empty.
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

    /// Where sequences begin, and where the last one ends.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Tokens of all of them.
    pub fn tokens(&self) -> usize {
        self.offsets[self.count()]
    }

    /// Tokens of each, in order.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.offsets.windows(2).map(|w| w[1] - w[0])
    }

    /// Their length, if all have the same.
    pub fn time(&self) -> Option<usize> {
        let first = self.lengths().next().unwrap_or(0);
        self.lengths().all(|length| length == first).then_some(first)
    }
}
