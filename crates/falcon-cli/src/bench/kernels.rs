//! The kernel table: every rule, forward and backward, over a grid.

use serde_json::json;

use super::Table;
use super::args::KernelsArgs;
use super::cases::{Pools, Preset, Size, Tensors, presets};
use super::error::BenchError;
use super::flops::{Flops, useful};
use super::gemm::{Gemm, Rate};
use super::schedule::{Medians, Schedule, Ticket};
use super::table::{Text, short};

/// Presets that are timed only when asked for: they run the code of others.
pub(super) const ON_REQUEST: [&str; 2] = ["normalised-linear-attention", "online-ridge"];

/// What to time.
pub(super) struct Plan {
    rules: Vec<Preset>,
    sizes: Vec<Size>,
    pools: Pools,
    chunk: usize,
    repeats: u16,
}

impl TryFrom<&KernelsArgs> for Plan {
    type Error = BenchError;

    fn try_from(args: &KernelsArgs) -> Result<Self, BenchError> {
        let rules = match &args.rules[..] {
            [] => presets().filter(|preset| !ON_REQUEST.contains(&preset.name)).collect(),
            rules => rules.to_vec(),
        };
        let tokens = if args.tokens.is_empty() { &[1024, 4096][..] } else { &args.tokens };
        let dims = if args.dims.is_empty() { &[64, 128][..] } else { &args.dims };
        let (heads, batch) = (args.heads, args.batch);
        let sizes =
            tokens.iter().flat_map(|&tokens| dims.iter().map(move |&dim| Size { tokens, dim, heads, batch }));
        let mut pools = Pools::default();
        for &threads in &args.threads {
            pools.add(threads)?;
        }
        Ok(Self { rules, sizes: sizes.collect(), pools, chunk: args.chunk, repeats: args.repeats })
    }
}

/// A plan with its tensors, which all rules share.
pub(super) struct Cases<'a> {
    plan: &'a Plan,
    tensors: Vec<Tensors>,
}

impl Plan {
    /// Bytes of the tensors of every size.
    pub fn bytes(&self) -> impl Iterator<Item = usize> + '_ {
        self.sizes.iter().map(|size| size.bytes())
    }

    pub fn cases(&self) -> Cases<'_> {
        Cases { plan: self, tensors: self.sizes.iter().map(|&size| Tensors::new(size, true)).collect() }
    }
}

struct Row {
    preset: Preset,
    size: Size,
    threads: usize,
    forward: Ticket,
    both: Ticket,
}

/// The rows of the table, while they are being timed.
pub(super) struct Rows<'a> {
    plan: &'a Plan,
    rows: Vec<Row>,
    gemms: Vec<Gemm>,
}

impl<'a> Cases<'a> {
    pub fn add_to(&'a self, schedule: &mut Schedule<'a>) -> Result<Rows<'a>, BenchError> {
        let Self { plan, tensors } = self;
        let gemms = plan.pools.iter().map(|(threads, _)| Gemm::add_to(schedule, threads)).collect();
        let (mut rows, chunk) = (Vec::new(), plan.chunk);
        for tensors in tensors {
            for (threads, pool) in plan.pools.iter() {
                for &preset in &plan.rules {
                    let forward = schedule.add(move || tensors.forward(&preset.rule, chunk, pool));
                    let both = schedule.add(move || tensors.both(&preset.rule, chunk, pool));
                    rows.push(Row { preset, size: tensors.size, threads, forward, both });
                }
            }
        }
        Ok(Rows { plan, rows, gemms })
    }
}

impl Rows<'_> {
    /// The machine's rates, and the kernels.
    pub fn tables(self, medians: &Medians) -> Vec<Table> {
        let Self { plan, rows, gemms } = self;
        let rates: Vec<(usize, Rate)> = gemms.iter().map(|gemm| (gemm.threads, gemm.rate(medians))).collect();
        let mut gemm = Text::new(&["matrix product", "threads", "GFLOP/s"]);
        for (threads, Rate { gflops, side }) in &rates {
            gemm.row(vec![format!("f32 {side}^3"), threads.to_string(), short(*gflops)]);
        }
        let gemm_rows = rates
            .iter()
            .map(|(threads, Rate { gflops, side })| {
                json!({ "table": "gemm", "dtype": "f32", "side": side, "threads": threads, "gflops": gflops })
            })
            .collect();
        let mut text = Text::new(&[
            "rule",
            "T",
            "d",
            "thr",
            "fwd ms",
            "f+b ms",
            "bwd/fwd",
            "fwd ktok/s",
            "f+b ktok/s",
            "fwd GFLOP/s",
            "fwd %gemm",
            "f+b %gemm",
            "us/tok·head",
        ]);
        let mut json_rows = Vec::new();
        for row in &rows {
            let Some((_, rate)) = rates.iter().find(|(threads, _)| *threads == row.threads) else { continue };
            let figures = Figures::new(plan, row, medians, rate.gflops);
            text.row(figures.cells(row));
            json_rows.push(figures.json(plan, row));
        }
        let title = match plan.sizes.first() {
            Some(Size { heads, batch, .. }) => format!(
                "Kernels: f32, {heads} heads, {batch} sequence{}, chunks of {}, medians of {}",
                if *batch == 1 { "" } else { "s" },
                plan.chunk,
                plan.repeats
            ),
            None => "Kernels".into(),
        };
        vec![
            Table { title: "This machine".into(), text: gemm, rows: gemm_rows },
            Table { title, text, rows: json_rows },
        ]
    }
}

/// What a row came to.
struct Figures {
    forward: f64,
    both: f64,
    ratio: f64,
    tokens: f64,
    gflops: [f64; 2],
    of_gemm: [f64; 2],
    per_token_head: f64,
}

impl Figures {
    fn new(plan: &Plan, row: &Row, medians: &Medians, gemm: f64) -> Self {
        let (forward, both) = (medians.of(row.forward), medians.of(row.both));
        let tokens = row.size.all_tokens() as f64;
        let work = tokens * row.size.heads as f64;
        let flops: Flops = useful(&row.preset.rule, row.size.dim, plan.chunk);
        let gflops = [flops.forward * work / forward / 1e9, (flops.forward + flops.backward) * work / both / 1e9];
        Self {
            forward,
            both,
            ratio: (both - forward) / forward,
            tokens,
            gflops,
            of_gemm: gflops.map(|gflops| gflops / gemm),
            per_token_head: forward / work,
        }
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        vec![
            row.preset.name.into(),
            row.size.tokens.to_string(),
            row.size.dim.to_string(),
            row.threads.to_string(),
            short(self.forward * 1e3),
            short(self.both * 1e3),
            short(self.ratio),
            short(self.tokens / self.forward / 1e3),
            short(self.tokens / self.both / 1e3),
            short(self.gflops[0]),
            format!("{:.0}%", self.of_gemm[0] * 100.0),
            format!("{:.0}%", self.of_gemm[1] * 100.0),
            format!("{:.3}", self.per_token_head * 1e6),
        ]
    }

    fn json(&self, plan: &Plan, row: &Row) -> serde_json::Value {
        json!({
            "table": "kernels",
            "rule": row.preset.name,
            "dtype": "f32",
            "tokens": row.size.tokens,
            "dim": row.size.dim,
            "heads": row.size.heads,
            "batch": row.size.batch,
            "threads": row.threads,
            "chunk": plan.chunk,
            "repeats": plan.repeats,
            "forward_ms": self.forward * 1e3,
            "both_ms": self.both * 1e3,
            "backward_over_forward": self.ratio,
            "forward_tokens_per_second": self.tokens / self.forward,
            "both_tokens_per_second": self.tokens / self.both,
            "forward_gflops": self.gflops[0],
            "both_gflops": self.gflops[1],
            "forward_of_gemm": self.of_gemm[0],
            "both_of_gemm": self.of_gemm[1],
            "forward_us_per_token_head": self.per_token_head * 1e6,
        })
    }
}
