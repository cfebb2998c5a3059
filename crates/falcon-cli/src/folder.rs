//! Folders that are written as a whole.

use std::fs;
use std::path::{Path, PathBuf};

use falcon_base::files::ASIDE;
use falcon_base::{AtPath, PathError};
use tempfile::TempDir;
use thiserror::Error;

/// A folder cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The folder exists.
    #[error("{}: exists already; name a new folder, or remove this one", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file or folder cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A folder that is written aside and then renamed, so that a folder of its name is always complete. What is written
/// aside is removed if it is not renamed.
pub(crate) struct NewFolder(TempDir);

impl NewFolder {
    /// A folder beside `to`, which must not exist.
    pub fn beside(to: &Path) -> Result<Self, FolderError> {
        if to.symlink_metadata().is_ok() {
            return Err(FolderError::Exists { path: to.into() });
        }
        let beside = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self(tempfile::Builder::new().prefix(ASIDE).tempdir_in(beside).at(beside)?))
    }

    /// Where it is for now.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Moves it to its place.
    pub fn rename(self, to: &Path) -> Result<(), FolderError> {
        let folder = self.0.path();
        // Temporary folders are private; this one should not be.
        #[cfg(unix)]
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).at(folder)?;
        fs::rename(folder, to).at(to)?;
        // The temporary folder has been moved, so nothing is left to remove.
        let _ = self.0.keep();
        Ok(())
    }
}
