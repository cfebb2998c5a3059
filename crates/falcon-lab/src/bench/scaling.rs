//! The scaling table: time and peak memory by sequence length, each length in a process of its own.

use std::cell::{Cell, RefCell};
use std::io;
use std::process::Command;

use falcon_lm::monitor::Monitor;
use serde_json::json;

use super::cases::{BenchRule, CaseSize, check_memory, named_rules};
use super::error::BenchError;
use super::schedule::Schedule;
use super::serve::{TimedPart, TimingAnswer, TimingRequest};
use super::table::{BenchTable, three_digits};
use super::worker::Worker;
use crate::tables::TextTable;

/// The rules that are timed by default.
const RULES: &[&str] = &["falcon-1", "falcon-1a"];

/// What to time. Empty lists stand for the defaults.
pub struct ScalingOptions<'a> {
    /// The rules.
    pub rules: Vec<BenchRule>,
    /// The numbers of tokens.
    pub tokens: Vec<usize>,
    /// The sizes of keys and values.
    pub dims: Vec<usize>,
    /// The number of heads.
    pub heads: usize,
    /// The numbers of threads.
    pub threads: Vec<usize>,
    /// The number of tokens per chunk of the chunked form.
    pub chunk: usize,
    /// The number of timed rounds, after one to warm up.
    pub repeats: u16,
    /// The command of a process that answers requests by [`serve`](super::serve()).
    pub server: &'a dyn Fn() -> io::Result<Command>,
}

/// Measures time and peak memory by sequence length. The lengths of one rule are timed in turns; rules are timed one
/// after the other, because not all would fit in memory at once.
pub fn scaling(options: &ScalingOptions<'_>, monitor: &mut dyn Monitor) -> Result<BenchTable, BenchError> {
    let rules = match &options.rules[..] {
        [] => named_rules().filter(|rule| RULES.contains(&rule.name)).collect(),
        rules => rules.to_vec(),
    };
    let dims = if options.dims.is_empty() { &[64][..] } else { &options.dims };
    let mut text = TextTable::new(&[
        "rule",
        "T",
        "d",
        "thr",
        "fwd ns/tok",
        "rel",
        "f+b ns/tok",
        "rel",
        "fwd peak MiB",
        "KiB/tok",
        "f+b peak MiB",
        "KiB/tok",
    ]);
    let mut rows = Vec::new();
    for rule in &rules {
        for &dim in dims {
            for &threads in &options.threads {
                let lengths = lengths(options, rule, dim, threads, monitor)?;
                for length in &lengths {
                    text.row(length.cells(rule, dim, threads, &lengths[0]));
                    rows.push(length.json(options, rule, dim, threads, &lengths[0]));
                }
            }
        }
    }
    let title = format!(
        "Scaling: f32, {} heads, chunks of {}, medians of {}",
        options.heads, options.chunk, options.repeats
    );
    Ok(BenchTable { title, text, rows })
}

/// The results of one length: forward, and forward and backward together.
struct LengthResult {
    tokens: usize,
    /// Seconds per token.
    seconds: [f64; 2],
    /// Peak memory in bytes; none if the system does not report it.
    peak: [Option<u64>; 2],
}

fn lengths(
    options: &ScalingOptions<'_>,
    rule: &BenchRule,
    dim: usize,
    threads: usize,
    monitor: &mut dyn Monitor,
) -> Result<Vec<LengthResult>, BenchError> {
    let all_tokens = if options.tokens.is_empty() { &[4096, 16384, 65536][..] } else { &options.tokens };
    let request = |tokens: usize, mode: TimedPart| TimingRequest {
        rule: rule.name.into(),
        tokens,
        dim,
        heads: options.heads,
        threads,
        mode,
        chunk: options.chunk,
    };
    let bytes = all_tokens.iter().map(|&tokens| CaseSize { tokens, dim, heads: options.heads, batch: 1 }.bytes());
    check_memory(bytes, "--tokens, --dims or --heads")?;
    let mut workers = Vec::new();
    for &tokens in all_tokens {
        // Forward alone comes first: after a backward pass, its peak can no longer be measured.
        let name = format!("{} of {tokens} tokens", rule.name);
        let mut worker = Worker::start(&name, &mut (options.server)()?)?;
        let first = ask(&mut worker, &request(tokens, TimedPart::Forward))?;
        workers.push((tokens, RefCell::new(worker), first.peak_bytes, Cell::new(None)));
    }
    let mut schedule = Schedule::default();
    let mut jobs = Vec::new();
    for (tokens, worker, _, peak) in &workers {
        let (forward, both) = (request(*tokens, TimedPart::Forward), request(*tokens, TimedPart::Both));
        let forward = schedule.add(move || Ok(ask(&mut worker.borrow_mut(), &forward)?.seconds));
        let both = schedule.add(move || {
            let answer = ask(&mut worker.borrow_mut(), &both)?;
            peak.set(answer.peak_bytes);
            Ok(answer.seconds)
        });
        jobs.push([forward, both]);
    }
    let medians = schedule.run(options.repeats.into(), monitor)?;
    let lengths = workers.iter().zip(jobs).map(|((tokens, _, forward_peak, both_peak), jobs)| LengthResult {
        tokens: *tokens,
        seconds: jobs.map(|job| medians.seconds(job) / *tokens as f64),
        peak: [*forward_peak, both_peak.get()],
    });
    Ok(lengths.collect())
}

impl LengthResult {
    fn cells(&self, rule: &BenchRule, dim: usize, threads: usize, first: &LengthResult) -> Vec<String> {
        let mut cells = vec![rule.name.into(), self.tokens.to_string(), dim.to_string(), threads.to_string()];
        for (seconds, first) in self.seconds.iter().zip(first.seconds) {
            cells.extend([three_digits(seconds * 1e9), format!("{:.3}", seconds / first)]);
        }
        for peak in self.peak {
            let unit = |size: f64| peak.map_or("n/a".into(), |peak| three_digits(peak as f64 / size));
            cells.extend([unit(f64::from(1 << 20)), unit(1024.0 * self.tokens as f64)]);
        }
        cells
    }

    fn json(
        &self,
        options: &ScalingOptions<'_>,
        rule: &BenchRule,
        dim: usize,
        threads: usize,
        first: &LengthResult,
    ) -> serde_json::Value {
        json!({
            "table": "scaling",
            "rule": rule.name,
            "dtype": "f32",
            "tokens": self.tokens,
            "dim": dim,
            "heads": options.heads,
            "threads": threads,
            "chunk": options.chunk,
            "repeats": options.repeats,
            "forward_ns_per_token": self.seconds[0] * 1e9,
            "forward_relative": self.seconds[0] / first.seconds[0],
            "both_ns_per_token": self.seconds[1] * 1e9,
            "both_relative": self.seconds[1] / first.seconds[1],
            "forward_peak_bytes": self.peak[0],
            "both_peak_bytes": self.peak[1],
        })
    }
}

/// Sends a request to a worker, and returns its answer.
fn ask(worker: &mut Worker, request: &TimingRequest) -> Result<TimingAnswer, BenchError> {
    let line = worker.ask(&serde_json::to_string(request).map_err(io::Error::from)?)?;
    serde_json::from_str(&line).map_err(|error| worker.invalid(&line, error))
}
