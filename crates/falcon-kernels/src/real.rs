//! The number a kernel computes with: `f32` for use, `f64` for proof, from one source.

use std::fmt::{Debug, Display};
use std::iter::Sum;

use num_traits::{Float, NumAssign};

/// A floating-point number the kernels are instantiated with. Sealed: `f32` and `f64`.
pub trait Real:
    Float + NumAssign + Sum + Default + Debug + Display + Send + Sync + sealed::Sealed + 'static
{
    /// The nearest value of this type.
    fn of(value: f64) -> Self;
    /// This value as `f64`, exactly.
    fn wide(self) -> f64;
}

impl Real for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `Σ aᵢ bᵢ`, in eight partial sums so that the compiler can keep them in one vector register.
pub(crate) fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    debug_assert_eq!(a.len(), b.len());
    let mut lanes = [F::zero(); 8];
    let (a_blocks, a_rest) = a.as_chunks::<8>();
    let (b_blocks, b_rest) = b.as_chunks::<8>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..8 {
            lanes[lane] += x[lane] * y[lane];
        }
    }
    for (x, y) in a_rest.iter().zip(b_rest) {
        lanes[0] += *x * *y;
    }
    lanes.into_iter().sum()
}

/// `y += scale · x`.
pub(crate) fn axpy<F: Real>(y: &mut [F], scale: F, x: &[F]) {
    debug_assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * *x;
    }
}

/// `y += x`.
pub(crate) fn add<F: Real>(y: &mut [F], x: &[F]) {
    debug_assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y += *x;
    }
}
