//! Times kernels on request, so that another program can time its own kernels in turns with these.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};

use falcon_lm::memory;
use serde::{Deserialize, Serialize};

use super::cases::{CaseSize, CaseTensors, Pools, named_rule};
use super::error::BenchError;

/// A request to time one call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimingRequest {
    pub rule: String,
    pub tokens: usize,
    pub dim: usize,
    pub heads: usize,
    pub threads: usize,
    pub mode: TimedPart,
    pub chunk: usize,
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TimedPart {
    Forward,
    /// Forward and backward.
    Both,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct TimingAnswer {
    pub seconds: f64,
    /// The peak memory of this process so far; none if the system does not report it.
    pub peak_bytes: Option<u64>,
}

/// Answers each line of `requests`, a JSON object, with a line in `answers`. A request that was not made before is
/// run once to warm up.
pub fn serve(requests: impl BufRead, mut answers: impl Write) -> Result<(), BenchError> {
    let (mut warm, mut tensors, mut pools) = (BTreeSet::new(), BTreeMap::new(), Pools::default());
    for (index, line) in requests.lines().enumerate() {
        let request = parse(index + 1, &line?)?;
        let rule = named_rule(&request.rule)?.rule;
        let size =
            CaseSize { tokens: request.tokens, dim: request.dim, heads: request.heads, batch: 1 }.check()?;
        // Gains for each column are large, and would distort the memory of rules without them.
        let columns = rule.columns == falcon_kernels::rule::Columns::Each;
        let tensors: &CaseTensors =
            tensors.entry((size, columns)).or_insert_with(|| CaseTensors::new(size, columns));
        let pool = pools.add(request.threads)?;
        let run = || match request.mode {
            TimedPart::Forward => tensors.forward(&rule, request.chunk, pool),
            TimedPart::Both => tensors.both(&rule, request.chunk, pool),
        };
        if !warm.contains(&request) {
            run()?;
        }
        let answer = TimingAnswer { seconds: run()?, peak_bytes: memory::peak() };
        warm.insert(request);
        serde_json::to_writer(&mut answers, &answer).map_err(std::io::Error::from)?;
        writeln!(answers)?;
        answers.flush()?;
    }
    Ok(())
}

fn parse(line: usize, text: &str) -> Result<TimingRequest, BenchError> {
    let refuse = |reason: String| BenchError::Request { line, reason };
    let request: TimingRequest = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
    let TimingRequest { tokens, dim, heads, threads, chunk, .. } = request;
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
