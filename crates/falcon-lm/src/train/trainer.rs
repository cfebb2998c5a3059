//! The training loop: draw a batch, take a step, evaluate, save a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;
use falcon_nn::Model;
use thiserror::Error;

use super::checkpoint::{Best, Checkpoint, CheckpointError, RunProgress};
use super::folder::{Change, Changes, FolderError, RunFolder};
use super::health::{Fault, diagnose, examined_parts};
use super::metrics::{
    EvalRecord, GatesRecord, METRICS_FILE, MetricsError, MetricsLog, Record, StartRecord, StopRecord, TrainRecord,
};
use super::optimizer::{AdamW, clip};
use super::step::{StepGradients, gradients};
use crate::batch::{Batch, Split, VALIDATION};
use crate::config::{RUN_FILE, RunConfig, RunConfigError};
use crate::data::{CacheError, TOKENIZER_FILE, Tokenizer};
use crate::monitor::Monitor;
use crate::predict::evaluate;
use crate::random::Moment;
use crate::recipe::Schedule;
use crate::scores::Scores;
use crate::tasks::{Task, TaskError};
use crate::{machine, memory};

/// Follows a run, and may cancel it. Before the first step, the number of bytes of text that have been encoded is
/// reported to the [`Monitor`]. Before every step, [`Monitor::cancelled`] is called; if it returns true, the run saves
/// a checkpoint and stops.
pub trait Watch: Monitor {
    /// Called with every record that is written to the metrics.
    fn record(&mut self, _record: &Record) {}

    /// Called with information about the run, such as a value that has changed.
    fn note(&mut self, _message: &str) {}

    /// Called with problems that do not stop the run.
    fn warn(&mut self, _message: &str) {}
}

/// Ignores everything.
impl Watch for () {}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps were taken.
    Finished,
    /// The run was cancelled, and can be resumed.
    Interrupted,
}

/// Why a run cannot start or continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The configuration cannot be run.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// The task cannot be opened or resumed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The weights to start from cannot be read.
    #[error("train.init_from: {0}")]
    Initial(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A record cannot be written.
    #[error("{source}\nonce this is fixed, the same command {next}")]
    Metrics {
        /// What is wrong.
        source: MetricsError,
        /// What the same command does once the problem is fixed.
        next: String,
    },
    /// A checkpoint cannot be written.
    #[error(
        "the checkpoint of step {step} cannot be written: {source}\nonce this is fixed, the same command {next}"
    )]
    Checkpoint {
        /// The step of the checkpoint.
        step: u64,
        /// What is wrong.
        source: Box<CheckpointError>,
        /// What the same command does once the problem is fixed.
        next: String,
    },
    /// The loss or a gradient is not finite, or the loss spiked.
    #[error("step {step}: {what}: {fault}\n{kept}")]
    Bad {
        /// The step.
        step: u64,
        /// What was observed.
        what: String,
        /// The first tensor that is wrong.
        fault: Fault,
        /// Which checkpoint is the last, and what to do.
        kept: String,
    },
}

impl TrainError {
    /// Whether the run was cancelled before its first step, while text was being tokenized.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Task(TaskError::Data { source, .. }) if matches!(**source, CacheError::Cancelled(_)))
    }
}

/// How a run is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Whether an existing run may be given other values for keys of `[train]`.
    pub changes: Changes,
    /// Makes the model that a new run starts from.
    pub initial: InitialModel,
}

/// A function that makes the model of a new run from its configuration and the tokenizer of its task.
pub type InitialModel = fn(&RunConfig, Option<&Tokenizer>, &Device) -> Result<Model, TrainError>;

impl Default for Opening {
    /// Random weights, and no changes to an existing run.
    fn default() -> Self {
        Self { changes: Changes::Refuse, initial: fresh_model }
    }
}

/// A training run, new or resumed.
pub struct Trainer {
    config: RunConfig,
    folder: RunFolder,
    device: Device,
    model: Model,
    optimizer: AdamW,
    progress: RunProgress,
    task: Box<dyn Task>,
    splits: Vec<Split>,
    log: MetricsLog,
    saved: Option<u64>,
}

/// Weight of the previous value in the smoothed loss.
const SMOOTHING: f64 = 0.9;

impl Trainer {
    /// Opens the run of `config` in the folder `path`: starts a new one, or resumes the one that is there from its last
    /// checkpoint. A run of another configuration is refused.
    pub fn open(config: &RunConfig, path: &Path, watch: &mut dyn Watch) -> Result<Self, TrainError> {
        let tokenizer = config.task.open_tokenizer()?;
        Self::open_by(config, tokenizer, path, &Opening::default(), watch)
    }

    /// As [`Trainer::open`], with the tokenizer of the task already opened, and with options for how a run starts and
    /// what may change.
    pub fn open_by(
        config: &RunConfig,
        tokenizer: Tokenizer,
        path: &Path,
        opening: &Opening,
        watch: &mut dyn Watch,
    ) -> Result<Self, TrainError> {
        // Everything that can fail without a folder comes first, so that no folder is left behind by a run that cannot
        // start.
        config.check_vocabulary(&tokenizer)?;
        let mut task = config.task.open(tokenizer, watch)?;
        let device = Device::flex().autodiff();
        let initial = |task: &dyn Task| (opening.initial)(config, task.tokenizer(), &device);
        let fresh = if path.join(RUN_FILE).exists() { None } else { Some(initial(&*task)?) };
        let folder = RunFolder::open(path, config)?;
        let last = folder.last(config, &device, |message| watch.warn(message))?;
        let saved = last.as_ref().map(|last| last.progress.step);
        let steps = config.train.schedule.steps;
        if let Some(done) = saved.filter(|done| *done > steps) {
            return Err(FolderError::Past { path: path.into(), done, steps }.into());
        }
        let trained_with = last.as_ref().and_then(|last| last.progress.config.as_deref());
        let changes = folder.reconcile(config, trained_with, opening.changes)?;
        if let Some(step) = saved {
            for Change { key, before, now } in &changes {
                watch.note(&format!("from step {} on, {key} is {now}; it was {before}", step + 1));
            }
            let before =
                trained_with.and_then(Schedule::in_file).filter(|before| *before != config.train.schedule);
            if let Some(before) = before {
                watch.note(&config.train.schedule.explain_change(&before, step));
            }
        }
        let Checkpoint { model, optimizer, progress } = match last {
            Some(last) => last,
            None => Checkpoint {
                model: fresh.map_or_else(|| initial(&*task), Ok)?,
                optimizer: AdamW::new(config.train.optimizer),
                progress: RunProgress { task: task.state(), ..RunProgress::default() },
            },
        };
        let progress = RunProgress { config: Some(config.with_absolute_paths().to_toml()), ..progress };
        task.restore(progress.task.clone())?;
        let tokenizer = task.tokenizer().map(Tokenizer::vocabulary_fingerprint);
        let progress = RunProgress { tokenizer, ..progress };
        if let Some(tokenizer) = task.tokenizer() {
            // The run keeps a copy of its tokenizer. `restore` has checked that it is the same one.
            tokenizer.save(&folder.path().join(TOKENIZER_FILE)).map_err(TaskError::Tokenizer)?;
        }
        let log = MetricsLog::resume(&folder.path().join(METRICS_FILE), progress.step, &mut |m| watch.warn(m));
        let log = log.map_err(|source| TrainError::Metrics { source, next: next_action(&folder, saved) })?;
        let splits = task.splits();
        let mut trainer =
            Self { config: config.clone(), folder, device, model, optimizer, progress, task, splits, log, saved };
        if config.train.init_from.is_some() && trainer.saved.is_none() {
            // With this checkpoint the run no longer depends on the model that it started from.
            trainer.save(watch)?;
        }
        Ok(trainer)
    }

    /// Number of steps taken.
    pub fn step(&self) -> u64 {
        self.progress.step
    }

    /// Tokens in one pass over the training data; `None` for a task that generates its data.
    pub fn epoch(&self) -> Option<usize> {
        self.task.epoch()
    }

    /// The best validation so far.
    pub fn best(&self) -> Option<Best> {
        self.progress.best
    }

    /// The folder of the run.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// The folder of the run, which stays locked until it is dropped.
    pub fn into_folder(self) -> RunFolder {
        self.folder
    }

    /// Trains to the last step, or until `watch` cancels.
    pub fn run(&mut self, watch: &mut dyn Watch) -> Result<Outcome, TrainError> {
        let steps = self.config.train.schedule.steps;
        if self.progress.step >= steps {
            return Ok(Outcome::Finished);
        }
        let start = StartRecord {
            step: self.progress.step,
            version: env!("CARGO_PKG_VERSION").into(),
            threads: rayon::current_num_threads(),
            parameters: self.config.model.parameter_count(),
            machine: Some(machine::describe()),
        };
        self.write(Record::Start(start), watch)?;
        while self.progress.step < steps {
            if watch.cancelled() {
                self.save(watch)?;
                self.stop("interrupted", watch)?;
                return Ok(Outcome::Interrupted);
            }
            self.advance(watch)?;
            let step = self.progress.step;
            let mut best = false;
            if step.is_multiple_of(self.config.train.eval_every) || step == steps {
                best = self.measure(watch)?;
            }
            if step == steps {
                // The last checkpoint marks a run as finished, so this record is written before it. After a kill in
                // between, the step is repeated and the record is written again.
                self.stop("finished", watch)?;
            }
            if best || step.is_multiple_of(self.config.train.save_every) || step == steps {
                self.save(watch)?;
            }
        }
        Ok(Outcome::Finished)
    }

    /// Takes one step.
    fn advance(&mut self, watch: &mut dyn Watch) -> Result<(), TrainError> {
        let begin = Instant::now();
        let train = &self.config.train;
        let step = self.progress.step;
        let moment = Moment { seed: train.seed, step, steps: train.schedule.steps };
        let batch = self.task.batch(moment, train.batch);
        let StepGradients { loss, accuracy, gradients } = gradients(&self.model, &batch, train.accumulate);
        let clip = clip(&gradients, train.clip);
        if let Some(what) = self.problem(loss, clip.norm) {
            return Err(self.fail(step + 1, what, &gradients, &batch, watch)?);
        }
        let lr = train.schedule.at(step);
        self.optimizer.step(&mut self.model, &gradients, clip, lr);
        let recent = self.progress.recent_loss.unwrap_or(loss);
        self.progress.recent_loss = Some(SMOOTHING * recent + (1.0 - SMOOTHING) * loss);
        let before = self.task.values();
        self.task.observe(accuracy);
        if self.task.values() != before {
            // The task has become harder, so a higher loss is not a spike.
            self.progress.recent_loss = None;
        }
        self.progress.step += 1;
        self.progress.task = self.task.state();
        let record = TrainRecord {
            step: self.progress.step,
            loss,
            accuracy,
            lr,
            grad_norm: clip.norm,
            tokens: batch.tokens.len(),
            seconds: begin.elapsed().as_secs_f64(),
            task: self.task.values(),
        };
        self.write(Record::Train(record), watch)
    }

    /// What is wrong with the loss or the gradients of a step, if anything.
    fn problem(&self, loss: f64, grad_norm: f64) -> Option<String> {
        if !loss.is_finite() {
            return Some(format!("the loss is {loss}"));
        }
        if !grad_norm.is_finite() {
            return Some(format!("the norm of the gradients is {grad_norm}, the loss {loss:.4}"));
        }
        let (spike, recent) = (self.config.train.spike?, self.progress.recent_loss?);
        let guessing = (self.config.model.vocab_size as f64).ln();
        let spiked = loss > spike * recent && loss > guessing;
        spiked.then(|| {
            format!("the loss jumped to {loss:.4} from a recent mean of {recent:.4}; guessing gives {guessing:.4}")
        })
    }

    /// Records that a run failed on a batch, and returns the error that names the first wrong tensor.
    fn fail(
        &mut self,
        step: u64,
        what: String,
        gradients: &[Vec<f32>],
        batch: &Batch,
        watch: &mut dyn Watch,
    ) -> Result<TrainError, TrainError> {
        let before = self.saved.and_then(|step| {
            let path = self.folder.checkpoint(step);
            Checkpoint::load(&path, self.config.train.optimizer, &self.device).ok()
        });
        let fault = diagnose(&self.model, gradients, batch, before.as_ref().map(|before| &before.model));
        let lr = self.config.train.schedule.lr;
        let advice = format!(
            "resuming would fail at the same step: start another run with a train.lr below {lr} or a smaller train.clip"
        );
        let kept = match self.saved {
            Some(step) => format!("the last checkpoint is {}", self.folder.checkpoint(step).display()),
            None => "there is no checkpoint yet".into(),
        };
        let error = TrainError::Bad { step, what, fault, kept: format!("{kept}\n{advice}") };
        self.stop(&error.to_string(), watch)?;
        Ok(error)
    }

    /// Evaluates all splits, and returns whether the validation is the best so far.
    fn measure(&mut self, watch: &mut dyn Watch) -> Result<bool, TrainError> {
        let (step, model) = (self.progress.step, self.model.valid());
        let splits = std::mem::take(&mut self.splits);
        let validation = self.measure_on(&splits, &model, watch);
        self.splits = splits;
        let validation = validation?;
        let layers = gates(&model, &self.splits);
        if layers.iter().any(|layer| !layer.is_empty()) {
            self.write(Record::Gates(GatesRecord { step, layers }), watch)?;
        }
        let score = self.task.score(&validation);
        let best = self.progress.best.is_none_or(|best| score > best.score);
        if best {
            self.progress.best = Some(Best { step, score });
        }
        Ok(best)
    }

    /// Records the scores of `splits`, and returns those of the validation split.
    fn measure_on(
        &mut self,
        splits: &[Split],
        model: &Model,
        watch: &mut dyn Watch,
    ) -> Result<Scores, TrainError> {
        let step = self.progress.step;
        let mut validation = Scores::default();
        for split in splits {
            let begin = Instant::now();
            let scores = evaluate(model, std::slice::from_ref(split));
            for (name, total, groups) in scores {
                if !total.loss.is_finite() {
                    let what = format!("the loss on {name} is {}", total.loss);
                    return Err(self.fail(step, what, &[], bad_batch(split, &groups), watch)?);
                }
                let score = (name == VALIDATION).then(|| self.task.score(&total));
                if score.is_some() {
                    validation = total;
                }
                let (about, seconds) = (self.task.about(&total), begin.elapsed().as_secs_f64());
                let record = EvalRecord { step, split: name, total, groups, about, score, seconds };
                self.write(Record::Eval(record), watch)?;
            }
        }
        Ok(validation)
    }

    /// Writes a checkpoint, unless there is one of this step.
    fn save(&mut self, watch: &mut dyn Watch) -> Result<(), TrainError> {
        let step = self.progress.step;
        if self.saved == Some(step) {
            return Ok(());
        }
        self.folder.check()?;
        // Metrics first, so that they are never behind a checkpoint.
        self.log.sync().map_err(|source| TrainError::Metrics { source, next: self.next_action() })?;
        let best = self.progress.best.map(|best| best.step);
        let saved = Checkpoint::save(&self.folder.checkpoint(step), &self.model, &self.optimizer, &self.progress);
        saved.map_err(|error| TrainError::Checkpoint {
            step,
            source: Box::new(error),
            next: self.next_action(),
        })?;
        self.saved = Some(step);
        if let Err(error) = self.folder.prune(self.config.train.keep, best) {
            watch.warn(&format!("older checkpoints cannot be removed: {error}"));
        }
        Ok(())
    }

    /// Records that training ended.
    fn stop(&mut self, reason: &str, watch: &mut dyn Watch) -> Result<(), TrainError> {
        let record = StopRecord { step: self.progress.step, reason: reason.into(), peak_memory: memory::peak() };
        self.write(Record::Stop(record), watch)
    }

    fn write(&mut self, record: Record, watch: &mut dyn Watch) -> Result<(), TrainError> {
        self.log.write(&record).map_err(|source| TrainError::Metrics { source, next: self.next_action() })?;
        watch.record(&record);
        Ok(())
    }

    fn next_action(&self) -> String {
        next_action(&self.folder, self.saved)
    }
}

/// A model with random weights: the default start of a run.
pub fn fresh_model(
    config: &RunConfig,
    _tokenizer: Option<&Tokenizer>,
    device: &Device,
) -> Result<Model, TrainError> {
    Ok(config.model.init(config.train.seed, device).map_err(RunConfigError::from)?)
}

/// What the same command does next, with or without a checkpoint to resume from.
fn next_action(folder: &RunFolder, saved: Option<u64>) -> String {
    match saved {
        Some(step) => format!("resumes from {}, which is intact", folder.checkpoint(step).display()),
        None => "starts over: there is no checkpoint yet".into(),
    }
}

/// The data of the first group whose loss is not finite.
fn bad_batch<'a>(split: &'a Split, groups: &[(String, Scores)]) -> &'a Batch {
    // A single group without a name is the whole split, and is not scored separately.
    let bad = groups.iter().position(|(_, scores)| !scores.loss.is_finite()).unwrap_or(0);
    &split.groups[bad].1
}

/// The mean of each gate, by layer.
fn gates(model: &Model, splits: &[Split]) -> Vec<BTreeMap<String, f64>> {
    let mut layers = vec![BTreeMap::new(); model.config().num_hidden_layers];
    // The group with the longest sequences is the most informative.
    let validation = splits.iter().find(|split| split.name == VALIDATION);
    let Some((_, batch)) = validation.and_then(|split| split.groups.last()) else { return layers };
    let parts = examined_parts(batch);
    let Some(batch) = parts.first() else { return layers };
    model.observe(&batch.tokens, &batch.sequences, |name, numbers| {
        let gate = name.strip_prefix("layers.").and_then(|rest| rest.split_once(".attn."));
        let Some((layer, gate @ ("beta" | "eta" | "lambda" | "gamma"))) = gate else { return };
        let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / numbers.len().max(1) as f64;
        let layer: usize = layer.parse().expect("layers are numbered");
        // JSON has no non-finite numbers.
        if mean.is_finite() {
            layers[layer].insert(gate.to_string(), mean);
        }
    });
    layers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layer;

    #[test]
    fn the_group_with_the_bad_loss_is_examined() {
        let batch = |length| Batch::new([(vec![0; length], vec![Some(1); length])]);
        let split = |names: &[&str]| Split {
            name: "beyond".into(),
            groups: names.iter().zip([2, 9]).map(|(name, length)| (name.to_string(), batch(length))).collect(),
        };
        let examined = |losses: [f64; 2]| {
            let scores = losses.map(|loss| (String::new(), Scores { loss, ..Scores::default() }));
            bad_batch(&split(&["width 1", "width 2"]), &scores).tokens.len()
        };
        assert_eq!([examined([f64::NAN, 1.0]), examined([1.0, f64::INFINITY])], [2, 9]);
        // A split without named groups has no scores of groups.
        assert_eq!(bad_batch(&split(&[""]), &[]).tokens.len(), 2);
    }

    /// The same command resumes from the last checkpoint, or starts over if there is none.
    #[test]
    fn errors_say_what_the_same_command_does_next() {
        let keys = [
            "model.size=micro",
            "model.preset=retnet",
            "task.max_width=1",
            "task.beyond=1",
            "train.steps=2",
            "train.batch=2",
        ];
        let layers: Vec<Layer> = keys.into_iter().map(|key| Layer::set(key).unwrap()).collect();
        let config = RunConfig::resolve(&layers).unwrap();
        let run = tempfile::tempdir().unwrap();
        let metrics = run.path().join(METRICS_FILE);
        let error = || Trainer::open(&config, run.path(), &mut ()).err().expect("no records").to_string();
        // A folder in place of the records makes opening fail: first in a run that was killed before its first step.
        drop(Trainer::open(&config, run.path(), &mut ()).unwrap());
        std::fs::remove_file(&metrics).unwrap();
        std::fs::create_dir(&metrics).unwrap();
        let early = error();
        let end = "\nonce this is fixed, the same command starts over: there is no checkpoint yet";
        assert!(early.contains(METRICS_FILE) && early.ends_with(end), "{early}");
        std::fs::remove_dir(&metrics).unwrap();
        let outcome = Trainer::open(&config, run.path(), &mut ()).unwrap().run(&mut ()).unwrap();
        assert_eq!(outcome, Outcome::Finished);
        std::fs::remove_file(&metrics).unwrap();
        std::fs::create_dir(&metrics).unwrap();
        let late = error();
        assert!(
            late.contains("the same command resumes from") && late.ends_with("step-000002, which is intact"),
            "{late}"
        );
    }
}
