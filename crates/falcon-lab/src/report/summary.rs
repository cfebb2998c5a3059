//! The summary table and the configurations.

use std::fmt::Write;

use falcon_lm::train::{EvalRecord, Record};

use super::measures::{Better, MEASURES, Measure};
use super::run::{RunRecord, ShownRun, plain, tokens_per_second};
use crate::format::{duration, escape, memory, thousands};

/// The cell of an unknown value.
const NONE: &str = "<span class=\"nil\">–</span>";

/// A column of the summary.
struct SummaryColumn {
    /// A heading above the heads of several columns; may be empty.
    over: &'static str,
    head: &'static str,
    /// Whether its cells are text, which is left-aligned.
    text: bool,
    /// The HTML of one cell for each run.
    cells: Vec<String>,
}

type Eval = fn(&RunRecord) -> Option<&EvalRecord>;

/// A table with a row for each run.
pub fn summary(runs: &[ShownRun<'_>]) -> String {
    let mut columns = vec![
        texts(runs, "preset", |run| run.setting("model", "preset")),
        texts(runs, "task", |run| run.setting("task", "name")),
        numbers(runs, "parameters", Better::Neither, |run| Some(run.starts().last()?.parameters as f64), whole),
        SummaryColumn { over: "", head: "steps", text: false, cells: runs.iter().map(|run| steps(run)).collect() },
    ];
    columns.extend(scores(runs, "last validation", RunRecord::last_validation));
    columns.extend(scores(runs, "best validation", RunRecord::best_validation));
    columns.extend([
        SummaryColumn {
            over: "best validation",
            ..numbers(runs, "step", Better::Neither, |run| Some(run.best_validation()?.step as f64), whole)
        },
        numbers(runs, "tokens/s", Better::Neither, speed, whole),
        numbers(runs, "time", Better::Neither, training_time, duration),
        numbers(runs, "memory", Better::Neither, peak_memory, |bytes| memory(bytes as u64)),
        SummaryColumn { over: "", head: "end", text: true, cells: runs.iter().map(|run| end(run)).collect() },
    ]);
    // A column without any value is left out.
    columns.retain(|column| column.cells.iter().any(|cell| cell != NONE));
    table(&columns, runs)
}

/// A column for each measure that at least one run has.
fn scores(runs: &[ShownRun<'_>], over: &'static str, eval: Eval) -> Vec<SummaryColumn> {
    let recorded = |measure: &Measure| runs.iter().any(|run| eval(run).and_then(measure.value).is_some());
    let column = |measure: &Measure| SummaryColumn {
        over,
        ..numbers(runs, measure.head, measure.better, |run| (measure.value)(eval(run)?), measure.show)
    };
    MEASURES.iter().filter(|measure| recorded(measure)).map(column).collect()
}

fn texts(runs: &[ShownRun<'_>], head: &'static str, value: fn(&RunRecord) -> Option<String>) -> SummaryColumn {
    let cell = |run: &ShownRun<'_>| value(run).map_or(NONE.into(), |text| escape(&text));
    SummaryColumn { over: "", head, text: true, cells: runs.iter().map(cell).collect() }
}

/// A column of numbers. The best of several is set in bold, and so are those that look the same.
fn numbers(
    runs: &[ShownRun<'_>],
    head: &'static str,
    better: Better,
    value: impl Fn(&RunRecord) -> Option<f64>,
    show: fn(f64) -> String,
) -> SummaryColumn {
    let values: Vec<_> = runs.iter().map(|run| value(run).filter(|number| number.is_finite())).collect();
    let present = values.iter().flatten().copied();
    let best = match better {
        _ if present.clone().count() < 2 => None,
        Better::Low => present.reduce(f64::min).map(show),
        Better::High => present.reduce(f64::max).map(show),
        Better::Neither => None,
    };
    let cell = |value: Option<f64>| match value.map(show) {
        None => NONE.into(),
        shown if shown == best => format!("<b>{}</b>", shown.unwrap_or_default()),
        Some(shown) => shown,
    };
    SummaryColumn { over: "", head, text: false, cells: values.into_iter().map(cell).collect() }
}

fn whole(number: f64) -> String {
    thousands(number.round() as u64)
}

fn steps(run: &RunRecord) -> String {
    let done = thousands(run.steps_done());
    let all = run.config.get("train").and_then(|train| train.get("steps")).and_then(toml::Value::as_integer);
    match all.and_then(|all| u64::try_from(all).ok()) {
        Some(all) => format!("{done}<span class=\"of\"> / {}</span>", thousands(all)),
        None => done,
    }
}

fn speed(run: &RunRecord) -> Option<f64> {
    let mut speeds: Vec<f64> = run.steps().map(tokens_per_second).filter(|speed| speed.is_finite()).collect();
    speeds.sort_by(f64::total_cmp);
    let middle = speeds.len() / 2;
    if speeds.len().is_multiple_of(2) {
        return Some((speeds.get(middle.checked_sub(1)?)? + speeds[middle]) / 2.0);
    }
    Some(speeds[middle])
}

fn training_time(run: &RunRecord) -> Option<f64> {
    run.steps().map(|step| step.seconds).reduce(|a, b| a + b)
}

fn peak_memory(run: &RunRecord) -> Option<f64> {
    run.stops().filter_map(|stop| stop.peak_memory).max().map(|bytes| bytes as f64)
}

/// How the run ended; a run that was resumed since is running.
fn end(run: &RunRecord) -> String {
    let last = run.records.iter().rfind(|record| matches!(record, Record::Start(_) | Record::Stop(_)));
    match last {
        Some(Record::Stop(stop)) => {
            let class = match stop.reason.as_str() {
                "finished" => "finished",
                "interrupted" => "interrupted",
                _ => "failed",
            };
            format!("<span class=\"{class}\">{}</span>", escape(&stop.reason))
        }
        _ if run.steps_done() == 0 => "<span class=\"running\">started</span>".into(),
        _ => "<span class=\"running\">running</span>".into(),
    }
}

fn table(columns: &[SummaryColumn], runs: &[ShownRun<'_>]) -> String {
    let mut out =
        "<div class=\"scroll\"><table class=\"summary\">\n<thead>\n<tr class=\"over\"><td></td>".to_string();
    for part in columns.chunk_by(|a, b| a.over == b.over) {
        let (tag, over) = if part[0].over.is_empty() { ("td", "") } else { ("th", part[0].over) };
        _ = write!(out, "<{tag} colspan=\"{}\">{over}</{tag}>", part.len());
    }
    out += "</tr>\n<tr><th class=\"text\">run</th>";
    for column in columns {
        _ = write!(out, "<th{}>{}</th>", text_class(column.text), column.head);
    }
    out += "</tr>\n</thead>\n<tbody>\n";
    for (row, run) in runs.iter().enumerate() {
        _ = write!(out, "<tr><th class=\"text\">{}{}</th>", key(run.index), escape(&run.label));
        for column in columns {
            _ = write!(out, "<td{}>{}</td>", text_class(column.text), column.cells[row]);
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table></div>\n"
}

fn text_class(text: bool) -> &'static str {
    if text { " class=\"text\"" } else { "" }
}

/// A short piece of the run's line, as in a legend.
pub fn key(run: usize) -> String {
    format!(
        "<svg class=\"key\" viewBox=\"0 0 20 8\" aria-hidden=\"true\"><path class=\"line r{run}\" d=\"M1 4H19\"/></svg>"
    )
}

/// The keys whose values differ between runs, and the complete configuration of each run.
pub fn configuration(runs: &[ShownRun<'_>]) -> String {
    let mut out = differences(runs);
    for run in runs {
        let summary = format!("<summary>{}{}</summary>", key(run.index), escape(&run.label));
        let config = escape(&run.config.to_string());
        _ = writeln!(out, "<details>{summary}\n{}<pre>{config}</pre>\n</details>", program(run));
    }
    out
}

/// The version of the program and the steps at which the run was resumed.
fn program(run: &RunRecord) -> String {
    let Some(start) = run.starts().last() else { return String::new() };
    let threads = match start.threads {
        1 => "1 thread".into(),
        threads => format!("{threads} threads"),
    };
    let resumed: Vec<_> = run.starts().skip(1).map(|start| thousands(start.step)).collect();
    let resumed = match resumed.len() {
        0 => String::new(),
        1 => format!(", resumed at step {}", resumed[0]),
        _ => format!(", resumed at steps {}", resumed.join(", ")),
    };
    format!("<p class=\"none\">Falcon {}, {threads}{resumed}</p>\n", escape(&start.version))
}

/// A table with a row for each key whose values differ between runs.
fn differences(runs: &[ShownRun<'_>]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let configs: Vec<_> = runs.iter().map(|run| flat(&run.config)).collect();
    let mut keys: Vec<&str> = configs.iter().flatten().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    keys.dedup();
    let value = |config: &[(String, String)], key: &str| {
        config.iter().find(|(other, _)| other == key).map(|(_, value)| value.clone())
    };
    let mut rows = String::new();
    for key in keys {
        let values: Vec<_> = configs.iter().map(|config| value(config, key)).collect();
        if values.iter().all(|value| *value == values[0]) {
            continue;
        }
        let cells = values.iter().map(|value| value.as_ref().map_or(NONE.into(), |value| escape(value)));
        let cells: String = cells.map(|cell| format!("<td class=\"text\">{cell}</td>")).collect();
        _ = writeln!(rows, "<tr><th class=\"text\"><code>{}</code></th>{cells}</tr>", escape(key));
    }
    if rows.is_empty() {
        return "<p class=\"none\">All configurations are the same.</p>\n".into();
    }
    let head = |run: &ShownRun<'_>| format!("<th class=\"text\">{}{}</th>", key(run.index), escape(&run.label));
    let heads: String = runs.iter().map(head).collect();
    format!(
        "<div class=\"scroll\"><table class=\"config\">\n<thead><tr><th class=\"text\">differs</th>{heads}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

/// The keys of a table as paths, with their values: `train.lr`, `0.1`.
fn flat(table: &toml::Table) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => {
                out.extend(flat(inner).into_iter().map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            value => out.push((key.clone(), plain(value))),
        }
    }
    out
}
