//! What a record of the experiment holds.

use serde::{Deserialize, Serialize};

use super::measure::WidthResult;
use crate::reproduce::record::ExperimentRecord;

/// The addition experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct AdditionExperiment;

/// The record of an addition experiment.
pub type AdditionRecord = ExperimentRecord<AdditionExperiment>;

/// What all rows have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdditionSettings {
    /// The largest width in training.
    pub max_width: usize,
    /// The number of test samples of each width.
    pub samples: usize,
}

/// The results of training a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdditionTraining {
    /// The accuracy of the best validation.
    pub validation: f64,
    /// The exact match of the same validation. Rows recorded by earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_validation: Option<f64>,
}

/// The results of evaluating a trained row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdditionMeasured {
    /// The results on test samples of each width.
    pub widths: Vec<WidthResult>,
}
