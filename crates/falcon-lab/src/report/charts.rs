//! The charts of the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use falcon_lm::scores::Scores;
use falcon_lm::train::{EvalRecord, TrainRecord};

use super::measures::{MEASURES, Measure};
use super::run::{RunRecord, ShownRun, splits, tokens_per_second};
use super::series::{BUCKETS, downsample, drawable, smooth};
use crate::format::escape;
use crate::pictures::{Axis, AxisScale, Chart, ChartLine, Fit, LineStyle, Point, Tick, TickFormat};

/// A smoothed line averages over this fraction of the longest run before and after each step.
pub const REACH: f64 = 0.015;

/// A quantity over training steps.
struct Quantity<'a> {
    title: &'a str,
    unit: &'a str,
    fit: Fit,
    format: TickFormat,
    source: ValueSource,
}

/// Where the values of a quantity come from.
#[derive(Clone, Copy, PartialEq)]
enum ValueSource {
    /// One batch per step: noisy, so that the line is smoothed.
    Sampled,
    /// Known exactly for every step.
    Exact,
    /// Evaluated every so many steps.
    Evaluated,
}

impl Quantity<'_> {
    /// A chart with a line for each run, whose points are in `data`.
    fn chart(&self, runs: &[ShownRun<'_>], y: AxisScale, data: &[Vec<Point>]) -> Option<String> {
        // A single evaluation makes no curve. Its numbers are in the summary.
        if self.source == ValueSource::Evaluated && data.iter().all(|points| points.len() < 2) {
            return None;
        }
        let steps = all_steps(runs);
        let lines = |style: LineStyle, points: &dyn Fn(&[Point]) -> Vec<Point>| {
            let line = |(run, all): (&ShownRun<'_>, &Vec<Point>)| ChartLine {
                series: run.index,
                points: points(all),
                style,
            };
            runs.iter().zip(data).map(line).collect::<Vec<_>>()
        };
        let all = |points: &[Point]| downsample(points, BUCKETS);
        let lines = match self.source {
            ValueSource::Sampled => {
                let mut both = lines(LineStyle::Faint, &all);
                both.extend(lines(LineStyle::Plain, &|points| smooth(points, REACH * steps.high)));
                both
            }
            ValueSource::Exact => lines(LineStyle::Plain, &all),
            ValueSource::Evaluated => lines(LineStyle::Dotted, &all),
        };
        let x = Axis::numbers("step", steps, TickFormat::Number);
        let y = Axis::numbers("", y, self.format);
        Chart { title: self.title.into(), unit: self.unit.into(), x, y, lines }.figure()
    }

    /// The same chart, with a y axis that fits the values.
    fn fitted<P: Iterator<Item = Point>>(
        &self,
        runs: &[ShownRun<'_>],
        points: impl Fn(usize) -> P,
    ) -> Option<String> {
        let data: Vec<_> = (0..runs.len()).map(|run| drawable(points(run))).collect();
        let y = AxisScale::fit(data.iter().flatten().map(|point| point.1), self.fit)?;
        self.chart(runs, y, &data)
    }
}

/// The steps of the longest run: all charts have the same x axis, so that they can be compared down the page.
fn all_steps(runs: &[ShownRun<'_>]) -> AxisScale {
    let most = runs.iter().map(|run| run.steps_done()).max().unwrap_or(0);
    AxisScale::linear(0.0, most.max(1) as f64)
}

/// Charts of the quantities that are recorded at each training step.
pub fn training(runs: &[ShownRun<'_>]) -> Vec<String> {
    type Value = fn(&TrainRecord) -> f64;
    let quantity = |title, unit, fit, format, source| Quantity { title, unit, fit, format, source };
    let sampled = |title, unit, fit, format| quantity(title, unit, fit, format, ValueSource::Sampled);
    let quantities: [(Quantity, Value); 5] = [
        (sampled("Training loss", "nats per token", Fit::Tight, TickFormat::Number), |step| step.loss),
        (sampled("Training accuracy", "of tokens", Fit::Fraction, TickFormat::Percent), |step| step.accuracy),
        (sampled("Gradient norm", "before clipping", Fit::Tight, TickFormat::Number), |step| step.grad_norm),
        (quantity("Learning rate", "", Fit::Zero, TickFormat::Number, ValueSource::Exact), |step| step.lr),
        (sampled("Speed", "tokens per second", Fit::Zero, TickFormat::Number), tokens_per_second),
    ];
    let points = |run: usize, value: Value| runs[run].steps().map(move |step| (step.step as f64, value(step)));
    let chart = |(quantity, value): &(Quantity, Value)| quantity.fitted(runs, |run| points(run, *value));
    let mut charts: Vec<_> = quantities.iter().filter_map(chart).collect();
    let tasks: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.steps()).flat_map(|step| step.task.keys().map(String::as_str)).collect();
    for name in tasks {
        let title = capitalised(name);
        let (unit, fit, format, source) = ("set by the task", Fit::Zero, TickFormat::Number, ValueSource::Exact);
        let quantity = Quantity { title: &title, unit, fit, format, source };
        let points =
            |run: usize| runs[run].steps().filter_map(|step| Some((step.step as f64, *step.task.get(name)?)));
        charts.extend(quantity.fitted(runs, points));
    }
    charts
}

/// Charts of every measure of every split.
pub fn evaluation(runs: &[ShownRun<'_>]) -> Vec<String> {
    let mut charts = Vec::new();
    for split in splits(runs) {
        for &Measure { title, unit, fit, format, value, .. } in MEASURES {
            let title = capitalised(&format!("{split} {title}"));
            let quantity = Quantity { title: &title, unit, fit, format, source: ValueSource::Evaluated };
            let evals = |run: usize| runs[run].evals().filter(|eval| eval.split == split);
            let points = |run| evals(run).filter_map(|eval| Some((eval.step as f64, value(eval)?)));
            charts.extend(quantity.fitted(runs, points));
        }
    }
    charts
}

/// Charts of accuracy and exact match by group, such as the width of sums, in the last evaluation of each run and, if
/// that differs for any run, in the best.
pub fn groups(runs: &[ShownRun<'_>]) -> Vec<String> {
    let step = |eval: Option<&EvalRecord>| eval.map(|eval| eval.step);
    let same = runs.iter().all(|run| step(run.last_validation()) == step(run.best_validation()));
    let picks: &[(&str, Pick)] = if same {
        &[("each run's last evaluation, also its best", RunRecord::last_eval)]
    } else {
        &[
            ("each run's last evaluation", RunRecord::last_eval),
            ("each run's best evaluation", RunRecord::best_eval),
        ]
    };
    let mut charts = Vec::new();
    for &(unit, pick) in picks {
        charts.extend(group_chart(runs, ("Accuracy", |scores| scores.accuracy), unit, pick));
        charts.extend(group_chart(runs, ("Exact match", |scores| scores.exact), unit, pick));
    }
    charts
}

/// Picks an evaluation of a split.
type Pick = for<'a> fn(&'a RunRecord, &str) -> Option<&'a EvalRecord>;

fn group_chart(
    runs: &[ShownRun<'_>],
    (title, value): (&str, fn(&Scores) -> f64),
    unit: &str,
    pick: Pick,
) -> Option<String> {
    let axis = group_axis(runs);
    let mut lines = Vec::new();
    for split in splits(runs) {
        for (series, eval) in runs.iter().filter_map(|run| Some((run.index, pick(run, split)?))) {
            let place = |name: &str| {
                let full = full_name(split, name);
                axis.ticks.iter().find(|tick| tick.name.as_ref() == Some(&full)).map(|tick| tick.at)
            };
            let point = |(name, scores): &(String, Scores)| Some((place(name)?, value(scores)));
            let points = drawable(eval.groups.iter().filter_map(point));
            lines.push(ChartLine { series, points, style: LineStyle::Dotted });
        }
    }
    let y = AxisScale::fit(lines.iter().flat_map(|line| &line.points).map(|point| point.1), Fit::Fraction)?;
    let title = format!("{title} by {}", axis.name);
    Chart { title, unit: unit.into(), x: axis, y: Axis::numbers("", y, TickFormat::Percent), lines }.figure()
}

/// The name of a group of a split, as it is shown under the pointer.
fn full_name(split: &str, group: &str) -> String {
    format!("{group}, {split}")
}

/// An axis with a place for every group of every split, in order of their numbers if they have them, else in order of
/// appearance.
fn group_axis(runs: &[ShownRun<'_>]) -> Axis {
    let order = splits(runs);
    let mut names: Vec<(&str, &str)> = Vec::new();
    for split in &order {
        let evals = runs.iter().flat_map(|run| run.evals()).filter(|eval| eval.split == *split);
        for (name, _) in evals.flat_map(|eval| &eval.groups) {
            if !names.contains(&(split, name)) {
                names.push((split, name));
            }
        }
    }
    let prefixes: BTreeSet<_> = names.iter().map(|(_, name)| numbered(name).map(|(prefix, _)| prefix)).collect();
    // The common name of all groups, if they are numbered.
    let prefix = prefixes.first().copied().flatten().filter(|_| prefixes.len() == 1);
    if prefix.is_some() {
        let number = |name: &str| numbered(name).map_or(0.0, |(_, number)| number);
        names.sort_by(|a, b| {
            let split = |name: &str| order.iter().position(|split| *split == name);
            split(a.0).cmp(&split(b.0)).then(number(a.1).total_cmp(&number(b.1)))
        });
    }
    let tick = |(index, (split, name)): (usize, &(&str, &str))| {
        let label = if prefix.is_some() { name.rsplit(' ').next().unwrap_or(name) } else { name };
        Tick { at: index as f64, label: label.into(), name: Some(full_name(split, name)) }
    };
    let starts_part = |index: &usize| *index == 0 || names[*index].0 != names[index - 1].0;
    let parts = (0..names.len()).filter(starts_part).map(|index| (index as f64 - 0.5, names[index].0.to_string()));
    Axis {
        name: prefix.unwrap_or("group").into(),
        scale: AxisScale::linear(-0.5, names.len().max(1) as f64 - 0.5),
        ticks: names.iter().enumerate().map(tick).collect(),
        format: TickFormat::Number,
        parts: parts.collect(),
    }
}

/// Splits the name of a numbered group: `width 12` → `width`, 12.
fn numbered(name: &str) -> Option<(&str, f64)> {
    let (prefix, number) = name.rsplit_once(' ')?;
    number.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| (prefix, number))
}

/// A row of small charts for each gate: one for each layer, all with the same y axis.
pub fn gates(runs: &[ShownRun<'_>]) -> String {
    let mut out = String::new();
    let layers = runs.iter().flat_map(|run| run.gates()).map(|gates| gates.layers.len()).max().unwrap_or(0);
    let names: BTreeSet<&String> =
        runs.iter().flat_map(|run| run.gates()).flat_map(|gates| &gates.layers).flat_map(BTreeMap::keys).collect();
    for name in names {
        let points = |run: &RunRecord, layer: usize| {
            let value = |layers: &[BTreeMap<String, f64>]| layers.get(layer)?.get(name).copied();
            drawable(run.gates().filter_map(|gates| Some((gates.step as f64, value(&gates.layers)?))))
        };
        let by_layer = |layer| runs.iter().map(|run| points(run, layer)).collect::<Vec<_>>();
        let data: Vec<_> = (0..layers).map(by_layer).collect();
        let values = data.iter().flatten().flatten().map(|point| point.1);
        let Some(y) = AxisScale::fit(values, Fit::Tight) else { continue };
        let panel = |(layer, runs_of_layer): (usize, &Vec<Vec<Point>>)| {
            let title = format!("Layer {}", layer + 1);
            let (fit, format, source) = (Fit::Tight, TickFormat::Number, ValueSource::Evaluated);
            Quantity { title: &title, unit: "", fit, format, source }.chart(runs, y, runs_of_layer)
        };
        let panels: String = data.iter().enumerate().filter_map(panel).collect();
        if panels.is_empty() {
            continue;
        }
        let heading = escape(&with_symbol(name));
        _ = writeln!(
            out,
            "<h3>Mean {heading} <span>over validation data</span></h3>\n<div class=\"charts small\">\n{panels}</div>"
        );
    }
    out
}

/// Adds the symbol of a gate to its name: `beta` → `β (beta)`.
fn with_symbol(name: &str) -> String {
    let symbol = match name {
        "beta" => "β",
        "eta" => "η",
        "gamma" => "γ",
        "lambda" => "λ",
        _ => return name.into(),
    };
    format!("{symbol} ({name})")
}

/// Capitalises the first letter.
pub fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
