//! `falcon reproduce`: the paper's experiments from nothing.

mod addition;
mod args;
mod language;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use falcon_lm::config::{Layer, RunConfig, RunConfigError};
use falcon_lm::data::{CacheError, SourceError, TokenizerError};
use falcon_lm::evaluate::BenchmarkError;
use falcon_lm::report::{RunRecord, page};
use falcon_lm::reproduce::{RESULTS_FILE, RecordError, Results, Row, RowError, Scale};
use falcon_lm::train::Outcome;
use falcon_nn::write_file;
use thiserror::Error;

pub use args::{Ablation, AdditionArgs, LanguageArgs, ReproduceArgs, ReproduceCommand, RowsArgs, ScaleArg};

use crate::output;
use crate::train::{SAVING, Show, asked_to_stop};

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
    /// What is measured was learnt.
    #[error("{option}: {file} is in --train too; what is measured must not be learnt")]
    Seen {
        /// The option.
        option: &'static str,
        /// The file.
        file: String,
    },
    /// There is nothing to time.
    #[error("--ablation timing: a Transformer has no memory to be written earlier or later; name another model")]
    NoTiming,
    /// Results cannot be kept or read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A tokenizer of other text is where one should be learnt.
    #[error(
        "{}: learnt from another text; use it by --tokenizer, or give --output another folder",
        path.display()
    )]
    OtherText {
        /// The tokenizer.
        path: PathBuf,
    },
    /// A text cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The same, when it is to be made into tokens.
    #[error(transparent)]
    Text(#[from] CacheError),
    /// No tokenizer can be learnt from it.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A benchmark cannot be asked.
    #[error(transparent)]
    Benchmark(#[from] BenchmarkError),
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

/// Runs an experiment, and prints its tables.
pub fn run(args: &ReproduceArgs) -> Result<Outcome, ReproduceError> {
    match &args.command {
        ReproduceCommand::Addition(args) => addition::run(args),
        ReproduceCommand::Lm(args) => language::run(args),
    }
}

/// Makes tables and pictures again from what is recorded, and puts the tables into a page.
fn again<R: Results>(args: &RowsArgs) -> Result<Outcome, ReproduceError> {
    let folder = args.from.as_deref().expect("asked for by --from");
    if let Some(path) = &args.into {
        output::check(path).map_err(|error| ReproduceError::Io { path: path.clone(), error })?;
    }
    let record = R::read(folder)?;
    record.write(folder)?;
    if let Some(path) = &args.into {
        let io = |error| ReproduceError::Io { path: path.clone(), error };
        let page = record
            .put_into(&std::fs::read_to_string(path).map_err(io)?)
            .map_err(|error| ReproduceError::Page { path: path.clone(), error: Box::new(error) })?;
        write_file(path, page.as_bytes()).map_err(io)?;
    }
    print(args, &record)?;
    Ok(Outcome::Finished)
}

/// Where runs and results go.
fn results_folder(args: &RowsArgs, name: &str) -> PathBuf {
    args.output.clone().unwrap_or_else(|| Path::new("runs").join(name))
}

/// The models asked for, or the scale's, each once.
fn rows<'a>(args: &'a RowsArgs, scale: &Scale) -> Vec<&'a str> {
    let mut models: Vec<&str> = Vec::new();
    let given = args.models.iter().map(String::as_str);
    let of_scale = scale.models.iter().copied().filter(|_| args.models.is_empty());
    for model in given.chain(of_scale) {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    models
}

/// A run to be.
struct Planned {
    row: Row,
    seed: u64,
    config: RunConfig,
    folder: PathBuf,
}

/// All runs, every seed of every row. A wrong one should not be found after an hour.
fn plan(
    rows: Vec<Row>,
    args: &RowsArgs,
    scale: &Scale,
    output: &Path,
    config: impl Fn(&Row, u64, &[Layer]) -> Result<RunConfig, RunConfigError>,
) -> Result<Vec<Planned>, ReproduceError> {
    let mut more: Vec<Layer> = args.set.iter().map(|set| Layer::set(set)).collect::<Result<_, _>>()?;
    more.extend(args.steps.map(|steps| Layer::of("train", "steps", steps)));
    let mut plan = Vec::new();
    for row in rows {
        for seed in 0..args.seeds.unwrap_or(scale.seeds) {
            let config = config(&row, seed, &more)?;
            let folder = output.join(format!("{}-s{seed}", row.name.replace([' ', '/'], "-")));
            plan.push(Planned { row: row.clone(), seed, config, folder });
        }
    }
    Ok(plan)
}

/// What became of all runs.
struct Done<T> {
    /// Of those that came to their end, in order.
    rows: Vec<T>,
    outcome: Outcome,
    /// The first that could not.
    failed: Option<ReproduceError>,
}

/// Runs one after the other. One that fails does not keep the others from being run.
fn run_all<T>(
    plan: &[Planned],
    run: impl Fn(&Planned, &mut Show) -> Result<Option<T>, RowError>,
) -> Result<Done<T>, ReproduceError> {
    let mut done = Done { rows: Vec::new(), outcome: Outcome::Finished, failed: None };
    for (index, planned) in plan.iter().enumerate() {
        let Planned { row: Row { name, .. }, seed, config, .. } = planned;
        let about = format!("{}/{} {name} seed {seed}", index + 1, plan.len());
        let mut show = Show::new(config, asked_to_stop(SAVING)).about(about);
        let result = run(planned, &mut show);
        show.clear();
        match result {
            Ok(Some(row)) => done.rows.push(row),
            Ok(None) => {
                writeln!(io::stderr(), "interrupted and saved: the same command goes on")?;
                done.outcome = Outcome::Interrupted;
                break;
            }
            Err(error) => {
                let error = ReproduceError::Row { name: name.clone(), seed: *seed, error: Box::new(error) };
                if index + 1 < plan.len() {
                    writeln!(io::stderr(), "{error}; going on with the others")?;
                }
                done.failed.get_or_insert(error);
            }
        }
    }
    Ok(done)
}

/// Writes results and the page of all runs, and prints the tables: of what there is, if not all could be run.
fn finish<T, R: Results>(
    args: &RowsArgs,
    plan: &[Planned],
    output: &Path,
    done: Done<T>,
    record: impl FnOnce(Vec<T>) -> R,
) -> Result<Outcome, ReproduceError> {
    if !done.rows.is_empty() {
        let record = record(done.rows);
        record.write(output)?;
        // Of one that failed or is to come, there may be nothing to show.
        let runs: Vec<RunRecord> =
            plan.iter().filter_map(|planned| RunRecord::read(&planned.folder).ok()).collect();
        let path = output.join("report.html");
        write_file(&path, page(&runs).as_bytes()).map_err(|error| ReproduceError::Io { path, error })?;
        print(args, &record)?;
        if !args.json {
            let made = record.files().into_iter().map(|(name, _)| name).chain(["report.html", RESULTS_FILE]);
            writeln!(io::stdout(), "\n{}: {}", output.display(), made.collect::<Vec<_>>().join(", "))?;
        }
    }
    done.failed.map_or(Ok(done.outcome), Err)
}

/// What was asked for, but for where it goes; `more` is the experiment's own.
fn command(experiment: &str, args: &RowsArgs, more: Vec<String>) -> String {
    let mut words = vec![format!("falcon reproduce {experiment}")];
    if let Some(scale) = args.scale.to_possible_value().filter(|_| args.scale != ScaleArg::Quick) {
        words.push(format!("--scale {}", scale.get_name()));
    }
    if !args.models.is_empty() {
        words.push(format!("--models {}", quoted(&args.models.join(","))));
    }
    words.extend(args.seeds.map(|seeds| format!("--seeds {seeds}")));
    words.extend(args.steps.map(|steps| format!("--steps {steps}")));
    words.extend(args.set.iter().map(|set| format!("--set {}", quoted(set))));
    words.extend(more);
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

fn print<R: Results>(args: &RowsArgs, record: &R) -> Result<(), ReproduceError> {
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
