//! Prepares queries and keys (normalisation, rotation, feature map, scale), and values (normalisation).

use burn::tensor::{Tensor, activation};

use crate::config::MixerConfig;
use crate::context::Context;
use crate::ops::norm::{Norm, normalise};
use crate::options::{FeatureMap, QkNorm};

#[derive(Clone, Debug)]
pub(crate) struct Feature {
    norm: QkNorm,
    map: FeatureMap,
    value_norm: bool,
    query_scale: Option<f64>,
    eps: f64,
}

impl Feature {
    pub fn new(config: &MixerConfig) -> Self {
        let scaled = config.scale_queries || config.mixer.attends();
        Self {
            norm: config.qk_norm,
            map: config.feature_map,
            value_norm: config.value_norm,
            query_scale: scaled.then(|| (config.head_dim as f64).sqrt().recip()),
            eps: config.norm_eps,
        }
    }

    /// The prepared queries, keys and values, `[tokens, heads, dim]` each. Steps that the configuration does not have
    /// are left out.
    pub fn forward(
        &self,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
        context: &Context<'_, '_>,
    ) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
        let (engine, rotary) = (context.engine, context.rotary.as_ref());
        let [q, k] = [(q, self.query_scale), (k, None)].map(|(x, scale)| {
            let x = match self.norm {
                QkNorm::None => x,
                QkNorm::Rms => normalise(engine, Norm::Rms, x, None, self.eps),
                QkNorm::L2 => normalise(engine, Norm::L2, x, None, self.eps),
            };
            // The rotation also applies the scale, in the same pass, if no feature map comes between the two.
            let (rotation_scale, scale) = if self.map == FeatureMap::Identity && rotary.is_some() {
                (scale.unwrap_or(1.0), None)
            } else {
                (1.0, scale)
            };
            let x = match rotary {
                Some(rotary) => rotary.rotate(x, rotation_scale),
                None => x,
            };
            let x = match self.map {
                FeatureMap::Identity => x,
                // Computed as exp(min(x, 0)) + relu(x). eˣ − 1 + 1 would round small results to 0, and with eˣ of a
                // large x the gradient would be 0 · ∞.
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
        let v = if self.value_norm { normalise(engine, Norm::Rms, v, None, self.eps) } else { v };
        (q, k, v)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::ops::Engine;
    use crate::probe::Probe;
    use crate::sequences::Sequences;

    /// Far from zero, `ELU + 1` and its gradient are accurate: small results are not 0, and no gradient is NaN.
    #[test]
    fn elu_plus_one_is_accurate_far_from_zero() {
        let config = MixerConfig::preset("linear-attention", 4, 1).unwrap();
        let device = Device::flex().autodiff();
        let feature = Feature::new(&config);
        let (engine, sequences) = (Engine::of(&device), Sequences::uniform(1, 1));
        let context = Context { engine, sequences: &sequences, rotary: None, probe: &mut Probe::none() };
        let k = Tensor::<3>::from_data([[[-30.0, -1.0, 0.5, 200.0]]], &device).require_grad();
        let q = Tensor::<3>::zeros([1, 1, 4], &device);
        let (_, mapped, _) = feature.forward(q.clone(), k.clone(), q, &context);
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
