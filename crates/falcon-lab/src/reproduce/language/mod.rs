//! Language models of one size, trained on one text: the paper's tables, at a size that a small machine can train.
//!
//! Every row trains one model with the same configuration. The checkpoint with the best validation is then evaluated:
//! its perplexity on the whole validation text and on other texts, in windows of the length of training, and its
//! accuracy on the paper's benchmarks.

mod estimate;
mod experiment;
mod measure;
mod paper;
mod run;
mod scales;
mod tables;
mod tokenizer;

pub use estimate::{RowEstimate, RunEstimate, estimate_run};
pub use experiment::{LanguageExperiment, LanguageMeasured, LanguageRecord, LanguageSettings, LanguageTraining};
pub use run::{LanguageOptions, Questionnaire, estimate, run};
pub use scales::{Corpus, SCALES, config};
