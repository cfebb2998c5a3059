//! `falcon reproduce`: runs the paper's experiments.

mod addition;
mod args;
mod error;
mod language;
mod observer;
mod output;

use falcon_lm::train::Outcome;

pub use args::{AblationArg, AdditionArgs, LanguageArgs, ReproduceArgs, ReproduceCommand, RowsArgs, ScaleArg};
pub use error::ReproduceError;

/// Runs an experiment, and prints its tables.
pub fn run(args: &ReproduceArgs) -> Result<Outcome, ReproduceError> {
    match &args.command {
        ReproduceCommand::Addition(args) => addition::run(args),
        ReproduceCommand::Lm(args) => language::run(args),
    }
}
