//! Timing on request, so that a program with kernels of its own can interleave them with these.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};

use falcon_lm::memory;
use serde::{Deserialize, Serialize};

use super::cases::{Pools, Size, Tensors, preset};
use super::error::BenchError;

/// What to run once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    pub rule: String,
    pub tokens: usize,
    pub dim: usize,
    pub heads: usize,
    pub threads: usize,
    pub mode: Mode,
    pub chunk: usize,
}

/// Which part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    Forward,
    /// Forward and backward.
    Both,
}

/// How long it took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub seconds: f64,
    /// The most memory this process has had so far, where known.
    pub peak_bytes: Option<u64>,
}

/// Answers each line of `requests` with a line in `answers`. A request is run once more, before, when it is new.
pub(super) fn serve(requests: impl BufRead, mut answers: impl Write) -> Result<(), BenchError> {
    let (mut warm, mut tensors, mut pools) = (BTreeSet::new(), BTreeMap::new(), Pools::default());
    for (index, line) in requests.lines().enumerate() {
        let request = parse(index + 1, &line?)?;
        let rule = preset(&request.rule)?.rule;
        let size = Size { tokens: request.tokens, dim: request.dim, heads: request.heads, batch: 1 }.check()?;
        // Gains for each column are large: not made for those who measure memory without them.
        let columns = rule.columns == falcon_kernels::rule::Columns::Each;
        let tensors: &Tensors = tensors.entry((size, columns)).or_insert_with(|| Tensors::new(size, columns));
        let pool = pools.add(request.threads)?;
        let run = || match request.mode {
            Mode::Forward => tensors.forward(&rule, request.chunk, pool),
            Mode::Both => tensors.both(&rule, request.chunk, pool),
        };
        if !warm.contains(&request) {
            run()?;
        }
        let answer = Answer { seconds: run()?, peak_bytes: memory::peak() };
        warm.insert(request);
        serde_json::to_writer(&mut answers, &answer).map_err(std::io::Error::from)?;
        writeln!(answers)?;
        answers.flush()?;
    }
    Ok(())
}

fn parse(line: usize, text: &str) -> Result<Request, BenchError> {
    let refuse = |reason: String| BenchError::Request { line, reason };
    let request: Request = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
    let Request { tokens, dim, heads, threads, chunk, .. } = request;
    for (name, value, most) in [
        ("tokens", tokens, 1 << 24),
        ("dim", dim, 1024),
        ("heads", heads, 1024),
        ("threads", threads, 1024),
        ("chunk", chunk, 8192),
    ] {
        if !(1..=most).contains(&value) {
            return Err(refuse(format!("{name} must be in 1..={most}, got {value}")));
        }
    }
    Ok(request)
}
