//! The command line of `falcon train`.

use std::path::PathBuf;

use clap::Args;
use falcon_lm::tasks::TASKS;
use falcon_nn::{PRESETS, SIZES};

use crate::names::Names;

/// Arguments of `falcon train`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct TrainArgs {
    /// A TOML file; --help shows a complete one. Without it, defaults: falcon-3a.3 learns to add.
    #[arg(value_name = "CONFIG")]
    pub config: Option<PathBuf>,

    /// The model. NAME@OTHER is NAME with a memory as large as OTHER's: mamba2@falcon-1a.3.
    #[arg(short, long, value_name = "PRESET", value_parser = Names::of(PRESETS))]
    pub model: Option<String>,

    /// Its size.
    #[arg(long, value_name = "SIZE", value_parser = Names::of(SIZES))]
    pub size: Option<String>,

    /// What it learns.
    #[arg(short, long, value_name = "TASK", value_parser = Names::of(TASKS))]
    pub task: Option<String>,

    /// Steps of training; the same as --set train.steps=N.
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,

    /// Sequences per step; the same as --set train.batch=N.
    #[arg(long, value_name = "N")]
    pub batch: Option<u64>,

    /// Highest learning rate; the same as --set train.lr=RATE.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub lr: Option<f64>,

    /// Any key of the configuration, such as train.lr=3e-4; may be given many times. The last one wins.
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// The run's folder; runs/TASK-PRESET if not given. If it holds a run already, that run continues from its last
    /// checkpoint, with its own configuration. Keys of the section train that are given here, but for seed and batch, replace
    /// its values from there on: --steps 800 continues a run of 400 steps.
    #[arg(short, long, value_name = "DIR")]
    pub run: Option<PathBuf>,

    /// Start from the weights of this model instead of random ones: a run of `falcon train`, or a folder with
    /// config.json and model.safetensors. The new run has its architecture. With another task or tokenizer, tokens
    /// that both have keep their rows of the embedding, and new ones start from random values.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["model", "size"])]
    pub init_from: Option<PathBuf>,

    /// Begin even if the memory that the run is estimated to need is not there.
    #[arg(long)]
    pub no_memory_check: bool,

    /// Print the whole configuration before training begins.
    #[arg(short, long)]
    pub verbose: bool,

    /// Threads; all cores if not given. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Read all of the text and of the tokens kept of it, to be sure that they are what they were; otherwise their
    /// sizes, times and some blocks.
    #[arg(long)]
    pub verify: bool,

    /// Print the resolved configuration and the memory it would need, and stop; with --json, as JSON.
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON object at the end instead of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLE: &str = r#"A COMPLETE FILE

  [model]
  preset = "falcon-1a.3"      # as --model
  size = "tiny"               # as --size
  hidden_size = 128           # any key of the model's config.json may follow
  num_hidden_layers = 4

  [task]
  name = "addition"           # or "text": below
  max_width = 8               # learn sums of 1 to 8 digits,
  beyond = 12                 # measure up to 12
  order = "all-reversed"      # lowest digit first; or "sum-reversed": of the sum only
  operands = "equal"          # in length; or "independent": each with digits of its own
  leading_zeros = true        # or false: no zeros before a number, and the end of the sum is asked
  widths = "uniform"          # or "adaptive": grow as accuracy allows
  mixture = "sparse"          # or "uniform": how operands are drawn
  sparse = 0.8                # of the samples at first
  sparse_until = 1.0          # of the run, fading
  eval_samples = 64           # of each width

  [train]
  seed = 0
  steps = 1000
  batch = 128                 # sequences per step,
  accumulate = 1              # computed in so many parts
  lr = 5e-4                   # highest learning rate, for a model 1024 wide; one of 128 has 8 times
                              # that in its matrices (mup_base_width)
  warmup = 100                # steps; then a cosine
  final_fraction = 0.05       # down to this part of it
  weight_decay = 0.1          # of matrices
  beta1 = 0.9
  beta2 = 0.95
  eps = 1e-8
  clip = 1.0                  # norm of all gradients together
  spike = 4.0                 # stop when the loss is so many times what it was, and worse than
                              # guessing; 0 never stops
  eval_every = 100            # steps
  save_every = 100            # steps; also at every best measurement, and at the end
  keep = 2                    # checkpoints beside the best
  init_from = "none"          # the model whose weights the run started from, as --init-from

  For text, batch is 32 and steps 2000, the optimiser's defaults are the paper's (lr 1e-3, beta1
  0.9, beta2 0.95, weight_decay 0.1, clip 1), and

  [task]
  name = "text"
  train = "books/"            # learn from a file, or from a folder of .txt, .md and .jsonl files;
                              # ["a.txt", "b/"] are several, [{ path = "a.txt", weight = 2 }, "b/"]
                              # draws a.txt twice as often as its size says; "-" is standard input,
                              # which is kept in FALCON_CACHE for the run to go on from
  valid = "other.txt.xz"      # measured on this one; without it, on the last twentieth;
                              # .xz, .gz and .zst are read as they are
  tokenizer = "bytes"         # or a tokenizer.json, or a folder with vocab.json and merges.txt
  length = 256                # tokens per sequence
  eval_sequences = 64         # measured, at most

A RUN'S FOLDER

  config.toml                 the resolved configuration
  tokenizer.json              of text
  metrics.jsonl               a record per line: every step, every measurement
  checkpoints/step-000100/    config.json and model.safetensors, what the optimizer remembers,
                              where the run stands, and SHA256SUMS of it all

ENVIRONMENT

  FALCON_CACHE    the folder where text is kept as tokens, to be made into tokens only once; by
                  default $XDG_CACHE_HOME/falcon or ~/.cache/falcon. It may be deleted any time.
  FALCON_MAX_EXPANSION
                  how many times its size a compressed file may have as text, if that is more than
                  64 MiB; by default 200.

EXAMPLES

  falcon train
  falcon train --model transformer --set train.lr=1e-3 --set task.max_width=4
  falcon train --task text --set task.train=book.txt --set train.steps=5000
  falcon train mine.toml --run runs/mine
  falcon train --run runs/mine                  continue after Ctrl-C, a crash or a kill
  falcon train --run runs/mine --steps 4000     train on: the schedule becomes that of 4000 steps
  falcon train --init-from runs/mine --task text --set task.train=letters.txt --lr 1e-4
  falcon report runs/*                          compare runs in one HTML page"#;
