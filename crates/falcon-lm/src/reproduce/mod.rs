//! The paper's experiments, at sizes that one small machine can hold.

pub mod addition;
pub mod language;
mod results;
mod rows;

pub use results::{RESULTS_FILE, RecordError, Results};
pub use rows::{Row, RowError, Scale};
