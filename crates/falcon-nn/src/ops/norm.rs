//! Normalisation over the last axis.
//!
//! ```text
//! y = x r ⊙ w        r = 1 / √(c Σ x² + ε)        c = 1 / width (RMS) or 1 (ℓ2)
//! dx = r (g − x r² c Σ g x)        g = dy ⊙ w        dw = Σ dy ⊙ x r
//! ```

use std::sync::Arc;

use burn::tensor::Tensor;

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{by_rows, dot, sum_by_rows, vectorised};

/// What becomes 1.
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
        (Engine::Kernels, None) => run(Arc::new(NormOp { norm, eps: eps as f32 }), [x.into_dispatch()]),
        (Engine::Kernels, Some(weight)) => {
            run(Arc::new(NormOp { norm, eps: eps as f32 }), [x.into_dispatch(), weight.into_dispatch()])
        }
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

#[derive(Debug)]
struct NormOp {
    norm: Norm,
    eps: f32,
}

impl NormOp {
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
}

impl SliceOp for NormOp {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let (x, weight) = (&inputs[0], inputs.get(1));
        let width = x.shape[x.shape.len() - 1];
        let mut y = vec![0.0; x.data.len()];
        by_rows(&mut y, width, |first, y| {
            vectorised(
                #[inline(always)]
                || {
                    for (y, x) in y.chunks_exact_mut(width).zip(x.data[first * width..].chunks_exact(width)) {
                        let r = self.scale(x);
                        match weight {
                            Some(w) => {
                                for ((y, x), w) in y.iter_mut().zip(x).zip(w.data) {
                                    *y = x * r * w;
                                }
                            }
                            None => y.iter_mut().zip(x).for_each(|(y, x)| *y = x * r),
                        }
                    }
                },
            );
        });
        Array { data: y, shape: x.shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: &[f32]) -> Vec<Vec<f32>> {
        let (x, weight) = (&inputs[0], inputs.get(1));
        let width = x.shape[x.shape.len() - 1];
        let c = self.c(width);
        let mut grad_x = vec![0.0; x.data.len()];
        by_rows(&mut grad_x, width, |first, grad_x| {
            vectorised(
                #[inline(always)]
                || {
                    let rows =
                        x.data[first * width..].chunks_exact(width).zip(grad[first * width..].chunks_exact(width));
                    for (grad_x, (x, grad)) in grad_x.chunks_exact_mut(width).zip(rows) {
                        let r = self.scale(x);
                        // g, in its place.
                        match weight {
                            Some(w) => {
                                for ((g, dy), w) in grad_x.iter_mut().zip(grad).zip(w.data) {
                                    *g = dy * w;
                                }
                            }
                            None => grad_x.copy_from_slice(grad),
                        }
                        let along = r * r * c * dot(grad_x, x);
                        for (g, x) in grad_x.iter_mut().zip(x) {
                            *g = r * (*g - x * along);
                        }
                    }
                },
            );
        });
        let grad_weight = weight.map(|_| {
            sum_by_rows(x.data.len() / width, width, |rows, sum| {
                vectorised(
                    #[inline(always)]
                    || {
                        let rows = rows.start * width..rows.end * width;
                        let (x, grad) = (&x.data[rows.clone()], &grad[rows]);
                        for (x, grad) in x.chunks_exact(width).zip(grad.chunks_exact(width)) {
                            let r = self.scale(x);
                            for ((sum, x), dy) in sum.iter_mut().zip(x).zip(grad) {
                                *sum += dy * x * r;
                            }
                        }
                    },
                );
            })
        });
        std::iter::once(grad_x).chain(grad_weight).collect()
    }
}
