//! `falcon tokenizer`: train a tokenizer on text.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use falcon_base::{AtPath, PathError};
use falcon_lm::data::{
    CacheError, STDIN, Source, SourceError, Stage, TOKENIZER_FILE, Tokenizer, TokenizerError, cache_folder,
    keep_text, sample,
};
use indicatif::HumanBytes;
use rayon::prelude::*;
use serde_json::json;
use thiserror::Error;

use crate::output::{Kind, check, ignore_closed_stdout};
use crate::progress::Progress;
use crate::threads::{ThreadsError, use_threads};

/// Arguments of `falcon tokenizer`.
#[derive(Debug, Args)]
pub struct TokenizerArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: TokenizerCommand,
}

/// The subcommands of `falcon tokenizer`.
#[derive(Debug, Subcommand)]
pub enum TokenizerCommand {
    /// Train a byte-level BPE tokenizer on text.
    Train(TokenizerTrainArgs),
}

/// Arguments of `falcon tokenizer train`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct TokenizerTrainArgs {
    /// Text to train on: files, or folders with .txt, .md and .jsonl files. Files ending in .xz, .gz and .zst are
    /// decompressed; - is stdin.
    #[arg(value_name = "TEXT", required = true)]
    pub text: Vec<PathBuf>,

    /// Size of the vocabulary, including the 256 bytes and the token that ends a document. It becomes smaller if the
    /// text runs out of pairs of tokens that occur more than once.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub size: usize,

    /// The most text to train on, in MiB. If there is more, a part from the beginning of every file is used.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub sample: u32,

    /// The file to write.
    #[arg(short, long, value_name = "JSON", default_value = TOKENIZER_FILE)]
    pub output: PathBuf,

    /// Number of threads; all cores by default. The tokenizer does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

const HELP: &str = "\
LONG WORDS

  Words of more than 256 bytes, which text without spaces has, are split between characters before
  training. No token is longer than that.

EXAMPLES

  falcon tokenizer train books/ --size 8192 -o books.json
  falcon train --task text --set task.train=books/ --set task.tokenizer=books.json";

/// Why `falcon tokenizer` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerCommandError {
    /// The text cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The text on stdin cannot be kept.
    #[error(transparent)]
    Keep(#[from] CacheError),
    /// The output cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// The tokenizer cannot be trained or written.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Stdout cannot be written.
    #[error("the tokenizer is written, but stdout is not: {0}")]
    Output(#[from] io::Error),
}

/// Trains a tokenizer, writes it, and prints a line about it.
pub fn run(args: &TokenizerArgs) -> Result<(), TokenizerCommandError> {
    let TokenizerCommand::Train(args) = &args.command;
    check(&args.output, Kind::Tokenizer, &args.text).at(&args.output)?;
    use_threads(args.threads.map(Into::into))?;
    let mut sources = Vec::new();
    for path in &args.text {
        let stdin_file =
            (path == Path::new(STDIN)).then(|| keep_text(io::stdin().lock(), &cache_folder()?)).transpose()?;
        sources.push(Source::open(stdin_file.as_ref().unwrap_or(path))?);
    }
    let progress = Progress::spinner("reading text");
    let texts = sample(&sources, (args.sample as usize) << 20)?;
    let bytes: usize = texts.iter().map(String::len).sum();
    let stage = |stage| {
        progress.message(match stage {
            Stage::Words => format!("counting the words of {} of text", HumanBytes(bytes as u64)),
            Stage::Pairs => format!("merging pairs of tokens until there are {}", args.size),
        });
    };
    let tokenizer = Tokenizer::learn_watched(args.size, texts.iter(), &mut { stage })?;
    progress.message("encoding the text".into());
    let lengths: Result<Vec<usize>, TokenizerError> =
        texts.par_iter().map(|text| Ok(tokenizer.try_encode(text)?.len())).collect();
    let tokens: usize = lengths?.into_iter().sum();
    tokenizer.save(&args.output)?;
    drop(progress);
    let (size, path) = (tokenizer.size(), args.output.display());
    let ratio = bytes as f64 / tokens.max(1) as f64;
    if size < args.size {
        let wanted = args.size;
        // Nothing can be done if stderr is closed.
        let _ = writeln!(
            io::stderr(),
            "warning: {size} tokens instead of {wanted}, because no pair of them occurs more than once in this text; give more text"
        );
    }
    let line = if args.json {
        let path = path.to_string();
        json!({ "output": path, "size": size, "asked": args.size, "bytes": bytes, "bytes_per_token": ratio })
            .to_string()
    } else {
        format!("{path}: {size} tokens, {ratio:.2} bytes each on {} of text", HumanBytes(bytes as u64))
    };
    Ok(ignore_closed_stdout(writeln!(io::stdout(), "{line}"))?)
}
