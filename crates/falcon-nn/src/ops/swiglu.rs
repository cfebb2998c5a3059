//! `silu(a) ⊙ b`, with `silu(a) = a σ(a)`.

use std::sync::Arc;

use burn::tensor::{Tensor, activation};

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{ROWS, by_rows, sigmoid, vectorised};

/// Numbers of a task; rows do not matter here.
const WIDTH: usize = 64;

/// `silu(a) ⊙ b`.
pub(crate) fn swiglu(engine: Engine, a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
    match engine {
        Engine::Kernels => run(Arc::new(SwiGlu), [a.into_dispatch(), b.into_dispatch()]),
        Engine::Tensors => activation::silu(a) * b,
    }
}

#[derive(Debug)]
struct SwiGlu;

impl SliceOp for SwiGlu {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let [a, b] = inputs else { unreachable!("two inputs") };
        let mut y = vec![0.0; a.data.len()];
        by_rows(&mut y, WIDTH, |first, y| {
            vectorised(
                #[inline(always)]
                || {
                    let (a, b) = (&a.data[first * WIDTH..], &b.data[first * WIDTH..]);
                    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                        *y = a * sigmoid(*a) * b;
                    }
                },
            );
        });
        Array { data: y, shape: a.shape.to_vec() }
    }

    /// `da = dy b (σ + a σ (1 − σ))` and `db = dy a σ`.
    fn backward(&self, inputs: &[Slice<'_>], grad: &[f32]) -> Vec<Vec<f32>> {
        let [a, b] = inputs else { unreachable!("two inputs") };
        let (mut grad_a, mut grad_b) = (vec![0.0; grad.len()], vec![0.0; grad.len()]);
        let size = ROWS * WIDTH;
        use rayon::prelude::*;
        grad_a.par_chunks_mut(size).zip(grad_b.par_chunks_mut(size)).enumerate().for_each(
            |(block, (grad_a, grad_b))| {
                vectorised(
                    #[inline(always)]
                    || {
                        let start = block * size;
                        let inputs = a.data[start..].iter().zip(&b.data[start..]).zip(&grad[start..]);
                        for ((grad_a, grad_b), ((a, b), dy)) in grad_a.iter_mut().zip(grad_b).zip(inputs) {
                            let s = sigmoid(*a);
                            *grad_a = dy * b * s * (1.0 + a * (1.0 - s));
                            *grad_b = dy * a * s;
                        }
                    },
                );
            },
        );
        vec![grad_a, grad_b]
    }
}
