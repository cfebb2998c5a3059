//! Runs side by side.

mod run;
#[cfg(test)]
mod tests;

pub use run::{ReportError, RunRecord};
