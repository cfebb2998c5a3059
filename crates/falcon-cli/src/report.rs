//! `falcon report`: runs side by side, as a page.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use falcon_lm::report::{ReportError, RunRecord, page};
use falcon_nn::write_file;
use serde_json::json;
use thiserror::Error;

/// Arguments of `falcon report`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ReportArgs {
    /// Folders of runs, as `falcon train` writes them. They may still be going on.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,

    /// The page to write. It needs no network and no other file.
    #[arg(short, long, value_name = "HTML", default_value = "report.html")]
    pub output: PathBuf,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES

  falcon report runs/*
  falcon report runs/addition-falcon-3a.3 runs/addition-transformer -o compare.html";

/// Why there is no page.
#[derive(Debug, Error)]
pub enum ReportCommandError {
    /// A run cannot be read.
    #[error(transparent)]
    Run(#[from] ReportError),
    /// The page cannot be written.
    #[error("{}: {error}", path.display())]
    Page {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What was to be printed could not be.
    #[error("the page is written, but stdout is not: {0}")]
    Output(#[from] io::Error),
}

/// Writes the page, and prints where it is.
pub fn run(args: &ReportArgs) -> Result<(), ReportCommandError> {
    let runs: Vec<RunRecord> = args.runs.iter().map(|folder| RunRecord::read(folder)).collect::<Result<_, _>>()?;
    let path = &args.output;
    write_file(path, page(&runs).as_bytes())
        .map_err(|error| ReportCommandError::Page { path: path.clone(), error })?;
    let mut out = io::stdout().lock();
    if args.json {
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        writeln!(out, "{}", json!({ "page": path, "runs": names }))?;
    } else {
        let runs = match runs.len() {
            1 => "1 run".to_string(),
            n => format!("{n} runs"),
        };
        writeln!(out, "{runs} -> {}", path.display())?;
    }
    Ok(())
}
