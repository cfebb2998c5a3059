//! `falcon eval`: perplexity of text, and the paper's benchmarks.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use falcon_lm::data::{CacheError, Check};
use falcon_lm::evaluate::{BENCHMARKS, Benchmark, BenchmarkError, Estimate, Exam, ModelResult, TextResult};
use falcon_lm::report::{aligned, table_head, table_line};
use falcon_lm::train::Outcome;
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::{nearest, write_file};
use thiserror::Error;

use crate::args::{DetokenizeArg, exam_texts};
use crate::interrupt::stop_on_interrupt;
use crate::names::Names;
use crate::output::{self, Kind, printed};
use crate::progress::measuring;
use crate::threads::{ThreadsError, use_threads};

/// Arguments of `falcon eval`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct EvalArgs {
    /// Runs of `falcon train`, or folders with config.json and model.safetensors: a row of the table each.
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<PathBuf>,

    /// Text whose perplexity to measure: a file or a folder; may be given many times.
    #[arg(short, long, value_name = "TEXT")]
    pub text: Vec<PathBuf>,

    /// Read text in windows of so many tokens, each as if nothing came before; without it, every document from beginning to end, with the
    /// state carried all the way.
    #[arg(short, long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub window: Option<u32>,

    /// Put the text of --text together again before it is read, and count words and bytes as they were before.
    #[arg(long, value_enum, value_name = "KIND", requires = "text")]
    pub detokenize: Option<DetokenizeArg>,

    /// Benchmarks.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "data", value_parser = Names::of(benchmark_names().chain([ALL])))]
    pub tasks: Vec<String>,

    /// The folder with the benchmarks, NAME.jsonl each.
    #[arg(long, value_name = "DIR", requires = "tasks")]
    pub data: Option<PathBuf>,

    /// Examples before each question, up to 8, drawn for each; a list such as 0,1 asks again for each number.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0", requires = "tasks", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub shots: Vec<u8>,

    /// Questions of each benchmark, at most: from all over its file, where lm-evaluation-harness takes the first.
    #[arg(long, value_name = "N", requires = "tasks")]
    pub limit: Option<usize>,

    /// Keep results in this JSON file as they come; what is in it already is not measured again.
    #[arg(short, long, value_name = "JSON")]
    pub output: Option<PathBuf>,

    /// Read all of the text and of the tokens kept of it, to be sure that they are what they were; otherwise their
    /// sizes, times and some blocks.
    #[arg(long, requires = "text")]
    pub verify: bool,

    /// A tokenizer other than the models' own.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,

    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Print the results as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = r#"HOW BENCHMARKS ARE SCORED

  As in lm-evaluation-harness: a choice by the sum of its tokens' log-likelihoods after the
  question (acc), or that sum divided by its characters (acc_norm, which tables show for those
  marked *). The standard error of a perplexity is that of the mean log-likelihood, times the
  perplexity.

  Examples (--shots) are drawn anew for every question, as version 0.4.13 of the harness draws
  them with its own seed, 1234, in one process: from the lines with "split": "train", which are
  never asked, or, if a file has none, from all questions but the one that is asked. (LAMBADA has
  no training split in the harness either, which there draws from all questions without leaving
  any out; so it does here.) Files with the same lines in the same order have the same examples.

  What differs from the harness: --limit asks questions from all over the file, where the harness
  asks the first; then the examples differ, too. A long context is read in full, where the harness
  cuts it to the length of the model.

HOW TEXT IS READ

  A file is one document, and so is each line of a .jsonl file. Words are what white space
  divides.

  --detokenize wikitext reads the raw WikiText as the harness reads it for its task wikitext. Every
  page, from one title " = Title = " to the next, is read by itself, with " @-@ " changed to "-",
  " , " to ", " and so on. Words and bytes are those of the page before that, and a space at the
  beginning or end of a page counts as one word more. With --window, which stands for the length of
  the model in the harness, the last window of a page begins early enough to be as long as the
  others. A text whose first line is no title is refused.

BENCHMARKS

  DIR/NAME.jsonl has a JSON object per line; gold is the number of the right choice, from 0, and
  "split": "train" makes a line an example:

  piqa, arc_easy, arc_challenge, openbookqa, and sciq, which may have its passage as "support":
    {"question": "What falls as rain?", "choices": ["water", "sand"], "gold": 0}
  social_iqa:
    {"context": "Ann fell.", "question": "How is she?", "choices": ["hurt", "glad"], "gold": 0}
  hellaswag:
    {"context": "Washing: He opens the tap and", "choices": ["water runs", "it barks"], "gold": 0}
  winogrande, where what follows the right context is likelier:
    {"contexts": ["The cup", "The box"], "continuation": "was full of tea.", "gold": 0}
  lambada_openai:
    {"context": "The cat sat on the", "target": "mat"}

  To be asked as the harness asks, a SciQ question without a passage has "support": "", which
  leaves an empty line, and texts of HellaSwag are prepared as the harness prepares them: the
  context is the activity, ": ", ctx_a, a space, and ctx_b with its first letter large and all
  others small; in contexts and choices " [title]" is changed to ". ", what else is in brackets is
  removed, and then every two spaces are made one.

ENVIRONMENT

  FALCON_CACHE    the folder where text is kept as tokens, to be made into tokens only once; by
                  default $XDG_CACHE_HOME/falcon or ~/.cache/falcon. It may be deleted any time.
  FALCON_MAX_EXPANSION
                  how many times its size a compressed file may have as text, if that is more than
                  64 MiB; by default 200.

EXAMPLES

  falcon eval runs/mine --text book.txt
  falcon eval runs/* --text test.txt --window 1024 --output results.json
  falcon eval runs/mine --text wiki.test.raw --detokenize wikitext --window 1024
  falcon eval runs/mine --tasks all --data eval/ --shots 0,1"#;

/// Why there are no results.
#[derive(Debug, Error)]
pub enum EvalError {
    /// Nothing to do.
    #[error("nothing to measure: give --text FILE, or --tasks all --data DIR")]
    Nothing,
    /// There is no such benchmark.
    #[error("unknown benchmark {name:?}; {hint}")]
    Task {
        /// The name.
        name: String,
        /// The nearest.
        hint: String,
    },
    /// There is no such model.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// The text cannot be read.
    #[error(transparent)]
    Text(#[from] CacheError),
    /// The benchmark cannot be.
    #[error(transparent)]
    Benchmark(#[from] BenchmarkError),
    /// The results cannot be kept or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file of something else.
    #[error("{}: not results of this command: {error}; give --output another name", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// What was to be printed could not be.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// Measures, and prints tables.
pub fn run(args: &EvalArgs) -> Result<Outcome, EvalError> {
    let benchmarks = benchmarks(args)?;
    if args.text.is_empty() && benchmarks.is_empty() {
        return Err(EvalError::Nothing);
    }
    use_threads(args.threads.map(Into::into))?;
    // All that can be wrong first: it should not be found after an hour.
    let shots: Vec<usize> = args.shots.iter().map(|shots| usize::from(*shots)).collect();
    let mut exam = Exam::new(exam_texts(&args.text, args.detokenize), args.window);
    let folder = args.data.as_deref().unwrap_or(Path::new("."));
    exam.ask(&benchmarks, folder, args.limit.unwrap_or(usize::MAX), &shots)?;
    exam.check = if args.verify { Check::Full } else { Check::Sampled };
    exam.check()?;
    if let Some(path) = &args.output {
        let questions = benchmarks.iter().map(|benchmark| folder.join(format!("{}.jsonl", benchmark.name)));
        let inputs: Vec<PathBuf> = args.text.iter().cloned().chain(questions).collect();
        output::check(path, Kind::Json, &inputs).map_err(|error| EvalError::Io { path: path.clone(), error })?;
    }
    let mut known = args.output.as_deref().map_or(Ok(Vec::new()), read)?;
    for path in &args.models {
        Trained::check(path)?;
    }
    // From here on there is something to keep; before, Ctrl-C simply ends the program.
    stop_on_interrupt(STOPPING);
    let (mut shown, mut outcome) = (Vec::new(), Outcome::Finished);
    for path in &args.models {
        let trained = Trained::open(path, args.tokenizer.as_deref(), &Device::flex())?;
        let name = path.display().to_string();
        let old = known.iter().position(|result| result.model == name).map(|index| known.remove(index));
        let same = old.filter(|result| result.weights == trained.weights);
        let mut result = same.unwrap_or_else(|| ModelResult::new(name.clone(), &trained));
        let mut keep = |result: &ModelResult| match &args.output {
            Some(path) => keep(path, &known, result),
            None => Ok(()),
        };
        let answers = exam.take(&trained, &mut result, &mut keep, &mut measuring(&name, STOPPING))?;
        known.push(result);
        shown.push(answers.asked);
        if !answers.complete {
            outcome = Outcome::Interrupted;
            break;
        }
    }
    let text = match args.json {
        true => serde_json::to_string(&shown).map_err(io::Error::from)? + "\n",
        false => aligned(&tables(&shown, &benchmarks, args)),
    };
    if outcome == Outcome::Interrupted {
        let done: usize = shown.iter().map(|result| result.texts.len() + result.benchmarks.len()).sum();
        let all = args.models.len() * (args.text.len() + benchmarks.len() * args.shots.len());
        let _ = match done {
            0 => writeln!(io::stderr(), "stopped before anything was measured"),
            _ => writeln!(io::stderr(), "stopped after {done} of {all} measurements"),
        };
        // A table of nothing would look like a result.
        if done == 0 && !args.json {
            return Ok(outcome);
        }
    }
    printed(io::stdout().write_all(text.as_bytes()))?;
    Ok(outcome)
}

fn benchmarks(args: &EvalArgs) -> Result<Vec<&'static Benchmark>, EvalError> {
    let (all, named): (Vec<&String>, Vec<&String>) = args.tasks.iter().partition(|name| *name == ALL);
    let find = |name: &String| {
        Benchmark::named(name)
            .ok_or_else(|| EvalError::Task { name: name.clone(), hint: nearest(name, benchmark_names()) })
    };
    let named = named.into_iter().map(find).collect::<Result<_, _>>()?;
    Ok(if all.is_empty() { named } else { BENCHMARKS.iter().collect() })
}

/// The name of all benchmarks together.
const ALL: &str = "all";

fn benchmark_names() -> impl Iterator<Item = &'static str> {
    BENCHMARKS.iter().map(|benchmark| benchmark.name)
}

fn read(path: &Path) -> Result<Vec<ModelResult>, EvalError> {
    match fs::read(path) {
        Ok(json) => serde_json::from_slice(&json).map_err(|error| EvalError::Foreign { path: path.into(), error }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(EvalError::Io { path: path.into(), error }),
    }
}

/// Writes what is known of all models.
fn keep(path: &Path, others: &[ModelResult], result: &ModelResult) -> Result<(), EvalError> {
    let all: Vec<&ModelResult> = others.iter().chain([result]).collect();
    let json = serde_json::to_vec_pretty(&all).expect("results are plain data");
    write_file(path, &json).map_err(|error| EvalError::Io { path: path.into(), error })
}

/// What is done when it is asked to stop.
const STOPPING: &str = "stopping; what is measured is kept with --output";

/// Perplexities, then benchmarks by examples, in Markdown.
fn tables(results: &[ModelResult], benchmarks: &[&Benchmark], args: &EvalArgs) -> String {
    let mut out = String::new();
    if results.iter().any(|result| !result.texts.is_empty()) {
        let titles = ["model", "text", "read", "tokens", "per token", "per byte", "per word", "bits per byte"];
        table_head(&mut out, &titles.map(String::from));
        for result in results {
            for TextResult { text, detokenizer, window, score, .. } in &result.texts {
                let whole = if detokenizer.is_some() { "pages" } else { "whole" };
                let read = match (detokenizer, window) {
                    (_, None) => whole.into(),
                    (None, Some(window)) => format!("by {window}"),
                    (Some(_), Some(window)) => format!("pages by {window}"),
                };
                let numbers = [score.token_perplexity(), score.byte_perplexity(), score.word_perplexity()];
                let mut cells = vec![result.model.clone(), text.clone(), read, score.tokens.to_string()];
                cells.extend(numbers.map(|number| format!("{number:.3}")));
                cells.push(format!("{:.4}", score.bits_per_byte()));
                table_line(&mut out, &cells);
            }
        }
    }
    if results.iter().all(|result| result.benchmarks.is_empty()) {
        return out;
    }
    for shots in &args.shots {
        if !out.is_empty() {
            out.push('\n');
        }
        let mut titles = vec![format!("{shots}-shot")];
        for benchmark in benchmarks {
            let mark = if benchmark.normalised { "*" } else { "" };
            if benchmark.name == "lambada_openai" {
                titles.push("LAMBADA ppl".into());
            }
            titles.push(format!("{}{mark}", benchmark.title));
        }
        titles.push("average".into());
        table_head(&mut out, &titles);
        for result in results {
            let mut cells = vec![result.model.clone()];
            let mut choices = Vec::new();
            for benchmark in benchmarks {
                let found = result
                    .benchmarks
                    .iter()
                    .find(|old| old.name == benchmark.name && old.shots == usize::from(*shots));
                let Some(found) = found else {
                    // Not asked any more after an interrupt.
                    cells.extend(vec!["–".into(); if benchmark.name == "lambada_openai" { 2 } else { 1 }]);
                    continue;
                };
                if let Some(Estimate { mean, stderr }) = found.perplexity {
                    cells.push(format!("{mean:.2} ± {stderr:.2}"));
                } else {
                    choices.push(found.shown().mean);
                }
                let Estimate { mean, stderr } = found.shown();
                cells.push(format!("{:.2} ± {:.2}", 100.0 * mean, 100.0 * stderr));
            }
            let average = 100.0 * choices.iter().sum::<f64>() / choices.len().max(1) as f64;
            cells.push(if choices.is_empty() { "–".into() } else { format!("{average:.2}") });
            table_line(&mut out, &cells);
        }
    }
    out + "\nAccuracy in percent ± standard error; * acc_norm, the others acc. The average is that of the questions with choices.\n"
}
