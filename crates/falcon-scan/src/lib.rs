//! Runs one rule or solver over the tensors of a safetensors file, forward and backward: what `falcon scan` does.
//!
//! A file is parsed ([`ScanFile`]), its `meta` is checked against the shapes of its tensors, the kernels compute, and
//! the results ([`Tensors`]) can be written as another file. `falcon scan --help` describes the files.

mod error;
mod file;
mod meta;
mod number;
mod options;
mod plan;
mod rules;
mod solvers;
mod tensors;
mod variant;

use falcon_kernels::Form;
use serde::Serialize;

pub use error::ScanError;
pub use file::ScanFile;
pub use number::Numbers;
pub use options::{Dtype, Options};
pub use tensors::{Tensor, Tensors};
pub use variant::names as variants;

use number::Number;
use plan::ScanPlan;
use variant::Method;

/// What a scan did.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The variant, as the file names it.
    pub variant: &'static str,
    /// Number of tokens, over all sequences.
    pub tokens: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Number of value heads.
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
pub struct ScanOutput {
    /// `out.*`, `aux.*` and `grad.*`.
    pub tensors: Tensors,
    /// The `meta` string of the input.
    pub meta: String,
    /// What the scan did.
    pub summary: Summary,
}

/// Runs the file in `bytes` on the current `rayon` pool. Never panics, whatever the bytes.
pub fn run(bytes: &[u8], options: &Options) -> Result<ScanOutput, ScanError> {
    let file = ScanFile::parse(bytes)?;
    let plan = ScanPlan::new(&file, options)?;
    let tensors = match options.dtype {
        Dtype::F32 => compute::<f32>(&file, &plan, options)?,
        Dtype::F64 => compute::<f64>(&file, &plan, options)?,
    };
    let summary = summary(&plan, options);
    Ok(ScanOutput { tensors, meta: file.meta.text, summary })
}

fn compute<F: Number>(file: &ScanFile<'_>, plan: &ScanPlan, options: &Options) -> Result<Tensors, ScanError> {
    match &plan.method {
        Method::Rule(rule) => rules::run::<F>(file, plan, rule, options),
        Method::Rls { align } => solvers::run_rls::<F>(file, plan, *align, options.grad),
        Method::Ssm { order } => solvers::run_ssm::<F>(file, plan, *order, options.grad),
    }
}

fn summary(plan: &ScanPlan, options: &Options) -> Summary {
    let (form, chunk) = match (&plan.method, options.form) {
        (Method::Rule(_), Form::Masked) => ("masked", None),
        (Method::Rule(_), Form::Chunked { chunk }) => ("chunked", Some(chunk)),
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
