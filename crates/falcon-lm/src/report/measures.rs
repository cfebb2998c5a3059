//! What is told of a measurement, and which runs can be compared by it.

use sha2::{Digest, Sha256};

use super::html::{percent, significant};
use super::run::{RunRecord, Shown, plain};
use super::scale::{Fit, Format};
use crate::data::{TOKENIZER_FILE, hex};
use crate::train::EvalRecord;

/// A number that an evaluation has, or not.
pub struct Measure {
    /// In a chart, after the name of the split.
    pub title: &'static str,
    /// In a table.
    pub head: &'static str,
    pub unit: &'static str,
    pub fit: Fit,
    pub format: Format,
    pub show: fn(f64) -> String,
    pub better: Better,
    pub value: fn(&EvalRecord) -> Option<f64>,
}

/// Which values are set off, if runs can be compared by them.
#[derive(Clone, Copy)]
pub enum Better {
    Low,
    High,
    Neither,
}

/// All measures, in the order they are shown.
pub const MEASURES: [Measure; 5] = [
    Measure {
        title: "loss",
        head: "loss",
        unit: "nats per token",
        fit: Fit::Decades,
        format: Format::Number,
        show: significant,
        better: Better::Low,
        value: |eval| Some(eval.total.loss),
    },
    Measure {
        title: "perplexity",
        head: "perplexity",
        unit: "per token",
        fit: Fit::Decades,
        format: Format::Number,
        show: significant,
        better: Better::Low,
        value: token_perplexity,
    },
    Measure {
        title: "bits per byte",
        head: "bits per byte",
        unit: "of text",
        fit: Fit::Decades,
        format: Format::Number,
        show: significant,
        better: Better::Low,
        value: |eval| eval.about.get("byte perplexity").map(|perplexity| perplexity.log2()),
    },
    Measure {
        title: "accuracy",
        head: "accuracy",
        unit: "of tokens",
        fit: Fit::Part,
        format: Format::Percent,
        show: percent,
        better: Better::High,
        value: |eval| Some(eval.total.accuracy),
    },
    Measure {
        title: "exact match",
        head: "exact",
        unit: "of sequences",
        fit: Fit::Part,
        format: Format::Percent,
        show: percent,
        better: Better::High,
        // No window of text is ever foretold in whole.
        value: |eval| token_perplexity(eval).is_none().then_some(eval.total.exact),
    },
];

/// Text has a perplexity; other tasks have none.
fn token_perplexity(eval: &EvalRecord) -> Option<f64> {
    eval.about.get("token perplexity").copied()
}

/// Runs that are measured on the same data by the same tokens, so that their numbers can be compared.
pub struct Comparable<'a> {
    /// What they have in common and other runs have not; empty if there are no others.
    pub title: String,
    pub runs: Vec<Shown<'a>>,
}

/// Options of addition that say what is learnt, and not what is measured.
const LEARNT: [&str; 4] = ["widths", "mixture", "sparse", "sparse_until"];

/// Keys of a task and their values.
type Keys = Vec<(String, String)>;

/// What is measured: the keys of the task, with the content of the tokenizer, which may have the same name in two runs.
fn measured(run: &RunRecord) -> Keys {
    let task = run.config.get("task").and_then(toml::Value::as_table);
    let keys = task.into_iter().flatten().filter(|(key, _)| !LEARNT.contains(&key.as_str()));
    let tokenizer = std::fs::read(run.folder.join(TOKENIZER_FILE));
    keys.map(|(key, value)| match (key.as_str(), &tokenizer) {
        ("tokenizer", Ok(bytes)) => {
            let name = plain(value);
            let name = name.rsplit('/').next().unwrap_or(&name);
            (key.clone(), format!("{name} ({})", hex(&Sha256::digest(bytes)[..4])))
        }
        _ => (key.clone(), plain(value)),
    })
    .collect()
}

/// Runs by what is measured, in the order of the first of each.
pub fn comparable<'a>(runs: &[Shown<'a>]) -> Vec<Comparable<'a>> {
    let mut groups: Vec<(Keys, Vec<Shown<'a>>)> = Vec::new();
    for run in runs {
        let measured = measured(run);
        match groups.iter_mut().find(|(known, _)| *known == measured) {
            Some((_, runs)) => runs.push(run.clone()),
            None => groups.push((measured, vec![run.clone()])),
        }
    }
    let keys: Vec<Keys> = groups.iter().map(|(measured, _)| measured.clone()).collect();
    let name =
        |keys: &[(String, String)]| keys.iter().find(|(key, _)| key == "name").map(|(_, name)| name.clone());
    let shown = |value: &String| if value.is_empty() { "none".into() } else { value.clone() };
    let title = |group: &[(String, String)]| {
        let others: Vec<_> = keys.iter().filter(|other| name(other) == name(group)).collect();
        let differs = |pair: &&(String, String)| others.iter().any(|other| !other.contains(pair));
        let differing: Vec<String> =
            group.iter().filter(differs).map(|(key, value)| format!("{key} = {}", shown(value))).collect();
        let name = name(group).unwrap_or_else(|| "unknown task".into());
        if differing.is_empty() { name } else { format!("{name}: {}", differing.join(", ")) }
    };
    let alone = keys.len() < 2;
    let of = |(measured, runs): (Keys, Vec<Shown<'a>>)| Comparable {
        title: if alone { String::new() } else { title(&measured) },
        runs,
    };
    groups.into_iter().map(of).collect()
}
