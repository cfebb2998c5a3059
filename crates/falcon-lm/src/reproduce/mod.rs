//! The paper's experiments, at sizes that one small machine can hold.

pub mod addition;
mod picture;
mod record;

pub use record::{AdditionRecord, RecordError};
