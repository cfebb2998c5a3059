//! `falcon bench`: measures the speed and memory of kernels, training steps and generation, and compares it with what
//! was recorded.

mod args;

use std::io::{self, Write};
use std::process::Command;

use falcon_base::AtPath;
use falcon_base::files::write_file;
use falcon_lab::bench::{self, BenchError, BenchTable, GenerateOptions, RatioCheck};
use falcon_lm::monitor::Monitor;
use falcon_nn::WeightFormat;
use serde_json::Value;

pub use args::{BenchArgs, BenchCommand, GenerateBenchArgs, KernelsArgs, RatioArgs, TrainBenchArgs};

use crate::memory;
use crate::output::{self, Kind, ignore_closed_stdout};
use crate::progress::Progress;
use crate::threads::use_threads;

/// What a benchmark has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchOutcome {
    /// Everything was measured, and no ratio fell.
    Finished,
    /// With `--check`, a ratio fell.
    Fell,
}

/// Runs a benchmark, and prints its tables to stdout.
pub fn run(args: &BenchArgs) -> Result<BenchOutcome, BenchError> {
    let done = match &args.command {
        None => return ratios(&args.ratios),
        Some(BenchCommand::Kernels(args)) if args.serve => bench::serve(io::stdin().lock(), io::stdout().lock()),
        Some(BenchCommand::Kernels(args)) => kernels(args),
        Some(BenchCommand::Train(args)) => train(args),
        Some(BenchCommand::Generate(args)) if args.measure => {
            use_threads(args.threads)?;
            let release = &memory::release_freed;
            bench::measure_generation(&args.options(), io::stdout(), release, &mut ShowStages::default())
        }
        Some(BenchCommand::Generate(args)) => generate(args),
    };
    match done {
        Err(error) if error.is_broken_pipe() => Ok(BenchOutcome::Finished),
        done => done.map(|()| BenchOutcome::Finished),
    }
}

/// Compares ratios with those in a file, or records them there.
fn ratios(args: &RatioArgs) -> Result<BenchOutcome, BenchError> {
    // Nothing can be done if stderr is closed.
    let note = |text: &str| drop(writeln!(io::stderr(), "{text}"));
    if let Some(path) = &args.record {
        output::check(path, Kind::Json, &[] as &[&str]).at(path)?;
        let table = bench::record_ratios(&args.options(path), &mut ShowStages::default())?;
        print(args.json, &[table])?;
        return Ok(BenchOutcome::Finished);
    }
    let path = args.check.as_ref().expect("clap asks for one of the two files");
    let tolerance = f64::from(args.tolerance) / 100.0;
    let checked = match bench::check_ratios(&args.options(path), tolerance, &mut ShowStages::default()) {
        Err(error @ BenchError::NotRecorded { .. }) if args.skip_unknown => {
            note(&format!("nothing is compared: {error}"));
            print(args.json, &[])?;
            return Ok(BenchOutcome::Finished);
        }
        checked => checked?,
    };
    let RatioCheck { table, compared, fallen, notes } = checked;
    print(args.json, &[table])?;
    notes.iter().for_each(|text| note(&format!("note: {text}")));
    if fallen.is_empty() {
        return Ok(BenchOutcome::Finished);
    }
    note(&format!(
        "{} of {compared} ratios fell by more than {}% below {}: {}",
        fallen.len(),
        args.tolerance,
        path.display(),
        fallen.iter().map(|row| format!("\n  {row}")).collect::<String>()
    ));
    Ok(BenchOutcome::Fell)
}

fn kernels(args: &KernelsArgs) -> Result<(), BenchError> {
    let tables = if args.scaling {
        let server = || this_program(&["bench", "kernels", "--serve"]);
        vec![bench::scaling(&args.scaling_options(&server), &mut ShowStages::default())?]
    } else {
        bench::kernels(&args.options(), &mut ShowStages::default())?
    };
    print(args.json, &tables)
}

fn train(args: &TrainBenchArgs) -> Result<(), BenchError> {
    let options = args.options();
    use_threads(Some(options.threads))?;
    let table = bench::train(&options, &mut ShowStages::default())?;
    print(args.json, &[table])
}

fn generate(args: &GenerateBenchArgs) -> Result<(), BenchError> {
    if let Some(path) = &args.picture {
        output::check(path, Kind::Svg, &[] as &[&str]).at(path)?;
    }
    let worker = |options: &GenerateOptions| {
        let list = |values: &[usize]| values.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let (models, contexts) = (options.models.join(","), list(&options.contexts));
        let (tokens, threads) = (options.tokens.to_string(), options.threads.to_string());
        let weights: Vec<String> = options.weights.iter().map(WeightFormat::to_string).collect();
        let (weights, sequences) = (weights.join(","), options.sequences.to_string());
        this_program(&[
            "bench",
            "generate",
            "--measure",
            "--models",
            &models,
            "--size",
            &options.size,
            "--weights",
            &weights,
            "--sequences",
            &sequences,
            "--contexts",
            &contexts,
            "--tokens",
            &tokens,
            "--threads",
            &threads,
        ])
    };
    let warn = |error: &BenchError| drop(writeln!(io::stderr(), "warning: {error}"));
    let results = bench::generate(&args.options(), &worker, &warn)?;
    if let Some(path) = &args.picture {
        write_file(path, results.picture.as_bytes())?;
    }
    // The rows that could be measured are printed even if others failed.
    print(args.json, &[results.table])?;
    results.failed.map_or(Ok(()), Err)
}

/// The command that runs this program once more.
fn this_program(args: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Ok(command)
}

/// Shows the progress of a benchmark. Ctrl-C ends the program at once: there is nothing to save.
#[derive(Default)]
struct ShowStages(Option<Progress>);

impl Monitor for ShowStages {
    fn stage(&mut self, name: &str) {
        let progress = self.0.get_or_insert_with(|| Progress::spinner(name));
        progress.length(None);
        progress.message(name.into());
    }

    fn advance(&mut self, done: usize, total: Option<usize>) {
        if let Some(progress) = &self.0 {
            progress.length(total.map(|total| total as u64));
            progress.position(done as u64);
        }
    }
}

fn print(json: bool, tables: &[BenchTable]) -> Result<(), BenchError> {
    let text = if json {
        let rows: Vec<&Value> = tables.iter().flat_map(|table| &table.rows).collect();
        serde_json::to_string_pretty(&rows).map_err(io::Error::from)? + "\n"
    } else {
        let tables = tables.iter().map(|BenchTable { title, text, .. }| format!("{title}\n\n{text}"));
        tables.collect::<Vec<_>>().join("\n")
    };
    Ok(ignore_closed_stdout(io::stdout().write_all(text.as_bytes()))?)
}
