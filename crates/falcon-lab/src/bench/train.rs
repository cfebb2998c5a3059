//! Training steps, beside those of a Transformer of the same architecture, with the same optimizer, in PyTorch.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use burn::tensor::Device;
use falcon_lm::batch::Batch;
use falcon_lm::memory;
use falcon_lm::monitor::Monitor;
use falcon_lm::recipe::AdamWConfig;
use falcon_lm::train::{AdamW, clip, gradients};
use falcon_nn::{Model, ModelConfig};
use serde_json::{Value, json};

use super::cases::{check_memory, product};
use super::error::BenchError;
use super::gemm::Gemm;
use super::schedule::{JobId, Schedule};
use super::table::BenchTable;
use super::worker::Worker;
use crate::tables::TextTable;

/// What to time.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// The presets of the models.
    pub models: Vec<String>,
    /// The number of sequences per step.
    pub batch: usize,
    /// The number of tokens per sequence.
    pub tokens: usize,
    /// The number of threads, with which the global pool must have been started.
    pub threads: usize,
    /// The number of timed rounds, after one to warm up.
    pub repeats: u16,
    /// The comparison with PyTorch; none if not set.
    pub peer: Option<PeerOptions>,
}

/// How PyTorch is run.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// A Python interpreter that has PyTorch.
    pub python: PathBuf,
    /// Whether to time `torch.compile` too.
    pub compiled: bool,
}

/// The size of the vocabulary.
const VOCABULARY: usize = 16;
/// The approximate memory that a step keeps per token for the backward pass: 18 arrays of the hidden size in each of
/// 4 layers.
const BYTES_PER_TOKEN: usize = 4 * 18 * 128 * size_of::<f32>();
/// The PyTorch program, included so that no other file is needed.
const PEER: &str = include_str!("../../../../bench/peers/train_step.py");

/// A model, its optimizer and a batch.
pub(super) struct TrainStep {
    model: Model,
    optimizer: AdamW,
    batch: Batch,
}

impl TrainStep {
    pub fn new(config: &ModelConfig, batch: usize, time: usize) -> Result<Self, BenchError> {
        let model = config.init(0, &Device::flex().autodiff())?;
        let token = |i: usize| (i * (i % 77) + 3 * i) % VOCABULARY;
        let sequence = |index: usize| {
            let tokens: Vec<u32> = (0..time).map(|i| token(index * time + i) as u32).collect();
            let targets = tokens.iter().map(|token| Some((5 * token + 1) % VOCABULARY as u32)).collect();
            (tokens, targets)
        };
        let batch = Batch::new((0..batch).map(sequence));
        Ok(Self { model, optimizer: AdamW::new(AdamWConfig::default()), batch })
    }

    /// Seconds of one step.
    pub fn run(&mut self) -> f64 {
        let begin = Instant::now();
        let gradients = gradients(&self.model, &self.batch, 1).gradients;
        self.optimizer.step(&mut self.model, &gradients, clip(&gradients, 1.0), 1e-3);
        begin.elapsed().as_secs_f64()
    }

    /// Floating-point operations per token in products with parameters: 2 forward and 4 backward for each parameter
    /// of a matrix.
    pub fn flops(&self) -> f64 {
        let matrices = self.model.parameters().into_iter().filter(|p| p.shape.len() == 2);
        6.0 * matrices.map(|p| p.shape.iter().product::<usize>()).sum::<usize>() as f64
    }
}

/// PyTorch in a process of its own, which runs a step for every line it is sent.
struct Peer(Worker);

impl Peer {
    /// Starts PyTorch, and returns its first answer: its version and the number of parameters.
    fn start(options: &TrainOptions, peer: &PeerOptions, compiled: bool) -> Result<(Self, Value), BenchError> {
        let mut command = Command::new(&peer.python);
        command.args(["-c", PEER, "--serve"]).args(compiled.then_some("--compile"));
        for (name, value) in
            [("--threads", options.threads), ("--batch", options.batch), ("--time", options.tokens)]
        {
            command.args([name, &value.to_string()]);
        }
        let hello = Worker::start("PyTorch", &mut command).and_then(|mut child| Ok((child.answer()?, child)));
        let (hello, child) = hello.map_err(|error| match error {
            BenchError::Child { name, reason } => {
                let hint = "is torch installed for that Python? Use --python PATH, or --no-peer";
                BenchError::Child { name, reason: format!("{reason}; {hint}") }
            }
            error => error,
        })?;
        let hello = serde_json::from_str(&hello).map_err(|error| child.invalid(&hello, error))?;
        Ok((Self(child), hello))
    }

    fn run(&mut self) -> Result<f64, BenchError> {
        let line = self.0.ask("")?;
        line.parse().map_err(|error| self.0.invalid(&line, error))
    }
}

/// The configuration of a preset. A preset has the size that gives all models the same number of parameters; here it is
/// that of PyTorch's Transformer. A model without SwiGLU stays without.
pub(super) fn config(name: &str) -> Result<ModelConfig, BenchError> {
    let mut config = ModelConfig::preset(name, "tiny", VOCABULARY)?;
    if config.intermediate_size > 0 {
        config.intermediate_size = 352;
    }
    Ok(config)
}

/// A row of the table and its job in the schedule.
struct TrainRow {
    name: String,
    parameters: usize,
    flops: Option<f64>,
    job: JobId,
}

/// Times training steps of all models.
pub fn train(options: &TrainOptions, monitor: &mut dyn Monitor) -> Result<BenchTable, BenchError> {
    check_memory([product(&[options.batch, options.tokens, BYTES_PER_TOKEN])], "--batch or --tokens")?;
    let mut steps = Vec::new();
    for name in &options.models {
        steps.push(RefCell::new(TrainStep::new(&config(name)?, options.batch, options.tokens)?));
    }
    let mut peers = Vec::new();
    if let Some(peer_options) = &options.peer {
        for (name, compiled) in [("PyTorch eager", false), ("PyTorch compiled", true)] {
            if compiled && !peer_options.compiled {
                continue;
            }
            monitor.stage(&format!("starting {name}"));
            let (peer, hello) = Peer::start(options, peer_options, compiled)?;
            let version = hello["torch"].as_str().unwrap_or_default();
            let parameters = hello["parameters"].as_u64().unwrap_or(0) as usize;
            peers.push((format!("{name} {version}, transformer"), parameters, RefCell::new(peer)));
        }
    }
    let mut schedule = Schedule::default();
    let mut rows = Vec::new();
    for (name, parameters, peer) in &peers {
        let job = schedule.add(|| peer.borrow_mut().run());
        rows.push(TrainRow { name: name.clone(), parameters: *parameters, flops: None, job });
    }
    for (name, step) in options.models.iter().zip(&steps) {
        let flops = Some(step.borrow().flops());
        let parameters = step.borrow().model.config().parameter_count();
        rows.push(TrainRow {
            name: name.clone(),
            parameters,
            flops,
            job: schedule.add(|| Ok(step.borrow_mut().run())),
        });
    }
    let gemm = Gemm::add_to(&mut schedule, options.threads);
    let medians = schedule.run(options.repeats.into(), monitor)?;
    let tokens = (options.batch * options.tokens) as f64;
    let peak = gemm.rate(&medians).gflops;
    let peer_seconds = (!peers.is_empty()).then(|| medians.seconds(rows[0].job));

    let mut text = TextTable::new(&["", "parameters", "ms/step", "tokens/s", "x PyTorch", "GFLOP/s", "%gemm"]);
    let mut values = Vec::new();
    for row in &rows {
        let seconds = medians.seconds(row.job);
        let (ratio, gflops) =
            (peer_seconds.map(|peer| peer / seconds), row.flops.map(|flops| flops * tokens / seconds / 1e9));
        let cell =
            |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
        text.row(vec![
            row.name.clone(),
            row.parameters.to_string(),
            format!("{:.1}", 1e3 * seconds),
            format!("{:.0}", tokens / seconds),
            cell(ratio, 2),
            cell(gflops, 1),
            cell(gflops.map(|gflops| 100.0 * gflops / peak), 0),
        ]);
        values.push(json!({
            "table": "train", "name": row.name, "parameters": row.parameters, "batch": options.batch, "time": options.tokens,
            "threads": options.threads, "repeats": options.repeats, "ms": 1e3 * seconds,
            "tokens_per_second": tokens / seconds, "ratio": ratio, "gflops": gflops, "gemm_gflops": peak,
        }));
    }
    let memory = memory::peak().map_or(String::new(), |peak| format!("; peak memory {} MiB", peak >> 20));
    let title = format!(
        "Training steps, f32: hidden size 128 (Transformer and Falcon: 4 layers, 4 heads, SwiGLU 352), {} sequences of {} tokens, \
         {} threads; GEMM {peak:.0} GFLOP/s{memory}",
        options.batch, options.tokens, options.threads,
    );
    Ok(BenchTable { title, text, rows: values })
}
