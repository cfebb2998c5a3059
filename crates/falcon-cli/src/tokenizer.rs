//! `falcon tokenizer`: learn one from text.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use falcon_lm::data::{Source, SourceError, TOKENIZER_FILE, Tokenizer, TokenizerError, sample};
use serde_json::json;
use thiserror::Error;

use crate::output::{self, printed};
use crate::progress::with_spinner;

/// Arguments of `falcon tokenizer`.
#[derive(Debug, Args)]
pub struct TokenizerArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenizerCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum TokenizerCommand {
    /// Learn a byte-level BPE from text.
    Train(TokenizerTrainArgs),
}

/// Arguments of `falcon tokenizer train`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct TokenizerTrainArgs {
    /// Files, or folders of .txt, .md and .jsonl files; .xz, .gz and .zst are read as they are.
    #[arg(value_name = "TEXT", required = true)]
    pub text: Vec<PathBuf>,

    /// Tokens it shall have, the 256 bytes and the end of a document among them.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub size: usize,

    /// Text it learns from, at most, in MiB: from the beginning of every file a part.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub sample: u32,

    /// The file to write.
    #[arg(short, long, value_name = "JSON", default_value = TOKENIZER_FILE)]
    pub output: PathBuf,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES

  falcon tokenizer train books/ --size 8192 -o books.json
  falcon train --task text --set task.train=books/ --set task.tokenizer=books.json";

/// Why there is no tokenizer.
#[derive(Debug, Error)]
pub enum TokenizerCommandError {
    /// The text cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// It cannot be learnt or written.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// What was to be printed could not be.
    #[error("the tokenizer is written, but stdout is not: {0}")]
    Output(#[from] io::Error),
}

/// Learns, writes and says what came out.
pub fn run(args: &TokenizerArgs) -> Result<(), TokenizerCommandError> {
    let TokenizerCommand::Train(args) = &args.command;
    let io = |error| TokenizerError::Io { path: args.output.clone(), error };
    output::check(&args.output).map_err(io)?;
    let sources = args.text.iter().map(|path| Source::open(path)).collect::<Result<Vec<_>, _>>()?;
    let made = with_spinner("learning a tokenizer", || {
        let texts = sample(&sources, (args.sample as usize) << 20)?;
        let tokenizer = Tokenizer::learn(args.size, texts.iter().cloned())?;
        tokenizer.save(&args.output)?;
        let bytes: usize = texts.iter().map(String::len).sum();
        let tokens: usize = texts.iter().map(|text| tokenizer.encode(text).len()).sum();
        Ok::<_, TokenizerCommandError>((tokenizer, bytes, tokens))
    });
    let (tokenizer, bytes, tokens) = made?;
    let (size, path) = (tokenizer.size(), args.output.display());
    let ratio = bytes as f64 / tokens.max(1) as f64;
    let said = if args.json {
        let path = path.to_string();
        json!({ "output": path, "size": size, "bytes": bytes, "bytes_per_token": ratio }).to_string()
    } else {
        let mib = bytes as f64 / 1048576.0;
        format!("{path}: {size} tokens, {ratio:.2} bytes each over {mib:.1} MiB of text")
    };
    Ok(printed(writeln!(io::stdout(), "{said}"))?)
}
