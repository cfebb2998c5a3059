//! Runs the experiment, or estimates what it would cost.

use std::path::PathBuf;

use falcon_lm::config::RunConfig;
use falcon_lm::data::{CacheError, Source, TOKENIZER_FILE, Tokenizer};
use falcon_lm::evaluate::{BENCHMARKS, ExamText};
use falcon_lm::machine;
use falcon_lm::monitor::from_fn;
use falcon_lm::tasks::{TaskConfig, TaskError};
use falcon_lm::train::Outcome;

use super::estimate::{RowEstimate, estimate_run};
use super::experiment::{LanguageExperiment, LanguageRecord, LanguageSettings};
use super::measure::{evaluate_run, exam};
use super::scales::{Corpus, config};
use super::tokenizer::train_tokenizer;
use crate::reproduce::earlier::{EarlierRecords, NotTaken};
use crate::reproduce::error::ExperimentError;
use crate::reproduce::fingerprint::{DataHash, Fingerprint};
use crate::reproduce::observer::Observer;
use crate::reproduce::plan::{ExperimentOptions, ExperimentPlan, families};
use crate::reproduce::record::RowResult;
use crate::reproduce::row::TableRow;
use crate::reproduce::rows::run_row;
use crate::reproduce::runner::{Ended, run_and_record};
use crate::reproduce::search::Search;
use crate::reproduce::searching::{SearchOutcome, run_search};

/// What to run, and on which texts.
#[derive(Clone, Debug)]
pub struct LanguageOptions {
    /// The options of all experiments.
    pub experiment: ExperimentOptions,
    /// The training text.
    pub train: PathBuf,
    /// The validation text.
    pub valid: PathBuf,
    /// The tokenizer, in the form of [`Corpus::tokenizer`]; one is trained on the training text if not set.
    pub tokenizer: Option<String>,
    /// Other texts whose perplexity is evaluated.
    pub texts: Vec<ExamText>,
    /// The benchmarks; none are asked if not set.
    pub benchmarks: Option<Questionnaire>,
    /// The search for hyperparameters; none if not set.
    pub search: Option<Search>,
}

/// Where the benchmarks are, and how they are asked.
#[derive(Clone, Debug)]
pub struct Questionnaire {
    /// The folder that holds a file `NAME.jsonl` for each benchmark.
    pub folder: PathBuf,
    /// The largest number of questions of each benchmark; that of the scale if not set.
    pub limit: Option<usize>,
    /// The numbers of examples before each question. All questions are asked again for each of them.
    pub shots: Vec<usize>,
}

/// The plan of the experiment with a tokenizer.
fn make_plan<'a>(options: &'a LanguageOptions, tokenizer: &str) -> Result<ExperimentPlan<'a>, ExperimentError> {
    let experiment = &options.experiment;
    let corpus =
        Corpus { train: options.train.clone(), valid: options.valid.clone(), tokenizer: tokenizer.into() };
    let config = Box::new(move |row: &_, seed, more: &_| config(&corpus, experiment.scale, row, seed, more));
    ExperimentPlan::new(families(experiment)?, experiment, options.search, config)
}

/// Trains and evaluates all rows, except those that earlier records have, and writes the record with its tables and
/// pictures.
pub fn run(
    options: &LanguageOptions,
    observer: &dyn Observer,
) -> Result<Ended<LanguageExperiment>, ExperimentError> {
    let experiment = &options.experiment;
    let (scale, output) = (experiment.scale, &experiment.output);
    // Everything is checked before the first run starts. Until a tokenizer is trained, bytes take its place.
    let mut plan = make_plan(options, options.tokenizer.as_deref().unwrap_or("bytes"))?;
    let mut exam = exam(&plan.runs[0].config, options.texts.clone());
    if let Some(Questionnaire { folder, limit, shots }) = &options.benchmarks {
        let benchmarks: Vec<_> = BENCHMARKS.iter().collect();
        exam.ask(&benchmarks, folder, limit.or(scale.samples), shots)?;
    }
    exam.check()?;
    check_not_trained_on(options)?;
    let earlier = EarlierRecords::<LanguageExperiment>::read(experiment, &plan)?;
    if options.tokenizer.is_none() {
        let mut monitor = observer.preparing("tokenizer");
        monitor.stage("training it on the training text");
        plan = make_plan(options, &train_tokenizer(&options.train, output)?)?;
    }
    let first = &plan.runs[0].config;
    let Some(data) = hash_data(first, observer)? else { return Ok(Ended::interrupted()) };
    let fingerprint = |config: &RunConfig| Fingerprint::of(config, &data);
    let record = |config: &RunConfig, rows, planned, search| LanguageRecord {
        scale: scale.name.into(),
        command: experiment.command.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine::describe(),
        settings: LanguageSettings {},
        config: recorded_config(config, options).to_toml(),
        planned,
        search,
        rows,
    };
    // The rows of the record in the output folder are only taken after the search, and must not be overwritten before.
    let keep_search = |search| match earlier.has_own_rows() {
        true => Ok(()),
        false => record(first, Vec::new(), Some(plan.runs.len()), Some(search)).write(output),
    };
    let found = run_search(&plan, &earlier, &fingerprint, experiment, observer, keep_search)?;
    let Some(SearchOutcome { runs, search, failed }) = found else { return Ok(Ended::interrupted()) };
    let mut asked = None;
    let taken = earlier.take(&runs, &fingerprint, observer, |_, mut row: RowResult<LanguageExperiment>| {
        if asked.is_none() {
            asked =
                Some(exam.fingerprints(&open_tokenizer(first)?, &mut *observer.preparing("evaluation texts"))?);
        }
        let Some(Some(asked)) = &asked else { return Ok(None) };
        let measured = row.measured.answering(asked).ok_or(NotTaken::Measured);
        Ok(Some(measured.map(|measured| {
            row.measured = measured;
            row
        })))
    })?;
    let Some(taken) = taken else { return Ok(Ended::interrupted()) };
    earlier.set_aside(output, &taken, observer)?;
    let ended = run_and_record(
        (&runs, taken),
        plan.runs.len(),
        experiment,
        observer,
        |planned, watch| {
            run_row(planned, fingerprint(&planned.config), watch, |run| {
                let mut monitor = observer.evaluating(&planned.title);
                evaluate_run(run, &planned.row.name, &exam, &planned.folder, &mut *monitor)
            })
        },
        |rows, planned| record(&runs[0].config, rows, planned, search.clone()),
    )?;
    match failed {
        Some(failed) if ended.failed.is_none() && ended.outcome == Outcome::Finished => {
            Ok(Ended { failed: Some(failed), ..ended })
        }
        Some(failed) => {
            observer.note(&format!("warning: {failed}"));
            Ok(ended)
        }
        None => Ok(ended),
    }
}

/// Hashes the texts that all runs read, which are tokenized if that was not done before. None if interrupted.
fn hash_data(config: &RunConfig, observer: &dyn Observer) -> Result<Option<DataHash>, ExperimentError> {
    let mut monitor = observer.preparing("text");
    let mut tokenized = from_fn(|bytes| {
        monitor.stage(&format!("{} MiB tokenized", bytes >> 20));
        !monitor.cancelled()
    });
    let data = DataHash::of(&config.task, &mut tokenized);
    match data {
        Err(TaskError::Data { source, .. }) if matches!(*source, CacheError::Cancelled(_)) => Ok(None),
        data => Ok(Some(data?)),
    }
}

/// The tokenizer of all runs.
fn open_tokenizer(config: &RunConfig) -> Result<Tokenizer, ExperimentError> {
    let TaskConfig::Text(task) = &config.task else { unreachable!("the task is set to text") };
    Ok(Tokenizer::open(&task.tokenizer)?)
}

/// The configuration as it is recorded. If the tokenizer was trained in the output folder, only the name of its file is
/// recorded, so that records do not differ by their output folder.
fn recorded_config(config: &RunConfig, options: &LanguageOptions) -> RunConfig {
    let mut config = config.clone();
    if let (TaskConfig::Text(task), None) = (&mut config.task, &options.tokenizer) {
        task.tokenizer = TOKENIZER_FILE.into();
    }
    config
}

/// Refuses to evaluate models on text that they are trained on.
fn check_not_trained_on(options: &LanguageOptions) -> Result<(), ExperimentError> {
    let stamps = |path: &PathBuf| Source::open(path)?.stamps(&mut ());
    let trained_on = stamps(&options.train)?;
    let texts = options.texts.iter().map(|text| ("--text", &text.path));
    for (option, path) in std::iter::once(("--valid", &options.valid)).chain(texts) {
        let same = stamps(path)?.into_iter().find(|stamp| trained_on.iter().any(|other| other.path == stamp.path));
        if let Some(stamp) = same {
            return Err(ExperimentError::TrainedOn { option, file: stamp.path });
        }
    }
    Ok(())
}

/// The number of steps that are timed, after one to warm up.
const ROUNDS: usize = 2;

/// Times a training step of every row, and estimates what the experiment would cost on this machine. No file is read
/// except the tokenizer; without one, the vocabulary of bytes is assumed.
pub fn estimate(options: &LanguageOptions, observer: &dyn Observer) -> Result<Vec<RowEstimate>, ExperimentError> {
    let plan = make_plan(options, options.tokenizer.as_deref().unwrap_or("bytes"))?;
    let seeds = plan.runs.iter().filter(|planned| planned.row == plan.runs[0].row).count();
    let mut monitor = observer.preparing("estimate");
    let mut rows = Vec::new();
    for planned in plan.runs.iter().filter(|planned| planned.config.train.seed == 0) {
        monitor.stage(&format!("timing {}", planned.row.name));
        rows.push(RowEstimate {
            name: planned.row.name.clone(),
            seeds,
            search: search_share(&plan, &planned.row, &planned.config),
            cost: estimate_run(&planned.config, ROUNDS)?,
        });
    }
    Ok(rows)
}

/// The cost of the search for a row, in full runs of it. Rows that share a search share its cost.
fn search_share(plan: &ExperimentPlan<'_>, row: &TableRow, config: &RunConfig) -> f64 {
    let Some(search) = plan.searches.iter().find(|search| search.family.rows.contains(row)) else { return 0.0 };
    let steps: u64 = search.trials.iter().map(|trial| trial.config.train.schedule.steps).sum();
    steps as f64 / config.train.schedule.steps as f64 / search.family.rows.len() as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use falcon_lm::monitor::Monitor;
    use falcon_lm::train::Watch;

    use super::super::scales::SCALES;
    use super::*;
    use crate::reproduce::record::RESULTS_FILE;

    /// Cancels a preparation, and keeps all notes.
    #[derive(Default)]
    struct Cancelling {
        preparation: &'static str,
        notes: Mutex<Vec<String>>,
    }

    impl Observer for Cancelling {
        fn note(&self, line: &str) {
            self.notes.lock().unwrap().push(line.into());
        }

        fn watch(&self, _title: String, _config: &RunConfig) -> Box<dyn Watch> {
            Box::new(())
        }

        fn preparing(&self, what: &str) -> Box<dyn Monitor> {
            let goes_on = what != self.preparation;
            Box::new(from_fn(move |_| goes_on))
        }

        fn evaluating(&self, _title: &str) -> Box<dyn Monitor> {
            Box::new(())
        }
    }

    /// The row is not trained again, and nothing says that it is.
    #[test]
    fn an_interrupt_while_texts_are_read_leaves_the_record_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let text = |name: &str, words: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, words.repeat(100)).unwrap();
            path
        };
        let output = folder.path().join("out");
        let set = ["model.hidden_size=16", "model.num_heads=2", "model.intermediate_size=16", "task.length=8"];
        let options = LanguageOptions {
            experiment: ExperimentOptions {
                scale: &SCALES[0],
                models: vec!["retnet".into()],
                seeds: None,
                steps: Some(2),
                set: set.map(String::from).into(),
                ablation: None,
                output: output.clone(),
                continue_from: Vec::new(),
                threads: 1,
                jobs: None,
                check_memory: true,
                command: String::new(),
            },
            train: text("train.txt", "rain falls on the hill "),
            valid: text("valid.txt", "and runs to a river "),
            tokenizer: Some("bytes".into()),
            texts: Vec::new(),
            benchmarks: None,
            search: None,
        };
        let ended = run(&options, &Cancelling::default()).unwrap();
        assert_eq!((ended.outcome, ended.record.unwrap().rows.len()), (Outcome::Finished, 1));
        // A record made elsewhere has no folders of runs beside it.
        std::fs::remove_dir_all(output.join("retnet-s0")).unwrap();
        let files = || {
            let names = std::fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.collect();
            names.sort();
            (names, std::fs::read(output.join(RESULTS_FILE)).unwrap())
        };
        let before = files();
        let observer = Cancelling { preparation: "evaluation texts", ..Cancelling::default() };
        let ended = run(&options, &observer).unwrap();
        assert_eq!((ended.outcome, ended.record), (Outcome::Interrupted, None));
        assert_eq!(*observer.notes.lock().unwrap(), [""; 0]);
        assert_eq!(files(), before);
    }
}
