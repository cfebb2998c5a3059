//! Training of fast-weight models: tasks, runs, checkpoints, measurements.

pub mod config;
pub mod evaluate;
pub mod memory;
pub mod tasks;
pub mod train;
