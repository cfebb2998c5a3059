//! The kernel table: every rule, forward and backward, over a grid of sizes.

use serde_json::json;

use super::cases::{BenchRule, CaseSize, CaseTensors, Pools, named_rules};
use super::error::BenchError;
use super::flops::{Flops, useful};
use super::gemm::{Gemm, GemmRate};
use super::options::KernelsOptions;
use super::schedule::{JobId, Schedule, Times};
use super::table::{BenchTable, three_digits};
use crate::tables::TextTable;

/// Rules that are timed only on request, because they run the code of other rules.
pub const ONLY_ON_REQUEST: &[&str] = &["normalised-linear-attention", "online-ridge"];

/// What is timed.
pub(super) struct KernelsPlan {
    rules: Vec<BenchRule>,
    sizes: Vec<CaseSize>,
    pools: Pools,
    chunk: usize,
    repeats: u16,
}

impl KernelsPlan {
    pub fn new(options: &KernelsOptions) -> Result<Self, BenchError> {
        let rules = match &options.rules[..] {
            [] => named_rules().filter(|rule| !ONLY_ON_REQUEST.contains(&rule.name)).collect(),
            rules => rules.to_vec(),
        };
        let tokens = if options.tokens.is_empty() { &[1024, 4096][..] } else { &options.tokens };
        let dims = if options.dims.is_empty() { &[64, 128][..] } else { &options.dims };
        let (heads, batch) = (options.heads, options.batch);
        let sizes =
            tokens.iter().flat_map(|&tokens| dims.iter().map(move |&dim| CaseSize { tokens, dim, heads, batch }));
        let mut pools = Pools::default();
        for &threads in &options.threads {
            pools.add(threads)?;
        }
        Ok(Self { rules, sizes: sizes.collect(), pools, chunk: options.chunk, repeats: options.repeats })
    }

    /// The memory of the tensors of each size, in bytes.
    pub fn bytes(&self) -> impl Iterator<Item = usize> + '_ {
        self.sizes.iter().map(|size| size.bytes())
    }

    pub fn cases(&self) -> KernelCases<'_> {
        KernelCases { plan: self, tensors: self.sizes.iter().map(|&size| CaseTensors::new(size, true)).collect() }
    }
}

/// A plan and its tensors, which all rules share.
pub(super) struct KernelCases<'a> {
    plan: &'a KernelsPlan,
    tensors: Vec<CaseTensors>,
}

struct KernelRow {
    rule: BenchRule,
    size: CaseSize,
    threads: usize,
    forward: JobId,
    both: JobId,
}

/// The rows of the table and their jobs in the schedule.
pub(super) struct KernelRows<'a> {
    plan: &'a KernelsPlan,
    rows: Vec<KernelRow>,
    gemms: Vec<Gemm>,
}

impl<'a> KernelCases<'a> {
    pub fn add_to(&'a self, schedule: &mut Schedule<'a>) -> Result<KernelRows<'a>, BenchError> {
        let Self { plan, tensors } = self;
        let gemms = plan.pools.iter().map(|(threads, _)| Gemm::add_to(schedule, threads)).collect();
        let (mut rows, chunk) = (Vec::new(), plan.chunk);
        for tensors in tensors {
            for (threads, pool) in plan.pools.iter() {
                for &rule in &plan.rules {
                    let forward = schedule.add(move || tensors.forward(&rule.rule, chunk, pool));
                    let both = schedule.add(move || tensors.both(&rule.rule, chunk, pool));
                    rows.push(KernelRow { rule, size: tensors.size, threads, forward, both });
                }
            }
        }
        Ok(KernelRows { plan, rows, gemms })
    }
}

impl KernelRows<'_> {
    /// A table of the machine's rates, and a table of the kernels.
    pub fn tables(self, medians: &Times) -> Vec<BenchTable> {
        let Self { plan, rows, gemms } = self;
        let rates: Vec<(usize, GemmRate)> = gemms.iter().map(|gemm| (gemm.threads, gemm.rate(medians))).collect();
        let mut gemm = TextTable::new(&["matrix product", "threads", "GFLOP/s"]);
        for (threads, GemmRate { gflops, side }) in &rates {
            gemm.row(vec![format!("f32 {side}^3"), threads.to_string(), three_digits(*gflops)]);
        }
        let gemm_rows = rates
            .iter()
            .map(|(threads, GemmRate { gflops, side })| {
                json!({ "table": "gemm", "dtype": "f32", "side": side, "threads": threads, "gflops": gflops })
            })
            .collect();
        let mut text = TextTable::new(&[
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
            let figures = KernelFigures::new(plan, row, medians, rate.gflops);
            text.row(figures.cells(row));
            json_rows.push(figures.json(plan, row));
        }
        let title = match plan.sizes.first() {
            Some(CaseSize { heads, batch, .. }) => format!(
                "Kernels: f32, {heads} heads, {batch} sequence{}, chunks of {}, medians of {}",
                if *batch == 1 { "" } else { "s" },
                plan.chunk,
                plan.repeats
            ),
            None => "Kernels".into(),
        };
        vec![
            BenchTable { title: "This machine".into(), text: gemm, rows: gemm_rows },
            BenchTable { title, text, rows: json_rows },
        ]
    }
}

/// The results of a row.
struct KernelFigures {
    forward: f64,
    both: f64,
    ratio: f64,
    tokens: f64,
    gflops: [f64; 2],
    of_gemm: [f64; 2],
    per_token_head: f64,
}

impl KernelFigures {
    fn new(plan: &KernelsPlan, row: &KernelRow, medians: &Times, gemm: f64) -> Self {
        let (forward, both) = (medians.seconds(row.forward), medians.seconds(row.both));
        let tokens = row.size.all_tokens() as f64;
        let work = tokens * row.size.heads as f64;
        let flops: Flops = useful(&row.rule.rule, row.size.dim, plan.chunk);
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

    fn cells(&self, row: &KernelRow) -> Vec<String> {
        vec![
            row.rule.name.into(),
            row.size.tokens.to_string(),
            row.size.dim.to_string(),
            row.threads.to_string(),
            three_digits(self.forward * 1e3),
            three_digits(self.both * 1e3),
            three_digits(self.ratio),
            three_digits(self.tokens / self.forward / 1e3),
            three_digits(self.tokens / self.both / 1e3),
            three_digits(self.gflops[0]),
            format!("{:.0}%", self.of_gemm[0] * 100.0),
            format!("{:.0}%", self.of_gemm[1] * 100.0),
            format!("{:.3}", self.per_token_head * 1e6),
        ]
    }

    fn json(&self, plan: &KernelsPlan, row: &KernelRow) -> serde_json::Value {
        json!({
            "table": "kernels",
            "rule": row.rule.name,
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
