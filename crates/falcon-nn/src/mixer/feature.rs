//! Normalisation and feature map of queries and keys.

use burn::tensor::{Tensor, activation};

use crate::config::{FeatureMap, MixerConfig, QkNorm};
use crate::ops::Engine;
use crate::ops::norm::{Norm, normalise};
use crate::rotary::Rotary;

#[derive(Clone, Debug)]
pub(crate) struct Feature {
    norm: QkNorm,
    map: FeatureMap,
    value_norm: bool,
    query_scale: Option<f64>,
    eps: f64,
    engine: Engine,
}

impl Feature {
    pub fn new(config: &MixerConfig, engine: Engine) -> Self {
        let scaled = config.scale_queries || config.is_softmax();
        Self {
            norm: config.qk_norm,
            map: config.feature_map,
            value_norm: config.value_norm,
            query_scale: scaled.then(|| (config.head_dim as f64).sqrt().recip()),
            eps: config.norm_eps,
            engine,
        }
    }

    /// `[tokens, heads, dim]` each.
    pub fn forward(
        &self,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
        rotary: Option<&Rotary>,
    ) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
        let [q, k] = [(q, self.query_scale), (k, None)].map(|(x, scale)| {
            let x = match self.norm {
                QkNorm::None => x,
                QkNorm::Rms => normalise(self.engine, Norm::Rms, x, None, self.eps),
                QkNorm::L2 => normalise(self.engine, Norm::L2, x, None, self.eps),
            };
            // Turning can scale as well, if nothing comes between.
            let (turned_scale, scale) = if self.map == FeatureMap::Identity && rotary.is_some() {
                (scale.unwrap_or(1.0), None)
            } else {
                (1.0, scale)
            };
            let x = match rotary {
                Some(rotary) => rotary.turn(x, turned_scale),
                None => x,
            };
            let x = match self.map {
                FeatureMap::Identity => x,
                // Not eˣ − 1 + 1, which loses small numbers; nor eˣ where x is large, whose gradient would be 0 · ∞.
                FeatureMap::EluPlusOne => x.clone().clamp_max(0.0).exp() + activation::relu(x),
                FeatureMap::Relu => activation::relu(x),
                FeatureMap::SquaredRelu => activation::relu(x).square(),
                FeatureMap::Silu => activation::silu(x),
            };
            match scale {
                Some(scale) => x.mul_scalar(scale),
                None => x,
            }
        });
        let v = if self.value_norm { normalise(self.engine, Norm::Rms, v, None, self.eps) } else { v };
        (q, k, v)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// `ELU + 1` of what is far from zero: positive, and with a gradient that is a number.
    #[test]
    fn a_positive_feature_stays_so() {
        let config = MixerConfig::preset("linear-attention", 4, 1).unwrap();
        let device = Device::flex().autodiff();
        let feature = Feature::new(&config, Engine::of(&device));
        let k = Tensor::<3>::from_data([[[-30.0, -1.0, 0.5, 200.0]]], &device).require_grad();
        let q = Tensor::<3>::zeros([1, 1, 4], &device);
        let (_, mapped, _) = feature.forward(q.clone(), k.clone(), q, None);
        let grads = mapped.clone().sum().backward();
        let numbers = |x: Tensor<3>| -> Vec<f32> { x.into_data().try_into_vec().unwrap() };
        let expected = [(-30.0f32).exp(), (-1.0f32).exp(), 1.5, 201.0];
        let close = |got: Vec<f32>, expected: [f32; 4]| {
            got.iter().zip(expected).all(|(got, expected)| (got / expected - 1.0).abs() < 1e-6)
        };
        assert!(close(numbers(mapped.clone()), expected), "{mapped}");
        let grad = k.grad(&grads).unwrap();
        assert!(close(numbers(grad.clone()), [(-30.0f32).exp(), (-1.0f32).exp(), 1.0, 1.0]), "{grad}");
    }
}
