//! The speed and memory of generation, one token at a time, after contexts of any length.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use falcon_lm::memory;
use falcon_lm::monitor::Monitor;
use falcon_nn::{Model, ModelConfig, ModelState, SavedState, Sequences, WeightFormat};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::BenchError;
use super::schedule::median;
use super::table::BenchTable;
use super::worker::Worker;
use crate::pictures::{Fit, NamedLine, fitted_chart};
use crate::tables::TextTable;

/// The size of GPT-2's vocabulary.
const VOCABULARY: usize = 50_257;
/// The number of tokens read in one call.
const PIECE: usize = 1024;
/// The number of steps to warm up, which are not timed.
const WARM: usize = 2;

/// What to time.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The presets of the models.
    pub models: Vec<String>,
    /// Their size.
    pub size: String,
    /// The lengths of the contexts, in tokens, after which generation is timed.
    pub contexts: Vec<usize>,
    /// The formats of the weights.
    pub weights: Vec<WeightFormat>,
    /// The number of sequences that are generated side by side, all after the same context.
    pub sequences: usize,
    /// The number of tokens to generate after each context.
    pub tokens: usize,
    /// The number of threads.
    pub threads: usize,
}

/// The results of all models.
pub struct Generation {
    /// The table.
    pub table: BenchTable,
    /// Tokens per second by context, as an SVG file.
    pub picture: String,
    /// The last failure; earlier ones were given to `warn`. The other rows are complete.
    pub failed: Option<BenchError>,
}

/// The results for one context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ContextAnswer {
    /// The median; none if the context does not fit into memory.
    seconds_per_token: Option<f64>,
    /// The size of the state after the context.
    state_bytes: usize,
    /// The memory of the process after generation, which is also its peak, because freed memory is not returned to
    /// the system.
    resident_bytes: Option<u64>,
}

/// Times all models. `worker` makes the command of a process that calls [`measure_generation`] with the options it is
/// given: each model is measured in a process of its own and, if its state grows, each context too. `warn` is given
/// all failures but the last.
pub fn generate(
    options: &GenerateOptions,
    worker: &dyn Fn(&GenerateOptions) -> io::Result<Command>,
    warn: &dyn Fn(&BenchError),
) -> Result<Generation, BenchError> {
    let mut contexts = options.contexts.clone();
    contexts.sort_unstable();
    contexts.dedup();
    let mut text = TextTable::new(&[
        "model",
        "parameters",
        "weights",
        "context",
        "tokens/s",
        "ms/token",
        "state MiB",
        "resident MiB",
        "context is",
    ]);
    // All names are checked before the first measurement.
    let models =
        options.models.iter().map(|name| Ok((name, ModelConfig::preset(name, &options.size, VOCABULARY)?)));
    let models = models.collect::<Result<Vec<_>, BenchError>>()?;
    let (mut rows, mut lines, mut failed) = (Vec::new(), Vec::new(), None);
    for ((name, config), &weights) in
        models.iter().flat_map(|model| options.weights.iter().map(move |weights| (model, weights)))
    {
        let mut points = Vec::new();
        let grows = config.state_size().is_none();
        let per_process = if grows { 1 } else { contexts.len() };
        for contexts in contexts.chunks(per_process.max(1)) {
            let of_process = GenerateOptions {
                models: vec![name.to_string()],
                weights: vec![weights],
                contexts: contexts.to_vec(),
                ..options.clone()
            };
            let (answers, error) = ask(name, &of_process, worker);
            if let Some(earlier) = error.and_then(|error| failed.replace(error)) {
                warn(&earlier);
            }
            for (index, &context) in contexts.iter().enumerate() {
                let answer = answers.get(index);
                let seconds = answer.and_then(|answer| answer.seconds_per_token);
                let rate = seconds.map(|seconds| options.sequences as f64 / seconds);
                points.extend(rate.map(|rate| (context as f64, rate)));
                let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
                let shown = |value: Option<f64>, digits: usize| {
                    value.map_or("–".into(), |value| format!("{value:.digits$}"))
                };
                let context_is = match (answer, seconds, grows) {
                    (None, ..) => "failed",
                    (_, None, _) => "too large for this memory",
                    (_, _, true) => "random",
                    (_, _, false) => "read",
                };
                text.row(vec![
                    name.to_string(),
                    config.parameter_count().to_string(),
                    weights.to_string(),
                    context.to_string(),
                    shown(rate, 2),
                    shown(seconds.map(|seconds| 1e3 * seconds), 1),
                    answer.map_or("–".into(), |answer| mib(answer.state_bytes as u64)),
                    answer.and_then(|answer| answer.resident_bytes).map_or("–".into(), mib),
                    context_is.into(),
                ]);
                rows.push(json!({
                    "table": "generate", "model": name, "size": options.size, "parameters": config.parameter_count(),
                    "weights": weights.to_string(), "threads": options.threads, "sequences": options.sequences,
                    "tokens": options.tokens, "context": context, "context_is": context_is,
                    "seconds_per_token": seconds, "tokens_per_second": rate, "state_bytes": answer.map(|answer| answer.state_bytes),
                    "resident_bytes": answer.and_then(|answer| answer.resident_bytes),
                }));
            }
        }
        let label = match weights {
            WeightFormat::F32 => name.to_string(),
            packed => format!("{name}, {packed}"),
        };
        lines.push(NamedLine { name: label, points });
    }
    let picture = fitted_chart("Tokens generated per second", "tokens of context", [Fit::Tight; 2], &lines);
    let GenerateOptions { size, tokens, threads, sequences, .. } = options;
    let title = format!(
        "Generation: {size} with random weights, {sequences} sequence{}, {threads} threads, medians of {tokens} tokens",
        if *sequences == 1 { "" } else { "s" }
    );
    Ok(Generation { table: BenchTable { title, text, rows }, picture, failed })
}

/// The answers of a worker for one model: for all contexts, or for those before it failed.
fn ask(
    name: &str,
    options: &GenerateOptions,
    worker: &dyn Fn(&GenerateOptions) -> io::Result<Command>,
) -> (Vec<ContextAnswer>, Option<BenchError>) {
    let mut answers = Vec::new();
    let mut ask = || {
        let mut worker = Worker::start(name, &mut worker(options)?)?;
        while answers.len() < options.contexts.len() {
            let line = worker.answer()?;
            answers.push(serde_json::from_str(&line).map_err(|error| worker.invalid(&line, error))?);
        }
        Ok(())
    };
    let failed = ask().err();
    (answers, failed)
}

/// Measures models in this process, and writes a line of JSON to `out` for each context. `release` returns freed memory
/// to the system.
pub fn measure_generation(
    options: &GenerateOptions,
    mut out: impl Write,
    release: &dyn Fn(),
    monitor: &mut dyn Monitor,
) -> Result<(), BenchError> {
    for (name, &weights) in options.models.iter().flat_map(|name| options.weights.iter().map(move |w| (name, w))) {
        let config = ModelConfig::preset(name, &options.size, VOCABULARY)?;
        let grows = config.state_size().is_none();
        let mut stream: Option<GenerateStream> = None;
        for &context in &options.contexts {
            let cache = if grows { cache_bytes(&config, context) } else { 0 };
            // After the first context the weights are in memory already, and need no free memory.
            let parameters = if stream.is_none() { config.parameter_count() * size_of::<f32>() } else { 0 };
            let needed = (cache * options.sequences + parameters) as u64;
            // Computing takes about a tenth more.
            let answer = if memory::available().is_some_and(|free| needed + needed / 10 > free) {
                ContextAnswer { seconds_per_token: None, state_bytes: cache, resident_bytes: None }
            } else {
                let stream = match &mut stream {
                    Some(stream) => stream,
                    none => {
                        monitor.stage(&format!("{name}: initialising weights"));
                        let stream = none.insert(GenerateStream::new(&config, weights)?);
                        release();
                        stream
                    }
                };
                if grows {
                    monitor.stage(&format!("{name}: filling a cache"));
                    stream.fill(context);
                } else {
                    monitor.stage(&format!("{name}: tokens read"));
                    stream.read(context, monitor);
                }
                monitor.stage(&format!("{name}: generating"));
                stream.generate(options.tokens, options.sequences)
            };
            writeln!(out, "{}", serde_json::to_string(&answer).map_err(io::Error::from)?)?;
        }
    }
    Ok(())
}

/// The most likely token of every sequence.
fn most_likely(logits: Tensor<2>) -> Vec<u32> {
    logits.argmax(1).into_data().iter::<u32>().collect()
}

/// The size of the keys and values of a context, in bytes.
fn cache_bytes(config: &ModelConfig, context: usize) -> usize {
    let mixer = &config.mixer;
    let token = mixer.num_heads * (mixer.head_dim + mixer.head_v_dim);
    context * config.num_hidden_layers * token * size_of::<f32>()
}

/// A model and its state after a context.
pub(super) struct GenerateStream {
    model: Model,
    state: ModelState,
    /// The number of tokens read.
    position: usize,
}

impl GenerateStream {
    pub fn new(config: &ModelConfig, weights: WeightFormat) -> Result<Self, BenchError> {
        Ok(Self::of(config.init(0, &Device::flex())?.packed(weights)))
    }

    /// One sequence of `model`, before its first token.
    pub fn of(model: Model) -> Self {
        let state = model.state(1);
        Self { model, state, position: 0 }
    }

    /// Seconds of `tokens` further steps of one sequence.
    pub fn seconds(&mut self, tokens: usize) -> f64 {
        let (begin, mut next) = (Instant::now(), vec![0]);
        for _ in 0..tokens {
            next = most_likely(self.model.step(&next, &mut self.state));
        }
        self.position += tokens;
        begin.elapsed().as_secs_f64()
    }

    /// Reads random tokens until the context has `context` tokens.
    fn read(&mut self, context: usize, monitor: &mut dyn Monitor) {
        while self.position < context {
            let count = PIECE.min(context - self.position);
            let token = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) % VOCABULARY;
            let tokens: Vec<u32> = (self.position..self.position + count).map(|i| token(i) as u32).collect();
            self.model.hidden(&tokens, &Sequences::uniform(1, count), &mut self.state);
            self.position += count;
            monitor.advance(self.position, Some(context));
        }
    }

    /// Fills the cache with random keys and values. Reading tokens would take time quadratic in their number, and the
    /// values make no difference to the speed.
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
        let saved = SavedState { positions: vec![context], arrays, ..SavedState::default() };
        self.state =
            self.model.import_state(saved, Path::new("random")).expect("the arrays have the shapes of the model");
        self.position = context;
    }

    /// Generates tokens, each the most likely one, in several sequences side by side, and times them.
    fn generate(&mut self, tokens: usize, sequences: usize) -> ContextAnswer {
        let mut next: Vec<u32> = (0..sequences as u32).collect();
        // A copy: the next context continues this one, without the tokens generated here.
        let mut state = self.model.select(&self.state, &vec![0; sequences]);
        let mut seconds = Vec::new();
        for step in 0..WARM + tokens {
            let begin = Instant::now();
            next = most_likely(self.model.step(&next, &mut state));
            if step >= WARM {
                seconds.push(begin.elapsed().as_secs_f64());
            }
        }
        ContextAnswer {
            seconds_per_token: Some(median(seconds)),
            state_bytes: state.bytes(),
            resident_bytes: memory::resident(),
        }
    }
}
