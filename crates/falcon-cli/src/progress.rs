//! A sign of life for long runs.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Runs shorter than this stay silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs `work`, and shows a spinner with the time on stderr if it takes long and stderr is a terminal.
pub fn with_spinner<T>(message: &str, work: impl FnOnce() -> T) -> T {
    let (done, finished) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if finished.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            // Hidden by itself where stderr is not a terminal.
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(message.to_string());
            bar.set_elapsed(PATIENCE);
            bar.enable_steady_tick(Duration::from_millis(100));
            // Ends when the sender is dropped, also by a panic.
            let _ = finished.recv();
            bar.finish_and_clear();
        });
        let result = work();
        drop(done);
        result
    })
}
