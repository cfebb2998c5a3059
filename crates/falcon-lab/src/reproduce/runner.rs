//! Trains the runs of an experiment side by side, and records the results of each as it ends.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use falcon_base::files::write_file;
use falcon_lm::memory;
use falcon_lm::train::{Footprint, Outcome, Watch};

use super::error::ExperimentError;
use super::observer::Observer;
use super::plan::{ExperimentOptions, PlannedRun};
use super::record::{Experiment, ExperimentRecord, RecordError, RowResult};
use super::training::RowError;
use crate::report::{RunRecord, page};
use crate::threads;

/// Name of the page that compares all runs of an experiment.
const REPORT_FILE: &str = "report.html";

/// How an experiment ended.
#[derive(Debug)]
pub struct Ended<E: Experiment> {
    /// The record; none if no run is done.
    pub record: Option<ExperimentRecord<E>>,
    /// The name of the page that compares its runs; none if no run has a folder here, as when all rows were taken from
    /// records.
    pub report: Option<&'static str>,
    /// Whether it was interrupted.
    pub outcome: Outcome,
    /// The last failure; earlier ones were shown when they occurred.
    pub failed: Option<ExperimentError>,
}

impl<E: Experiment> Ended<E> {
    /// An experiment that was interrupted before any run was done.
    pub(super) fn interrupted() -> Self {
        Self { record: None, report: None, outcome: Outcome::Interrupted, failed: None }
    }
}

/// The results of several runs.
pub(super) struct RunResults<T> {
    /// The results of the runs that finished, in the order of the plan.
    pub results: Vec<T>,
    pub outcome: Outcome,
    /// The last failure; earlier ones were shown when they occurred.
    pub failed: Option<ExperimentError>,
}

/// A model with more parameters than this keeps all cores busy by itself, and training two at once would need too much
/// memory.
const LARGE: usize = 10_000_000;

/// The number of concurrent runs, and of threads of each. A small model gains more from a core of its own than from
/// all of them.
fn concurrency<'a>(
    runs: impl ExactSizeIterator<Item = &'a PlannedRun> + Clone,
    options: &ExperimentOptions,
) -> (usize, usize) {
    let large = runs.clone().any(|run| run.config.model.parameter_count() > LARGE);
    let jobs = options.jobs.unwrap_or(if large { 1 } else { options.threads }).min(runs.len()).max(1);
    (jobs, (options.threads / jobs).max(1))
}

/// Refuses runs of which `jobs` at the same time, the largest ones, are estimated not to fit into memory. Passes where
/// the system does not report its memory.
fn check_memory<'a>(runs: impl Iterator<Item = &'a PlannedRun>, jobs: usize) -> Result<(), ExperimentError> {
    let mut each: Vec<u64> = runs.map(|run| Footprint::of(&run.config).total()).collect();
    each.sort_unstable_by(|a, b| b.cmp(a));
    let needed = each.into_iter().take(jobs).fold(0, u64::saturating_add);
    // What the runs of a search have freed stays with this process, and can be used again.
    let own = memory::resident().unwrap_or(0);
    match memory::obtainable().map(|free| free.saturating_add(own)) {
        Some(available) if available < needed => Err(ExperimentError::Memory { jobs, needed, available }),
        _ => Ok(()),
    }
}

/// Runs the runs of `plan` whose results were not taken from earlier records. `taken` has an entry for each run of the
/// plan: its result, or none. A run that fails does not stop the others. After each run that finishes, `keep` is given
/// all results so far, in the order of the plan.
pub(super) fn run_all<T: Clone + Send>(
    plan: &[PlannedRun],
    taken: Vec<Option<T>>,
    options: &ExperimentOptions,
    observer: &dyn Observer,
    run: impl Fn(&PlannedRun, &mut dyn Watch) -> Result<Option<T>, RowError> + Sync,
    keep: impl Fn(Vec<T>) -> Result<(), RecordError> + Sync,
) -> Result<RunResults<T>, ExperimentError> {
    let remaining: Vec<usize> = (0..plan.len()).filter(|index| taken[*index].is_none()).collect();
    let (jobs, threads) = concurrency(remaining.iter().map(|index| &plan[*index]), options);
    if options.check_memory {
        check_memory(remaining.iter().map(|index| &plan[*index]), jobs)?;
    }
    let pools = (0..jobs).map(|_| threads::pool(threads)).collect::<Result<Vec<_>, _>>()?;
    let taken = taken.into_iter().enumerate().filter_map(|(index, result)| Some((index, Ok(Some(result?)))));
    let (next, results) = (AtomicUsize::new(0), Mutex::new(taken.collect::<Vec<_>>()));
    let work = || {
        loop {
            let turn = next.fetch_add(1, Ordering::SeqCst);
            let Some(&index) = remaining.get(turn) else { break };
            let planned = &plan[index];
            let mut watch =
                observer.watch(format!("{}/{} {}", index + 1, plan.len(), planned.title), &planned.config);
            let result = run(planned, &mut *watch)
                .map_err(|source| ExperimentError::Row { title: planned.title.clone(), source: Box::new(source) });
            if let Err(error) = &result
                && turn + 1 < remaining.len()
            {
                watch.warn(&format!("{error}; continuing with the other runs"));
            }
            let (interrupted, finished) = (matches!(result, Ok(None)), matches!(result, Ok(Some(_))));
            let mut results = results.lock().expect("no thread panics while holding the lock");
            results.push((index, result));
            results.sort_by_key(|(index, _)| *index);
            if finished {
                let done = results.iter().filter_map(|(_, result)| result.as_ref().ok()?.clone()).collect();
                if let Err(error) = keep(done) {
                    watch.warn(&format!("the results so far cannot be written: {error}"));
                }
            }
            // An interrupt stops all runs: no other is started here.
            if interrupted {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(|| pool.install(work));
        }
    });
    let mut all = RunResults { results: Vec::new(), outcome: Outcome::Finished, failed: None };
    for (_, result) in results.into_inner().expect("no thread panicked") {
        match result {
            Ok(Some(result)) => all.results.push(result),
            Ok(None) => all.outcome = Outcome::Interrupted,
            Err(error) => all.failed = Some(error),
        }
    }
    if all.outcome == Outcome::Interrupted {
        observer.note("interrupted; all progress is saved, and the same command resumes");
    }
    Ok(all)
}

/// Trains and evaluates all runs that were not `taken` from earlier records, and writes a record after each of them.
/// `record` makes a record of the rows that are done; its second argument is `total`, the number of all runs, or none
/// if all of them are done.
pub(super) fn run_and_record<E: Experiment>(
    (plan, taken): (&[PlannedRun], Vec<Option<RowResult<E>>>),
    total: usize,
    options: &ExperimentOptions,
    observer: &dyn Observer,
    run: impl Fn(&PlannedRun, &mut dyn Watch) -> Result<Option<RowResult<E>>, RowError> + Sync,
    record: impl Fn(Vec<RowResult<E>>, Option<usize>) -> ExperimentRecord<E> + Sync,
) -> Result<Ended<E>, ExperimentError> {
    let output = &options.output;
    let record = |rows: Vec<RowResult<E>>| {
        let planned = (rows.len() < total).then_some(total);
        record(rows, planned)
    };
    let rows: Vec<RowResult<E>> = taken.iter().flatten().cloned().collect();
    if !rows.is_empty() {
        record(rows).write_partial(output)?;
    }
    let keep = |rows| record(rows).write_partial(output);
    let RunResults { results: rows, outcome, failed } = run_all(plan, taken, options, observer, run, keep)?;
    if rows.is_empty() {
        return Ok(Ended { record: None, report: None, outcome, failed });
    }
    let record = record(rows);
    match outcome {
        Outcome::Finished => record.write(output)?,
        Outcome::Interrupted => record.write_partial(output)?,
    }
    let report = write_report(plan, output)?.then_some(REPORT_FILE);
    Ok(Ended { record: Some(record), report, outcome, failed })
}

/// Writes the page that compares all runs that have a folder here, and returns whether there are any. There are none if
/// all rows were trained elsewhere; a run that failed or has not started may have no folder either.
fn write_report(plan: &[PlannedRun], output: &Path) -> Result<bool, ExperimentError> {
    let runs: Vec<RunRecord> = plan.iter().filter_map(|planned| RunRecord::read(&planned.folder).ok()).collect();
    if !runs.is_empty() {
        write_file(&output.join(REPORT_FILE), page(&runs).as_bytes())?;
    }
    Ok(!runs.is_empty())
}
