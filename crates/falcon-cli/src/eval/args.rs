//! The command line of `falcon eval`.

use std::path::PathBuf;

use clap::Args;
use falcon_lm::evaluate::BENCHMARKS;
use falcon_nn::WeightFormat;

use crate::names::Names;
use crate::texts::DetokenizeArg;

/// Arguments of `falcon eval`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct EvalArgs {
    /// Models to evaluate, one row of the table each: runs of `falcon train`, whose best checkpoint is taken, or
    /// folders with config.json and model.safetensors.
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<PathBuf>,

    /// Measure the perplexity of this text, a file or a folder. May be given several times.
    #[arg(short, long, value_name = "TEXT")]
    pub text: Vec<PathBuf>,

    /// Read text in windows of this many tokens, each from a fresh state. Without it, every document is read from
    /// beginning to end, with the state carried all the way.
    #[arg(short, long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub window: Option<u32>,

    /// Undo the tokenization of a corpus that is distributed as words separated by spaces. Words and bytes are
    /// counted as in the original file.
    #[arg(long, value_enum, value_name = "KIND", requires = "text")]
    pub detokenize: Option<DetokenizeArg>,

    /// Benchmarks to run, separated by commas, or all.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        requires = "data",
        value_parser = Names::new(benchmark_names().chain([ALL]))
    )]
    pub tasks: Vec<String>,

    /// The folder that holds the benchmarks, one file NAME.jsonl each.
    #[arg(long, value_name = "DIR", requires = "tasks")]
    pub data: Option<PathBuf>,

    /// Number of examples before each question, at most 8. A list such as 0,1 runs the benchmarks once for each number.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0",
        requires = "tasks",
        value_parser = clap::value_parser!(u8).range(0..=8)
    )]
    pub shots: Vec<u8>,

    /// Ask at most this many questions of each benchmark, evenly spaced over its file (lm-evaluation-harness takes
    /// the first).
    #[arg(long, value_name = "N", requires = "tasks")]
    pub limit: Option<usize>,

    /// Write results to this JSON file as they come. Results that are in it already are not measured again.
    #[arg(short, long, value_name = "JSON")]
    pub output: Option<PathBuf>,

    /// Read the whole text and its cached tokens to make sure that they have not changed. By default only sizes,
    /// modification times and some blocks are compared.
    #[arg(long, requires = "text")]
    pub verify: bool,

    /// Use this tokenizer instead of the models' own.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,

    /// Evaluate the models with their weights in this format, f32, bf16 or int8, as `falcon generate --weights` would
    /// hold them. By default as the files have them.
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<WeightFormat>,

    /// Number of threads; all cores by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Print the results as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

const HELP: &str = r#"HOW BENCHMARKS ARE SCORED

  As in lm-evaluation-harness: a choice is scored by the sum of its tokens' log-likelihoods after
  the question (acc), or by that sum divided by its number of characters (acc_norm, which tables
  show for benchmarks marked *). The standard error of a perplexity is that of the mean
  log-likelihood, times the perplexity.

  Examples (--shots) are drawn anew for every question, as version 0.4.13 of the harness draws
  them with its default seed, 1234, in one process: from the lines with "split": "train", which
  are never asked, or, if a file has none, from all questions except the one that is asked. (For
  LAMBADA, which has no training split, the harness draws from all questions, and so does Falcon.)
  Files with the same lines in the same order have the same examples.

  There are two differences from the harness. --limit asks questions that are evenly spaced over
  the file, where the harness asks the first ones; the examples then differ, too. And a long
  context is read in full, where the harness cuts it to the context length of the model.

HOW TEXT IS READ

  A file is one document, and so is each line of a .jsonl file. Words are separated by white
  space.

  --detokenize wikitext reads the raw WikiText corpus as the harness reads it for its task
  wikitext. Every page, from one title " = Title = " to the next, is read by itself, with " @-@ "
  changed to "-", " , " to ", " and so on. Words and bytes are counted before these changes, and a
  space at the beginning or end of a page counts as one more word. With --window, which stands for
  the harness's model length, the last window of a page starts early enough to be as long as the
  others. A text whose first line is not a title is refused.

BENCHMARKS

  DIR/NAME.jsonl has one JSON object per line. "gold" is the index of the right choice, counted
  from 0, and "split": "train" marks a line that is used for examples only.

  piqa, arc_easy, arc_challenge, openbookqa, and sciq, which may have its passage as "support":
    {"question": "What falls as rain?", "choices": ["water", "sand"], "gold": 0}
  social_iqa:
    {"context": "Ann fell.", "question": "How is she?", "choices": ["hurt", "glad"], "gold": 0}
  hellaswag:
    {"context": "Washing: He opens the tap and", "choices": ["water runs", "it barks"], "gold": 0}
  winogrande, where the continuation should be more likely after the right context:
    {"contexts": ["The cup", "The box"], "continuation": "was full of tea.", "gold": 0}
  lambada_openai:
    {"context": "The cat sat on the", "target": "mat"}

  For prompts that are identical to the harness's, a SciQ question without a passage has
  "support": "", which leaves an empty line, and HellaSwag is prepared as the harness does it: the
  context is the activity, ": ", ctx_a, a space, and ctx_b with its first letter in upper case and
  the others in lower case; in contexts and choices, " [title]" is changed to ". ", any other text
  in brackets is removed, and then every two spaces become one.

ENVIRONMENT

  FALCON_CACHE    The folder where encoded text is kept, so that text is encoded only once. The
                  default is $XDG_CACHE_HOME/falcon or ~/.cache/falcon. It may be deleted any time.
  FALCON_MAX_EXPANSION
                  How many times its own size a compressed file may expand to, if that is more
                  than 64 MiB. The default is 200.

EXAMPLES

  falcon eval runs/mine --text book.txt
  falcon eval runs/* --text test.txt --window 1024 --output results.json
  falcon eval runs/mine --text wiki.test.raw --detokenize wikitext --window 1024
  falcon eval runs/mine --tasks all --data eval/ --shots 0,1"#;

/// Selects all benchmarks.
pub(super) const ALL: &str = "all";

pub(super) fn benchmark_names() -> impl Iterator<Item = &'static str> {
    BENCHMARKS.iter().map(|benchmark| benchmark.name)
}
