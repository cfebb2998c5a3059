//! Errors of `falcon reproduce`.

use std::io;
use std::path::PathBuf;

use falcon_base::PathError;
use falcon_lab::reproduce::{ExperimentError, RecordError};
use thiserror::Error;

use crate::threads::ThreadsError;

/// `falcon reproduce` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReproduceError {
    /// The experiment could not be completed.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The record of `--from` cannot be read, or its tables cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The tables cannot be put into the page of `--into`.
    #[error("{}: {source}", path.display())]
    Page {
        /// The page.
        path: PathBuf,
        /// The reason.
        source: Box<RecordError>,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Threads cannot be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// The results cannot be printed.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}
