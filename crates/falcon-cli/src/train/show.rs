//! The progress of a training run on stderr, and its summary.

use std::io::{self, Write};
use std::time::Instant;

use falcon_lm::config::{RUN_FILE, RunConfig};
use falcon_lm::memory;
use falcon_lm::monitor::Monitor;
use falcon_lm::train::{EvalRecord, Footprint, Outcome, Record, TrainRecord, Trainer, Watch};
use indicatif::{HumanBytes, HumanCount, HumanDuration};
use serde_json::json;

use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// Shows the progress of a run.
pub(crate) struct Show {
    /// Shown before progress and evaluations: the title of the run and two spaces, or nothing.
    prefix: String,
    progress: Progress,
    stop: Interrupt,
    begin: Instant,
    tokens: usize,
    seconds: f64,
    steps: u64,
    /// The mean number of tokens in a step.
    tokens_per_step: u64,
    /// The number of tokens in one pass over the data; none if the task generates its data.
    epoch: Option<usize>,
    /// The evaluations of the last step that was evaluated.
    last_evaluations: Vec<EvalRecord>,
}

impl Show {
    pub fn new(config: &RunConfig, stop: Interrupt) -> Self {
        Self {
            prefix: String::new(),
            progress: Progress::bar(config.train.schedule.steps),
            stop,
            begin: Instant::now(),
            tokens: 0,
            seconds: 0.0,
            steps: 0,
            tokens_per_step: config.train.batch as u64 * config.task.tokens_per_sequence() as u64,
            epoch: None,
            last_evaluations: Vec::new(),
        }
    }

    /// Shows a title before progress and evaluations, to tell apart runs that are trained at the same time.
    pub fn with_title(self, title: String) -> Self {
        Self { prefix: title + "  ", ..self }
    }

    /// Removes the progress bar.
    pub fn clear(&mut self) {
        self.progress.clear();
    }

    /// Prints what is trained, for how long, and where.
    pub fn begin(&mut self, config: &RunConfig, trainer: &Trainer, footprint: &Footprint) {
        self.begin = Instant::now();
        self.epoch = trainer.epoch();
        self.progress.position(trainer.step());
        self.progress.reset_eta();
        let (steps, folder) = (config.train.schedule.steps, trainer.folder().path().display());
        let tokens = steps * self.tokens_per_step;
        let epochs = self.epoch.map_or(String::new(), |epoch| format!(" ({} epochs)", passes(tokens, epoch)));
        let parameters = HumanCount(config.model.parameter_count() as u64);
        let lines = [
            format!("{}: {parameters} parameters, {} of memory", config.preset, HumanBytes(footprint.total())),
            format!("{} steps, {} tokens{epochs}", HumanCount(steps), HumanCount(tokens)),
            match trainer.step() {
                0 => format!("the whole configuration is in {folder}/{RUN_FILE}"),
                step => format!("resuming {folder} from step {step}"),
            },
        ];
        lines.iter().for_each(|line| self.progress.print_line(line));
    }

    /// Prints the summary of the run.
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
                "evaluations": self.last_evaluations, "tokens_per_second": rate, "peak_memory": peak,
            });
            return writeln!(out, "{summary}");
        }
        let folder = folder.display();
        match outcome {
            Outcome::Finished if self.steps == 0 => writeln!(out, "all {step} steps are done already: {folder}")?,
            Outcome::Finished => {
                writeln!(out, "finished: {} steps in {}", self.steps, HumanDuration(self.begin.elapsed()))?
            }
            Outcome::Interrupted => {
                writeln!(out, "interrupted and saved at step {step}; `falcon train --run {folder}` resumes it")?
            }
        }
        if self.steps > 0 {
            let peak = peak.map_or(String::new(), |peak| format!(", peak memory {}", HumanBytes(peak)));
            writeln!(out, "{} tokens/s{peak}", HumanCount(rate as u64))?;
        }
        if let Some(best) = trainer.best() {
            let path = trainer.folder().checkpoint(best.step);
            writeln!(out, "best: step {}, {}", best.step, path.display())?;
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
                let tokens = record.step * self.tokens_per_step;
                let epoch = self.epoch.map_or(String::new(), |epoch| format!("  epoch {}", passes(tokens, epoch)));
                self.progress.message(format!("{}{}{epoch}", self.prefix, train_line(record)));
            }
            Record::Eval(record) => {
                self.progress.print_line_truncated(&format!("{}{}", self.prefix, eval_line(record)));
                self.last_evaluations.retain(|last| last.step == record.step);
                self.last_evaluations.push(record.clone());
            }
            Record::Start(_) | Record::Gates(_) | Record::Stop(_) => {}
        }
    }

    fn note(&mut self, message: &str) {
        self.progress.print_line(message);
    }

    fn warn(&mut self, message: &str) {
        self.progress.print_line(&format!("warning: {message}"));
    }
}

impl Monitor for Show {
    fn advance(&mut self, bytes: usize, _total: Option<usize>) {
        self.progress.message(format!("{}{} of text encoded", self.prefix, HumanBytes(bytes as u64)));
    }

    fn cancelled(&mut self) -> bool {
        self.stop.requested()
    }
}

fn train_line(record: &TrainRecord) -> String {
    let TrainRecord { loss, accuracy, lr, grad_norm, tokens, seconds, .. } = record;
    let task: String = record.task.iter().map(|(name, value)| format!("  {name} {value}")).collect();
    let rate = HumanCount((*tokens as f64 / seconds) as u64);
    format!(
        "loss {loss:.4}  accuracy {:.1}%  lr {lr:.1e}  |g| {grad_norm:.2}  {rate} tokens/s{task}",
        100.0 * accuracy
    )
}

fn eval_line(record: &EvalRecord) -> String {
    let EvalRecord { step, split, total, about, .. } = record;
    let (loss, accuracy) = (total.loss, 100.0 * total.accuracy);
    let text = about.get("token perplexity").zip(about.get("bits per byte"));
    let scores = match text {
        Some((perplexity, bits)) => format!("perplexity {perplexity:.2}  bits/byte {bits:.4}"),
        None => format!("accuracy {accuracy:.2}%  exact {:.2}%", 100.0 * total.exact),
    };
    format!("step {step:>6}  {split:<10}  loss {loss:.4}  {scores}")
}

/// The number of passes over the data, with two decimals if there are few.
fn passes(tokens: u64, epoch: usize) -> String {
    let passes = tokens as f64 / epoch.max(1) as f64;
    if passes < 10.0 { format!("{passes:.2}") } else { format!("{passes:.0}") }
}
