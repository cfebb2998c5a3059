//! `falcon scan`: runs a rule over the tensors of one file and writes the results to another.

mod args;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use falcon_base::files::write_file;
use falcon_base::{AtPath, PathError};
use falcon_scan::{Options, ScanError, ScanOutput, Summary};
use serde::Serialize;
use thiserror::Error;

pub use self::args::{DtypeArg, FormArg, ScanArgs};
use crate::output::{Kind, check, ignore_closed_stdout};
use crate::progress::with_spinner;
use crate::threads::{self, ThreadsError};

/// Why a scan was refused or failed. Except for [`ScanFileError::Output`], no output file has been written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScanFileError {
    /// The input cannot be read.
    #[error("cannot read {0}")]
    Read(#[source] PathError),
    /// The contents of the input cannot be run.
    #[error("{}: {source}", path.display())]
    Scan {
        /// The input file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<ScanError>,
    },
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// The output cannot be written.
    #[error("cannot write {0}")]
    Write(#[source] PathError),
    /// Stdout cannot be written.
    #[error("the output is written, but stdout is not: {0}")]
    Output(#[from] io::Error),
}

/// What a scan did, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    /// Time spent computing, without reading and writing.
    seconds: f64,
    /// The file written.
    output: PathBuf,
}

/// Runs a scan, and prints a line about it.
pub fn run(args: &ScanArgs) -> Result<(), ScanFileError> {
    let message = format!("scanning {}", args.input.display());
    let threads = args.threads.map(usize::from);
    let report = with_spinner(&message, || scan(&args.input, &args.output, &args.into(), threads))?;
    let line = match args.json {
        true => serde_json::to_string(&report).map_err(io::Error::from)?,
        false => report.line(),
    };
    Ok(ignore_closed_stdout(writeln!(io::stdout(), "{line}"))?)
}

/// Runs the file `input` on `threads` threads, or all cores, and writes the results to `output`, which must be
/// another file.
fn scan(input: &Path, output: &Path, options: &Options, threads: Option<usize>) -> Result<Report, ScanFileError> {
    let refused = |source| ScanFileError::Scan { path: input.into(), source: Box::new(source) };
    check(output, Kind::Scan, [input]).at(output).map_err(ScanFileError::Write)?;
    let bytes = std::fs::read(input).at(input).map_err(ScanFileError::Read)?;
    let pool = threads.map(threads::pool).transpose()?;
    let start = Instant::now();
    let scan = || falcon_scan::run(&bytes, options);
    let ScanOutput { tensors, meta, summary } =
        pool.map_or_else(scan, |pool| pool.install(scan)).map_err(refused)?;
    let seconds = start.elapsed().as_secs_f64();
    let bytes = tensors.to_bytes(&meta).map_err(|error| refused(error.into()))?;
    write_file(output, &bytes).map_err(ScanFileError::Write)?;
    Ok(Report { summary, seconds, output: output.into() })
}

impl Report {
    fn line(&self) -> String {
        let Self { summary, seconds, output } = self;
        let form = match summary.chunk {
            Some(chunk) => format!("{} {chunk}", summary.form),
            None => summary.form.into(),
        };
        let sequences = match summary.sequences {
            1 => String::new(),
            n => format!(" in {n} sequences"),
        };
        format!(
            "{}: T={}{sequences} H={} dx={} dv={}, {form}, {}{}, {seconds:.3} s -> {}",
            summary.variant,
            summary.tokens,
            summary.heads,
            summary.dim_k,
            summary.dim_v,
            summary.dtype,
            if summary.grad { " with gradients" } else { "" },
            output.display(),
        )
    }
}
