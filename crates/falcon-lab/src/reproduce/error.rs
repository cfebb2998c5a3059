//! Errors of experiments.

use std::path::PathBuf;

use falcon_base::PathError;
use falcon_lm::config::RunConfigError;
use falcon_lm::data::{CacheError, SourceError, TokenizerError};
use falcon_lm::evaluate::BenchmarkError;
use falcon_lm::memory::human;
use falcon_lm::tasks::TaskError;
use thiserror::Error;

use super::record::RecordError;
use super::training::RowError;
use crate::threads::ThreadsError;

/// An experiment could not be completed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The configuration of a row is invalid.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// A row or a run of a search failed.
    #[error("{title}: {source}")]
    Row {
        /// The row and its seed, or the point of the search.
        title: String,
        /// The reason.
        source: Box<RowError>,
    },
    /// The runs that would be trained at the same time do not fit into memory.
    #[error(
        "{} about {}, but {} are available; use fewer --jobs, a smaller train.batch, a larger train.accumulate (which \
         divides the activations), shorter sequences or smaller models; --no-memory-check skips this check",
        if *jobs == 1 { "the largest run needs".into() } else { format!("{jobs} runs at the same time need") },
        human(*needed),
        human(*available)
    )]
    Memory {
        /// The number of runs at the same time.
        jobs: usize,
        /// The estimated memory of the largest of them, in bytes.
        needed: u64,
        /// The memory available, in bytes.
        available: u64,
    },
    /// All runs of a model's search diverged.
    #[error(
        "{name}: training diverged at every point of the search; give it a lower learning rate, as in \
         --models ROW+train.lr=1e-4"
    )]
    Diverged {
        /// The model.
        name: String,
    },
    /// A text for evaluation is part of the training data.
    #[error("{option}: {file} is also in --train; a model must not be evaluated on text that it is trained on")]
    TrainedOn {
        /// The option that names the text.
        option: &'static str,
        /// The file.
        file: String,
    },
    /// No row is left for the ablation.
    #[error(
        "--ablation timing: a Transformer has no memory whose timing could vary; name another model by --models"
    )]
    NothingToAblate,
    /// A record cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The file in the output folder is not a record of this experiment.
    #[error("{source}; the record of another experiment is not overwritten: choose another folder by --output")]
    OwnRecord {
        /// What is wrong with it.
        source: Box<RecordError>,
    },
    /// The data of the task cannot be read.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The output folder has a tokenizer that was trained on other text.
    #[error(
        "{}: this tokenizer was trained on other text; use it by --tokenizer, or choose another folder by --output",
        path.display()
    )]
    OtherTokenizer {
        /// The tokenizer.
        path: PathBuf,
    },
    /// A text cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A text cannot be tokenized.
    #[error(transparent)]
    Text(#[from] CacheError),
    /// A tokenizer cannot be read or trained.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A benchmark cannot be read.
    #[error(transparent)]
    Benchmark(#[from] BenchmarkError),
    /// A file cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Threads cannot be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
}
