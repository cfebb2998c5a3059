//! The command line of `falcon bench`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::builder::RangedU64ValueParser;
use clap::{ArgGroup, Args, Subcommand};
use falcon_lab::bench::{
    ALWAYS_DECODED, BenchRule, GenerateOptions, KernelsOptions, ONLY_ON_REQUEST, PeerOptions, RatioOptions,
    ScalingOptions, TrainOptions, named_rule,
};
use falcon_nn::{PRESETS, SIZES, WeightFormat};

use crate::names::Names;
use crate::threads::all_cores;

/// Arguments of `falcon bench`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    group = ArgGroup::new("file").args(["check", "record"]).required(true),
    after_long_help = RATIOS
)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,

    /// What to compare or record.
    #[command(flatten)]
    pub ratios: RatioArgs,
}

/// Arguments of `falcon bench --check` and `--record`.
#[derive(Debug, Args)]
pub struct RatioArgs {
    /// Measure speeds relative to what this machine can do, and compare them with those recorded in FILE. The exit code
    /// is 1 if one fell.
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,

    /// Measure the same speeds, and record them in FILE for machines with the same vector instructions.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// How much a ratio may fall, in percent of the recorded one.
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 15,
        conflicts_with = "record",
        value_parser = clap::value_parser!(u8).range(1..=99)
    )]
    pub tolerance: u8,

    /// Succeed, with a note, if nothing was recorded for the vector instructions of this machine.
    #[arg(long, conflicts_with = "record")]
    pub skip_unknown: bool,

    /// Only rows with one of these texts in their names. Commas are part of a name: repeat the option instead.
    #[arg(long, value_name = "TEXT")]
    pub rows: Vec<String>,

    /// The number of rounds, of which the fastest counts. One more round comes first, to warm up.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,

    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl RatioArgs {
    /// What to measure, and the file that it is compared with or recorded in.
    pub(super) fn options(&self, file: &Path) -> RatioOptions {
        RatioOptions { file: file.into(), rows: self.rows.clone(), repeats: self.repeats }
    }
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time every rule, forward and backward, and decoding, in comparison with the speed of this machine.
    Kernels(KernelsArgs),
    /// Time training steps of whole models, in comparison with a Transformer of the same size in PyTorch.
    Train(TrainBenchArgs),
    /// Measure the speed and memory of generation after contexts of any length.
    Generate(GenerateBenchArgs),
}

/// Arguments of `falcon bench generate`.
#[derive(Debug, Args)]
#[command(after_long_help = GENERATE)]
pub struct GenerateBenchArgs {
    /// The presets of the models. A model whose state does not grow reads every context; the cache of a Transformer is
    /// filled with random numbers.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "falcon-1a.3,falcon-1.3,transformer",
        value_parser = Names::new(PRESETS.iter().copied())
    )]
    pub models: Vec<String>,

    /// The size of the models.
    #[arg(long, value_name = "SIZE", default_value = "130m", value_parser = Names::new(SIZES.iter().copied()))]
    pub size: String,

    /// The numbers of tokens before the first that is timed.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000", value_parser = size(1 << 30))]
    pub contexts: Vec<usize>,

    /// The formats of the weights: f32, bf16, int8; a row for each.
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', default_value = "f32")]
    pub weights: Vec<WeightFormat>,

    /// The number of sequences to generate side by side.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = size(1024))]
    pub sequences: usize,

    /// The number of tokens to generate after each context.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = size(1 << 20))]
    pub tokens: usize,

    /// The number of threads; by default one for each core.
    #[arg(long, value_name = "N", value_parser = size(1024))]
    pub threads: Option<usize>,

    /// Write a chart of tokens per second by context to this SVG file.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,

    /// Measure in this process, and print a line of JSON for each context.
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
    /// The presets of the models.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "transformer,falcon-1a.3,falcon-3a.3,falcon-1.3",
        value_parser = Names::new(PRESETS.iter().copied())
    )]
    pub models: Vec<String>,

    /// The number of sequences per step.
    #[arg(long, value_name = "N", default_value = "64", value_parser = size(65536))]
    pub batch: usize,

    /// The number of tokens per sequence.
    #[arg(long, alias = "time", value_name = "N", default_value = "100", value_parser = size(65536))]
    pub tokens: usize,

    /// The number of threads; by default one for each core.
    #[arg(long, value_name = "N", value_parser = size(1024))]
    threads: Option<usize>,

    /// The number of rounds, of which the median is reported. One more round comes first, to warm up.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,

    /// A Python interpreter that has PyTorch; by default bench/peers/.venv/bin/python if it exists, or else python3.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Also time torch.compile.
    #[arg(long, conflicts_with = "no_peer")]
    pub compiled: bool,

    /// Do not compare with PyTorch.
    #[arg(long)]
    pub no_peer: bool,

    /// Print a JSON array of rows instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl TrainBenchArgs {
    pub(super) fn options(&self) -> TrainOptions {
        let default = PathBuf::from("bench/peers/.venv/bin/python");
        let default = || if default.exists() { default } else { "python3".into() };
        let peer = |python: Option<PathBuf>| PeerOptions {
            python: python.unwrap_or_else(default),
            compiled: self.compiled,
        };
        TrainOptions {
            models: self.models.clone(),
            batch: self.batch,
            tokens: self.tokens,
            threads: self.threads.unwrap_or_else(all_cores),
            repeats: self.repeats,
            peer: (!self.no_peer).then(|| peer(self.python.clone())),
        }
    }
}

impl GenerateBenchArgs {
    pub(super) fn options(&self) -> GenerateOptions {
        GenerateOptions {
            models: self.models.clone(),
            size: self.size.clone(),
            contexts: self.contexts.clone(),
            weights: self.weights.clone(),
            sequences: self.sequences,
            tokens: self.tokens,
            threads: self.threads.unwrap_or_else(all_cores),
        }
    }
}

/// Arguments of `falcon bench kernels`.
#[derive(Debug, Args)]
#[command(after_long_help = KERNELS)]
pub struct KernelsArgs {
    /// The rules to time.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = named_rule, help = rules_help())]
    pub rules: Vec<BenchRule>,

    /// The numbers of tokens per sequence; by default 1024,4096, with --scaling 4096,16384,65536.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size(1 << 24))]
    pub tokens: Vec<usize>,

    /// The sizes of keys and values; by default 64,128, with --scaling 64.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size(1024))]
    pub dims: Vec<usize>,

    /// The number of heads.
    #[arg(long, value_name = "N", default_value = "8", value_parser = size(1024))]
    pub heads: usize,

    /// The number of sequences in the kernel table.
    #[arg(long, value_name = "N", default_value = "1", value_parser = size(1024))]
    pub batch: usize,

    /// The numbers of threads, each of which is a row. Decoding is timed on one thread.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = size(1024))]
    pub threads: Vec<usize>,

    /// The number of tokens per chunk of the chunked form.
    #[arg(long, value_name = "N", default_value = "64", value_parser = size(8192))]
    pub chunk: usize,

    /// The number of rounds, of which the median is reported. One more round comes first, to warm up.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,

    /// Print only the decode table.
    #[arg(long, conflicts_with_all = ["no_decode", "scaling"])]
    pub decode: bool,

    /// Do not print the decode table.
    #[arg(long)]
    pub no_decode: bool,

    /// Print only a table of time and peak memory by sequence length, each length in a process of its own.
    #[arg(long)]
    pub scaling: bool,

    /// Print a JSON array of rows instead of tables.
    #[arg(long)]
    pub json: bool,

    /// Answer timing requests on stdin, one line of JSON each, so that other programs can time their kernels in turns
    /// with these.
    #[arg(long, hide = true)]
    pub serve: bool,
}

impl KernelsArgs {
    pub(super) fn options(&self) -> KernelsOptions {
        KernelsOptions {
            rules: self.rules.clone(),
            tokens: self.tokens.clone(),
            dims: self.dims.clone(),
            heads: self.heads,
            batch: self.batch,
            threads: self.threads.clone(),
            chunk: self.chunk,
            repeats: self.repeats,
            kernels: !self.decode,
            decode: !self.no_decode,
        }
    }

    pub(super) fn scaling_options<'a>(&self, server: &'a dyn Fn() -> io::Result<Command>) -> ScalingOptions<'a> {
        ScalingOptions {
            rules: self.rules.clone(),
            tokens: self.tokens.clone(),
            dims: self.dims.clone(),
            heads: self.heads,
            threads: self.threads.clone(),
            chunk: self.chunk,
            repeats: self.repeats,
            server,
        }
    }
}

fn rules_help() -> String {
    format!(
        "The rules to time; by default all but {}. The decode table has {}, and those given here",
        ONLY_ON_REQUEST.join(" and "),
        ALWAYS_DECODED.join(" and "),
    )
}

/// A number from 1 to `most`.
fn size(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

const RATIOS: &str = "\
RATIOS

  Times differ from machine to machine and from hour to hour. --check compares ratios, which
  differ less. What is timed and what it is compared with take turns:

  forward, backward, training   useful operations per second, relative to a plain matrix product
  decode, generate              bytes of memories or weights per second, relative to multiplying
                                an array of the same size in place

  A ratio that fell is measured up to three times, and the best counts. The exit code is 0 if no
  ratio fell, 1 if one did, and 2 if the comparison was not possible.

  FILE has a section for each kind of vector instructions: avx512, avx2, or the name of another
  architecture. --record replaces the section of this machine, and keeps the others.

EXAMPLES

  falcon bench --record ratios.json
  falcon bench --check ratios.json
  falcon bench --check ratios.json --rows decode --rows generate --repeats 50
  falcon bench --check ratios.json --tolerance 50 --skip-unknown";

const KERNELS: &str = "\
COLUMNS

  fwd ms, f+b ms   median of forward, and of forward and backward together; f32
  bwd/fwd          backward alone, relative to forward
  GFLOP/s          useful operations: the products of the chunked form, triangular ones counted
                   half
  %gemm            GFLOP/s relative to a plain matrix product in the same run, one on each thread
  us/tok·head      microseconds of forward per token and head
  GB/s             decode: memory read and written per second; machine GB/s: the same for scaling an
                   array of the same size in place
  rel              scaling: time per token relative to the shortest sequence

EXAMPLES

  falcon bench kernels
  falcon bench kernels --rules falcon-1,falcon-1a --tokens 4096 --dims 128 --threads 1,2
  falcon bench kernels --decode --json
  falcon bench kernels --scaling

  Other programs disturb the measurements: close them, and raise --repeats if two runs differ.";

const TRAIN: &str = "\
COLUMNS

  ms/step      median of a step: forward, backward, clipping and AdamW, in f32
  tokens/s     tokens of all sequences of the batch per second
  x PyTorch    speed relative to the first row, a Transformer of the same shape in PyTorch
  GFLOP/s      useful operations: products with parameters, 6 per token and parameter of a matrix
  %gemm        GFLOP/s relative to a plain matrix product in the same run

  All rows take turns, round by round. The defaults take about a minute, after PyTorch has started;
  --compiled takes some minutes more to compile.

EXAMPLES

  falcon bench train
  falcon bench train --no-peer --models falcon-1a.3,deltanet --batch 16 --tokens 512
  falcon bench train --python ~/torch/bin/python --compiled --json";

const GENERATE: &str = "\
COLUMNS

  tokens/s, ms/token   median over the steps after the context, each of which generates a token of
                       every sequence
  state MiB            the state of the model after the context
  resident MiB         the memory of the whole process, including the weights
  context is           read: token by token; random: a cache filled with random numbers, because
                       the time to read a context grows quadratically for a Transformer

  Models are measured one after the other, each in a process of its own. The defaults take some
  minutes; a model of size 130m reads a million tokens in about an hour on two cores.

EXAMPLES

  falcon bench generate
  falcon bench generate --weights f32,bf16,int8 --models falcon-1a.3 --contexts 100
  falcon bench generate --size tiny --contexts 100,10000 --models falcon-3a.3,transformer
  falcon bench generate --contexts 1000,10000,100000 --picture speed.svg --json";
