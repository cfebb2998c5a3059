//! What one sees of a run: a line that moves, and what is left when it is done.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use falcon_lm::config::{RUN_FILE, RunConfig};
use falcon_lm::memory::{self, human};
use falcon_lm::train::{EvalRecord, Footprint, Outcome, Record, TrainRecord, Trainer, Watch};
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
    /// Tokens that a step reads, on average.
    tokens_per_step: u64,
    /// Tokens of a pass over the data, where it has an end.
    epoch: Option<usize>,
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
            tokens_per_step: config.train.batch as u64 * config.task.tokens_per_sequence() as u64,
            epoch: None,
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

    /// Says in a line what is trained, and where.
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
            format!("{}: {parameters} parameters, {} of memory", config.preset, human(footprint.total())),
            format!("{} steps, {} tokens{epochs}", HumanCount(steps), short(tokens)),
            match trainer.step() {
                0 => format!("{folder}/{RUN_FILE} has the whole configuration"),
                step => format!("continuing {folder} from step {step}"),
            },
        ];
        lines.iter().for_each(|line| self.progress.say(line));
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
                self.progress.message(format!("{}{}{epoch}", self.about, trained(record)));
            }
            Record::Eval(record) => {
                self.progress.say_in_a_line(&format!("{}{}", self.about, measured(record)));
                self.last.retain(|last| last.step == record.step);
                self.last.push(record.clone());
            }
            Record::Start(_) | Record::Gates(_) | Record::Stop(_) => {}
        }
    }

    fn note(&mut self, message: &str) {
        self.progress.say(message);
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
    let EvalRecord { step, split, total, about, .. } = record;
    let (loss, accuracy) = (total.loss, 100.0 * total.accuracy);
    let text = about.get("token perplexity").zip(about.get("bits per byte"));
    let scores = match text {
        Some((perplexity, bits)) => format!("perplexity {perplexity:.2}  bits/byte {bits:.4}"),
        None => format!("accuracy {accuracy:.2}%  exact {:.2}%", 100.0 * total.exact),
    };
    format!("step {step:>6}  {split:<10}  loss {loss:.4}  {scores}")
}

/// Passes over the data, with as many digits as one wants to see.
fn passes(tokens: u64, epoch: usize) -> String {
    let passes = tokens as f64 / epoch.max(1) as f64;
    if passes < 10.0 { format!("{passes:.2}") } else { format!("{passes:.0}") }
}

/// A large number in few characters: 1.5M.
fn short(count: u64) -> String {
    match count as f64 {
        small if small < 1e4 => format!("{small}"),
        thousands if thousands < 1e6 => format!("{:.0}k", thousands / 1e3),
        millions if millions < 1e9 => format!("{:.1}M", millions / 1e6),
        billions => format!("{:.1}B", billions / 1e9),
    }
}
