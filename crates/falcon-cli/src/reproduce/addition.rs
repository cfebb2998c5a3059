//! `falcon reproduce addition`.

use falcon_lm::reproduce::Row;
use falcon_lm::reproduce::addition::{AdditionRecord, SCALES, config, run_row};
use falcon_lm::tasks::TaskConfig;
use falcon_lm::train::Outcome;

use super::{
    Ablation, AdditionArgs, ReproduceError, again, command, finish, machine, plan, results_folder, rows, run_all,
    scale,
};
use crate::threads::use_threads;

pub(super) fn run(args: &AdditionArgs) -> Result<Outcome, ReproduceError> {
    if args.rows.from.is_some() {
        return again::<AdditionRecord>(&args.rows);
    }
    use_threads(args.rows.threads.map(Into::into))?;
    let scale = scale(&SCALES, &args.rows);
    let ablation = args.ablation.map_or("", |Ablation::Timing| "-timing");
    let output = results_folder(&args.rows, &format!("addition-{}{ablation}", scale.name));
    let models = rows(&args.rows, scale);
    let rows: Vec<Row> = match args.ablation {
        None => models.iter().map(|model| Row::of(model)).collect(),
        // Attention has no memory to be written earlier or later.
        Some(Ablation::Timing) => models
            .iter()
            .filter(|model| !model.starts_with("transformer"))
            .flat_map(|model| timings(model))
            .collect(),
    };
    if rows.is_empty() {
        return Err(ReproduceError::NothingToAblate);
    }
    let plan = plan(rows, &args.rows, scale, &output, |row, seed, more| config(scale, row, seed, more))?;
    let done = run_all(&plan, &args.rows, |planned, show| {
        run_row(&planned.row, &planned.config, scale.samples, &planned.folder, show)
    })?;
    let first = &plan[0].config;
    let TaskConfig::Addition(task) = &first.task else { unreachable!("the task is addition") };
    let ablation = args.ablation.map(|Ablation::Timing| "--ablation timing".to_string());
    finish(&args.rows, &plan, &output, done, |rows| AdditionRecord {
        scale: scale.name.into(),
        command: command("addition", &args.rows, ablation.into_iter().collect()),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine(),
        max_width: task.max_width,
        samples: scale.samples,
        config: first.to_toml(),
        rows,
    })
}

/// Which key meets a value, and when a token reads: all four.
fn timings(model: &str) -> Vec<Row> {
    let cases = [("next", "after"), ("same", "after"), ("next", "before"), ("same", "before")];
    let row = |(align, read)| Row::of(&format!("{model}+model.align={align}+model.read={read}"));
    cases.into_iter().map(row).collect()
}
