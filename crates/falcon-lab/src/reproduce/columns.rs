//! Columns of the tables of an experiment, and what their captions share.

use falcon_lm::evaluate::mean_and_variance;

use super::record::{Experiment, ExperimentRecord, RowResult};
use crate::format::thousands;
use crate::tables::{table_head, table_line};

/// The cell of an unknown value.
pub(super) const MISSING: &str = "–";

/// A mean over seeds, and its standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub mean: f64,
    /// The standard deviation; none for a single seed.
    pub deviation: Option<f64>,
}

impl Spread {
    pub fn of(values: &[f64]) -> Self {
        let (mean, variance) = mean_and_variance(values);
        Self { mean, deviation: variance.map(f64::sqrt) }
    }

    /// The mean and the deviation, with `decimals` decimals.
    pub fn show(&self, decimals: usize) -> String {
        match self.deviation {
            Some(deviation) => format!("{:.decimals$} ± {deviation:.decimals$}", self.mean),
            None => format!("{:.decimals$}", self.mean),
        }
    }

    /// Fractions of 1 as percentages.
    pub fn percent(&self) -> String {
        let deviation = self.deviation.map(|deviation| 100.0 * deviation);
        Self { mean: 100.0 * self.mean, deviation }.show(1)
    }
}

impl<E: Experiment> ExperimentRecord<E> {
    /// The mean of a value over the seeds of a row, and its deviation.
    pub(super) fn spread(&self, name: &str, value: impl Fn(&RowResult<E>) -> f64) -> Spread {
        Spread::of(&self.seeds_of(name).into_iter().map(value).collect::<Vec<_>>())
    }

    /// The number of parameters of each row.
    pub(super) fn parameters_column(&self, important: bool) -> Column<'_> {
        Column::new(important, "parameters", |name| thousands(self.seeds_of(name)[0].parameters as u64))
    }

    /// The size of each row's state; none if no row has it recorded.
    pub(super) fn state_column(&self) -> Option<Column<'_>> {
        let state = |name: &str| match self.seeds_of(name)[0].state {
            Some(state) => state.to_string(),
            None => MISSING.into(),
        };
        self.rows.iter().any(|row| row.state.is_some()).then(|| Column::new(true, "state", state))
    }

    /// The mean step of the best validation of each row.
    pub(super) fn best_step_column(&self) -> Column<'_> {
        Column::new(false, "best step", |name| {
            format!("{:.0}", self.spread(name, |row| row.best_step as f64).mean)
        })
    }

    /// The mean time of a run of each row.
    pub(super) fn minutes_column(&self) -> Column<'_> {
        Column::new(true, "minutes", |name| format!("{:.1}", self.spread(name, |row| row.seconds / 60.0).mean))
    }

    /// The smallest and the largest number of seeds of a row.
    pub(super) fn seed_counts(&self) -> (usize, usize) {
        let counts = || self.names().into_iter().map(|name| self.seeds_of(name).len());
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
    }

    /// The duration of all runs together and the number of threads of each, in words.
    pub(super) fn cost(&self) -> String {
        let minutes = self.rows.iter().map(|row| row.seconds).sum::<f64>() / 60.0;
        let threads = || self.rows.iter().map(|row| row.threads);
        let threads = match (threads().min().unwrap_or(0), threads().max().unwrap_or(0)) {
            (1, 1) => "one thread per run".to_string(),
            (least, most) if least == most => format!("{most} threads per run"),
            (least, most) => format!("{least} to {most} threads per run"),
        };
        format!("{threads}, {minutes:.0} minutes for all runs together")
    }
}

/// A column of a table that has a line for each row.
pub(super) struct Column<'a> {
    title: String,
    /// Whether it is part of the summary.
    important: bool,
    /// Makes the cell of a row.
    cell: Box<dyn Fn(&str) -> String + 'a>,
}

impl<'a> Column<'a> {
    pub fn new(important: bool, title: impl Into<String>, cell: impl Fn(&str) -> String + 'a) -> Self {
        Self { title: title.into(), important, cell: Box::new(cell) }
    }
}

/// The columns of the summary.
pub(super) fn important(columns: Vec<Column<'_>>) -> Vec<Column<'_>> {
    columns.into_iter().filter(|column| column.important).collect()
}

/// A table in Markdown, with a line for each name; empty if there are none.
pub(super) fn markdown_table(names: &[&str], columns: &[Column<'_>]) -> String {
    let mut out = String::new();
    if names.is_empty() {
        return out;
    }
    table_head(&mut out, &columns.iter().map(|column| column.title.clone()).collect::<Vec<_>>());
    for name in names {
        table_line(&mut out, &columns.iter().map(|column| (column.cell)(name)).collect::<Vec<_>>());
    }
    out
}

/// The preset of the paper's row to compare with. A row that differs from a preset only in settings of `train` is still
/// the same model. Any other has no counterpart.
pub(super) fn paper_preset(name: &str) -> Option<&str> {
    let (preset, settings) = name.split_once(' ').unwrap_or((name, ""));
    settings.split_whitespace().all(|setting| setting.starts_with("train.")).then_some(preset)
}

/// A number of seeds in words.
pub(super) fn seeds_in_words((least, most): (usize, usize)) -> String {
    if least == most { format!("{most} seeds") } else { format!("{least} to {most} seeds") }
}
