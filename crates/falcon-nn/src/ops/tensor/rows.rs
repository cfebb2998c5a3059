//! A batch of sequences that are alike, laid out as rows for the chunked form.

use burn::tensor::{Int, Tensor};
use falcon_kernels::Rule;
use falcon_kernels::rule::{Align, Columns, Read};

use super::chunked::{self, Steps};
use super::coefficients::Coefficients;
use super::pairs::Pairs;
use super::state::{RuleInputs, TensorState};
use super::triangle::{ones, options, zeros};

/// [`super::scan`] for sequences of `length` tokens with equally long tails, all started or none.
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
    let first_unpaired = rule.align == Align::Next && !state.started[0];
    let tail = state.tail_len[0];
    let by_sequence = |x: Tensor<3>| {
        let [_, heads, dim] = x.dims();
        x.reshape([sequences, length, heads, dim])
    };
    let (q, k, v) = (by_sequence(inputs.q), by_sequence(inputs.k), by_sequence(inputs.v));

    // The pairs, without preceding zeros.
    let last_key = state.last_key.reshape([sequences, 1, key_heads, dim_k]);
    let last_key = if state.started[0] { last_key } else { zeros(last_key.dims(), &last_key) };
    let x = match rule.align {
        Align::Same => k.clone(),
        Align::Next if length == 1 => last_key,
        Align::Next => Tensor::cat(vec![last_key, k.clone().slice_dim(1, 0..length - 1)], 1),
    };
    let behind = |before: Option<Tensor<4>>, rows: Tensor<4>| match before {
        Some(before) if tail > 0 => Tensor::cat(vec![before.slice_dim(1, 0..tail), rows], 1),
        _ => rows,
    };
    let (x, v) = (behind(state.tail_x, x), behind(state.tail_v, v));

    let written = tail + length - usize::from(first_unpaired);
    let keep = written.min(rule.tail_capacity());
    let outgoing = |rows: &Tensor<4>| (rule.tail_capacity() > 0).then(|| latest(rows, keep, rule.tail_capacity()));
    let (tail_x, tail_v) = (outgoing(&x), outgoing(&v));

    // From here on every value head is a batch element, with the queries and keys of its key head.
    let batch = sequences * heads;
    let by_head = |x: Tensor<4>| per_head(x, heads);
    let pairs = Pairs::new(by_head(x), rule.window, tail, first_unpaired);
    let mut v = by_head(v);
    if rule.normaliser.is_some() {
        v = Tensor::cat(vec![v, ones([batch, tail + length, 1], &pairs.x)], 2);
    }
    let v = pairs.values(v);
    let gains = |x: Option<Tensor<3>>| x.map(|x| by_head(by_sequence(x)));
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

/// `[sequences, rows, key heads or value heads, dim]` to `[sequences · heads, rows, dim]`. Key heads are repeated for
/// the value heads of their group.
fn per_head(x: Tensor<4>, heads: usize) -> Tensor<3> {
    let [sequences, rows, x_heads, dim] = x.dims();
    let x = x.swap_dims(1, 2);
    if x_heads == heads {
        return x.reshape([sequences * heads, rows, dim]);
    }
    let x = x.unsqueeze_dim::<5>(2).expand([sequences, x_heads, heads / x_heads, rows, dim]);
    x.reshape([sequences * heads, rows, dim])
}

/// A copy of the last `count` entries along the second dimension. A view would keep the whole tensor in memory.
pub(crate) fn last<const D: usize>(x: Tensor<D>, count: usize) -> Tensor<D> {
    let rows = x.dims()[1];
    let indices = Tensor::<1, Int>::arange((rows - count) as i64..rows as i64, &x.device());
    x.select(1, indices)
}

/// The last `keep` rows of `[sequences, rows, heads, dim]`, padded with zeros to `capacity`.
fn latest(x: &Tensor<4>, keep: usize, capacity: usize) -> Tensor<4> {
    let [sequences, _, heads, dim] = x.dims();
    let mut parts = Vec::new();
    if keep > 0 {
        parts.push(last(x.clone(), keep));
    }
    if keep < capacity {
        parts.push(zeros([sequences, capacity - keep, heads, dim], x));
    }
    Tensor::cat(parts, 1)
}

/// Divides the columns of a read by the last one, after moving it away from zero as [`falcon_kernels::normaliser`]
/// does.
fn divide(raw: Tensor<3>, eps: f64) -> Tensor<3> {
    let [batch, time, columns] = raw.dims();
    let shape = [batch, time, columns - 1];
    let total = raw.clone().slice_dim(2, columns - 1..columns);
    let away = Tensor::full([batch, time, 1], eps, options(&raw)).mask_fill(total.clone().lower_elem(0.0), -eps);
    let safe = total + away;
    // If nothing was written and ε = 0, the result is 0 and there must be no division.
    let nothing = safe.clone().equal_elem(0.0);
    let safe = safe.mask_fill(nothing.clone(), 1.0);
    (raw.slice_dim(2, 0..columns - 1) / safe).mask_fill(nothing.expand(shape), 0.0)
}
