//! Questions with choices, and last words, as lm-evaluation-harness scores them.
//!
//! A choice is scored by the sum of the log-likelihoods of its tokens after the question. `acc` takes the largest sum, `acc_norm` the largest sum
//! divided by the characters of the choice; the first of equals. WinoGrande scores one continuation after each of two contexts.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::likelihood::{Likelihood, Request};
use super::questions::Item;
use crate::data::hex;

/// How a question is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `Question: …\nAnswer:`
    Question,
    /// The stem of a sentence that the choices end.
    Stem,
    /// `Q: context question\nA:`
    Situation,
    /// A context that the choices go on from.
    Story,
    /// Two contexts and what comes after.
    Contexts,
    /// A text and its last word.
    LastWord,
}

/// The splits that a benchmark has in lm-evaluation-harness, which decide how many examples it draws for a
/// question. It means to draw one more than are needed, to leave out the question itself, where examples come from
/// the questions; what it looks at is whether there is a test split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    /// Training and validation, which is asked: one more is drawn from the training split, and not used.
    Validation,
    /// Training and test, which is asked: as many as are needed.
    Test,
    /// Test alone, which is asked and drawn from: as many as are needed, and the question itself may be among
    /// them.
    TestOnly,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// Its name, and that of its file without `.jsonl`.
    pub name: &'static str,
    /// What tables call it.
    pub title: &'static str,
    pub(super) form: Form,
    pub(super) splits: Splits,
    /// Whether tables show `acc_norm`, as the paper's do.
    pub normalised: bool,
}

/// The paper's, in its order.
pub const BENCHMARKS: [Benchmark; 9] = {
    use {Form::*, Splits::*};
    const fn of(
        name: &'static str,
        title: &'static str,
        form: Form,
        splits: Splits,
        normalised: bool,
    ) -> Benchmark {
        Benchmark { name, title, form, splits, normalised }
    }
    [
        of("lambada_openai", "LAMBADA", LastWord, TestOnly, false),
        of("piqa", "PIQA", Question, Validation, false),
        of("hellaswag", "HellaSwag", Story, Validation, true),
        of("winogrande", "WinoGrande", Contexts, Validation, false),
        of("arc_easy", "ARC-e", Question, Test, false),
        of("arc_challenge", "ARC-c", Question, Test, true),
        of("openbookqa", "OBQA", Stem, Test, true),
        of("social_iqa", "SIQA", Situation, Validation, false),
        of("sciq", "SciQ", Question, Test, false),
    ]
};

/// A mean, and how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Of all questions.
    pub mean: f64,
    /// Standard error: the standard deviation of a sample over the root of its size.
    pub stderr: f64,
}

impl Estimate {
    fn of(values: &[f64]) -> Self {
        let (mean, variance) = mean_and_variance(values);
        Self { mean, stderr: variance.map_or(0.0, |variance| (variance / values.len() as f64).sqrt()) }
    }
}

/// The mean of a sample and its variance, which a single value has not.
pub(crate) fn mean_and_variance(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (values.len() > 1).then(|| squares / (n - 1.0)))
}

/// What a model made of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkResult {
    /// Which.
    pub name: String,
    /// Examples before each question.
    pub shots: usize,
    /// Questions.
    pub items: usize,
    /// What tells these questions, examples and tokens from others.
    #[serde(default)]
    pub fingerprint: String,
    /// Fraction of right answers that guessing has; of last words 0.
    #[serde(default)]
    pub chance: f64,
    /// Fraction of right answers by the likelihood of the whole choice; of last words, of those that are the likeliest.
    pub acc: Estimate,
    /// The same by the likelihood divided by characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acc_norm: Option<Estimate>,
    /// Of last words: the exponential of their mean negative log-likelihood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<Estimate>,
}

impl BenchmarkResult {
    /// What tables show.
    pub fn shown(&self) -> Estimate {
        let normalised = Benchmark::named(&self.name).is_some_and(|benchmark| benchmark.normalised);
        self.acc_norm.filter(|_| normalised).unwrap_or(self.acc)
    }
}

impl Benchmark {
    /// By name.
    pub fn named(name: &str) -> Option<&'static Self> {
        BENCHMARKS.iter().find(|benchmark| benchmark.name == name)
    }

    /// What the answers to [`Questions::requests`](super::Questions::requests) amount to.
    pub fn grade(&self, items: &[Item], answers: &[Likelihood], shots: usize) -> BenchmarkResult {
        let mut rest = answers;
        let (mut right, mut right_norm, mut logs) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            let (of_item, after) = rest.split_at(item.ways());
            rest = after;
            if self.form == Form::LastWord {
                right.push(f64::from(u8::from(of_item[0].greedy)));
                logs.push(of_item[0].log);
                continue;
            }
            let logs: Vec<f64> = of_item.iter().map(|answer| answer.log).collect();
            let characters = |way| item.choice(way).chars().count() as f64;
            let by_character: Vec<f64> = logs.iter().enumerate().map(|(way, log)| log / characters(way)).collect();
            right.push(f64::from(u8::from(largest(&logs) == item.gold())));
            right_norm.push(f64::from(u8::from(largest(&by_character) == item.gold())));
        }
        let perplexity = (self.form == Form::LastWord).then(|| {
            let Estimate { mean, stderr } = Estimate::of(&logs);
            Estimate { mean: (-mean).exp(), stderr: (-mean).exp() * stderr }
        });
        // Of WinoGrande all choices are the same text.
        let normalised = !matches!(self.form, Form::LastWord | Form::Contexts);
        BenchmarkResult {
            name: self.name.into(),
            shots,
            items: items.len(),
            fingerprint: String::new(),
            chance: match self.form {
                Form::LastWord => 0.0,
                _ => items.iter().map(|item| 1.0 / item.ways() as f64).sum::<f64>() / items.len() as f64,
            },
            acc: Estimate::of(&right),
            acc_norm: normalised.then(|| Estimate::of(&right_norm)),
            perplexity,
        }
    }
}

/// What tells questions, as they are asked, from others: the beginning of a hash.
pub(super) fn fingerprint(items: &[Item], requests: &[Request]) -> String {
    let mut hash = Sha256::new();
    let mut add = |number: usize| hash.update((number as u64).to_le_bytes());
    for item in items {
        add(item.ways());
        add(item.gold());
        (0..item.ways()).for_each(|way| add(item.choice(way).chars().count()));
    }
    for Request { context, continuation } in requests {
        for part in [context, continuation] {
            add(part.len());
            part.iter().for_each(|token| add(*token as usize));
        }
    }
    hex(&hash.finalize()[..8])
}

/// The place of the largest, the first of equals.
fn largest(values: &[f64]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::super::Questions;
    use super::*;
    use crate::tasks::rng;

    fn items(name: &str, lines: &[&str]) -> Vec<Item> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        Questions::read(Benchmark::named(name).unwrap(), &path, usize::MAX, 0).unwrap().asked
    }

    fn answer(log: f64) -> Likelihood {
        Likelihood { log, greedy: false }
    }

    /// By hand: choices of 2 and of 8 characters with log-likelihoods of -3 and -4. The whole prefers the first, by character
    /// -1.5 against -0.5 prefers the second.
    #[test]
    fn grades_are_as_defined() {
        let line = |gold| format!(r#"{{"question": "q", "choices": ["ab", "abcdéfgh"], "gold": {gold}}}"#);
        let items = items("arc_challenge", &[&line(0), &line(1), &line(1), &line(1)]);
        let answers = [-3.0, -4.0].map(answer).repeat(4);
        let result = Benchmark::named("arc_challenge").unwrap().grade(&items, &answers, 0);
        assert_eq!((result.acc.mean, result.acc_norm.unwrap().mean), (0.25, 0.75));
        // √(((3/4)² + 3 (1/4)²) / 3 / 4) = 1/4
        assert!((result.acc.stderr - 0.25).abs() < 1e-12);
        assert_eq!(result.shown(), result.acc_norm.unwrap(), "as the paper shows this one");
        let tie = Benchmark::named("arc_challenge").unwrap().grade(&items[..1], &[-3.0, -3.0].map(answer), 0);
        assert_eq!(tie.acc.mean, 1.0, "the first of equals");
    }

    #[test]
    fn last_words_have_a_perplexity() {
        let line = r#"{"context": "c", "target": "t"}"#;
        let items = items("lambada_openai", &[line, line]);
        let answers =
            [Likelihood { log: -2f64.ln(), greedy: true }, Likelihood { log: -8f64.ln(), greedy: false }];
        let result = Benchmark::named("lambada_openai").unwrap().grade(&items, &answers, 0);
        let perplexity = result.perplexity.unwrap();
        // e^((ln 2 + ln 8) / 2) = 4, and the standard error of the mean is ln 2.
        assert!((perplexity.mean - 4.0).abs() < 1e-12 && (perplexity.stderr - 4.0 * 2f64.ln()).abs() < 1e-12);
        assert_eq!((result.acc.mean, result.acc_norm), (0.5, None));
    }

    /// Scores that know nothing find as many as guessing does, for every number of choices.
    #[test]
    fn knowing_nothing_is_chance() {
        for (name, choices) in [("piqa", 2), ("social_iqa", 3), ("hellaswag", 4)] {
            let mut rng = rng(1, 2);
            let lines: Vec<String> = (0..3000)
                .map(|_| {
                    // Of different letters, since no two may be the same.
                    let letter = |way: u8| char::from(b'a' + way).to_string();
                    let choices: Vec<String> =
                        (0..choices).map(|way| letter(way as u8).repeat(rng.random_range(3..30))).collect();
                    let gold = rng.random_range(0..choices.len());
                    serde_json::json!({ "question": "q", "context": "c", "choices": choices, "gold": gold })
                        .to_string()
                })
                .collect();
            let items = items(name, &lines.iter().map(String::as_str).collect::<Vec<_>>());
            let answers: Vec<Likelihood> =
                (0..3000 * choices).map(|_| answer(-rng.random_range(1.0..9.0))).collect();
            let result = Benchmark::named(name).unwrap().grade(&items, &answers, 0);
            for estimate in [result.acc, result.acc_norm.unwrap()] {
                assert!(
                    (estimate.mean - 1.0 / choices as f64).abs() < 3.0 * estimate.stderr,
                    "{name}: {estimate:?}"
                );
            }
        }
    }
}
