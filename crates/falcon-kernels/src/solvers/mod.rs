//! Reference solvers to compare the rules with: exact recursive least squares, and a diagonal state-space model.
//!
//! They are not rules: least squares has a second matrix in its state, and a state-space model has no keys. Each solver
//! runs one head of one sequence over contiguous slices, step by step, and has an adjoint.

pub mod rls;
pub mod ssm;

use thiserror::Error;

use crate::Real;
use crate::error::counted;

/// Why a solver refused its inputs. Nothing has been computed when one is returned.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SolverError {
    /// A size that must not be zero.
    #[error("{what} must be at least 1, got 0")]
    Zero {
        /// Which size.
        what: &'static str,
    },
    /// A slice of the wrong length.
    #[error("{tensor} has {got} elements, its shape needs {}", counted(.needed))]
    Length {
        /// Which tensor.
        tensor: &'static str,
        /// Elements given.
        got: usize,
        /// Elements needed, unless their number overflows.
        needed: Option<usize>,
    },
    /// A number outside its range.
    #[error("{tensor}{} is {value}: it must be {allowed}", place(*.index))]
    Range {
        /// Which tensor or number.
        tensor: &'static str,
        /// Its index in the tensor.
        index: Option<usize>,
        /// The value.
        value: f64,
        /// The values allowed.
        allowed: &'static str,
    },
}

fn positive(what: &'static str, size: usize) -> Result<(), SolverError> {
    if size > 0 { Ok(()) } else { Err(SolverError::Zero { what }) }
}

fn length<F: Real>(tensor: &'static str, data: &[F], needed: Option<usize>) -> Result<(), SolverError> {
    if Some(data.len()) == needed { Ok(()) } else { Err(SolverError::Length { tensor, got: data.len(), needed }) }
}

fn place(index: Option<usize>) -> String {
    index.map_or(String::new(), |index| format!("[{index}]"))
}

#[cfg(test)]
mod testing {
    /// Numbers from −1 to 1.
    pub fn numbers(seed: u64, count: usize) -> Vec<f64> {
        falcon_testkit::Random::new(seed).uniforms(count, -1.0, 1.0)
    }

    pub fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// Compares `grad` with central differences of `loss` in every coordinate of `at`.
    pub fn check_gradient(name: &str, at: &[f64], grad: &[f64], loss: impl Fn(&[f64]) -> f64) {
        assert_eq!(at.len(), grad.len(), "{name}");
        let h = 1e-5;
        for i in 0..at.len() {
            let moved = |by: f64| {
                let mut to = at.to_vec();
                to[i] += by;
                loss(&to)
            };
            let expected = (moved(h) - moved(-h)) / (2.0 * h);
            let error = (grad[i] - expected).abs();
            assert!(
                error <= 1e-7 * expected.abs().max(1.0),
                "{name}[{i}]: {} but differences say {expected}",
                grad[i]
            );
        }
    }
}
