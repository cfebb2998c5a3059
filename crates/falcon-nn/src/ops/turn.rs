//! The rotation of rotary positions.
//!
//! ```text
//! (a, b) ↦ c (a cos − b sin, b cos + a sin)        the adjoint rotates by the opposite angle
//! ```

use std::sync::Arc;

use burn::tensor::Tensor;

use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{by_rows, vectorised};

/// Cosines and sines of the angles, `[tokens, dim / 2]` each.
#[derive(Debug)]
pub(crate) struct Angles {
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
}

/// On the CPU: rotates `[tokens, heads, dim]`, feature `i` together with feature `i + dim / 2`, and multiplies by
/// `scale`.
pub(crate) fn rotate(x: Tensor<3>, angles: Arc<Angles>, scale: f64) -> Tensor<3> {
    run(Arc::new(Rotation { angles, scale: scale as f32 }), [x.into_dispatch()])
}

#[derive(Debug)]
struct Rotation {
    angles: Arc<Angles>,
    scale: f32,
}

impl Rotation {
    /// Rotates and scales rows. `sign` is 1, or −1 for the adjoint, which rotates by the opposite angle.
    fn rotated(&self, x: &[f32], shape: &[usize], sign: f32) -> Vec<f32> {
        let (heads, dim) = (shape[1], shape[2]);
        let (half, width) = (dim / 2, heads * dim);
        assert_eq!(self.angles.cos.len(), shape[0] * half, "one angle for each token and pair of features");
        let mut y = vec![0.0; x.len()];
        by_rows(&mut y, width, |first, y| {
            let angles = self.angles.cos[first * half..]
                .chunks_exact(half)
                .zip(self.angles.sin[first * half..].chunks_exact(half));
            let tokens = y.chunks_exact_mut(width).zip(x[first * width..].chunks_exact(width)).zip(angles);
            vectorised(
                #[inline(always)]
                || {
                    for ((y, x), (cos, sin)) in tokens {
                        for (y, x) in y.chunks_exact_mut(dim).zip(x.chunks_exact(dim)) {
                            let ((y_a, y_b), (a, b)) = (y.split_at_mut(half), x.split_at(half));
                            for i in 0..half {
                                let (cos, sin) = (self.scale * cos[i], sign * self.scale * sin[i]);
                                y_a[i] = a[i] * cos - b[i] * sin;
                                y_b[i] = b[i] * cos + a[i] * sin;
                            }
                        }
                    }
                },
            );
        });
        y
    }
}

impl SliceOp for Rotation {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        Array { data: self.rotated(inputs[0].data, inputs[0].shape, 1.0), shape: inputs[0].shape.to_vec() }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        vec![self.rotated(&grad, inputs[0].shape, -1.0)]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use crate::ops::testing::compare;
    use crate::rotary::Rotary;
    use crate::sequences::Sequences;

    #[test]
    fn rotation_equals_its_tensor_operations() {
        for lengths in [&[1][..], &[3, 70]] {
            let sequences = Sequences::packed(lengths);
            let (tokens, heads, dim) = (sequences.tokens(), 3, 10);
            compare(&[vec![tokens, heads, dim]], |engine, inputs| {
                let device = Device::flex().autodiff();
                let rotary = Rotary::new(1e4, dim, &sequences, &vec![7; lengths.len()], engine, &device);
                vec![rotary.rotate(inputs[0].clone().reshape([tokens, heads, dim]), 0.3).flatten(0, 2)]
            });
        }
    }
}
