//! Generation, a token at a time, after contexts of any length: how fast, and in how much memory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use burn::tensor::{Device, Int, Tensor, TensorData};
use falcon_lm::memory;
use falcon_lm::report::{Curve, Fit, fitted_curves};
use falcon_nn::{Model, ModelConfig, ModelState, Sequences, write_file};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Table;
use super::args::GenerateBenchArgs;
use super::child::Child;
use super::error::BenchError;
use super::schedule::median;
use super::table::Text;
use crate::output::{self, Kind};
use crate::progress::{Progress, with_spinner};
use crate::threads::{all_cores, use_threads};

/// Tokens of GPT-2.
const VOCABULARY: usize = 50_257;
/// Tokens read in one call.
const PIECE: usize = 1024;
/// Steps that are not counted, so that all is warm.
const WARM: usize = 2;

/// What one context came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Answer {
    /// The median; none if it does not fit.
    seconds_per_token: Option<f64>,
    /// Of what is kept of the context, or would be.
    state_bytes: usize,
    /// After generation; freed memory is kept, so that this is the most it ever was.
    resident_bytes: Option<u64>,
}

/// Times everything asked for, every model in a process of its own; one whose state grows, every context. If some of it failed, the rest is
/// there, and the last that did is told.
pub(super) fn run(args: &GenerateBenchArgs) -> Result<(Table, Option<BenchError>), BenchError> {
    if let Some(path) = &args.picture {
        output::check(path, Kind::Svg, &[] as &[&str])
            .map_err(|error| BenchError::File { path: path.clone(), error })?;
    }
    let threads = args.threads.unwrap_or_else(all_cores);
    let mut contexts = args.contexts.clone();
    contexts.sort_unstable();
    contexts.dedup();
    let mut text = Text::new(&[
        "model",
        "parameters",
        "context",
        "tokens/s",
        "ms/token",
        "state MiB",
        "resident MiB",
        "context is",
    ]);
    // A wrong name should not be found after half an hour.
    let models = args.models.iter().map(|name| Ok((name, ModelConfig::preset(name, &args.size, VOCABULARY)?)));
    let models = models.collect::<Result<Vec<_>, BenchError>>()?;
    let (mut rows, mut curves, mut failed) = (Vec::new(), Vec::new(), None);
    for (name, config) in &models {
        let mut points = Vec::new();
        let grows = config.mixer.is_softmax();
        let each = if grows { 1 } else { contexts.len() };
        for contexts in contexts.chunks(each.max(1)) {
            let (answers, error) = ask(args, name, contexts, threads);
            // The last one is told at the end.
            if let Some(earlier) = error.and_then(|error| failed.replace(error)) {
                let _ = writeln!(io::stderr(), "warning: {earlier}");
            }
            for (index, &context) in contexts.iter().enumerate() {
                let answer = answers.get(index);
                let seconds = answer.and_then(|answer| answer.seconds_per_token);
                points.extend(seconds.map(|seconds| (context as f64, seconds.recip())));
                let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
                let shown = |value: Option<f64>, digits: usize| {
                    value.map_or("–".into(), |value| format!("{value:.digits$}"))
                };
                let is = match (answer, seconds, grows) {
                    (None, ..) => "failed",
                    (_, None, _) => "too large for this memory",
                    (_, _, true) => "random",
                    (_, _, false) => "read",
                };
                text.row(vec![
                    name.to_string(),
                    config.parameter_count().to_string(),
                    context.to_string(),
                    shown(seconds.map(f64::recip), 2),
                    shown(seconds.map(|seconds| 1e3 * seconds), 1),
                    answer.map_or("–".into(), |answer| mib(answer.state_bytes as u64)),
                    answer.and_then(|answer| answer.resident_bytes).map_or("–".into(), mib),
                    is.into(),
                ]);
                rows.push(json!({
                    "table": "generate", "model": name, "size": args.size, "parameters": config.parameter_count(),
                    "threads": threads, "tokens": args.tokens, "context": context, "context_is": is,
                    "seconds_per_token": seconds, "state_bytes": answer.map(|answer| answer.state_bytes),
                    "resident_bytes": answer.and_then(|answer| answer.resident_bytes),
                }));
            }
        }
        curves.push(Curve { name: name.to_string(), points });
    }
    if let Some(path) = &args.picture {
        let picture =
            fitted_curves("Tokens generated per second", "tokens of context", [Fit::Decades; 2], &curves);
        write_file(path, picture.as_bytes()).map_err(|error| BenchError::File { path: path.clone(), error })?;
    }
    let title = format!(
        "Generation: {} with random weights, f32, one sequence, {threads} threads, medians of {} tokens",
        args.size, args.tokens
    );
    Ok((Table { title, text, rows }, failed))
}

/// What this program says when it is run once more for some contexts of one model: of all, or of those before it failed.
fn ask(
    args: &GenerateBenchArgs,
    name: &str,
    contexts: &[usize],
    threads: usize,
) -> (Vec<Answer>, Option<BenchError>) {
    let list = contexts.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let (tokens, threads) = (args.tokens.to_string(), threads.to_string());
    let models = ["bench", "generate", "--measure", "--models", name, "--size", &args.size, "--contexts", &list];
    let options = ["--tokens", &tokens, "--threads", &threads];
    let mut answers = Vec::new();
    let mut ask = || {
        let mut child = Child::this_program(name, &[&models[..], &options].concat())?;
        while answers.len() < contexts.len() {
            let line = child.answer()?;
            answers.push(serde_json::from_str(&line).map_err(|error| child.wrong(&line, error))?);
        }
        Ok(())
    };
    let failed = ask().err();
    (answers, failed)
}

/// Measures one model in this process, and prints an answer per line.
pub(super) fn measure(args: &GenerateBenchArgs) -> Result<(), BenchError> {
    use_threads(args.threads)?;
    for name in &args.models {
        let config = ModelConfig::preset(name, &args.size, VOCABULARY)?;
        let grows = config.mixer.is_softmax();
        let mut stream: Option<Stream> = None;
        for &context in &args.contexts {
            let cache = if grows { cache_bytes(&config, context) } else { 0 };
            // What is resident already need not be free; and something is needed to compute with.
            let weights = if stream.is_none() { config.parameter_count() * size_of::<f32>() } else { 0 };
            let needed = (cache + weights) as u64;
            let answer = if memory::available().is_some_and(|free| needed + needed / 10 > free) {
                Answer { seconds_per_token: None, state_bytes: cache, resident_bytes: None }
            } else {
                let stream = match &mut stream {
                    Some(stream) => stream,
                    none => {
                        none.insert(with_spinner(&format!("{name}: making weights"), || Stream::new(&config))?)
                    }
                };
                if grows {
                    with_spinner(&format!("{name}: filling a cache"), || stream.fill(context));
                } else {
                    stream.read(name, context);
                }
                with_spinner(&format!("{name}: generating"), || stream.generate(args.tokens))
            };
            writeln!(io::stdout(), "{}", serde_json::to_string(&answer).map_err(io::Error::from)?)?;
        }
    }
    Ok(())
}

/// Bytes of keys and values.
fn cache_bytes(config: &ModelConfig, context: usize) -> usize {
    let mixer = &config.mixer;
    let token = mixer.num_heads * (mixer.head_dim + mixer.head_v_dim);
    context * config.num_hidden_layers * token * size_of::<f32>()
}

/// A model and what it keeps of a context.
struct Stream {
    model: Model,
    state: ModelState,
    /// Tokens read.
    position: usize,
}

impl Stream {
    fn new(config: &ModelConfig) -> Result<Self, BenchError> {
        let model = config.init(0, &Device::flex())?;
        let state = model.state(1);
        Ok(Self { model, state, position: 0 })
    }

    fn ids(&self, tokens: Vec<i32>) -> Tensor<1, Int> {
        let count = tokens.len();
        Tensor::from_data(TensorData::new(tokens, [count]), &self.model.device())
    }

    /// Reads random tokens, until it has read so many.
    fn read(&mut self, name: &str, context: usize) {
        let progress = Progress::bar(context, format!("{name}: tokens read"));
        while self.position < context {
            let count = PIECE.min(context - self.position);
            let token = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) % VOCABULARY;
            let tokens = (self.position..self.position + count).map(|i| token(i) as i32).collect();
            let tokens = self.ids(tokens);
            self.model.hidden(tokens, &Sequences::uniform(1, count), &mut self.state);
            self.position += count;
            progress.position(self.position as u64);
        }
    }

    /// A cache of random keys and values: to read so many tokens would take time quadratic in them, and their numbers make no difference.
    fn fill(&mut self, context: usize) {
        let config = self.model.config();
        let mixer = &config.mixer;
        let mut arrays = BTreeMap::new();
        for layer in 0..config.num_hidden_layers {
            for (name, dim) in [("keys", mixer.head_dim), ("values", mixer.head_v_dim)] {
                let numbers = mixer.num_heads * context * dim;
                let data = (0..numbers).map(|i| ((i * 7919 + layer) % 1009) as f32 / 1009.0 - 0.5).collect();
                let shape = vec![1, mixer.num_heads, context, dim];
                arrays.insert(format!("layers.{layer}.cache.0.{name}"), (shape, data));
            }
        }
        let halves = vec![(context >> 24) as f32, (context & 0xff_ffff) as f32];
        arrays.insert("positions".into(), (vec![1, 2], halves));
        self.state = self.model.restore_state(arrays, Path::new("random")).expect("arrays of its own shapes");
        self.position = context;
    }

    /// Goes on by the likeliest tokens.
    fn generate(&mut self, tokens: usize) -> Answer {
        let mut next = 0;
        // What is read next follows the context, not what is said here.
        let mut state = self.state.clone();
        let mut seconds = Vec::new();
        for step in 0..WARM + tokens {
            let begin = Instant::now();
            let token = self.ids(vec![next]);
            let logits = self.model.step(token, &mut state);
            next = logits.argmax(1).into_data().iter::<i32>().next().expect("one sequence");
            if step >= WARM {
                seconds.push(begin.elapsed().as_secs_f64());
            }
        }
        Answer {
            seconds_per_token: Some(median(seconds)),
            state_bytes: state.bytes(),
            resident_bytes: memory::resident(),
        }
    }
}
