//! The `falcon` program as a library: parse, validate, run. The arithmetic is in `falcon_kernels`.

pub mod args;
pub mod bench;
pub mod memory;
pub mod progress;
pub mod scan;
