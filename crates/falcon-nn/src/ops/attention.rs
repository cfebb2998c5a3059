//! Causal softmax attention over whole sequences, head by head.
//!
//! ```text
//! P = softmax(Q Kᵀ)    O = P V
//! dV = Pᵀ dO    dP = dO Vᵀ    dA = P ⊙ (dP − rowsum(P ⊙ dP))    dQ = dA K    dK = dAᵀ Q
//! ```

use std::sync::Arc;

use burn::tensor::Tensor;
use falcon_kernels::mat::{Mat, lower_matmul, lower_matmul_t, product_lower};
use rayon::prelude::*;

use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{dot, exp, vectorised};
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
struct Head {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// `P`, `[time, time]`, 0 above the diagonal.
    p: Vec<f32>,
}

impl Head {
    fn new(inputs: &[Slice<'_>], tokens: std::ops::Range<usize>, head: usize) -> Self {
        let time = tokens.len();
        let rows = |slice: &Slice<'_>| gather(slice.data, slice.shape[1], slice.shape[2], tokens.clone(), head);
        let [q, k, v] = [&inputs[0], &inputs[1], &inputs[2]].map(rows);
        let dim = inputs[0].shape[2];
        let mut p = vec![0.0; time * time];
        product_lower(&mut p, Mat::new(&q, dim), Mat::new(&k, dim).t(), |t| t + 1);
        vectorised(
            #[inline(always)]
            || {
                for (t, row) in p.chunks_exact_mut(time).enumerate() {
                    let (past, future) = row.split_at_mut(t + 1);
                    // A NaN must not be lost in the maximum: it comes back through the exponential of the difference.
                    let most = past.iter().fold(f32::NEG_INFINITY, |most, x| if *x > most { *x } else { most });
                    past.iter_mut().for_each(|x| *x = exp(*x - most));
                    let total: f32 = past.iter().sum();
                    past.iter_mut().for_each(|x| *x /= total);
                    future.fill(0.0);
                }
            },
        );
        Self { q, k, v, p }
    }
}

/// The rows of one head.
fn gather(data: &[f32], heads: usize, dim: usize, tokens: std::ops::Range<usize>, head: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(tokens.len() * dim);
    for t in tokens {
        rows.extend_from_slice(&data[(t * heads + head) * dim..][..dim]);
    }
    rows
}

impl Attention {
    /// Every sequence and head.
    fn heads(&self, heads: usize) -> Vec<(std::ops::Range<usize>, usize)> {
        let sequences = self.offsets.windows(2).map(|w| w[0]..w[1]).filter(|tokens| !tokens.is_empty());
        sequences.flat_map(|tokens| (0..heads).map(move |head| (tokens.clone(), head))).collect()
    }
}

/// Puts the rows of heads where they belong in `[tokens, heads, dim]`.
fn scatter(
    to: &mut [f32],
    heads: usize,
    dim: usize,
    (tokens, head): &(std::ops::Range<usize>, usize),
    rows: &[f32],
) {
    for (t, row) in tokens.clone().zip(rows.chunks_exact(dim)) {
        to[(t * heads + head) * dim..][..dim].copy_from_slice(row);
    }
}

impl SliceOp for Attention {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let [_, heads, dim] = [0, 1, 2].map(|axis| inputs[2].shape[axis]);
        let places = self.heads(heads);
        let rows: Vec<Vec<f32>> = places
            .par_iter()
            .map(|(tokens, head)| {
                let time = tokens.len();
                let of = Head::new(inputs, tokens.clone(), *head);
                let mut out = vec![0.0; time * dim];
                lower_matmul(&mut out, Mat::new(&of.p, time), Mat::new(&of.v, dim), |t| t + 1);
                out
            })
            .collect();
        let mut out = vec![0.0; inputs[2].data.len()];
        for (place, rows) in places.iter().zip(&rows) {
            scatter(&mut out, heads, dim, place, rows);
        }
        Array { data: out, shape: inputs[2].shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: &[f32]) -> Vec<Vec<f32>> {
        let (heads, dim_v, dim_k) = (inputs[2].shape[1], inputs[2].shape[2], inputs[0].shape[2]);
        let places = self.heads(heads);
        let rows: Vec<[Vec<f32>; 3]> = places
            .par_iter()
            .map(|(tokens, head)| {
                let time = tokens.len();
                let of = Head::new(inputs, tokens.clone(), *head);
                let grad = gather(grad, heads, dim_v, tokens.clone(), *head);
                let grad = Mat::new(&grad, dim_v);
                let bound = |t: usize| t + 1;
                let [mut grad_q, mut grad_k] = [vec![0.0; time * dim_k], vec![0.0; time * dim_k]];
                let (mut grad_v, mut grad_a) = (vec![0.0; time * dim_v], vec![0.0; time * time]);
                lower_matmul_t(&mut grad_v, Mat::new(&of.p, time), grad, bound);
                product_lower(&mut grad_a, grad, Mat::new(&of.v, dim_v).t(), bound);
                vectorised(
                    #[inline(always)]
                    || {
                        for (t, (grad, p)) in
                            grad_a.chunks_exact_mut(time).zip(of.p.chunks_exact(time)).enumerate()
                        {
                            let (grad, future) = grad.split_at_mut(t + 1);
                            let along = dot(grad, &p[..=t]);
                            grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = p * (*grad - along));
                            future.fill(0.0);
                        }
                    },
                );
                let grad_a = Mat::new(&grad_a, time);
                lower_matmul(&mut grad_q, grad_a, Mat::new(&of.k, dim_k), bound);
                lower_matmul_t(&mut grad_k, grad_a, Mat::new(&of.q, dim_k), bound);
                [grad_q, grad_k, grad_v]
            })
            .collect();
        let mut grads = [0, 1, 2].map(|i| vec![0.0; inputs[i].data.len()]);
        for (place, rows) in places.iter().zip(&rows) {
            for ((to, rows), dim) in grads.iter_mut().zip(rows).zip([dim_k, dim_k, dim_v]) {
                scatter(to, heads, dim, place, rows);
            }
        }
        grads.into()
    }
}
