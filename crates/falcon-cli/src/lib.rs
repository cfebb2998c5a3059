//! The `falcon` program as a library: parse, validate, run, print. The arithmetic is in `falcon_kernels` and
//! `falcon_nn`, training and evaluation in `falcon_lm`, experiments in `falcon_lab`.

pub mod args;
pub mod bench;
pub mod convert;
pub mod eval;
pub mod export;
pub mod folder;
pub mod generate;
pub mod interrupt;
pub mod memory;
mod names;
mod output;
pub mod progress;
pub mod report;
pub mod reproduce;
pub mod scan;
pub mod texts;
pub mod threads;
pub mod tokenizer;
pub mod train;
