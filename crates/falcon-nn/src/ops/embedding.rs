//! Rows of a matrix, and the sum of their gradients.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use rayon::prelude::*;

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{by_rows, vectorised};

/// The rows of `weight`, `[vocabulary, hidden]`, that `tokens` name.
pub(crate) fn embed(engine: Engine, weight: Tensor<2>, tokens: Tensor<1, Int>) -> Tensor<2> {
    match engine {
        Engine::Kernels => {
            let vocabulary = weight.dims()[0];
            let data = tokens.into_data();
            let row = |(t, token): (usize, i64)| {
                let row = usize::try_from(token).ok().filter(|row| *row < vocabulary);
                row.unwrap_or_else(|| panic!("token {t} is {token}, outside the vocabulary of {vocabulary}"))
            };
            let rows = data.iter::<i64>().enumerate().map(row).collect();
            run(Arc::new(Embed { rows }), [weight.into_dispatch()])
        }
        Engine::Tensors => weight.select(0, tokens),
    }
}

#[derive(Debug)]
struct Embed {
    rows: Vec<usize>,
}

/// Parts of the vocabulary whose gradients are summed up by themselves.
const PARTS: usize = 16;

impl SliceOp for Embed {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let (weight, width) = (inputs[0].data, inputs[0].shape[1]);
        let mut y = vec![0.0; self.rows.len() * width];
        by_rows(&mut y, width, |first, y| {
            for (y, row) in y.chunks_exact_mut(width).zip(&self.rows[first..]) {
                y.copy_from_slice(&weight[row * width..][..width]);
            }
        });
        Array { data: y, shape: vec![self.rows.len(), width] }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (vocabulary, width) = (inputs[0].shape[0], inputs[0].shape[1]);
        let mut sums = vec![0.0; vocabulary * width];
        let part = vocabulary.div_ceil(PARTS);
        // Each row is in one part, which adds to it in the order of tokens: threads do not change the sum.
        sums.par_chunks_mut(part * width).enumerate().for_each(|(index, sums)| {
            let rows = index * part..index * part + sums.len() / width;
            vectorised(
                #[inline(always)]
                || {
                    for (row, grad) in self.rows.iter().zip(grad.chunks_exact(width)) {
                        if rows.contains(row) {
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
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::ops::testing::compare;

    #[test]
    fn the_embedding_is_its_tensor_operations() {
        for (vocabulary, tokens) in [(1, 3), (7, 1), (50, 700)] {
            let width = 6;
            let rows: Vec<i32> = (0..tokens).map(|t| (t * t + 3 * t) % vocabulary).collect();
            compare(&[vec![vocabulary as usize, width]], |engine, inputs| {
                let ids = TensorData::new(rows.clone(), [rows.len()]);
                let ids = Tensor::from_data(ids, &Device::flex().autodiff());
                let weight = inputs[0].clone().reshape([vocabulary as usize, width]);
                vec![embed(engine, weight, ids).flatten(0, 1)]
            });
        }
    }

    #[test]
    #[should_panic(expected = "token 1 is 9, outside the vocabulary of 9")]
    fn tokens_outside_are_refused() {
        let device = Device::flex();
        embed(Engine::Kernels, Tensor::zeros([9, 2], &device), Tensor::from_data([8, 9], &device));
    }
}
