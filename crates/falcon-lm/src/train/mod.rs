//! The recipe: schedule, clipping, AdamW.

mod optimizer;
mod schedule;

pub use optimizer::{AdamW, AdamWConfig, Moments, clip, global_norm};
pub use schedule::{Schedule, ScheduleError};
