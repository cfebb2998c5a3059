//! What a run's folder holds.

use std::io;
use std::path::{Path, PathBuf};

use crate::train::{METRICS_FILE, MetricsError, Record, read_metrics};

const CONFIG_FILE: &str = "config.toml";

/// A run: what it was asked to do, and what it told about itself.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// The name of its folder.
    pub name: String,
    /// Where it is. Tells runs of one name apart.
    pub folder: PathBuf,
    /// `config.toml`.
    pub config: toml::Table,
    /// `metrics.jsonl`.
    pub records: Vec<Record>,
}

/// Why a folder cannot be reported on.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Nothing, or nothing that a run leaves, is there.
    #[error("{}: not a run: no folder with {CONFIG_FILE} and {METRICS_FILE}", folder.display())]
    NotARun {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The configuration is no TOML.
    #[error("{}: {error}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        error: toml::de::Error,
    },
    /// The records cannot be read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

impl RunRecord {
    /// Reads a run's folder. A run that has only begun has no records.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let (config_path, metrics_path) = (folder.join(CONFIG_FILE), folder.join(METRICS_FILE));
        if !config_path.exists() && !metrics_path.exists() {
            return Err(ReportError::NotARun { folder: folder.into() });
        }
        let io = |path: &Path| {
            let path = path.to_path_buf();
            |error| ReportError::Io { path, error }
        };
        let config = std::fs::read_to_string(&config_path).map_err(io(&config_path))?;
        let config = config.parse().map_err(|error| ReportError::Config { path: config_path, error })?;
        let records = read_metrics(&metrics_path)?;
        // The folder may be `.`, which names nothing.
        let folder = folder.canonicalize().map_err(io(folder))?;
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, folder, config, records })
    }
}
