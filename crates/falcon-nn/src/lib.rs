//! Fast-weight attention layers and models on Burn.
//!
//! # A layer
//!
//! A [`Mixer`] takes the place of attention in a model of your own: `[batch, time, hidden]` in and out.
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use falcon_nn::MixerConfig;
//!
//! let device = Device::flex(); // `.autodiff()` to train
//! let layer = MixerConfig::preset("falcon-1a.3", 64, 4)?.init(64, 0, &device)?;
//! let x = Tensor::<3>::random([2, 50, 64], Distribution::Default, &device);
//! let y = layer.forward(x.clone());
//!
//! // The same in pieces, down to single tokens. The size of the state is fixed.
//! let mut state = layer.state(2);
//! let first = layer.resume(x.clone().slice([0..2, 0..30]), &mut state);
//! let rest = layer.resume(x.slice([0..2, 30..50]), &mut state);
//! # let difference: f32 = (y - Tensor::cat(vec![first, rest], 1)).abs().max().into_scalar();
//! # assert!(difference < 1e-4);
//! # Ok::<(), falcon_nn::ConfigError>(())
//! ```
//!
//! # A model
//!
//! [`ModelConfig::preset`] makes the models of the paper and those they are compared with ([`PRESETS`]), in several
//! sizes ([`SIZES`]). Every option of a preset is a field of its configuration. [`Model::save`] writes it to
//! `config.json` beside `model.safetensors`, and [`Model::load`] reads both.
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use falcon_nn::ModelConfig;
//!
//! let model = ModelConfig::preset("falcon-3a.3", "tiny", 256)?.init(0, &Device::flex())?;
//! let logits = model.forward(Tensor::<2, Int>::zeros([1, 10], &model.device()));
//! assert_eq!(logits.dims(), [1, 10, 256]);
//! # Ok::<(), falcon_nn::ConfigError>(())
//! ```
//!
//! # Two engines
//!
//! On Burn's CPU backend the rules run in `falcon-kernels`, as differentiable operations. On every other device they
//! run in tensor operations, chunk by chunk, with Burn's own gradients. [`Model::engine`] tells which engine a model
//! has; tests compare the two.
//!
//! `docs/choices.md` lists the choices that the paper leaves open, and how they are made here.

mod config;
mod context;
mod file_error;
mod files;
mod init;
mod layers;
mod mixer;
mod model;
pub mod mup;
mod names;
mod ops;
mod options;
mod presets;
mod probe;
mod rotary;
mod sequences;

pub use config::{ConfigError, Mechanism, MixerConfig, MixerKind, ModelConfig, NamedRule};
pub use file_error::FileError;
pub use files::{
    CONFIG_FILE, INDEX_FILE, Metadata, NamedArrays, SavedState, WEIGHTS_FILE, arrays_from_bytes, read_arrays,
    tokenizer_fingerprint, weight_files, write_arrays,
};
pub use init::Init;
pub use mixer::{Mixer, MixerState};
pub use model::{Model, ModelState};
pub use names::{Parameter, Values};
pub use ops::Engine;
pub use ops::loss::{Prediction, cross_entropy, loss_and_predictions, predictions};
pub use ops::packed::{UnknownFormat, WeightFormat};
pub use options::{Activation, DecayGate, FeatureMap, GainGate, MatrixInit, OutputGate, OutputNorm, QkNorm};
pub use presets::{PRESETS, SIZES};
pub use sequences::Sequences;
