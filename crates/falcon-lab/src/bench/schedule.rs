//! Round-robin timing: every job runs once per round, so that disturbances affect all of them alike.

use falcon_lm::monitor::Monitor;

use super::error::BenchError;

/// Runs something once, and returns the seconds it took.
type Job<'a> = Box<dyn FnMut() -> Result<f64, BenchError> + 'a>;

/// Jobs that are timed together.
#[derive(Default)]
pub(super) struct RoundRobin<'a> {
    jobs: Vec<Job<'a>>,
}

/// Identifies a job of a schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(usize);

/// The medians of all jobs, in seconds.
pub(super) struct Medians(Vec<f64>);

impl<'a> RoundRobin<'a> {
    /// Adds a job at the end of each round.
    pub fn add(&mut self, job: impl FnMut() -> Result<f64, BenchError> + 'a) -> Ticket {
        self.jobs.push(Box::new(job));
        Ticket(self.jobs.len() - 1)
    }

    /// Runs one round to warm up, and `repeats` rounds that count.
    pub fn run(mut self, repeats: usize, monitor: &mut dyn Monitor) -> Result<Medians, BenchError> {
        monitor.stage("timings");
        let (mut done, all) = (0, (repeats + 1) * self.jobs.len());
        let mut samples = vec![Vec::with_capacity(repeats); self.jobs.len()];
        for round in 0..=repeats {
            for (job, samples) in self.jobs.iter_mut().zip(&mut samples) {
                monitor.advance(done, Some(all));
                let seconds = job()?;
                if round > 0 {
                    samples.push(seconds);
                }
                done += 1;
            }
        }
        Ok(Medians(samples.into_iter().map(median).collect()))
    }
}

impl Medians {
    /// The median of a job in seconds. It is never 0, although the clock may be too coarse for a tiny job.
    pub fn of(&self, ticket: Ticket) -> f64 {
        self.0[ticket.0].max(1e-9)
    }
}

/// The median; 0 if there are no samples.
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
        let mut schedule = RoundRobin::default();
        let first = schedule.add(|| {
            order.borrow_mut().push('a');
            Ok(times.next().unwrap())
        });
        let second = schedule.add(|| {
            order.borrow_mut().push('b');
            Ok(0.0)
        });
        let medians = schedule.run(3, &mut ()).unwrap();
        assert_eq!((medians.of(first), medians.of(second)), (2.0, 1e-9));
        assert_eq!(order.into_inner(), ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'b']);
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
    }
}
