//! Matrix products `y = x Wᵀ`.

use std::sync::Arc;

use burn::tensor::Tensor;
use falcon_kernels::mat::{Mat, MatMut, matmul_parallel};

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::few::{FEW, multiply_few};
use super::packed::{Matrix, products};

/// Multiplies `[tokens, in]` by the transpose of `[out, in]`, which gives `[tokens, out]`.
pub(crate) fn linear(engine: Engine, x: Tensor<2>, weight: Matrix) -> Tensor<2> {
    match (engine, weight) {
        (_, Matrix::Packed(packed)) => products(x, None, vec![packed]).remove(0),
        (Engine::Kernels, Matrix::Full(weight)) => {
            run(Arc::new(LinearOp), [x.into_dispatch(), weight.into_dispatch()])
        }
        (Engine::Tensors, Matrix::Full(weight)) => x.matmul(weight.transpose()),
    }
}

#[derive(Debug)]
struct LinearOp;

impl SliceOp for LinearOp {
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Array {
        let [x, weight] = inputs else { unreachable!("two inputs") };
        let ([tokens, width], outputs) = ([x.shape[0], x.shape[1]], weight.shape[0]);
        if tokens <= FEW && !tracked {
            let data = multiply_few(&[weight.into()], x.data).remove(0);
            return Array { data, shape: vec![tokens, outputs] };
        }
        let mut y = vec![0.0; tokens * outputs];
        matmul_parallel(
            MatMut::new(&mut y, outputs),
            0.0,
            Mat::new(x.data, width),
            Mat::new(weight.data, width).t(),
        );
        Array { data: y, shape: vec![tokens, outputs] }
    }

    /// `dx = dy W` and `dW = dyᵀ x`.
    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let [x, weight] = inputs else { unreachable!("two inputs") };
        let (width, outputs) = (x.shape[1], weight.shape[0]);
        let (mut grad_x, mut grad_weight) = (vec![0.0; x.data.len()], vec![0.0; weight.data.len()]);
        let grad = Mat::new(&grad, outputs);
        matmul_parallel(MatMut::new(&mut grad_x, width), 0.0, grad, Mat::new(weight.data, width));
        matmul_parallel(MatMut::new(&mut grad_weight, width), 0.0, grad.t(), Mat::new(x.data, width));
        vec![grad_x, grad_weight]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::compare;

    #[test]
    fn a_product_equals_its_tensor_operations() {
        let (inputs, outputs) = (24, 40);
        for tokens in [1, FEW, FEW + 1, 700] {
            compare(&[vec![tokens, inputs], vec![outputs, inputs]], |engine, given| {
                let x = given[0].clone().reshape([tokens, inputs]);
                let weight = given[1].clone().reshape([outputs, inputs]);
                vec![linear(engine, x, Matrix::Full(weight)).flatten(0, 1)]
            });
        }
    }
}
