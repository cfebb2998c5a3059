//! `falcon reproduce`: the paper's experiments from nothing.

mod args;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use falcon_lm::config::{Layer, RunConfig, RunConfigError};
use falcon_lm::report::{ReportError, RunRecord, page};
use falcon_lm::reproduce::addition::{Row, RowError, RowResult, SCALES, Scale, config, run_row};
use falcon_lm::reproduce::{AdditionRecord, RecordError};
use falcon_lm::tasks::TaskConfig;
use falcon_lm::train::Outcome;
use falcon_nn::write_file;
use thiserror::Error;

pub use args::{Ablation, AdditionArgs, ReproduceArgs, ReproduceCommand, ScaleArg};

use crate::train::{SAVING, Show, asked_to_stop, use_threads};

/// Why an experiment has no result.
#[derive(Debug, Error)]
pub enum ReproduceError {
    /// A configuration does not do.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// A row could not be finished.
    #[error("{name}, seed {seed}: {error}")]
    Row {
        /// The row.
        name: String,
        /// Its seed.
        seed: u64,
        /// Why.
        error: Box<RowError>,
    },
    /// Results cannot be kept or read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Runs cannot be read for the page.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A page cannot have the table.
    #[error("{}: {error}", path.display())]
    Page {
        /// The page.
        path: PathBuf,
        /// Why.
        error: Box<RecordError>,
    },
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What was to be printed could not be.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// Runs an experiment, and prints its table.
pub fn run(args: &ReproduceArgs) -> Result<Outcome, ReproduceError> {
    let ReproduceCommand::Addition(args) = &args.command;
    if let Some(folder) = &args.from {
        let record = AdditionRecord::read(folder)?;
        record.write(folder)?;
        if let Some(path) = &args.into {
            let io = |error| ReproduceError::Io { path: path.clone(), error };
            let page = record
                .put_into(&std::fs::read_to_string(path).map_err(io)?)
                .map_err(|error| ReproduceError::Page { path: path.clone(), error: Box::new(error) })?;
            write_file(path, page.as_bytes()).map_err(io)?;
        }
        print(args, &record)?;
        return Ok(Outcome::Finished);
    }
    addition(args)
}

/// A run to be.
struct Planned {
    row: Row,
    seed: u64,
    config: RunConfig,
    folder: PathBuf,
}

fn addition(args: &AdditionArgs) -> Result<Outcome, ReproduceError> {
    use_threads(args.threads);
    let scale = &SCALES[args.scale as usize];
    let ablation = args.ablation.map_or("", |Ablation::Timing| "-timing");
    let default = || Path::new("runs").join(format!("addition-{}{ablation}", scale.name));
    let output = args.output.clone().unwrap_or_else(default);
    // All of them first: a wrong one should not be found after an hour.
    let plan = plan(args, scale, &output)?;
    let mut done: Vec<RowResult> = Vec::new();
    for (index, Planned { row, seed, config, folder }) in plan.iter().enumerate() {
        let mut show = Show::new(config, asked_to_stop(SAVING)).about(format!(
            "{}/{} {} seed {seed}",
            index + 1,
            plan.len(),
            row.name
        ));
        let result = run_row(row, config, scale.samples, folder, &mut show);
        show.clear();
        let result = result.map_err(|error| ReproduceError::Row {
            name: row.name.clone(),
            seed: *seed,
            error: Box::new(error),
        })?;
        let Some(result) = result else {
            writeln!(io::stderr(), "interrupted and saved: the same command goes on")?;
            return Ok(Outcome::Interrupted);
        };
        done.push(result);
    }
    let record = record(args, scale, &plan, done);
    record.write(&output)?;
    let runs = plan.iter().map(|planned| RunRecord::read(&planned.folder)).collect::<Result<Vec<_>, _>>()?;
    let path = output.join("report.html");
    write_file(&path, page(&runs).as_bytes()).map_err(|error| ReproduceError::Io { path, error })?;
    print(args, &record)?;
    if !args.json {
        writeln!(
            io::stdout(),
            "\n{}: table.md, curves.svg, digits.svg, report.html, results.json",
            output.display()
        )?;
    }
    Ok(Outcome::Finished)
}

fn plan(args: &AdditionArgs, scale: &Scale, output: &Path) -> Result<Vec<Planned>, ReproduceError> {
    let given = args.models.iter().map(String::as_str).collect::<Vec<_>>();
    let mut models = if given.is_empty() { scale.models.to_vec() } else { given };
    let mut seen = Vec::new();
    models.retain(|model| {
        !seen.contains(model) && {
            seen.push(*model);
            true
        }
    });
    if args.ablation == Some(Ablation::Timing) {
        // Attention has no memory to be written earlier or later.
        models.retain(|model| !model.starts_with("transformer"));
    }
    let mut more: Vec<Layer> = args.set.iter().map(|set| Layer::set(set)).collect::<Result<_, _>>()?;
    more.extend(args.steps.map(|steps| Layer::of("train", "steps", steps)));
    let rows = models.iter().flat_map(|model| match args.ablation {
        None => vec![Row::of(model)],
        Some(Ablation::Timing) => timings(model),
    });
    let mut plan = Vec::new();
    for row in rows {
        for seed in 0..args.seeds.unwrap_or(scale.seeds) {
            let config = config(scale, &row, seed, &more)?;
            let folder = output.join(format!("{}-s{seed}", row.name.replace([' ', '/'], "-")));
            plan.push(Planned { row: row.clone(), seed, config, folder });
        }
    }
    Ok(plan)
}

/// Which key meets a value, and when a token reads: all four.
fn timings(model: &str) -> Vec<Row> {
    let cases = [("next", "after"), ("same", "after"), ("next", "before"), ("same", "before")];
    let row = |(align, read)| Row::of(&format!("{model}+model.align={align}+model.read={read}"));
    cases.into_iter().map(row).collect()
}

fn record(args: &AdditionArgs, scale: &Scale, plan: &[Planned], rows: Vec<RowResult>) -> AdditionRecord {
    let config = &plan[0].config;
    let TaskConfig::Addition(task) = &config.task else { unreachable!("the task is addition") };
    AdditionRecord {
        scale: scale.name.into(),
        command: command(args),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine(),
        max_width: task.max_width,
        samples: scale.samples,
        config: config.to_toml(),
        rows,
    }
}

/// What was asked for, but for where it goes.
fn command(args: &AdditionArgs) -> String {
    let mut words = vec!["falcon reproduce addition".to_string()];
    if args.scale != ScaleArg::Quick {
        words.push(format!("--scale {}", SCALES[args.scale as usize].name));
    }
    if !args.models.is_empty() {
        words.push(format!("--models {}", quoted(&args.models.join(","))));
    }
    words.extend(args.seeds.map(|seeds| format!("--seeds {seeds}")));
    words.extend(args.steps.map(|steps| format!("--steps {steps}")));
    words.extend(args.set.iter().map(|set| format!("--set {}", quoted(set))));
    words.extend(args.ablation.map(|Ablation::Timing| "--ablation timing".to_string()));
    words.join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "=.,_-+/:".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// The processor, as the system calls it, and how many.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, Into::<usize>::into);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    format!("{}, {cores} cores", name.unwrap_or(std::env::consts::ARCH))
}

fn print(args: &AdditionArgs, record: &AdditionRecord) -> Result<(), ReproduceError> {
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(record).map_err(io::Error::from)?)?;
    } else {
        write!(out, "{}", record.table())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("train.lr=3e-3"), "train.lr=3e-3");
        assert_eq!(quoted("task.train=a b's"), r"'task.train=a b'\''s'");
    }
}
