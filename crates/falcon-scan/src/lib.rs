//! Runs one rule or solver over the tensors of a safetensors file, forward and backward: what `falcon scan` does.
//!
//! A file is parsed ([`Case`]), its request is checked against the shapes of its tensors, the kernels compute, and the
//! results ([`Tensors`]) can be written as another file. `falcon scan --help` describes the files.

mod error;
mod file;
mod meta;
mod number;
mod plan;
mod rules;
mod solvers;
mod tensors;
mod variant;

use falcon_kernels::Form;
use serde::Serialize;

pub use error::ScanError;
pub use file::Case;
pub use number::Data;
pub use tensors::{Tensor, Tensors};
pub use variant::names as variants;

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
    /// The form. The solvers for `rls` and `ssm_zoh` have only one and ignore it.
    pub form: Form,
    /// The arithmetic.
    pub dtype: Dtype,
    /// Whether to compute gradients, too.
    pub grad: bool,
    /// Bytes that the scan may take, as estimated from the sizes.
    pub max_memory: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { form: Form::CHUNKED, dtype: Dtype::F64, grad: false, max_memory: 16 << 30 }
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

/// Runs the file in `bytes` on the current `rayon` pool. Never panics, whatever the bytes.
pub fn run(bytes: &[u8], options: &Options) -> Result<Outcome, ScanError> {
    let case = Case::parse(bytes)?;
    let plan = Plan::new(&case, options)?;
    let tensors = match options.dtype {
        Dtype::F32 => compute::<f32>(&case, &plan, options)?,
        Dtype::F64 => compute::<f64>(&case, &plan, options)?,
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
