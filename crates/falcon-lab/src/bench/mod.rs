//! Benchmarks: the speed and memory of kernels, training steps and generation, beside what the machine can do.
//!
//! Kernels, decoding and training steps are timed in turns, round by round, together with the machine's own speed at
//! matrix products and at reading memory, and medians are reported: a slow moment of the machine then affects a row and
//! its yardstick alike. Rules of the scaling table and models that generate are timed one after the other, because not
//! all would fit in memory at once.

mod cases;
mod decode;
mod error;
mod flops;
mod gemm;
mod generate;
mod kernels;
mod options;
mod scaling;
mod schedule;
mod serve;
mod table;
mod tables;
mod train;
mod worker;

pub use cases::{BenchRule, named_rule};
pub use decode::ALWAYS_DECODED;
pub use error::BenchError;
pub use generate::{GenerateOptions, Generation, generate, measure_generation};
pub use kernels::ONLY_ON_REQUEST;
pub use options::KernelsOptions;
pub use scaling::{ScalingOptions, scaling};
pub use serve::serve;
pub use table::BenchTable;
pub use tables::kernels;
pub use train::{PeerOptions, TrainOptions, train};
