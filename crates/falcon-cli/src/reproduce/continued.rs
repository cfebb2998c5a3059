//! What earlier records have of an experiment: rows and trials that are taken as they are, and not trained again.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use falcon_lm::config::RunConfig;
use falcon_lm::reproduce::language::LanguageRecord;
use falcon_lm::reproduce::{
    Earlier, Fingerprint, NotTaken, RESULTS_FILE, RecordError, ResultRow, Results, Trial, Wanted,
};
use falcon_nn::write_file;

use super::plan::{Plan, Planned, folder_name};
use super::{ReproduceError, RowsArgs};

/// The record in the output folder, if there is one, and those of `--continue-from`.
pub(super) struct EarlierRecords<R> {
    own: Option<Earlier<R>>,
    others: Vec<Earlier<R>>,
}

impl<R: Results> EarlierRecords<R> {
    /// Reads them all. `command` is that of the experiment at hand.
    pub fn read(args: &RowsArgs, output: &Path, command: &str, plan: &Plan<'_>) -> Result<Self, ReproduceError> {
        let read = |path: &PathBuf| Earlier::read(path, command, |row, seed| plan.config_of(row, seed));
        let own = Some(output.join(RESULTS_FILE)).filter(|path| path.exists());
        let own =
            own.map(|path| read(&path).map_err(|error| ReproduceError::OwnRecord { error: Box::new(error) }));
        let others = args.continue_from.iter().map(read).collect::<Result<_, RecordError>>()?;
        Ok(Self { own: own.transpose()?, others })
    }

    fn all(&self) -> impl Iterator<Item = &Earlier<R>> {
        self.own.iter().chain(&self.others)
    }

    /// Whether the record in the output folder has rows.
    pub fn has_own_rows(&self) -> bool {
        self.own.as_ref().is_some_and(|own| !own.record.rows().is_empty())
    }

    /// The rows that are recorded, one for each run of the plan or none, and says which. `measured` returns a row as it
    /// is asked for, or none if it was not measured in that way.
    pub fn take(
        &self,
        plan: &[Planned],
        fingerprint: &dyn Fn(&RunConfig) -> Fingerprint,
        mut measured: impl FnMut(&R, R::Row) -> Result<Option<R::Row>, ReproduceError>,
    ) -> Result<Vec<Option<R::Row>>, ReproduceError> {
        let mut found: Vec<(&Path, &str)> = Vec::new();
        let mut rows = Vec::new();
        for Planned { row, title, config, folder } in plan {
            let wanted = Wanted { row, config, fingerprint: fingerprint(config) };
            let (mut taken, mut refused) = (None, None);
            for earlier in self.all() {
                let row = match earlier.row(wanted) {
                    None => continue,
                    Some(Ok(row)) => measured(&earlier.record, row)?.ok_or(NotTaken::Measured),
                    Some(Err(reason)) => Err(reason),
                };
                match row {
                    Ok(row) => {
                        found.push((&earlier.path, title));
                        taken = Some(row);
                        break;
                    }
                    Err(reason) => refused = Some((&earlier.path, reason)),
                }
            }
            // What has a folder is not trained from the beginning, whatever a record says.
            if let (None, Some((path, reason)), false) = (&taken, refused, folder.exists()) {
                say(&format!("{title}: the row in {} {reason}; it is trained again", path.display()));
            }
            rows.push(taken);
        }
        for earlier in self.all() {
            let titles: Vec<&str> =
                found.iter().filter(|(path, _)| *path == earlier.path).map(|(_, title)| *title).collect();
            let runs = match titles.len() {
                0 => continue,
                1 => "1 run".to_string(),
                count => format!("{count} runs"),
            };
            let path = earlier.path.display();
            say(&format!("{runs} taken from {path}, and not trained again: {}", titles.join("; ")));
        }
        Ok(rows)
    }

    /// Keeps the record in the output folder under another name if it has rows that would be lost: which are not among
    /// those taken, and have no folder to be found in.
    pub fn set_aside(&self, output: &Path, taken: &[Option<R::Row>]) -> Result<(), ReproduceError> {
        let Some(own) = &self.own else { return Ok(()) };
        let is_taken = |row: &R::Row| {
            let same = |taken: &R::Row| taken.name() == row.name() && taken.seed() == row.seed();
            taken.iter().flatten().any(same)
        };
        let is_there = |row: &R::Row| output.join(folder_name(row.name(), row.seed())).exists();
        let lost = own.record.rows().iter().filter(|row| !is_taken(row) && !is_there(row)).count();
        if lost == 0 {
            return Ok(());
        }
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |error| ReproduceError::Io { path, error }
        };
        let record = std::fs::read(&own.path).map_err(io(&own.path))?;
        for number in 1.. {
            let aside = output.join(format!("results.{number}.json"));
            match std::fs::read(&aside) {
                // Kept the last time the same command was run.
                Ok(kept) if kept == record => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    write_file(&aside, &record).map_err(io(&aside))?;
                    let (own, aside) = (own.path.display(), aside.display());
                    say(&format!("{own} has {lost} rows that this command does not have; it is kept as {aside}"));
                    break;
                }
                Err(error) => return Err(io(&aside)(error)),
            }
        }
        Ok(())
    }
}

impl EarlierRecords<LanguageRecord> {
    /// The trials that are recorded, one for each of the plan or none, and says how many.
    pub fn trials(&self, plan: &[Planned], fingerprint: &dyn Fn(&RunConfig) -> Fingerprint) -> Vec<Option<Trial>> {
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
                say(&format!("{count} of {all} trials of the search taken from {path}"));
            }
        }
        trials
    }
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
