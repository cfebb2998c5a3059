//! `falcon_fwa._native`: the kernels, for Python.
//!
//! Arrays come in by DLPack, from PyTorch, NumPy or anything else that speaks it, and are read where they lie.
//! Results go into arrays that the caller has made, so that they come from the caller's allocator. Nothing here knows
//! a framework.
//!
//! The interpreter is free to run other threads while a kernel runs. What the kernels refuse becomes a `ValueError`; a
//! panic becomes a `RuntimeError`, and the process stays usable.

mod array;
mod rule;
mod scan;
mod threads;

use pyo3::prelude::*;

/// The kernels of `falcon_fwa`; use `falcon_fwa.scan` or `falcon_fwa.ops`, which check and allocate.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::rule::PyRule;
    #[pymodule_export]
    use super::scan::{backward, forward, panic, step};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("RULES", falcon_kernels::Rule::ALL.map(|(name, _)| name).to_vec())
    }
}
