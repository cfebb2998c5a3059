//! `falcon reproduce lm`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use falcon_lm::config::RunConfig;
use falcon_lm::data::{CacheError, Source, TOKENIZER_FILE, Tokenizer, digest, sample};
use falcon_lm::evaluate::BENCHMARKS;
use falcon_lm::machine;
use falcon_lm::reproduce::language::{
    Corpus, Estimate, LanguageRecord, RowResult, SCALES, config, estimate, exam, run_row,
};
use falcon_lm::reproduce::{Data, Fingerprint, Results, Row, Scale, Search};
use falcon_lm::tasks::{TaskConfig, TaskError};
use falcon_lm::train::Outcome;
use falcon_nn::write_file;
use serde_json::json;

use super::continued::EarlierRecords;
use super::plan::{Plan, Planned, families};
use super::search::{Searched, warn};
use super::{LanguageArgs, ReproduceError, again, command, quoted, results_folder, run_and_record, scale};
use crate::args::exam_texts;
use crate::bench::Text;
use crate::interrupt::SAVING;
use crate::output::printed;
use crate::progress::{measuring, with_spinner};
use crate::threads::use_threads;
use crate::train::Show;

/// Tokens of a tokenizer that is learnt here, and the text it is learnt from, at most.
const VOCABULARY: usize = 4096;
const SAMPLE: usize = 16 << 20;

pub(super) fn run(args: &LanguageArgs) -> Result<Outcome, ReproduceError> {
    if args.rows.from.is_some() {
        return again::<LanguageRecord>(&args.rows);
    }
    use_threads(args.rows.threads.map(Into::into))?;
    let scale = scale(&SCALES, &args.rows);
    let output = results_folder(&args.rows, "lm", scale);
    let path = |path: &Option<PathBuf>| path.clone().unwrap_or_else(|| "none".into());
    let corpus = |tokenizer: &str| Corpus {
        train: path(&args.train),
        valid: path(&args.valid),
        tokenizer: tokenizer.into(),
    };
    let (families, search) = (families(&args.rows, scale)?, search(args, scale));
    let plan_with = |tokenizer: &str| {
        let corpus = corpus(tokenizer);
        let config = Box::new(move |row: &_, seed, more: &_| config(&corpus, scale, row, seed, more));
        Plan::new(families.clone(), &args.rows, scale, search, &output, config)
    };
    // All that can be wrong first: it should not be found after an hour. A tokenizer of bytes stands in for one to be learnt.
    let plan = plan_with(args.tokenizer.as_deref().unwrap_or("bytes"))?;
    if args.estimate {
        return show_estimates(args, &plan);
    }
    let shots: Vec<usize> = args.shots.iter().map(|shots| usize::from(*shots)).collect();
    let mut exam = exam(&plan.runs[0].config, exam_texts(&args.text, args.detokenize));
    if let Some(folder) = &args.data {
        let all: Vec<_> = BENCHMARKS.iter().collect();
        exam.ask(&all, folder, args.limit.unwrap_or(scale.samples), &shots)?;
    }
    exam.check()?;
    check_unseen(args)?;
    let command = command("lm", &args.rows, words(args));
    let earlier = EarlierRecords::<LanguageRecord>::read(&args.rows, &output, &command, &plan)?;
    let plan = match args.tokenizer {
        Some(_) => plan,
        None => plan_with(&learn(&path(&args.train), &output)?)?,
    };
    let first = &plan.runs[0].config;
    let Some(data) = read_data(first)? else { return Ok(Outcome::Interrupted) };
    let fingerprint = |config: &RunConfig| Fingerprint::of(config, &data);
    let record = |config: &RunConfig, rows, planned, search| LanguageRecord {
        scale: scale.name.into(),
        command: command.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine::describe(),
        config: recorded(config, args).to_toml(),
        planned,
        search,
        rows,
    };
    // Rows that are recorded are known again only when the search is done, and must not be written over before.
    let keep_search = |search| match earlier.has_own_rows() {
        true => Ok(()),
        false => record(first, Vec::new(), Some(plan.runs.len()), Some(search)).write(&output),
    };
    let Some(Searched { runs, search, failed }) = plan.search(&args.rows, &earlier, &fingerprint, keep_search)?
    else {
        return Ok(Outcome::Interrupted);
    };
    let mut asked = None;
    let taken = earlier.take(&runs, &fingerprint, |_, row: RowResult| {
        if asked.is_none() {
            asked = Some(exam.asked(&tokenizer(first)?, &mut measuring("reading what is asked", STOPPING))?);
        }
        // None of an interrupt, after which no row is run either.
        Ok(asked.as_ref().and_then(Option::as_ref).and_then(|asked| row.answering(asked)))
    })?;
    earlier.set_aside(&output, &taken)?;
    let run = |planned: &Planned, show: &mut Show| {
        let Planned { row, title, config, folder } = planned;
        run_row(row, config, &exam, folder, fingerprint(config), show, &mut measuring(title, SAVING))
    };
    let outcome = run_and_record(&args.rows, (&runs, taken), plan.runs.len(), &output, run, |rows, planned| {
        record(&runs[0].config, rows, planned, search.clone())
    });
    match (failed, outcome) {
        (Some(failed), Ok(Outcome::Finished)) => Err(failed),
        (failed, outcome) => {
            failed.into_iter().for_each(|failed| warn(&failed));
            outcome
        }
    }
}

/// What is searched for: what is asked for, or else what the scale has.
fn search(args: &LanguageArgs, scale: &Scale) -> Option<Search> {
    if args.no_search {
        return None;
    }
    let Some(asked) = args.search else { return scale.search };
    let search = scale.search.unwrap_or(Search::SMALL);
    Some(Search { steps: asked.unwrap_or(search.steps), ..search })
}

/// What is said when it is stopped before anything is trained.
const STOPPING: &str = "stopping";

/// The content of the text that all runs read. None if it was interrupted.
fn read_data(config: &RunConfig) -> Result<Option<Data>, ReproduceError> {
    let mut progress = measuring("text", STOPPING);
    let read =
        Data::of(&config.task, &mut |bytes| progress(&format!("{} MiB made into tokens", bytes >> 20), 0, 0));
    match read {
        Err(TaskError::Data { error, .. }) if matches!(*error, CacheError::Interrupted) => Ok(None),
        read => Ok(Some(read?)),
    }
}

/// The tokenizer of all runs.
fn tokenizer(config: &RunConfig) -> Result<Tokenizer, ReproduceError> {
    let TaskConfig::Text(task) = &config.task else { unreachable!("the task is set to text") };
    Ok(Tokenizer::open(&task.tokenizer)?)
}

/// A configuration for the record: where the output goes, and with it a tokenizer learnt there, is nobody's business.
fn recorded(config: &RunConfig, args: &LanguageArgs) -> RunConfig {
    let mut config = config.clone();
    if let (TaskConfig::Text(task), None) = (&mut config.task, &args.tokenizer) {
        task.tokenizer = TOKENIZER_FILE.into();
    }
    config
}

/// Refuses to measure a model on what it learns from.
fn check_unseen(args: &LanguageArgs) -> Result<(), ReproduceError> {
    let stamps = |path: &PathBuf| Source::open(path)?.stamps(&mut || true);
    let Some(train) = &args.train else { return Ok(()) };
    let learnt = stamps(train)?;
    for (option, path) in
        args.valid.iter().map(|path| ("--valid", path)).chain(args.text.iter().map(|path| ("--text", path)))
    {
        if let Some(seen) =
            stamps(path)?.into_iter().find(|stamp| learnt.iter().any(|other| other.path == stamp.path))
        {
            return Err(ReproduceError::Seen { option, file: seen.path });
        }
    }
    Ok(())
}

/// Name of what tells the text that a tokenizer was learnt from.
const LEARNT_FROM: &str = "tokenizer.from";

/// The tokenizer in the output's folder, learnt if it is not there.
fn learn(train: &Path, output: &Path) -> Result<String, ReproduceError> {
    let (path, from) = (output.join(TOKENIZER_FILE), output.join(LEARNT_FROM));
    let source = Source::open(train)?;
    with_spinner("learning a tokenizer", || {
        let texts = sample(&[source], SAMPLE)?;
        let text = digest(&texts) + "\n";
        if path.exists() {
            let same = fs::read_to_string(&from).is_ok_and(|known| known == text);
            return if same { Ok(()) } else { Err(ReproduceError::OtherText { path: path.clone() }) };
        }
        let tokenizer = Tokenizer::learn(VOCABULARY, texts.into_iter())?;
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |error| ReproduceError::Io { path, error }
        };
        fs::create_dir_all(output).map_err(io(output))?;
        // First what tells, so that a tokenizer is never without it.
        write_file(&from, text.as_bytes()).map_err(io(&from))?;
        Ok(tokenizer.save(&path)?)
    })?;
    Ok(path.to_string_lossy().into_owned())
}

/// What was asked for beside what all experiments have.
fn words(args: &LanguageArgs) -> Vec<String> {
    let mut words = Vec::new();
    let mut add = |name: &str, value: &str| words.push(format!("--{name} {}", quoted(value)));
    for (name, path) in [("train", &args.train), ("valid", &args.valid)] {
        path.iter().for_each(|path| add(name, &path.to_string_lossy()));
    }
    args.tokenizer.iter().for_each(|tokenizer| add("tokenizer", tokenizer));
    args.text.iter().for_each(|text| add("text", &text.to_string_lossy()));
    let detokenize = args.detokenize.and_then(|kind| kind.to_possible_value());
    detokenize.iter().for_each(|kind| add("detokenize", kind.get_name()));
    args.data.iter().for_each(|data| add("data", &data.to_string_lossy()));
    if args.shots != [0, 1] {
        add("shots", &args.shots.iter().map(u8::to_string).collect::<Vec<_>>().join(","));
    }
    args.limit.iter().for_each(|limit| add("limit", &limit.to_string()));
    words.extend(args.search.map(|steps| match steps {
        Some(steps) => format!("--search={steps}"),
        None => "--search".into(),
    }));
    words.extend(args.no_search.then(|| "--no-search".to_string()));
    words
}

/// What the search costs for a row, in full runs of it: its part where several rows share one.
fn searching(plan: &Plan<'_>, row: &Row, config: &RunConfig) -> f64 {
    let Some(search) = plan.searches.iter().find(|search| search.family.rows.contains(row)) else { return 0.0 };
    let steps: u64 = search.trials.iter().map(|trial| trial.config.train.schedule.steps).sum();
    steps as f64 / config.train.schedule.steps as f64 / search.family.rows.len() as f64
}

/// Steps that are timed, after one to warm up.
const ROUNDS: usize = 2;

fn show_estimates(args: &LanguageArgs, plan: &Plan<'_>) -> Result<Outcome, ReproduceError> {
    let runs = &plan.runs;
    let seeds = runs.iter().filter(|planned| planned.row == runs[0].row).count();
    let mut text = Text::new(&["", "parameters", "tokens", "tokens/s", "GFLOP/s", "days per run"]);
    let mut values = Vec::new();
    let mut days = 0.0;
    for Planned { row, config, .. } in runs.iter().filter(|planned| planned.config.train.seed == 0) {
        let cost = with_spinner(&format!("timing {}", row.name), || estimate(config, ROUNDS))?;
        let Estimate { parameters, tokens, tokens_per_second, seconds, flops } = cost;
        days += seconds / 86400.0 * (seeds as f64 + searching(plan, row, config));
        text.row(vec![
            row.name.clone(),
            parameters.to_string(),
            format!("{tokens:.3e}"),
            format!("{tokens_per_second:.0}"),
            format!("{:.1}", flops / 1e9),
            format!("{:.3}", seconds / 86400.0),
        ]);
        values.push(
            json!({ "name": row.name, "seeds": seeds, "search": searching(plan, row, config), "cost": cost }),
        );
    }
    let search = if plan.searches.iter().all(|search| search.trials.is_empty()) { "" } else { " and the search" };
    let (machine, threads) = (machine::describe(), rayon::current_num_threads());
    let said = match args.rows.json {
        true => json!({ "machine": machine, "rows": values }).to_string(),
        false => format!(
            "{text}\ntraining alone, {seeds} seed(s) per row{search}: {days:.1} days of {threads} threads; {machine}"
        ),
    };
    printed(writeln!(io::stdout(), "{said}"))?;
    Ok(Outcome::Finished)
}
