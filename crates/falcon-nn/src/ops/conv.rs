//! A causal convolution over time with one filter per channel, optionally followed by SiLU.
//!
//! ```text
//! p_t = Σ_i w_i x_{t − (K−1) + i}        y = p, or p σ(p)
//! dx_t = Σ_i w_i dp_{t + (K−1) − i}      dw_i = Σ_t dp_t x_{t − (K−1) + i}
//! ```

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{ROWS, sigmoid, vectorised};
use crate::options::Activation;
use crate::sequences::Sequences;

/// On the CPU: `x` is `[tokens, channels]`, `weight` is `[channels, 1, taps]`, and `before` holds the last `taps − 1`
/// tokens of each sequence before this call, if there were any.
pub(crate) fn convolve(
    x: Tensor<2>,
    weight: Tensor<3>,
    before: Option<Tensor<3>>,
    sequences: &Sequences,
    activation: Activation,
) -> Tensor<2> {
    let before = before.map(|before| {
        let data: TensorData = before.into_data();
        data.try_into_vec().expect("states are f32")
    });
    let op = Conv { before, offsets: sequences.offsets().to_vec(), silu: activation == Activation::Silu };
    run(Arc::new(op), [x.into_dispatch(), weight.into_dispatch()])
}

#[derive(Debug)]
struct Conv {
    /// `[sequences, taps − 1, channels]`; none stands for zeros.
    before: Option<Vec<f32>>,
    offsets: Vec<usize>,
    silu: bool,
}

/// One call with its inputs by name.
struct ConvCall<'a> {
    op: &'a Conv,
    x: &'a [f32],
    channels: usize,
    taps: usize,
    /// Filters, `[taps, channels]`.
    filters: Vec<f32>,
}

impl<'a> ConvCall<'a> {
    fn new(op: &'a Conv, inputs: &[Slice<'a>]) -> Self {
        let [x, weight] = inputs else { unreachable!("two inputs") };
        let (channels, taps) = (weight.shape[0], weight.shape[2]);
        let filters = (0..taps * channels).map(|i| weight.data[i % channels * taps + i / channels]).collect();
        Self { op, x: x.data, channels, taps, filters }
    }

    /// Blocks of tokens, each within one sequence: the sequence and the tokens.
    fn blocks(&self) -> Vec<(usize, Range<usize>)> {
        let sequences = self.op.offsets.windows(2).enumerate();
        sequences
            .flat_map(|(sequence, w)| {
                (w[0]..w[1]).step_by(ROWS).map(move |start| (sequence, start..(start + ROWS).min(w[1])))
            })
            .collect()
    }

    /// The token `back` tokens before `t`, from this call or an earlier one; none before the beginning of a sequence.
    #[inline(always)]
    fn token(&self, sequence: usize, t: usize, back: usize) -> Option<&[f32]> {
        let start = self.op.offsets[sequence];
        if t - start >= back {
            return Some(&self.x[(t - back) * self.channels..][..self.channels]);
        }
        let slot = sequence * (self.taps - 1) + self.taps - 1 - (back - (t - start));
        self.op.before.as_ref().map(|before| &before[slot * self.channels..][..self.channels])
    }

    /// `p_t`.
    #[inline(always)]
    fn filter(&self, sequence: usize, t: usize, p: &mut [f32]) {
        if self.taps == USUAL && t - self.op.offsets[sequence] >= USUAL - 1 {
            let x = &self.x[(t + 1 - USUAL) * self.channels..];
            return weigh(p, rows(&self.filters, self.channels), rows(x, self.channels));
        }
        p.fill(0.0);
        for tap in 0..self.taps {
            if let Some(x) = self.token(sequence, t, self.taps - 1 - tap) {
                let filter = &self.filters[tap * self.channels..][..self.channels];
                for ((p, x), w) in p.iter_mut().zip(x).zip(filter) {
                    *p += w * x;
                }
            }
        }
    }
}

/// The usual number of taps, for which there is a faster loop.
const USUAL: usize = 4;

/// The first rows of a matrix.
#[inline(always)]
fn rows(matrix: &[f32], width: usize) -> [&[f32]; USUAL] {
    std::array::from_fn(|i| &matrix[i * width..][..width])
}

/// `y = Σ_i w_i ⊙ x_i`, in one pass.
#[inline(always)]
fn weigh(y: &mut [f32], w: [&[f32]; USUAL], x: [&[f32]; USUAL]) {
    let [w, x] = [w, x].map(|rows| rows.map(|row| &row[..y.len()]));
    for c in 0..y.len() {
        y[c] = (w[0][c] * x[0][c] + w[1][c] * x[1][c]) + (w[2][c] * x[2][c] + w[3][c] * x[3][c]);
    }
}

/// Splits a matrix into the rows of consecutive blocks.
fn cut<'d>(mut data: &'d mut [f32], blocks: &[(usize, Range<usize>)], width: usize) -> Vec<&'d mut [f32]> {
    let mut parts = Vec::with_capacity(blocks.len());
    for (_, tokens) in blocks {
        let (part, rest) = data.split_at_mut(tokens.len() * width);
        parts.push(part);
        data = rest;
    }
    parts
}

impl SliceOp for Conv {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let call = ConvCall::new(self, inputs);
        let mut y = vec![0.0; call.x.len()];
        let blocks = call.blocks();
        cut(&mut y, &blocks, call.channels).into_par_iter().zip(&blocks).for_each(|(y, (sequence, tokens))| {
            vectorised(
                #[inline(always)]
                || {
                    for (t, y) in tokens.clone().zip(y.chunks_exact_mut(call.channels)) {
                        call.filter(*sequence, t, y);
                        if self.silu {
                            y.iter_mut().for_each(|y| *y *= sigmoid(*y));
                        }
                    }
                },
            );
        });
        Array { data: y, shape: inputs[0].shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let call = ConvCall::new(self, inputs);
        let ConvCall { channels, taps, .. } = call;
        let blocks = call.blocks();
        // dp = dy silu′(p), with p computed again.
        let mut grad_p = grad;
        if self.silu {
            cut(&mut grad_p, &blocks, channels).into_par_iter().zip(&blocks).for_each(
                |(grad, (sequence, tokens))| {
                    let mut p = vec![0.0; channels];
                    vectorised(
                        #[inline(always)]
                        || {
                            for (t, grad) in tokens.clone().zip(grad.chunks_exact_mut(channels)) {
                                call.filter(*sequence, t, &mut p);
                                for (grad, p) in grad.iter_mut().zip(&p) {
                                    let s = sigmoid(*p);
                                    *grad *= s * (1.0 + p * (1.0 - s));
                                }
                            }
                        },
                    );
                },
            );
        }
        let mut grad_x = vec![0.0; grad_p.len()];
        cut(&mut grad_x, &blocks, channels).into_par_iter().zip(&blocks).for_each(
            |(grad_x, (sequence, tokens))| {
                let end = self.offsets[sequence + 1];
                vectorised(
                    #[inline(always)]
                    || {
                        for (t, grad_x) in tokens.clone().zip(grad_x.chunks_exact_mut(channels)) {
                            if taps == USUAL && t + USUAL - 1 < end {
                                let mut later = rows(&grad_p[t * channels..], channels);
                                later.reverse();
                                weigh(grad_x, rows(&call.filters, channels), later);
                                continue;
                            }
                            for (tap, filter) in call.filters.chunks_exact(channels).enumerate() {
                                let later = t + taps - 1 - tap;
                                if later < end {
                                    let grad = &grad_p[later * channels..][..channels];
                                    for ((grad_x, w), dp) in grad_x.iter_mut().zip(filter).zip(grad) {
                                        *grad_x += w * dp;
                                    }
                                }
                            }
                        }
                    },
                );
            },
        );
        // Blocks do not depend on the number of threads and are added in order, so the sum does not depend on it
        // either.
        let parts: Vec<Vec<f32>> = blocks
            .par_iter()
            .map(|(sequence, tokens)| {
                let mut part = vec![0.0; taps * channels];
                vectorised(
                    #[inline(always)]
                    || {
                        for t in tokens.clone() {
                            let grad = &grad_p[t * channels..][..channels];
                            for (tap, part) in part.chunks_exact_mut(channels).enumerate() {
                                if let Some(x) = call.token(*sequence, t, taps - 1 - tap) {
                                    for ((part, dp), x) in part.iter_mut().zip(grad).zip(x) {
                                        *part += dp * x;
                                    }
                                }
                            }
                        }
                    },
                );
                part
            })
            .collect();
        let mut grad_weight = vec![0.0; taps * channels];
        for part in parts {
            for (i, part) in part.iter().enumerate() {
                grad_weight[i % channels * taps + i / channels] += part;
            }
        }
        vec![grad_x, grad_weight]
    }
}
