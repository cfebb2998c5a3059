//! Questions with choices, and last words, as lm-evaluation-harness scores them.
//!
//! A choice is scored by the sum of the log-likelihoods of its tokens after the question. `acc` takes the largest sum, `acc_norm` the largest sum
//! divided by the characters of the choice; the first of equals. WinoGrande scores one continuation after each of two contexts.

use std::fs;
use std::path::{Path, PathBuf};

use falcon_nn::Model;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::likelihood::{Likelihood, Request, likelihoods};
use crate::data::{Tokenizer, hex, in_line};

/// How a question is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
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

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// Its name, and that of its file without `.jsonl`.
    pub name: &'static str,
    /// What tables call it.
    pub title: &'static str,
    form: Form,
    /// Whether tables show `acc_norm`, as the paper's do.
    pub normalised: bool,
}

/// The paper's, in its order.
pub const BENCHMARKS: [Benchmark; 9] = {
    const fn of(name: &'static str, title: &'static str, form: Form, normalised: bool) -> Benchmark {
        Benchmark { name, title, form, normalised }
    }
    [
        of("lambada_openai", "LAMBADA", Form::LastWord, false),
        of("piqa", "PIQA", Form::Question, false),
        of("hellaswag", "HellaSwag", Form::Story, true),
        of("winogrande", "WinoGrande", Form::Contexts, false),
        of("arc_easy", "ARC-e", Form::Question, false),
        of("arc_challenge", "ARC-c", Form::Question, true),
        of("openbookqa", "OBQA", Form::Stem, true),
        of("social_iqa", "SIQA", Form::Situation, false),
        of("sciq", "SciQ", Form::Question, false),
    ]
};

/// Why a benchmark cannot be run.
#[derive(Debug, Error)]
pub enum BenchmarkError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A line that is no question.
    #[error("{path}, line {line}: {error}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        error: String,
    },
    /// Too few questions.
    #[error(
        "{path}: {got} questions to ask; {needed} are needed, one more than there are examples: set --limit higher or --shots lower"
    )]
    Few {
        /// The file.
        path: PathBuf,
        /// How many there are.
        got: usize,
        /// How many there should be.
        needed: usize,
    },
}

/// A question: ways to go on, of which one is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What comes before, for each way: the same, unless the ways differ in that.
    contexts: Vec<String>,
    /// What is scored, for each way.
    ways: Vec<String>,
    /// Characters of each choice.
    lengths: Vec<usize>,
    gold: usize,
    /// Where it is in its file, counted from 1.
    line: usize,
}

/// A line of a file; which of these it has depends on the benchmark.
#[derive(Deserialize)]
struct Line {
    question: Option<String>,
    support: Option<String>,
    context: Option<String>,
    contexts: Option<Vec<String>>,
    choices: Option<Vec<String>>,
    continuation: Option<String>,
    target: Option<String>,
    gold: Option<usize>,
}

impl Item {
    fn of(form: Form, line: Line, number: usize) -> Result<Self, String> {
        fn need<T>(value: Option<T>, name: &str) -> Result<T, String> {
            value.ok_or_else(|| format!("it has no {name:?}"))
        }
        let Line { question, support, context, contexts, choices, continuation, target, gold } = line;
        let (contexts, choices, gold) = match form {
            Form::Contexts => {
                let contexts = need(contexts, "contexts")?;
                let choices = vec![need(continuation, "continuation")?; contexts.len()];
                (contexts, choices, need(gold, "gold")?)
            }
            Form::LastWord => (vec![need(context, "context")?], vec![need(target, "target")?], 0),
            _ => {
                let choices = need(choices, "choices")?;
                let context = match form {
                    Form::Question => {
                        // SciQ has a passage to find the answer in, where the file has it.
                        let passage = support.map_or(String::new(), |text| format!("{}\n", text.trim_start()));
                        format!("{passage}Question: {}\nAnswer:", need(question, "question")?)
                    }
                    Form::Stem => need(question, "question")?,
                    Form::Situation => {
                        format!("Q: {} {}\nA:", need(context, "context")?, need(question, "question")?)
                    }
                    _ => need(context, "context")?,
                };
                (vec![context; choices.len()], choices, need(gold, "gold")?)
            }
        };
        if gold >= choices.len() {
            return Err(format!("gold is {gold}, and there are {} choices", choices.len()));
        }
        if choices.iter().any(String::is_empty) {
            return Err("a choice is empty".into());
        }
        let lengths = choices.iter().map(|choice| choice.chars().count()).collect();
        let ways = choices.iter().map(|choice| format!(" {choice}")).collect();
        Ok(Self { contexts, ways, lengths, gold, line: number })
    }

    /// How many ways to go on it has.
    pub(super) fn ways(&self) -> usize {
        self.ways.len()
    }

    /// Where it is in its file, counted from 1.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The question with its answer, as an example for another.
    fn example(&self) -> String {
        format!("{}{}\n\n", self.contexts[self.gold], self.ways[self.gold])
    }
}

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

    /// The questions in a file, one JSON object per line; `limit` of them from all over the file, which must be more than `shots`. (Files are
    /// seldom shuffled: the first third of HellaSwag is another kind of text than the rest.)
    pub fn read(&self, path: &Path, limit: usize, shots: usize) -> Result<Vec<Item>, BenchmarkError> {
        let text = fs::read_to_string(path).map_err(|error| BenchmarkError::Io { path: path.into(), error })?;
        let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
        let count = limit.min(lines.len());
        let items: Result<Vec<Item>, _> = (0..count)
            .map(|item| {
                let (index, line) = lines[item * lines.len() / count];
                let wrong = |error| BenchmarkError::Line { path: path.into(), line: index + 1, error };
                let line: Line = serde_json::from_str(line).map_err(|error| wrong(in_line(&error)))?;
                Item::of(self.form, line, index + 1).map_err(wrong)
            })
            .collect();
        let items = items?;
        if items.len() <= shots {
            return Err(BenchmarkError::Few { path: path.into(), got: items.len(), needed: shots + 1 });
        }
        Ok(items)
    }

    /// What is asked of a model, the ways of all questions one after the other. With an example, all questions have the same one, the first
    /// of the file, so that it is read once; that one has the second.
    pub fn requests(&self, items: &[Item], tokenizer: &Tokenizer, shots: usize) -> Vec<Request> {
        let of = |(index, item): (usize, &Item)| -> Vec<Request> {
            let others = items.iter().enumerate().filter(|(other, _)| *other != index);
            let examples: String = others.take(shots).map(|(_, item)| item.example()).collect();
            let ways = item.contexts.iter().zip(&item.ways);
            ways.map(|(context, way)| Request::new(tokenizer, &format!("{examples}{context}"), way)).collect()
        };
        items.iter().enumerate().flat_map(of).collect()
    }

    /// What the answers to [`Benchmark::requests`] amount to.
    pub fn grade(&self, items: &[Item], answers: &[Likelihood], shots: usize) -> BenchmarkResult {
        let mut rest = answers;
        let (mut right, mut right_norm, mut logs) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            let (of_item, after) = rest.split_at(item.ways.len());
            rest = after;
            if self.form == Form::LastWord {
                right.push(f64::from(u8::from(of_item[0].greedy)));
                logs.push(of_item[0].log);
                continue;
            }
            let logs: Vec<f64> = of_item.iter().map(|answer| answer.log).collect();
            let by_character: Vec<f64> = logs.iter().zip(&item.lengths).map(|(log, n)| log / *n as f64).collect();
            right.push(f64::from(u8::from(largest(&logs) == item.gold)));
            right_norm.push(f64::from(u8::from(largest(&by_character) == item.gold)));
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
                _ => items.iter().map(|item| 1.0 / item.ways.len() as f64).sum::<f64>() / items.len() as f64,
            },
            acc: Estimate::of(&right),
            acc_norm: normalised.then(|| Estimate::of(&right_norm)),
            perplexity,
        }
    }

    /// Puts [`Benchmark::requests`] to a model. None if `progress`, told the choices done and all, says to stop by false.
    pub(super) fn put(
        &self,
        model: &Model,
        items: &[Item],
        requests: &[Request],
        shots: usize,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Option<Vec<Likelihood>> {
        let all = requests.len();
        // The first ones have other examples than the rest, which share theirs.
        let (first, rest) =
            requests.split_at(items[..shots.min(items.len())].iter().map(|item| item.ways.len()).sum());
        let mut answers = likelihoods(model, first, &mut |done| progress(done, all))?;
        answers.extend(likelihoods(model, rest, &mut |done| progress(first.len() + done, all))?);
        Some(answers)
    }
}

/// What tells questions, as they are asked, from others: the beginning of a hash.
pub(super) fn fingerprint(items: &[Item], requests: &[Request]) -> String {
    let mut hash = Sha256::new();
    let mut add = |number: usize| hash.update((number as u64).to_le_bytes());
    for Item { ways, lengths, gold, .. } in items {
        add(ways.len());
        add(*gold);
        lengths.iter().for_each(|length| add(*length));
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

    use super::*;
    use crate::tasks::rng;

    fn items(name: &str, lines: &[&str]) -> Vec<Item> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(&path, lines.join("\n")).unwrap();
        Benchmark::named(name).unwrap().read(&path, usize::MAX, 0).unwrap()
    }

    fn answer(log: f64) -> Likelihood {
        Likelihood { log, greedy: false }
    }

    #[test]
    fn prompts_are_those_of_the_harness() {
        let question = r#"{"question": "Why?", "choices": ["So.", "Thus it is."], "gold": 1}"#;
        let cases = [
            ("piqa", question, "Question: Why?\nAnswer:", " Thus it is."),
            ("sciq", question, "Question: Why?\nAnswer:", " Thus it is."),
            (
                "sciq",
                r#"{"support": " It is so.", "question": "Why?", "choices": ["a", "b"], "gold": 1}"#,
                "It is so.\nQuestion: Why?\nAnswer:",
                " b",
            ),
            ("openbookqa", question, "Why?", " Thus it is."),
            (
                "social_iqa",
                r#"{"context": "A ran.", "question": "Why?", "choices": ["x", "y", "z"], "gold": 1}"#,
                "Q: A ran. Why?\nA:",
                " y",
            ),
            ("hellaswag", r#"{"context": "A man", "choices": ["x", "y"], "gold": 1}"#, "A man", " y"),
            (
                "winogrande",
                r#"{"contexts": ["so Ann", "so Bob"], "continuation": "won.", "gold": 1}"#,
                "so Bob",
                " won.",
            ),
            ("lambada_openai", r#"{"context": "the end is", "target": "near"}"#, "the end is", " near"),
        ];
        for (name, line, context, way) in cases {
            let [item] = items(name, &[line]).try_into().unwrap();
            assert_eq!(
                (item.contexts[item.gold].as_str(), item.ways[item.gold].as_str()),
                (context, way),
                "{name}"
            );
        }
    }

    #[test]
    fn an_example_stands_before() {
        let lines =
            [1, 2, 3].map(|i| format!(r#"{{"question": "q{i}", "choices": ["a{i}", "b{i}"], "gold": 1}}"#));
        let items = items("arc_easy", &lines.each_ref().map(String::as_str));
        let (bytes, benchmark) = (Tokenizer::bytes(), Benchmark::named("arc_easy").unwrap());
        let context = |requests: &[Request], i: usize| bytes.decode(&requests[i].context);
        let requests = benchmark.requests(&items, &bytes, 1);
        assert_eq!(context(&requests, 2), "Question: q1\nAnswer: b1\n\nQuestion: q2\nAnswer:");
        assert_eq!(
            context(&requests, 0),
            "Question: q2\nAnswer: b2\n\nQuestion: q1\nAnswer:",
            "another than itself"
        );
        assert_eq!(context(&benchmark.requests(&items, &bytes, 0), 2), "Question: q2\nAnswer:");
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
                    let choices: Vec<String> = (0..choices).map(|_| "x".repeat(rng.random_range(3..30))).collect();
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

    #[test]
    fn a_part_is_from_all_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let line = |i: usize| format!(r#"{{"question": "q{i}", "choices": ["a", "b"], "gold": 0}}"#);
        fs::write(&path, (0..10).map(|i| line(i) + "\n\n").collect::<String>()).unwrap();
        let benchmark = Benchmark::named("openbookqa").unwrap();
        let asked = |limit: usize| -> Vec<String> {
            benchmark.read(&path, limit, 0).unwrap().into_iter().map(|item| item.contexts[0].clone()).collect()
        };
        assert_eq!(asked(4), ["q0", "q2", "q5", "q7"]);
        assert_eq!((asked(10).len(), asked(99).len()), (10, 10));
    }

    /// Another answer to the same words is another question.
    #[test]
    fn questions_are_told_apart() {
        let of = |gold: usize, choices: &str| {
            let line = format!(r#"{{"question": "q", "choices": {choices}, "gold": {gold}}}"#);
            let items = items("piqa", &[&line]);
            let requests = Benchmark::named("piqa").unwrap().requests(&items, &Tokenizer::bytes(), 0);
            fingerprint(&items, &requests)
        };
        let known = of(0, r#"["a", "b"]"#);
        assert_eq!(known, of(0, r#"["a", "b"]"#));
        assert!(known != of(1, r#"["a", "b"]"#) && known != of(0, r#"["a", "c"]"#));
    }

    #[test]
    fn wrong_lines_say_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("piqa.jsonl");
        let said = |name: &str, text: &str| {
            fs::write(&path, text).unwrap();
            Benchmark::named(name).unwrap().read(&path, usize::MAX, 0).unwrap_err().to_string()
        };
        let good = r#"{"question": "q", "choices": ["a", "b"], "gold": 1}"#;
        let wrong = said("piqa", &format!("{good}\n{{\"question\": \"q\", \"gold\": 0}}"));
        assert!(wrong.contains("line 2") && wrong.contains("no \"choices\""), "{wrong}");
        let cut = said("piqa", &format!("{good}\n{}", &good[..good.len() - 1]));
        assert!(cut.ends_with("line 2: EOF while parsing an object, column 50"), "{cut}");
        assert!(said("piqa", &good.replace("1}", "2}")).contains("gold is 2, and there are 2 choices"));
        assert!(said("piqa", "").contains("0 questions to ask; 1 are needed"));
        assert!(said("winogrande", good).contains("no \"contexts\""));
    }
}
