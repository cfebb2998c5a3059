//! The command line of `falcon scan`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use falcon_kernels::Form;
use falcon_scan::{Dtype, Options};

/// How a rule is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormArg {
    /// Token by token, as the rule is defined.
    Recurrent,
    /// The whole sequence as one masked product, which takes O(T²); for testing.
    Masked,
    /// In chunks of --chunk tokens, as in training.
    Chunked,
}

/// The number format of the computation and of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DtypeArg {
    /// 32 bits, as in training.
    F32,
    /// 64 bits.
    F64,
}

/// Arguments of `falcon scan`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct ScanArgs {
    /// The input: a safetensors file with tensors named in.* and a "meta" string, which --help describes.
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// The safetensors file to write. An existing file is replaced only if it is the result of a scan, and not on
    /// error.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,

    /// How to compute the rule. All forms give the same results up to rounding. rls and ssm_zoh have only one form.
    #[arg(long, value_enum, default_value = "chunked")]
    pub form: FormArg,

    /// Number of tokens per chunk, for the chunked form.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub chunk: u16,

    /// The number format to compute in and to write. Training uses f32; the default is f64 because such files are
    /// mostly used to compare implementations.
    #[arg(long, value_enum, default_value = "f64")]
    pub dtype: DtypeArg,

    /// Also compute the gradients grad.* from the upstream gradients up.* in IN.
    #[arg(long)]
    pub grad: bool,

    /// Number of threads; all cores by default. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Refuse files that need more memory than this, in GiB.
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

const HELP: &str = "\
THE INPUT FILE

  Tensors are row-major and time-major, F64, F32, F16 or BF16. T is the number of tokens, H of
  heads, dx the width of a key, dv of a value.

    in.q, in.k   [T,H,dx]   queries and keys, already feature-mapped and normalised
    in.v         [T,H,dv]   values
    in.gain      [T,H]      beta in [0,2], or eta >= 0; [T,H,dv] for falcon2 and falcon2a
    in.lam       [T,H]      ridge >= 0; only if ridge is not \"off\"
    in.S0        [H,dx,dv]  initial memory; absent means 0
    up.o, up.S              with --grad: gradients of out.o (needed) and out.S (absent means 0)

  To resume after an earlier segment, pass its out.S as in.S0, out.k_last as in.k_last (not with
  align \"same\"), out.tail_x and out.tail_v as in.tail_x and in.tail_v.

  The metadata entry \"meta\" is a JSON string:

    kind       \"falcon\" or \"baseline\"
    variant    falcon1 falcon2 falcon3 falcon1a falcon2a falcon3a; for baselines
               linear_attention normalized_linear_attention retnet mamba2 deltanet
               gated_deltanet online_ridge rls ssm_zoh
    align      which key a value is written to: \"next\", the previous token's, or \"same\", its own
    read       whether queries read \"after\" (default) or \"before\" the write
    gain_kind  the meaning of in.gain: \"beta\" or \"eta\"
    ridge      \"off\", \"actual\", or \"scaled\" (in units of the energy)
    eps        added to the denominator of eta = beta/(E + lambda + eps)
    eps_gamma  the lower limit of the decay factor 1 - eta*lambda
    B          the window in tokens, for falcon3 and falcon3a
    detach     whether to pass no gradient through the energy of a scaled ridge; by default true
               for falcon3 and falcon3a, otherwise false
    T H dx dv  optional; checked against the tensors

  Baselines take these instead of in.gain and in.lam:

    linear_attention             nothing
    normalized_linear_attention  in.eta, in.lam [T,H], both optional; in.z0 [H,dx]; eps_attn
    retnet                       in.decay [H]
    deltanet                     in.gain [T,H]; gain_kind
    mamba2, gated_deltanet       in.eta, in.g [T,H]: step size and decay factor
    online_ridge                 in.beta, in.lam [T,H]; eps
    rls                          in.lam [H]
    ssm_zoh                      in.x [T,H,din], in.A [H,n], in.Bm [T,H,n,din],
                                 in.Cm [T,H,n,dout], in.dt [T,H], in.h0 [H,n];
                                 order \"zoh\" or \"first\"; no q, k, v

  Grouped heads: in.q, in.k, in.k_last and in.tail_x may have fewer heads than in.v, if the
  number of heads of in.v is a multiple of theirs.

  Packed sequences: with in.cu_seqlens [N+1] (I64, I32 or U32) the time axis holds N sequences,
  one after the other. Then in.S0, in.z0, in.h0, in.k_last, in.tail_x, in.tail_v, up.S, up.z,
  up.P, up.h and the outputs of the same names have a leading axis of size N. Either all sequences
  are resumed (the file has in.k_last) or none. Tails may differ in length: out.tail_len [N] is the
  number of pairs that each has, oldest first, and the rest is 0; pass it on as in.tail_len.

THE OUTPUT FILE

  out.o [T,H,dv], out.S (and out.z, out.P or out.h); with --grad, grad.X for every in.X. For Falcon
  rules also the tensors from which to resume, and aux.eta, aux.gamma, aux.lam and aux.E: the step
  sizes, decay factors, ridges and energies used. The meta string is copied.

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

  0 on success; 2 if the command line, IN or OUT cannot be used, with the reason on stderr and no
  output written; also 2 if OUT is written but stdout cannot be, with a message on stderr.";
