//! The two number types of a scan.

use falcon_kernels::Compiled;

/// The numbers of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Computed in `f32`.
    F32(Vec<f32>),
    /// Computed in `f64`.
    F64(Vec<f64>),
    /// Whole numbers.
    I64(Vec<i64>),
}

/// A number type that a scan can compute in.
pub(crate) trait Number: Compiled {
    /// Its name in messages and reports.
    const NAME: &'static str;
    /// What a user can do when a result overflows.
    const ADVICE: &'static str;
    /// Wraps results of this type.
    fn data(values: Vec<Self>) -> Numbers;
}

impl Number for f32 {
    const NAME: &'static str = "f32";
    const ADVICE: &'static str = "use --dtype f64, or scale them down";
    fn data(values: Vec<Self>) -> Numbers {
        Numbers::F32(values)
    }
}

impl Number for f64 {
    const NAME: &'static str = "f64";
    const ADVICE: &'static str = "scale them down";
    fn data(values: Vec<Self>) -> Numbers {
        Numbers::F64(values)
    }
}
