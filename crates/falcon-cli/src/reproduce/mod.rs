//! `falcon reproduce`: the paper's experiments from nothing.

mod addition;
mod args;
mod continued;
mod language;
mod plan;
mod search;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::ValueEnum;
use falcon_lm::config::RunConfigError;
use falcon_lm::data::{CacheError, SourceError, TokenizerError};
use falcon_lm::evaluate::BenchmarkError;
use falcon_lm::report::{RunRecord, aligned, page};
use falcon_lm::reproduce::{RESULTS_FILE, RecordError, Results, RowError, Scale};
use falcon_lm::tasks::TaskError;
use falcon_lm::train::{Outcome, Watch};
use falcon_nn::write_file;
use thiserror::Error;

pub use args::{Ablation, AdditionArgs, LanguageArgs, ReproduceArgs, ReproduceCommand, RowsArgs, ScaleArg};

use self::plan::Planned;
use crate::interrupt::{SAVING, stop_on_interrupt};
use crate::output::{self, Kind, printed};
use crate::threads::{self, ThreadsError, all_cores};
use crate::train::Show;

/// Why an experiment has no result.
#[derive(Debug, Error)]
pub enum ReproduceError {
    /// A configuration does not do.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// A row could not be finished.
    #[error("{title}: {error}")]
    Row {
        /// The row and its seed, or the point of a search.
        title: String,
        /// Why.
        error: Box<RowError>,
    },
    /// No point of a search does.
    #[error(
        "{name}: training diverged at every point of the search; give it a lower learning rate, as in \
         --models ROW+train.lr=1e-4"
    )]
    Diverged {
        /// The model.
        name: String,
    },
    /// What is measured was learnt.
    #[error("{option}: {file} is in --train too; what is measured must not be learnt")]
    Seen {
        /// The option.
        option: &'static str,
        /// The file.
        file: String,
    },
    /// No row has what is to be varied.
    #[error("--ablation timing: a Transformer has no memory to be written earlier or later; name another model")]
    NothingToAblate,
    /// Results cannot be kept or read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// What is in the output folder is no record of this experiment.
    #[error("{error}; a record is not replaced by that of another experiment: give --output another folder")]
    OwnRecord {
        /// What is wrong with it.
        error: Box<RecordError>,
    },
    /// The data of the task cannot be read.
    #[error(transparent)]
    Task(#[from] TaskError),
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
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
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
        output::check(path, Kind::Page, [&folder.join(RESULTS_FILE)])
            .map_err(|error| ReproduceError::Io { path: path.clone(), error })?;
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
fn results_folder(args: &RowsArgs, experiment: &str, scale: &Scale) -> PathBuf {
    let ablation = args.ablation.map_or("", |Ablation::Timing| "-timing");
    let folder = || Path::new("runs").join(format!("{experiment}-{}{ablation}", scale.name));
    args.output.clone().unwrap_or_else(folder)
}

/// The scale asked for, of an experiment.
fn scale<'a>(scales: &'a [Scale], args: &RowsArgs) -> &'a Scale {
    let value = args.scale.to_possible_value().expect("none is skipped");
    scales.iter().find(|scale| scale.name == value.get_name()).expect("experiments have all scales")
}

/// What became of all runs.
struct Done<T> {
    /// Of those that came to their end, in order.
    rows: Vec<T>,
    outcome: Outcome,
    /// The last that could not: of all others it is said when they fail.
    failed: Option<ReproduceError>,
}

/// A model with more numbers than this keeps all cores busy by itself, and is the less welcome twice in memory.
const LARGE: usize = 10_000_000;

/// How many runs go side by side, and the threads of each: a small model gains more from a core of its own than from all of them.
fn side_by_side<'a>(plan: impl ExactSizeIterator<Item = &'a Planned> + Clone, args: &RowsArgs) -> (usize, usize) {
    let threads = args.threads.map_or_else(all_cores, Into::into);
    let large = plan.clone().any(|planned| planned.config.model.parameter_count() > LARGE);
    let jobs = args.jobs.map_or(if large { 1 } else { threads }, Into::into).min(plan.len()).max(1);
    (jobs, (threads / jobs).max(1))
}

/// Runs all that `taken` has no result of, which has a place for each run of the plan. One that fails does not keep the
/// others from being run. After each that came to its end, `keep` is given what is done by then, in the order of the
/// plan.
fn run_all<T: Clone + Send>(
    plan: &[Planned],
    taken: Vec<Option<T>>,
    args: &RowsArgs,
    run: impl Fn(&Planned, &mut Show) -> Result<Option<T>, RowError> + Sync,
    keep: impl Fn(Vec<T>) -> Result<(), RecordError> + Sync,
) -> Result<Done<T>, ReproduceError> {
    let left: Vec<usize> = (0..plan.len()).filter(|index| taken[*index].is_none()).collect();
    let (jobs, threads) = side_by_side(left.iter().map(|index| &plan[*index]), args);
    let pools = (0..jobs).map(|_| threads::pool(threads)).collect::<Result<Vec<_>, _>>()?;
    let taken = taken.into_iter().enumerate().filter_map(|(index, row)| Some((index, Ok(Some(row?)))));
    let (next, results) = (AtomicUsize::new(0), Mutex::new(taken.collect::<Vec<_>>()));
    let work = || {
        loop {
            let turn = next.fetch_add(1, Ordering::SeqCst);
            let Some(&index) = left.get(turn) else { break };
            let planned = &plan[index];
            let about = format!("{}/{} {}", index + 1, plan.len(), planned.title);
            let mut show = Show::new(&planned.config, stop_on_interrupt(SAVING)).about(about);
            let result = run(planned, &mut show);
            show.clear();
            let result =
                result.map_err(|error| ReproduceError::Row { title: planned.title.clone(), error: error.into() });
            if let Err(error) = &result
                && turn + 1 < left.len()
            {
                show.warn(&format!("{error}; going on with the others"));
            }
            // Whoever is asked to stop is asked with all the others.
            let (stopped, ended) = (matches!(result, Ok(None)), matches!(result, Ok(Some(_))));
            let mut results = results.lock().expect("nobody panics with it");
            results.push((index, result));
            results.sort_by_key(|(index, _)| *index);
            if ended {
                let rows = results.iter().filter_map(|(_, result)| result.as_ref().ok()?.clone()).collect();
                if let Err(error) = keep(rows) {
                    show.warn(&format!("what is done so far cannot be kept: {error}"));
                }
            }
            if stopped {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(|| pool.install(work));
        }
    });
    let results = results.into_inner().expect("nobody panicked");
    let mut done = Done { rows: Vec::new(), outcome: Outcome::Finished, failed: None };
    for (_, result) in results {
        match result {
            Ok(Some(row)) => done.rows.push(row),
            Ok(None) => done.outcome = Outcome::Interrupted,
            Err(error) => done.failed = Some(error),
        }
    }
    if done.outcome == Outcome::Interrupted {
        let _ = writeln!(io::stderr(), "interrupted and saved: the same command goes on");
    }
    Ok(done)
}

/// Runs all of an experiment that has `all` runs but for the rows that were `taken` from earlier records, keeps a
/// record of what is done after each of them, and finishes it.
fn run_and_record<R: Results>(
    args: &RowsArgs,
    (plan, taken): (&[Planned], Vec<Option<R::Row>>),
    all: usize,
    output: &Path,
    run: impl Fn(&Planned, &mut Show) -> Result<Option<R::Row>, RowError> + Sync,
    record: impl Fn(Vec<R::Row>, Option<usize>) -> R + Sync,
) -> Result<Outcome, ReproduceError> {
    let record = |rows: Vec<R::Row>| {
        let planned = (rows.len() < all).then_some(all);
        record(rows, planned)
    };
    let rows: Vec<R::Row> = taken.iter().flatten().cloned().collect();
    if !rows.is_empty() {
        record(rows).keep(output)?;
    }
    let done = run_all(plan, taken, args, run, |rows| record(rows).keep(output))?;
    finish(args, plan, output, done, record)
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
        match done.outcome {
            Outcome::Finished => record.write(output)?,
            Outcome::Interrupted => record.keep(output)?,
        }
        // Of one that failed or is to come, there may be nothing to show.
        let runs: Vec<RunRecord> =
            plan.iter().filter_map(|planned| RunRecord::read(&planned.folder).ok()).collect();
        // All rows may come from elsewhere, and have left their runs there.
        let report = (!runs.is_empty()).then_some("report.html");
        if let Some(name) = report {
            let path = output.join(name);
            write_file(&path, page(&runs).as_bytes()).map_err(|error| ReproduceError::Io { path, error })?;
        }
        print(args, &record)?;
        if !args.json {
            let made = record.files().into_iter().map(|(name, _)| name).chain(report).chain([RESULTS_FILE]);
            let made = made.collect::<Vec<_>>().join(", ");
            printed(writeln!(io::stdout(), "\nEverything is in {}: {made}", output.display()))?;
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
    words.extend(args.ablation.map(|Ablation::Timing| "--ablation timing".to_string()));
    words.extend(more);
    words.join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "=.,_-+/:".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

fn print<R: Results>(args: &RowsArgs, record: &R) -> Result<(), ReproduceError> {
    let text = match args.json {
        true => serde_json::to_string(record).map_err(io::Error::from)? + "\n",
        false => aligned(&record.summary()),
    };
    Ok(printed(io::stdout().write_all(text.as_bytes()))?)
}

#[cfg(test)]
mod tests {
    use falcon_lm::reproduce::Row;
    use falcon_lm::tasks::TaskConfig;

    use super::*;

    /// The help says what the scales are.
    #[test]
    fn scales_are_as_the_help_says() {
        let line = |help: &str, scale: &Scale| {
            let line = help.lines().find(|line| line.trim_start().starts_with(scale.name)).unwrap().to_string();
            assert!(line.contains(&format!("{} models", scale.models.len())), "{line}");
            line
        };
        for wanted in ScaleArg::value_variants() {
            let name = wanted.to_possible_value().unwrap().get_name().to_string();
            let find = |scales: &'static [Scale]| scales.iter().find(|scale| scale.name == name).unwrap();
            let scale = find(&falcon_lm::reproduce::addition::SCALES);
            let row = Row::of(scale.models[0]);
            let config = falcon_lm::reproduce::addition::config(scale, &row, 0, &[]).unwrap();
            let TaskConfig::Addition(task) = config.task else { panic!("{:?}", config.task) };
            let line_of = line(args::ADDITION, scale);
            let widths = format!("1 to {} digits, measured to {}", task.max_width, task.beyond);
            assert!(line_of.contains(&widths), "{line_of}");
            line(args::LANGUAGE, find(&falcon_lm::reproduce::language::SCALES));
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("train.lr=3e-3"), "train.lr=3e-3");
        assert_eq!(quoted("task.train=a b's"), r"'task.train=a b'\''s'");
    }
}
