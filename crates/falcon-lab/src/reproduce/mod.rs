//! The paper's experiments, at sizes that a small machine can train.
//!
//! An experiment trains several rows, each a model with some seeds, and compares them in a table. [`addition`] and
//! [`language`] are the two experiments; what they share is here: planning the runs, searching for learning rates,
//! training runs side by side, and a record from which an experiment is resumed on any machine and all tables and
//! pictures are made.

pub mod addition;
mod columns;
mod earlier;
mod error;
mod fingerprint;
pub mod language;
mod observer;
mod plan;
mod record;
mod row;
mod rows;
mod runner;
mod scale;
mod search;
mod searching;
mod training;
mod trial;

pub use earlier::{Earlier, NotTaken, Wanted};
pub use error::ExperimentError;
pub use fingerprint::{DataHash, Fingerprint, FingerprintError, Origin};
pub use observer::Observer;
pub use plan::{Ablation, ExperimentOptions};
pub use record::{Experiment, ExperimentRecord, RESULTS_FILE, RecordError, RowResult, StateSize};
pub use row::TableRow;
pub use runner::Ended;
pub use scale::ExperimentScale;
pub use search::{SEARCH_SEED, Search, SearchPoint};
pub use training::RowError;
pub use trial::{ModelSearch, SearchRecord, Trial, choose, run_trial};
