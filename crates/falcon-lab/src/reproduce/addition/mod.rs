//! Addition with more digits than in training: the paper's test of length generalisation.
//!
//! Every row trains one model with the same configuration. The checkpoint with the best validation is then evaluated
//! on test samples of every width, within the range of training and beyond: by digits and by whole sums, with the
//! true digits as input (teacher forcing) and, which the paper does not do, with the model's own digits.

mod experiment;
mod measure;
mod paper;
mod run;
mod scales;
mod tables;

pub use experiment::{AdditionExperiment, AdditionMeasured, AdditionRecord, AdditionSettings, AdditionTraining};
pub use measure::WidthResult;
pub use run::run;
pub use scales::{SCALES, config};
