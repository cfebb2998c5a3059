//! `silu(a) ⊙ b`, with `silu(a) = a σ(a)`.

use std::sync::Arc;

use burn::tensor::{Tensor, activation};
use rayon::prelude::*;

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{ROWS, by_rows, sigmoid, vectorised};

/// The operation is elementwise. Work is divided as if rows had this width, with [`ROWS`] rows to a task.
const WIDTH: usize = 64;

/// `silu(a) ⊙ b`.
pub(crate) fn swiglu(engine: Engine, a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
    match engine {
        Engine::Kernels => run(Arc::new(SwiGluOp), [a.into_dispatch(), b.into_dispatch()]),
        Engine::Tensors => activation::silu(a) * b,
    }
}

/// `h = silu(a) ⊙ b`.
pub(super) fn forward(a: &[f32], b: &[f32], h: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for ((h, a), b) in h.iter_mut().zip(a).zip(b) {
                *h = a * sigmoid(*a) * b;
            }
        },
    );
}

/// `da = dh b (σ + a σ (1 − σ))` and `db = dh a σ`. On entry `h` holds its gradient, on return `h` itself.
pub(super) fn backward(a: &[f32], b: &[f32], h: &mut [f32], grad_a: &mut [f32], grad_b: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            let inputs = a.iter().zip(b);
            for (((h, (a, b)), grad_a), grad_b) in h.iter_mut().zip(inputs).zip(grad_a).zip(grad_b) {
                let s = sigmoid(*a);
                let silu = a * s;
                *grad_a = *h * b * (s + silu * (1.0 - s));
                *grad_b = *h * silu;
                *h = silu * b;
            }
        },
    );
}

#[derive(Debug)]
struct SwiGluOp;

impl SliceOp for SwiGluOp {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let [a, b] = inputs else { unreachable!("two inputs") };
        let mut y = vec![0.0; a.data.len()];
        by_rows(&mut y, WIDTH, |first, y| {
            let numbers = first * WIDTH..first * WIDTH + y.len();
            forward(&a.data[numbers.clone()], &b.data[numbers], y);
        });
        Array { data: y, shape: a.shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let [a, b] = inputs else { unreachable!("two inputs") };
        let (mut grad_y, mut grad_a, mut grad_b) = (grad, vec![0.0; a.data.len()], vec![0.0; a.data.len()]);
        let size = ROWS * WIDTH;
        let inputs = a.data.par_chunks(size).zip(b.data.par_chunks(size)).zip(grad_y.par_chunks_mut(size));
        grad_a
            .par_chunks_mut(size)
            .zip(grad_b.par_chunks_mut(size))
            .zip(inputs)
            .for_each(|((grad_a, grad_b), ((a, b), grad))| backward(a, b, grad, grad_a, grad_b));
        vec![grad_a, grad_b]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::compare;

    #[test]
    fn swiglu_equals_its_tensor_operations() {
        for (count, width) in [(1, 70), (64, 64), (700, 70)] {
            compare(&[vec![count, width], vec![count, width]], |engine, inputs| {
                let [a, b] = [0, 1].map(|i| inputs[i].clone().reshape([count, width]).mul_scalar(3.0));
                vec![swiglu(engine, a, b).flatten(0, 1)]
            });
        }
    }
}
