//! `falcon generate`: text from a trained model.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use clap::Args;
use falcon_lm::data::TextStream;
use falcon_lm::generate::{Sampling, SamplingError, Stops, Stream, StreamError, generate};
use falcon_lm::memory;
use falcon_lm::train::Outcome;
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::FileError;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use thiserror::Error;

use crate::train::{asked_to_stop, use_threads};

/// Arguments of `falcon generate`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct GenerateArgs {
    /// A run of `falcon train`, or a folder with config.json and model.safetensors.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The beginning of the text. Without it, what stdin has if it is no terminal, or nothing.
    #[arg(value_name = "PROMPT", conflicts_with_all = ["file", "prompts"])]
    pub prompt: Option<String>,

    /// Take the beginning from a file.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompts")]
    pub file: Option<PathBuf>,

    /// Go on from many beginnings side by side: a file with one a line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["state_in", "state_out"])]
    pub prompts: Option<PathBuf>,

    /// Tokens to add, at most; 0 only reads.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200)]
    pub max_tokens: usize,

    /// Logits are divided by this: lower is safer, 0 always takes the likeliest.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temperature: f64,

    /// Draw from so many of the likeliest tokens only; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,

    /// Draw from the likeliest tokens that have this much probability together.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f64,

    /// Make tokens that came before less likely; 1 does not.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f64,

    /// Of the draws: the same seed says the same.
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

/// Says text as it comes.
pub fn run(args: &GenerateArgs) -> Result<Outcome, GenerateError> {
    let GenerateArgs { temperature, top_k, top_p, repetition_penalty, seed, .. } = *args;
    let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed };
    sampling.validate()?;
    use_threads(args.threads);
    let stop = asked_to_stop();
    let prompts = prompts(args)?;
    let Trained { model, tokenizer, weights, .. } =
        Trained::open(&args.model, args.tokenizer.as_deref(), &Device::flex())?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    let begin = Instant::now();
    let mut streams = Vec::new();
    let mut read = 0;
    for prompt in &prompts {
        let mut tokens = tokenizer.encode(prompt);
        let mut stream = match &args.state_in {
            Some(path) => Stream::load(&model, &weights, path)?,
            None => {
                tokens.insert(0, tokenizer.end());
                Stream::new(&model)
            }
        };
        let all = HumanCount(tokens.len() as u64);
        let going = stream.read(&model, &tokens, &mut |done| {
            if begin.elapsed() > Duration::from_secs(1) {
                bar.set_message(format!("{} of {all} tokens read", HumanCount(done as u64)));
                bar.tick();
            }
            !stop.load(Ordering::SeqCst)
        });
        if !going {
            return Ok(Outcome::Interrupted);
        }
        read += tokens.len();
        streams.push(stream);
    }
    bar.finish_and_clear();
    let reading = begin.elapsed();
    let mut out = io::stdout().lock();
    let alone = prompts.len() == 1;
    let mut sayings: Vec<Saying> = prompts
        .iter()
        .map(|prompt| Saying {
            text: tokenizer.stream(),
            stops: Stops::new(&args.stop),
            said: Said { prompt: prompt.clone(), ended_by: "length", ..Said::default() },
        })
        .collect();
    let begin = Instant::now();
    let mut broken = None;
    if args.max_tokens > 0 {
        streams = generate(&model, streams, &sampling, |sequence, token| {
            let saying = &mut sayings[sequence];
            let (new, over) = saying.next(token, tokenizer.end(), args.max_tokens);
            let over = over || {
                let asked = stop.load(Ordering::SeqCst);
                if asked {
                    saying.said.ended_by = "interrupted";
                }
                asked
            };
            if alone && !args.json && broken.is_none() {
                broken = out.write_all(new.as_bytes()).and_then(|()| out.flush()).err();
            }
            !over && broken.is_none()
        });
    }
    let saying = begin.elapsed();
    if let Some(path) = &args.state_out {
        streams[0].save(&model, &weights, path)?;
    }
    if let Some(error) = broken {
        return Err(error.into());
    }
    let tokens: usize = sayings.iter().map(|saying| saying.said.tokens).sum();
    let said: Vec<Said> = sayings.into_iter().map(|saying| saying.said).collect();
    let bytes: usize = streams.iter().map(Stream::bytes).sum();
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    if args.json {
        let stats = json!({
            "texts": said, "tokens_read": read, "read_per_second": rate(read, reading), "tokens_said": tokens,
            "said_per_second": rate(tokens, saying), "state_bytes": bytes,
            "context": streams.iter().map(Stream::position).collect::<Vec<_>>(), "peak_memory": memory::peak(),
        });
        writeln!(out, "{stats}")?;
    } else if alone {
        if args.max_tokens > 0 {
            writeln!(out)?;
        }
    } else {
        for Said { prompt, text, .. } in &said {
            writeln!(out, "{prompt}{text}\n")?;
        }
    }
    if args.stats {
        let peak = memory::peak().map_or(String::new(), |peak| format!(", peak memory {}", HumanBytes(peak)));
        let _ = writeln!(
            io::stderr(),
            "read {} tokens at {}/s, said {} at {:.1}/s; memory of {} after {} tokens{peak}",
            HumanCount(read as u64),
            HumanCount(rate(read, reading) as u64),
            HumanCount(tokens as u64),
            rate(tokens, saying),
            HumanBytes(bytes as u64),
            HumanCount(streams.iter().map(Stream::position).max().unwrap_or(0) as u64),
        );
    }
    let interrupted = said.iter().any(|said| said.ended_by == "interrupted");
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Finished })
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
fn prompts(args: &GenerateArgs) -> Result<Vec<String>, GenerateError> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).map_err(|error| GenerateError::Prompt { name: path.display().to_string(), error })
    };
    if let Some(path) = &args.prompts {
        let lines: Vec<String> = read(path)?.lines().filter(|line| !line.is_empty()).map(String::from).collect();
        return if lines.is_empty() { Err(GenerateError::NoPrompts(path.clone())) } else { Ok(lines) };
    }
    if let Some(prompt) = &args.prompt {
        return Ok(vec![prompt.clone()]);
    }
    if let Some(path) = &args.file {
        return Ok(vec![read(path)?]);
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
    Ok(vec![text])
}
