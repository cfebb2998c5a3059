//! The command line of `falcon train`.

use std::path::PathBuf;

use clap::Args;
use falcon_lm::tasks::TASKS;
use falcon_nn::{PRESETS, SIZES};

use crate::names::Names;

/// Arguments of `falcon train`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct TrainArgs {
    /// A TOML file with the configuration; --help shows a complete one. Without it, the defaults train falcon-3a.3 on
    /// addition.
    #[arg(value_name = "CONFIG")]
    pub config: Option<PathBuf>,

    /// The model. NAME@OTHER is NAME with a memory as large as OTHER's, for example mamba2@falcon-1a.3.
    #[arg(short, long, value_name = "PRESET", value_parser = Names::new(PRESETS.iter().copied()))]
    pub model: Option<String>,

    /// The size of the model.
    #[arg(long, value_name = "SIZE", value_parser = Names::new(SIZES.iter().copied()))]
    pub size: Option<String>,

    /// The task that the model is trained on.
    #[arg(short, long, value_name = "TASK", value_parser = Names::new(TASKS.iter().copied()))]
    pub task: Option<String>,

    /// Number of training steps; the same as --set train.steps=N.
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,

    /// Number of sequences per step; the same as --set train.batch=N.
    #[arg(long, value_name = "N")]
    pub batch: Option<u64>,

    /// Peak learning rate; the same as --set train.lr=RATE.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub lr: Option<f64>,

    /// Set any key of the configuration, such as train.lr=3e-4. May be given several times; the last value of a key
    /// counts.
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// The folder of the run; runs/TASK-PRESET by default. If it already holds a run, that run is resumed from its
    /// last checkpoint, with its own configuration. Keys of its train section that are given here, except seed and
    /// batch, replace its values from then on: --steps 800 extends a run of 400 steps.
    #[arg(short, long, value_name = "DIR")]
    pub run: Option<PathBuf>,

    /// Start from the weights of this model instead of random ones: a run of `falcon train`, or a folder with
    /// config.json and model.safetensors. The new run has the same architecture. With another task or tokenizer,
    /// tokens that both vocabularies have keep their embeddings, and new tokens start from random ones.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["model", "size"])]
    pub init_from: Option<PathBuf>,

    /// Start even if the run is estimated to need more memory than is available.
    #[arg(long)]
    pub no_memory_check: bool,

    /// Print the whole configuration before training begins.
    #[arg(short, long)]
    pub verbose: bool,

    /// Number of threads; all cores by default. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Read the whole text and its cached tokens to make sure that they have not changed. By default only sizes,
    /// modification times and some blocks are compared.
    #[arg(long)]
    pub verify: bool,

    /// Print the resolved configuration and the memory it needs, without training. With --json, as JSON.
    #[arg(long)]
    pub dry_run: bool,

    /// Print the summary at the end as one JSON object.
    #[arg(long)]
    pub json: bool,
}

const HELP: &str = r#"A COMPLETE CONFIGURATION FILE

  [model]
  preset = "falcon-1a.3"      # as --model
  size = "tiny"               # as --size
  hidden_size = 128           # any key of the model's config.json may follow
  num_hidden_layers = 4

  [task]
  name = "addition"           # or "text": below
  max_width = 8               # train on numbers of 1 to 8 digits,
  beyond = 12                 # evaluate up to 12
  order = "all-reversed"      # lowest digit first; or "sum-reversed": only in the sum
  operands = "equal"          # operands of equal length; or "independent" lengths
  leading_zeros = true        # or false: no leading zeros, and the model has to end the sum itself
  widths = "uniform"          # or "adaptive": wider numbers as accuracy allows
  mixture = "sparse"          # how operands are drawn: "sparse" or "uniform"
  sparse = 0.8                # fraction of sparse samples at the start,
  sparse_until = 1.0          # which falls to 0 over this fraction of the run
  eval_samples = 64           # samples of each width in an evaluation

  [train]
  seed = 0
  steps = 1000
  batch = 128                 # sequences per step,
  accumulate = 1              # processed in this many parts
  lr = 5e-4                   # peak learning rate for a hidden size of 1024; a hidden size of 128
                              # has 8 times that for its matrices (mup_base_width)
  warmup = 100                # steps of linear warm-up, followed by a cosine
  final_fraction = 0.05       # down to this fraction of the peak
  weight_decay = 0.1          # for matrices only
  beta1 = 0.9
  beta2 = 0.95
  eps = 1e-8
  clip = 1.0                  # largest norm of the gradient
  spike = 4.0                 # stop if the loss rises to this multiple of its recent value and is
                              # worse than guessing; 0 never stops
  eval_every = 100            # steps between evaluations
  save_every = 100            # steps between checkpoints; also at every best evaluation and the end
  keep = 2                    # checkpoints to keep besides the best
  init_from = "none"          # the model whose weights the run started from, as --init-from

  For text, the defaults are batch 32, steps 2000 and the paper's optimizer settings (lr 1e-3,
  beta1 0.9, beta2 0.95, weight_decay 0.1, clip 1), and the task has these keys:

  [task]
  name = "text"
  train = "books/"            # a file, or a folder with .txt, .md and .jsonl files;
                              # ["a.txt", "b/"] are several; [{ path = "a.txt", weight = 2 }, "b/"]
                              # draws a.txt twice as often as its size suggests; "-" is stdin,
                              # which is kept in FALCON_CACHE so that the run can be resumed
  valid = "other.txt.xz"      # text for evaluations; by default the last twentieth of train;
                              # files ending in .xz, .gz and .zst are decompressed
  tokenizer = "bytes"         # or a tokenizer.json, or a folder with vocab.json and merges.txt
  length = 256                # tokens per sequence
  eval_sequences = 64         # the most sequences in an evaluation

THE FOLDER OF A RUN

  config.toml                 the resolved configuration
  tokenizer.json              the tokenizer, if the task is text
  metrics.jsonl               one record per line for every step and every evaluation
  checkpoints/step-000100/    config.json and model.safetensors, the state of the optimizer, the
                              progress of the run, and checksums of them all in SHA256SUMS

ENVIRONMENT

  FALCON_CACHE    The folder where encoded text is kept, so that text is encoded only once. The
                  default is $XDG_CACHE_HOME/falcon or ~/.cache/falcon. It may be deleted any time.
  FALCON_MAX_EXPANSION
                  How many times its own size a compressed file may expand to, if that is more
                  than 64 MiB. The default is 200.

EXAMPLES

  falcon train
  falcon train --model transformer --set train.lr=1e-3 --set task.max_width=4
  falcon train --task text --set task.train=book.txt --set train.steps=5000
  falcon train mine.toml --run runs/mine
  falcon train --run runs/mine                  resume after Ctrl-C, a crash or a kill
  falcon train --run runs/mine --steps 4000     train longer, on the schedule of 4000 steps
  falcon train --init-from runs/mine --task text --set task.train=letters.txt --lr 1e-4
  falcon report runs/*                          compare runs in one HTML page"#;
