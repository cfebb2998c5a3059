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

/// On the CPU: `[tokens, heads, dim]` each, queries scaled already, as many heads of keys as of values.
pub(crate) fn attention(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, sequences: &Sequences) -> Tensor<3> {
    let op = Attention { offsets: sequences.offsets().to_vec() };
    run(Arc::new(op), [q.into_dispatch(), k.into_dispatch(), v.into_dispatch()])
}

#[derive(Debug)]
struct Attention {
    offsets: Vec<usize>,
}

/// One head of one sequence, its rows side by side.
#[derive(Default)]
struct Head {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// `P`, `[time, time]`, 0 above the diagonal.
    p: Vec<f32>,
}

impl Head {
    /// Works out `P` for the tokens of a sequence. The arrays are used again from head to head.
    fn fill(&mut self, inputs: &[Slice<'_>], tokens: &Range<usize>, head: usize) {
        let (time, dim) = (tokens.len(), inputs[0].shape[2]);
        for (rows, of) in [&mut self.q, &mut self.k, &mut self.v].into_iter().zip(inputs) {
            gather(rows, of.data, [of.shape[1], of.shape[2]], tokens, head);
        }
        self.p.resize(time * time, 0.0);
        product_lower(&mut self.p, Mat::new(&self.q, dim), Mat::new(&self.k, dim).t(), |t| t + 1);
        vectorised(
            #[inline(always)]
            || {
                for (t, row) in self.p.chunks_exact_mut(time).enumerate() {
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

/// The rows of one head.
fn gather(rows: &mut Vec<f32>, data: &[f32], [heads, dim]: [usize; 2], tokens: &Range<usize>, head: usize) {
    rows.clear();
    for t in tokens.clone() {
        rows.extend_from_slice(&data[(t * heads + head) * dim..][..dim]);
    }
}

impl Attention {
    /// `f` of every sequence and head, in order, with arrays that it may use again.
    fn by_heads<S: Default, T: Send>(
        &self,
        heads: usize,
        f: impl Fn(&mut S, &Range<usize>, usize) -> T + Sync,
    ) -> Vec<T> {
        let sequences = self.offsets.windows(2).map(|w| w[0]..w[1]);
        let places: Vec<_> =
            sequences.flat_map(|tokens| (0..heads).map(move |head| (tokens.clone(), head))).collect();
        places.par_iter().map_init(S::default, |room, (tokens, head)| f(room, tokens, *head)).collect()
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
        let (heads, dim) = (inputs[2].shape[1], inputs[2].shape[2]);
        let rows = self.by_heads(heads, |of: &mut Head, tokens, head| {
            let time = tokens.len();
            of.fill(inputs, tokens, head);
            let mut out = vec![0.0; time * dim];
            lower_matmul(&mut out, Mat::new(&of.p, time), Mat::new(&of.v, dim), |t| t + 1);
            out
        });
        let rows: Vec<_> = rows.iter().map(Vec::as_slice).collect();
        Array { data: self.scatter(&rows, heads, dim), shape: inputs[2].shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (heads, dim_v, dim_k) = (inputs[2].shape[1], inputs[2].shape[2], inputs[0].shape[2]);
        let rows = self.by_heads(heads, |room: &mut (Head, Vec<f32>, Vec<f32>), tokens, head| {
            let ((of, grad_o, grad_a), time) = (room, tokens.len());
            of.fill(inputs, tokens, head);
            gather(grad_o, &grad, [heads, dim_v], tokens, head);
            grad_a.resize(time * time, 0.0);
            let [mut grad_q, mut grad_k] = [vec![0.0; time * dim_k], vec![0.0; time * dim_k]];
            let mut grad_v = vec![0.0; time * dim_v];
            let (grad, p, bound) = (Mat::new(grad_o, dim_v), Mat::new(&of.p, time), |t: usize| t + 1);
            lower_matmul_t(&mut grad_v, p, grad, bound);
            product_lower(grad_a, grad, Mat::new(&of.v, dim_v).t(), bound);
            vectorised(
                #[inline(always)]
                || {
                    for (t, (grad, p)) in grad_a.chunks_exact_mut(time).zip(of.p.chunks_exact(time)).enumerate() {
                        let (grad, future) = grad.split_at_mut(t + 1);
                        let along = dot(grad, &p[..=t]);
                        grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = p * (*grad - along));
                        future.fill(0.0);
                    }
                },
            );
            let grad_a = Mat::new(grad_a, time);
            lower_matmul(&mut grad_q, grad_a, Mat::new(&of.k, dim_k), bound);
            lower_matmul_t(&mut grad_k, grad_a, Mat::new(&of.q, dim_k), bound);
            [grad_q, grad_k, grad_v]
        });
        let of = |i: usize, dim: usize| {
            let rows: Vec<_> = rows.iter().map(|rows| rows[i].as_slice()).collect();
            self.scatter(&rows, heads, dim)
        };
        vec![of(0, dim_k), of(1, dim_k), of(2, dim_v)]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Bool, activation};

    use super::*;
    use crate::ops::Engine;
    use crate::ops::testing::compare;

    #[test]
    fn attention_is_its_tensor_operations() {
        let (heads, dim) = (2, 5);
        for lengths in [&[1][..], &[40], &[3, 70, 1]] {
            let sequences = Sequences::packed(lengths);
            let tokens = sequences.tokens();
            compare(
                &[vec![tokens, heads, dim], vec![tokens, heads, dim], vec![tokens, heads, 3]],
                |engine, inputs| {
                    let q = inputs[0].clone().reshape([tokens, heads, dim]);
                    let k = inputs[1].clone().reshape([tokens, heads, dim]);
                    let v = inputs[2].clone().reshape([tokens, heads, 3]);
                    if engine == Engine::Kernels {
                        return vec![attention(q, k, v, &sequences).flatten(0, 2)];
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
