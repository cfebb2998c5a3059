//! Shows the progress of an experiment on the terminal.

use std::io::{self, Write};

use falcon_lab::reproduce::Observer;
use falcon_lm::config::RunConfig;
use falcon_lm::monitor::Monitor;
use falcon_lm::train::Watch;

use crate::interrupt::{SAVING, stop_on_interrupt};
use crate::progress::measuring;
use crate::train::Show;

/// What is printed when the program is interrupted before anything is trained.
const STOPPING: &str = "stopping";

/// Progress bars and lines on stderr; Ctrl-C stops the experiment.
pub(super) struct Terminal;

impl Observer for Terminal {
    fn note(&self, line: &str) {
        let _ = writeln!(io::stderr(), "{line}");
    }

    fn watch(&self, title: String, config: &RunConfig) -> Box<dyn Watch> {
        Box::new(Show::new(config, stop_on_interrupt(SAVING)).about(title))
    }

    fn preparing(&self, what: &str) -> Box<dyn Monitor> {
        Box::new(measuring(what, STOPPING))
    }

    fn evaluating(&self, title: &str) -> Box<dyn Monitor> {
        Box::new(measuring(title, SAVING))
    }
}
