//! Benchmarks: the speed and memory of kernels, training steps and generation, beside what the machine can do.
//!
//! Kernels, decoding and training steps are timed in turns, round by round, together with the machine's own speed at
//! matrix products and at reading memory, and medians are reported: a slow moment of the machine then affects a row and
//! its yardstick alike. Ratios that are compared with recorded ones are those of the fastest round. Rules of the
//! scaling table and models that generate are timed one after the other, because not all would fit in memory at once.

mod cases;
mod check;
mod decode;
mod error;
mod flops;
mod gemm;
mod generate;
mod kernels;
mod options;
mod ratios;
mod recorded;
mod scaling;
mod schedule;
mod serve;
mod table;
mod tables;
mod train;
mod worker;

pub use cases::{BenchRule, named_rule};
pub use check::{RatioCheck, RatioOptions, check_ratios, record_ratios};
pub use decode::ALWAYS_DECODED;
pub use error::BenchError;
pub use generate::{GenerateOptions, Generation, generate, measure_generation};
pub use kernels::ONLY_ON_REQUEST;
pub use options::KernelsOptions;
pub use recorded::RatioFileError;
pub use scaling::{ScalingOptions, scaling};
pub use serve::serve;
pub use table::BenchTable;
pub use tables::kernels;
pub use train::{PeerOptions, TrainOptions, train};
