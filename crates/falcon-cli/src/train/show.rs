//! What one sees of a run: a line that moves, and what is left when it is done.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use falcon_lm::config::RunConfig;
use falcon_lm::memory;
use falcon_lm::train::{EvalRecord, Outcome, Record, TrainRecord, Trainer, Watch};
use indicatif::{HumanBytes, HumanCount, HumanDuration};
use serde_json::json;

use crate::progress::Progress;

/// Looks on.
pub(crate) struct Show {
    /// Before every line.
    about: String,
    progress: Progress,
    stop: &'static AtomicBool,
    begin: Instant,
    tokens: usize,
    seconds: f64,
    steps: u64,
    last: Vec<EvalRecord>,
}

impl Show {
    pub fn new(config: &RunConfig, stop: &'static AtomicBool) -> Self {
        Self {
            about: String::new(),
            progress: Progress::later(config.train.schedule.steps),
            stop,
            begin: Instant::now(),
            tokens: 0,
            seconds: 0.0,
            steps: 0,
            last: Vec::new(),
        }
    }

    /// The same with a name before every line.
    pub fn about(self, name: String) -> Self {
        Self { about: name + "  ", ..self }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        self.progress.clear();
    }

    /// Says where the run begins.
    pub fn begin(&mut self, trainer: &Trainer) {
        self.begin = Instant::now();
        self.progress.position(trainer.step());
        self.progress.reset_eta();
        if trainer.step() > 0 {
            let (step, folder) = (trainer.step(), trainer.folder().path().display());
            self.progress.say(&format!("going on from step {step} of {folder}"));
        }
    }

    /// Says how the run ended.
    pub fn end(
        &mut self,
        out: &mut impl Write,
        trainer: &Trainer,
        outcome: Outcome,
        as_json: bool,
    ) -> io::Result<()> {
        self.clear();
        let rate = self.tokens as f64 / self.seconds.max(f64::MIN_POSITIVE);
        let (step, folder, peak) = (trainer.step(), trainer.folder().path(), memory::peak());
        if as_json {
            let summary = json!({
                "outcome": match outcome { Outcome::Finished => "finished", Outcome::Interrupted => "interrupted" },
                "run": folder.display().to_string(), "step": step, "steps_now": self.steps, "best": trainer.best(),
                "evaluations": self.last, "tokens_per_second": rate, "peak_memory": peak,
            });
            return writeln!(out, "{summary}");
        }
        self.last.iter().try_for_each(|record| writeln!(out, "{}", measured(record)))?;
        let folder = folder.display();
        match outcome {
            Outcome::Finished if self.steps == 0 => writeln!(out, "all {step} steps were done before: {folder}")?,
            Outcome::Finished => {
                writeln!(out, "finished: {} steps in {}", self.steps, HumanDuration(self.begin.elapsed()))?
            }
            Outcome::Interrupted => {
                writeln!(out, "interrupted and saved at step {step}; `falcon train --run {folder}` goes on")?
            }
        }
        if self.steps > 0 {
            let peak = peak.map_or(String::new(), |peak| format!(", peak memory {} MiB", peak >> 20));
            writeln!(out, "{} tokens/s{peak}", HumanCount(rate as u64))?;
        }
        if let Some(best) = trainer.best() {
            let path = trainer.folder().checkpoint(best.step);
            writeln!(out, "best: step {}, in {}", best.step, path.display())?;
        }
        Ok(())
    }
}

impl Watch for Show {
    fn record(&mut self, record: &Record) {
        match record {
            Record::Train(record) => {
                self.tokens += record.tokens;
                self.seconds += record.seconds;
                self.steps += 1;
                self.progress.position(record.step);
                self.progress.message(format!("{}{}", self.about, trained(record)));
            }
            Record::Eval(record) => {
                self.progress.say(&format!("{}{}", self.about, measured(record)));
                self.last.retain(|last| last.step == record.step);
                self.last.push(record.clone());
            }
            Record::Start(_) | Record::Gates(_) | Record::Stop(_) => {}
        }
    }

    fn warn(&mut self, message: &str) {
        self.progress.say(&format!("warning: {message}"));
    }

    fn reading(&mut self, bytes: usize) {
        self.progress.message(format!("{}{} of text made into tokens", self.about, HumanBytes(bytes as u64)));
    }

    fn stop(&mut self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

fn trained(record: &TrainRecord) -> String {
    let TrainRecord { loss, accuracy, lr, grad_norm, tokens, seconds, .. } = record;
    let task: String = record.task.iter().map(|(name, value)| format!("  {name} {value}")).collect();
    let rate = HumanCount((*tokens as f64 / seconds) as u64);
    format!(
        "loss {loss:.4}  accuracy {:.1}%  lr {lr:.1e}  |g| {grad_norm:.2}  {rate} tokens/s{task}",
        100.0 * accuracy
    )
}

fn measured(record: &EvalRecord) -> String {
    let EvalRecord { step, split, total, .. } = record;
    let (loss, accuracy) = (total.loss, 100.0 * total.accuracy);
    let about = if record.about.is_empty() {
        format!("  exact {:.2}%", 100.0 * total.exact)
    } else {
        record.about.iter().map(|(name, value)| format!("  {name} {value:.3}")).collect()
    };
    format!("step {step:>6}  {split:<10}  loss {loss:.4}  accuracy {accuracy:.2}%{about}")
}
