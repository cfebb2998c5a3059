//! Evaluation of trained models: the perplexity of text, and the paper's benchmarks.

mod asked;
mod benchmark;
mod choices;
mod likelihood;
mod measure;
mod perplexity;
mod python_random;
mod questions;
mod results;

pub use self::asked::ExamFingerprints;
pub use self::benchmark::{BENCHMARKS, Benchmark};
pub use self::choices::{BenchmarkResult, Estimate, mean_and_variance};
pub use self::likelihood::{Likelihood, Request};
pub use self::measure::{Answers, Exam, ExamText, ModelResult, TextResult};
pub use self::questions::{BenchmarkError, Item, QuestionError, Questions, RequestError};
pub use self::results::{ResultsError, ResultsFile};
