//! What a record of the experiment holds.

use falcon_lm::evaluate::{BenchmarkResult, ExamFingerprints, TextResult};
use serde::{Deserialize, Serialize};

use crate::reproduce::record::ExperimentRecord;

/// The language model experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct LanguageExperiment;

/// The record of a language model experiment.
pub type LanguageRecord = ExperimentRecord<LanguageExperiment>;

/// What all rows have in common: nothing beyond what all experiments have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageSettings {}

/// The results of training a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageTraining {
    /// The number of tokens it was trained on.
    pub tokens: usize,
}

/// The results of evaluating a trained row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageMeasured {
    /// The validation loss during training, on a part of the validation text: numbers of tokens, and the loss after
    /// them.
    pub curve: Vec<(usize, f64)>,
    /// The results on whole texts, the validation text first.
    pub texts: Vec<TextResult>,
    /// The results on benchmarks.
    pub benchmarks: Vec<BenchmarkResult>,
}

impl LanguageMeasured {
    /// The results for what is asked, in order; none if some are missing.
    pub fn answering(&self, asked: &ExamFingerprints) -> Option<Self> {
        let (texts, benchmarks) = asked.find_results(&self.texts, &self.benchmarks)?;
        Some(Self { curve: self.curve.clone(), texts, benchmarks })
    }
}
