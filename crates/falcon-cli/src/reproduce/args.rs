//! The command line of `falcon reproduce`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use falcon_lab::reproduce::{Ablation, Experiment, ExperimentOptions, ExperimentScale};

use crate::texts::DetokenizeArg;
use crate::threads::all_cores;

/// Arguments of `falcon reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// The experiment.
    #[command(subcommand)]
    pub command: ReproduceCommand,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum ReproduceCommand {
    /// Train models on sums of few digits, and test them on longer ones: the paper's test of length generalisation.
    Addition(AdditionArgs),
    /// Train language models on a text, and evaluate their perplexity and the paper's benchmarks.
    Lm(LanguageArgs),
}

/// Arguments of all experiments.
#[derive(Debug, Args)]
pub struct RowsArgs {
    /// The size of the experiment; --help lists what each scale trains.
    #[arg(long, value_enum, default_value = "quick")]
    pub scale: ScaleArg,

    /// The rows of the table, separated by commas; by default those of the scale. A row is a model preset, or a preset
    /// with some keys of its configuration changed, as in falcon-1a.3+model.align=same.
    #[arg(short, long, value_name = "ROWS")]
    pub models: Vec<String>,

    /// The number of seeds of each row; by default that of the scale. Each seed is a training run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,

    /// The number of training steps; by default that of the scale.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,

    /// Change a key of the configuration of all rows; may be given several times. `falcon train --help` lists the keys.
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// The folder for the runs and the results; by default runs/EXPERIMENT-SCALE. Runs that are finished there are not
    /// repeated.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Take finished rows from a record made elsewhere: a results.json, or the folder that holds one; may be given
    /// several times. A row is taken if its name, seed, configuration, data and evaluation are the same; so is a trial
    /// of a search. The record in the output folder is always used.
    #[arg(long, value_name = "DIR")]
    pub continue_from: Vec<PathBuf>,

    /// The number of threads; by default one for each core. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// The number of runs at the same time, which share the threads. By default one for each thread, or a single one
    /// if a model has more than 10 million parameters.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,

    /// Start even if the runs at the same time are estimated to need more memory than is available.
    #[arg(long)]
    pub no_memory_check: bool,

    /// Make several rows of each model that differ in one respect. timing: the four combinations of alignment (next or
    /// same) and reading (after or before the write), for every model but the Transformer. A search is done once for
    /// each model, and its four rows share the result.
    #[arg(long, value_enum)]
    pub ablation: Option<AblationArg>,

    /// Train nothing: make the tables and pictures again from the results.json in this folder, and print the tables.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scale", "models", "seeds", "steps", "set", "output", "continue_from", "threads", "jobs", "no_memory_check", "ablation"])]
    pub from: Option<PathBuf>,

    /// With --from: also put the tables into this Markdown file, between the lines `<!-- EXPERIMENT SCALE -->` and
    /// `<!-- end -->`.
    #[arg(long, value_name = "FILE", requires = "from")]
    pub into: Option<PathBuf>,

    /// Print the results as a JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

impl RowsArgs {
    /// The options of an experiment with these scales. `own_words` are the options that only this experiment has, as
    /// they are written in the recorded command.
    pub(super) fn options<E: Experiment>(
        &self,
        scales: &'static [ExperimentScale],
        own_words: Vec<String>,
    ) -> ExperimentOptions {
        let name = self.scale.name();
        let scale = scales.iter().find(|scale| scale.name == name).expect("every experiment has all scales");
        let timing = self.ablation.map_or("", |AblationArg::Timing| "-timing");
        let folder = || Path::new("runs").join(format!("{}-{name}{timing}", E::NAME));
        ExperimentOptions {
            scale,
            models: self.models.clone(),
            seeds: self.seeds,
            steps: self.steps,
            set: self.set.clone(),
            ablation: self.ablation.map(|AblationArg::Timing| Ablation::Timing),
            output: self.output.clone().unwrap_or_else(folder),
            continue_from: self.continue_from.clone(),
            threads: self.threads.map_or_else(all_cores, Into::into),
            jobs: self.jobs.map(Into::into),
            check_memory: !self.no_memory_check,
            command: self.command(E::NAME, own_words),
        }
    }

    /// The command as it is recorded: without the output folder and without options that do not affect results.
    fn command(&self, experiment: &str, own_words: Vec<String>) -> String {
        let mut words = vec![format!("falcon reproduce {experiment}")];
        if self.scale != ScaleArg::Quick {
            words.push(format!("--scale {}", self.scale.name()));
        }
        if !self.models.is_empty() {
            words.push(format!("--models {}", quoted(&self.models.join(","))));
        }
        words.extend(self.seeds.map(|seeds| format!("--seeds {seeds}")));
        words.extend(self.steps.map(|steps| format!("--steps {steps}")));
        words.extend(self.set.iter().map(|set| format!("--set {}", quoted(set))));
        words.extend(self.ablation.map(|AblationArg::Timing| "--ablation timing".to_string()));
        words.extend(own_words);
        words.join(" ")
    }
}

/// Quotes a word for a shell, if necessary.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "=.,_-+/:".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Arguments of `falcon reproduce addition`.
#[derive(Debug, Args)]
#[command(after_long_help = ADDITION)]
pub struct AdditionArgs {
    /// The arguments of all experiments.
    #[command(flatten)]
    pub rows: RowsArgs,
}

/// Arguments of `falcon reproduce lm`.
#[derive(Debug, Args)]
#[command(after_long_help = LANGUAGE)]
pub struct LanguageArgs {
    /// The arguments of all experiments.
    #[command(flatten)]
    pub rows: RowsArgs,

    /// The training text: a file or a folder, as for `falcon train --task text`.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["from", "estimate"], conflicts_with = "from")]
    pub train: Option<PathBuf>,

    /// The validation text, on which models are evaluated during and after training.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["from", "estimate"], conflicts_with = "from")]
    pub valid: Option<PathBuf>,

    /// The tokenizer: bytes, a tokenizer.json, or a folder with vocab.json and merges.txt. By default one with 4096
    /// tokens is trained on the training text, on 16 MiB of it at most.
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    pub tokenizer: Option<String>,

    /// Another text whose perplexity is evaluated; may be given several times.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "from")]
    pub text: Vec<PathBuf>,

    /// Undo the tokenization of the texts of --text before they are read, and count words and bytes of the original;
    /// `falcon eval --help` has details. The validation text is read unchanged.
    #[arg(long, value_enum, value_name = "KIND", requires = "text", conflicts_with = "from")]
    pub detokenize: Option<DetokenizeArg>,

    /// The folder with the benchmarks, a file NAME.jsonl for each; without it, no benchmarks are evaluated.
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    pub data: Option<PathBuf>,

    /// The number of examples before each question, up to 8, chosen as by `falcon eval`. With a list such as 0,1 all
    /// questions are asked for each number.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,1", requires = "data", value_parser = clap::value_parser!(u8).range(0..=8))]
    pub shots: Vec<u8>,

    /// The largest number of questions of each benchmark, spread over its file; by default that of the scale.
    #[arg(long, value_name = "N", requires = "data")]
    pub limit: Option<usize>,

    /// Search for the learning rate and the initial scale of the embedding of each model first, even if the scale does
    /// not, with runs of so many steps: by default those of the scale, or 250, and never more than a full run has.
    /// Values that are set by --set or by a row are not searched for.
    #[arg(long, value_name = "STEPS", require_equals = true, conflicts_with = "from",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub search: Option<Option<u64>>,

    /// Do not search, even if the scale does.
    #[arg(long, conflicts_with_all = ["from", "search"])]
    pub no_search: bool,

    /// Train nothing: time a training step of each row, and print how long training would take on this machine, at
    /// best. Needs --tokenizer, but no texts.
    #[arg(long, conflicts_with = "from", requires = "tokenizer")]
    pub estimate: bool,
}

/// The size of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScaleArg {
    /// A few models, one seed: minutes.
    Quick,
    /// All models, three seeds: hours on two cores.
    Small,
    /// The paper's widths (addition) or configuration (lm): hours or years on two cores.
    Paper,
}

impl ScaleArg {
    fn name(self) -> String {
        self.to_possible_value().expect("no scale is skipped").get_name().into()
    }
}

/// Rows that differ in one respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AblationArg {
    /// Whether a value is written to the previous key or to its own, and whether a token reads after its write or
    /// before it.
    Timing,
}

const ADDITION: &str = "\
SCALES

  quick   4 models, trained on sums of 1 to 4 digits, tested up to 6
  small   13 models, 1 to 6 digits, tested up to 12
  paper   9 models, 1 to 32 digits, tested up to 64: hours per model

OUTPUT

  table.md       the table, the command and the configuration
  curves.svg     right digits and right sums by width
  digits.svg     accuracy by width and digit: shows where a model fails
  results.json   all numbers: by row, seed, width and digit
  report.html    loss, accuracy and gates during training
  ROW-sSEED/     a run, as `falcon train` writes it

  All files but report.html are written after every run. Until all runs are done, the table says
  how many are.

EXAMPLES

  falcon reproduce addition
  falcon reproduce addition --models falcon-1a.3,deltanet --seeds 3
  falcon reproduce addition --models retnet,retnet+model.conv_size=4
  falcon reproduce addition --scale small --output runs/mine
  falcon reproduce addition --ablation timing --models falcon-1a.3
  falcon reproduce addition --set task.operands=independent --set task.leading_zeros=false
  falcon reproduce addition --from results/addition/small --into README.md
  falcon reproduce addition --scale paper --continue-from results/addition/authors

  After Ctrl-C or a crash, the same command resumes. A copy of results.json is enough to resume on
  another machine. Rows are listed in the order asked for, wherever they were trained.";

const LANGUAGE: &str = "\
SCALES

  quick   4 models of 0.9M parameters, 0.4M tokens, 100 questions of each benchmark
  small   12 models of 1.3M parameters, 4M tokens, 500 questions of each benchmark
  paper   10 models of 130M parameters, 49.2 billion tokens, all questions; needs the tokenizer of
          GPT-2 and a large machine: --estimate prints how long this one would take

SEARCH

  At the scale small, the learning rate and the initial scale of the embedding of each model are
  searched for first: learning rates of 2e-3, 4e-3 and 8e-3 with scales of 0.005 and 0.02, one run
  of 250 steps with seed 1000 for each of the six, the same for all models. The pair with the lowest
  validation loss is used for all seeds; runs that diverge are never chosen. table.md lists the
  losses, and marks choices at the edge of the grid. At other scales the learning rate is fixed,
  unless --search is given.

OUTPUT

  table.md        perplexities, accuracies, the command and the configuration
  curves.svg      validation perplexity during training
  results.json    all numbers: by row and seed
  report.html     loss, perplexity and gates during training
  tokenizer.json  the tokenizer, if it was trained here
  ROW-sSEED/      a run, as `falcon train` writes it, for `falcon eval` and `falcon generate`
  search/         the runs of the search

  All files but report.html are written after every run. Until all runs are done, the table says
  how many are.

ENVIRONMENT

  FALCON_CACHE    the folder for tokenized text, so that each text is tokenized only once; by
                  default $XDG_CACHE_HOME/falcon or ~/.cache/falcon. It can be deleted any time.

EXAMPLES

  falcon reproduce lm --train books.txt.xz --valid other.txt
  falcon reproduce lm --scale small --train books/ --valid held-out.txt --data eval/
  falcon reproduce lm --train books/ --valid held-out.txt --text wiki.test.raw --detokenize wikitext
  falcon reproduce lm --train books.txt.xz --valid other.txt --search=100
  falcon reproduce lm --train books.txt.xz --valid other.txt --ablation timing -m falcon-1a.3
  falcon reproduce lm --scale paper --tokenizer gpt2/ --estimate
  falcon reproduce lm --from results/lm/small --into README.md
  falcon reproduce lm --train books/ --valid held-out.txt --continue-from other-machine/

  `falcon eval --help` describes the lines of eval/NAME.jsonl. After Ctrl-C or a crash, the same
  command resumes. A copy of results.json is enough to resume on another machine. Rows are listed in
  the order asked for, wherever they were trained.";

#[cfg(test)]
mod tests {
    use clap::Parser;
    use falcon_lab::reproduce::{SEARCH_SEED, TableRow, addition, language};
    use falcon_lm::tasks::TaskConfig;

    use super::*;
    use crate::args::{Cli, Command};

    /// The help describes the scales as they are.
    #[test]
    fn scales_are_as_the_help_says() {
        let line = |help: &str, scale: &ExperimentScale| {
            let line = help.lines().find(|line| line.trim_start().starts_with(scale.name)).unwrap().to_string();
            assert!(line.contains(&format!("{} models", scale.models.len())), "{line}");
            line
        };
        let count = ScaleArg::value_variants().len();
        assert_eq!([addition::SCALES.len(), language::SCALES.len()], [count; 2], "every scale can be chosen");
        for wanted in ScaleArg::value_variants() {
            let find = |scales: &'static [ExperimentScale]| {
                scales.iter().find(|scale| scale.name == wanted.name()).unwrap()
            };
            let scale = find(addition::SCALES);
            let config = addition::config(scale, &TableRow::parse(scale.models[0]), 0, &[]).unwrap();
            let TaskConfig::Addition(task) = config.task else { panic!("{:?}", config.task) };
            let text = line(ADDITION, scale);
            assert!(
                text.contains(&format!("1 to {} digits, tested up to {}", task.max_width, task.beyond)),
                "{text}"
            );
            line(LANGUAGE, find(language::SCALES));
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("train.lr=3e-3"), "train.lr=3e-3");
        assert_eq!(quoted("task.train=a b's"), r"'task.train=a b'\''s'");
    }

    /// No reported run has the seed by which hyperparameters are chosen.
    #[test]
    fn no_run_has_the_seed_of_the_search() {
        let seeds = |count: &str| {
            let words = ["falcon", "reproduce", "lm", "--train", "a.txt", "--valid", "b.txt", "--seeds", count];
            let Command::Reproduce(args) = Cli::try_parse_from(words).ok()?.command else { panic!() };
            let ReproduceCommand::Lm(args) = args.command else { panic!() };
            args.rows.seeds
        };
        assert_eq!(seeds("1001"), None);
        let most = seeds("1000").unwrap();
        assert!((0..most).all(|seed| seed != SEARCH_SEED));
    }
}
