//! The scaling table: time and peak memory as the sequence grows, each length in a process of its own.

use std::cell::{Cell, RefCell};

use serde_json::json;

use super::Table;
use super::args::KernelsArgs;
use super::cases::{Preset, Size, check_memory, presets};
use super::child::Child;
use super::error::BenchError;
use super::schedule::Schedule;
use super::serve::{Answer, Mode, Request};
use super::table::{Text, short};

/// The rules if none were asked for.
const RULES: [&str; 2] = ["falcon-1", "falcon-1a"];

/// What to time.
pub(super) struct Plan {
    rules: Vec<Preset>,
    tokens: Vec<usize>,
    dims: Vec<usize>,
    heads: usize,
    threads: Vec<usize>,
    chunk: usize,
    repeats: u16,
}

impl From<&KernelsArgs> for Plan {
    fn from(args: &KernelsArgs) -> Self {
        let rules = match &args.rules[..] {
            [] => presets().filter(|preset| RULES.contains(&preset.name)).collect(),
            rules => rules.to_vec(),
        };
        let or = |given: &[usize], default: &[usize]| if given.is_empty() { default } else { given }.to_vec();
        Self {
            rules,
            tokens: or(&args.tokens, &[4096, 16384, 65536]),
            dims: or(&args.dims, &[64]),
            heads: args.heads,
            threads: args.threads.clone(),
            chunk: args.chunk,
            repeats: args.repeats,
        }
    }
}

/// Lengths of one rule are interleaved; rules follow each other, for not all would fit in memory at once.
pub(super) fn run(plan: &Plan) -> Result<Table, BenchError> {
    let mut text = Text::new(&[
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
    for preset in &plan.rules {
        for &dim in &plan.dims {
            for &threads in &plan.threads {
                let lengths = lengths(plan, preset, dim, threads)?;
                for length in &lengths {
                    text.row(length.cells(preset, dim, threads, &lengths[0]));
                    rows.push(length.json(plan, preset, dim, threads, &lengths[0]));
                }
            }
        }
    }
    let title =
        format!("Scaling: f32, {} heads, chunks of {}, medians of {}", plan.heads, plan.chunk, plan.repeats);
    Ok(Table { title, text, rows })
}

/// What one length came to: forward, and forward and backward.
struct Length {
    tokens: usize,
    /// Seconds per token.
    seconds: [f64; 2],
    /// Bytes.
    peak: [Option<u64>; 2],
}

fn lengths(plan: &Plan, preset: &Preset, dim: usize, threads: usize) -> Result<Vec<Length>, BenchError> {
    let request = |tokens: usize, mode: Mode| Request {
        rule: preset.name.into(),
        tokens,
        dim,
        heads: plan.heads,
        threads,
        mode,
        chunk: plan.chunk,
    };
    let bytes = plan.tokens.iter().map(|&tokens| Size { tokens, dim, heads: plan.heads, batch: 1 }.bytes());
    check_memory(bytes, "--tokens, --dims or --heads")?;
    let mut workers = Vec::new();
    for &tokens in &plan.tokens {
        // Forward alone comes first: its peak is gone once anything has gone backward.
        let name = format!("{} of {tokens} tokens", preset.name);
        let mut worker = Child::this_program(&name, &["bench", "kernels", "--serve"])?;
        let first = ask(&mut worker, &request(tokens, Mode::Forward))?;
        workers.push((tokens, RefCell::new(worker), first.peak_bytes, Cell::new(None)));
    }
    let mut schedule = Schedule::default();
    let mut tickets = Vec::new();
    for (tokens, worker, _, peak) in &workers {
        let (forward, both) = (request(*tokens, Mode::Forward), request(*tokens, Mode::Both));
        let forward = schedule.add(move || Ok(ask(&mut worker.borrow_mut(), &forward)?.seconds));
        let both = schedule.add(move || {
            let answer = ask(&mut worker.borrow_mut(), &both)?;
            peak.set(answer.peak_bytes);
            Ok(answer.seconds)
        });
        tickets.push([forward, both]);
    }
    let medians = schedule.run(plan.repeats.into())?;
    let lengths = workers.iter().zip(tickets).map(|((tokens, _, forward_peak, both_peak), tickets)| Length {
        tokens: *tokens,
        seconds: tickets.map(|ticket| medians.of(ticket) / *tokens as f64),
        peak: [*forward_peak, both_peak.get()],
    });
    Ok(lengths.collect())
}

impl Length {
    fn cells(&self, preset: &Preset, dim: usize, threads: usize, first: &Length) -> Vec<String> {
        let mut cells = vec![preset.name.into(), self.tokens.to_string(), dim.to_string(), threads.to_string()];
        for (seconds, first) in self.seconds.iter().zip(first.seconds) {
            cells.extend([short(seconds * 1e9), format!("{:.3}", seconds / first)]);
        }
        for peak in self.peak {
            let unit = |size: f64| peak.map_or("n/a".into(), |peak| short(peak as f64 / size));
            cells.extend([unit(f64::from(1 << 20)), unit(1024.0 * self.tokens as f64)]);
        }
        cells
    }

    fn json(&self, plan: &Plan, preset: &Preset, dim: usize, threads: usize, first: &Length) -> serde_json::Value {
        json!({
            "table": "scaling",
            "rule": preset.name,
            "dtype": "f32",
            "tokens": self.tokens,
            "dim": dim,
            "heads": plan.heads,
            "threads": threads,
            "chunk": plan.chunk,
            "repeats": plan.repeats,
            "forward_ns_per_token": self.seconds[0] * 1e9,
            "forward_relative": self.seconds[0] / first.seconds[0],
            "both_ns_per_token": self.seconds[1] * 1e9,
            "both_relative": self.seconds[1] / first.seconds[1],
            "forward_peak_bytes": self.peak[0],
            "both_peak_bytes": self.peak[1],
        })
    }
}

/// What another process of this program measured.
fn ask(worker: &mut Child, request: &Request) -> Result<Answer, BenchError> {
    let line = worker.ask(&serde_json::to_string(request).map_err(std::io::Error::from)?)?;
    serde_json::from_str(&line).map_err(|error| worker.wrong(&line, error))
}
