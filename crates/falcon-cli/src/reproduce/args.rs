//! The command line of `falcon reproduce`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::DetokenizeArg;

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
    /// Train language models on one text, and measure perplexity and the paper's benchmarks.
    Lm(LanguageArgs),
}

/// Arguments of all experiments.
#[derive(Debug, Args)]
pub struct RowsArgs {
    /// How large.
    #[arg(long, value_enum, default_value = "quick")]
    pub scale: ScaleArg,

    /// Rows; those of the scale if not given. A row is a preset, or one with something changed: falcon-1a.3+model.align=same.
    #[arg(short, long, value_name = "ROWS")]
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

    /// Where the runs and the results go; runs/EXPERIMENT-SCALE if not given. What is done there is not done again.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Go on from a record made elsewhere: a results.json, or the folder that holds one; may be given several times. A
    /// row that is recorded with the same name, seed, configuration, data and measurements is taken as it is, and so is
    /// a trial of a search. The record in the output folder is read in any case.
    #[arg(long, value_name = "DIR")]
    pub continue_from: Vec<PathBuf>,

    /// Threads; all cores if not given. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Runs side by side, which share the threads; if not given, one per thread, or one alone if a model has more than 10 million parameters.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,

    /// Rows that differ in one thing. timing: the four combinations of alignment (next/same) and read
    /// (after/before) of every model but the Transformer. Where there is a search, it is done once for each model
    /// as it is, and its four rows share what was found.
    #[arg(long, value_enum)]
    pub ablation: Option<Ablation>,

    /// Only make the tables and pictures again from the results.json in this folder, and print the tables.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scale", "models", "seeds", "steps", "set", "output", "continue_from", "threads", "jobs", "ablation"])]
    pub from: Option<PathBuf>,

    /// With --from: put the tables into this Markdown file too, between the lines `<!-- EXPERIMENT SCALE -->` and `<!-- end -->`.
    #[arg(long, value_name = "FILE", requires = "from")]
    pub into: Option<PathBuf>,

    /// Print the results as one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `falcon reproduce addition`.
#[derive(Debug, Args)]
#[command(after_long_help = ADDITION)]
pub struct AdditionArgs {
    /// What all experiments have.
    #[command(flatten)]
    pub rows: RowsArgs,
}

/// Arguments of `falcon reproduce lm`.
#[derive(Debug, Args)]
#[command(after_long_help = LANGUAGE)]
pub struct LanguageArgs {
    /// What all experiments have.
    #[command(flatten)]
    pub rows: RowsArgs,

    /// The text to learn from: a file or a folder, as for `falcon train --task text`.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["from", "estimate"], conflicts_with = "from")]
    pub train: Option<PathBuf>,

    /// The text to be measured on, while training and after it.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["from", "estimate"], conflicts_with = "from")]
    pub valid: Option<PathBuf>,

    /// The tokenizer: bytes, a tokenizer.json, or a folder with vocab.json and merges.txt; one of 4096 tokens is learnt from the training
    /// text, 16 MiB of it at most, if not given.
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    pub tokenizer: Option<String>,

    /// Other text whose perplexity to measure; may be given many times.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "from")]
    pub text: Vec<PathBuf>,

    /// Put the text of --text together again before it is read, and count words and bytes as they were before;
    /// `falcon eval --help` says how. The validation text is read as it is.
    #[arg(long, value_enum, value_name = "KIND", requires = "text", conflicts_with = "from")]
    pub detokenize: Option<DetokenizeArg>,

    /// The folder with the benchmarks, NAME.jsonl each; without it, none are asked.
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    pub data: Option<PathBuf>,

    /// Examples before each question, up to 8, drawn for each as `falcon eval` does; a list such as 0,1 asks again
    /// for each number.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,1", requires = "data", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub shots: Vec<u8>,

    /// Questions of each benchmark, at most, from all over its file; those of the scale if not given.
    #[arg(long, value_name = "N", requires = "data")]
    pub limit: Option<usize>,

    /// Search for the learning rate and the initial scale of the embedding of every model first, also where the
    /// scale does not, by runs of so many steps; those of the scale, or 250, if not given, and no more than a full
    /// run has. A value that is set by --set, or by a row, is kept.
    #[arg(long, value_name = "STEPS", require_equals = true, conflicts_with = "from",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub search: Option<Option<u64>>,

    /// Search for nothing, also where the scale does.
    #[arg(long, conflicts_with_all = ["from", "search"])]
    pub no_search: bool,

    /// Train nothing: time a step of every row, and say what training would take on this machine, at best. Needs --tokenizer, and no text.
    #[arg(long, conflicts_with = "from", requires = "tokenizer")]
    pub estimate: bool,
}

/// How large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScaleArg {
    /// A few models, one seed: minutes.
    Quick,
    /// All models, three seeds: hours on two cores.
    Small,
    /// The paper's widths (addition) or configuration (lm): hours or years on two cores.
    Paper,
}

/// Rows that differ in one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ablation {
    /// A value meets the previous key or its own; a token reads after its write or before it.
    Timing,
}

pub(super) const ADDITION: &str = "\
SCALES

  quick   4 models learn sums of 1 to 4 digits, measured to 6
  small   13 models, 1 to 6 digits, measured to 12
  paper   9 models, 1 to 32 digits, measured to 64: hours per model

WHAT COMES OUT

  table.md       the table, the command and the configuration
  curves.svg     right digits and right sums by width
  digits.svg     accuracy by width and digit: where a model fails
  results.json   every number: by row, seed, width and digit
  report.html    loss, accuracy and gates over training
  ROW-sSEED/     a run, as `falcon train` leaves it

  All but report.html is written after every run, and says how many are done while some are not.

EXAMPLES

  falcon reproduce addition
  falcon reproduce addition --models falcon-1a.3,deltanet --seeds 3
  falcon reproduce addition --models retnet,retnet+model.conv_size=4
  falcon reproduce addition --scale small --output runs/mine
  falcon reproduce addition --ablation timing --models falcon-1a.3
  falcon reproduce addition --set task.operands=independent --set task.leading_zeros=false
  falcon reproduce addition --from results/addition/small --into README.md
  falcon reproduce addition --scale paper --continue-from results/addition/authors

  Stopped by Ctrl-C or a kill, the same command goes on. It needs only results.json for that, so it
  goes on from a copy of that file on another machine too. Rows stand in the order that was asked
  for, whichever machine they come from.";

pub(super) const LANGUAGE: &str = "\
SCALES

  quick   4 models of 0.9M parameters, 0.4M tokens, 100 questions of each benchmark
  small   12 models of 1.3M parameters, 4M tokens, 500 questions of each benchmark
  paper   10 models of 130M parameters, 49.2 billion tokens, all questions; give it GPT-2's
          tokenizer, and a machine: --estimate says how long this one would take

SEARCH

  At the scale small, every model first tries learning rates of 2e-3, 4e-3 and 8e-3 with initial
  scales of the embedding of 0.005 and 0.02: one run of 250 steps and seed 1000 for each of the six,
  the same for all models. The one of the lowest validation loss is taken for all seeds. One that
  diverges is never taken. table.md has the losses, and marks what was chosen at the edge of the
  grid. Elsewhere the learning rate is the scale's, and --search does the same.

WHAT COMES OUT

  table.md        perplexities, accuracies, the command and the configuration
  curves.svg      validation perplexity while training
  results.json    every number: by row and seed
  report.html     loss, perplexity and gates over training
  tokenizer.json  if it was learnt here
  ROW-sSEED/      a run, as `falcon train` leaves it; `falcon eval` and `falcon generate` take it
  search/         the runs of the search

  All but report.html is written after every run, and says how many are done while some are not.

ENVIRONMENT

  FALCON_CACHE    the folder where text is kept as tokens, to be made into tokens only once; by
                  default $XDG_CACHE_HOME/falcon or ~/.cache/falcon. It may be deleted any time.

EXAMPLES

  falcon reproduce lm --train books.txt.xz --valid other.txt
  falcon reproduce lm --scale small --train books/ --valid held-out.txt --data eval/
  falcon reproduce lm --train books/ --valid held-out.txt --text wiki.test.raw --detokenize wikitext
  falcon reproduce lm --train books.txt.xz --valid other.txt --search=100
  falcon reproduce lm --train books.txt.xz --valid other.txt --ablation timing -m falcon-1a.3
  falcon reproduce lm --scale paper --tokenizer gpt2/ --estimate
  falcon reproduce lm --from results/lm/small --into README.md
  falcon reproduce lm --train books/ --valid held-out.txt --continue-from other-machine/

  What a line of eval/NAME.jsonl is, `falcon eval --help` says. Stopped by Ctrl-C or a kill, the
  same command goes on. It needs only results.json for that, so it goes on from a copy of that
  file on another machine too. Rows stand in the order that was asked for, whichever machine they
  come from.";
