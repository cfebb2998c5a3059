//! How to run a file.

use falcon_kernels::Form;

/// The arithmetic of a scan, and the number format of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// 64 bits.
    F64,
}

/// How to run a file.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The form. The solvers for `rls` and `ssm_zoh` have only one and ignore it.
    pub form: Form,
    /// The arithmetic.
    pub dtype: Dtype,
    /// Whether to compute gradients, too.
    pub grad: bool,
    /// The memory that the scan may use, in bytes; its use is estimated from the sizes.
    pub max_memory: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { form: Form::CHUNKED, dtype: Dtype::F64, grad: false, max_memory: 16 << 30 }
    }
}
