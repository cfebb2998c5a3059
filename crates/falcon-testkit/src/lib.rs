//! Random cases for the kernels, and what to hold their results against.

mod case;
mod close;
mod random;

pub use case::{Case, Outcome, Spec};
pub use close::{Named, assert_close, max_error, rms_error};
pub use random::Random;
