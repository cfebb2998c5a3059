//! What the layers compute with. On the CPU operations over slices; their tensor operations are beside them, or in the layer where there is
//! nothing but those.

pub(crate) mod attention;
mod blocks;
mod bridge;
pub(crate) mod conv;
pub(crate) mod embedding;
pub(crate) mod gate;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod project;
pub(crate) mod rule;
mod slices;
pub(crate) mod swiglu;
pub(crate) mod tensor;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod turn;

use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// How a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Rules by `falcon-kernels`, and whatever else is worth it by operations like them: on the CPU.
    Kernels,
    /// By Burn's tensor operations, on any device.
    Tensors,
}

impl Engine {
    /// The fastest engine on a device.
    pub fn of(device: &Device) -> Self {
        match device.clone().inner().as_dispatch() {
            DispatchDevice::Flex(_) => Self::Kernels,
            #[allow(unreachable_patterns, reason = "other backends are features")]
            _ => Self::Tensors,
        }
    }
}
