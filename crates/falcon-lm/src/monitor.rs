//! Progress and cancellation of long work.
//!
//! Functions that take long have a parameter `&mut dyn `[`Monitor`]. They report their progress to the monitor and
//! check, several times a second, whether it has cancelled the work. A function whose work was cancelled returns
//! [`Cancelled`], usually as a variant of its own error.

use thiserror::Error;

/// Follows long work, and may cancel it. `()` is a monitor that ignores progress and never cancels.
///
/// ```
/// use falcon_lm::monitor::{Cancelled, Monitor};
///
/// fn add_up(numbers: &[u64], monitor: &mut dyn Monitor) -> Result<u64, Cancelled> {
///     let mut sum = 0;
///     for (done, number) in numbers.iter().enumerate() {
///         monitor.report(done, Some(numbers.len()))?;
///         sum += number;
///     }
///     Ok(sum)
/// }
///
/// assert_eq!(add_up(&[1, 2, 3], &mut ()).unwrap(), 6);
/// ```
pub trait Monitor {
    /// Called when a part of the work begins. The progress after it is that of this part.
    fn stage(&mut self, _name: &str) {}

    /// Called with the amount of work done so far, and the total if it is known. The unit depends on the work: bytes,
    /// tokens, questions.
    fn advance(&mut self, _done: usize, _total: Option<usize>) {}

    /// Whether the work should stop as soon as it can.
    fn cancelled(&mut self) -> bool {
        false
    }

    /// Fails if the work is cancelled.
    fn check(&mut self) -> Result<(), Cancelled> {
        if self.cancelled() { Err(Cancelled) } else { Ok(()) }
    }

    /// Reports progress, and fails if the work is cancelled.
    fn report(&mut self, done: usize, total: Option<usize>) -> Result<(), Cancelled> {
        self.advance(done, total);
        self.check()
    }
}

impl Monitor for () {}

/// The error of work that its [`Monitor`] cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cancelled")]
pub struct Cancelled;

/// A monitor from a function, which is called whenever the work checks whether it was cancelled. Its argument is the
/// amount done so far; it returns whether to continue.
///
/// ```
/// use falcon_lm::monitor::{Monitor, from_fn};
///
/// let mut at_most_two = from_fn(|done| done <= 2);
/// assert!(at_most_two.report(2, None).is_ok());
/// assert!(at_most_two.report(3, None).is_err());
/// ```
pub fn from_fn(go_on: impl FnMut(usize) -> bool) -> impl Monitor {
    FromFn { go_on, done: 0 }
}

struct FromFn<F> {
    go_on: F,
    done: usize,
}

impl<F: FnMut(usize) -> bool> Monitor for FromFn<F> {
    fn advance(&mut self, done: usize, _total: Option<usize>) {
        self.done = done;
    }

    fn cancelled(&mut self) -> bool {
        !(self.go_on)(self.done)
    }
}
