//! The embedding: each token selects a row of a matrix, and the gradient of a row is summed over its tokens.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::packed::Matrix;
use super::slices::{by_rows, vectorised};

/// The rows of `weight`, `[vocabulary, hidden]`, that the `tokens` select.
pub(crate) fn embed(engine: Engine, weight: Matrix, tokens: &[u32], device: &Device) -> Tensor<2> {
    let vocabulary = weight.outputs();
    if let Some((t, token)) = tokens.iter().enumerate().find(|(_, token)| **token as usize >= vocabulary) {
        panic!("token {t} is {token}, outside the vocabulary of {vocabulary}");
    }
    match (engine, weight) {
        (_, Matrix::Packed(packed)) => {
            let width = packed.inputs();
            let mut rows = vec![0.0; tokens.len() * width];
            for (row, token) in rows.chunks_exact_mut(width).zip(tokens) {
                packed.unpack(*token as usize, row);
            }
            Tensor::from_data(TensorData::new(rows, [tokens.len(), width]), device)
        }
        (Engine::Kernels, Matrix::Full(weight)) => {
            run(Arc::new(Embed { tokens: tokens.to_vec() }), [weight.into_dispatch()])
        }
        (Engine::Tensors, Matrix::Full(weight)) => {
            let rows: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
            let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [tokens.len()]), device);
            weight.select(0, rows)
        }
    }
}

#[derive(Debug)]
struct Embed {
    tokens: Vec<u32>,
}

/// Number of parts of the vocabulary. The gradients of each part are summed by one task.
const PARTS: usize = 16;

impl SliceOp for Embed {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let (weight, width) = (inputs[0].data, inputs[0].shape[1]);
        let mut y = vec![0.0; self.tokens.len() * width];
        by_rows(&mut y, width, |first, y| {
            for (y, token) in y.chunks_exact_mut(width).zip(&self.tokens[first..]) {
                y.copy_from_slice(&weight[*token as usize * width..][..width]);
            }
        });
        Array { data: y, shape: vec![self.tokens.len(), width] }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (vocabulary, width) = (inputs[0].shape[0], inputs[0].shape[1]);
        let mut sums = vec![0.0; vocabulary * width];
        let part = vocabulary.div_ceil(PARTS);
        // Each row belongs to one part and is summed in the order of the tokens, so threads do not change the sum.
        sums.par_chunks_mut(part * width).enumerate().for_each(|(index, sums)| {
            let rows = index * part..index * part + sums.len() / width;
            vectorised(
                #[inline(always)]
                || {
                    for (token, grad) in self.tokens.iter().zip(grad.chunks_exact(width)) {
                        let row = *token as usize;
                        if rows.contains(&row) {
                            let sum = &mut sums[(row - rows.start) * width..][..width];
                            sum.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += grad);
                        }
                    }
                },
            );
        });
        vec![sums]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::compare;

    #[test]
    fn the_embedding_equals_its_tensor_operations() {
        for (vocabulary, tokens) in [(1, 3), (7, 1), (50, 700)] {
            let width = 6;
            let rows: Vec<u32> = (0..tokens).map(|t| (t * t + 3 * t) % vocabulary).collect();
            compare(&[vec![vocabulary as usize, width]], |engine, inputs| {
                let weight = inputs[0].clone().reshape([vocabulary as usize, width]);
                let device = weight.device();
                vec![embed(engine, Matrix::Full(weight), &rows, &device).flatten(0, 1)]
            });
        }
    }

    #[test]
    #[should_panic(expected = "token 1 is 9, outside the vocabulary of 9")]
    fn tokens_outside_are_refused() {
        let device = Device::flex();
        embed(Engine::Kernels, Matrix::Full(Tensor::zeros([9, 2], &device)), &[8, 9], &device);
    }
}
