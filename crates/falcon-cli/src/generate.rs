//! `falcon generate`: text from a trained model.

mod prompts;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::Args;
use falcon_lm::data::{SourceError, TextStream, TokenizerError};
use falcon_lm::generate::{Sampling, SamplingError, Stops, Stream, StreamError, generate};
use falcon_lm::memory;
use falcon_lm::train::Outcome;
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::FileError;
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use serde_json::json;
use thiserror::Error;

use self::prompts::{Lines, Prompt, unescape, visible};
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

    /// Take the prompt from a file, of any length, or from stdin by -; .xz, .gz and .zst files are decompressed.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompts")]
    pub file: Option<PathBuf>,

    /// Continue many prompts side by side: a file with one per line, or - for stdin. With --state-in, each of them
    /// continues from that state.
    #[arg(long, value_name = "FILE", conflicts_with = "state_out")]
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

    /// Stop before this text, in which \n is a newline, \t a tab and \\ a backslash; may be given many times.
    #[arg(long, value_name = "TEXT", value_parser = unescape)]
    pub stop: Vec<String>,

    /// Print the prompt before its text; JSON always has both.
    #[arg(long)]
    pub echo: bool,

    /// Continue from a state that --state-out saved: what was read then is not read again.
    #[arg(long, value_name = "FILE")]
    pub state_in: Option<PathBuf>,

    /// Save the state at the end.
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
  falcon generate runs/mine --prompts questions.txt --stop \"\\n\"

  Read a long text once, ask many times:

  falcon generate runs/mine --file book.txt -n 0 --state-out book.memory
  falcon generate runs/mine --state-in book.memory \"The hero is\"

SUMS

  A model of the default task of `falcon train`, addition, continues a sum. Digits are written with
  the lowest first, in both operands (which have the same number of digits) and in the result,
  which has one digit more. So 12 + 34 = 46 is written as 21+43=640:

  falcon train
  falcon generate runs/addition-falcon-3a.3 \"21+43=\" -n 3 --temperature 0

  -n says how many digits to write. A model that was trained with task.leading_zeros=false stops
  by itself after the last digit; with task.order=sum-reversed only the result is reversed.

CONTROL CHARACTERS

  A model may generate any character. On a terminal, control characters but for newlines and tabs
  are shown as \\x1b and the like; into a file or a pipe they are written as they are.";

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
    /// A prompt has characters that the tokenizer does not know.
    #[error("the prompt: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// A folder, a device or a pipe.
    #[error("{}: not a regular file; name a file, or - for stdin", path.display())]
    NotRegular {
        /// What was named.
        path: PathBuf,
    },
    /// A line that is no prompt.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A prompt cannot be read.
    #[error("{name}: {error}")]
    Prompt {
        /// The file.
        name: String,
        /// What the system said.
        error: io::Error,
    },
    /// No prompts.
    #[error("{0}: no prompt in it: all of its lines are empty")]
    NoPrompts(PathBuf),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// What was to be printed could not be.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// What was generated after one prompt.
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

/// Prompts that are continued side by side, at most.
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
        let files = [Some(&args.model), args.file.as_ref(), args.prompts.as_ref(), args.state_in.as_ref()];
        output::check(path, Kind::State, files.into_iter().flatten())
            .map_err(|error| FileError::Io { path: path.clone(), error })?;
    }
    use_threads(args.threads.map(Into::into))?;
    // What cannot be read is said before the model is opened.
    let mut lines = args.prompts.as_deref().map(Lines::open).transpose()?;
    let mut prompts = match &mut lines {
        Some(lines) => lines.take(TOGETHER)?,
        None => vec![Prompt::of(args)?],
    };
    if let (Some(path), true) = (&args.prompts, prompts.is_empty()) {
        return Err(GenerateError::NoPrompts(path.clone()));
    }
    let trained = Trained::open(&args.model, args.tokenizer.as_deref(), &Device::flex())?;
    let begun = match &args.state_in {
        Some(path) => Stream::load(&trained.model, &trained.weights, path)?,
        None => {
            let mut fresh = Stream::new(&trained.model);
            fresh.read(&trained.model, &[trained.tokenizer.begin()], &mut |_| true);
            fresh
        }
    };
    let stop = stop_on_interrupt("stopping");
    let mut out = Output { out: io::stdout().lock(), terminal: io::stdout().is_terminal() };
    let (mut totals, mut number) = (Totals::default(), 0);
    let mut interrupted = false;
    if args.json {
        out.raw("{\"texts\":[")?;
    }
    'all: while !prompts.is_empty() {
        let begin = Instant::now();
        let progress = Progress::spinner("reading");
        let mut streams = Vec::new();
        for prompt in &prompts {
            let echo = (args.echo && args.prompts.is_none() && !args.json).then_some(&mut out);
            let Some((stream, tokens)) = read(&trained, begun.clone(), prompt, &progress, stop, echo)? else {
                // What was generated before is printed.
                interrupted = true;
                break 'all;
            };
            totals.read += tokens;
            streams.push(stream);
        }
        totals.reading += begin.elapsed();
        // What is printed as it comes shows by itself how far it is.
        let progress = (args.json || args.prompts.is_some()).then_some(progress);
        let begin = Instant::now();
        let (said, streams) = say(args, &trained, &sampling, number, &prompts, streams, progress, &mut out)?;
        totals.saying += begin.elapsed();
        totals.said += said.iter().map(|said| said.tokens).sum::<usize>();
        totals.state_bytes = totals.state_bytes.max(streams.iter().map(Stream::bytes).sum());
        totals.context = streams.iter().map(Stream::position).fold(totals.context, usize::max);
        for one in &said {
            if args.json {
                let separator = if number == 0 { "" } else { "," };
                out.json(&format!("{separator}{}", serde_json::to_string(one).map_err(io::Error::from)?))?;
            } else if args.prompts.is_some() {
                out.text(&format!("{}{}\n\n", if args.echo { one.prompt.as_str() } else { "" }, one.text))?;
            }
            number += 1;
        }
        interrupted |= said.iter().any(|said| said.ended_by == "interrupted");
        if interrupted {
            break;
        }
        prompts = lines.as_mut().map_or(Ok(Vec::new()), |lines| lines.take(TOGETHER))?;
    }
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let Totals { read, reading, said, saying, state_bytes, context } = totals;
    if args.json {
        let stats = json!({
            "tokens_read": read, "read_per_second": rate(read, reading), "tokens_said": said,
            "said_per_second": rate(said, saying), "state_bytes": state_bytes, "context": context,
            "peak_memory": memory::peak(),
        });
        // The rest of the object that began with the texts.
        out.raw(&format!("],{}\n", &stats.to_string()[1..]))?;
    } else if args.prompts.is_none() && (args.max_tokens > 0 || args.echo) {
        out.raw("\n")?;
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
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Finished })
}

/// What is printed: to a terminal, control characters are made visible.
struct Output<W> {
    out: W,
    terminal: bool,
}

impl<W: Write> Output<W> {
    /// Text of a model or a prompt.
    fn text(&mut self, text: &str) -> io::Result<()> {
        if self.terminal { self.raw(&visible(text)) } else { self.raw(text) }
    }

    /// JSON, which leaves the control characters from 7f on as they are.
    fn json(&mut self, json: &str) -> io::Result<()> {
        let escaped = |c: char| if c.is_control() { format!("\\u{:04x}", c as u32) } else { c.into() };
        if self.terminal { self.raw(&json.chars().map(escaped).collect::<String>()) } else { self.raw(json) }
    }

    /// Text of our own.
    fn raw(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush())
    }
}

/// Reads a prompt after what `stream` has read, and prints it to `echo`. Returns the stream and how many tokens the
/// prompt has; none if it was asked to stop.
fn read(
    trained: &Trained,
    mut stream: Stream,
    prompt: &Prompt,
    progress: &Progress,
    stop: &AtomicBool,
    mut echo: Option<&mut Output<impl Write>>,
) -> Result<Option<(Stream, usize)>, GenerateError> {
    let Trained { model, tokenizer, .. } = trained;
    let mut done = 0;
    let going = prompt.read(|text| {
        let tokens = tokenizer.try_encode(text)?;
        if let Some(echo) = &mut echo {
            echo.text(text)?;
        }
        let going = stream.read(model, &tokens, &mut |read| {
            progress.message(format!("{} tokens read", HumanCount((done + read) as u64)));
            !stop.load(Ordering::SeqCst)
        });
        done += tokens.len();
        Ok(going)
    })?;
    Ok(going.then_some((stream, done)))
}

/// Continues prompts, prints the text of a single one as it comes, and keeps what is to be kept. With `progress`,
/// nothing is shown before the end but how far it is.
#[expect(clippy::too_many_arguments, reason = "called once")]
fn say(
    args: &GenerateArgs,
    trained: &Trained,
    sampling: &Sampling,
    first: usize,
    prompts: &[Prompt],
    mut streams: Vec<Stream>,
    progress: Option<Progress>,
    out: &mut Output<impl Write>,
) -> Result<(Vec<Said>, Vec<Stream>), GenerateError> {
    let Trained { model, tokenizer, weights, .. } = trained;
    let mut sayings: Vec<Saying> = prompts
        .iter()
        .zip(&streams)
        .map(|(prompt, stream)| Saying {
            text: tokenizer.stream(stream.last()),
            stops: Stops::new(&args.stop),
            said: Said { prompt: prompt.shown(), ended_by: "length", ..Said::default() },
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
                broken = out.text(&new).err();
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
