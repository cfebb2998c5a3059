//! The state between two pieces of a sequence: the memory, the last key, and the tail of the window.

use crate::Real;
use crate::aligned::Aligned;
use crate::error::Error;
use crate::inputs::Sizes;
use crate::rule::{Align, Rule};

/// The state of a batch of sequences between two calls. Its size does not depend on the lengths of the sequences.
///
/// The gradient of a state is a state, too: it has the same arrays, and `started` and `tail_len` of the state that it
/// is the gradient of.
#[derive(Clone, Debug, PartialEq)]
pub struct State<F> {
    /// Memories `[sequences, heads, dim_k, columns]`. A normalised rule has `dim_v + 1` columns, the last of which is
    /// the normaliser.
    pub memory: Aligned<F>,
    /// The last key of each sequence that has `started`, `[sequences, key_heads, dim_k]`.
    pub last_key: Vec<F>,
    /// Keys of the latest `tail_len` pairs, oldest first, `[sequences, window − 1, key_heads, dim_k]`.
    pub tail_x: Vec<F>,
    /// Values of the latest pairs `[sequences, window − 1, heads, dim_v]`.
    pub tail_v: Vec<F>,
    /// How many pairs the tail of each sequence holds.
    pub tail_len: Vec<usize>,
    /// Whether each sequence has had a token. Only next-latent alignment uses this.
    pub started: Vec<bool>,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    sequences: usize,
    heads: usize,
    key_heads: usize,
    dim_k: usize,
    dim_v: usize,
    columns: usize,
    tail: usize,
}

impl Shape {
    /// Numbers in memory, last key, tail keys and tail values.
    fn lengths(&self) -> [usize; 4] {
        let &Self { sequences, heads, key_heads, dim_k, dim_v, columns, tail } = self;
        [heads * dim_k * columns, key_heads * dim_k, tail * key_heads * dim_k, tail * heads * dim_v]
            .map(|length| sequences * length)
    }
}

impl<F: Real> State<F> {
    /// The state before any token: a memory of zeros, no key and no pairs.
    pub fn fresh(rule: &Rule, sizes: &Sizes) -> Self {
        let &Sizes { sequences, heads, key_heads, dim_k, dim_v, .. } = sizes;
        let (columns, tail) = (rule.state_columns(dim_v), rule.tail_capacity());
        let shape = Shape { sequences, heads, key_heads, dim_k, dim_v, columns, tail };
        let [memory, last_key, tail_x, tail_v] = shape.lengths();
        Self {
            memory: Aligned::zeros(memory),
            last_key: vec![F::zero(); last_key],
            tail_x: vec![F::zero(); tail_x],
            tail_v: vec![F::zero(); tail_v],
            tail_len: vec![0; sequences],
            started: vec![false; sequences],
            shape,
        }
    }

    /// A state of the same sizes with all numbers 0, to accumulate gradients in.
    pub fn zeros_like(&self) -> Self {
        let zeros = |data: &[F]| vec![F::zero(); data.len()];
        Self {
            memory: Aligned::zeros(self.memory.len()),
            last_key: zeros(&self.last_key),
            tail_x: zeros(&self.tail_x),
            tail_v: zeros(&self.tail_v),
            tail_len: self.tail_len.clone(),
            started: self.started.clone(),
            shape: self.shape,
        }
    }

    /// The states of the given sequences, in this order. A sequence may be given more than once.
    ///
    /// ```
    /// use falcon_kernels::{Rule, Sizes, State};
    ///
    /// let sizes = Sizes { tokens: 0, sequences: 3, heads: 1, key_heads: 1, dim_k: 1, dim_v: 1 };
    /// let mut state: State<f64> = State::fresh(&Rule::FALCON_1, &sizes);
    /// state.memory.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// // The first sequence is continued twice, the second is dropped.
    /// assert_eq!(state.select(&[2, 0, 0]).memory, [3.0, 1.0, 1.0]);
    /// // Sequences of separate calls are continued together.
    /// let parts = [state.select(&[0]), state.select(&[1, 2])];
    /// assert_eq!(State::join(&parts), state);
    /// ```
    ///
    /// # Panics
    ///
    /// If a sequence does not exist.
    pub fn select(&self, sequences: &[usize]) -> Self {
        let count = self.shape.sequences;
        let rows = |data: &[F]| -> Vec<F> {
            let width = data.len() / count.max(1);
            sequences
                .iter()
                .flat_map(|sequence| &data[sequence * width..(sequence + 1) * width])
                .copied()
                .collect()
        };
        Self {
            memory: rows(&self.memory).into(),
            last_key: rows(&self.last_key),
            tail_x: rows(&self.tail_x),
            tail_v: rows(&self.tail_v),
            tail_len: sequences.iter().map(|sequence| self.tail_len[*sequence]).collect(),
            started: sequences.iter().map(|sequence| self.started[*sequence]).collect(),
            shape: Shape { sequences: sequences.len(), ..self.shape },
        }
    }

    /// The sequences of all given states in one state; the inverse of [`State::select`].
    ///
    /// # Panics
    ///
    /// If there is no state, or if the states were made for different rules or sizes.
    pub fn join(states: &[Self]) -> Self {
        let shape = states.first().expect("at least one state").shape;
        let alike = |state: &Self| Shape { sequences: 0, ..state.shape } == Shape { sequences: 0, ..shape };
        assert!(states.iter().all(alike), "states of one rule and of the same sizes");
        let all = |array: fn(&Self) -> &[F]| -> Vec<F> { states.iter().flat_map(array).copied().collect() };
        Self {
            memory: all(|state| &state.memory).into(),
            last_key: all(|state| &state.last_key),
            tail_x: all(|state| &state.tail_x),
            tail_v: all(|state| &state.tail_v),
            tail_len: states.iter().flat_map(|state| &state.tail_len).copied().collect(),
            started: states.iter().flat_map(|state| &state.started).copied().collect(),
            shape: Shape { sequences: states.iter().map(|state| state.shape.sequences).sum(), ..shape },
        }
    }

    /// Refuses a state that was made for another rule or other sizes, or whose arrays have other lengths.
    pub fn check(&self, rule: &Rule, sizes: &Sizes) -> Result<(), Error> {
        let shape = &self.shape;
        let lengths = shape.lengths();
        for (what, got, expected) in [
            ("sequences", shape.sequences, sizes.sequences),
            ("heads", shape.heads, sizes.heads),
            ("key heads", shape.key_heads, sizes.key_heads),
            ("dim_k", shape.dim_k, sizes.dim_k),
            ("dim_v", shape.dim_v, sizes.dim_v),
            ("memory columns", shape.columns, rule.state_columns(sizes.dim_v)),
            ("tail capacity", shape.tail, rule.tail_capacity()),
            ("memory elements", self.memory.len(), lengths[0]),
            ("last-key elements", self.last_key.len(), lengths[1]),
            ("tail key elements", self.tail_x.len(), lengths[2]),
            ("tail value elements", self.tail_v.len(), lengths[3]),
            ("tail lengths", self.tail_len.len(), sizes.sequences),
            ("started flags", self.started.len(), sizes.sequences),
        ] {
            if got != expected {
                return Err(Error::State { what, got, expected });
            }
        }
        for (sequence, &tail) in self.tail_len.iter().enumerate() {
            if tail > shape.tail {
                return Err(Error::TailTooLong { sequence, tail, most: shape.tail });
            }
            if rule.align == Align::Next && tail > 0 && !self.started[sequence] {
                return Err(Error::TailWithoutKey { sequence, tail });
            }
        }
        Ok(())
    }

    /// The sizes that the state was made for, with no tokens.
    pub(crate) fn sizes(&self) -> Sizes {
        let Shape { sequences, heads, key_heads, dim_k, dim_v, .. } = self.shape;
        Sizes { tokens: 0, sequences, heads, key_heads, dim_k, dim_v }
    }

    /// Shapes of memory, last key, tail keys and tail values.
    pub fn shapes(&self) -> [Vec<usize>; 4] {
        let Shape { sequences, heads, key_heads, dim_k, dim_v, columns, tail } = self.shape;
        [
            vec![sequences, heads, dim_k, columns],
            vec![sequences, key_heads, dim_k],
            vec![sequences, tail, key_heads, dim_k],
            vec![sequences, tail, heads, dim_v],
        ]
    }

    /// The bytes of the arrays.
    pub fn bytes(&self) -> usize {
        let numbers = self.memory.len() + self.last_key.len() + self.tail_x.len() + self.tail_v.len();
        numbers * size_of::<F>()
    }

    /// The memory of one sequence and head, `[dim_k, columns]`.
    pub(crate) fn memory_of_mut(&mut self, sequence: usize, head: usize) -> &mut [F] {
        let range = self.memory_range(sequence, head);
        &mut self.memory[range]
    }

    pub(crate) fn last_key_of(&self, sequence: usize, key_head: usize) -> &[F] {
        &self.last_key[self.last_key_range(sequence, key_head)]
    }

    pub(crate) fn last_key_of_mut(&mut self, sequence: usize, key_head: usize) -> &mut [F] {
        let range = self.last_key_range(sequence, key_head);
        &mut self.last_key[range]
    }

    /// Copies the last key into a slot of the tail.
    pub(crate) fn keep_last_key(&mut self, sequence: usize, slot: usize, key_head: usize) {
        let (from, to) = (self.last_key_range(sequence, key_head), self.tail_x_range(sequence, slot, key_head));
        self.tail_x[to].copy_from_slice(&self.last_key[from]);
    }

    pub(crate) fn tail_x_of(&self, sequence: usize, slot: usize, key_head: usize) -> &[F] {
        &self.tail_x[self.tail_x_range(sequence, slot, key_head)]
    }

    pub(crate) fn tail_x_of_mut(&mut self, sequence: usize, slot: usize, key_head: usize) -> &mut [F] {
        let range = self.tail_x_range(sequence, slot, key_head);
        &mut self.tail_x[range]
    }

    pub(crate) fn tail_v_of(&self, sequence: usize, slot: usize, head: usize) -> &[F] {
        &self.tail_v[self.tail_v_range(sequence, slot, head)]
    }

    pub(crate) fn tail_v_of_mut(&mut self, sequence: usize, slot: usize, head: usize) -> &mut [F] {
        let range = self.tail_v_range(sequence, slot, head);
        &mut self.tail_v[range]
    }

    fn memory_range(&self, sequence: usize, head: usize) -> std::ops::Range<usize> {
        row(sequence * self.shape.heads + head, self.shape.dim_k * self.shape.columns)
    }

    fn last_key_range(&self, sequence: usize, key_head: usize) -> std::ops::Range<usize> {
        row(sequence * self.shape.key_heads + key_head, self.shape.dim_k)
    }

    fn tail_x_range(&self, sequence: usize, slot: usize, key_head: usize) -> std::ops::Range<usize> {
        let Shape { tail, key_heads, dim_k, .. } = self.shape;
        row((sequence * tail + slot) * key_heads + key_head, dim_k)
    }

    fn tail_v_range(&self, sequence: usize, slot: usize, head: usize) -> std::ops::Range<usize> {
        let Shape { tail, heads, dim_v, .. } = self.shape;
        row((sequence * tail + slot) * heads + head, dim_v)
    }
}

/// Row `index` of a matrix with rows of `width`.
#[inline(always)]
pub(crate) fn row(index: usize, width: usize) -> std::ops::Range<usize> {
    index * width..(index + 1) * width
}
