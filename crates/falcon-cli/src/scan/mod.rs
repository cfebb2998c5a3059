//! `falcon scan`: one rule over the tensors of a file. Parse, plan, run, write.

mod error;
mod file;
mod meta;
mod number;
mod plan;
mod rules;
mod solvers;
mod tensors;
mod variant;

use std::path::{Path, PathBuf};
use std::time::Instant;

use falcon_kernels::Form;
use falcon_nn::write_file;
use serde::Serialize;

pub use error::ScanError;
pub use file::Case;
pub use tensors::{Data, Tensor, Tensors};
pub use variant::names as variants;

use crate::output::{self, Kind};
use crate::threads;
use number::Number;
use plan::Plan;
use variant::Model;

/// The arithmetic of a scan, and the number format of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// 64 bits.
    F64,
}

/// How to run a file.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The form; the solvers for `rls` and `ssm_zoh` have but one.
    pub form: Form,
    /// The arithmetic.
    pub dtype: Dtype,
    /// Whether to compute gradients, too.
    pub grad: bool,
    /// Threads of a pool of its own, or the current `rayon` pool.
    pub threads: Option<usize>,
    /// Bytes the scan may take, as estimated from the sizes.
    pub max_memory: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { form: Form::CHUNKED, dtype: Dtype::F64, grad: false, threads: None, max_memory: 16 << 30 }
    }
}

/// What a scan did.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The variant, as the file names it.
    pub variant: &'static str,
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Sequences.
    pub sequences: usize,
    /// Value heads.
    pub heads: usize,
    /// Width of a key, or channels of a state-space model.
    pub dim_k: usize,
    /// Width of a value or output.
    pub dim_v: usize,
    /// The form that ran.
    pub form: &'static str,
    /// Tokens per chunk, for the chunked form.
    pub chunk: Option<usize>,
    /// The arithmetic.
    pub dtype: &'static str,
    /// Whether gradients were computed.
    pub grad: bool,
}

/// The results of a scan.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `out.*`, `aux.*` and `grad.*`.
    pub tensors: Tensors,
    /// The `meta` string of the input.
    pub meta: String,
    /// What was done.
    pub summary: Summary,
}

/// Runs the file in `bytes`. Never panics, whatever the bytes.
pub fn run(bytes: &[u8], options: &Options) -> Result<Outcome, ScanError> {
    let case = Case::parse(bytes)?;
    let plan = Plan::new(&case, options)?;
    let go = || match options.dtype {
        Dtype::F32 => compute::<f32>(&case, &plan, options),
        Dtype::F64 => compute::<f64>(&case, &plan, options),
    };
    let tensors = match options.threads {
        None => go()?,
        Some(threads) => threads::pool(threads)?.install(go)?,
    };
    let summary = summary(&plan, options);
    Ok(Outcome { tensors, meta: case.meta.text, summary })
}

fn compute<F: Number>(case: &Case<'_>, plan: &Plan, options: &Options) -> Result<Tensors, ScanError> {
    match &plan.model {
        Model::Rule(rule) => rules::run::<F>(case, plan, rule, options),
        Model::Rls { align } => solvers::run_rls::<F>(case, plan, *align, options.grad),
        Model::Ssm { order } => solvers::run_ssm::<F>(case, plan, *order, options.grad),
    }
}

fn summary(plan: &Plan, options: &Options) -> Summary {
    let (form, chunk) = match (&plan.model, options.form) {
        (Model::Rule(_), Form::Masked) => ("masked", None),
        (Model::Rule(_), Form::Chunked { chunk }) => ("chunked", Some(chunk)),
        _ => ("recurrent", None),
    };
    Summary {
        variant: plan.variant.name,
        tokens: plan.sizes.tokens,
        sequences: plan.sizes.sequences,
        heads: plan.sizes.heads,
        dim_k: plan.sizes.dim_k,
        dim_v: plan.sizes.dim_v,
        form,
        chunk,
        dtype: match options.dtype {
            Dtype::F32 => f32::NAME,
            Dtype::F64 => f64::NAME,
        },
        grad: options.grad,
    }
}

/// What became of a file.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was done.
    #[serde(flatten)]
    pub summary: Summary,
    /// Time spent computing, without reading and writing.
    pub seconds: f64,
    /// The file written.
    pub output: PathBuf,
}

/// Runs the file `input` and writes the results to `output`, which must be another file. On error nothing is written.
pub fn run_file(input: &Path, output: &Path, options: &Options) -> Result<Report, ScanError> {
    let failed = |source| ScanError::Write { path: output.into(), source };
    output::check(output, Kind::Scan, [input]).map_err(failed)?;
    let bytes = std::fs::read(input).map_err(|source| ScanError::Read { path: input.into(), source })?;
    let start = Instant::now();
    let Outcome { tensors, meta, summary } = run(&bytes, options)?;
    let seconds = start.elapsed().as_secs_f64();
    write_file(output, &tensors.to_bytes(&meta)?).map_err(failed)?;
    Ok(Report { summary, seconds, output: output.into() })
}
