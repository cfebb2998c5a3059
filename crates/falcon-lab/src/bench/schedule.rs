//! Times several jobs in turns (round-robin): each round runs every job once, so that a slow moment of the machine
//! affects all of them alike.

use falcon_lm::monitor::Monitor;

use super::error::BenchError;

/// Runs a piece of work once, and returns the seconds that it took.
type Job<'a> = Box<dyn FnMut() -> Result<f64, BenchError> + 'a>;

/// The jobs that are timed in turns, in the order of a round.
#[derive(Default)]
pub(super) struct Schedule<'a> {
    jobs: Vec<Job<'a>>,
}

/// Identifies a job of a [`Schedule`].
#[derive(Clone, Copy, Debug)]
pub(super) struct JobId(usize);

/// The time of every job, in seconds: the median of its samples, or the fastest.
pub(super) struct Times(Vec<f64>);

impl<'a> Schedule<'a> {
    /// Adds a job at the end of each round.
    pub fn add(&mut self, job: impl FnMut() -> Result<f64, BenchError> + 'a) -> JobId {
        self.jobs.push(Box::new(job));
        JobId(self.jobs.len() - 1)
    }

    /// Runs one round to warm up, whose times are dropped, and then `repeats` rounds. Returns the median time of each
    /// job.
    pub fn run(self, repeats: usize, monitor: &mut dyn Monitor) -> Result<Times, BenchError> {
        monitor.stage("timings");
        self.samples(repeats, median, monitor)
    }

    /// Like [`Schedule::run`], with the shortest time of each job: what else runs on the machine can only add to a
    /// time.
    pub fn fastest(self, repeats: usize, monitor: &mut dyn Monitor) -> Result<Times, BenchError> {
        self.samples(repeats, |samples| samples.into_iter().min_by(f64::total_cmp).unwrap_or(0.0), monitor)
    }

    fn samples(
        mut self,
        repeats: usize,
        summary: fn(Vec<f64>) -> f64,
        monitor: &mut dyn Monitor,
    ) -> Result<Times, BenchError> {
        let (mut done, total) = (0, (repeats + 1) * self.jobs.len());
        let mut samples = vec![Vec::with_capacity(repeats); self.jobs.len()];
        for round in 0..=repeats {
            for (job, samples) in self.jobs.iter_mut().zip(&mut samples) {
                monitor.advance(done, Some(total));
                let seconds = job()?;
                if round > 0 {
                    samples.push(seconds);
                }
                done += 1;
            }
        }
        Ok(Times(samples.into_iter().map(summary).collect()))
    }
}

impl Times {
    /// The time of a job in seconds: at least 1 ns, so that it can be divided by. A clock may be too coarse for
    /// a tiny job.
    pub fn seconds(&self, job: JobId) -> f64 {
        self.0[job.0].max(1e-9)
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
    fn jobs_run_in_turns_and_the_warm_up_round_is_dropped() {
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
        let medians = schedule.run(3, &mut ()).unwrap();
        assert_eq!((medians.seconds(first), medians.seconds(second)), (2.0, 1e-9));
        assert_eq!(order.into_inner(), ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'b']);
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
        let mut times = [1.0, 7.0, 4.0, 5.0].into_iter();
        let mut schedule = Schedule::default();
        let job = schedule.add(|| Ok(times.next().unwrap()));
        assert_eq!(schedule.fastest(3, &mut ()).unwrap().seconds(job), 4.0);
    }
}
