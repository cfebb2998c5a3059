//! Runs side by side: one HTML page with tables and curves that needs nothing but itself.
//!
//! ```no_run
//! use falcon_lm::report::{RunRecord, page};
//! let runs = [RunRecord::read("runs/first".as_ref())?, RunRecord::read("runs/second".as_ref())?];
//! std::fs::write("report.html", page(&runs)).unwrap();
//! # Ok::<(), falcon_lm::report::ReportError>(())
//! ```

mod chart;
mod curves;
mod html;
mod markdown;
mod measures;
mod picture;
mod run;
mod scale;
mod series;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use self::curves::capitalised;
use self::measures::{Comparable, comparable};
use self::run::Shown;

pub use markdown::{aligned, table_head, table_line};
pub use picture::{Curve, fitted_curves};
pub use run::{ReportError, RunRecord};

pub(crate) use html::{escape, thousands};
pub(crate) use picture::{Axes, Panel, Triangle, digits_of_widths, panels};
pub use scale::Fit;
pub(crate) use scale::{Format, Scale};

/// Colours in `style.css`; runs beyond them take the colours again, with dashes.
const COLOURS: usize = 8;
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// The page about `runs`, in their order. Runs whose numbers cannot be compared, because they are measured on other
/// data or by other tokens, are shown apart.
pub fn page(runs: &[RunRecord]) -> String {
    let shown = Shown::all(runs);
    let title = match shown.as_slice() {
        [only] => only.label.clone(),
        _ => format!("{} runs", runs.len()),
    };
    let mut sections: Vec<String> = match runs.is_empty() {
        true => vec![section("Summary", "<p class=\"none\">No runs.</p>\n".into())],
        false => comparable(&shown).iter().map(part).collect(),
    };
    sections.push(section("Configuration", tables::configuration(&shown)));
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

/// All of runs that can be compared.
fn part(Comparable { title, runs }: &Comparable<'_>) -> String {
    let heading = match title.is_empty() {
        true => String::new(),
        false => format!("<h2 class=\"part\">{}</h2>\n", escape(&capitalised(title))),
    };
    let sections = [
        section("Summary", tables::summary(runs)),
        section("Training", grid("charts", curves::training(runs), "No step of training yet.")),
        section("Evaluation", evaluation(runs)),
        section("Gates", curves::gates(runs)),
    ];
    heading + &sections.concat()
}

/// A heading and what is under it, or nothing if that is nothing.
fn section(title: &str, content: String) -> String {
    if content.is_empty() {
        return content;
    }
    format!("<section>\n<h2>{title}</h2>\n{content}</section>\n")
}

/// Charts beside each other, or a sentence that says why there are none.
fn grid(class: &str, charts: Vec<String>, otherwise: &str) -> String {
    if charts.is_empty() {
        return format!("<p class=\"none\">{otherwise}</p>\n");
    }
    format!("<div class=\"{class}\">\n{}</div>\n", charts.concat())
}

fn evaluation(runs: &[Shown<'_>]) -> String {
    let charts = curves::evaluation(runs);
    let mut out = String::new();
    if !charts.is_empty() {
        let without = runs.iter().filter(|run| run.evals().next().is_none());
        let without: Vec<_> = without.map(|run| escape(&run.label)).collect();
        if !without.is_empty() {
            _ = writeln!(out, "<p class=\"none\">No evaluation yet: {}.</p>", without.join(", "));
        }
    }
    let once = runs.iter().any(|run| run.evals().next().is_some());
    let otherwise = if once { "Evaluated once: the summary has the numbers." } else { "No evaluation yet." };
    out += &grid("charts", charts, otherwise);
    let groups = curves::groups(runs);
    if !groups.is_empty() {
        out += &grid("charts wide", groups, "");
    }
    out
}

/// Several runs and their colours; each box shows or hides its run everywhere, by style alone.
fn legend(runs: &[Shown<'_>]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let mut out = "<nav class=\"legend\" aria-label=\"Runs\">\n".to_string();
    for Shown { index: run, label, .. } in runs {
        let (key, label) = (tables::key(*run), escape(label));
        _ = writeln!(out, "<label><input type=\"checkbox\" id=\"show{run}\" checked>{key}<b>{label}</b></label>");
    }
    out + "</nav>\n"
}

fn run_styles(count: usize) -> String {
    // Many faint lines over each other are not faint.
    let faint = if count <= 6 { 0.24 } else { 0.12 };
    let mut out = format!(":root{{--faint:{faint}}}\n");
    for run in 0..count {
        let (colour, dash) = (run % COLOURS, DASHES[run / COLOURS % DASHES.len()]);
        _ = writeln!(out, ".r{run}{{--run:var(--c{colour});--dash:{dash}}}");
        _ = writeln!(out, "body:has(#show{run}:not(:checked)) .plot .r{run}{{display:none}}");
    }
    out
}

fn notes() -> String {
    let (raw, smooth) = (2 * series::BUCKETS, series::SMOOTH_POINTS);
    let window = 2.0 * curves::REACH * 100.0;
    format!(
        "<footer>\n<p>Losses are cross-entropies in nats per target token; accuracy counts target tokens whose largest \
         logit is right, exact match sequences all of whose targets are. The perplexity of text is per token of its tokenizer; \
         bits per byte count what a byte of text costs, whichever the tokenizer. Runs of different tasks, texts or tokenizers are shown \
         apart, as their losses say nothing of each other; where a table sets a number off, it is the best of its own table. The best evaluation is that of the \
         checkpoint that the run keeps as its best. Speed (tokens/s) is the median over steps; time is that of training steps alone. A \
         run without a recorded stop is called running: one that was killed looks the same.</p>\n\
         <p>Faint lines are single steps: where there are more than {raw}, the lowest and the highest of each of {} \
         stretches of equal length. Strong lines over them are means over a centred triangular window of {window:.0}% of \
         the longest run, at up to {smooth} steps.</p>\n</footer>\n",
        series::BUCKETS
    )
}
