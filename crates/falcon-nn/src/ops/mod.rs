//! What the layers compute with: each operation once for the CPU and once in tensor operations.

mod bridge;
pub(crate) mod rule;
pub(crate) mod tensor;

use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// How a model computes its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By the kernels of `falcon-kernels`, which run on the CPU.
    Kernels,
    /// By tensor operations, which run on any device.
    Tensors,
}

impl Path {
    /// The fastest path on a device.
    pub fn of(device: &Device) -> Self {
        match device.clone().inner().as_dispatch() {
            DispatchDevice::Flex(_) => Self::Kernels,
            #[allow(unreachable_patterns, reason = "other backends are features")]
            _ => Self::Tensors,
        }
    }
}
