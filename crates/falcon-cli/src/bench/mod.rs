//! `falcon bench`: what kernels, training steps and generation cost on this machine, beside what the machine can do.
//!
//! All rows of a run are timed round-robin (`schedule`), the machine's own rates among them, and medians are reported:
//! a disturbance hits a row and its yardstick alike.

mod args;
mod cases;
mod decode;
mod error;
mod flops;
mod gemm;
mod generate;
mod kernels;
mod scaling;
mod schedule;
mod serve;
mod table;
mod train;

use std::io::{self, BufWriter, Write};

use serde_json::Value;

pub use args::{BenchArgs, BenchCommand, GenerateBenchArgs, KernelsArgs, TrainBenchArgs};
pub use error::BenchError;

use schedule::Schedule;
pub(crate) use table::Text;

/// Runs what was asked for, and prints it to stdout.
pub fn run(args: &BenchArgs) -> Result<(), BenchError> {
    match &args.command {
        BenchCommand::Kernels(args) if args.serve => serve::serve(io::stdin().lock(), io::stdout().lock()),
        BenchCommand::Kernels(args) => print(args.json, &tables(args)?),
        BenchCommand::Train(args) => print(args.json, &[train::run(args)?]),
        BenchCommand::Generate(args) if args.measure => generate::measure(args),
        BenchCommand::Generate(args) => print(args.json, &[generate::run(args)?]),
    }
}

/// Rows of one kind: for people, and for programs.
struct Table {
    title: String,
    text: Text,
    rows: Vec<Value>,
}

fn tables(args: &KernelsArgs) -> Result<Vec<Table>, BenchError> {
    if args.scaling {
        return Ok(vec![scaling::run(&scaling::Plan::from(args))?]);
    }
    // Both tables share one schedule, so the rows of both are interleaved.
    let kernels = (!args.decode).then(|| kernels::Plan::try_from(args)).transpose()?;
    let decode = (!args.no_decode).then(|| decode::Plan::from(args));
    let kernel_cases = kernels.as_ref().map(kernels::Plan::cases);
    let decode_cases = decode.as_ref().map(decode::Plan::cases);
    let mut schedule = Schedule::default();
    let kernel_rows = kernel_cases.as_ref().map(|cases| cases.add_to(&mut schedule)).transpose()?;
    let decode_rows = decode_cases.as_ref().map(|cases| cases.add_to(&mut schedule)).transpose()?;
    let medians = schedule.run(args.repeats.into())?;
    let mut tables = Vec::new();
    tables.extend(kernel_rows.map(|rows| rows.tables(&medians)).into_iter().flatten());
    tables.extend(decode_rows.map(|rows| rows.table(&medians)));
    Ok(tables)
}

fn print(json: bool, tables: &[Table]) -> Result<(), BenchError> {
    let mut out = BufWriter::new(io::stdout().lock());
    if json {
        let rows: Vec<&Value> = tables.iter().flat_map(|table| &table.rows).collect();
        serde_json::to_writer_pretty(&mut out, &rows).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        for (index, Table { title, text, .. }) in tables.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n" };
            write!(out, "{gap}{title}\n\n{text}")?;
        }
    }
    Ok(out.flush()?)
}
