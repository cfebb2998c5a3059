//! Which key meets which value: sequences that are alike, as batches of rows.
//!
//! Row `r` is a pair `(x_r, v_r)`. First come `window − 1` from before the call (those of the tail, and zeros where it has
//! fewer), then one for each token, so that step `i` writes the rows `i..i + window`. A row of zeros writes nothing, which is
//! also what the boundary of a fresh sequence is.

use burn::tensor::{Int, Tensor, TensorData};
use falcon_kernels::Rule;
use falcon_kernels::rule::{Align, Columns, Read};

use super::chunked::{self, Steps};
use super::coefficients::Coefficients;
use super::triangle::{ones, options, zeros};
use super::{RuleInputs, TensorState};

/// The pairs of a batch, in rows.
pub(super) struct Pairs {
    /// `[batch, window − 1 + time, dim_k]`.
    pub x: Tensor<3>,
    /// Without the rows before the first token, `[batch, time, dim_k]`.
    newest: Tensor<3>,
    /// Rows to a step; no more than there are pairs.
    pub window: usize,
    /// Rows that are pairs of the tail.
    tail: usize,
    /// Whether the first token brings no pair.
    pub boundary: bool,
}

impl Pairs {
    /// From the keys of `tail` pairs and then of each token, `[batch, tail + time, dim_k]`.
    pub fn new(x: Tensor<3>, window: usize, tail: usize, boundary: bool) -> Self {
        let [_, rows, _] = x.dims();
        let newest = x.clone().slice_dim(1, tail..rows);
        let window = window.min(rows);
        Self { x: after_zeros(x, window - 1 - tail), newest, window, tail, boundary }
    }

    /// Puts the rows of zeros before values that are in `[batch, tail + time, columns]`.
    fn values(&self, v: Tensor<3>) -> Tensor<3> {
        after_zeros(v, self.window - 1 - self.tail)
    }

    /// The key that each step's own pair has, `[batch, time, dim_k]`.
    pub fn newest(&self) -> &Tensor<3> {
        &self.newest
    }

    /// Pairs that a step writes.
    pub fn count(&self, step: usize) -> usize {
        (self.tail + step + usize::from(!self.boundary)).min(self.window)
    }

    /// The keys that each step writes, `[batch, time, window, dim_k]`.
    pub fn windows_x(&self) -> Tensor<4> {
        let [batch, time, dim_k] = self.newest.dims();
        let rows = (0..time).flat_map(|step| step..step + self.window).collect();
        take(self.x.clone(), rows).reshape([batch, time, self.window, dim_k])
    }
}

/// The rows `rows` of each matrix.
pub(super) fn take(of: Tensor<3>, rows: Vec<usize>) -> Tensor<3> {
    let rows: Vec<i64> = rows.into_iter().map(|row| row as i64).collect();
    let count = rows.len();
    let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &of.device());
    of.select(1, rows)
}

/// [`super::scan`] for sequences of `length` tokens, all with the same length of tail and all started or none.
pub(super) fn scan(
    rule: &Rule,
    inputs: RuleInputs,
    state: TensorState,
    length: usize,
    chunk: usize,
) -> (Tensor<3>, TensorState) {
    let [tokens, key_heads, dim_k] = inputs.q.dims();
    let [_, heads, dim_v] = inputs.v.dims();
    if tokens == 0 {
        return (inputs.v, state);
    }
    let sequences = tokens / length;
    let boundary = rule.align == Align::Next && !state.started[0];
    let tail = state.tail_len[0];
    let by_sequence = |of: Tensor<3>| {
        let [_, heads, dim] = of.dims();
        of.reshape([sequences, length, heads, dim])
    };
    let (q, k, v) = (by_sequence(inputs.q), by_sequence(inputs.k), by_sequence(inputs.v));

    // The pairs, without zeros before them.
    let last_key = state.last_key.reshape([sequences, 1, key_heads, dim_k]);
    let last_key = if state.started[0] { last_key } else { zeros(last_key.dims(), &last_key) };
    let x = match rule.align {
        Align::Same => k.clone(),
        Align::Next if length == 1 => last_key,
        Align::Next => Tensor::cat(vec![last_key, k.clone().slice_dim(1, 0..length - 1)], 1),
    };
    let behind = |tail_of: Option<Tensor<4>>, rows: Tensor<4>| match tail_of {
        Some(tail_of) if tail > 0 => Tensor::cat(vec![tail_of.slice_dim(1, 0..tail), rows], 1),
        _ => rows,
    };
    let (x, v) = (behind(state.tail_x, x), behind(state.tail_v, v));

    let written = tail + length - usize::from(boundary);
    let keep = written.min(rule.tail_capacity());
    let outgoing = |rows: &Tensor<4>| (rule.tail_capacity() > 0).then(|| latest(rows, keep, rule.tail_capacity()));
    let (tail_x, tail_v) = (outgoing(&x), outgoing(&v));

    // From here on every value head is a batch element of its own, with its key head's queries and keys.
    let batch = sequences * heads;
    let by_head = |of: Tensor<4>| per_head(of, heads);
    let pairs = Pairs::new(by_head(x), rule.window, tail, boundary);
    let mut v = by_head(v);
    if rule.normaliser.is_some() {
        v = Tensor::cat(vec![v, ones([batch, tail + length, 1], &pairs.x)], 2);
    }
    let v = pairs.values(v);
    let gains = |of: Option<Tensor<3>>| of.map(|of| by_head(by_sequence(of)));
    let coefficients = Coefficients::new(rule, gains(inputs.gain), gains(inputs.decay), &pairs);

    let columns = rule.state_columns(dim_v);
    let steps = Steps {
        q: by_head(q),
        x: pairs.x,
        v,
        window: pairs.window,
        coefficients,
        each_column: rule.columns == Columns::Each,
        read_before: rule.read == Read::Before,
    };
    let (out, memory) = chunked::forward(steps, state.memory.reshape([batch, dim_k, columns]), chunk);
    let out = match rule.normaliser {
        Some(normaliser) => divide(out, normaliser.eps),
        None => out,
    };
    let out = out.reshape([sequences, heads, length, dim_v]).swap_dims(1, 2).reshape([tokens, heads, dim_v]);
    let state = TensorState {
        memory: memory.reshape([sequences, heads, dim_k, columns]),
        last_key: last(k, 1).reshape([sequences, key_heads, dim_k]),
        tail_x,
        tail_v,
        tail_len: vec![keep; sequences],
        started: vec![true; sequences],
    };
    (out, state)
}

/// `[sequences, rows, heads of any kind, dim]` to `[sequences · heads, rows, dim]`, repeating each for the value heads of its
/// group.
fn per_head(of: Tensor<4>, heads: usize) -> Tensor<3> {
    let [sequences, rows, own, dim] = of.dims();
    let of = of.swap_dims(1, 2);
    if own == heads {
        return of.reshape([sequences * heads, rows, dim]);
    }
    let of = of.unsqueeze_dim::<5>(2).expand([sequences, own, heads / own, rows, dim]);
    of.reshape([sequences * heads, rows, dim])
}

/// The last `count` along the second dimension, copied: what is kept of a call must not hold on to all of it.
pub(crate) fn last<const D: usize>(of: Tensor<D>, count: usize) -> Tensor<D> {
    let rows = of.dims()[1];
    let indices = Tensor::<1, Int>::arange((rows - count) as i64..rows as i64, &of.device());
    of.select(1, indices)
}

/// The last `keep` of `[sequences, rows, heads, dim]`, with zeros behind them up to `capacity`.
fn latest(of: &Tensor<4>, keep: usize, capacity: usize) -> Tensor<4> {
    let [sequences, _, heads, dim] = of.dims();
    let mut parts = Vec::new();
    if keep > 0 {
        parts.push(last(of.clone(), keep));
    }
    if keep < capacity {
        parts.push(zeros([sequences, capacity - keep, heads, dim], of));
    }
    Tensor::cat(parts, 1)
}

fn after_zeros(of: Tensor<3>, count: usize) -> Tensor<3> {
    if count == 0 {
        return of;
    }
    let [batch, _, dim] = of.dims();
    Tensor::cat(vec![zeros([batch, count, dim], &of), of], 1)
}

/// The normalised read: the columns over the last one, which is moved away from zero as [`falcon_kernels::normaliser`] has it.
fn divide(raw: Tensor<3>, eps: f64) -> Tensor<3> {
    let [batch, time, columns] = raw.dims();
    let shape = [batch, time, columns - 1];
    let total = raw.clone().slice_dim(2, columns - 1..columns);
    let away = Tensor::full([batch, time, 1], eps, options(&raw)).mask_fill(total.clone().lower_elem(0.0), -eps);
    let safe = total + away;
    // Nothing written and ε = 0: nothing to read, and nothing to divide by.
    let nothing = safe.clone().equal_elem(0.0);
    let safe = safe.mask_fill(nothing.clone(), 1.0);
    (raw.slice_dim(2, 0..columns - 1) / safe).mask_fill(nothing.expand(shape), 0.0)
}
