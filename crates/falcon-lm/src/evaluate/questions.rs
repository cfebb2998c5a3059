//! The questions of a benchmark, and the examples before them, drawn and written as lm-evaluation-harness (0.4.13)
//! does.
//!
//! A file has one JSON object per line. Lines with `"split": "train"` are examples and are never asked; all others
//! are questions. Examples are drawn anew for every question, by one random generator per benchmark, in the order in
//! which questions are asked. In a file without a training split, the questions serve as examples for each other.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use falcon_base::PathError;
use falcon_base::files::open_regular;
use serde::Deserialize;
use thiserror::Error;

use super::benchmark::{Benchmark, PromptFormat, Splits};
use super::likelihood::Request;
use super::python_random::PythonRandom;
use crate::data::{LineError, Lines, Tokenizer, TokenizerError, in_line};
use crate::monitor::{Cancelled, Monitor};

/// The seed with which the harness draws examples.
const SEED: u32 = 1234;
/// The `split` of lines that are examples.
const TRAIN: &str = "train";

/// Why a benchmark's file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchmarkError {
    /// The file cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A line is not a question.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        source: QuestionError,
    },
    /// The file has no questions.
    #[error(
        "{}: no questions to ask; lines with \"split\": \"train\" are examples only, and --limit must be above 0",
        path.display()
    )]
    None {
        /// The file.
        path: PathBuf,
    },
    /// There are too few examples.
    #[error(
        "{}: {got} different questions to draw the examples of line {line} from, {needed} are needed: add lines \
         with \"split\": \"train\", or set --shots lower",
        path.display()
    )]
    Few {
        /// The file.
        path: PathBuf,
        /// The line of the question, counted from 1.
        line: u64,
        /// How many different questions there are.
        got: usize,
        /// How many of them are needed.
        needed: usize,
    },
}

/// What is wrong with a line that should be a question.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QuestionError {
    /// It is not a JSON object with values of the right types.
    #[error("{}", in_line(.0))]
    Json(#[from] serde_json::Error),
    /// A key is missing.
    #[error("it has no {0:?}")]
    Missing(&'static str),
    /// The index of the right choice is out of range.
    #[error("gold is {gold}, and there are {choices} choices")]
    Gold {
        /// The index, counted from 0.
        gold: usize,
        /// The number of choices.
        choices: usize,
    },
    /// There is only one choice, which would always be right.
    #[error("there is 1 choice; a question needs 2 or more")]
    OneChoice,
    /// A choice has no text.
    #[error("choice {0}, counted from 0, is empty")]
    EmptyChoice(usize),
    /// There is no alternative.
    #[error("all {0} choices are the same; a question needs 2 different ones")]
    SameChoices(usize),
}

/// Why the questions cannot be put to a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The tokenizer cannot encode a question.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The work was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// A question with several continuations, one of which is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// One context for all choices, or one for each way to continue if only the contexts differ.
    contexts: Vec<String>,
    /// The continuations that are scored; a single one if the contexts differ.
    choices: Vec<String>,
    gold: usize,
    line: u64,
}

/// A line of a file. The benchmark decides which keys it needs.
#[derive(Deserialize)]
struct Line {
    split: Option<String>,
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
    fn new(form: PromptFormat, line: Line, number: u64) -> Result<Self, QuestionError> {
        fn need<T>(value: Option<T>, name: &'static str) -> Result<T, QuestionError> {
            value.ok_or(QuestionError::Missing(name))
        }
        let Line { question, support, context, contexts, choices, continuation, target, gold, split: _ } = line;
        let (contexts, choices, gold) = match form {
            PromptFormat::Contexts => {
                (need(contexts, "contexts")?, vec![need(continuation, "continuation")?], need(gold, "gold")?)
            }
            PromptFormat::LastWord => (vec![need(context, "context")?], vec![need(target, "target")?], 0),
            PromptFormat::Question | PromptFormat::Stem | PromptFormat::Situation | PromptFormat::Story => {
                let context = match form {
                    PromptFormat::Question => {
                        // SciQ has a passage that contains the answer, if the file has it.
                        let passage = support.map_or(String::new(), |text| format!("{}\n", text.trim_start()));
                        format!("{passage}Question: {}\nAnswer:", need(question, "question")?)
                    }
                    PromptFormat::Stem => need(question, "question")?,
                    PromptFormat::Situation => {
                        format!("Q: {} {}\nA:", need(context, "context")?, need(question, "question")?)
                    }
                    PromptFormat::Story => need(context, "context")?,
                    PromptFormat::Contexts | PromptFormat::LastWord => {
                        unreachable!("these have arms of their own")
                    }
                };
                (vec![context], need(choices, "choices")?, need(gold, "gold")?)
            }
        };
        let item = Self { contexts, choices, gold, line: number };
        let ways = item.ways();
        if gold >= ways {
            return Err(QuestionError::Gold { gold, choices: ways });
        }
        if ways == 1 && form != PromptFormat::LastWord {
            return Err(QuestionError::OneChoice);
        }
        if let Some(empty) = item.choices.iter().position(|choice| choice.trim().is_empty()) {
            return Err(QuestionError::EmptyChoice(empty));
        }
        // Published benchmarks sometimes repeat a wrong choice (ARC, SciQ and Social IQA all do), and the harness
        // asks those questions like any other. Only a question without an alternative is a mistake.
        let first = (item.context(0), item.choice(0));
        if ways > 1 && (1..ways).all(|way| (item.context(way), item.choice(way)) == first) {
            return Err(QuestionError::SameChoices(ways));
        }
        Ok(item)
    }

    /// The number of ways to continue.
    pub(super) fn ways(&self) -> usize {
        if self.contexts.len() == 1 { self.choices.len() } else { self.contexts.len() }
    }

    /// The way that is right.
    pub(super) fn gold(&self) -> usize {
        self.gold
    }

    /// Its line in the file, counted from 1.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The text before a choice.
    fn context(&self, way: usize) -> &str {
        &self.contexts[way.min(self.contexts.len() - 1)]
    }

    /// The text of a choice.
    pub(super) fn choice(&self, way: usize) -> &str {
        &self.choices[way.min(self.choices.len() - 1)]
    }

    /// Everything but the line: equal for copies of a question.
    fn content(&self) -> (&[String], &[String], usize) {
        (&self.contexts, &self.choices, self.gold)
    }

    /// The question with its answer, as an example for another question.
    fn example(&self, form: PromptFormat) -> String {
        // For LAMBADA, the harness has a space in the answer and puts another before it.
        let space = if form == PromptFormat::LastWord { "  " } else { " " };
        format!("{}{space}{}\n\n", self.context(self.gold), self.choice(self.gold))
    }
}

/// The questions of a benchmark that are asked, and those that examples are drawn from.
#[derive(Clone, Debug)]
pub struct Questions {
    /// The benchmark.
    pub benchmark: &'static Benchmark,
    /// The questions that are asked, in order; at least one.
    pub asked: Vec<Item>,
    /// The questions that examples are drawn from: the training split of the file, or all of its questions.
    pool: Vec<Item>,
    /// Whether one example more than needed is drawn, so that the question itself can be left out.
    spare: bool,
}

impl Questions {
    /// Reads a file. With a `limit`, only so many questions are asked, evenly spaced over the file. (Files are seldom
    /// shuffled: the first third of HellaSwag is another kind of text than the rest.) There must be enough questions
    /// to draw `shots` examples for each.
    pub fn read(
        benchmark: &'static Benchmark,
        path: &Path,
        limit: Option<usize>,
        shots: usize,
    ) -> Result<Self, BenchmarkError> {
        let unread = |error| match error {
            LineError::Io(error) => PathError::new(path, error),
            error @ LineError::TooLong { .. } => PathError::new(path, io::Error::other(error)),
        };
        let (mut training, mut questions) = (Vec::new(), Vec::new());
        let mut lines = Lines::new(BufReader::new(open_regular(path)?));
        while let Some((number, json)) = lines.next_line().map_err(unread)? {
            if json.trim_ascii().is_empty() {
                continue;
            }
            let wrong = |source| BenchmarkError::Line { path: path.into(), line: number, source };
            let line: Line = serde_json::from_slice(json).map_err(|error| wrong(error.into()))?;
            let split = if line.split.as_deref() == Some(TRAIN) { &mut training } else { &mut questions };
            split.push(Item::new(benchmark.form, line, number).map_err(wrong)?);
        }
        let count = limit.map_or(questions.len(), |limit| limit.min(questions.len()));
        if count == 0 {
            return Err(BenchmarkError::None { path: path.into() });
        }
        let asked = (0..count).map(|item| questions[item * questions.len() / count].clone()).collect();
        let spare = match benchmark.splits {
            Splits::Validation => true,
            Splits::Test => training.is_empty(),
            Splits::TestOnly => false,
        };
        let pool = if training.is_empty() { questions } else { training };
        let read = Self { benchmark, asked, pool, spare };
        read.check(path, shots)?;
        Ok(read)
    }

    /// Refuses a file in which a question has too few examples. The copies of a question do not count, because they
    /// are left out with it.
    fn check(&self, path: &Path, shots: usize) -> Result<(), BenchmarkError> {
        if shots == 0 {
            return Ok(());
        }
        let spare = usize::from(self.spare);
        let mut copies = HashMap::new();
        if self.spare {
            self.pool.iter().for_each(|item| *copies.entry(item.content()).or_insert(0) += 1);
        }
        for item in &self.asked {
            let others = self.pool.len() - copies.get(&item.content()).copied().unwrap_or(0);
            let (got, needed) = (self.pool.len().min(others + spare), shots + spare);
            if got < needed {
                return Err(BenchmarkError::Few { path: path.into(), line: item.line, got, needed });
            }
        }
        Ok(())
    }

    /// Draws the examples of a question.
    fn draw(&self, question: &Item, shots: usize, random: &mut PythonRandom) -> Vec<&Item> {
        if shots == 0 {
            return Vec::new();
        }
        let items = |places: Vec<usize>| places.into_iter().map(|place| &self.pool[place]);
        if !self.spare {
            return items(random.sample(self.pool.len(), shots)).collect();
        }
        let differs = |item: &&Item| item.content() != question.content();
        let drawn: Vec<&Item> =
            items(random.sample(self.pool.len(), shots + 1)).filter(differs).take(shots).collect();
        if drawn.len() == shots {
            return drawn;
        }
        // More than one copy of the question was drawn: draw once more, from all others.
        let others: Vec<&Item> = self.pool.iter().filter(differs).collect();
        random.sample(others.len(), shots).into_iter().map(|place| others[place]).collect()
    }

    /// The requests to a model, for every way to continue every question in turn. `shots` must not exceed the number
    /// that the file was read with. `monitor` receives the number of questions done.
    pub fn requests(
        &self,
        tokenizer: &Tokenizer,
        shots: usize,
        monitor: &mut dyn Monitor,
    ) -> Result<Vec<Request>, RequestError> {
        let mut random = PythonRandom::new(SEED);
        let mut requests = Vec::new();
        for (done, item) in self.asked.iter().enumerate() {
            monitor.report(done, Some(self.asked.len()))?;
            let examples = self.draw(item, shots, &mut random);
            let examples: String = examples.into_iter().map(|item| item.example(self.benchmark.form)).collect();
            for way in 0..item.ways() {
                let context = format!("{examples}{}", item.context(way));
                requests.push(Request::new(tokenizer, &context, &format!(" {}", item.choice(way)))?);
            }
        }
        Ok(requests)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(name: &str, lines: &str, limit: usize, shots: usize) -> Result<Questions, BenchmarkError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(&path, lines).unwrap();
        Questions::read(Benchmark::named(name).unwrap(), &path, Some(limit), shots)
    }

    /// The contexts and continuations of all requests, as text.
    fn request_texts(name: &str, lines: &str, limit: usize, shots: usize) -> Vec<[String; 2]> {
        let bytes = Tokenizer::bytes();
        let requests = read(name, lines, limit, shots).unwrap().requests(&bytes, shots, &mut ()).unwrap();
        requests
            .iter()
            .map(|Request { context, continuation }| [context, continuation].map(|t| bytes.decode(t)))
            .collect()
    }

    /// A line of each benchmark, the prompt and the right answer that the harness makes of it, and the example that
    /// it makes of both. There is one space between a prompt and an answer, and two in LAMBADA's examples.
    #[test]
    fn prompts_and_examples_are_those_of_the_harness() {
        let question = r#"{"question": "Why?", "choices": ["So.", "Thus it is."], "gold": 1}"#;
        let with_passage = r#"{"support": " It is so.", "question": "Why?", "choices": ["a", "b"], "gold": 1}"#;
        let no_passage = r#"{"support": "", "question": "Why?", "choices": ["a", "b"], "gold": 1}"#;
        let siqa = r#"{"context": "A ran.", "question": "Why?", "choices": ["x", "y", "z"], "gold": 1}"#;
        let story = r#"{"context": "A man", "choices": ["x", "y"], "gold": 1}"#;
        let contexts = r#"{"contexts": ["so Ann", "so Bob"], "continuation": "won.", "gold": 1}"#;
        let word = r#"{"context": "the end is", "target": "near"}"#;
        let cases = [
            (
                "piqa",
                question,
                "Question: Why?\nAnswer:",
                " Thus it is.",
                "Question: Why?\nAnswer: Thus it is.\n\n",
            ),
            (
                "arc_easy",
                question,
                "Question: Why?\nAnswer:",
                " Thus it is.",
                "Question: Why?\nAnswer: Thus it is.\n\n",
            ),
            (
                "sciq",
                question,
                "Question: Why?\nAnswer:",
                " Thus it is.",
                "Question: Why?\nAnswer: Thus it is.\n\n",
            ),
            (
                "sciq",
                with_passage,
                "It is so.\nQuestion: Why?\nAnswer:",
                " b",
                "It is so.\nQuestion: Why?\nAnswer: b\n\n",
            ),
            ("sciq", no_passage, "\nQuestion: Why?\nAnswer:", " b", "\nQuestion: Why?\nAnswer: b\n\n"),
            ("openbookqa", question, "Why?", " Thus it is.", "Why? Thus it is.\n\n"),
            ("social_iqa", siqa, "Q: A ran. Why?\nA:", " y", "Q: A ran. Why?\nA: y\n\n"),
            ("hellaswag", story, "A man", " y", "A man y\n\n"),
            ("winogrande", contexts, "so Bob", " won.", "so Bob won.\n\n"),
            ("lambada_openai", word, "the end is", " near", "the end is  near\n\n"),
        ];
        for (name, line, context, way, example) in cases {
            let item = &read(name, line, 1, 0).unwrap().asked[0];
            assert_eq!(request_texts(name, line, 1, 0)[item.gold()], [context, way], "{name}");
            assert_eq!(item.example(Benchmark::named(name).unwrap().form), example, "{name}");
        }
    }

    /// Lines that any benchmark reads, each with its name in the prompt.
    fn lines(names: &[&str], split: &str) -> String {
        let line = |name: &&str| {
            let answers = r#""target": "t", "choices": ["x", "y"], "gold": 0"#;
            format!(r#"{{"split": "{split}", "question": "{name}", "context": "{name}", {answers}}}"#) + "\n"
        };
        names.iter().map(line).collect()
    }

    /// The names of the examples before each question.
    fn drawn(benchmark: &str, lines: &str, limit: usize, shots: usize) -> Vec<Vec<String>> {
        let requests = request_texts(benchmark, lines, limit, shots);
        let ways = if benchmark == "lambada_openai" { 1 } else { 2 };
        let names = |context: &String| {
            let examples = context.split("\n\n").map(|example| example.trim_start_matches("Question: "));
            examples.map(|example| example.split([' ', '\n']).next().unwrap().to_string()).collect::<Vec<_>>()
        };
        requests.iter().step_by(ways).map(|[context, _]| names(context)[..shots].to_vec()).collect()
    }

    /// Computed by Python: `r = random.Random(1234)`, then for every question `r.sample(range(30), 3)[:2]` where the
    /// harness draws one too many, `r.sample(range(30), 2)` where it does not; `range(5)` where the examples are the
    /// questions themselves.
    #[test]
    fn examples_are_drawn_as_the_harness_draws_them() {
        let names: Vec<String> = (0..30).map(|i| i.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let file = lines(&["a"], "validation") + &lines(&names, "train") + &lines(&["b", "c"], "test");
        for benchmark in ["piqa", "hellaswag"] {
            assert_eq!(drawn(benchmark, &file, 9, 2), [["24", "14"], ["0", "2"], ["25", "18"]], "{benchmark}");
        }
        for benchmark in ["arc_easy", "arc_challenge", "openbookqa", "sciq"] {
            assert_eq!(drawn(benchmark, &file, 9, 2), [["24", "14"], ["3", "0"], ["2", "29"]], "{benchmark}");
        }
        // Without a training split: 3 0 4, 0 4 2, 0 4 1, 1 0 3, 0 2 3, and of each the question itself is left
        // out.
        let own = lines(&names[..5], "test");
        let others = [["3", "4"], ["0", "4"], ["0", "4"], ["1", "0"], ["0", "2"]];
        for benchmark in ["piqa", "arc_easy"] {
            assert_eq!(drawn(benchmark, &own, 9, 2), others, "{benchmark}");
        }
        // In LAMBADA the question is not left out: the first one has itself as its second example.
        assert_eq!(
            drawn("lambada_openai", &own, 9, 2),
            [["3", "0"], ["0", "4"], ["4", "0"], ["0", "4"], ["2", "1"]]
        );
        // With a limit, only the questions that are asked draw examples, but from the whole file: here 0 draws 3 0, and
        // 2 draws 0 4.
        assert_eq!(drawn("piqa", &own, 2, 1), [["3"], ["0"]]);
    }

    /// Of the questions a, a and b, the first draws both copies of itself, and then again from b alone; the others draw
    /// a b and b a.
    #[test]
    fn copies_of_a_question_are_no_examples() {
        assert_eq!(drawn("piqa", &lines(&["a", "a", "b"], "test"), 9, 1), [["b"], ["b"], ["a"]]);
        let error = |lines: &str, shots| read("piqa", lines, 9, shots).unwrap_err().to_string();
        let few = error(&lines(&["b", "a", "a"], "test"), 2);
        assert!(few.contains("2 different questions to draw the examples of line 2 from, 3 are needed"), "{few}");
        // From a training split, too, one example more than needed is drawn.
        let one = lines(&["a"], "train") + &lines(&["b"], "test");
        assert!(
            error(&one, 1).contains("1 different questions to draw the examples of line 2 from, 2 are needed")
        );
        assert_eq!(
            drawn("arc_easy", &one, 9, 1),
            [["a"]],
            "for ARC-e, the harness draws only as many examples as needed"
        );
        assert!(error(&lines(&["a"], "train"), 0).contains("no questions to ask"));
    }

    #[test]
    fn a_limited_number_of_questions_is_from_all_over_the_file() {
        let line = |i: usize| format!(r#"{{"question": "q{i}", "choices": ["a", "b"], "gold": 0}}"#) + "\n\n";
        let file: String = (0..10).map(line).collect();
        let contexts = |limit| -> Vec<String> {
            request_texts("openbookqa", &file, limit, 0)
                .into_iter()
                .step_by(2)
                .map(|[context, _]| context)
                .collect()
        };
        assert_eq!(contexts(4), ["q0", "q2", "q5", "q7"]);
        assert_eq!((contexts(10).len(), contexts(99).len()), (10, 10));
    }

    #[test]
    fn fingerprints_depend_on_right_answers_choices_and_examples() {
        let fingerprint = |gold: usize, choices: &str, example: &str| {
            let line = format!(r#"{{"question": "q", "choices": {choices}, "gold": {gold}}}"#);
            let questions = read("arc_easy", &(lines(&[example], "train") + &line), 9, 1).unwrap();
            questions.fingerprint(&questions.requests(&Tokenizer::bytes(), 1, &mut ()).unwrap())
        };
        let original = fingerprint(0, r#"["a", "b"]"#, "e");
        assert_eq!(original, fingerprint(0, r#"["a", "b"]"#, "e"));
        for other in [
            fingerprint(1, r#"["a", "b"]"#, "e"),
            fingerprint(0, r#"["a", "c"]"#, "e"),
            fingerprint(0, r#"["a", "b"]"#, "f"),
        ] {
            assert_ne!(original, other);
        }
    }

    #[test]
    fn errors_say_what_is_wrong_with_a_line() {
        let error = |name: &str, text: &str| read(name, text, usize::MAX, 0).unwrap_err().to_string();
        let good = r#"{"question": "q", "choices": ["a", "b"], "gold": 1}"#;
        let wrong = error("piqa", &format!("{good}\n{{\"question\": \"q\", \"gold\": 0}}"));
        assert!(wrong.contains("line 2") && wrong.contains("no \"choices\""), "{wrong}");
        let cut = error("piqa", &format!("{good}\n{}", &good[..good.len() - 1]));
        assert!(cut.ends_with("line 2: EOF while parsing an object, column 50"), "{cut}");
        assert!(error("piqa", &good.replace("1}", "2}")).contains("gold is 2, and there are 2 choices"));
        assert!(error("piqa", "").contains("no questions to ask"));
        assert!(error("winogrande", good).contains("no \"contexts\""));
        // A single choice would always be right, of a question and of an example.
        let single = good.replace(r#""a", "b"], "gold": 1"#, r#""a"], "gold": 0"#);
        for single in [single.clone(), single.replace('{', r#"{"split": "train", "#)] {
            let wrong = error("arc_easy", &format!("{good}\n\n{single}"));
            assert!(wrong.ends_with("line 3: there is 1 choice; a question needs 2 or more"), "{wrong}");
        }
        let contexts = r#"{"contexts": ["so Ann"], "continuation": "won.", "gold": 0}"#;
        assert!(error("winogrande", contexts).contains("line 1: there is 1 choice"));
        assert!(error("piqa", &good.replace(r#""a", "b""#, "")).contains("there are 0 choices"));
        let empty = error("piqa", &format!("{good}\n{}", good.replace(r#""b""#, r#"" ""#)));
        assert!(empty.ends_with("line 2: choice 1, counted from 0, is empty"), "{empty}");
        let same = error("piqa", &good.replace(r#""a", "b""#, r#""a", "a", "a""#));
        assert!(same.ends_with("line 1: all 3 choices are the same; a question needs 2 different ones"), "{same}");
        // As ARC-easy has it.
        assert!(read("piqa", &good.replace(r#""a", "b""#, r#""a", "b", "a""#), usize::MAX, 0).is_ok());
        let same = r#"{"contexts": ["so Ann", "so Ann"], "continuation": "won.", "gold": 0}"#;
        assert!(error("winogrande", same).contains("all 2 choices are the same"));
    }
}
