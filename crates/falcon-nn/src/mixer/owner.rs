//! The mixer that a state belongs to.

use burn::tensor::Device;

use crate::config::{Mechanism, MixerConfig};
use crate::ops::Engine;

/// What states depend on: the mixer that they belong to.
pub(crate) struct Owner<'a> {
    pub config: &'a MixerConfig,
    pub mechanism: &'a Mechanism,
    pub engine: Engine,
    pub device: Device,
}
