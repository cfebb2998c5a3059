//! Takes rows and trials from earlier records, so that they are not trained again.

use std::io;
use std::path::{Path, PathBuf};

use falcon_base::files::write_file;
use falcon_base::{AtPath, PathError};
use falcon_lm::config::{Layer, RunConfig, RunConfigError};
use falcon_lm::tasks::TaskConfig;
use thiserror::Error;

use super::error::ExperimentError;
use super::fingerprint::{Fingerprint, Origin};
use super::observer::Observer;
use super::plan::{ExperimentOptions, ExperimentPlan, PlannedRun, folder_name};
use super::record::{Experiment, ExperimentRecord, RESULTS_FILE, RecordError, RowResult};
use super::row::TableRow;
use super::trial::Trial;

/// A record that rows are taken from.
#[derive(Debug)]
pub struct Earlier<E: Experiment> {
    /// Its file.
    pub path: PathBuf,
    /// Its contents.
    pub record: ExperimentRecord<E>,
    /// Whether its rows without a fingerprint were trained with the settings of the current experiment.
    same_settings: bool,
}

/// A run whose row is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The row.
    pub row: &'a TableRow,
    /// The configuration of the run.
    pub config: &'a RunConfig,
    /// The fingerprint of the run.
    pub fingerprint: Fingerprint,
}

/// The reason why a row of the same name and seed is not taken from a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// Another configuration, or other data.
    #[error("was trained with another configuration or on other data")]
    Different,
    /// The record does not say how the row was trained.
    #[error("has no fingerprint of its configuration, and none can be derived from the record")]
    Unknown,
    /// The row was trained in the same way, but evaluated differently.
    #[error("was not evaluated in the way that is asked for now")]
    Measured,
}

impl<E: Experiment> Earlier<E> {
    /// Reads a record: `path` is the file, or the folder that holds `results.json`. `command` is that of the current
    /// experiment, and `config` makes the configuration that it gives to a row and a seed.
    pub fn read(
        path: &Path,
        command: &str,
        config: impl Fn(&TableRow, u64) -> Result<RunConfig, RunConfigError>,
    ) -> Result<Self, RecordError> {
        let path = if path.is_file() { path.to_path_buf() } else { path.join(RESULTS_FILE) };
        let record = ExperimentRecord::read_file(&path)?;
        let same_settings = same_settings(&record, command, config);
        Ok(Self { path, record, same_settings })
    }

    /// The row of a run, with its origin; none if the record has no row of this name and seed.
    pub fn row(&self, wanted: Wanted<'_>) -> Option<Result<RowResult<E>, NotTaken>> {
        let same = |row: &&RowResult<E>| row.name == wanted.row.name && row.seed == wanted.config.train.seed;
        let mut rows = self.record.rows.iter().filter(same).peekable();
        rows.peek()?;
        // A record may have several rows of one name; the reason of the last one is given.
        let mut refused = NotTaken::Unknown;
        for row in rows {
            let origin = row.origin.clone().or_else(|| self.derived_origin(row, wanted));
            refused = match origin {
                Some(origin) if origin.fingerprint == wanted.fingerprint => {
                    return Some(Ok(RowResult { origin: Some(origin), ..row.clone() }));
                }
                Some(_) => NotTaken::Different,
                None => NotTaken::Unknown,
            };
        }
        Some(Err(refused))
    }

    /// The origin of a row that was recorded before rows had origins. The row is taken to be the wanted run if the
    /// record as a whole was made with the same settings, and the row is a preset without other settings and of the
    /// same size.
    fn derived_origin(&self, row: &RowResult<E>, wanted: Wanted<'_>) -> Option<Origin> {
        let same = self.same_settings
            && wanted.row.set.is_empty()
            && row.parameters == wanted.config.model.parameter_count();
        let (machine, version) = (self.record.machine.clone(), self.record.version.clone());
        same.then_some(Origin { fingerprint: wanted.fingerprint, machine, version })
    }
}

/// Whether the presets of a record were trained as the current experiment trains them. That is so if the record was
/// made by the same version of the program with the same command except for rows and seeds, and its first row has the
/// same configuration. It is never so for tasks that read texts, because such a record does not identify the contents
/// of the texts.
fn same_settings<E: Experiment>(
    record: &ExperimentRecord<E>,
    command: &str,
    config: impl Fn(&TableRow, u64) -> Result<RunConfig, RunConfigError>,
) -> bool {
    let settings = |command: &str| -> Vec<String> {
        let words = command.split(" --").map(str::to_string);
        words.filter(|word| !word.starts_with("models ") && !word.starts_with("seeds ")).collect()
    };
    if record.version != env!("CARGO_PKG_VERSION") || settings(&record.command) != settings(command) {
        return false;
    }
    let Ok(recorded) = Layer::text(RESULTS_FILE, &record.config).and_then(|layer| RunConfig::resolve(&[layer]))
    else {
        return false;
    };
    if matches!(recorded.task, TaskConfig::Text(_)) {
        return false;
    }
    let current = config(&TableRow::parse(&recorded.preset), recorded.train.seed);
    current.is_ok_and(|current| current.differences(&recorded).is_empty())
}

/// A row with the measurements that an experiment needs, or the reason why it is not taken; none if interrupted.
pub(super) type MeasuredRow<E> = Result<Option<Result<RowResult<E>, NotTaken>>, ExperimentError>;

/// The record in the output folder, if there is one, and those that the experiment continues from.
pub(super) struct EarlierRecords<E: Experiment> {
    own: Option<Earlier<E>>,
    others: Vec<Earlier<E>>,
}

impl<E: Experiment> EarlierRecords<E> {
    /// Reads the record in the output folder, if there is one, and the records in `options.continue_from`.
    pub fn read(options: &ExperimentOptions, plan: &ExperimentPlan<'_>) -> Result<Self, ExperimentError> {
        let read = |path: &PathBuf| Earlier::read(path, &options.command, |row, seed| plan.config_of(row, seed));
        let own = Some(options.output.join(RESULTS_FILE)).filter(|path| path.exists());
        let own =
            own.map(|path| read(&path).map_err(|source| ExperimentError::OwnRecord { source: Box::new(source) }));
        let others = options.continue_from.iter().map(read).collect::<Result<_, RecordError>>()?;
        Ok(Self { own: own.transpose()?, others })
    }

    fn all(&self) -> impl Iterator<Item = &Earlier<E>> {
        self.own.iter().chain(&self.others)
    }

    /// Whether the record in the output folder has rows.
    pub fn has_own_rows(&self) -> bool {
        self.own.as_ref().is_some_and(|own| !own.record.rows.is_empty())
    }

    /// The recorded row of each run of the plan, if there is one. `measured` returns a row with the measurements that
    /// this experiment needs, or the reason why the record does not have them. None if `measured` was interrupted, as it
    /// shows by returning none.
    pub fn take(
        &self,
        plan: &[PlannedRun],
        fingerprint: &dyn Fn(&RunConfig) -> Fingerprint,
        observer: &dyn Observer,
        mut measured: impl FnMut(&ExperimentRecord<E>, RowResult<E>) -> MeasuredRow<E>,
    ) -> Result<Option<Vec<Option<RowResult<E>>>>, ExperimentError> {
        let mut reused: Vec<(&Path, &str)> = Vec::new();
        let mut rows = Vec::new();
        for PlannedRun { row, title, config, folder } in plan {
            let wanted = Wanted { row, config, fingerprint: fingerprint(config) };
            let (mut taken, mut refused) = (None, None);
            for earlier in self.all() {
                let row = match earlier.row(wanted) {
                    None => continue,
                    Some(Ok(row)) => match measured(&earlier.record, row)? {
                        Some(row) => row,
                        None => return Ok(None),
                    },
                    Some(Err(reason)) => Err(reason),
                };
                match row {
                    Ok(row) => {
                        reused.push((&earlier.path, title));
                        taken = Some(row);
                        break;
                    }
                    Err(reason) => refused = Some((&earlier.path, reason)),
                }
            }
            // A run that has a folder is resumed there, so that nothing is trained again.
            if let (None, Some((path, reason)), false) = (&taken, refused, folder.exists()) {
                observer.note(&format!("{title}: the row in {} {reason}; it is trained again", path.display()));
            }
            rows.push(taken);
        }
        for earlier in self.all() {
            let titles: Vec<&str> =
                reused.iter().filter(|(path, _)| *path == earlier.path).map(|(_, title)| *title).collect();
            let runs = match titles.len() {
                0 => continue,
                1 => "1 run".to_string(),
                count => format!("{count} runs"),
            };
            let path = earlier.path.display();
            observer.note(&format!("{runs} taken from {path}, and not trained again: {}", titles.join("; ")));
        }
        Ok(Some(rows))
    }

    /// Keeps a copy of the record in the output folder if rows would be lost when it is overwritten: rows that were not
    /// taken and have no run folder.
    pub fn set_aside(
        &self,
        output: &Path,
        taken: &[Option<RowResult<E>>],
        observer: &dyn Observer,
    ) -> Result<(), ExperimentError> {
        let Some(own) = &self.own else { return Ok(()) };
        let is_taken = |row: &RowResult<E>| {
            taken.iter().flatten().any(|taken| taken.name == row.name && taken.seed == row.seed)
        };
        let has_folder = |row: &RowResult<E>| output.join(folder_name(&row.name, row.seed)).exists();
        let lost = own.record.rows.iter().filter(|row| !is_taken(row) && !has_folder(row)).count();
        if lost == 0 {
            return Ok(());
        }
        let record = std::fs::read(&own.path).at(&own.path)?;
        for number in 1.. {
            let copy = output.join(format!("results.{number}.json"));
            match std::fs::read(&copy) {
                // It was copied the last time the same command was run.
                Ok(existing) if existing == record => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    write_file(&copy, &record)?;
                    let (own, copy) = (own.path.display(), copy.display());
                    observer.note(&format!(
                        "{own} has {lost} rows that are not part of this experiment; a copy is kept as {copy}"
                    ));
                    break;
                }
                Err(error) => return Err(PathError::new(copy, error).into()),
            }
        }
        Ok(())
    }

    /// The recorded trial of each run of the plan, if there is one.
    pub fn trials(
        &self,
        plan: &[PlannedRun],
        fingerprint: &dyn Fn(&RunConfig) -> Fingerprint,
        observer: &dyn Observer,
    ) -> Vec<Option<Trial>> {
        let mut trials = vec![None; plan.len()];
        for earlier in self.all() {
            let Some(search) = &earlier.record.search else { continue };
            let mut count = 0;
            for (trial, planned) in trials.iter_mut().zip(plan).filter(|(trial, _)| trial.is_none()) {
                *trial = search.recorded(fingerprint(&planned.config));
                count += usize::from(trial.is_some());
            }
            if count > 0 {
                let (all, path) = (plan.len(), earlier.path.display());
                observer.note(&format!("{count} of {all} trials of the search taken from {path}"));
            }
        }
        trials
    }
}
