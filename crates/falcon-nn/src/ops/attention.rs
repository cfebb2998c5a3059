//! Causal softmax attention over whole sequences, head by head.
//!
//! ```text
//! P = softmax(Q Kᵀ)    O = P V
//! dV = Pᵀ dO    dP = dO Vᵀ    dA = P ⊙ (dP − rowsum(P ⊙ dP))    dQ = dA K    dK = dAᵀ Q
//! ```

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;
use falcon_kernels::mat::{Mat, lower_matmul, lower_matmul_t, product_lower};
use rayon::prelude::*;

use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{dot, exp, max, sum, vectorised};
use crate::sequences::Sequences;

/// The most scores that a thread holds at once. Longer sequences are computed some rows at a time.
pub(crate) const SCORES: usize = 1 << 24;

/// On the CPU: attention over inputs `[tokens, heads, dim]`. Queries are scaled already, and there are as many key
/// heads as value heads.
pub(crate) fn attention(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, sequences: &Sequences) -> Tensor<3> {
    attention_by(SCORES, q, k, v, sequences)
}

fn attention_by(scores: usize, q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, sequences: &Sequences) -> Tensor<3> {
    let op = Attention { offsets: sequences.offsets().to_vec(), scores };
    run(Arc::new(op), [q.into_dispatch(), k.into_dispatch(), v.into_dispatch()])
}

#[derive(Debug)]
struct Attention {
    offsets: Vec<usize>,
    /// The most numbers of `P` that a thread holds at once.
    scores: usize,
}

/// One head of one sequence, with contiguous rows.
#[derive(Default)]
struct HeadRows {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Some rows of `P`, without the columns that are 0 in all of them.
    p: Vec<f32>,
}

impl HeadRows {
    /// Copies one head of the tokens of a sequence. The arrays are reused from head to head.
    fn fill(&mut self, inputs: &[Slice<'_>], tokens: &Range<usize>, head: usize) {
        for (rows, input) in [&mut self.q, &mut self.k, &mut self.v].into_iter().zip(inputs) {
            gather(rows, input.data, [input.shape[1], input.shape[2]], tokens, head);
        }
    }

    /// Computes the given rows of `P` up to column `rows.end`, with zeros above the diagonal.
    fn weigh(&mut self, rows: &Range<usize>, dim: usize) {
        let width = rows.end;
        self.p.resize(rows.len() * width, 0.0);
        let (q, k) = (Mat::new(&self.q, dim).rows(rows.clone()), Mat::new(&self.k, dim).rows(0..width));
        product_lower(&mut self.p, q, k.t(), past(rows));
        vectorised(
            #[inline(always)]
            || {
                for (t, row) in rows.clone().zip(self.p.chunks_exact_mut(width)) {
                    let (past, future) = row.split_at_mut(t + 1);
                    let most = max(past);
                    past.iter_mut().for_each(|x| *x = exp(*x - most));
                    let scale = sum(past).recip();
                    past.iter_mut().for_each(|x| *x *= scale);
                    future.fill(0.0);
                }
            },
        );
    }
}

/// How many columns of each of these rows are not later than the row.
fn past(rows: &Range<usize>) -> impl Fn(usize) -> usize + Copy + use<> {
    let first = rows.start;
    move |row| first + row + 1
}

/// Copies the rows of one head.
fn gather(rows: &mut Vec<f32>, data: &[f32], [heads, dim]: [usize; 2], tokens: &Range<usize>, head: usize) {
    rows.clear();
    for t in tokens.clone() {
        rows.extend_from_slice(&data[(t * heads + head) * dim..][..dim]);
    }
}

impl Attention {
    /// The rows of a sequence of `time` tokens, in blocks whose scores fit in memory.
    fn blocks(&self, time: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let size = (self.scores / time.max(1)).max(1);
        (0..time).step_by(size).map(move |start| start..time.min(start + size))
    }

    /// Calls `f` for every head of every sequence, with working memory that is reused. Returns the results in order.
    fn by_heads<S: Default, T: Send>(
        &self,
        heads: usize,
        f: impl Fn(&mut S, &Range<usize>, usize) -> T + Sync,
    ) -> Vec<T> {
        let sequences = self.offsets.windows(2).map(|w| w[0]..w[1]);
        let places: Vec<_> =
            sequences.flat_map(|tokens| (0..heads).map(move |head| (tokens.clone(), head))).collect();
        places.par_iter().map_init(S::default, |work, (tokens, head)| f(work, tokens, *head)).collect()
    }

    /// `[tokens, heads, dim]` from the rows of every head of every sequence.
    fn scatter(&self, rows: &[&[f32]], heads: usize, dim: usize) -> Vec<f32> {
        let mut to = vec![0.0; self.offsets[self.offsets.len() - 1] * heads * dim];
        let mut rest = &mut to[..];
        let mut sequences = Vec::with_capacity(self.offsets.len());
        for (w, rows) in self.offsets.windows(2).zip(rows.chunks_exact(heads)) {
            let (tokens, after) = std::mem::take(&mut rest).split_at_mut((w[1] - w[0]) * heads * dim);
            sequences.push((tokens, rows));
            rest = after;
        }
        sequences.into_par_iter().for_each(|(tokens, rows)| {
            for (t, token) in tokens.chunks_exact_mut(heads * dim).enumerate() {
                for (to, rows) in token.chunks_exact_mut(dim).zip(rows) {
                    to.copy_from_slice(&rows[t * dim..][..dim]);
                }
            }
        });
        to
    }
}

impl SliceOp for Attention {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let (heads, dim_v, dim_k) = (inputs[2].shape[1], inputs[2].shape[2], inputs[0].shape[2]);
        let rows = self.by_heads(heads, |work: &mut HeadRows, tokens, head| {
            work.fill(inputs, tokens, head);
            let mut out = vec![0.0; tokens.len() * dim_v];
            for rows in self.blocks(tokens.len()) {
                work.weigh(&rows, dim_k);
                let out = &mut out[rows.start * dim_v..rows.end * dim_v];
                lower_matmul(out, Mat::new(&work.p, rows.end), Mat::new(&work.v, dim_v), past(&rows));
            }
            out
        });
        let rows: Vec<_> = rows.iter().map(Vec::as_slice).collect();
        Array { data: self.scatter(&rows, heads, dim_v), shape: inputs[2].shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (heads, dim_v, dim_k) = (inputs[2].shape[1], inputs[2].shape[2], inputs[0].shape[2]);
        let rows = self.by_heads(heads, |buffers: &mut (HeadRows, Vec<f32>, Vec<f32>), tokens, head| {
            let ((work, grad_o, grad_a), time) = (buffers, tokens.len());
            work.fill(inputs, tokens, head);
            gather(grad_o, &grad, [heads, dim_v], tokens, head);
            let [mut grad_q, mut grad_k] = [vec![0.0; time * dim_k], vec![0.0; time * dim_k]];
            let mut grad_v = vec![0.0; time * dim_v];
            for rows in self.blocks(time) {
                work.weigh(&rows, dim_k);
                let (width, bound) = (rows.end, past(&rows));
                let (grad, p) = (Mat::new(grad_o, dim_v).rows(rows.clone()), Mat::new(&work.p, width));
                let (q, v) =
                    (Mat::new(&work.q, dim_k).rows(rows.clone()), Mat::new(&work.v, dim_v).rows(0..width));
                lower_matmul_t(&mut grad_v, p, grad, bound);
                grad_a.resize(rows.len() * width, 0.0);
                product_lower(grad_a, grad, v.t(), bound);
                vectorised(
                    #[inline(always)]
                    || {
                        let pairs = grad_a.chunks_exact_mut(width).zip(work.p.chunks_exact(width));
                        for (t, (grad, p)) in rows.clone().zip(pairs) {
                            let (grad, future) = grad.split_at_mut(t + 1);
                            let along = dot(grad, &p[..=t]);
                            grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = p * (*grad - along));
                            future.fill(0.0);
                        }
                    },
                );
                let (grad_a, grad_q) = (Mat::new(grad_a, width), &mut grad_q[rows.start * dim_k..width * dim_k]);
                lower_matmul(grad_q, grad_a, Mat::new(&work.k, dim_k), bound);
                lower_matmul_t(&mut grad_k, grad_a, q, bound);
            }
            [grad_q, grad_k, grad_v]
        });
        let gradient = |i: usize, dim: usize| {
            let rows: Vec<_> = rows.iter().map(|rows| rows[i].as_slice()).collect();
            self.scatter(&rows, heads, dim)
        };
        vec![gradient(0, dim_k), gradient(1, dim_k), gradient(2, dim_v)]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Bool, activation};

    use super::*;
    use crate::ops::Engine;
    use crate::ops::testing::compare;

    #[test]
    fn scores_are_bounded() {
        let op = Attention { offsets: vec![0], scores: 3000 };
        for time in [0, 1, 54, 55, 70, 2999, 5000] {
            let blocks: Vec<_> = op.blocks(time).collect();
            assert!(blocks.iter().cloned().flatten().eq(0..time), "{time}: every row once, in order");
            assert!(
                blocks.iter().all(|rows| rows.len() == 1 || rows.len() * rows.end <= 3000),
                "{time}: {blocks:?}"
            );
            assert_eq!(blocks.len() > 1, time * time > 3000, "{time}");
        }
    }

    #[test]
    fn attention_equals_its_tensor_operations() {
        let (heads, dim) = (2, 5);
        // All rows at once, some at a time, and one by one.
        let cases = [(&[1][..], SCORES), (&[40], SCORES), (&[3, 70, 1], SCORES), (&[3, 70, 1], 3000), (&[40], 1)];
        for (lengths, scores) in cases {
            let sequences = Sequences::packed(lengths);
            let tokens = sequences.tokens();
            compare(
                &[vec![tokens, heads, dim], vec![tokens, heads, dim], vec![tokens, heads, 3]],
                |engine, inputs| {
                    let q = inputs[0].clone().reshape([tokens, heads, dim]);
                    let k = inputs[1].clone().reshape([tokens, heads, dim]);
                    let v = inputs[2].clone().reshape([tokens, heads, 3]);
                    if engine == Engine::Kernels {
                        return vec![attention_by(scores, q, k, v, &sequences).flatten(0, 2)];
                    }
                    let parts = sequences.offsets().windows(2).map(|w| {
                        let [q, k, v] = [&q, &k, &v].map(|x| x.clone().slice_dim(0, w[0]..w[1]).swap_dims(0, 1));
                        let time = w[1] - w[0];
                        let future = Tensor::<2, Bool>::tril_mask([time, time], 0, &q.device());
                        let scores = q.matmul(k.swap_dims(1, 2)).mask_fill(future.unsqueeze(), f32::NEG_INFINITY);
                        activation::softmax(scores, 2).matmul(v).swap_dims(0, 1)
                    });
                    vec![Tensor::cat(parts.collect(), 0).flatten(0, 2)]
                },
            );
        }
    }
}
