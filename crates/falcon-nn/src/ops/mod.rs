//! The operations that layers are made of. On the CPU they run over slices; the same operations as tensor operations
//! are beside them, or in the layer itself.

pub(crate) mod attention;
mod blocks;
mod bridge;
pub(crate) mod conv;
pub(crate) mod embedding;
mod few;
pub(crate) mod gate;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod packed;
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

/// The implementation that a model computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Rules run in `falcon-kernels`, and other hot parts in operations like them. On the CPU only.
    Kernels,
    /// Burn's tensor operations, on any device.
    Tensors,
}

impl Engine {
    /// The fastest engine of a device.
    pub fn of(device: &Device) -> Self {
        match device.clone().inner().as_dispatch() {
            DispatchDevice::Flex(_) => Self::Kernels,
            #[allow(unreachable_patterns, reason = "other backends are features")]
            _ => Self::Tensors,
        }
    }
}
