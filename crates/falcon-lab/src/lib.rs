//! Experiments, reports and benchmarks on top of `falcon-lm`.
//!
//! [`reproduce`] plans the runs of one of the paper's experiments, trains them side by side, resumes from records
//! made on any machine, and keeps one record of everything. [`report`] compares training runs in one HTML page.
//! [`bench`](mod@bench) measures the speed and memory of kernels, training steps and generation. [`tables`] and
//! [`pictures`] turn the numbers of all three into Markdown, terminal tables and SVG.

pub mod bench;
mod format;
pub mod pictures;
pub mod report;
pub mod reproduce;
pub mod tables;
pub mod threads;
