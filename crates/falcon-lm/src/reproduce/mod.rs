//! The paper's experiments, at sizes that one small machine can hold.

pub mod addition;
mod continued;
mod fingerprint;
pub mod language;
mod results;
mod rows;
mod search;

pub use continued::{Earlier, NotTaken, Wanted};
pub use fingerprint::{Data, Fingerprint, FingerprintError, Origin};
pub use results::{RESULTS_FILE, RecordError, ResultRow, Results, StateSize};
pub use rows::{Row, RowError, Scale};
pub use search::{ModelSearch, Point, SEARCH_SEED, Search, SearchRecord, Trial, choose, run_trial};
