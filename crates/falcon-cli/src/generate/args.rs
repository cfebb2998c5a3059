//! The command line of `falcon generate`.

use std::path::PathBuf;

use clap::Args;
use falcon_nn::WeightFormat;

use super::prompts::unescape;

/// Arguments of `falcon generate`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct GenerateArgs {
    /// The model: a run of `falcon train`, whose best checkpoint is taken, or a folder with config.json and
    /// model.safetensors.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The text to continue. Without it, the prompt is read from stdin if that is piped, and is empty otherwise.
    #[arg(value_name = "PROMPT", conflicts_with_all = ["file", "prompts"])]
    pub prompt: Option<String>,

    /// Read the prompt from a file of any length, or from stdin if FILE is -. Files ending in .xz, .gz and .zst are
    /// decompressed.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompts")]
    pub file: Option<PathBuf>,

    /// Continue many prompts side by side: a file with one prompt per line, or - for stdin. With --state-in, each of
    /// them continues from that state.
    #[arg(long, value_name = "FILE", conflicts_with = "state_out")]
    pub prompts: Option<PathBuf>,

    /// Generate at most this many tokens; 0 only reads the prompt.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200)]
    pub max_tokens: usize,

    /// Sampling temperature. Lower values make likely tokens more likely; 0 always takes the most likely one.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temperature: f64,

    /// Sample from the K most likely tokens only; 0 is no limit.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,

    /// Sample from the most likely tokens whose probabilities together reach P; 1 is no limit.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub top_p: f64,

    /// Make tokens that have already occurred less likely: their positive logits are divided by R, negative ones
    /// multiplied. 1 is no penalty.
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repetition_penalty: f64,

    /// Random seed. The same seed gives the same text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Stop before this text. In it, \n is a newline, \t a tab and \\ a backslash. May be given several times.
    #[arg(long, value_name = "TEXT", value_parser = unescape)]
    pub stop: Vec<String>,

    /// Print the prompt before the generated text. With --json, both are always printed.
    #[arg(long)]
    pub echo: bool,

    /// Continue from a state that --state-out saved, without reading that text again.
    #[arg(long, value_name = "FILE")]
    pub state_in: Option<PathBuf>,

    /// Save the model's state at the end.
    #[arg(long, value_name = "FILE")]
    pub state_out: Option<PathBuf>,

    /// Use this tokenizer instead of the model's own: a tokenizer.json, or a folder that holds one.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,

    /// Hold the weights in this format: f32, bf16 (half of the memory) or int8 (a third). Generation is faster by about
    /// as much; the text differs slightly. By default they are held as the files have them: f32, or the format of
    /// `falcon convert`.
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<WeightFormat>,

    /// Number of threads; all cores by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Print speed and memory to stderr at the end.
    #[arg(long)]
    pub stats: bool,

    /// Print one JSON object at the end instead of the text as it comes.
    #[arg(long)]
    pub json: bool,
}

const HELP: &str = "\
EXAMPLES

  falcon generate runs/text-falcon-3a.3 \"Once upon a time\"
  echo 2+2= | falcon generate runs/mine --temperature 0 -n 5
  falcon generate runs/mine --prompts questions.txt --stop \"\\n\"

  Read a long text once and continue from it many times:

  falcon generate runs/mine --file book.txt -n 0 --state-out book.memory
  falcon generate runs/mine --state-in book.memory \"The hero is\"

SUMS

  A model trained on the default task of `falcon train`, addition, continues a sum. Digits are
  written with the lowest first, in both operands, which have the same number of digits, and in
  the result, which has one digit more. So 12 + 34 = 46 is written as 21+43=640:

  falcon train
  falcon generate runs/addition-falcon-3a.3 \"21+43=\" -n 3 --temperature 0

  -n is the number of digits to generate. A model that was trained with task.leading_zeros=false
  stops by itself after the last digit. With task.order=sum-reversed only the result is reversed.

CONTROL CHARACTERS

  A model may generate any character. On a terminal, control characters other than newlines and
  tabs are printed as \\x1b and the like; to a file or a pipe they are written unchanged.";
