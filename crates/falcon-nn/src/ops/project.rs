//! The matrix products at both ends of a mixer: [`project`] multiplies the normalised input by several matrices, and
//! [`join`] multiplies the output by one matrix and adds it to the residual stream.
//!
//! ```text
//! n = norm(x)    y_i = W_i n        dn = Σ_i W_iᵀ dy_i    dW_i = Σ dy_i nᵀ
//! m = norm(r)    y = x + W m        dm = Wᵀ dy            dW = Σ dy mᵀ
//! ```

use std::sync::Arc;

use burn::tensor::Tensor;
use falcon_kernels::mat::{Mat, MatMut};

use super::Engine;
use super::blocks::{Buffers, Weight, by_blocks, rows};
use super::bridge::{Array, ManyOp, Slice, SliceOp, run, run_many};
use super::few::{FEW, RowMatrix, multiply_few};
use super::norm::{Norm, Normaliser, Rms, Weighted, normalise, normaliser, normed};
use super::packed::{Matrix, products};

/// Multiplies `norm(x)`, or `x` if there is no norm, `[tokens, hidden]`, by matrices `[width, hidden]`; the products
/// are `[tokens, width]` each.
pub(crate) fn project(engine: Engine, x: Tensor<2>, norm: Option<Rms>, weights: Vec<Matrix>) -> Vec<Tensor<2>> {
    let weights = match Matrix::unzip(weights) {
        Ok(weights) => weights,
        Err(packed) => return products(x, norm, packed),
    };
    match engine {
        Engine::Kernels => {
            let op = ProjectOp { norm: norm.as_ref().map(normaliser) };
            let first = [Some(x.into_dispatch()), norm.map(|(weight, _)| weight.into_dispatch())];
            let inputs = first.into_iter().flatten().chain(weights.into_iter().map(Tensor::into_dispatch));
            run_many(Arc::new(op), inputs.collect()).into_iter().map(Tensor::from_dispatch).collect()
        }
        Engine::Tensors => {
            let n = norm_rows(engine, x, norm);
            weights.into_iter().map(|weight| n.clone().matmul(weight.transpose())).collect()
        }
    }
}

/// `x + W norm(read)` for `read` `[tokens, width]`, or `W norm(read)` without `x`. The norm is applied to pieces as
/// wide as its weight.
pub(crate) fn join(
    engine: Engine,
    read: Tensor<2>,
    norm: Option<Rms>,
    weight: Matrix,
    x: Option<Tensor<2>>,
) -> Tensor<2> {
    let weight = match weight {
        Matrix::Full(weight) => weight,
        Matrix::Packed(packed) => {
            let y = products(read, norm, vec![packed]).remove(0);
            return match x {
                Some(x) => x + y,
                None => y,
            };
        }
    };
    match engine {
        Engine::Kernels => {
            let op = Arc::new(JoinOp { norm: norm.as_ref().map(normaliser) });
            let (read, weight) = (read.into_dispatch(), weight.into_dispatch());
            match (norm.map(|(weight, _)| weight.into_dispatch()), x.map(Tensor::into_dispatch)) {
                (None, None) => run(op, [read, weight]),
                (Some(norm), None) => run(op, [read, weight, norm]),
                (None, Some(x)) => run(op, [read, weight, x]),
                (Some(norm), Some(x)) => run(op, [read, weight, norm, x]),
            }
        }
        Engine::Tensors => {
            let y = norm_rows(engine, read, norm).matmul(weight.transpose());
            match x {
                Some(x) => x + y,
                None => y,
            }
        }
    }
}

fn norm_rows(engine: Engine, x: Tensor<2>, norm: Option<Rms>) -> Tensor<2> {
    let Some((weight, eps)) = norm else { return x };
    let ([tokens, width], [piece]) = (x.dims(), weight.dims());
    let x = x.reshape([tokens, width / piece, piece]);
    normalise(engine, Norm::Rms, x, Some(weight), eps).reshape([tokens, width])
}

/// The inputs are `x`, the weight of the norm if there is one, and the matrices.
#[derive(Debug)]
struct ProjectOp {
    norm: Option<Normaliser>,
}

impl ProjectOp {
    fn parts<'a>(&self, inputs: &'a [Slice<'a>]) -> (&'a Slice<'a>, Option<Weighted<'a>>, &'a [Slice<'a>]) {
        let (x, rest) = inputs.split_first().expect("an input");
        match self.norm {
            Some(norm) => (x, Some((norm, rest[0].data)), &rest[1..]),
            None => (x, None, rest),
        }
    }
}

impl ManyOp for ProjectOp {
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Vec<Array> {
        let (x, norm, matrices) = self.parts(inputs);
        let [tokens, hidden] = [x.shape[0], x.shape[1]];
        if tokens <= FEW && !tracked {
            let mut scratch = vec![0.0; x.data.len()];
            let n = normed(norm, x.data, &mut scratch);
            let outputs = multiply_few(&matrices.iter().map(RowMatrix::from).collect::<Vec<_>>(), n);
            let arrays = outputs.into_iter().zip(matrices);
            return arrays.map(|(data, weight)| Array { data, shape: vec![tokens, weight.shape[0]] }).collect();
        }
        let weights: Vec<_> = matrices.iter().map(|weight| Weight::new(weight, tokens)).collect();
        let mut outputs: Vec<_> = matrices.iter().map(|weight| vec![0.0; tokens * weight.shape[0]]).collect();
        let buffers =
            Buffers { out: outputs.iter_mut().map(|y| &mut y[..]).collect(), scratch: [hidden], sums: 0 };
        by_blocks(tokens, buffers, |block| {
            let [scratch] = block.scratch;
            let n = normed(norm, rows(x.data, hidden, &block.rows), scratch);
            for (y, weight) in block.out.into_iter().zip(&weights) {
                (block.product)(MatMut::new(y, weight.outputs()), 0.0, Mat::new(n, hidden), weight.t());
            }
        });
        let arrays = outputs.into_iter().zip(matrices);
        arrays.map(|(data, weight)| Array { data, shape: vec![tokens, weight.shape[0]] }).collect()
    }

    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        let (x, norm, matrices) = self.parts(inputs);
        let [tokens, hidden] = [x.shape[0], x.shape[1]];
        let norms = norm.map_or(0, |_| hidden);
        let sizes = matrices.iter().map(|weight| weight.data.len());
        let mut grad_x = vec![0.0; x.data.len()];
        let buffers =
            Buffers { out: vec![&mut grad_x], scratch: [hidden], sums: norms + sizes.clone().sum::<usize>() };
        let (_, mut sums) = by_blocks(tokens, buffers, |mut block| {
            let ([scratch], grad_n, product) = (block.scratch, &mut *block.out[0], block.product);
            let x = rows(x.data, hidden, &block.rows);
            let n = normed(norm, x, scratch);
            let (grad_norm, mut rest) = block.sums.split_at_mut(norms);
            let mut keep = 0.0;
            for (weight, grad) in matrices.iter().zip(&grads) {
                let (grad_weight, after) = std::mem::take(&mut rest).split_at_mut(weight.data.len());
                rest = after;
                let Some(grad) = grad else { continue };
                let width = weight.shape[0];
                let grad = Mat::new(rows(grad, width, &block.rows), width);
                product(MatMut::new(grad_n, hidden), keep, grad, Mat::new(weight.data, hidden));
                product(MatMut::new(grad_weight, hidden), 1.0, grad.t(), Mat::new(n, hidden));
                keep = 1.0;
            }
            if let Some((norm, weight)) = norm {
                norm.backward(x, Some((weight, grad_norm)), hidden, grad_n);
            }
        });
        let mut found: Vec<Vec<f32>> = Vec::new();
        for size in sizes.rev() {
            found.push(sums.split_off(sums.len() - size));
        }
        found.extend(norm.map(|_| sums));
        found.push(grad_x);
        found.reverse();
        found
    }
}

/// The inputs are `read`, the matrix, the weight of the norm if there is one, and `x` if there is a residual stream.
#[derive(Debug)]
struct JoinOp {
    norm: Option<Normaliser>,
}

impl JoinOp {
    fn norm<'a>(&self, inputs: &[Slice<'a>]) -> Option<Weighted<'a>> {
        self.norm.map(|norm| (norm, inputs[2].data))
    }

    fn residual<'a, 'b>(&self, inputs: &'b [Slice<'a>]) -> Option<&'b Slice<'a>> {
        inputs.get(2 + usize::from(self.norm.is_some()))
    }
}

impl SliceOp for JoinOp {
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Array {
        let (read, norm, residual) = (&inputs[0], self.norm(inputs), self.residual(inputs));
        let ([tokens, width], hidden) = ([read.shape[0], read.shape[1]], inputs[1].shape[0]);
        if tokens <= FEW && !tracked {
            let mut scratch = vec![0.0; read.data.len()];
            let m = normed(norm, read.data, &mut scratch);
            let mut data = multiply_few(&[(&inputs[1]).into()], m).remove(0);
            if let Some(x) = residual {
                data.iter_mut().zip(x.data).for_each(|(y, x)| *y += x);
            }
            return Array { data, shape: vec![tokens, hidden] };
        }
        let weight = Weight::new(&inputs[1], tokens);
        let (mut y, keep) = match residual {
            Some(x) => (x.data.to_vec(), 1.0),
            None => (vec![0.0; tokens * hidden], 0.0),
        };
        by_blocks(tokens, Buffers { out: vec![&mut y], scratch: [width], sums: 0 }, |mut block| {
            let [scratch] = block.scratch;
            let m = normed(norm, rows(read.data, width, &block.rows), scratch);
            (block.product)(MatMut::new(&mut *block.out[0], hidden), keep, Mat::new(m, width), weight.t());
        });
        Array { data: y, shape: vec![tokens, hidden] }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (read, weight, norm) = (&inputs[0], &inputs[1], self.norm(inputs));
        let ([tokens, width], hidden) = ([read.shape[0], read.shape[1]], weight.shape[0]);
        let mut grad_read = vec![0.0; read.data.len()];
        let sums = weight.data.len() + norm.map_or(0, |(_, weight)| weight.len());
        let buffers = Buffers { out: vec![&mut grad_read], scratch: [width], sums };
        let (_, mut sums) = by_blocks(tokens, buffers, |mut block| {
            let ([scratch], grad_read, product) = (block.scratch, &mut *block.out[0], block.product);
            let read = rows(read.data, width, &block.rows);
            let grad = Mat::new(rows(&grad, hidden, &block.rows), hidden);
            let m = normed(norm, read, scratch);
            let (grad_weight, grad_norm) = block.sums.split_at_mut(weight.data.len());
            product(MatMut::new(grad_read, width), 0.0, grad, Mat::new(weight.data, width));
            product(MatMut::new(grad_weight, width), 1.0, grad.t(), Mat::new(m, width));
            if let Some((norm, weight)) = norm {
                norm.backward(read, Some((weight, grad_norm)), weight.len(), grad_read);
            }
        });
        let grad_norm = sums.split_off(weight.data.len());
        let rest = [norm.map(|_| grad_norm), self.residual(inputs).map(|_| grad)];
        [grad_read, sums].into_iter().chain(rest.into_iter().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::compare;

    #[test]
    fn projections_equal_their_tensor_operations() {
        let hidden = 24;
        for (tokens, normed) in [(1, true), (5, false), (FEW, true), (FEW + 1, true), (700, true), (515, false)] {
            let shapes = [vec![tokens, hidden], vec![hidden], vec![40, hidden], vec![3, hidden], vec![8, hidden]];
            compare(&shapes, |engine, inputs| {
                let x = inputs[0].clone().reshape([tokens, hidden]);
                let norm = normed.then(|| (inputs[1].clone(), 1e-6));
                let weights = inputs[2..].iter().zip(&shapes[2..]);
                let weights =
                    weights.map(|(weight, shape)| Matrix::Full(weight.clone().reshape([shape[0], shape[1]])));
                let mut outputs = project(engine, x, norm, weights.collect());
                // The gradient must be right even if the loss does not depend on one of the outputs.
                outputs.remove(1);
                outputs.into_iter().map(|y| y.flatten(0, 1)).collect()
            });
        }
    }

    #[test]
    fn joining_equals_its_tensor_operations() {
        let (heads, piece, hidden) = (3, 8, 20);
        for (tokens, normed, added) in [
            (1, true, true),
            (5, false, true),
            (FEW, true, true),
            (700, true, true),
            (515, true, false),
            (6, false, false),
        ] {
            let shapes =
                [vec![tokens, heads * piece], vec![hidden, heads * piece], vec![piece], vec![tokens, hidden]];
            compare(&shapes, |engine, inputs| {
                let read = inputs[0].clone().reshape([tokens, heads * piece]);
                let weight = inputs[1].clone().reshape([hidden, heads * piece]);
                let norm = normed.then(|| (inputs[2].clone(), 1e-6));
                let x = added.then(|| inputs[3].clone().reshape([tokens, hidden]));
                vec![join(engine, read, norm, Matrix::Full(weight), x).flatten(0, 1)]
            });
        }
    }
}
