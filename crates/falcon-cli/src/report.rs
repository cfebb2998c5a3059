//! `falcon report`: compares runs in an HTML page.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use falcon_base::files::write_file;
use falcon_base::{AtPath, PathError};
use falcon_lab::report::{ReportError, RunRecord, page};
use falcon_lm::config::RUN_FILE;
use serde_json::json;
use thiserror::Error;

use crate::output::{self, Kind, ignore_closed_stdout};

/// Arguments of `falcon report`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ReportArgs {
    /// Folders of runs, as `falcon train` writes them, or folders that contain such folders. The runs may still be in
    /// progress.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// The page to write. It is self-contained: it needs neither a network nor other files.
    #[arg(short, long, value_name = "HTML", default_value = "report.html")]
    pub output: PathBuf,

    /// Print a JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES

  falcon report runs/*
  falcon report runs/addition-falcon-3a.3 runs/addition-transformer -o compare.html";

/// `falcon report` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReportCommandError {
    /// A run cannot be read.
    #[error(transparent)]
    Run(#[from] ReportError),
    /// The page cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The page was written, but the line about it cannot be printed.
    #[error("the page is written, but stdout cannot be: {0}")]
    Output(#[from] io::Error),
}

/// The run in a folder or, for the folder of an experiment, all runs in it.
fn read(folder: &Path) -> Result<Vec<RunRecord>, ReportError> {
    let not_a_run = match RunRecord::read(folder) {
        Err(error @ ReportError::NotARun { .. }) => error,
        run => return Ok(vec![run?]),
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut inside: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join(RUN_FILE).exists()).collect();
    inside.sort();
    if inside.is_empty() { Err(not_a_run) } else { inside.iter().map(|path| RunRecord::read(path)).collect() }
}

/// Writes the page, and prints its path.
pub fn run(args: &ReportArgs) -> Result<(), ReportCommandError> {
    let path = &args.output;
    output::check(path, Kind::Html, &args.runs).at(path)?;
    let mut runs = Vec::new();
    for folder in &args.runs {
        runs.extend(read(folder)?);
    }
    for damage in runs.iter().filter_map(|run| run.damage.as_ref()) {
        let _ = writeln!(io::stderr(), "warning: {damage}; the line is left out");
    }
    write_file(path, page(&runs).as_bytes())?;
    let line = if args.json {
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        json!({ "page": path.display().to_string(), "runs": names }).to_string()
    } else {
        let runs = match runs.len() {
            1 => "1 run".to_string(),
            n => format!("{n} runs"),
        };
        format!("{runs} -> {}", path.display())
    };
    Ok(ignore_closed_stdout(writeln!(io::stdout(), "{line}"))?)
}
