//! Rotary positions: pairs of features turned by an angle that grows with the position.

use burn::tensor::{Device, Tensor, TensorData};

use crate::sequences::Sequences;

/// Cosines and sines for the tokens of one call; all layers share them.
#[derive(Clone, Debug)]
pub(crate) struct Rotary {
    /// `[tokens, 1, dim / 2]`.
    cos: Tensor<3>,
    sin: Tensor<3>,
}

impl Rotary {
    /// For sequences of which `start` tokens each have been before.
    pub fn new(theta: f64, dim: usize, sequences: &Sequences, start: &[usize], device: &Device) -> Self {
        let half = dim / 2;
        let frequencies: Vec<f64> = (0..half).map(|i| theta.powf(-(i as f64) / half as f64)).collect();
        let positions = sequences.lengths().zip(start).flat_map(|(length, start)| *start..start + length);
        let angles: Vec<f64> = positions.flat_map(|t| frequencies.iter().map(move |f| t as f64 * f)).collect();
        let tensor = |f: fn(f64) -> f64| {
            let data: Vec<f32> = angles.iter().map(|angle| f(*angle) as f32).collect();
            Tensor::from_data(TensorData::new(data, [sequences.tokens(), 1, half]), device)
        };
        Self { cos: tensor(f64::cos), sin: tensor(f64::sin) }
    }

    /// Turns `[tokens, heads, dim]`; feature `i` goes with feature `i + dim / 2`.
    pub fn turn(&self, x: Tensor<3>) -> Tensor<3> {
        let [tokens, heads, dim] = x.dims();
        let half = dim / 2;
        let [a, b] = [0, half].map(|start| x.clone().slice([0..tokens, 0..heads, start..start + half]));
        let (cos, sin) = (self.cos.clone(), self.sin.clone());
        let turned = [a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
        Tensor::cat(turned.to_vec(), 2)
    }
}
