//! Rows that an earlier record has: found there, they are not trained again.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::fingerprint::{Fingerprint, Origin};
use super::results::{RESULTS_FILE, RecordError, ResultRow, Results};
use super::rows::Row;
use crate::config::{Layer, RunConfig, RunConfigError};
use crate::tasks::TaskConfig;

/// A record that rows are taken from.
#[derive(Debug)]
pub struct Earlier<R> {
    /// Its file.
    pub path: PathBuf,
    /// What it says.
    pub record: R,
    /// Whether its rows without a fingerprint were trained by the settings of the experiment at hand.
    same_settings: bool,
}

/// A run whose row is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The row.
    pub row: &'a Row,
    /// Its configuration.
    pub config: &'a RunConfig,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
}

/// Why a row of the same name and seed is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotTaken {
    /// Another configuration, or other data.
    #[error("was trained with another configuration or on other data")]
    Different,
    /// It is not known how it was trained.
    #[error("has no fingerprint of its configuration, and none can be derived from the record")]
    Unknown,
    /// It was trained alike, but measured by other questions.
    #[error("was not measured in the way that is asked for now")]
    Measured,
}

impl<R: Results> Earlier<R> {
    /// Reads a record: `path` is the file, or the folder that holds `results.json`. `command` is that of the experiment
    /// at hand, and `config` makes the configuration that it gives to a row and a seed.
    pub fn read(
        path: &Path,
        command: &str,
        config: impl Fn(&Row, u64) -> Result<RunConfig, RunConfigError>,
    ) -> Result<Self, RecordError> {
        let path = if path.is_file() { path.to_path_buf() } else { path.join(RESULTS_FILE) };
        let record = R::read_file(&path)?;
        let same_settings = same_settings(&record, command, config);
        Ok(Self { path, record, same_settings })
    }

    /// The row of a run, with its origin; none if the record has no row of this name and seed.
    pub fn row(&self, wanted: Wanted<'_>) -> Option<Result<R::Row, NotTaken>> {
        let same = |row: &&R::Row| row.name() == wanted.row.name && row.seed() == wanted.config.train.seed;
        let mut rows = self.record.rows().iter().filter(same).peekable();
        rows.peek()?;
        // A record may have several of one name, of which the last reason is as good as any.
        let mut refused = NotTaken::Unknown;
        for row in rows {
            let origin = row.origin().cloned().or_else(|| self.derived(row, wanted));
            refused = match origin {
                Some(origin) if origin.fingerprint == wanted.fingerprint => {
                    return Some(Ok(row.clone().with_origin(origin)));
                }
                Some(_) => NotTaken::Different,
                None => NotTaken::Unknown,
            };
        }
        Some(Err(refused))
    }

    /// The origin of a row that was recorded before rows had one. It is that of the run at hand if the record as a
    /// whole was made by the same settings, and the row is a preset without changes and of the same size.
    fn derived(&self, row: &R::Row, wanted: Wanted<'_>) -> Option<Origin> {
        let same = self.same_settings
            && wanted.row.set.is_empty()
            && row.parameters() == wanted.config.model.parameter_count();
        let (machine, version) = (self.record.machine().to_string(), self.record.version().to_string());
        same.then_some(Origin { fingerprint: wanted.fingerprint, machine, version })
    }
}

/// Whether the presets of a record were trained as the experiment at hand trains them. A record says it by its command,
/// which must be the same but for the rows and seeds asked for, and by the configuration of its first row, of which
/// every key must be the same. A record does not say what was in the files that text was read from.
fn same_settings<R: Results>(
    record: &R,
    command: &str,
    config: impl Fn(&Row, u64) -> Result<RunConfig, RunConfigError>,
) -> bool {
    let settings = |command: &str| -> Vec<String> {
        let words = command.split(" --").map(str::to_string);
        words.filter(|word| !word.starts_with("models ") && !word.starts_with("seeds ")).collect()
    };
    if record.version() != env!("CARGO_PKG_VERSION") || settings(record.command()) != settings(command) {
        return false;
    }
    let Ok(there) = Layer::text(RESULTS_FILE, record.config()).and_then(|layer| RunConfig::resolve(&[layer]))
    else {
        return false;
    };
    if matches!(there.task, TaskConfig::Text(_)) {
        return false;
    }
    let here = config(&Row::of(&there.preset), there.train.seed);
    here.is_ok_and(|here| here.differences(&there).is_empty())
}
