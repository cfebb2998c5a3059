//! Which charts there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::chart::{Across, Chart, Group, Line, Look};
use super::html::escape;
use super::measures::{MEASURES, Measure};
use super::run::{RunRecord, Shown, splits};
use super::scale::{Fit, Format, Scale};
use super::series::{BUCKETS, Point, downsample, drawable, smooth};
use crate::train::{EvalRecord, Scores, TrainRecord};

/// A smoothed line averages this part of the longest run before and after a step.
pub const REACH: f64 = 0.015;

/// A quantity over steps.
struct Curve<'a> {
    title: &'a str,
    unit: &'a str,
    fit: Fit,
    format: Format,
    kind: Kind,
}

/// Where a quantity's values come from.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A sample: single steps say little.
    Noisy,
    /// Known.
    Exact,
    /// Measured from time to time.
    Measured,
}

impl Curve<'_> {
    /// A line for each run, of which `data` has the points.
    fn chart(&self, runs: &[Shown<'_>], y: Scale, data: &[Vec<Point>]) -> Option<String> {
        // A single measurement makes no curve. Its numbers are in the summary.
        if self.kind == Kind::Measured && data.iter().all(|points| points.len() < 2) {
            return None;
        }
        let steps = all_steps(runs);
        let lines = |look: Look, points: &dyn Fn(&[Point]) -> Vec<Point>| {
            let line = |(run, all): (&Shown<'_>, &Vec<Point>)| Line { run: run.index, points: points(all), look };
            runs.iter().zip(data).map(line).collect::<Vec<_>>()
        };
        let all = |points: &[Point]| downsample(points, BUCKETS);
        let lines = match self.kind {
            Kind::Noisy => {
                let mut both = lines(Look::Faint, &all);
                both.extend(lines(Look::Strong, &|points| smooth(points, REACH * steps.high)));
                both
            }
            Kind::Exact => lines(Look::Strong, &all),
            Kind::Measured => lines(Look::Dotted, &all),
        };
        let (title, unit) = (self.title.into(), self.unit.into());
        Chart { title, unit, x: Across::Steps(steps), y, format: self.format, lines }.render()
    }

    /// The same, with an axis of its own.
    fn fitted<P: Iterator<Item = Point>>(
        &self,
        runs: &[Shown<'_>],
        points: impl Fn(usize) -> P,
    ) -> Option<String> {
        let data: Vec<_> = (0..runs.len()).map(|run| drawable(points(run))).collect();
        let y = Scale::fit(data.iter().flatten().map(|point| point.1), self.fit)?;
        self.chart(runs, y, &data)
    }
}

/// Steps of the longest run: the x axis of every chart, so that they can be read down the page.
fn all_steps(runs: &[Shown<'_>]) -> Scale {
    let most = runs.iter().map(|run| run.steps_done()).max().unwrap_or(0);
    Scale::linear(0.0, most.max(1) as f64)
}

/// What each step of training tells.
pub fn training(runs: &[Shown<'_>]) -> Vec<String> {
    type Value = fn(&TrainRecord) -> f64;
    let curve = |title, unit, fit, format, kind| Curve { title, unit, fit, format, kind };
    let curves: [(Curve, Value); 5] = [
        (curve("Training loss", "nats per token", Fit::Decades, Format::Number, Kind::Noisy), |step| step.loss),
        (curve("Training accuracy", "of tokens", Fit::Part, Format::Percent, Kind::Noisy), |step| step.accuracy),
        (curve("Gradient norm", "before clipping", Fit::Decades, Format::Number, Kind::Noisy), |step| {
            step.grad_norm
        }),
        (curve("Learning rate", "", Fit::Zero, Format::Number, Kind::Exact), |step| step.lr),
        (curve("Speed", "tokens per second", Fit::Zero, Format::Number, Kind::Noisy), tokens_per_second),
    ];
    let points = |run: usize, value: Value| runs[run].steps().map(move |step| (step.step as f64, value(step)));
    let mut charts: Vec<_> =
        curves.iter().filter_map(|(curve, value)| curve.fitted(runs, |run| points(run, *value))).collect();
    let tasks: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.steps()).flat_map(|step| step.task.keys().map(String::as_str)).collect();
    for name in tasks {
        let title = capitalised(name);
        let (unit, fit, format, kind) = ("set by the task", Fit::Zero, Format::Number, Kind::Exact);
        let curve = Curve { title: &title, unit, fit, format, kind };
        let points =
            |run: usize| runs[run].steps().filter_map(|step| Some((step.step as f64, *step.task.get(name)?)));
        charts.extend(curve.fitted(runs, points));
    }
    charts
}

/// Not a number, which is not drawn, for a step that took no time.
pub fn tokens_per_second(step: &TrainRecord) -> f64 {
    if step.seconds > 0.0 { step.tokens as f64 / step.seconds } else { f64::NAN }
}

/// Every measure of every split.
pub fn evaluation(runs: &[Shown<'_>]) -> Vec<String> {
    let mut charts = Vec::new();
    for split in splits(runs) {
        for Measure { title, unit, fit, format, value, .. } in MEASURES {
            let title = capitalised(&format!("{split} {title}"));
            let curve = Curve { title: &title, unit, fit, format, kind: Kind::Measured };
            let of_split = |run: usize| runs[run].evals().filter(|eval| eval.split == split);
            let points = |run| of_split(run).filter_map(|eval| Some((eval.step as f64, value(eval)?)));
            charts.extend(curve.fitted(runs, points));
        }
    }
    charts
}

/// Accuracy and exact match by group in each run's last evaluation; and in its best, if that is another in any run.
pub fn groups(runs: &[Shown<'_>]) -> Vec<String> {
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
        charts.extend(groups_of(runs, ("Accuracy", |scores| scores.accuracy), unit, pick));
        charts.extend(groups_of(runs, ("Exact match", |scores| scores.exact), unit, pick));
    }
    charts
}

/// Which evaluation of a split.
type Pick = for<'a> fn(&'a RunRecord, &str) -> Option<&'a EvalRecord>;

fn groups_of(
    runs: &[Shown<'_>],
    (title, value): (&str, fn(&Scores) -> f64),
    unit: &str,
    pick: Pick,
) -> Option<String> {
    let places = places(runs);
    let mut lines = Vec::new();
    for split in splits(runs) {
        for (run, eval) in runs.iter().filter_map(|run| Some((run.index, pick(run, split)?))) {
            let place = |name: &str| places.iter().position(|group| group.split == split && group.name == name);
            let point = |(name, scores): &(String, Scores)| Some((place(name)? as f64, value(scores)));
            let points = drawable(eval.groups.iter().filter_map(point));
            lines.push(Line { run, points, look: Look::Dotted });
        }
    }
    let y = Scale::fit(lines.iter().flat_map(|line| &line.points).map(|point| point.1), Fit::Part)?;
    let x = Across::Groups(places);
    let title = format!("{title} by {}", x.name());
    Chart { title, unit: unit.into(), x, y, format: Format::Percent, lines }.render()
}

/// Every group of every split, in the order of their numbers if they have them, else as they come.
fn places(runs: &[Shown<'_>]) -> Vec<Group> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for split in splits(runs) {
        let evals = runs.iter().flat_map(|run| run.evals()).filter(|eval| eval.split == split);
        for (name, _) in evals.flat_map(|eval| &eval.groups) {
            if !names.contains(&(split, name)) {
                names.push((split, name));
            }
        }
    }
    let prefixes: BTreeSet<_> = names.iter().map(|(_, name)| numbered(name).map(|(prefix, _)| prefix)).collect();
    let all_numbered = prefixes.len() == 1 && !prefixes.contains(&None);
    if all_numbered {
        let order: Vec<_> = splits(runs);
        let number = |name: &str| numbered(name).map_or(0.0, |(_, number)| number);
        names.sort_by(|a, b| {
            let split = |name: &str| order.iter().position(|split| *split == name);
            split(a.0).cmp(&split(b.0)).then(number(a.1).total_cmp(&number(b.1)))
        });
    }
    let group = |(split, name): (&str, &str)| {
        let label = if all_numbered { name.rsplit(' ').next().unwrap_or(name) } else { name };
        Group { split: split.into(), name: name.into(), label: label.into() }
    };
    names.into_iter().map(group).collect()
}

/// `width 12` → `width`, 12.
fn numbered(name: &str) -> Option<(&str, f64)> {
    let (prefix, number) = name.rsplit_once(' ')?;
    number.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| (prefix, number))
}

/// A row of small charts for each gate, one for each layer, on one scale.
pub fn gates(runs: &[Shown<'_>]) -> String {
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
        let Some(y) = Scale::fit(values, Fit::Decades) else { continue };
        let panel = |(layer, runs_of_layer): (usize, &Vec<Vec<Point>>)| {
            let title = format!("Layer {}", layer + 1);
            let (fit, format, kind) = (Fit::Decades, Format::Number, Kind::Measured);
            Curve { title: &title, unit: "", fit, format, kind }.chart(runs, y, runs_of_layer)
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

/// `beta` → `β (beta)`.
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

/// The same text with a capital letter first.
pub fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
