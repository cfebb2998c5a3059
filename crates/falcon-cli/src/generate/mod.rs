//! `falcon generate`: text from a trained model.

mod args;
mod output;
mod prompts;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use falcon_base::{AtPath, PathError};
use falcon_lm::data::TokenizerError;
use falcon_lm::generate::{
    Continuation, EndedBy, Sampling, SamplingError, Stream, StreamError, generate as continue_streams,
};
use falcon_lm::memory;
use falcon_lm::monitor::{Cancelled, from_fn};
use falcon_lm::train::Outcome;
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::FileError;
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use serde_json::json;
use thiserror::Error;

pub use self::args::GenerateArgs;
use self::output::Output;
pub use self::prompts::PromptError;
use self::prompts::{Prompt, PromptLines};
use crate::interrupt::{Interrupt, stop_on_interrupt};
use crate::memory::release_freed;
use crate::output::{Kind, check};
use crate::progress::Progress;
use crate::threads::{ThreadsError, use_threads};

/// Why `falcon generate` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The model cannot be opened.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// An option of sampling is out of range.
    #[error("--{0}")]
    Sampling(#[from] SamplingError),
    /// The state of `--state-in` cannot be read.
    #[error(transparent)]
    StateIn(#[from] StreamError),
    /// The file of `--state-out` cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The state cannot be saved to `--state-out`.
    #[error(transparent)]
    StateOut(#[from] FileError),
    /// A prompt cannot be read.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// A prompt has characters that the tokenizer does not know.
    #[error("the prompt: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// Reading a prompt was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// Stdout cannot be written.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// The most prompts that are continued side by side.
const BATCH: usize = 64;

/// The text generated after one prompt, as `--json` prints it.
#[derive(Serialize)]
struct Generated {
    prompt: String,
    text: String,
    tokens: usize,
    ended_by: EndedBy,
}

/// What `--stats` and `--json` report.
#[derive(Default)]
struct Totals {
    read: usize,
    reading: Duration,
    generated: usize,
    generating: Duration,
    state_bytes: usize,
    context: usize,
}

/// Prints text as it is generated. A closed stdout ends the program without an error.
pub fn run(args: &GenerateArgs) -> Result<Outcome, GenerateError> {
    match generate(args) {
        Err(GenerateError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Outcome::Finished),
        result => result,
    }
}

fn generate(args: &GenerateArgs) -> Result<Outcome, GenerateError> {
    let GenerateArgs { temperature, top_p, repetition_penalty, seed, .. } = *args;
    let top_k = NonZeroUsize::new(args.top_k);
    let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed };
    sampling.validate()?;
    if let Some(path) = &args.state_out {
        let files = [Some(&args.model), args.file.as_ref(), args.prompts.as_ref(), args.state_in.as_ref()];
        check(path, Kind::State, files.into_iter().flatten()).at(path)?;
    }
    use_threads(args.threads.map(Into::into))?;
    // Prompts that cannot be read are reported before the model is opened.
    let mut lines = args.prompts.as_deref().map(PromptLines::open).transpose()?;
    let mut prompts = match &mut lines {
        Some(lines) => lines.first(BATCH)?,
        None => vec![Prompt::new(args.prompt.as_deref(), args.file.as_deref())?],
    };
    let trained =
        Trained::open(&args.model, args.tokenizer.as_deref(), &Device::flex())?.with_weights(args.weights)?;
    release_freed();
    let start = match &args.state_in {
        Some(path) => Stream::load(&trained.model, &trained.weights, path)?,
        None => {
            let mut fresh = Stream::new(&trained.model);
            fresh.read(&trained.model, &[trained.tokenizer.begin()], &mut ())?;
            fresh
        }
    };
    let stop = stop_on_interrupt("stopping");
    let mut session = Session { args, trained: &trained, sampling, start, stop, out: Output::stdout() };
    let (mut totals, mut number) = (Totals::default(), 0);
    let mut interrupted = false;
    if args.json {
        session.out.raw("{\"texts\":[")?;
    }
    while !prompts.is_empty() && !interrupted {
        let progress = Progress::spinner("reading");
        let streams = match session.read(&prompts, &progress, &mut totals) {
            // The texts of earlier prompts are still printed.
            Err(GenerateError::Cancelled(_)) => {
                interrupted = true;
                break;
            }
            streams => streams?,
        };
        // No progress is shown beside a text that is printed as it is generated.
        let progress = (args.json || args.prompts.is_some()).then_some(progress);
        for text in session.generate(&prompts, streams, number, progress, &mut totals)? {
            if args.json {
                let separator = if number == 0 { "" } else { "," };
                let json = serde_json::to_string(&text).map_err(io::Error::from)?;
                session.out.json(&format!("{separator}{json}"))?;
            } else if args.prompts.is_some() {
                session.out.text(&format!("{}{}\n\n", if args.echo { &text.prompt } else { "" }, text.text))?;
            }
            interrupted |= text.ended_by == EndedBy::Interrupted;
            number += 1;
        }
        prompts = lines.as_mut().map_or(Ok(Vec::new()), |lines| lines.take(BATCH))?;
    }
    if args.json {
        // The rest of the JSON object, which begins with the texts.
        session.out.raw(&format!("],{}\n", &totals.json().to_string()[1..]))?;
    } else if args.prompts.is_none() && (args.max_tokens > 0 || args.echo) {
        session.out.raw("\n")?;
    }
    if args.stats {
        // Nothing can be done if stderr is closed.
        let _ = writeln!(io::stderr(), "{}", totals.line());
    }
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Finished })
}

/// What all prompts have in common.
struct Session<'a, W> {
    args: &'a GenerateArgs,
    trained: &'a Trained,
    sampling: Sampling,
    /// The sequence that every prompt continues: that of `--state-in`, or the token that begins a document.
    start: Stream,
    stop: Interrupt,
    out: Output<W>,
}

impl<W: Write> Session<'_, W> {
    /// Reads prompts, and prints them if `--echo` asks for it.
    fn read(
        &mut self,
        prompts: &[Prompt],
        progress: &Progress,
        totals: &mut Totals,
    ) -> Result<Vec<Stream>, GenerateError> {
        let Self { args, trained: Trained { model, tokenizer, .. }, start, stop, out, .. } = self;
        let (begin, mut done) = (Instant::now(), 0);
        let mut streams = Vec::new();
        for prompt in prompts {
            let mut stream = start.clone();
            prompt.read(|text| {
                let tokens = tokenizer.try_encode(text)?;
                if args.echo && args.prompts.is_none() && !args.json {
                    out.text(text)?;
                }
                let mut monitor = from_fn(|read| {
                    progress.message(format!("{} tokens read", HumanCount((done + read) as u64)));
                    !stop.requested()
                });
                stream.read(model, &tokens, &mut monitor)?;
                drop(monitor);
                done += tokens.len();
                Ok::<_, GenerateError>(())
            })?;
            streams.push(stream);
        }
        totals.read += done;
        totals.reading += begin.elapsed();
        Ok(streams)
    }

    /// Continues prompts, and saves the state for `--state-out`. `first` is the number of the first prompt, counted
    /// over all batches. With `progress`, the number of generated tokens is shown; without it, there is a single
    /// prompt, and its text is printed as it is generated.
    fn generate(
        &mut self,
        prompts: &[Prompt],
        mut streams: Vec<Stream>,
        first: usize,
        progress: Option<Progress>,
        totals: &mut Totals,
    ) -> Result<Vec<Generated>, GenerateError> {
        let Self { args, trained: Trained { model, tokenizer, weights, .. }, sampling, stop, out, .. } = self;
        let begin = Instant::now();
        let text = |stream: &Stream| Continuation::new(tokenizer, stream.last(), &args.stop, args.max_tokens);
        let mut texts: Vec<Continuation> = streams.iter().map(text).collect();
        let (mut printed, mut tokens) = (Ok(()), 0);
        if args.max_tokens > 0 {
            streams = continue_streams(model, streams, sampling, first, |sequence, token| {
                let text = &mut texts[sequence - first];
                let new = text.push(token);
                if stop.requested() {
                    text.interrupt();
                }
                tokens += 1;
                if let Some(progress) = &progress {
                    progress.message(format!("{} tokens generated", HumanCount(tokens)));
                } else if printed.is_ok() {
                    printed = out.text(&new);
                }
                text.ended_by().is_none() && printed.is_ok()
            });
        }
        if let Some(path) = &args.state_out {
            streams[0].save(model, weights, path)?;
        }
        printed?;
        totals.generated += texts.iter().map(Continuation::tokens).sum::<usize>();
        totals.generating += begin.elapsed();
        totals.state_bytes = totals.state_bytes.max(streams.iter().map(Stream::bytes).sum());
        totals.context = streams.iter().map(Stream::position).fold(totals.context, usize::max);
        let generated = |(prompt, text): (&Prompt, &Continuation)| Generated {
            prompt: prompt.name(),
            text: text.text().into(),
            tokens: text.tokens(),
            ended_by: text.ended_by().expect("every text has ended"),
        };
        Ok(prompts.iter().zip(&texts).map(generated).collect())
    }
}

impl Totals {
    fn read_per_second(&self) -> f64 {
        self.read as f64 / self.reading.as_secs_f64().max(1e-9)
    }

    fn generated_per_second(&self) -> f64 {
        self.generated as f64 / self.generating.as_secs_f64().max(1e-9)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "tokens_read": self.read, "read_per_second": self.read_per_second(),
            "tokens_said": self.generated, "said_per_second": self.generated_per_second(),
            "state_bytes": self.state_bytes, "context": self.context, "peak_memory": memory::peak(),
        })
    }

    fn line(&self) -> String {
        let peak = memory::peak().map_or(String::new(), |peak| format!(", peak memory {}", HumanBytes(peak)));
        format!(
            "read {} tokens at {}/s, generated {} at {:.1}/s; state of {} after {} tokens{peak}",
            HumanCount(self.read as u64),
            HumanCount(self.read_per_second() as u64),
            HumanCount(self.generated as u64),
            self.generated_per_second(),
            HumanBytes(self.state_bytes as u64),
            HumanCount(self.context as u64),
        )
    }
}
