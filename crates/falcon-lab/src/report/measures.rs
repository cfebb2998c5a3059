//! The measures of an evaluation, and which runs can be compared by them.

use falcon_base::hex;
use falcon_lm::data::TOKENIZER_FILE;
use falcon_lm::train::EvalRecord;
use sha2::{Digest, Sha256};

use super::run::{RunRecord, ShownRun, plain};
use crate::format::{percent, significant};
use crate::pictures::{Fit, TickFormat};

/// A number that an evaluation may have.
pub struct Measure {
    /// Its name in the title of a chart, after the name of the split.
    pub title: &'static str,
    /// Its name at the head of a column.
    pub head: &'static str,
    pub unit: &'static str,
    pub fit: Fit,
    pub format: TickFormat,
    pub show: fn(f64) -> String,
    pub better: Better,
    pub value: fn(&EvalRecord) -> Option<f64>,
}

/// Which values are better. The best one is set in bold; with [`Better::Neither`], none is.
#[derive(Clone, Copy)]
pub enum Better {
    Low,
    High,
    Neither,
}

/// All measures, in the order in which they are shown.
pub const MEASURES: &[Measure] = &[
    Measure {
        title: "loss",
        head: "loss",
        unit: "nats per token",
        fit: Fit::Tight,
        format: TickFormat::Number,
        show: significant,
        better: Better::Low,
        value: |eval| Some(eval.total.loss),
    },
    Measure {
        title: "perplexity",
        head: "perplexity",
        unit: "per token",
        fit: Fit::Tight,
        format: TickFormat::Number,
        show: significant,
        better: Better::Low,
        value: token_perplexity,
    },
    Measure {
        title: "bits per byte",
        head: "bits per byte",
        unit: "of text",
        fit: Fit::Tight,
        format: TickFormat::Number,
        show: significant,
        better: Better::Low,
        value: |eval| eval.about.get("byte perplexity").map(|perplexity| perplexity.log2()),
    },
    Measure {
        title: "accuracy",
        head: "accuracy",
        unit: "of tokens",
        fit: Fit::Fraction,
        format: TickFormat::Percent,
        show: percent,
        better: Better::High,
        value: |eval| Some(eval.total.accuracy),
    },
    Measure {
        title: "exact match",
        head: "exact",
        unit: "of sequences",
        fit: Fit::Fraction,
        format: TickFormat::Percent,
        show: percent,
        better: Better::High,
        // No window of text is ever predicted completely.
        value: |eval| token_perplexity(eval).is_none().then_some(eval.total.exact),
    },
];

/// The perplexity per token of text; other tasks have none.
fn token_perplexity(eval: &EvalRecord) -> Option<f64> {
    eval.about.get("token perplexity").copied()
}

/// Runs that were evaluated on the same data with the same tokenizer, so that their numbers can be compared.
pub struct Comparable<'a> {
    /// What distinguishes their task from that of the other runs; none if all runs can be compared.
    pub title: Option<String>,
    pub runs: Vec<ShownRun<'a>>,
}

/// Keys of the addition task that affect training but not evaluation.
const TRAINING_ONLY: [&str; 4] = ["widths", "mixture", "sparse", "sparse_until"];

/// Keys of a task and their values.
type Keys = Vec<(String, String)>;

/// What a run is evaluated on: the keys of its task that affect evaluation, and their values. A tokenizer is identified
/// by its content, as two runs may use the same name for different ones.
fn evaluation_keys(run: &RunRecord) -> Keys {
    let task = run.config.get("task").and_then(toml::Value::as_table);
    let keys = task.into_iter().flatten().filter(|(key, _)| !TRAINING_ONLY.contains(&key.as_str()));
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

/// Groups runs by what they are evaluated on, in order of the first run of each group.
pub fn comparable<'a>(runs: &[ShownRun<'a>]) -> Vec<Comparable<'a>> {
    let mut groups: Vec<(Keys, Vec<ShownRun<'a>>)> = Vec::new();
    for run in runs {
        let keys = evaluation_keys(run);
        match groups.iter_mut().find(|(group_keys, _)| *group_keys == keys) {
            Some((_, runs)) => runs.push(run.clone()),
            None => groups.push((keys, vec![run.clone()])),
        }
    }
    let all_keys: Vec<Keys> = groups.iter().map(|(keys, _)| keys.clone()).collect();
    let name =
        |keys: &[(String, String)]| keys.iter().find(|(key, _)| key == "name").map(|(_, name)| name.clone());
    let shown = |value: &String| if value.is_empty() { "none".into() } else { value.clone() };
    let title = |group: &[(String, String)]| {
        let others: Vec<_> = all_keys.iter().filter(|other| name(other) == name(group)).collect();
        let differs = |pair: &&(String, String)| others.iter().any(|other| !other.contains(pair));
        let differing: Vec<String> =
            group.iter().filter(differs).map(|(key, value)| format!("{key} = {}", shown(value))).collect();
        let name = name(group).unwrap_or_else(|| "unknown task".into());
        if differing.is_empty() { name } else { format!("{name}: {}", differing.join(", ")) }
    };
    let several = groups.len() > 1;
    let group =
        |(keys, runs): (Keys, Vec<ShownRun<'a>>)| Comparable { title: several.then(|| title(&keys)), runs };
    groups.into_iter().map(group).collect()
}
