//! `falcon train`: the configuration, the run, and what one sees of it.

mod args;
mod show;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use falcon_lm::config::{Layer, RUN_FILE, RunConfig, RunConfigError};
use falcon_lm::data::Check;
use falcon_lm::train::{Outcome, TrainError, Trainer};
use serde_json::{Value, json};
use thiserror::Error;

pub use args::TrainArgs;
pub(crate) use show::Show;

use crate::interrupt::{SAVING, stop_on_interrupt};
use crate::output::printed;
use crate::threads::{ThreadsError, use_threads};

/// Why there is no trained model.
#[derive(Debug, Error)]
pub enum TrainCommandError {
    /// The configuration does not do.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// The run could not go on.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// What was to be printed could not be.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// Trains, and prints to stdout how it went. Tells how the run ended.
pub fn run(args: &TrainArgs) -> Result<Outcome, TrainCommandError> {
    let mut config = resolve(args)?;
    if args.dry_run {
        let text = if args.json { as_json(&config).to_string() + "\n" } else { config.to_toml() + "\n" };
        printed(io::stdout().write_all(text.as_bytes()))?;
        return Ok(Outcome::Finished);
    }
    config.task.keep_stdin(io::stdin().lock()).map_err(RunConfigError::from)?;
    if args.verify {
        config.task.set_check(Check::Full);
    }
    let folder = args.run.clone().unwrap_or_else(|| default_folder(&config));
    if !args.json {
        // What the run is told, not what comes of it: nobody need read it.
        let _ = writeln!(io::stderr(), "{}", config.to_toml());
    }
    use_threads(args.threads.map(Into::into))?;
    let mut show = Show::new(&config, stop_on_interrupt(SAVING));
    let mut trainer = match Trainer::open(&config, &folder, &mut show) {
        Err(error) if error.is_interrupt() => {
            show.clear();
            return Ok(Outcome::Interrupted);
        }
        opened => opened?,
    };
    show.begin(&trainer);
    let outcome = trainer.run(&mut show)?;
    printed(show.end(&mut io::stdout().lock(), &trainer, outcome, args.json))?;
    Ok(outcome)
}

/// Every key of a configuration, in the sections of its file.
fn as_json(config: &RunConfig) -> Value {
    let mut all = json!({ "model": config.model, "task": config.task, "train": config.train });
    all["model"]["preset"] = config.preset.as_str().into();
    all["model"]["size"] = config.size.as_str().into();
    all
}

/// What the arguments say; a folder given alone says it itself.
fn resolve(args: &TrainArgs) -> Result<RunConfig, RunConfigError> {
    let mut layers = Vec::new();
    if let Some(path) = &args.config {
        layers.push(Layer::file(path)?);
    }
    let named = [("model", "preset", &args.model), ("model", "size", &args.size), ("task", "name", &args.task)];
    for (section, key, value) in named {
        layers.extend(value.as_ref().map(|value| Layer::of(section, key, value.as_str())));
    }
    for set in &args.set {
        layers.push(Layer::set(set)?);
    }
    let file = args.run.as_deref().map(|run| run.join(RUN_FILE)).filter(|file| file.exists());
    match file {
        Some(file) if layers.is_empty() => RunConfig::read(&file),
        _ => RunConfig::resolve(&layers),
    }
}

fn default_folder(config: &RunConfig) -> PathBuf {
    Path::new("runs").join(format!("{}-{}", config.task.name(), config.preset))
}
