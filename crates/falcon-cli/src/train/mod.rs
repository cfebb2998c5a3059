//! `falcon train`: resolves the configuration, trains, and shows progress.

mod args;
mod show;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_lm::config::{Draft, Layer, RUN_FILE, RunConfig, RunConfigError};
use falcon_lm::data::{Check, Tokenizer};
use falcon_lm::train::{Changes, Footprint, FootprintError, Opening, Outcome, TrainError, Trainer, fresh_model};
use falcon_lm::transfer::{Pretrained, TransferError};
use falcon_nn::Model;
use serde_json::{Value, json};
use thiserror::Error;

pub use args::TrainArgs;
pub(crate) use show::Show;

use crate::interrupt::{SAVING, stop_on_interrupt};
use crate::output::ignore_closed_stdout;
use crate::threads::{ThreadsError, use_threads};

/// Why `falcon train` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainCommandError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// There is not enough memory.
    #[error(transparent)]
    Memory(#[from] FootprintError),
    /// A run cannot start from the model of --init-from.
    #[error("--init-from: {0}")]
    Transfer(#[from] TransferError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// Stdout cannot be written.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// Trains a model, and prints a summary.
pub fn run(args: &TrainArgs) -> Result<Outcome, TrainCommandError> {
    let TrainPlan { mut config, tokenizer, folder, folder_given } = plan(args)?;
    let footprint = Footprint::of(&config);
    if args.dry_run {
        let text = match args.json {
            true => as_json(&config, &footprint).to_string() + "\n",
            false => format!("# memory: {footprint}\n\n{}\n", config.to_toml()),
        };
        ignore_closed_stdout(io::stdout().write_all(text.as_bytes()))?;
        return Ok(Outcome::Finished);
    }
    if !args.no_memory_check {
        footprint.check()?;
    }
    config.task.keep_stdin(io::stdin().lock()).map_err(RunConfigError::from)?;
    if args.verify {
        config.task.set_check(Check::Full);
    }
    if args.verbose {
        // To stderr, because it is not a result.
        let _ = writeln!(io::stderr(), "{}", config.to_toml());
    }
    use_threads(args.threads.map(Into::into))?;
    // Until the run is opened there is nothing to save.
    let mut show = Show::new(&config, stop_on_interrupt("stopping"));
    let changes = if folder_given { Changes::Accept } else { Changes::Refuse };
    let opening = Opening { changes, initial: initial_model };
    let mut trainer = match Trainer::open_by(&config, tokenizer, &folder, &opening, &mut show) {
        Err(error) if error.is_interrupt() => {
            show.clear();
            return Ok(Outcome::Interrupted);
        }
        opened => opened?,
    };
    stop_on_interrupt(SAVING);
    show.begin(&config, &trainer, &footprint);
    let outcome = trainer.run(&mut show)?;
    ignore_closed_stdout(show.end(&mut io::stdout().lock(), &trainer, outcome, args.json))?;
    Ok(outcome)
}

/// The run that the arguments ask for.
struct TrainPlan {
    config: RunConfig,
    /// The tokenizer of the task.
    tokenizer: Tokenizer,
    folder: PathBuf,
    /// Whether the folder was given by `--run`. Then the other arguments may change a run in it; otherwise they were
    /// meant for a new run.
    folder_given: bool,
}

/// All keys of a configuration in the sections of its file, and the memory that it needs.
fn as_json(config: &RunConfig, footprint: &Footprint) -> Value {
    let memory = json!({ "total": footprint.total(), "parts": footprint });
    let mut all = json!({ "model": config.model, "task": config.task, "train": config.train, "memory": memory });
    all["model"]["preset"] = config.preset.as_str().into();
    all["model"]["size"] = config.size.as_str().into();
    all
}

/// The model that a new run starts from.
fn initial_model(config: &RunConfig, tokenizer: Option<&Tokenizer>, device: &Device) -> Result<Model, TrainError> {
    let Some(source) = &config.train.init_from else { return fresh_model(config, tokenizer, device) };
    let start = || -> Result<Model, TransferError> {
        let source = Pretrained::open(source.as_ref(), device)?;
        let (model, rows) = source.start(config, tokenizer, device)?;
        let _ = writeln!(io::stderr(), "weights {} of {}; {rows}", source.weights(), source.folder().display());
        Ok(model)
    };
    start().map_err(|error| TrainError::Initial(Box::new(error)))
}

/// Resolves the arguments on top of the configuration of the run in the folder, if there is one.
fn plan(args: &TrainArgs) -> Result<TrainPlan, TrainCommandError> {
    let mut layers = Vec::new();
    if let Some(path) = &args.config {
        layers.push(Layer::file(path)?);
    }
    let options = [("model", "preset", &args.model), ("model", "size", &args.size), ("task", "name", &args.task)];
    for (section, key, value) in options {
        layers.extend(value.as_ref().map(|value| Layer::of(section, key, value.as_str())));
    }
    layers.extend(args.steps.map(|steps| Layer::of("train", "steps", steps)));
    layers.extend(args.batch.map(|batch| Layer::of("train", "batch", batch)));
    layers.extend(args.lr.map(|lr| Layer::of("train", "lr", lr)));
    for set in &args.set {
        layers.push(Layer::set(set)?);
    }
    let is_run = |folder: &Path| folder.join(RUN_FILE).exists();
    if let Some(folder) = args.run.clone().filter(|folder| is_run(folder)) {
        if let Some(source) = &args.init_from {
            layers.push(Layer::of("train", "init_from", source.to_string_lossy().into_owned()));
        }
        let (config, tokenizer) = Draft::resumed(&folder, &layers)?.open()?;
        return Ok(TrainPlan { config, tokenizer, folder, folder_given: true });
    }
    if let Some(source) = &args.init_from {
        let mut lowest = Pretrained::layer(source)?;
        lowest.push(Layer::of("train", "init_from", source.to_string_lossy().into_owned()));
        layers.splice(0..0, lowest);
    }
    let mut draft = Draft::resolve(&layers)?;
    let (folder, folder_given) = match args.run.clone() {
        Some(folder) => (folder, true),
        None => (Path::new("runs").join(format!("{}-{}", draft.task.name(), draft.preset)), false),
    };
    if !folder_given && is_run(&folder) && args.init_from.is_none() {
        draft = Draft::resumed(&folder, &layers)?;
    }
    let (config, tokenizer) = draft.open()?;
    Ok(TrainPlan { config, tokenizer, folder, folder_given })
}
