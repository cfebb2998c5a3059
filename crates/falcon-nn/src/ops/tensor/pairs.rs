//! Pairs of keys and values, as rows.
//!
//! Row `r` is a pair `(x_r, v_r)`. The first `window − 1` rows are pairs from before the call, those of the tail,
//! preceded by zeros if the tail is shorter. Then there is one row for each token, so that step `i` writes the rows
//! `i..i + window`. A row of zeros writes nothing; the first token of a fresh sequence without a pair is such a row.

use burn::tensor::{Int, Tensor, TensorData};

use super::triangle::zeros;

/// The pairs of a batch, as rows.
pub(super) struct Pairs {
    /// `[batch, window − 1 + time, dim_k]`.
    pub x: Tensor<3>,
    /// The rows of the tokens only, `[batch, time, dim_k]`.
    newest: Tensor<3>,
    /// Rows that a step writes; no more than there are pairs.
    pub window: usize,
    /// Number of rows from the tail.
    tail: usize,
    /// Whether the first token makes no pair.
    pub first_unpaired: bool,
}

impl Pairs {
    /// From the keys of the `tail` pairs of the tail followed by those of the tokens, `[batch, tail + time, dim_k]`.
    pub fn new(x: Tensor<3>, window: usize, tail: usize, first_unpaired: bool) -> Self {
        let [_, rows, _] = x.dims();
        let newest = x.clone().slice_dim(1, tail..rows);
        let window = window.min(rows);
        Self { x: after_zeros(x, window - 1 - tail), newest, window, tail, first_unpaired }
    }

    /// Prepends the rows of zeros to values `[batch, tail + time, columns]`.
    pub fn values(&self, v: Tensor<3>) -> Tensor<3> {
        after_zeros(v, self.window - 1 - self.tail)
    }

    /// The key of each step's newest pair, `[batch, time, dim_k]`.
    pub fn newest(&self) -> &Tensor<3> {
        &self.newest
    }

    /// How many pairs a step writes.
    pub fn count(&self, step: usize) -> usize {
        (self.tail + step + usize::from(!self.first_unpaired)).min(self.window)
    }

    /// The keys that each step writes, `[batch, time, window, dim_k]`.
    pub fn windows_x(&self) -> Tensor<4> {
        let [batch, time, dim_k] = self.newest.dims();
        let rows = (0..time).flat_map(|step| step..step + self.window).collect();
        take(self.x.clone(), rows).reshape([batch, time, self.window, dim_k])
    }
}

/// The given rows of each matrix.
pub(super) fn take(x: Tensor<3>, rows: Vec<usize>) -> Tensor<3> {
    let rows: Vec<i64> = rows.into_iter().map(|row| row as i64).collect();
    let count = rows.len();
    let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &x.device());
    x.select(1, rows)
}

fn after_zeros(x: Tensor<3>, count: usize) -> Tensor<3> {
    if count == 0 {
        return x;
    }
    let [batch, _, dim] = x.dims();
    Tensor::cat(vec![zeros([batch, count, dim], &x), x], 1)
}
