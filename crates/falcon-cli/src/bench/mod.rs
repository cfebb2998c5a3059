//! `falcon bench`: what kernels, training steps and generation cost on this machine, beside what the machine can do.
//!
//! Rows of kernels, decoding and training steps are timed round-robin (`schedule`), the machine's own rates among them, and medians are
//! reported: a disturbance hits a row and its yardstick alike. Rules of the scaling table and models that generate follow each other, for
//! not all would fit in memory at once.

mod args;
mod cases;
mod child;
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

use std::io::{self, Write};

use serde_json::Value;

pub use args::{BenchArgs, BenchCommand, GenerateBenchArgs, KernelsArgs, TrainBenchArgs};
pub use error::BenchError;

use crate::output::printed;
use cases::check_memory;
use schedule::Schedule;
pub(crate) use table::Text;

/// Runs what was asked for, and prints it to stdout.
pub fn run(args: &BenchArgs) -> Result<(), BenchError> {
    let done = match &args.command {
        BenchCommand::Kernels(args) if args.serve => serve::serve(io::stdin().lock(), io::stdout().lock()),
        BenchCommand::Kernels(args) => tables(args).and_then(|tables| print(args.json, &tables)),
        BenchCommand::Train(args) => train::run(args).and_then(|table| print(args.json, &[table])),
        BenchCommand::Generate(args) if args.measure => generate::measure(args),
        BenchCommand::Generate(args) => {
            let (table, failed) = generate::run(args)?;
            // What was measured is worth as much when something else could not be.
            print(args.json, &[table])?;
            failed.map_or(Ok(()), Err)
        }
    };
    match done {
        Err(error) if error.is_broken_pipe() => Ok(()),
        done => done,
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
    let bytes = kernels.iter().flat_map(kernels::Plan::bytes).chain(decode.iter().flat_map(decode::Plan::bytes));
    check_memory(bytes, "--tokens, --dims, --heads or --batch")?;
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
    let text = if json {
        let rows: Vec<&Value> = tables.iter().flat_map(|table| &table.rows).collect();
        serde_json::to_string_pretty(&rows).map_err(io::Error::from)? + "\n"
    } else {
        let tables = tables.iter().map(|Table { title, text, .. }| format!("{title}\n\n{text}"));
        tables.collect::<Vec<_>>().join("\n")
    };
    Ok(printed(io::stdout().write_all(text.as_bytes()))?)
}
