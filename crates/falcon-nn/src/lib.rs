//! Fast-weight attention layers and models on Burn.

mod config;
mod files;
mod init;
mod layers;
mod mixer;
mod model;
pub mod mup;
mod names;
mod ops;
mod presets;
mod rotary;
mod sequences;

pub use config::{
    Activation, ConfigError, DecayGate, FeatureMap, GainGate, MixerConfig, ModelConfig, OutputGate, OutputNorm, QkNorm,
};
pub use files::{CONFIG_FILE, FileError, WEIGHTS_FILE};
pub use init::Init;
pub use layers::{Linear, RmsNorm, ShortConv, SwiGlu};
pub use mixer::{Mixer, MixerState};
pub use model::{Block, Embedding, Model, ModelState};
pub use names::{Parameter, Values};
pub use ops::Path;
pub use presets::{PRESETS, SIZES};
pub use sequences::Sequences;
