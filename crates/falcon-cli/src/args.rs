//! The command line.

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::bench::BenchArgs;
use crate::convert::ConvertArgs;
use crate::eval::EvalArgs;
use crate::export::ExportArgs;
use crate::generate::GenerateArgs;
use crate::report::ReportArgs;
use crate::reproduce::ReproduceArgs;
use crate::scan::ScanArgs;
use crate::tokenizer::TokenizerArgs;
use crate::train::TrainArgs;

/// Fast-weight attention: models whose memory learns while they read.
#[derive(Debug, Parser)]
#[command(name = "falcon", version, after_help = GETTING_STARTED)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

const GETTING_STARTED: &str = "\
GETTING STARTED

  falcon reproduce addition                              run the paper's addition experiment on
                                                         short numbers, in minutes
  falcon train --task text --set task.train=book.txt     train a model on a text of yours
  falcon generate runs/text-falcon-3a.3 \"Once upon\"     generate text with it

  falcon COMMAND --help lists all options of a command, with examples.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Repeat an experiment of the paper, and print its table beside the paper's.
    Reproduce(ReproduceArgs),
    /// Train a model, or resume a run that was stopped.
    Train(TrainArgs),
    /// Evaluate trained models: the perplexity of text, and the paper's benchmarks.
    Eval(EvalArgs),
    /// Continue a prompt with a trained model.
    Generate(GenerateArgs),
    /// Train a tokenizer on text.
    Tokenizer(TokenizerArgs),
    /// Convert a trained model to weights in fewer bits, which need less memory and generate faster.
    Convert(ConvertArgs),
    /// Export a trained model to a folder that Hugging Face Transformers can load.
    Export(ExportArgs),
    /// Compare training runs in one HTML page.
    Report(ReportArgs),
    /// Run one rule over the tensors of a file, and write the results to another file.
    Scan(ScanArgs),
    /// Measure speed and memory.
    Bench(BenchArgs),
    /// Print a shell completion script.
    Completions(CompletionsArgs),
}

/// Arguments of `falcon completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub struct CompletionsArgs {
    /// The shell to complete for.
    pub shell: Shell,
}

const COMPLETIONS: &str = "\
EXAMPLES

  falcon completions bash > ~/.local/share/bash-completion/completions/falcon
  falcon completions zsh > ~/.zfunc/_falcon      # with fpath+=~/.zfunc before compinit
  falcon completions fish > ~/.config/fish/completions/falcon.fish";
