//! The scale of an experiment, and the configuration that it gives to a row.

use falcon_lm::config::{Draft, Layer, RunConfig, RunConfigError};

use super::row::TableRow;
use super::search::Search;

/// The size of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperimentScale {
    /// The name by which it is chosen.
    pub name: &'static str,
    /// Its rows by default, in the form of [`TableRow::parse`].
    pub models: &'static [&'static str],
    /// The number of seeds of each row.
    pub seeds: u64,
    /// The settings of all rows, in the form of `falcon train --set`.
    pub set: &'static [&'static str],
    /// The number of test samples of each width, or of questions of each benchmark; none to use all questions.
    pub samples: Option<usize>,
    /// The search for hyperparameters that precedes training; none if the settings of the scale fix them.
    pub search: Option<Search>,
}

/// The configuration of a row. Later layers override earlier ones: first those of `task`, then those of the scale, then
/// `more`, the settings that the command gives to all rows, and last the settings of the row itself, so that the name
/// of a row always describes it.
pub(super) fn row_config(
    task: &[Layer],
    scale: &ExperimentScale,
    row: &TableRow,
    seed: u64,
    more: &[Layer],
) -> Result<RunConfig, RunConfigError> {
    let changes = row.set.iter().map(|set| Layer::set(set)).collect::<Result<Vec<_>, _>>()?;
    let rows_and_seeds = "determined by the rows and seeds of the table; use --models and --seeds";
    for (section, key, reason) in [
        ("model", "preset", rows_and_seeds),
        ("train", "seed", rows_and_seeds),
        ("task", "name", "determined by the experiment"),
    ] {
        if let Some(layer) = changes.iter().chain(more).find(|layer| layer.has(section, key)) {
            return Err(layer.refused(section, key, reason));
        }
    }
    let mut layers = task.to_vec();
    layers.push(Layer::of("model", "preset", row.preset.as_str()));
    for set in scale.set {
        layers.push(Layer::set(set)?);
    }
    layers.extend_from_slice(more);
    layers.extend(changes);
    layers.push(Layer::of("train", "seed", seed));
    Draft::resolve(&layers)?.open().map(|(config, _)| config)
}
