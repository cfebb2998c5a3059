//! `falcon reproduce lm`.

use std::io::{self, Write};

use clap::ValueEnum;
use falcon_lab::reproduce::Search;
use falcon_lab::reproduce::language::{
    LanguageExperiment, LanguageOptions, Questionnaire, RowEstimate, RunEstimate, SCALES, estimate,
    run as run_experiment,
};
use falcon_lab::tables::TextTable;
use falcon_lm::machine;
use falcon_lm::train::Outcome;
use serde_json::json;

use super::args::quoted;
use super::observer::Terminal;
use super::output::{finish, remake};
use super::{LanguageArgs, ReproduceError};
use crate::output::ignore_closed_stdout;
use crate::texts::exam_texts;
use crate::threads::use_threads;

pub(super) fn run(args: &LanguageArgs) -> Result<Outcome, ReproduceError> {
    if let Some(folder) = &args.rows.from {
        return remake::<LanguageExperiment>(&args.rows, folder);
    }
    use_threads(args.rows.threads.map(Into::into))?;
    let options = options(args);
    if args.estimate {
        return show_estimates(args, &estimate(&options, &Terminal)?);
    }
    finish(&args.rows, &options.experiment.output, run_experiment(&options, &Terminal)?)
}

fn options(args: &LanguageArgs) -> LanguageOptions {
    let experiment = args.rows.options::<LanguageExperiment>(SCALES, words(args));
    // Texts are missing only with --estimate, which does not read them.
    let text = |path: &Option<_>| path.clone().unwrap_or_else(|| "none".into());
    LanguageOptions {
        train: text(&args.train),
        valid: text(&args.valid),
        tokenizer: args.tokenizer.clone(),
        texts: exam_texts(&args.text, args.detokenize),
        benchmarks: args.data.as_ref().map(|folder| Questionnaire {
            folder: folder.clone(),
            limit: args.limit,
            shots: args.shots.iter().map(|shots| usize::from(*shots)).collect(),
        }),
        search: search(args, experiment.scale.search),
        experiment,
    }
}

/// The search that --search and --no-search ask for, or else that of the scale.
fn search(args: &LanguageArgs, default: Option<Search>) -> Option<Search> {
    if args.no_search {
        return None;
    }
    let Some(steps) = args.search else { return default };
    let search = default.unwrap_or(Search::SMALL);
    Some(Search { steps: steps.unwrap_or(search.steps), ..search })
}

/// The options that only this experiment has, as they are written in the recorded command.
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

fn show_estimates(args: &LanguageArgs, rows: &[RowEstimate]) -> Result<Outcome, ReproduceError> {
    let mut table = TextTable::new(&["", "parameters", "tokens", "tokens/s", "GFLOP/s", "days per run"]);
    for RowEstimate { name, cost, .. } in rows {
        let RunEstimate { parameters, tokens, tokens_per_second, seconds, flops } = cost;
        table.row(vec![
            name.clone(),
            parameters.to_string(),
            format!("{tokens:.3e}"),
            format!("{tokens_per_second:.0}"),
            format!("{:.1}", flops / 1e9),
            format!("{:.3}", seconds / 86400.0),
        ]);
    }
    let days: f64 = rows.iter().map(|row| row.cost.seconds / 86400.0 * (row.seeds as f64 + row.search)).sum();
    let seeds = rows.first().map_or(0, |row| row.seeds);
    let search = if rows.iter().any(|row| row.search > 0.0) { " and the search" } else { "" };
    let (machine, threads) = (machine::describe(), rayon::current_num_threads());
    let text = match args.rows.json {
        true => json!({ "machine": machine, "rows": rows }).to_string(),
        false => format!(
            "{table}\ntraining alone, {seeds} seed(s) per row{search}: {days:.1} days with {threads} threads; {machine}"
        ),
    };
    ignore_closed_stdout(writeln!(io::stdout(), "{text}"))?;
    Ok(Outcome::Finished)
}
