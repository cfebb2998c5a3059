//! Initial values of parameters, determined by the seed and independent of the device.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

use crate::config::{ConfigError, ModelConfig};
use crate::ops::Engine;
use crate::options::MatrixInit;

/// Makes the parameters of a layer or a model.
pub struct Init {
    /// None if all numbers will be replaced by those of a file.
    rng: Option<ChaCha12Rng>,
    device: Device,
    engine: Engine,
    deviation: Deviation,
    /// The index of the layer that is being made, and the number of layers.
    place: (usize, usize),
}

/// Standard deviations of matrices; see [`MatrixInit`].
#[derive(Clone, Copy)]
enum Deviation {
    FanIn { branches: usize },
    HalfWidth { width: usize, layers: usize },
}

impl Init {
    /// Parameters on `device`, determined by `seed`.
    pub fn new(seed: u64, device: &Device) -> Self {
        Self {
            rng: Some(ChaCha12Rng::seed_from_u64(seed)),
            device: device.clone(),
            engine: Engine::of(device),
            deviation: Deviation::FanIn { branches: 1 },
            place: (0, 1),
        }
    }

    /// Zeros instead of random numbers, for parameters that will be read from a file. They take memory only once they
    /// are asked for, because packed matrices replace theirs before.
    pub(crate) fn blank(self) -> Self {
        Self { rng: None, ..self }
    }

    /// Uses the standard deviations of a whole model for the matrices that follow.
    pub(crate) fn model(self, config: &ModelConfig) -> Self {
        let layers = config.num_hidden_layers.max(1);
        let deviation = match config.matrix_init {
            MatrixInit::FanIn => {
                Deviation::FanIn { branches: layers * if config.intermediate_size > 0 { 2 } else { 1 } }
            }
            MatrixInit::HalfWidth => Deviation::HalfWidth { width: config.hidden_size, layers },
        };
        Self { deviation, ..self }
    }

    /// The parameters that follow belong to layer `layer` of `layers`, counted from 0.
    pub(crate) fn enter_layer(&mut self, layer: usize, layers: usize) {
        self.place = (layer, layers);
    }

    /// The index of the layer that is being made, counted from 0, and the number of layers.
    pub(crate) fn place(&self) -> (usize, usize) {
        self.place
    }

    /// Makes layers compute with `engine` instead of the fastest one of the device.
    pub fn engine(self, engine: Engine) -> Self {
        Self { engine, ..self }
    }

    /// The engine, or an error if the device does not have it.
    pub(crate) fn checked_engine(&self) -> Result<Engine, ConfigError> {
        check(self.engine, Engine::of(&self.device))
    }

    /// Independent normal numbers with mean 0.
    pub(crate) fn normal<const D: usize>(&mut self, shape: [usize; D], std: f64) -> Param<Tensor<D>> {
        let Some(rng) = &mut self.rng else { return self.zeros(shape) };
        let count = shape.iter().product();
        let data = (0..count).map(|_| (rng.sample::<f64, _>(StandardNormal) * std) as f32).collect();
        self.tensor(data, shape)
    }

    /// A matrix `[out, in]` inside a block.
    pub(crate) fn matrix(&mut self, out: usize, inputs: usize) -> Param<Tensor<2>> {
        self.normal([out, inputs], self.deviation.inner(inputs))
    }

    /// A matrix `[out, in]` that ends a residual branch.
    pub(crate) fn last_matrix(&mut self, out: usize, inputs: usize) -> Param<Tensor<2>> {
        self.normal([out, inputs], self.deviation.last(inputs))
    }

    /// `f` of independent uniform numbers in `[0, 1)`.
    pub(crate) fn uniform<const D: usize>(
        &mut self,
        shape: [usize; D],
        f: impl Fn(f64) -> f64,
    ) -> Param<Tensor<D>> {
        let Some(rng) = &mut self.rng else { return self.zeros(shape) };
        let data = (0..shape.iter().product()).map(|_| f(rng.random::<f64>()) as f32).collect();
        self.tensor(data, shape)
    }

    /// The given numbers.
    pub(crate) fn values(&self, values: impl Iterator<Item = f64>) -> Param<Tensor<1>> {
        let data: Vec<_> = values.map(|x| x as f32).collect();
        let count = data.len();
        self.tensor(data, [count])
    }

    /// Zeros that are made when they are first asked for.
    fn zeros<const D: usize>(&self, shape: [usize; D]) -> Param<Tensor<D>> {
        let make = move |device: &Device, trained: bool| {
            let zeros = Tensor::zeros(shape, device);
            if trained { zeros.require_grad() } else { zeros }
        };
        Param::uninitialized(ParamId::new(), make, self.device.clone(), true, shape.into())
    }

    fn tensor<const D: usize>(&self, data: Vec<f32>, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_data(TensorData::new(data, shape), &self.device)
    }
}

impl Deviation {
    fn inner(self, inputs: usize) -> f64 {
        match self {
            Self::FanIn { .. } => (inputs as f64).sqrt().recip(),
            Self::HalfWidth { width, .. } => 0.5 / (width as f64).sqrt(),
        }
    }

    fn last(self, inputs: usize) -> f64 {
        let count = match self {
            Self::FanIn { branches } => branches,
            Self::HalfWidth { layers, .. } => layers,
        };
        self.inner(inputs) / (count as f64).sqrt()
    }
}

/// Refuses kernels on a device without them. Tensor operations exist on every device.
fn check(wanted: Engine, fastest: Engine) -> Result<Engine, ConfigError> {
    if wanted == Engine::Kernels && fastest != Engine::Kernels {
        let second = "Burn's CPU backend, Device::flex(); on other devices use Engine::Tensors".into();
        return Err(ConfigError::Together { first: "Engine::Kernels".into(), second });
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_refused_on_devices_without_them() {
        let (kernels, tensors) = (Engine::Kernels, Engine::Tensors);
        for (wanted, fastest) in [(kernels, kernels), (tensors, kernels), (tensors, tensors)] {
            assert_eq!(check(wanted, fastest).unwrap(), wanted);
        }
        let message = check(kernels, tensors).unwrap_err().to_string();
        assert!(message.starts_with("Engine::Kernels needs Burn's CPU backend"), "{message}");
        assert!(message.ends_with("Engine::Tensors"), "{message}");
    }
}
