//! A sign of life for long runs.

use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::train::asked_to_stop;

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

/// A bar that hides itself where stderr is no terminal, below those there are.
pub(crate) fn bar(length: Option<u64>) -> ProgressBar {
    static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
    let bar = BARS.add(ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden()));
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}  {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Shows how far a measurement of `name` is; false once it was asked to stop, which says what is done `then`.
pub(crate) fn measuring(name: &str, then: &'static str) -> impl FnMut(&str, usize, usize) -> bool {
    // There is nothing to show before it begins.
    let mut shown = None;
    move |what, done, all| {
        let Shown(shown) = shown.get_or_insert_with(|| {
            let bar = bar(None);
            bar.enable_steady_tick(Duration::from_millis(200));
            Shown(bar)
        });
        shown.set_message(format!("{name}: {what}"));
        shown.set_position(done as u64);
        // Nothing is known yet of how much there is to do.
        if all > 0 {
            shown.set_length(all as u64)
        } else {
            shown.unset_length()
        }
        !asked_to_stop(then).load(Ordering::SeqCst)
    }
}

/// Taken away when nobody looks any more.
struct Shown(ProgressBar);

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
