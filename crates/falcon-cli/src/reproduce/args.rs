//! The command line of `falcon reproduce`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Arguments of `falcon reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Which experiment.
    #[command(subcommand)]
    pub command: ReproduceCommand,
}

/// Which experiment.
#[derive(Debug, Subcommand)]
pub enum ReproduceCommand {
    /// Learn sums of few digits, and measure sums of more: the paper's test of length generalisation.
    Addition(AdditionArgs),
}

/// Arguments of `falcon reproduce addition`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct AdditionArgs {
    /// How large.
    #[arg(long, value_enum, default_value = "quick")]
    pub scale: ScaleArg,

    /// Rows; those of the scale if not given. A row is a preset, or one with something changed: falcon-1a.3+model.align=same.
    #[arg(short, long, value_name = "ROWS", value_delimiter = ',')]
    pub models: Vec<String>,

    /// Seeds of each row; those of the scale if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,

    /// Steps of training; those of the scale if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,

    /// Any key of the configuration, for all rows; `falcon train --help` has them.
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Rows that differ in one thing: timing has all four of which key meets a value and when a token reads.
    #[arg(long, value_enum)]
    pub ablation: Option<Ablation>,

    /// Where the runs and the results go; runs/addition-SCALE, or -timing after it, if not given. What is done there is not done again.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Threads; all cores if not given. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Only make table.md and the pictures again from the results.json in this folder, and print the table.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scale", "models", "seeds", "steps", "set", "ablation", "output", "threads"])]
    pub from: Option<PathBuf>,

    /// With --from: put the table into this Markdown file too, between the lines `<!-- addition SCALE -->` and `<!-- end -->`.
    #[arg(long, value_name = "FILE", requires = "from")]
    pub into: Option<PathBuf>,

    /// Print the results as one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// How large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScaleArg {
    /// Four models, one seed: minutes.
    Quick,
    /// All models, three seeds, sums of up to 6 digits: an hour or two.
    Small,
    /// The paper's widths, 1 to 32 digits and 33 to 48: days on two cores.
    Paper,
}

/// Rows that differ in one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ablation {
    /// A value meets the previous key or its own; a token reads after its write or before it.
    Timing,
}

const EXAMPLES: &str = "\
WHAT COMES OUT

  table.md       the table, the command and the configuration
  curves.svg     accuracy by width
  digits.svg     accuracy by width and digit: where a model fails
  results.json   every number: by row, seed, width and digit
  report.html    loss, accuracy and gates over training
  ROW-sSEED/     a run, as `falcon train` leaves it

EXAMPLES

  falcon reproduce addition
  falcon reproduce addition --models falcon-1a.3,deltanet --seeds 3
  falcon reproduce addition --models retnet,retnet+model.conv_size=4
  falcon reproduce addition --scale small --output runs/mine
  falcon reproduce addition --ablation timing --models falcon-1a.3
  falcon reproduce addition --from results/addition/small --into README.md

  Stopped by Ctrl-C or a kill, the same command goes on.";
