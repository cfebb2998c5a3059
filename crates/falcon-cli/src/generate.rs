//! `falcon generate`: text from a trained model.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::Args;
use falcon_lm::data::{Source, SourceError, TextStream};
use falcon_lm::generate::{Sampling, SamplingError, Stops, Stream, StreamError, generate};
use falcon_lm::memory;
use falcon_lm::train::Outcome;
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::FileError;
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use serde_json::json;
use thiserror::Error;

use crate::interrupt::stop_on_interrupt;
use crate::output::{self, Kind};
use crate::progress::Progress;
use crate::threads::{ThreadsError, use_threads};

/// Arguments of `falcon generate`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct GenerateArgs {
    /// A run of `falcon train`, or a folder with config.json and model.safetensors.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The prompt. If not given, it is read from stdin if that is piped, and empty otherwise.
    #[arg(value_name = "PROMPT", conflicts_with_all = ["file", "prompts"])]
    pub prompt: Option<String>,

    /// Take the prompt from a file, of any length; .xz, .gz and .zst are read as they are.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompts")]
    pub file: Option<PathBuf>,

    /// Continue many prompts side by side: a file with one per line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["state_in", "state_out"])]
    pub prompts: Option<PathBuf>,

    /// Tokens to add, at most; 0 only reads.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200)]
    pub max_tokens: usize,

    /// Logits are divided by this: lower is safer, 0 always takes the likeliest.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temperature: f64,

    /// Draw from so many of the likeliest tokens only; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,

    /// Draw from the likeliest tokens that have this much probability together.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub top_p: f64,

    /// Make tokens that came before less likely; 1 does not.
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repetition_penalty: f64,

    /// Random seed; the same seed gives the same text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Stop before this text; may be given many times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,

    /// Go on from a memory that --state-out kept: what was read then is not read again.
    #[arg(long, value_name = "FILE")]
    pub state_in: Option<PathBuf>,

    /// Keep the memory at the end.
    #[arg(long, value_name = "FILE")]
    pub state_out: Option<PathBuf>,

    /// A tokenizer other than the model's own: a tokenizer.json, or a folder with one.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,

    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Say at the end, on stderr, how fast it was and how large the memory is.
    #[arg(long)]
    pub stats: bool,

    /// Print one JSON object at the end instead of text as it comes.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES

  falcon generate runs/text-falcon-3a.3 \"Once upon a time\"
  echo 2+2= | falcon generate runs/mine --temperature 0 -n 5
  falcon generate runs/mine --prompts questions.txt --stop \"?\"

  Read a long text once, ask many times:

  falcon generate runs/mine --file book.txt -n 0 --state-out book.memory
  falcon generate runs/mine --state-in book.memory \"The hero is\"";

/// Why there is no text.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// There is no such model.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// A number outside its range.
    #[error("--{0}")]
    Sampling(#[from] SamplingError),
    /// The memory cannot be read.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The memory cannot be kept.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A prompt cannot be read.
    #[error("{name}: {error}")]
    Prompt {
        /// The file.
        name: String,
        /// What the system said.
        error: io::Error,
    },
    /// No beginnings.
    #[error("{0}: no line of it is a beginning")]
    NoPrompts(PathBuf),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// What was to be printed could not be.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// What was said of one beginning.
#[derive(Clone, Debug, Default, Serialize)]
struct Said {
    prompt: String,
    text: String,
    tokens: usize,
    /// `length`, `end`, `stop` or `interrupted`.
    ended_by: &'static str,
}

/// Text on its way from tokens to the screen.
struct Saying<'a> {
    text: TextStream<'a>,
    stops: Stops,
    said: Said,
}

/// Where a text begins.
enum Beginning {
    Text(String),
    /// Read piece by piece, however long it is.
    File(PathBuf),
}

/// Beginnings that are gone on from side by side, at most.
const TOGETHER: usize = 64;

/// How much there was to do.
#[derive(Default)]
struct Totals {
    read: usize,
    reading: Duration,
    said: usize,
    saying: Duration,
    state_bytes: usize,
    context: usize,
}

/// Says text as it comes, for as long as somebody reads it.
pub fn run(args: &GenerateArgs) -> Result<Outcome, GenerateError> {
    match say_all(args) {
        Err(GenerateError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Outcome::Finished),
        said => said,
    }
}

fn say_all(args: &GenerateArgs) -> Result<Outcome, GenerateError> {
    let GenerateArgs { temperature, top_k, top_p, repetition_penalty, seed, .. } = *args;
    let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed };
    sampling.validate()?;
    if let Some(path) = &args.state_out {
        let inputs = [Some(&args.model), args.file.as_ref(), args.prompts.as_ref()].into_iter().flatten();
        output::check(path, Kind::State, inputs).map_err(|error| FileError::Io { path: path.clone(), error })?;
    }
    use_threads(args.threads.map(Into::into))?;
    let beginnings = beginnings(args)?;
    let trained = Trained::open(&args.model, args.tokenizer.as_deref(), &Device::flex())?;
    let stop = stop_on_interrupt("stopping");
    let mut out = io::stdout().lock();
    let (mut totals, mut all) = (Totals::default(), Vec::new());
    let mut interrupted = false;
    'all: for (index, beginnings) in beginnings.chunks(TOGETHER).enumerate() {
        let begin = Instant::now();
        let progress = Progress::spinner("reading");
        let mut streams = Vec::new();
        for beginning in beginnings {
            let Some((stream, tokens)) = read(args, &trained, beginning, &progress, stop)? else {
                // What was said before is printed.
                interrupted = true;
                break 'all;
            };
            totals.read += tokens;
            streams.push(stream);
        }
        totals.reading += begin.elapsed();
        // What is said as it comes shows by itself how far it is.
        let progress = (args.json || args.prompts.is_some()).then_some(progress);
        let begin = Instant::now();
        let first = index * TOGETHER;
        let (said, streams) = say(args, &trained, &sampling, first, beginnings, streams, progress, &mut out)?;
        totals.saying += begin.elapsed();
        totals.said += said.iter().map(|said| said.tokens).sum::<usize>();
        totals.state_bytes = totals.state_bytes.max(streams.iter().map(Stream::bytes).sum());
        totals.context = streams.iter().map(Stream::position).fold(totals.context, usize::max);
        if !args.json && args.prompts.is_some() {
            for Said { prompt, text, .. } in &said {
                writeln!(out, "{prompt}{text}\n")?;
            }
        }
        all.extend(said);
    }
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let Totals { read, reading, said, saying, state_bytes, context } = totals;
    if args.json {
        let stats = json!({
            "texts": all, "tokens_read": read, "read_per_second": rate(read, reading), "tokens_said": said,
            "said_per_second": rate(said, saying), "state_bytes": state_bytes, "context": context,
            "peak_memory": memory::peak(),
        });
        writeln!(out, "{stats}")?;
    } else if args.prompts.is_none() && args.max_tokens > 0 {
        writeln!(out)?;
    }
    if args.stats {
        let peak = memory::peak().map_or(String::new(), |peak| format!(", peak memory {}", HumanBytes(peak)));
        let _ = writeln!(
            io::stderr(),
            "read {} tokens at {}/s, said {} at {:.1}/s; memory of {} after {} tokens{peak}",
            HumanCount(read as u64),
            HumanCount(rate(read, reading) as u64),
            HumanCount(said as u64),
            rate(said, saying),
            HumanBytes(state_bytes as u64),
            HumanCount(context as u64),
        );
    }
    interrupted |= all.iter().any(|said| said.ended_by == "interrupted");
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Finished })
}

/// What a model keeps of a beginning, and how many tokens that has. None if it was asked to stop.
fn read(
    args: &GenerateArgs,
    trained: &Trained,
    beginning: &Beginning,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<Option<(Stream, usize)>, GenerateError> {
    let Trained { model, tokenizer, weights, .. } = trained;
    let mut stream = match &args.state_in {
        Some(path) => Stream::load(model, weights, path)?,
        None => {
            let mut fresh = Stream::new(model);
            fresh.read(model, &[tokenizer.end()], &mut |_| true);
            fresh
        }
    };
    let mut done = 0;
    let mut go_on = |text: &str| {
        let tokens = tokenizer.encode(text);
        let going = stream.read(model, &tokens, &mut |read| {
            progress.message(format!("{} tokens read", HumanCount((done + read) as u64)));
            !stop.load(Ordering::SeqCst)
        });
        done += tokens.len();
        going
    };
    let going = match beginning {
        Beginning::Text(text) => go_on(text),
        Beginning::File(path) => {
            let read =
                Source::open(path)?.read(|piece| if go_on(&piece.text) { Ok(()) } else { Err(Stop::Asked) });
            match read {
                Ok(()) => true,
                Err(Stop::Asked) => false,
                Err(Stop::Source(error)) => return Err(error.into()),
            }
        }
    };
    Ok(going.then_some((stream, done)))
}

/// Why a file is read no further.
enum Stop {
    Asked,
    Source(SourceError),
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

/// Goes on from beginnings, shows a single one as it comes, and keeps what is to be kept. With `progress`, nothing is shown before the end
/// but how far it is.
#[expect(clippy::too_many_arguments, reason = "called once")]
fn say(
    args: &GenerateArgs,
    trained: &Trained,
    sampling: &Sampling,
    first: usize,
    beginnings: &[Beginning],
    mut streams: Vec<Stream>,
    progress: Option<Progress>,
    out: &mut impl Write,
) -> Result<(Vec<Said>, Vec<Stream>), GenerateError> {
    let Trained { model, tokenizer, weights, .. } = trained;
    let mut sayings: Vec<Saying> = beginnings
        .iter()
        .zip(&streams)
        .map(|(beginning, stream)| Saying {
            text: tokenizer.stream(stream.last()),
            stops: Stops::new(&args.stop),
            said: Said { prompt: beginning.shown(), ended_by: "length", ..Said::default() },
        })
        .collect();
    let (stop, mut broken, mut tokens) = (stop_on_interrupt("stopping"), None, 0);
    if args.max_tokens > 0 {
        streams = generate(model, streams, sampling, first, |sequence, token| {
            let saying = &mut sayings[sequence - first];
            let (new, mut over) = saying.next(token, tokenizer.end(), args.max_tokens);
            if !over && stop.load(Ordering::SeqCst) {
                (saying.said.ended_by, over) = ("interrupted", true);
            }
            tokens += 1;
            if let Some(progress) = &progress {
                progress.message(format!("{} tokens generated", HumanCount(tokens)));
            } else if broken.is_none() {
                broken = out.write_all(new.as_bytes()).and_then(|()| out.flush()).err();
            }
            !over && broken.is_none()
        });
    }
    if let Some(path) = &args.state_out {
        streams[0].save(model, weights, path)?;
    }
    match broken {
        Some(error) => Err(error.into()),
        None => Ok((sayings.into_iter().map(|saying| saying.said).collect(), streams)),
    }
}

impl Beginning {
    /// A text, or the name of the file it is in.
    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

impl Saying<'_> {
    /// What the next token shows, and whether it is the last.
    fn next(&mut self, token: u32, end: u32, most: usize) -> (String, bool) {
        self.said.tokens += 1;
        let (mut new, mut over) = (String::new(), false);
        if token == end {
            (self.said.ended_by, over) = ("end", true);
        } else {
            let text = self.text.push(token);
            let (shown, stopped) = self.stops.push(&text);
            new += &shown;
            if stopped {
                (self.said.ended_by, over) = ("stop", true);
                self.said.text += &new;
                return (new, over);
            }
        }
        if over || self.said.tokens >= most {
            over = true;
            let (shown, stopped) = self.stops.push(&self.text.finish());
            new += &shown;
            if !stopped {
                new += &self.stops.finish();
            }
        }
        self.said.text += &new;
        (new, over)
    }
}

/// Beginnings, one at least.
fn beginnings(args: &GenerateArgs) -> Result<Vec<Beginning>, GenerateError> {
    if let Some(path) = &args.prompts {
        let text = fs::read_to_string(path)
            .map_err(|error| GenerateError::Prompt { name: path.display().to_string(), error })?;
        let lines: Vec<Beginning> =
            text.lines().filter(|line| !line.is_empty()).map(|line| Beginning::Text(line.into())).collect();
        return if lines.is_empty() { Err(GenerateError::NoPrompts(path.clone())) } else { Ok(lines) };
    }
    if let Some(prompt) = &args.prompt {
        return Ok(vec![Beginning::Text(prompt.clone())]);
    }
    if let Some(path) = &args.file {
        return Ok(vec![Beginning::File(path.clone())]);
    }
    let mut text = String::new();
    if !io::stdin().is_terminal() {
        let wrong = |error| GenerateError::Prompt { name: "stdin".into(), error };
        io::stdin().lock().read_to_string(&mut text).map_err(wrong)?;
        // What `echo` adds is not meant.
        if text.ends_with('\n') {
            text.pop();
        }
    }
    Ok(vec![Beginning::Text(text)])
}
