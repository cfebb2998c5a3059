//! Training of fast-weight models: tasks, runs, checkpoints, measurements, and pages that compare runs.

pub mod config;
pub mod data;
pub mod evaluate;
pub mod generate;
pub mod memory;
pub mod report;
pub mod reproduce;
pub mod tasks;
pub mod train;
pub mod trained;
