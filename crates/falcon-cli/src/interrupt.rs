//! Ctrl-C.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// What is done when a run is asked to stop.
pub(crate) const SAVING: &str = "saving after this step";

/// Installs what becomes true with the first Ctrl-C or request to terminate, which says what is done `then`. The second one ends the
/// program at once.
pub(crate) fn stop_on_interrupt(then: &'static str) -> &'static AtomicBool {
    static STOP: AtomicBool = AtomicBool::new(false);
    // Fails only where there is a handler already: this one.
    let _ = ctrlc::set_handler(move || {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        let _ = writeln!(io::stderr(), "\n{then}; once more to stop at once");
    });
    &STOP
}
