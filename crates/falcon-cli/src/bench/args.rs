//! The command line of `falcon bench`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use falcon_nn::{PRESETS, SIZES};

use super::cases::{Preset, preset};
use crate::names::Names;
use crate::threads::all_cores;

/// Arguments of `falcon bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to time.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What to time.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time every rule, forward and backward, and decoding, beside this machine's own rates.
    Kernels(KernelsArgs),
    /// Time training steps of whole models, beside a Transformer of the same size in PyTorch.
    Train(TrainBenchArgs),
    /// Time generation after contexts of any length, and see what memory it takes.
    Generate(GenerateBenchArgs),
}

/// Arguments of `falcon bench generate`.
#[derive(Debug, Args)]
#[command(after_long_help = GENERATE)]
pub struct GenerateBenchArgs {
    /// Models, by preset. One whose state does not grow reads every context in full; a Transformer's cache is filled with random numbers.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "falcon-1a.3,falcon-1.3,transformer",
        value_parser = Names::of(PRESETS)
    )]
    pub models: Vec<String>,

    /// Their size.
    #[arg(long, value_name = "SIZE", default_value = "130m", value_parser = Names::of(SIZES))]
    pub size: String,

    /// Tokens before the first that is timed.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000", value_parser = size(1 << 30))]
    pub contexts: Vec<usize>,

    /// Tokens to generate at each.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = size(1 << 20))]
    pub tokens: usize,

    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = size(1024))]
    pub threads: Option<usize>,

    /// Draw tokens per second over the context, as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,

    /// Measure in this process, and print a line of JSON for every context.
    #[arg(long, hide = true)]
    pub measure: bool,

    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `falcon bench train`.
#[derive(Debug, Args)]
#[command(after_long_help = TRAIN)]
pub struct TrainBenchArgs {
    /// Models to time, by preset.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "transformer,falcon-1a.3,falcon-3a.3,falcon-1.3",
        value_parser = Names::of(PRESETS)
    )]
    pub models: Vec<String>,

    /// Sequences per step.
    #[arg(long, value_name = "N", default_value = "64", value_parser = size(65536))]
    pub batch: usize,

    /// Tokens per sequence.
    #[arg(long, alias = "time", value_name = "N", default_value = "100", value_parser = size(65536))]
    pub tokens: usize,

    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = size(1024))]
    threads: Option<usize>,

    /// Rounds; the median is reported. One more comes first, to warm up.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,

    /// A python that has PyTorch; bench/peers/.venv/bin/python if that is there, or else python3.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Time torch.compile, too.
    #[arg(long, conflicts_with = "no_peer")]
    pub compiled: bool,

    /// Without PyTorch.
    #[arg(long)]
    pub no_peer: bool,

    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl TrainBenchArgs {
    pub(super) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(all_cores)
    }

    pub(super) fn python(&self) -> PathBuf {
        let beside = PathBuf::from("bench/peers/.venv/bin/python");
        self.python.clone().unwrap_or_else(|| if beside.exists() { beside } else { "python3".into() })
    }
}

/// Arguments of `falcon bench kernels`.
#[derive(Debug, Args)]
#[command(after_long_help = KERNELS)]
pub struct KernelsArgs {
    /// Rules to time.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = preset, help = rules_help())]
    pub(super) rules: Vec<Preset>,

    /// Tokens per sequence; 1024,4096 if not given, with --scaling 4096,16384,65536.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size(1 << 24))]
    pub tokens: Vec<usize>,

    /// Widths of keys and values; 64,128 if not given, with --scaling 64.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size(1024))]
    pub dims: Vec<usize>,

    /// Heads.
    #[arg(long, value_name = "N", default_value = "8", value_parser = size(1024))]
    pub heads: usize,

    /// Sequences at once, of the kernel table.
    #[arg(long, value_name = "N", default_value = "1", value_parser = size(1024))]
    pub batch: usize,

    /// Threads; a row for each number. Decoding is timed on one.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = size(1024))]
    pub threads: Vec<usize>,

    /// Tokens per chunk of the chunked form.
    #[arg(long, value_name = "N", default_value = "64", value_parser = size(8192))]
    pub chunk: usize,

    /// Rounds; the median is reported. One more comes first, to warm up.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,

    /// Only the decode table.
    #[arg(long, conflicts_with_all = ["no_decode", "scaling"])]
    pub decode: bool,

    /// No decode table.
    #[arg(long)]
    pub no_decode: bool,

    /// Only a table of how time and peak memory grow with the length, each length in a process of its own.
    #[arg(long)]
    pub scaling: bool,

    /// Print a JSON array of rows instead of tables.
    #[arg(long)]
    pub json: bool,

    /// Answer timing requests, one line of JSON each, until stdin ends: how other programs interleave with this one.
    #[arg(long, hide = true)]
    pub serve: bool,
}

fn rules_help() -> String {
    format!(
        "Rules to time; all but {} if not given. The decode table has {}, and those given here",
        super::kernels::ON_REQUEST.join(" and "),
        super::decode::ALWAYS.join(" and "),
    )
}

/// A number from 1 to `most`.
fn size(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

const KERNELS: &str = "\
WHAT THE COLUMNS ARE

  fwd ms, f+b ms   medians of forward, and of forward and backward together; f32
  bwd/fwd          backward alone over forward
  GFLOP/s          useful ones: the products of the chunked form, triangular ones counted half
  %gemm            GFLOP/s over those of a plain matrix product in the same run, as many at
                   once as there are threads
  us/tok·head      forward microseconds for a token of one head
  GB/s             decode: bytes of memory read and written; beside it, scaling an array of
                   the same size in place

EXAMPLES

  falcon bench kernels
  falcon bench kernels --rules falcon-1,falcon-1a --tokens 4096 --dims 128 --threads 1,2
  falcon bench kernels --decode --json
  falcon bench kernels --scaling

  The figures are only as quiet as the machine: close what else is running, and raise --repeats
  if two runs differ.";

const TRAIN: &str = "\
WHAT THE COLUMNS ARE

  ms/step      median of a step: forward, backward, clipping and AdamW, in f32
  tokens/s     of all sequences of the batch
  x PyTorch    speed over that of the first row, a Transformer of the same shape in PyTorch
  GFLOP/s      useful ones: the products with parameters, 6 for each of their numbers per token
  %gemm        GFLOP/s over those of a plain matrix product in the same run

  All rows take turns, round by round. It takes a minute or so, and PyTorch as long to start as
  it does; what --compiled compiles, some minutes more.

EXAMPLES

  falcon bench train
  falcon bench train --no-peer --models falcon-1a.3,deltanet --batch 16 --tokens 512
  falcon bench train --python ~/torch/bin/python --compiled --json";

const GENERATE: &str = "\
WHAT THE COLUMNS ARE

  tokens/s, ms/token   median over the tokens that are generated one by one after the context
  state MiB            what the model keeps of the context
  resident MiB         all memory of the process, the weights too
  context is           read: token by token, as it would be; random: a cache filled with random
                       numbers, for reading takes a Transformer time quadratic in the length

  Models follow each other, each in a process of its own. The defaults take some minutes; a
  model of 130m reads a million tokens in an hour or so on two cores.

EXAMPLES

  falcon bench generate
  falcon bench generate --size tiny --contexts 100,10000 --models falcon-3a.3,transformer
  falcon bench generate --contexts 1000,10000,100000 --picture speed.svg --json";
