//! `falcon reproduce addition`.

use falcon_lab::reproduce::addition::{AdditionExperiment, SCALES, run as run_experiment};
use falcon_lm::train::Outcome;

use super::observer::Terminal;
use super::output::{finish, remake};
use super::{AdditionArgs, ReproduceError};
use crate::threads::use_threads;

pub(super) fn run(args: &AdditionArgs) -> Result<Outcome, ReproduceError> {
    if let Some(folder) = &args.rows.from {
        return remake::<AdditionExperiment>(&args.rows, folder);
    }
    use_threads(args.rows.threads.map(Into::into))?;
    let options = args.rows.options::<AdditionExperiment>(SCALES, Vec::new());
    finish(&args.rows, &options.output, run_experiment(&options, &Terminal)?)
}
