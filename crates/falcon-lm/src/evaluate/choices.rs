//! Scoring the answers to a benchmark as lm-evaluation-harness does.
//!
//! A choice is scored by the sum of the log-likelihoods of its tokens after the question. `acc` counts a question as
//! right if the right choice has the largest sum, `acc_norm` if it has the largest sum divided by the characters of
//! the choice; the first of equal choices counts. WinoGrande scores one continuation after each of two contexts.

use falcon_base::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::benchmark::{Benchmark, PromptFormat};
use super::likelihood::{Likelihood, Request};
use super::questions::Questions;

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean over all questions.
    pub mean: f64,
    /// The standard error of the mean: the standard deviation of the sample divided by the square root of its size.
    pub stderr: f64,
}

impl Estimate {
    fn of(values: &[f64]) -> Self {
        let (mean, variance) = mean_and_variance(values);
        Self { mean, stderr: variance.map_or(0.0, |variance| (variance / values.len() as f64).sqrt()) }
    }
}

/// The mean of a sample and its unbiased variance, which is undefined for a single value.
pub fn mean_and_variance(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (values.len() > 1).then(|| squares / (n - 1.0)))
}

/// A model's results on a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkResult {
    /// Name of the benchmark.
    pub name: String,
    /// Number of examples before each question.
    pub shots: usize,
    /// Number of questions.
    pub items: usize,
    /// Identifies the questions, examples and tokens, as [`Questions::fingerprint`] computes it. Empty in files from
    /// before there were fingerprints.
    #[serde(default)]
    pub fingerprint: String,
    /// The accuracy of guessing; 0 where the last word is predicted.
    #[serde(default)]
    pub chance: f64,
    /// The accuracy by the log-likelihood of a whole choice. Where the last word is predicted: the fraction of words
    /// all of whose tokens are the most likely ones.
    pub acc: Estimate,
    /// The accuracy by the log-likelihood per character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acc_norm: Option<Estimate>,
    /// Where the last word is predicted: the exponential of the mean negative log-likelihood of the words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<Estimate>,
}

impl BenchmarkResult {
    /// The accuracy that tables show.
    pub fn shown(&self) -> Estimate {
        let normalised = Benchmark::named(&self.name).is_some_and(|benchmark| benchmark.normalised);
        self.acc_norm.filter(|_| normalised).unwrap_or(self.acc)
    }
}

impl Questions {
    /// Scores the answers to `requests`, which [`Questions::requests`] made with `shots` examples.
    pub fn grade(&self, requests: &[Request], answers: &[Likelihood], shots: usize) -> BenchmarkResult {
        let (form, items) = (self.benchmark.form, &self.asked);
        let mut rest = answers;
        let (mut right, mut right_norm, mut last_words) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            let answers;
            (answers, rest) = rest.split_at(item.ways());
            if form == PromptFormat::LastWord {
                right.push(f64::from(u8::from(answers[0].greedy)));
                last_words.push(answers[0].log);
                continue;
            }
            let logs: Vec<f64> = answers.iter().map(|answer| answer.log).collect();
            let characters = |way| item.choice(way).chars().count() as f64;
            let by_character: Vec<f64> = logs.iter().enumerate().map(|(way, log)| log / characters(way)).collect();
            right.push(f64::from(u8::from(largest(&logs) == item.gold())));
            right_norm.push(f64::from(u8::from(largest(&by_character) == item.gold())));
        }
        let perplexity = (form == PromptFormat::LastWord).then(|| {
            let Estimate { mean, stderr } = Estimate::of(&last_words);
            Estimate { mean: (-mean).exp(), stderr: (-mean).exp() * stderr }
        });
        // All choices of a WinoGrande question are the same text.
        let normalised = !matches!(form, PromptFormat::LastWord | PromptFormat::Contexts);
        BenchmarkResult {
            name: self.benchmark.name.into(),
            shots,
            items: items.len(),
            fingerprint: self.fingerprint(requests),
            chance: match form {
                PromptFormat::LastWord => 0.0,
                _ => items.iter().map(|item| 1.0 / item.ways() as f64).sum::<f64>() / items.len() as f64,
            },
            acc: Estimate::of(&right),
            acc_norm: normalised.then(|| Estimate::of(&right_norm)),
            perplexity,
        }
    }

    /// Identifies the questions as they are asked, with their examples and right answers: the beginning of a hash.
    pub fn fingerprint(&self, requests: &[Request]) -> String {
        let mut hash = Sha256::new();
        let mut add = |number: usize| hash.update((number as u64).to_le_bytes());
        for item in &self.asked {
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
}

/// The index of the largest value; of equal ones, the first.
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

    use super::*;
    use crate::data::Tokenizer;
    use crate::random::rng;

    /// The result of giving `answers` to the questions in `lines`.
    fn graded(name: &str, lines: &[&str], answers: &[Likelihood]) -> BenchmarkResult {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        let questions = Questions::read(Benchmark::named(name).unwrap(), &path, None, 0).unwrap();
        let requests = questions.requests(&Tokenizer::bytes(), 0, &mut ()).unwrap();
        questions.grade(&requests, answers, 0)
    }

    fn answer(log: f64) -> Likelihood {
        Likelihood { log, greedy: false }
    }

    /// By hand: choices of 2 and 8 characters with log-likelihoods of -3 and -4. The sum prefers the first; per
    /// character, -1.5 against -0.5 prefers the second.
    #[test]
    fn grades_are_as_defined() {
        let line = |gold| format!(r#"{{"question": "q", "choices": ["ab", "abcdéfgh"], "gold": {gold}}}"#);
        let answers = [-3.0, -4.0].map(answer).repeat(4);
        let result = graded("arc_challenge", &[&line(0), &line(1), &line(1), &line(1)], &answers);
        assert_eq!((result.acc.mean, result.acc_norm.unwrap().mean), (0.25, 0.75));
        // √(((3/4)² + 3 (1/4)²) / 3 / 4) = 1/4
        assert!((result.acc.stderr - 0.25).abs() < 1e-12);
        assert_eq!(result.shown(), result.acc_norm.unwrap(), "the paper shows acc_norm for ARC-c");
        let tie = graded("arc_challenge", &[&line(0)], &[-3.0, -3.0].map(answer));
        assert_eq!(tie.acc.mean, 1.0, "of equal choices, the first one counts");
    }

    #[test]
    fn last_words_have_a_perplexity() {
        let line = r#"{"context": "c", "target": "t"}"#;
        let answers =
            [Likelihood { log: -2f64.ln(), greedy: true }, Likelihood { log: -8f64.ln(), greedy: false }];
        let result = graded("lambada_openai", &[line, line], &answers);
        let perplexity = result.perplexity.unwrap();
        // e^((ln 2 + ln 8) / 2) = 4, and the standard error of the mean is ln 2.
        assert!((perplexity.mean - 4.0).abs() < 1e-12 && (perplexity.stderr - 4.0 * 2f64.ln()).abs() < 1e-12);
        assert_eq!((result.acc.mean, result.acc_norm), (0.5, None));
    }

    /// Random scores are right as often as guessing is, for every number of choices.
    #[test]
    fn random_scores_are_right_by_chance() {
        for (name, choices) in [("piqa", 2), ("social_iqa", 3), ("hellaswag", 4)] {
            let mut rng = rng(1, 2);
            let lines: Vec<String> = (0..3000)
                .map(|_| {
                    // Different letters, because not all choices may be the same.
                    let letter = |way: u8| char::from(b'a' + way).to_string();
                    let choices: Vec<String> =
                        (0..choices).map(|way| letter(way as u8).repeat(rng.random_range(3..30))).collect();
                    let gold = rng.random_range(0..choices.len());
                    serde_json::json!({ "question": "q", "context": "c", "choices": choices, "gold": gold })
                        .to_string()
                })
                .collect();
            let answers: Vec<Likelihood> =
                (0..3000 * choices).map(|_| answer(-rng.random_range(1.0..9.0))).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let result = graded(name, &lines, &answers);
            for estimate in [result.acc, result.acc_norm.unwrap()] {
                assert!(
                    (estimate.mean - 1.0 / choices as f64).abs() < 3.0 * estimate.stderr,
                    "{name}: {estimate:?}"
                );
            }
        }
    }
}
