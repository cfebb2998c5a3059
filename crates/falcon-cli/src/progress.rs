//! Progress of long work on stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use console::{Term, truncate_str};
use falcon_lm::monitor::Monitor;
use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::interrupt::stop_on_interrupt;

/// If stderr is not a terminal, the first line is printed after this time, so that short work prints none.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// The time between two lines.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Shows the progress of some work until it is dropped: on a terminal as a bar, below the bars of other work;
/// elsewhere as a plain line every few seconds.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// If stderr is not a terminal, the thread that writes lines; it ends when the sender is dropped.
    lines: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Work of unknown length, shown at once.
    pub fn spinner(message: impl Into<String>) -> Self {
        Self::new(None, message.into()).ticking()
    }

    /// Work of `length` parts. It is shown only from its first message on, because it may be done already.
    pub fn bar(length: u64) -> Self {
        Self::new(Some(length), String::new())
    }

    fn new(length: Option<u64>, message: String) -> Self {
        static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
        let bar = BARS.add(ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden()));
        bar.set_style(style(length));
        if !message.is_empty() {
            bar.set_message(message);
        }
        let lines = if io::stderr().is_terminal() { None } else { start_lines(bar.clone()) };
        Self { bar, lines }
    }

    fn ticking(self) -> Self {
        // Ticking takes a thread, and only a terminal shows it.
        if io::stderr().is_terminal() {
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
        self
    }

    /// Sets the description of the current work.
    pub fn message(&self, message: String) {
        self.bar.set_message(message);
        self.bar.tick();
    }

    /// Sets the number of parts done.
    pub fn position(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Sets the number of parts, if it is known by now.
    pub fn length(&self, length: Option<u64>) {
        if self.bar.length() != length {
            self.bar.set_style(style(length));
            length.map_or_else(|| self.bar.unset_length(), |length| self.bar.set_length(length));
        }
    }

    /// Estimates the time left only from the parts that are done from now on.
    pub fn reset_eta(&self) {
        self.bar.reset_eta();
    }

    /// Prints a line that stays: on a terminal, above the bars.
    pub fn print_line(&self, line: &str) {
        if io::stderr().is_terminal() {
            self.bar.println(line);
        } else {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// Prints a line that stays, cut to the width of the terminal if there is one.
    pub fn print_line_truncated(&self, line: &str) {
        let width = Term::stderr().size_checked().map_or(usize::MAX, |(_, columns)| columns.into());
        self.print_line(&truncate_str(line, width, "…"));
    }

    /// Removes the bar.
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
        // `wide_msg` cuts a message that is too long for the terminal, so that the line does not wrap.
        Some(_) => "{bar:12} {pos}/{len}  {wide_msg} {eta} left",
        None => "{spinner} {wide_msg} {elapsed}",
    };
    ProgressStyle::with_template(template).expect("the template is valid")
}

/// Starts a thread that writes a line every few seconds until the sender is dropped. None if no thread can be started.
fn start_lines(bar: ProgressBar) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (end, ended) = mpsc::channel::<()>();
    let write = move || {
        let mut pause = FIRST_LINE;
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            // Work without a message has not begun.
            if bar.message().is_empty() {
                continue;
            }
            pause = BETWEEN_LINES;
            let done = bar.length().map_or(String::new(), |length| format!("{}/{length}  ", bar.position()));
            let (message, time) = (bar.message(), HumanDuration(bar.elapsed()));
            let _ = writeln!(io::stderr(), "{done}{message}  {time}");
        }
    };
    Some((end, std::thread::Builder::new().spawn(write).ok()?))
}

/// Shows a spinner while `work` runs.
pub fn with_spinner<T>(message: &str, work: impl FnOnce() -> T) -> T {
    let _progress = Progress::spinner(message);
    work()
}

/// A monitor that shows progress as `name: stage`, and cancels after Ctrl-C, at which the program prints
/// `interrupt_message`.
pub(crate) fn stage_monitor(name: &str, interrupt_message: &'static str) -> impl Monitor + 'static {
    StageMonitor { name: name.into(), interrupt_message, progress: None }
}

struct StageMonitor {
    name: String,
    interrupt_message: &'static str,
    /// None before the first stage.
    progress: Option<Progress>,
}

impl Monitor for StageMonitor {
    fn stage(&mut self, stage: &str) {
        let message = format!("{}: {stage}", self.name);
        match &self.progress {
            None => self.progress = Some(Progress::spinner(message)),
            Some(progress) => {
                progress.length(None);
                progress.message(message);
            }
        }
    }

    fn advance(&mut self, done: usize, total: Option<usize>) {
        if let Some(progress) = &self.progress {
            progress.length(total.map(|total| total as u64));
            progress.position(done as u64);
        }
    }

    fn cancelled(&mut self) -> bool {
        stop_on_interrupt(self.interrupt_message).requested()
    }
}
