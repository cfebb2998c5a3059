//! The mixer that a state belongs to.

use burn::tensor::Device;

use crate::config::{Mechanism, MixerConfig};
use crate::ops::Engine;

/// The parts of a mixer that its states depend on.
pub(crate) struct Owner<'a> {
    pub config: &'a MixerConfig,
    pub mechanism: &'a Mechanism,
    pub engine: Engine,
    pub device: Device,
}
