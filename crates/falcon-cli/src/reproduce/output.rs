//! Prints the tables of an experiment, and makes them again from its record.

use std::io::{self, Write};
use std::path::Path;

use falcon_base::AtPath;
use falcon_base::files::write_file;
use falcon_lab::reproduce::{Ended, Experiment, ExperimentRecord, RESULTS_FILE};
use falcon_lab::tables::aligned;
use falcon_lm::train::Outcome;

use super::{ReproduceError, RowsArgs};
use crate::output::{self, Kind, ignore_closed_stdout};

/// Prints the tables of an experiment that ended. If not all of its rows are done, the tables have those that are.
pub(super) fn finish<E: Experiment>(
    args: &RowsArgs,
    output: &Path,
    ended: Ended<E>,
) -> Result<Outcome, ReproduceError> {
    if let Some(record) = &ended.record {
        print(args, record)?;
        if !args.json {
            let files = record.files().into_iter().map(|(name, _)| name).chain(ended.report).chain([RESULTS_FILE]);
            let files = files.collect::<Vec<_>>().join(", ");
            ignore_closed_stdout(writeln!(io::stdout(), "\nAll results are in {}: {files}", output.display()))?;
        }
    }
    match ended.failed {
        Some(failed) => Err(failed.into()),
        None => Ok(ended.outcome),
    }
}

/// Makes the tables and pictures of a recorded experiment again, and puts the tables into a page if asked to.
pub(super) fn remake<E: Experiment>(args: &RowsArgs, folder: &Path) -> Result<Outcome, ReproduceError> {
    if let Some(path) = &args.into {
        output::check(path, Kind::Page, [&folder.join(RESULTS_FILE)]).at(path)?;
    }
    let record = ExperimentRecord::<E>::read(folder)?;
    record.write(folder)?;
    if let Some(path) = &args.into {
        let page = record
            .put_into(&std::fs::read_to_string(path).at(path)?)
            .map_err(|source| ReproduceError::Page { path: path.clone(), source: Box::new(source) })?;
        write_file(path, page.as_bytes())?;
    }
    print(args, &record)?;
    Ok(Outcome::Finished)
}

fn print<E: Experiment>(args: &RowsArgs, record: &ExperimentRecord<E>) -> Result<(), ReproduceError> {
    let text = match args.json {
        true => serde_json::to_string(record).map_err(io::Error::from)? + "\n",
        false => aligned(&record.summary()),
    };
    Ok(ignore_closed_stdout(io::stdout().write_all(text.as_bytes()))?)
}
