//! `falcon train`: the configuration, the run, and what one sees of it.

mod args;
mod show;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use falcon_lm::config::{Layer, RUN_FILE, RunConfig, RunConfigError};
use falcon_lm::train::{Outcome, TrainError, Trainer};
use rayon::ThreadPoolBuilder;
use thiserror::Error;

pub use args::TrainArgs;
pub(crate) use show::Show;

/// Why there is no trained model.
#[derive(Debug, Error)]
pub enum TrainCommandError {
    /// The configuration does not do.
    #[error(transparent)]
    Config(#[from] RunConfigError),
    /// The run could not go on.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// What was to be printed could not be.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

/// Trains, and prints how it went to stdout. Tells how the run ended; nothing if it was not to begin.
pub fn run(args: &TrainArgs) -> Result<Option<Outcome>, TrainCommandError> {
    let config = resolve(args)?;
    let folder = args.run.clone().unwrap_or_else(|| default_folder(&config));
    let mut out = io::stdout().lock();
    if args.dry_run || !args.json {
        writeln!(out, "{}", config.to_toml())?;
    }
    if args.dry_run {
        return Ok(None);
    }
    use_threads(args.threads);
    let mut show = Show::new(&config, asked_to_stop(SAVING));
    let mut trainer = match Trainer::open(&config, &folder, &mut show) {
        Err(error) if error.is_interrupt() => {
            show.clear();
            return Ok(Some(Outcome::Interrupted));
        }
        opened => opened?,
    };
    show.begin(&trainer);
    let outcome = trainer.run(&mut show)?;
    show.end(&mut out, &trainer, outcome, args.json)?;
    Ok(Some(outcome))
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

/// What is done when a run is asked to stop.
pub(crate) const SAVING: &str = "saving after this step";

/// As many threads as there are cores.
pub(crate) fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Computes with so many threads from now on, or with all cores.
pub(crate) fn use_threads(threads: Option<u16>) {
    if let Some(threads) = threads {
        // Fails only if there is a pool already, and then the number stays what it is.
        let _ = ThreadPoolBuilder::new().num_threads(threads.into()).build_global();
    }
}

/// Becomes true with the first Ctrl-C or request to terminate, which says what is done `then`. The second one ends the program at once.
pub(crate) fn asked_to_stop(then: &'static str) -> &'static AtomicBool {
    static STOP: AtomicBool = AtomicBool::new(false);
    // Fails only where there is a handler already: this one.
    let _ = ctrlc::set_handler(move || {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        let _ = writeln!(io::stderr(), "\n{then}; once more to stop at once");
    });
    &STOP
}
