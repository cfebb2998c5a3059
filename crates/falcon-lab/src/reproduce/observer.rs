//! How an experiment reports to the program that runs it.

use falcon_lm::config::RunConfig;
use falcon_lm::monitor::Monitor;
use falcon_lm::train::Watch;

/// Shows what an experiment does, and tells it when to stop.
pub trait Observer: Sync {
    /// Shows a line about the experiment as a whole.
    fn note(&self, line: &str);

    /// Watches the run called `title`.
    fn watch(&self, title: String, config: &RunConfig) -> Box<dyn Watch>;

    /// Watches the preparation called `what`, of which nothing is saved if it is cancelled.
    fn preparing(&self, what: &str) -> Box<dyn Monitor>;

    /// Watches the evaluation of the run called `title`, which is saved and resumed if it is cancelled.
    fn evaluating(&self, title: &str) -> Box<dyn Monitor>;
}
