//! Training steps, beside those of a Transformer in PyTorch: one architecture, one optimizer, one run.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use burn::tensor::Device;
use falcon_lm::memory;
use falcon_lm::tasks::Batch;
use falcon_lm::train::{AdamW, AdamWConfig, clip, gradients};
use falcon_nn::{Model, ModelConfig};
use serde_json::{Value, json};

use super::args::TrainBenchArgs;
use super::cases::{check_memory, product};
use super::child::Child;
use super::error::BenchError;
use super::gemm::Gemm;
use super::schedule::{Schedule, Ticket};
use super::{Table, table};
use crate::progress::with_spinner;
use crate::threads::use_threads;

const VOCABULARY: usize = 16;
/// What a step keeps of a token for the way back, about: 18 arrays as wide as the model, in each of its layers.
const BYTES_PER_TOKEN: usize = 4 * 18 * 128 * size_of::<f32>();
/// The peer, so that the program needs no other file.
const PEER: &str = include_str!("../../../../bench/peers/train_step.py");

/// A model and what trains it.
struct Step {
    model: Option<Model>,
    optimizer: AdamW,
    batch: Batch,
}

impl Step {
    fn new(config: &ModelConfig, batch: usize, time: usize) -> Result<Self, BenchError> {
        let model = config.init(0, &Device::flex().autodiff())?;
        let token = |i: usize| (i * (i % 77) + 3 * i) % VOCABULARY;
        let sequence = |of: usize| {
            let tokens: Vec<i32> = (0..time).map(|i| token(of * time + i) as i32).collect();
            let targets = tokens.iter().map(|token| i64::from(5 * token + 1) % VOCABULARY as i64).collect();
            (tokens, targets)
        };
        let batch = Batch::new((0..batch).map(sequence));
        Ok(Self { model: Some(model), optimizer: AdamW::new(AdamWConfig::default()), batch })
    }

    /// Seconds of one step.
    fn run(&mut self) -> f64 {
        let begin = Instant::now();
        let model = self.model.take().expect("no earlier step panicked");
        let mut gradients = gradients(&model, &self.batch, 1).gradients;
        clip(&mut gradients, 1.0);
        self.model = Some(self.optimizer.step(model, &gradients, 1e-3));
        begin.elapsed().as_secs_f64()
    }

    /// Floating-point operations per token in products with parameters: 2 forward, 4 backward for each number of a matrix.
    fn flops(&self) -> f64 {
        let matrices = self.model.iter().flat_map(Model::parameters).filter(|p| p.shape.len() == 2);
        6.0 * matrices.map(|p| p.shape.iter().product::<usize>()).sum::<usize>() as f64
    }
}

/// PyTorch in a process of its own, a step for every line it is sent.
struct Peer(Child);

impl Peer {
    fn start(args: &TrainBenchArgs, python: &Path, compiled: bool) -> Result<(Self, Value), BenchError> {
        let mut command = Command::new(python);
        command.args(["-c", PEER, "--serve"]).args(compiled.then_some("--compile"));
        for (name, value) in [("--threads", args.threads()), ("--batch", args.batch), ("--time", args.tokens)] {
            command.args([name, &value.to_string()]);
        }
        let hello = Child::start("PyTorch", &mut command).and_then(|mut child| Ok((child.answer()?, child)));
        let (hello, child) = hello.map_err(|error| match error {
            BenchError::Child { name, reason } => {
                let hint = "is torch installed for that python? Give --python, or --no-peer";
                BenchError::Child { name, reason: format!("{reason}; {hint}") }
            }
            error => error,
        })?;
        let hello = serde_json::from_str(&hello).map_err(|error| child.wrong(&hello, error))?;
        Ok((Self(child), hello))
    }

    fn run(&mut self) -> Result<f64, BenchError> {
        let line = self.0.ask("")?;
        line.parse().map_err(|error| self.0.wrong(&line, error))
    }
}

/// A row to be.
struct Row {
    name: String,
    parameters: usize,
    flops: Option<f64>,
    ticket: Ticket,
}

/// Times everything asked for.
pub(super) fn run(args: &TrainBenchArgs) -> Result<Table, BenchError> {
    check_memory([product(&[args.batch, args.tokens, BYTES_PER_TOKEN])], "--batch or --tokens")?;
    use_threads(Some(args.threads()))?;
    let mut steps = Vec::new();
    for name in &args.models {
        let mut config = ModelConfig::preset(name, "tiny", VOCABULARY)?;
        // As the peer has it, whatever makes parameters equal elsewhere; a model without it stays without.
        config.intermediate_size = config.intermediate_size.min(1) * 352;
        steps.push(RefCell::new(Step::new(&config, args.batch, args.tokens)?));
    }
    let mut peers = Vec::new();
    if !args.no_peer {
        for (name, compiled) in [("PyTorch eager", false), ("PyTorch compiled", true)] {
            if compiled && !args.compiled {
                continue;
            }
            let (peer, hello) =
                with_spinner(&format!("starting {name}"), || Peer::start(args, &args.python(), compiled))?;
            let version = hello["torch"].as_str().unwrap_or_default();
            let parameters = hello["parameters"].as_u64().unwrap_or(0) as usize;
            peers.push((format!("{name} {version}, transformer"), parameters, RefCell::new(peer)));
        }
    }
    let mut schedule = Schedule::default();
    let mut rows = Vec::new();
    for (name, parameters, peer) in &peers {
        let ticket = schedule.add(|| peer.borrow_mut().run());
        rows.push(Row { name: name.clone(), parameters: *parameters, flops: None, ticket });
    }
    for (name, step) in args.models.iter().zip(&steps) {
        let flops = Some(step.borrow().flops());
        let parameters = step
            .borrow()
            .model
            .iter()
            .flat_map(Model::parameters)
            .map(|p| p.shape.iter().product::<usize>())
            .sum();
        rows.push(Row {
            name: name.clone(),
            parameters,
            flops,
            ticket: schedule.add(|| Ok(step.borrow_mut().run())),
        });
    }
    let gemm = Gemm::add_to(&mut schedule, args.threads());
    let medians = schedule.run(args.repeats.into())?;
    let tokens = (args.batch * args.tokens) as f64;
    let peak = gemm.rate(&medians).gflops;
    let peer = (!peers.is_empty()).then(|| medians.of(rows[0].ticket));

    let mut text = table::Text::new(&["", "parameters", "ms/step", "tokens/s", "x PyTorch", "GFLOP/s", "%gemm"]);
    let mut values = Vec::new();
    for row in &rows {
        let seconds = medians.of(row.ticket);
        let (ratio, gflops) =
            (peer.map(|peer| peer / seconds), row.flops.map(|flops| flops * tokens / seconds / 1e9));
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
            "table": "train", "name": row.name, "parameters": row.parameters, "batch": args.batch, "time": args.tokens,
            "threads": args.threads(), "repeats": args.repeats, "ms": 1e3 * seconds,
            "tokens_per_second": tokens / seconds, "ratio": ratio, "gflops": gflops, "gemm_gflops": peak,
        }));
    }
    let memory = memory::peak().map_or(String::new(), |peak| format!("; peak memory {} MiB", peak >> 20));
    let title = format!(
        "Training steps, f32: models 128 wide (Transformer and Falcon: 4 layers, 4 heads, SwiGLU 352), {} sequences of {} tokens, {} threads; GEMM {peak:.0} GFLOP/s{memory}",
        args.batch,
        args.tokens,
        args.threads(),
    );
    Ok(Table { title, text, rows: values })
}
