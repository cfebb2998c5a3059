//! `falcon scan`: reads a file, runs it, and writes the results to another file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use falcon_nn::write_file;
use falcon_scan::{Options, Outcome, ScanError, Summary};
use serde::Serialize;
use thiserror::Error;

use crate::output::{self, Kind};
use crate::threads::{self, ThreadsError};

/// Why a scan was refused or failed. No output file has been written when one is returned.
#[derive(Debug, Error)]
pub enum ScanFileError {
    /// The input cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The input file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The contents of the input cannot be run.
    #[error("{}: {source}", path.display())]
    Scan {
        /// The input file.
        path: PathBuf,
        /// Why.
        source: Box<ScanError>,
    },
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// The output cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The output path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What a scan did, and where its results are.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was done.
    #[serde(flatten)]
    pub summary: Summary,
    /// Time spent computing, without reading and writing.
    pub seconds: f64,
    /// The file written.
    pub output: PathBuf,
}

/// Runs the file `input` and writes the results to `output`, which must be another file. On error nothing is written.
///
/// Computes on `threads` threads, or on the current `rayon` pool.
pub fn run(
    input: &Path,
    output: &Path,
    options: &Options,
    threads: Option<usize>,
) -> Result<Report, ScanFileError> {
    let failed = |source| ScanFileError::Write { path: output.into(), source };
    let refused = |source| ScanFileError::Scan { path: input.into(), source: Box::new(source) };
    output::check(output, Kind::Scan, [input]).map_err(failed)?;
    let bytes = std::fs::read(input).map_err(|source| ScanFileError::Read { path: input.into(), source })?;
    let pool = threads.map(threads::pool).transpose()?;
    let start = Instant::now();
    let scan = || falcon_scan::run(&bytes, options);
    let Outcome { tensors, meta, summary } = pool.map_or_else(scan, |pool| pool.install(scan)).map_err(refused)?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = tensors.to_bytes(&meta).map_err(|error| refused(error.into()))?;
    write_file(output, &bytes).map_err(failed)?;
    Ok(Report { summary, seconds, output: output.into() })
}
