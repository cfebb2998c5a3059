//! A sign of life for long work.

use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use console::{Term, truncate_str};
use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::interrupt::stop_on_interrupt;

/// Where stderr is no terminal, shorter work stays silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// And says so often how far it is.
const PAUSE: Duration = Duration::from_secs(10);

/// Shows how far some work is, until it is dropped: on a terminal by a bar, below those there are; elsewhere by a plain line now and then.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Lets go of the thread that writes lines.
    lines: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Work whose end is not known. It is shown at once.
    pub fn spinner(message: impl Into<String>) -> Self {
        Self::new(None, message.into()).ticking()
    }

    /// Work of so many parts. It is shown at once.
    pub fn bar(length: usize, message: impl Into<String>) -> Self {
        Self::new(Some(length as u64), message.into()).ticking()
    }

    /// Work of so many parts that may turn out to be done already: shown when something is said of it.
    pub fn later(length: u64) -> Self {
        Self::new(Some(length), String::new())
    }

    fn new(length: Option<u64>, message: String) -> Self {
        static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
        let bar = BARS.add(ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden()));
        bar.set_style(style(length));
        if !message.is_empty() {
            bar.set_message(message);
        }
        let lines = if io::stderr().is_terminal() { None } else { lines(bar.clone()) };
        Self { bar, lines }
    }

    fn ticking(self) -> Self {
        // Elsewhere nobody sees it, and it would take a thread.
        if io::stderr().is_terminal() {
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
        self
    }

    /// What is being done.
    pub fn message(&self, message: String) {
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// How many parts are done.
    pub fn position(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// One more part is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// How many parts there are, if that is known by now.
    pub fn length(&self, length: Option<u64>) {
        if self.bar.length() != length {
            self.bar.set_style(style(length));
            length.map_or_else(|| self.bar.unset_length(), |length| self.bar.set_length(length));
        }
    }

    /// Parts from here on tell how fast it goes.
    pub fn reset_eta(&self) {
        self.bar.reset_eta();
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        if io::stderr().is_terminal() {
            self.bar.println(line);
        } else {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// A line that stays, cut to the width of the terminal if there is one.
    pub fn say_in_a_line(&self, line: &str) {
        let width = Term::stderr().size_checked().map_or(usize::MAX, |(_, columns)| columns.into());
        self.say(&truncate_str(line, width, "…"));
    }

    /// Takes it away.
    pub fn clear(&mut self) {
        if let Some((end, thread)) = self.lines.take() {
            drop(end);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn style(length: Option<u64>) -> ProgressStyle {
    let template = match length {
        // A message that is too long for the terminal is cut, so that the line does not wrap.
        Some(_) => "{bar:12} {pos}/{len}  {wide_msg} {eta} left",
        None => "{spinner} {wide_msg} {elapsed}",
    };
    ProgressStyle::with_template(template).expect("a template of ours")
}

/// Writes a line now and then until the sender is dropped; none where no thread can be had.
fn lines(bar: ProgressBar) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (end, ended) = mpsc::channel::<()>();
    let write = move || {
        let mut pause = PATIENCE;
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            // Of what has not begun there is nothing to say.
            if bar.message().is_empty() {
                continue;
            }
            pause = PAUSE;
            let done = bar.length().map_or(String::new(), |length| format!("{}/{length}  ", bar.position()));
            let (message, time) = (bar.message(), HumanDuration(bar.elapsed()));
            let _ = writeln!(io::stderr(), "{done}{message}  {time}");
        }
    };
    Some((end, std::thread::Builder::new().spawn(write).ok()?))
}

/// Runs `work`, and shows that it goes on.
pub fn with_spinner<T>(message: &str, work: impl FnOnce() -> T) -> T {
    let _shown = Progress::spinner(message);
    work()
}

/// Shows how far a measurement of `name` is; false once it was asked to stop, which says what is done `then`.
pub(crate) fn measuring(name: &str, then: &'static str) -> impl FnMut(&str, usize, usize) -> bool {
    // There is nothing to show before it begins.
    let mut shown = None;
    move |what, done, all| {
        let message = format!("{name}: {what}");
        let shown = shown.get_or_insert_with(|| Progress::spinner(message.clone()));
        shown.message(message);
        // Nothing is known at first of how much there is to do.
        shown.length((all > 0).then_some(all as u64));
        shown.position(done as u64);
        !stop_on_interrupt(then).load(Ordering::SeqCst)
    }
}
