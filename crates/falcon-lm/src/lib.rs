//! Training of fast-weight models: tasks, runs, checkpoints, measurements, and pages that compare runs.

pub mod config;
pub mod evaluate;
pub mod memory;
pub mod report;
pub mod reproduce;
pub mod tasks;
pub mod train;
