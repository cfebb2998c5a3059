//! The page as a whole.

use std::fmt::Write;

use super::charts::{self, capitalised};
use super::measures::{Comparable, comparable};
use super::run::RunRecord;
use super::run::ShownRun;
use super::{series, summary};
use crate::format::escape;
use crate::pictures::series_style;

/// An HTML page that compares `runs`, in the given order. Runs that were evaluated on different data or with
/// different tokenizers cannot be compared, and are shown in separate parts.
pub fn page(runs: &[RunRecord]) -> String {
    let shown = ShownRun::all(runs);
    let title = match shown.as_slice() {
        [only] => only.label.clone(),
        _ => format!("{} runs", runs.len()),
    };
    let mut sections: Vec<String> = match runs.is_empty() {
        true => vec![section("Summary", "<p class=\"none\">No runs.</p>\n".into())],
        false => comparable(&shown).iter().map(part).collect(),
    };
    sections.push(section("Configuration", summary::configuration(&shown)));
    sections.push(notes());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title} – Falcon</title>\n<style>\n{}{}</style>\n</head>\n<body>\n\
         <header><p>Falcon training report</p><h1>{title}</h1></header>\n{}<main>\n{}</main>\n<script>\n{}</script>\n</body>\n</html>\n",
        include_str!("style.css"),
        run_styles(runs.len()),
        legend(&shown),
        sections.concat(),
        include_str!("hover.js"),
        title = escape(&title),
    )
}

/// All sections about runs that can be compared.
fn part(Comparable { title, runs }: &Comparable<'_>) -> String {
    let heading = |title: &String| format!("<h2 class=\"part\">{}</h2>\n", escape(&capitalised(title)));
    let heading = title.as_ref().map_or(String::new(), heading);
    let sections = [
        section("Summary", summary::summary(runs)),
        section("Training", grid("charts", charts::training(runs), "No training step yet.")),
        section("Evaluation", evaluation(runs)),
        section("Gates", charts::gates(runs)),
    ];
    heading + &sections.concat()
}

/// A section with a heading; nothing if its content is empty.
fn section(title: &str, content: String) -> String {
    if content.is_empty() {
        return content;
    }
    format!("<section>\n<h2>{title}</h2>\n{content}</section>\n")
}

/// Charts side by side, or the sentence `otherwise` if there are none.
fn grid(class: &str, charts: Vec<String>, otherwise: &str) -> String {
    if charts.is_empty() {
        return format!("<p class=\"none\">{otherwise}</p>\n");
    }
    format!("<div class=\"{class}\">\n{}</div>\n", charts.concat())
}

fn evaluation(runs: &[ShownRun<'_>]) -> String {
    let charts = charts::evaluation(runs);
    let mut out = String::new();
    if !charts.is_empty() {
        let without = runs.iter().filter(|run| run.evals().next().is_none());
        let without: Vec<_> = without.map(|run| escape(&run.label)).collect();
        if !without.is_empty() {
            _ = writeln!(out, "<p class=\"none\">No evaluation yet: {}.</p>", without.join(", "));
        }
    }
    let once = runs.iter().any(|run| run.evals().next().is_some());
    let otherwise = if once { "Evaluated once; the numbers are in the summary." } else { "No evaluation yet." };
    out += &grid("charts", charts, otherwise);
    let groups = charts::groups(runs);
    if !groups.is_empty() {
        out += &grid("charts wide", groups, "");
    }
    out
}

/// The names and colours of several runs. Each checkbox shows or hides its run in all charts, without a script.
fn legend(runs: &[ShownRun<'_>]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let mut out = "<nav class=\"legend\" aria-label=\"Runs\">\n".to_string();
    for ShownRun { index: run, label, .. } in runs {
        let (key, label) = (summary::key(*run), escape(label));
        _ = writeln!(out, "<label><input type=\"checkbox\" id=\"show{run}\" checked>{key}<b>{label}</b></label>");
    }
    out + "</nav>\n"
}

fn run_styles(count: usize) -> String {
    // Many faint lines on top of each other would not look faint.
    let faint = if count <= 6 { 0.24 } else { 0.12 };
    let mut out = format!(":root{{--faint:{faint}}}\n");
    for run in 0..count {
        let (colour, dash) = series_style(run);
        _ = writeln!(out, ".r{run}{{--run:var(--c{colour});--dash:{dash}}}");
        _ = writeln!(out, "body:has(#show{run}:not(:checked)) .plot .r{run}{{display:none}}");
    }
    out
}

fn notes() -> String {
    let (raw, smooth) = (2 * series::BUCKETS, series::SMOOTH_POINTS);
    let window = 2.0 * charts::REACH * 100.0;
    format!(
        "<footer>\n<p>Losses are cross-entropies in nats per target token. Accuracy is the fraction of target tokens that have the \
         largest logit; exact match is the fraction of sequences in which all target tokens do. The perplexity of text is per token \
         of its tokenizer; bits per byte do not depend on the tokenizer. Runs with different tasks, texts or tokenizers are shown \
         in separate parts, because their losses cannot be compared; bold numbers are the best of their own table. The best \
         evaluation is that of the checkpoint that the run keeps as its best. Speed (tokens/s) is the median over steps; time is \
         that of training steps alone. A run without a recorded end is shown as running, even if it was killed.</p>\n\
         <p>Faint lines are single steps. If there are more than {raw}, they show the minimum and the maximum of each of {} \
         intervals of equal length. Strong lines are means over a centred triangular window of {window:.0}% of the longest \
         run, at up to {smooth} steps.</p>\n</footer>\n",
        series::BUCKETS
    )
}
