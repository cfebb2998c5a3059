//! I/O errors that name their path.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// An I/O error on a file or folder.
#[derive(Debug, Error)]
#[error("{}: {source}", path.display())]
pub struct PathError {
    /// The file or folder.
    pub path: PathBuf,
    /// What the system reported.
    #[source]
    pub source: io::Error,
}

impl PathError {
    /// An error on `path`.
    pub fn new(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self { path: path.into(), source }
    }
}

/// Adds the path to an I/O error.
///
/// ```
/// use falcon_base::AtPath;
/// let error = std::fs::read("no such file").at("no such file").unwrap_err();
/// assert!(error.to_string().starts_with("no such file: "));
/// ```
pub trait AtPath<T> {
    /// The same result, whose error names `path`.
    fn at(self, path: impl AsRef<Path>) -> Result<T, PathError>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: impl AsRef<Path>) -> Result<T, PathError> {
        self.map_err(|source| PathError::new(path.as_ref(), source))
    }
}
