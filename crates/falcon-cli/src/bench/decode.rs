//! The decode table: one token at a time, beside the speed of the memory it goes through.

use std::time::Instant;

use falcon_kernels::{Call, Decoder, Form};
use pulp::Arch;
use serde_json::json;

use super::Table;
use super::args::KernelsArgs;
use super::cases::{Preset, Size, Tensors, presets};
use super::error::BenchError;
use super::schedule::{Medians, Schedule, Ticket};
use super::table::{Text, short};

/// Rules that are always in the table.
pub(super) const ALWAYS: [&str; 2] = ["falcon-1", "falcon-1a"];

/// Bytes of memory that one timing goes through: some milliseconds.
const BYTES_PER_TIMING: usize = 32 << 20;

/// What to time.
pub(super) struct Plan {
    rules: Vec<Preset>,
    dims: Vec<usize>,
    heads: usize,
    repeats: u16,
}

impl From<&KernelsArgs> for Plan {
    fn from(args: &KernelsArgs) -> Self {
        let asked = |preset: &Preset| args.rules.iter().any(|rule| rule.name == preset.name);
        let rules = presets().filter(|preset| ALWAYS.contains(&preset.name) || asked(preset)).collect();
        let dims = if args.dims.is_empty() { vec![64, 128] } else { args.dims.clone() };
        Self { rules, dims, heads: args.heads, repeats: args.repeats }
    }
}

/// A plan with its tensors.
pub(super) struct Cases<'a> {
    plan: &'a Plan,
    tensors: Vec<Tensors>,
}

impl Plan {
    /// Bytes of the memories of all heads.
    fn memory(&self, dim: usize) -> usize {
        self.heads * dim * dim * size_of::<f32>()
    }

    fn size(&self, dim: usize) -> Size {
        let tokens = (BYTES_PER_TIMING / self.memory(dim)).clamp(16, 1024);
        Size { tokens, dim, heads: self.heads, batch: 1 }
    }

    /// Bytes for every width: tensors, and for each rule a memory with an array of its size beside it.
    pub fn bytes(&self) -> impl Iterator<Item = usize> + '_ {
        self.dims.iter().map(|&dim| self.size(dim).bytes() + 2 * self.rules.len() * self.memory(dim))
    }

    pub fn cases(&self) -> Cases<'_> {
        Cases { plan: self, tensors: self.dims.iter().map(|&dim| Tensors::new(self.size(dim), true)).collect() }
    }
}

struct Row {
    preset: Preset,
    size: Size,
    /// Bytes of the memories of all heads.
    bytes: usize,
    step: Ticket,
    machine: Ticket,
}

/// The rows of the table, while they are being timed.
pub(super) struct Rows<'a> {
    plan: &'a Plan,
    rows: Vec<Row>,
}

impl<'a> Cases<'a> {
    pub fn add_to(&'a self, schedule: &mut Schedule<'a>) -> Result<Rows<'a>, BenchError> {
        let mut rows = Vec::new();
        for tensors in &self.tensors {
            for &preset in &self.plan.rules {
                let mut stream = Stream::new(tensors, preset)?;
                let (size, numbers) = (tensors.size, stream.decoder.state().memory.len());
                let mut array = Array::new(numbers);
                let step = schedule.add(move || stream.run());
                let machine = schedule.add(move || Ok(array.run(size.tokens)));
                rows.push(Row { preset, size, bytes: numbers * size_of::<f32>(), step, machine });
            }
        }
        Ok(Rows { plan: self.plan, rows })
    }
}

impl Rows<'_> {
    pub fn table(self, medians: &Medians) -> Table {
        let Self { plan, rows } = self;
        let mut text =
            Text::new(&["rule", "d", "state KiB", "ns/token", "tokens/s", "GB/s", "machine GB/s", "ratio"]);
        let mut json_rows = Vec::new();
        for Row { preset, size, bytes, step, machine } in rows {
            let [seconds, of_machine] = [step, machine].map(|ticket| medians.of(ticket) / size.tokens as f64);
            // Read once and written once.
            let [rate, machine_rate] = [seconds, of_machine].map(|seconds| 2.0 * bytes as f64 / seconds / 1e9);
            text.row(vec![
                preset.name.into(),
                size.dim.to_string(),
                short(bytes as f64 / 1024.0),
                short(seconds * 1e9),
                short(1.0 / seconds),
                short(rate),
                short(machine_rate),
                short(rate / machine_rate),
            ]);
            json_rows.push(json!({
                "table": "decode",
                "rule": preset.name,
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
        Table { title, text, rows: json_rows }
    }
}

/// A stream of tokens and the state it goes through.
struct Stream<'a> {
    tensors: &'a Tensors,
    preset: Preset,
    decoder: Decoder<f32>,
    out: Vec<f32>,
}

impl<'a> Stream<'a> {
    fn new(tensors: &'a Tensors, preset: Preset) -> Result<Self, BenchError> {
        let token = tensors.token(&preset.rule, 0)?;
        let state = Call::new(&preset.rule, Form::Recurrent, token)?.fresh_state();
        let out = vec![0.0; tensors.size.heads * tensors.size.dim];
        Ok(Self { tensors, preset, decoder: Decoder::new(&preset.rule, state)?, out })
    }

    /// Seconds for all tokens, from the state that the last run left.
    fn run(&mut self) -> Result<f64, BenchError> {
        let start = Instant::now();
        for token in 0..self.tensors.size.tokens {
            let inputs = self.tensors.token(&self.preset.rule, token)?;
            self.decoder.step(&inputs, &mut self.out)?;
        }
        std::hint::black_box(&self.out);
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Numbers to be read and written in order: the fastest that anything of that size can be.
struct Array {
    data: Vec<f32>,
    start: usize,
    len: usize,
}

impl Array {
    /// `len` numbers that begin with a cache line.
    fn new(len: usize) -> Self {
        const LINE: usize = 64;
        let data = vec![1.0f32; len + LINE / size_of::<f32>()];
        let start = data.as_ptr().align_offset(LINE).min(data.len() - len);
        Self { data, start, len }
    }

    /// Seconds of `passes` times `x = a x`.
    fn run(&mut self, passes: usize) -> f64 {
        let numbers = &mut self.data[self.start..][..self.len];
        let start = Instant::now();
        for _ in 0..passes {
            // By 1, so that it neither grows nor fades; but the compiler must not know.
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
