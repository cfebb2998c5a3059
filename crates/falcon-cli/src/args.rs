//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use falcon_kernels::Form;
use falcon_lm::data::Detokenizer;
use falcon_lm::evaluate::ExamText;
use falcon_scan::{Dtype, Options};

use crate::bench::BenchArgs;
use crate::eval::EvalArgs;
use crate::export::ExportArgs;
use crate::generate::GenerateArgs;
use crate::report::ReportArgs;
use crate::reproduce::ReproduceArgs;
use crate::tokenizer::TokenizerArgs;
use crate::train::TrainArgs;

/// Fast-weight attention: rules, layers and models whose memory learns while it reads.
#[derive(Debug, Parser)]
#[command(name = "falcon", version, after_help = BEGIN)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const BEGIN: &str = "\
TO BEGIN WITH

  falcon reproduce addition                              the paper's addition experiment, on
                                                         short numbers, in minutes
  falcon train --task text --set task.train=book.txt     a model of a text of yours
  falcon generate runs/text-falcon-3a.3 \"Once upon\"     what it says

  falcon COMMAND --help has all options of a command, with examples.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an experiment of the paper again, and show its table beside the paper's.
    Reproduce(ReproduceArgs),
    /// Train a model, or go on with a run that was stopped.
    Train(TrainArgs),
    /// Measure trained models: perplexity of text, and the paper's benchmarks.
    Eval(EvalArgs),
    /// Continue a prompt with a trained model.
    Generate(GenerateArgs),
    /// Learn a tokenizer from text.
    Tokenizer(TokenizerArgs),
    /// Write a trained model as a folder that Hugging Face's transformers open.
    Export(ExportArgs),
    /// Compare runs in one HTML page.
    Report(ReportArgs),
    /// Run one rule over the tensors of a file, and write what it computed to another.
    Scan(ScanArgs),
    /// Measure speed and memory.
    Bench(BenchArgs),
    /// Print a shell completion script.
    Completions(CompletionsArgs),
}

/// Arguments of `falcon completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

const COMPLETIONS: &str = "\
EXAMPLES

  falcon completions bash > ~/.local/share/bash-completion/completions/falcon
  falcon completions zsh > ~/.zfunc/_falcon      # with fpath+=~/.zfunc before compinit
  falcon completions fish > ~/.config/fish/completions/falcon.fish";

/// How a rule is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormArg {
    /// Step by step: the definition.
    Recurrent,
    /// The whole sequence as one masked product, O(T²): for testing.
    Masked,
    /// Chunks of --chunk tokens: what training runs.
    Chunked,
}

/// The arithmetic, and the number format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DtypeArg {
    /// 32 bits, as in training.
    F32,
    /// 64 bits.
    F64,
}

/// How a text was taken apart, to be put together again before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DetokenizeArg {
    /// The raw WikiText, as lm-evaluation-harness reads it for its task wikitext.
    Wikitext,
}

impl From<DetokenizeArg> for Detokenizer {
    fn from(arg: DetokenizeArg) -> Self {
        match arg {
            DetokenizeArg::Wikitext => Self::WikiText,
        }
    }
}

/// The texts of `--text`, to be read as `--detokenize` says.
pub(crate) fn exam_texts(paths: &[PathBuf], detokenize: Option<DetokenizeArg>) -> Vec<ExamText> {
    let text = |path: &PathBuf| ExamText { path: path.clone(), detokenizer: detokenize.map(Into::into) };
    paths.iter().map(text).collect()
}

/// Arguments of `falcon scan`.
#[derive(Debug, Args)]
#[command(after_long_help = FILES)]
pub struct ScanArgs {
    /// The input, a safetensors file with in.* tensors and a "meta" string; --help says which.
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// The safetensors file to write; not IN, nor a file that is no result of a scan. On error it is not touched.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,

    /// How to compute it. All forms give the same numbers up to rounding. rls and ssm_zoh have one form only.
    #[arg(long, value_enum, default_value = "chunked")]
    pub form: FormArg,

    /// Tokens per chunk of the chunked form.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub chunk: u16,

    /// The arithmetic and the number format of OUT. The default is f64 because these files are mostly f64 and made to
    /// compare implementations; f32 is what training uses.
    #[arg(long, value_enum, default_value = "f64")]
    pub dtype: DtypeArg,

    /// Compute grad.* too, from the upstream gradients up.* in IN.
    #[arg(long)]
    pub grad: bool,

    /// Threads; all cores if not given. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Refuse files that would need more memory than this, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_memory: u32,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

impl From<&ScanArgs> for Options {
    fn from(args: &ScanArgs) -> Self {
        Options {
            form: match args.form {
                FormArg::Recurrent => Form::Recurrent,
                FormArg::Masked => Form::Masked,
                FormArg::Chunked => Form::Chunked { chunk: args.chunk.into() },
            },
            dtype: match args.dtype {
                DtypeArg::F32 => Dtype::F32,
                DtypeArg::F64 => Dtype::F64,
            },
            grad: args.grad,
            max_memory: u64::from(args.max_memory) << 30,
        }
    }
}

const FILES: &str = "\
WHAT IN NEEDS

  Tensors are row-major and time-major, F64, F32, F16 or BF16. T is time, H heads, dx the
  width of a key, dv of a value.

    in.q, in.k   [T,H,dx]   queries and keys, already feature-mapped and normalised
    in.v         [T,H,dv]   values
    in.gain      [T,H]      beta in [0,2], or eta >= 0; [T,H,dv] for falcon2 and falcon2a
    in.lam       [T,H]      ridge >= 0; only if ridge is not \"off\"
    in.S0        [H,dx,dv]  initial memory; absent means 0
    up.o, up.S              with --grad: gradients of out.o (needed) and out.S (absent means 0)

  To continue an earlier segment, pass its out.S as in.S0, out.k_last as in.k_last (not with
  align \"same\"), out.tail_x and out.tail_v as in.tail_x and in.tail_v.

  The metadata entry \"meta\" is a JSON string:

    kind       \"falcon\" or \"baseline\"
    variant    falcon1 falcon2 falcon3 falcon1a falcon2a falcon3a; or of the baselines
               linear_attention normalized_linear_attention retnet mamba2 deltanet
               gated_deltanet online_ridge rls ssm_zoh
    align      \"next\": the previous key learns a value; \"same\": its own key does
    read       \"after\" (default) or \"before\" the write
    gain_kind  \"beta\" or \"eta\": what in.gain is
    ridge      \"off\", \"actual\", or \"scaled\" (in units of the energy)
    eps        added to the denominator of eta = beta/(E + lambda + eps)
    eps_gamma  the carry 1 - eta*lambda never falls below this
    B          the window of falcon3 and falcon3a
    detach     no gradient through the energy of a scaled ridge; default true for falcon3
               and falcon3a, else false
    T H dx dv  optional, checked against the tensors

  Baselines take these instead of in.gain and in.lam:

    linear_attention             nothing
    normalized_linear_attention  in.eta, in.lam [T,H], both optional; in.z0 [H,dx]; eps_attn
    retnet                       in.decay [H]
    deltanet                     in.gain [T,H]; gain_kind
    mamba2, gated_deltanet       in.eta, in.g [T,H]: step size and carry
    online_ridge                 in.beta, in.lam [T,H]; eps
    rls                          in.lam [H]
    ssm_zoh                      in.x [T,H,din], in.A [H,n], in.Bm [T,H,n,din],
                                 in.Cm [T,H,n,dout], in.dt [T,H], in.h0 [H,n];
                                 order \"zoh\" or \"first\"; no q, k, v

  Grouped heads: in.q, in.k, in.k_last and in.tail_x may have fewer heads than in.v, if the
  heads of in.v are a multiple.

  Packed sequences: with in.cu_seqlens [N+1] (I64, I32 or U32) the time axis holds N sequences,
  one after the other. Then in.S0, in.z0, in.h0, in.k_last, in.tail_x, in.tail_v, up.S, up.z,
  up.P, up.h and the same outputs have a leading axis of size N. Either all sequences are
  continued (in.k_last is there) or none. Tails may differ in length: out.tail_len [N] says how
  many pairs of each are real, oldest first, the rest is 0; pass it on as in.tail_len.

WHAT OUT HAS

  out.o [T,H,dv], out.S (and out.z, out.P or out.h); with --grad, grad.X for every in.X. Falcon
  rules have what a continuation needs, too, and aux.eta, aux.gamma, aux.lam, aux.E: the step
  sizes, carries, ridges and energies used. The meta string is copied.

EXAMPLE

  falcon scan in.safetensors --output out.safetensors --grad

  A file to start with, in Python:

    import json, numpy as np
    from safetensors.numpy import save_file
    T, H, dx, dv = 100, 2, 16, 32
    rng = np.random.default_rng(0)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    tensors = {
        \"in.q\": unit(rng.normal(size=(T, H, dx))),
        \"in.k\": unit(rng.normal(size=(T, H, dx))),
        \"in.v\": rng.normal(size=(T, H, dv)),
        \"in.gain\": rng.uniform(0.2, 1.0, size=(T, H)),
        \"in.lam\": rng.uniform(0.0, 0.1, size=(T, H)),
        \"up.o\": rng.normal(size=(T, H, dv)),
    }
    meta = dict(kind=\"falcon\", variant=\"falcon1\", align=\"next\", gain_kind=\"beta\", ridge=\"scaled\",
                eps=1e-6, eps_gamma=1e-3)
    save_file(tensors, \"in.safetensors\", metadata={\"meta\": json.dumps(meta)})

EXIT CODES

  0 on success; 2 if the command line, IN or OUT cannot be used, with the reason on stderr and
  no output written; also 2 if OUT is written but stdout cannot be, which stderr says.";
