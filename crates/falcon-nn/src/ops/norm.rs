//! Normalisation over the last axis.
//!
//! ```text
//! y = x r ⊙ w        r = 1 / √(c Σ x² + ε)        c = 1 / width (RMS) or 1 (ℓ2)
//! dx = r (g − x r² c Σ g x)        g = dy ⊙ w        dw = Σ dy ⊙ x r
//! ```

use std::sync::Arc;

use burn::tensor::Tensor;

use super::Engine;
use super::blocks::{Buffers, by_blocks, rows};
use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{by_rows, dot, vectorised};

/// The quantity that is normalised to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// The mean square.
    Rms,
    /// The length.
    L2,
}

/// Normalises over the last axis, and multiplies by `weight` if there is one.
pub(crate) fn normalise<const D: usize>(
    engine: Engine,
    norm: Norm,
    x: Tensor<D>,
    weight: Option<Tensor<1>>,
    eps: f64,
) -> Tensor<D> {
    match (engine, weight) {
        (Engine::Kernels, None) => {
            run(Arc::new(NormOp(Normaliser { norm, eps: eps as f32 })), [x.into_dispatch()])
        }
        (Engine::Kernels, Some(weight)) => run(
            Arc::new(NormOp(Normaliser { norm, eps: eps as f32 })),
            [x.into_dispatch(), weight.into_dispatch()],
        ),
        (Engine::Tensors, weight) => {
            let square = x.clone().square();
            let energy = match norm {
                Norm::Rms => square.mean_dim(D - 1),
                Norm::L2 => square.sum_dim(D - 1),
            };
            let y = x * energy.add_scalar(eps).sqrt().recip();
            match weight {
                Some(weight) => y * weight.unsqueeze(),
                None => y,
            }
        }
    }
}

/// Normalises rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normaliser {
    pub norm: Norm,
    pub eps: f32,
}

impl Normaliser {
    fn c(&self, width: usize) -> f32 {
        match self.norm {
            Norm::Rms => 1.0 / width as f32,
            Norm::L2 => 1.0,
        }
    }

    #[inline(always)]
    fn scale(&self, x: &[f32]) -> f32 {
        (self.c(x.len()) * dot(x, x) + self.eps).sqrt().recip()
    }

    /// Computes `y` for rows of `width`.
    pub fn forward(&self, x: &[f32], weight: Option<&[f32]>, width: usize, y: &mut [f32]) {
        vectorised(
            #[inline(always)]
            || {
                for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    let r = self.scale(x);
                    match weight {
                        Some(w) => {
                            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                                *y = x * r * w;
                            }
                        }
                        None => y.iter_mut().zip(x).for_each(|(y, x)| *y = x * r),
                    }
                }
            },
        );
    }

    /// Replaces `dy` by `dx`, and adds to `dw`.
    pub fn backward(&self, x: &[f32], weight: Option<(&[f32], &mut [f32])>, width: usize, grad: &mut [f32]) {
        vectorised(
            #[inline(always)]
            || {
                let rows = grad.chunks_exact_mut(width).zip(x.chunks_exact(width));
                match weight {
                    Some((w, grad_w)) => {
                        for (grad, x) in rows {
                            let r = self.scale(x);
                            for (((g, x), w), dw) in grad.iter_mut().zip(x).zip(w).zip(&mut *grad_w) {
                                *dw += *g * x * r;
                                *g *= w;
                            }
                            self.through(r, x, grad);
                        }
                    }
                    None => rows.for_each(|(grad, x)| self.through(self.scale(x), x, grad)),
                }
            },
        );
    }

    /// Replaces `g` by `dx`.
    #[inline(always)]
    fn through(&self, r: f32, x: &[f32], g: &mut [f32]) {
        let along = r * r * self.c(x.len()) * dot(g, x);
        for (g, x) in g.iter_mut().zip(x) {
            *g = r * (*g - x * along);
        }
    }
}

#[derive(Debug)]
struct NormOp(Normaliser);

impl SliceOp for NormOp {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let (x, weight) = (&inputs[0], inputs.get(1));
        let width = x.shape[x.shape.len() - 1];
        let mut y = vec![0.0; x.data.len()];
        by_rows(&mut y, width, |first, y| {
            self.0.forward(&x.data[first * width..][..y.len()], weight.map(|w| w.data), width, y);
        });
        Array { data: y, shape: x.shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (x, weight) = (&inputs[0], inputs.get(1));
        let width = x.shape[x.shape.len() - 1];
        let mut grad_x = grad;
        let buffers = Buffers { out: vec![&mut grad_x], scratch: [], sums: weight.map_or(0, |_| width) };
        let (_, grad_weight) = by_blocks(x.data.len() / width, buffers, |mut block| {
            let x = rows(x.data, width, &block.rows);
            self.0.backward(x, weight.map(|w| (w.data, block.sums)), width, &mut *block.out[0]);
        });
        std::iter::once(grad_x).chain(weight.map(|_| grad_weight)).collect()
    }
}

/// An RMS norm: its weight, as wide as the pieces it normalises, and its ε.
pub(crate) type Rms = (Tensor<1>, f64);

/// The norm on slices.
pub(super) fn normaliser((_, eps): &Rms) -> Normaliser {
    Normaliser { norm: Norm::Rms, eps: *eps as f32 }
}

/// A norm and its weight.
pub(super) type Weighted<'a> = (Normaliser, &'a [f32]);

/// The normalised rows, computed in `scratch`; without a norm, the rows themselves.
pub(super) fn normed<'a>(norm: Option<Weighted<'_>>, x: &'a [f32], scratch: &'a mut [f32]) -> &'a [f32] {
    match norm {
        Some((norm, weight)) => {
            norm.forward(x, Some(weight), weight.len(), scratch);
            scratch
        }
        None => x,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::compare;

    #[test]
    fn norms_equal_their_tensor_operations() {
        let width = 24;
        for (count, norm) in [1, 64, 700].into_iter().flat_map(|count| [(count, Norm::Rms), (count, Norm::L2)]) {
            for weighted in [true, false] {
                compare(&[vec![count, width], vec![width]], |engine, inputs| {
                    let x = inputs[0].clone().reshape([count, width]);
                    let weight = weighted.then(|| inputs[1].clone());
                    vec![normalise(engine, norm, x, weight, 1e-6).flatten(0, 1)]
                });
            }
        }
    }
}
