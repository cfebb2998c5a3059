//! Rotary positions: pairs of features are rotated by an angle that grows with the position.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

use crate::ops::Engine;
use crate::ops::turn::{Angles, rotate};
use crate::sequences::Sequences;

/// Cosines and sines for the tokens of one call, shared by all layers.
#[derive(Clone, Debug)]
pub(crate) enum Rotary {
    /// For [`Engine::Kernels`].
    Kernels(Arc<Angles>),
    /// For [`Engine::Tensors`]: cosines and sines, `[tokens, 1, dim / 2]` each.
    Tensors(Box<[Tensor<3>; 2]>),
}

impl Rotary {
    /// The rotations for the tokens of a call. `start` is the number of tokens that each sequence had before the call.
    pub fn new(
        theta: f64,
        dim: usize,
        sequences: &Sequences,
        start: &[usize],
        engine: Engine,
        device: &Device,
    ) -> Self {
        let half = dim / 2;
        let frequencies: Vec<f64> = (0..half).map(|i| theta.powf(-(i as f64) / half as f64)).collect();
        let positions = sequences.lengths().zip(start).flat_map(|(length, start)| *start..start + length);
        let angles: Vec<f64> = positions.flat_map(|t| frequencies.iter().map(move |f| t as f64 * f)).collect();
        let numbers = |f: fn(f64) -> f64| -> Vec<f32> { angles.iter().map(|angle| f(*angle) as f32).collect() };
        let (cos, sin) = (numbers(f64::cos), numbers(f64::sin));
        match engine {
            Engine::Kernels => Self::Kernels(Arc::new(Angles { cos, sin })),
            Engine::Tensors => {
                let tensor =
                    |data| Tensor::from_data(TensorData::new(data, [sequences.tokens(), 1, half]), device);
                Self::Tensors(Box::new([cos, sin].map(tensor)))
            }
        }
    }

    /// Rotates `[tokens, heads, dim]`, feature `i` together with feature `i + dim / 2`, and multiplies by `scale`.
    pub fn rotate(&self, x: Tensor<3>, scale: f64) -> Tensor<3> {
        let (cos, sin) = match self {
            Self::Kernels(angles) => return rotate(x, angles.clone(), scale),
            Self::Tensors(tensors) => (tensors[0].clone(), tensors[1].clone()),
        };
        let [tokens, heads, dim] = x.dims();
        let half = dim / 2;
        let [a, b] = [0, half].map(|start| x.clone().slice([0..tokens, 0..heads, start..start + half]));
        let rotated = [a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
        let rotated = Tensor::cat(rotated.to_vec(), 2);
        if scale == 1.0 { rotated } else { rotated.mul_scalar(scale) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores of rotated features depend on the distance between their tokens, not on where the sequence starts.
    #[test]
    fn scores_depend_on_the_distance() {
        let (theta, time, dim) = (100.0, 9, 4);
        let device = Device::flex();
        // One feature of every token, rotated.
        let rotated = |engine, start: usize, feature: usize| -> Vec<f32> {
            let rotary = Rotary::new(theta, dim, &Sequences::uniform(1, time), &[start], engine, &device);
            let data = (0..time * dim).map(|i| if i % dim == feature { 1.0f32 } else { 0.0 }).collect();
            let x = Tensor::from_data(TensorData::new(data, [time, 1, dim]), &device);
            rotary.rotate(x, 1.0).into_data().try_into_vec().unwrap()
        };
        for (engine, start) in [Engine::Kernels, Engine::Tensors]
            .into_iter()
            .flat_map(|engine| [0, 1000].map(|start| (engine, start)))
        {
            let features: Vec<_> = (0..dim).map(|feature| rotated(engine, start, feature)).collect();
            for (t, s) in (0..time).flat_map(|t| (0..time).map(move |s| (t, s))) {
                let score = |q: usize, k: usize| -> f64 {
                    let (q, k) = (&features[q][t * dim..][..dim], &features[k][s * dim..][..dim]);
                    q.iter().zip(k).map(|(q, k)| f64::from(q * k)).sum()
                };
                for i in 0..dim / 2 {
                    let angle = (t as f64 - s as f64) * theta.powf(-(i as f64) / 2.0);
                    let (a, b) = (i, i + dim / 2);
                    for (got, expected) in
                        [(score(a, a), angle.cos()), (score(b, b), angle.cos()), (score(a, b), angle.sin())]
                    {
                        assert!((got - expected).abs() < 1e-6, "{engine:?}, {t} and {s}: {got}, not {expected}");
                    }
                    assert_eq!(score(a, 1 - i), 0.0, "features of different pairs are not mixed");
                }
            }
        }
    }
}
