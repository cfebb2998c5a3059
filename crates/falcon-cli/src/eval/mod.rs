//! `falcon eval`: the perplexity of text, and the paper's benchmarks.

mod args;
mod tables;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_base::{AtPath, PathError, nearest};
use falcon_lab::tables::aligned;
use falcon_lm::data::{CacheError, Check};
use falcon_lm::evaluate::{BENCHMARKS, Benchmark, BenchmarkError, Exam, ResultsError, ResultsFile};
use falcon_lm::train::Outcome;
use falcon_lm::trained::{Trained, TrainedError};
use thiserror::Error;

pub use self::args::EvalArgs;
use self::args::{ALL, benchmark_names};
use self::tables::tables;
use crate::interrupt::stop_on_interrupt;
use crate::memory::release_freed;
use crate::output::{Kind, check, ignore_closed_stdout};
use crate::progress::stage_monitor;
use crate::texts::exam_texts;
use crate::threads::{ThreadsError, use_threads};

/// Why `falcon eval` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EvalError {
    /// There is neither a text nor a benchmark.
    #[error("nothing to measure: give --text FILE, or --tasks all --data DIR")]
    Nothing,
    /// A benchmark of that name does not exist.
    #[error("unknown benchmark {name:?}; {hint}")]
    Task {
        /// The name.
        name: String,
        /// The most similar names.
        hint: String,
    },
    /// A model cannot be opened.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// A text cannot be read.
    #[error(transparent)]
    Text(#[from] CacheError),
    /// A benchmark cannot be read.
    #[error(transparent)]
    Benchmark(#[from] BenchmarkError),
    /// The results cannot be written to `--output`.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The results in `--output` cannot be read or written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// Stdout cannot be written.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// The message at an interrupt.
const STOPPING: &str = "stopping; what has been measured is kept if there is an --output";

/// Evaluates models, and prints tables.
pub fn run(args: &EvalArgs) -> Result<Outcome, EvalError> {
    let benchmarks = benchmarks(args)?;
    if args.text.is_empty() && benchmarks.is_empty() {
        return Err(EvalError::Nothing);
    }
    use_threads(args.threads.map(Into::into))?;
    // Check everything first: a mistake should not be found after an hour of work.
    let shots: Vec<usize> = args.shots.iter().map(|shots| usize::from(*shots)).collect();
    let mut exam = Exam::new(exam_texts(&args.text, args.detokenize), args.window);
    let folder = args.data.as_deref().unwrap_or(Path::new("."));
    exam.ask(&benchmarks, folder, args.limit, &shots)?;
    exam.check = if args.verify { Check::Full } else { Check::Sampled };
    exam.check()?;
    let mut results = ResultsFile::default();
    if let Some(path) = &args.output {
        let questions = benchmarks.iter().map(|benchmark| folder.join(benchmark.file_name()));
        let inputs: Vec<PathBuf> = args.text.iter().cloned().chain(questions).collect();
        check(path, Kind::Json, &inputs).at(path)?;
        results = ResultsFile::open(path)?;
    }
    for path in &args.models {
        Trained::check(path)?;
    }
    // From here on there are results to keep; before, Ctrl-C simply ends the program.
    stop_on_interrupt(STOPPING);
    let (mut shown, mut outcome) = (Vec::new(), Outcome::Finished);
    for path in &args.models {
        let trained =
            Trained::open(path, args.tokenizer.as_deref(), &Device::flex())?.with_weights(args.weights)?;
        release_freed();
        let name = path.display().to_string();
        let mut result = results.take(&name, &trained);
        let mut keep = |result: &_| Ok::<_, EvalError>(results.write_with(result)?);
        let answers = exam.take(&trained, &mut result, &mut keep, &mut stage_monitor(&name, STOPPING))?;
        results.put(result);
        shown.push(answers.asked);
        if !answers.complete {
            outcome = Outcome::Interrupted;
            break;
        }
    }
    let text = match args.json {
        true => serde_json::to_string(&shown).map_err(io::Error::from)? + "\n",
        false => aligned(&tables(&shown, &benchmarks, &shots)),
    };
    if outcome == Outcome::Interrupted {
        let done: usize = shown.iter().map(|result| result.texts.len() + result.benchmarks.len()).sum();
        let all = args.models.len() * (args.text.len() + benchmarks.len() * shots.len());
        let _ = match done {
            0 => writeln!(io::stderr(), "stopped before anything was measured"),
            _ => writeln!(io::stderr(), "stopped after {done} of {all} measurements"),
        };
        // An empty table would look like a result.
        if done == 0 && !args.json {
            return Ok(outcome);
        }
    }
    ignore_closed_stdout(io::stdout().write_all(text.as_bytes()))?;
    Ok(outcome)
}

/// The benchmarks of `--tasks`.
fn benchmarks(args: &EvalArgs) -> Result<Vec<&'static Benchmark>, EvalError> {
    let (all, named): (Vec<&String>, Vec<&String>) = args.tasks.iter().partition(|name| *name == ALL);
    let find = |name: &String| {
        Benchmark::named(name)
            .ok_or_else(|| EvalError::Task { name: name.clone(), hint: nearest(name, benchmark_names()) })
    };
    let named = named.into_iter().map(find).collect::<Result<_, _>>()?;
    Ok(if all.is_empty() { named } else { BENCHMARKS.iter().collect() })
}
