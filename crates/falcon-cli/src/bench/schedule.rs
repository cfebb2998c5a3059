//! Round-robin timing: every job once a round, so that noise hits all alike.

use super::error::BenchError;
use crate::progress::Progress;

/// Runs something once, and returns how many seconds it took.
type Job<'a> = Box<dyn FnMut() -> Result<f64, BenchError> + 'a>;

/// Jobs to be timed together.
#[derive(Default)]
pub(super) struct Schedule<'a> {
    jobs: Vec<Job<'a>>,
}

/// Where to find the median of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(usize);

/// The median seconds of all jobs.
pub(super) struct Medians(Vec<f64>);

impl<'a> Schedule<'a> {
    /// Adds a job to the end of a round.
    pub fn add(&mut self, job: impl FnMut() -> Result<f64, BenchError> + 'a) -> Ticket {
        self.jobs.push(Box::new(job));
        Ticket(self.jobs.len() - 1)
    }

    /// One round to warm up, and `repeats` that count.
    pub fn run(mut self, repeats: usize) -> Result<Medians, BenchError> {
        let progress = Progress::bar((repeats + 1) * self.jobs.len(), "timings");
        let mut samples = vec![Vec::with_capacity(repeats); self.jobs.len()];
        for round in 0..=repeats {
            for (job, samples) in self.jobs.iter_mut().zip(&mut samples) {
                let seconds = job()?;
                if round > 0 {
                    samples.push(seconds);
                }
                progress.step();
            }
        }
        Ok(Medians(samples.into_iter().map(median).collect()))
    }
}

impl Medians {
    /// The median of one job, never 0: a clock may be too coarse for a tiny one.
    pub fn of(&self, ticket: Ticket) -> f64 {
        self.0[ticket.0].max(1e-9)
    }
}

/// The middle one, or the mean of the two in the middle. Of none it is 0.
pub(super) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.len() {
        0 => 0.0,
        n if n % 2 == 1 => samples[middle],
        _ => 0.5 * (samples[middle - 1] + samples[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_interleaved_and_the_first_does_not_count() {
        let order = std::cell::RefCell::new(Vec::new());
        let mut times = [100.0, 1.0, 4.0, 2.0].into_iter();
        let mut schedule = Schedule::default();
        let first = schedule.add(|| {
            order.borrow_mut().push('a');
            Ok(times.next().unwrap())
        });
        let second = schedule.add(|| {
            order.borrow_mut().push('b');
            Ok(0.0)
        });
        let medians = schedule.run(3).unwrap();
        assert_eq!((medians.of(first), medians.of(second)), (2.0, 1e-9));
        assert_eq!(order.into_inner(), ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'b']);
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
    }
}
