//! A file with the results of several models.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use falcon_base::PathError;
use falcon_base::files::write_file;
use thiserror::Error;

use super::measure::ModelResult;
use crate::trained::Trained;

/// Why a file of results cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResultsError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The file holds something else.
    #[error("{}: not results of `falcon eval`: {source}; give --output another name", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The results of several models, kept in a JSON file if there is one.
#[derive(Debug, Default)]
pub struct ResultsFile {
    path: Option<PathBuf>,
    models: Vec<ModelResult>,
}

impl ResultsFile {
    /// Reads a file. One that does not exist has no results yet.
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        let foreign = |source| ResultsError::Foreign { path: path.into(), source };
        let models = match fs::read(path) {
            Ok(json) => serde_json::from_slice(&json).map_err(foreign)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(PathError::new(path, error).into()),
        };
        Ok(Self { path: Some(path.into()), models })
    }

    /// Removes the results of the model called `name`, to be extended and put back. If there are none, or they are of
    /// other weights, the results are empty.
    pub fn take(&mut self, name: &str, trained: &Trained) -> ModelResult {
        let recorded = self.models.iter().position(|result| result.model == name).map(|at| self.models.remove(at));
        let same = recorded.filter(|result| result.weights == trained.weights);
        same.unwrap_or_else(|| ModelResult::new(name.into(), trained))
    }

    /// Puts the results of a model back.
    pub fn put(&mut self, result: ModelResult) {
        self.models.push(result);
    }

    /// Writes all results, and those of a model that has not been put back yet. Does nothing without a file.
    pub fn write_with(&self, result: &ModelResult) -> Result<(), ResultsError> {
        let Some(path) = &self.path else { return Ok(()) };
        let all: Vec<&ModelResult> = self.models.iter().chain([result]).collect();
        Ok(write_file(path, &serde_json::to_vec_pretty(&all).expect("results are plain data"))?)
    }
}
