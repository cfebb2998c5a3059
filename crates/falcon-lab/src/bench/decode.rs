//! The table of decoding: the speed of one token at a time, beside the speed at which the machine reads and writes an
//! array as large as the memory of the rule.

use std::time::Instant;

use falcon_kernels::{Call, Decoder, Form};
use pulp::Arch;
use serde_json::json;

use super::cases::{BenchRule, CaseSize, CaseTensors, named_rules};
use super::error::BenchError;
use super::options::KernelsOptions;
use super::schedule::{JobId, Schedule, Times};
use super::table::{BenchTable, three_digits};
use crate::tables::TextTable;

/// Rules that are always in the table.
pub const ALWAYS_DECODED: &[&str] = &["falcon-1", "falcon-1a"];

/// The number of bytes that one timing reads and writes, so that it takes some milliseconds.
pub(super) const BYTES_PER_TIMING: usize = 32 << 20;

/// What is timed.
pub(super) struct DecodePlan {
    rules: Vec<BenchRule>,
    dims: Vec<usize>,
    heads: usize,
    repeats: u16,
}

impl DecodePlan {
    pub fn new(options: &KernelsOptions) -> Self {
        let asked = |rule: &BenchRule| options.rules.iter().any(|asked| asked.name == rule.name);
        let rules = named_rules().filter(|rule| ALWAYS_DECODED.contains(&rule.name) || asked(rule)).collect();
        let dims = if options.dims.is_empty() { vec![64, 128] } else { options.dims.clone() };
        Self { rules, dims, heads: options.heads, repeats: options.repeats }
    }

    /// The size of the memories of all heads, in bytes.
    fn memory(&self, dim: usize) -> usize {
        self.heads * dim * dim * size_of::<f32>()
    }

    fn size(&self, dim: usize) -> CaseSize {
        let tokens = (BYTES_PER_TIMING / self.memory(dim)).clamp(16, 1024);
        CaseSize { tokens, dim, heads: self.heads, batch: 1 }
    }

    /// The memory needed for each size, in bytes: the tensors and, for each rule, its memory and an array of the same
    /// size.
    pub fn bytes(&self) -> impl Iterator<Item = usize> + '_ {
        self.dims.iter().map(|&dim| self.size(dim).bytes() + 2 * self.rules.len() * self.memory(dim))
    }

    pub fn cases(&self) -> DecodeCases<'_> {
        let tensors = self.dims.iter().map(|&dim| CaseTensors::new(self.size(dim), true)).collect();
        DecodeCases { plan: self, tensors }
    }
}

/// A plan and its tensors.
pub(super) struct DecodeCases<'a> {
    plan: &'a DecodePlan,
    tensors: Vec<CaseTensors>,
}

struct DecodeRow {
    rule: BenchRule,
    size: CaseSize,
    /// The size of the memories of all heads, in bytes.
    bytes: usize,
    step: JobId,
    machine: JobId,
}

/// The rows of the table and their jobs in the schedule.
pub(super) struct DecodeRows<'a> {
    plan: &'a DecodePlan,
    rows: Vec<DecodeRow>,
}

impl<'a> DecodeCases<'a> {
    pub fn add_to(&'a self, schedule: &mut Schedule<'a>) -> Result<DecodeRows<'a>, BenchError> {
        let mut rows = Vec::new();
        for tensors in &self.tensors {
            for &rule in &self.plan.rules {
                let mut stream = DecodeStream::new(tensors, rule)?;
                let (size, numbers) = (tensors.size, stream.decoder.state().memory.len());
                let mut array = MemoryProbe::new(numbers);
                let step = schedule.add(move || stream.run());
                let machine = schedule.add(move || Ok(array.run(size.tokens)));
                rows.push(DecodeRow { rule, size, bytes: numbers * size_of::<f32>(), step, machine });
            }
        }
        Ok(DecodeRows { plan: self.plan, rows })
    }
}

impl DecodeRows<'_> {
    pub fn table(self, medians: &Times) -> BenchTable {
        let Self { plan, rows } = self;
        let mut text =
            TextTable::new(&["rule", "d", "state KiB", "ns/token", "tokens/s", "GB/s", "machine GB/s", "ratio"]);
        let mut json_rows = Vec::new();
        for DecodeRow { rule, size, bytes, step, machine } in rows {
            let [seconds, machine_seconds] = [step, machine].map(|job| medians.seconds(job) / size.tokens as f64);
            // The memory is read once and written once.
            let [rate, machine_rate] =
                [seconds, machine_seconds].map(|seconds| 2.0 * bytes as f64 / seconds / 1e9);
            text.row(vec![
                rule.name.into(),
                size.dim.to_string(),
                three_digits(bytes as f64 / 1024.0),
                three_digits(seconds * 1e9),
                three_digits(1.0 / seconds),
                three_digits(rate),
                three_digits(machine_rate),
                three_digits(rate / machine_rate),
            ]);
            json_rows.push(json!({
                "table": "decode",
                "rule": rule.name,
                "dtype": "f32",
                "dim": size.dim,
                "heads": size.heads,
                "repeats": plan.repeats,
                "state_bytes": bytes,
                "ns_per_token": seconds * 1e9,
                "tokens_per_second": 1.0 / seconds,
                "gb_per_second": rate,
                "machine_gb_per_second": machine_rate,
                "of_machine": rate / machine_rate,
            }));
        }
        let title =
            format!("Decode: f32, one sequence of {} heads, one thread, medians of {}", plan.heads, plan.repeats);
        BenchTable { title, text, rows: json_rows }
    }
}

/// A stream of tokens, and the state that they update.
pub(super) struct DecodeStream<'a> {
    tensors: &'a CaseTensors,
    rule: BenchRule,
    decoder: Decoder<f32>,
    out: Vec<f32>,
}

impl<'a> DecodeStream<'a> {
    pub fn new(tensors: &'a CaseTensors, rule: BenchRule) -> Result<Self, BenchError> {
        let token = tensors.token(&rule.rule, 0)?;
        let state = Call::new(&rule.rule, Form::Recurrent, token)?.fresh_state();
        let out = vec![0.0; tensors.size.heads * tensors.size.dim];
        Ok(Self { tensors, rule, decoder: Decoder::new(&rule.rule, state)?, out })
    }

    /// Seconds for all tokens, continuing from the state of the previous run.
    pub fn run(&mut self) -> Result<f64, BenchError> {
        let start = Instant::now();
        for token in 0..self.tensors.size.tokens {
            let inputs = self.tensors.token(&self.rule.rule, token)?;
            self.decoder.step(&inputs, &mut self.out)?;
        }
        std::hint::black_box(&self.out);
        Ok(start.elapsed().as_secs_f64())
    }
}

/// An array that is read and written in order, as fast as the machine can.
pub(super) struct MemoryProbe {
    data: Vec<f32>,
    start: usize,
    len: usize,
}

impl MemoryProbe {
    /// `len` numbers, aligned to a cache line.
    pub fn new(len: usize) -> Self {
        const LINE: usize = 64;
        let data = vec![1.0f32; len + LINE / size_of::<f32>()];
        let start = data.as_ptr().align_offset(LINE).min(data.len() - len);
        Self { data, start, len }
    }

    /// Seconds for `passes` times `x = a x`.
    pub fn run(&mut self, passes: usize) -> f64 {
        let numbers = &mut self.data[self.start..][..self.len];
        let start = Instant::now();
        for _ in 0..passes {
            // A factor of 1 keeps the numbers in range; the compiler must not know it.
            let factor = std::hint::black_box(1.0f32);
            Arch::new().dispatch(
                #[inline(always)]
                || numbers.iter_mut().for_each(|x| *x *= factor),
            );
            std::hint::black_box(&mut *numbers);
        }
        start.elapsed().as_secs_f64()
    }
}
