//! Shows the progress of an experiment on the terminal.

use std::io::{self, Write};

use falcon_lab::reproduce::Observer;
use falcon_lm::config::RunConfig;
use falcon_lm::monitor::Monitor;
use falcon_lm::train::Watch;

use crate::interrupt::stop_on_interrupt;
use crate::progress::stage_monitor;
use crate::train::Show;

/// The message at an interrupt during a preparation. It does not mention saving: a preparation has nothing to save, and
/// runs of a search before it are saved already.
const STOPPING: &str = "stopping";
/// The message at an interrupt while models are trained or evaluated. One message for both, because one run may be
/// trained while another is evaluated.
const SAVING: &str = "saving all progress";

/// Progress bars and lines on stderr; Ctrl-C stops the experiment.
pub(super) struct Terminal;

impl Observer for Terminal {
    fn note(&self, line: &str) {
        let _ = writeln!(io::stderr(), "{line}");
    }

    fn watch(&self, title: String, config: &RunConfig) -> Box<dyn Watch> {
        Box::new(Show::new(config, stop_on_interrupt(SAVING)).with_title(title))
    }

    fn preparing(&self, what: &str) -> Box<dyn Monitor> {
        Box::new(stage_monitor(what, STOPPING))
    }

    fn evaluating(&self, title: &str) -> Box<dyn Monitor> {
        Box::new(stage_monitor(title, SAVING))
    }
}
