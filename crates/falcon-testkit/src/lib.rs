//! Random cases for the kernels, and comparisons of their results.

mod case;
mod close;
mod random;

pub use case::{Case, CaseOutput, Spec};
pub use close::{Named, assert_close, max_error, rms_error};
pub use random::Random;
