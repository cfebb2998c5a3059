//! `falcon tokenizer`: learn one from text.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use falcon_lm::data::{
    CacheError, STDIN, Source, SourceError, Stage, TOKENIZER_FILE, Tokenizer, TokenizerError, cache_folder,
    keep_text, sample,
};
use rayon::prelude::*;
use serde_json::json;
use thiserror::Error;

use crate::output::{self, Kind, printed};
use crate::progress::Progress;
use crate::threads::{ThreadsError, use_threads};

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
    /// Files, or folders of .txt, .md and .jsonl files; .xz, .gz and .zst are read as they are. `-` is standard input.
    #[arg(value_name = "TEXT", required = true)]
    pub text: Vec<PathBuf>,

    /// Tokens it shall have, the 256 bytes and the end of a document among them. It has fewer where no two tokens
    /// stand side by side more than once.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub size: usize,

    /// Text it learns from, at most, in MiB: from the beginning of every file a part.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub sample: u32,

    /// The file to write.
    #[arg(short, long, value_name = "JSON", default_value = TOKENIZER_FILE)]
    pub output: PathBuf,

    /// Threads; all cores if not given. The tokenizer does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
LONG WORDS

  Words of more than 256 bytes, as text without spaces has them, are cut between characters before
  they are learnt from. No token is longer than that.

EXAMPLES

  falcon tokenizer train books/ --size 8192 -o books.json
  falcon train --task text --set task.train=books/ --set task.tokenizer=books.json";

/// Why there is no tokenizer.
#[derive(Debug, Error)]
pub enum TokenizerCommandError {
    /// The text cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Standard input cannot be kept.
    #[error(transparent)]
    Keep(#[from] CacheError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
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
    output::check(&args.output, Kind::Tokenizer, &args.text).map_err(io)?;
    use_threads(args.threads.map(Into::into))?;
    let mut sources = Vec::new();
    for path in &args.text {
        let kept =
            (path == Path::new(STDIN)).then(|| keep_text(io::stdin().lock(), &cache_folder()?)).transpose()?;
        sources.push(Source::open(kept.as_ref().unwrap_or(path))?);
    }
    let progress = Progress::spinner("reading text");
    let texts = sample(&sources, (args.sample as usize) << 20)?;
    let bytes: usize = texts.iter().map(String::len).sum();
    let mib = bytes as f64 / 1048576.0;
    let stage = |stage| {
        progress.message(match stage {
            Stage::Words => format!("counting the words of {mib:.1} MiB of text"),
            Stage::Pairs => format!("joining pairs of tokens until there are {}", args.size),
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
        let asked = args.size;
        // Nothing is left to do if stderr is gone.
        let _ = writeln!(
            io::stderr(),
            "warning: {size} tokens, not the {asked} that were asked for: no two of them stand side by side more than once in \
             this text; give more text"
        );
    }
    let said = if args.json {
        let path = path.to_string();
        json!({ "output": path, "size": size, "asked": args.size, "bytes": bytes, "bytes_per_token": ratio })
            .to_string()
    } else {
        format!("{path}: {size} tokens, {ratio:.2} bytes each over {mib:.1} MiB of text")
    };
    Ok(printed(writeln!(io::stdout(), "{said}"))?)
}
