//! The SwiGLU branch of a block, by blocks of rows.
//!
//! ```text
//! n = norm(x)    a = W₁ n    b = W₃ n    h = silu(a) ⊙ b    y = x + W₂ h
//! dh = W₂ᵀ dy    dn = W₁ᵀ da + W₃ᵀ db    dx = dy + norm′(dn)
//! dW₂ = Σ dy hᵀ    dW₁ = Σ da nᵀ    dW₃ = Σ db nᵀ
//! ```
//!
//! `a` and `b` are kept for the backward pass; `n` and `h`, which need no matrix product, are computed again.

use std::sync::Arc;

use burn::tensor::Tensor;
use falcon_kernels::mat::{Mat, MatMut};

use super::blocks::{Buffers, Weight, by_blocks, rows, transpose};
use super::bridge::{Adjoint, Array, ForwardPass, Slice, only, run_with};
use super::few::{FEW, multiply_few};
use super::norm::{Norm, Normaliser};
use super::swiglu;

/// The parameters of a branch.
pub(crate) struct Branch {
    /// Weight of the norm, `[hidden]`.
    pub norm: Tensor<1>,
    /// `W₁`, `[inner, hidden]`.
    pub gate: Tensor<2>,
    /// `W₃`, `[inner, hidden]`.
    pub up: Tensor<2>,
    /// `W₂`, `[hidden, inner]`.
    pub down: Tensor<2>,
}

/// On the CPU: `x + W₂ (silu(W₁ n) ⊙ W₃ n)` with `n` the RMS norm of `x`, `[tokens, hidden]`.
pub(crate) fn mlp(x: Tensor<2>, branch: Branch, eps: f64) -> Tensor<2> {
    let Branch { norm, gate, up, down } = branch;
    let normaliser = Normaliser { norm: Norm::Rms, eps: eps as f32 };
    let inputs = [gate, up, down].map(Tensor::into_dispatch);
    let inputs = [x.into_dispatch(), norm.into_dispatch()].into_iter().chain(inputs);
    let (mut outputs, ()) = run_with(|inputs, tracked| forward(normaliser, inputs, tracked), inputs.collect());
    Tensor::from_dispatch(outputs.remove(0))
}

/// The inputs by name.
struct MlpInputs<'a> {
    x: &'a [f32],
    norm: &'a [f32],
    gate: &'a Slice<'a>,
    up: &'a Slice<'a>,
    down: &'a Slice<'a>,
    tokens: usize,
    hidden: usize,
    inner: usize,
}

impl<'a> MlpInputs<'a> {
    fn new(inputs: &'a [Slice<'a>]) -> Self {
        let [x, norm, gate, up, down] = inputs else { unreachable!("five inputs") };
        let ([tokens, hidden], inner) = ([x.shape[0], x.shape[1]], gate.shape[0]);
        Self { x: x.data, norm: norm.data, gate, up, down, tokens, hidden, inner }
    }
}

fn forward(normaliser: Normaliser, inputs: &[Slice<'_>], tracked: bool) -> ForwardPass<()> {
    let MlpInputs { x, norm, gate, up, down, tokens, hidden, inner } = MlpInputs::new(inputs);
    let mut y = x.to_vec();
    if tokens <= FEW && !tracked {
        let mut n = vec![0.0; x.len()];
        normaliser.forward(x, Some(norm), hidden, &mut n);
        let products = multiply_few(&[gate.into(), up.into()], &n);
        let mut h = vec![0.0; tokens * inner];
        swiglu::forward(&products[0], &products[1], &mut h);
        let branch = multiply_few(&[down.into()], &h).remove(0);
        y.iter_mut().zip(branch).for_each(|(y, branch)| *y += branch);
        let outputs = vec![Array { data: y, shape: inputs[0].shape.to_vec() }];
        return ForwardPass {
            outputs,
            adjoint: Arc::new(MlpAdjoint { norm: normaliser, kept: Vec::new() }),
            value: (),
        };
    }
    let [gate, up, down] = [gate, up, down].map(|weight| Weight::new(weight, tokens));
    let buffers = Buffers { out: vec![&mut y], scratch: [hidden, inner], sums: 0 };
    let (kept, _) = by_blocks(tokens, buffers, |mut block| {
        let (y, [n, h], product) = (&mut *block.out[0], block.scratch, block.product);
        let [mut a, mut b] = [vec![0.0; h.len()], vec![0.0; h.len()]];
        normaliser.forward(y, Some(norm), hidden, n);
        product(MatMut::new(&mut a, inner), 0.0, Mat::new(n, hidden), gate.t());
        product(MatMut::new(&mut b, inner), 0.0, Mat::new(n, hidden), up.t());
        swiglu::forward(&a, &b, h);
        product(MatMut::new(y, hidden), 1.0, Mat::new(h, inner), down.t());
        if tracked { [a, b] } else { [Vec::new(), Vec::new()] }
    });
    let outputs = vec![Array { data: y, shape: inputs[0].shape.to_vec() }];
    ForwardPass { outputs, adjoint: Arc::new(MlpAdjoint { norm: normaliser, kept }), value: () }
}

/// The backward pass of a call.
#[derive(Debug)]
struct MlpAdjoint {
    norm: Normaliser,
    /// `a` and `b` of each block of rows.
    kept: Vec<[Vec<f32>; 2]>,
}

impl Adjoint for MlpAdjoint {
    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        let MlpInputs { x, norm, gate, up, down, tokens, hidden, inner } = MlpInputs::new(inputs);
        let size = inner * hidden;
        let mut grad_x = only(grads);
        let scratch = [hidden, hidden, inner, inner, inner];
        let buffers = Buffers { out: vec![&mut grad_x], scratch, sums: hidden + 3 * size };
        let (_, mut sums) = by_blocks(tokens, buffers, |mut block| {
            let ([n, grad_n, h, grad_a, grad_b], product) = (block.scratch, block.product);
            let grad = &mut *block.out[0];
            let (x, [a, b]) = (rows(x, hidden, &block.rows), &self.kept[block.index]);
            self.norm.forward(x, Some(norm), hidden, n);
            // dh first; `swiglu::backward` then puts h in its place.
            product(MatMut::new(h, inner), 0.0, Mat::new(grad, hidden), Mat::new(down.data, inner));
            swiglu::backward(a, b, h, grad_a, grad_b);
            product(MatMut::new(grad_n, hidden), 0.0, Mat::new(grad_a, inner), Mat::new(gate.data, hidden));
            product(MatMut::new(grad_n, hidden), 1.0, Mat::new(grad_b, inner), Mat::new(up.data, hidden));

            let (grad_norm, matrices) = block.sums.split_at_mut(hidden);
            let [grad_gate, grad_up, grad_down] = thirds(matrices);
            // The transposes of these two: sums of outer products are fastest with the wider side contiguous.
            product(MatMut::new(grad_gate, inner), 1.0, Mat::new(n, hidden).t(), Mat::new(grad_a, inner));
            product(MatMut::new(grad_up, inner), 1.0, Mat::new(n, hidden).t(), Mat::new(grad_b, inner));
            product(MatMut::new(grad_down, inner), 1.0, Mat::new(grad, hidden).t(), Mat::new(h, inner));
            self.norm.backward(x, Some((norm, grad_norm)), hidden, grad_n);
            grad.iter_mut().zip(grad_n).for_each(|(grad, through)| *grad += *through);
        });
        let matrices = sums.split_off(hidden);
        let [gate, up, down] = [0, 1, 2].map(|i| &matrices[i * size..][..size]);
        vec![grad_x, sums, transpose(gate, inner), transpose(up, inner), down.to_vec()]
    }
}

fn thirds(matrices: &mut [f32]) -> [&mut [f32]; 3] {
    let (first, rest) = matrices.split_at_mut(matrices.len() / 3);
    let (second, third) = rest.split_at_mut(first.len());
    [first, second, third]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Engine;
    use crate::ops::norm::normalise;
    use crate::ops::testing::compare;

    #[test]
    fn the_branch_equals_its_tensor_operations() {
        let (hidden, inner) = (24, 40);
        for tokens in [1, 5, FEW, FEW + 1, 129, 700] {
            let shapes = [
                vec![tokens, hidden],
                vec![hidden],
                vec![inner, hidden],
                vec![inner, hidden],
                vec![hidden, inner],
            ];
            compare(&shapes, |engine, inputs| {
                let [x, norm, gate, up, down] = inputs else { unreachable!("five inputs") };
                let (x, norm) = (x.clone().reshape([tokens, hidden]), norm.clone());
                let gate = gate.clone().reshape([inner, hidden]);
                let up = up.clone().reshape([inner, hidden]);
                let down = down.clone().reshape([hidden, inner]);
                let y = match engine {
                    Engine::Kernels => mlp(x, Branch { norm, gate, up, down }, 1e-6),
                    Engine::Tensors => {
                        let n = normalise(engine, Norm::Rms, x.clone(), Some(norm), 1e-6);
                        let h =
                            swiglu::swiglu(engine, n.clone().matmul(gate.transpose()), n.matmul(up.transpose()));
                        x + h.matmul(down.transpose())
                    }
                };
                vec![y.flatten(0, 1)]
            });
        }
    }
}
