//! `falcon_fwa._native`: the kernels for Python.
//!
//! Arrays are passed by DLPack, from PyTorch, NumPy or any other library that supports it, and are read in place.
//! Results are written to arrays that the caller has allocated. Nothing here depends on a framework.
//!
//! The interpreter can run other threads while a kernel runs. An error of the kernels becomes a `ValueError`; a panic
//! becomes a `RuntimeError`, after which the process stays usable.

mod array;
mod rule;
mod scan;
mod threads;

use pyo3::prelude::*;

/// The kernels of `falcon_fwa`. Use `falcon_fwa.scan` or `falcon_fwa.ops`, which check arguments and allocate results.
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
        module.add("GAINS", rule::GAINS.map(|(word, _)| word).to_vec())?;
        module.add("DECAYS", rule::DECAYS.map(|(word, _)| word).to_vec())?;
        module.add("RULES", falcon_kernels::Rule::ALL.map(|(name, _)| name).to_vec())
    }
}
