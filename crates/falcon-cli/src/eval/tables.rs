//! The tables that `falcon eval` prints.

use falcon_lab::tables::{table_head, table_line};
use falcon_lm::evaluate::{Benchmark, Estimate, ModelResult, TextResult};

/// One table of perplexities, and one table of accuracies for each number of few-shot examples, in Markdown.
pub(super) fn tables(results: &[ModelResult], benchmarks: &[&Benchmark], shots: &[usize]) -> String {
    let mut out = String::new();
    if results.iter().any(|result| !result.texts.is_empty()) {
        perplexities(&mut out, results);
    }
    if results.iter().all(|result| result.benchmarks.is_empty()) {
        return out;
    }
    for &shots in shots {
        if !out.is_empty() {
            out.push('\n');
        }
        accuracies(&mut out, results, benchmarks, shots);
    }
    out + "\nAccuracy in percent ± standard error; acc_norm where marked *, otherwise acc. The average covers the \
           multiple-choice benchmarks only.\n"
}

fn perplexities(out: &mut String, results: &[ModelResult]) {
    let titles = ["model", "text", "context", "tokens", "ppl/token", "ppl/byte", "ppl/word", "bits per byte"];
    table_head(out, &titles.map(String::from));
    for result in results {
        for TextResult { text, detokenizer, window, score, .. } in &result.texts {
            let context = match (detokenizer, window) {
                (None, None) => "whole documents".into(),
                (Some(_), None) => "whole pages".into(),
                (None, Some(window)) => format!("windows of {window}"),
                (Some(_), Some(window)) => format!("pages in windows of {window}"),
            };
            let numbers = [score.token_perplexity(), score.byte_perplexity(), score.word_perplexity()];
            let mut cells = vec![result.model.clone(), text.clone(), context, score.tokens.to_string()];
            cells.extend(numbers.map(|number| format!("{number:.3}")));
            cells.push(format!("{:.4}", score.bits_per_byte()));
            table_line(out, &cells);
        }
    }
}

fn accuracies(out: &mut String, results: &[ModelResult], benchmarks: &[&Benchmark], shots: usize) {
    let mut titles = vec![format!("{shots}-shot")];
    for benchmark in benchmarks {
        let mark = if benchmark.normalised { "*" } else { "" };
        if benchmark.has_perplexity() {
            titles.push(format!("{} ppl", benchmark.title));
        }
        titles.push(format!("{}{mark}", benchmark.title));
    }
    titles.push("average".into());
    table_head(out, &titles);
    for result in results {
        let mut cells = vec![result.model.clone()];
        let mut choices = Vec::new();
        for benchmark in benchmarks {
            let found =
                result.benchmarks.iter().find(|found| found.name == benchmark.name && found.shots == shots);
            let Some(found) = found else {
                // The evaluation was cancelled before it reached this benchmark.
                cells.extend(vec!["–".into(); if benchmark.has_perplexity() { 2 } else { 1 }]);
                continue;
            };
            if let Some(Estimate { mean, stderr }) = found.perplexity {
                cells.push(format!("{mean:.2} ± {stderr:.2}"));
            } else {
                choices.push(found.shown().mean);
            }
            let Estimate { mean, stderr } = found.shown();
            cells.push(format!("{:.2} ± {:.2}", 100.0 * mean, 100.0 * stderr));
        }
        let average = 100.0 * choices.iter().sum::<f64>() / choices.len().max(1) as f64;
        cells.push(if choices.is_empty() { "–".into() } else { format!("{average:.2}") });
        table_line(out, &cells);
    }
}
