//! How an experiment reports to the program that runs it.

use falcon_lm::config::RunConfig;
use falcon_lm::monitor::Monitor;
use falcon_lm::train::Watch;

/// Shows the progress of an experiment, and may cancel it.
pub trait Observer: Sync {
    /// Shows a line about the experiment as a whole.
    fn note(&self, line: &str);

    /// Makes the [`Watch`] for the training of the run called `title`.
    fn watch(&self, title: String, config: &RunConfig) -> Box<dyn Watch>;

    /// Makes the [`Monitor`] for the preparation called `what`, of which nothing is saved if it is cancelled.
    fn preparing(&self, what: &str) -> Box<dyn Monitor>;

    /// Makes the [`Monitor`] for the evaluation of the run called `title`. If the evaluation is cancelled, its results
    /// so far are saved.
    fn evaluating(&self, title: &str) -> Box<dyn Monitor>;
}
