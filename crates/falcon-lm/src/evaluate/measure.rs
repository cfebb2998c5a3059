//! Texts and benchmarks put to a trained model. What was measured of the same weights before is not measured again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::choices::fingerprint;
use super::likelihood::likelihoods;
use super::{Benchmark, BenchmarkError, BenchmarkResult, Estimate, Questions, Reading, TextScore, text_score};
use crate::data::{CacheError, Check, Detokenizer, Source, SourceError, Tokens, cache_folder};
use crate::trained::{Trained, TrainedError};

/// What is asked.
#[derive(Debug)]
pub struct Exam {
    /// How much is read to find out whether texts are what they were when they were made into tokens.
    pub check: Check,
    pub(super) texts: Vec<ExamText>,
    pub(super) window: Option<u32>,
    /// Questions, and the examples before each of them, each number in turn.
    pub(super) questions: Vec<(Questions, Vec<usize>)>,
}

/// A text to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExamText {
    /// The file or folder.
    pub path: PathBuf,
    /// How it was taken apart into words, if it should be put together again. It is then read as
    /// lm-evaluation-harness reads it: every page by itself, and the last window of a page, if it is read by
    /// windows, as long as the others.
    pub detokenizer: Option<Detokenizer>,
}

impl ExamText {
    pub(super) fn source(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Source, SourceError> {
        let source = Source::find(&self.path, go_on)?;
        match self.detokenizer {
            Some(detokenizer) => source.detokenized(detokenizer),
            None => Ok(source),
        }
    }
}

/// What is known of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResult {
    /// As it was named.
    pub model: String,
    /// What tells its weights from others.
    pub weights: String,
    /// Of texts.
    #[serde(default)]
    pub texts: Vec<TextResult>,
    /// Of benchmarks.
    #[serde(default)]
    pub benchmarks: Vec<BenchmarkResult>,
}

/// What a text costs a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextResult {
    /// The file or folder.
    pub text: String,
    /// What tells it from others.
    pub fingerprint: String,
    /// How it was detokenized, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detokenizer: Option<Detokenizer>,
    /// Tokens of a window; none if it was read from beginning to end.
    pub window: Option<u32>,
    /// The cost.
    #[serde(flatten)]
    pub score: TextScore,
}

impl ModelResult {
    /// Of a model of which nothing is known.
    pub fn new(model: String, trained: &Trained) -> Self {
        Self { model, weights: trained.weights.clone(), texts: Vec::new(), benchmarks: Vec::new() }
    }
}

/// Told what is being measured, how much of it is done, and how much there is, 0 if that is not known; false stops.
pub type OnProgress<'a> = dyn FnMut(&str, usize, usize) -> bool + 'a;

impl Exam {
    /// Texts, to be read by windows of so many tokens, or from beginning to end.
    pub fn new(texts: Vec<ExamText>, window: Option<u32>) -> Self {
        Self { check: Check::Sampled, texts, window, questions: Vec::new() }
    }

    /// Reads the questions of benchmarks from `folder`, at most `limit` of each, to be asked with so many
    /// examples, each number in turn.
    pub fn ask(
        &mut self,
        benchmarks: &[&'static Benchmark],
        folder: &Path,
        limit: usize,
        shots: &[usize],
    ) -> Result<(), BenchmarkError> {
        let most = shots.iter().copied().max().unwrap_or(0);
        for benchmark in benchmarks {
            let path = folder.join(format!("{}.jsonl", benchmark.name));
            self.questions.push((Questions::read(benchmark, &path, limit, most)?, shots.to_vec()));
        }
        Ok(())
    }

    /// Whether all texts are there, and of the kind that they should be.
    pub fn check(&self) -> Result<(), CacheError> {
        self.texts.iter().try_for_each(|text| text.source(&mut || true).map(drop).map_err(CacheError::from))
    }

    /// Measures what `known` does not have yet, and gives `known` to `keep` after every part. Returns what was asked, in order, from what is
    /// known now; `complete` says whether that is all. A model whose likelihoods are not finite is refused before anything of that is kept:
    /// JSON has no such numbers.
    pub fn take<E: From<CacheError> + From<TrainedError>>(
        &self,
        trained: &Trained,
        known: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        progress: &mut OnProgress<'_>,
    ) -> Result<Answers, E> {
        let mut asked = ModelResult { texts: Vec::new(), benchmarks: Vec::new(), ..known.clone() };
        let complete = self.read(&cache_folder()?, trained, known, &mut asked, keep, progress)?
            && self.answer(trained, known, &mut asked, keep, progress)?;
        Ok(Answers { asked, complete })
    }

    /// False if it was interrupted.
    fn read<E: From<CacheError> + From<TrainedError>>(
        &self,
        cache: &Path,
        Trained { model, tokenizer, folder, .. }: &Trained,
        known: &mut ModelResult,
        asked: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        progress: &mut OnProgress<'_>,
    ) -> Result<bool, E> {
        for exam_text in &self.texts {
            let (name, detokenizer) = (exam_text.path.display().to_string(), exam_text.detokenizer);
            progress(&name, 0, 0);
            let mut told = |bytes: usize| progress(&format!("{name}: {} MiB made into tokens", bytes >> 20), 0, 0);
            let source = exam_text.source(&mut || told(0)).map_err(CacheError::from);
            let opened = source.and_then(|source| Tokens::open(&source, tokenizer, cache, self.check, &mut told));
            let text = match opened {
                Err(CacheError::Interrupted) => return Ok(false),
                opened => opened?,
            };
            let same = |old: &&TextResult| {
                old.text == name && old.fingerprint == text.fingerprint() && old.window == self.window
            };
            if let Some(old) = known.texts.iter().find(same) {
                asked.texts.push(old.clone());
                continue;
            }
            let reading = match (self.window, detokenizer) {
                (None, _) => Reading::Whole,
                (Some(window), None) => Reading::Windows(window as usize),
                (Some(window), Some(Detokenizer::WikiText)) => Reading::FullWindows(window as usize),
            };
            let score = text_score(model, &text, reading, &mut |done, all| progress(&name, done, all));
            let Some(score) = score else { return Ok(false) };
            finite(folder, score.nats, || format!("the cost of {name}"))?;
            let fingerprint = text.fingerprint().to_string();
            let found = TextResult { text: name, fingerprint, detokenizer, window: self.window, score };
            known.texts.push(found.clone());
            asked.texts.push(found);
            keep(known)?;
        }
        Ok(true)
    }

    /// False if it was interrupted.
    fn answer<E: From<TrainedError>>(
        &self,
        Trained { model, tokenizer, folder, .. }: &Trained,
        known: &mut ModelResult,
        asked: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        progress: &mut OnProgress<'_>,
    ) -> Result<bool, E> {
        for (questions, all_shots) in &self.questions {
            let Questions { benchmark, asked: items, .. } = questions;
            for &shots in all_shots {
                let title = format!("{}, {shots}-shot", benchmark.title);
                progress(&title, 0, 0);
                let encoding = format!("{title}: questions made into tokens");
                let count = items.len();
                let requests = questions.requests(tokenizer, shots, &mut |done| progress(&encoding, done, count));
                let requests = requests.map_err(|error| TrainedError::Text { what: title.clone(), error })?;
                let Some(requests) = requests else { return Ok(false) };
                let print = fingerprint(items, &requests);
                let same = |old: &&BenchmarkResult| {
                    old.name == benchmark.name && old.shots == shots && old.fingerprint == print
                };
                if let Some(old) = known.benchmarks.iter().find(same) {
                    asked.benchmarks.push(old.clone());
                    continue;
                }
                let all = requests.len();
                let answers = likelihoods(model, &requests, &mut |done| progress(&title, done, all));
                let Some(answers) = answers else { return Ok(false) };
                let lines = items.iter().flat_map(|item| vec![item.line(); item.ways()]);
                for (answer, line) in answers.iter().zip(lines) {
                    finite(folder, answer.log, || format!("{title}: the likelihood of a choice of line {line}"))?;
                }
                let found = BenchmarkResult { fingerprint: print, ..benchmark.grade(items, &answers, shots) };
                if let Some(Estimate { mean, stderr }) = found.perplexity {
                    finite(folder, mean + stderr, || format!("{title}: the perplexity"))?;
                }
                known.benchmarks.push(found.clone());
                asked.benchmarks.push(found);
                keep(known)?;
            }
        }
        Ok(true)
    }
}

/// Refuses what is no number.
fn finite(model: &Path, got: f64, what: impl FnOnce() -> String) -> Result<(), TrainedError> {
    if got.is_finite() { Ok(()) } else { Err(TrainedError::NotFinite { path: model.into(), what: what(), got }) }
}

/// What came of an [`Exam`].
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// What was asked and is known, in order.
    pub asked: ModelResult,
    /// Whether that is all that was asked; if not, it was interrupted.
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::*;
    use crate::data::Tokenizer;
    use crate::reproduce::RowError;

    fn trained(seed: u64) -> Trained {
        let config = ModelConfig::preset("falcon-1a.3", "micro", 257).unwrap();
        let model = config.init(seed, &Device::flex()).unwrap();
        Trained { model, tokenizer: Tokenizer::bytes(), folder: PathBuf::new(), weights: format!("{seed}") }
    }

    /// Two questions with their examples.
    fn exam(folder: &Path, texts: Vec<ExamText>, gold: usize, shots: &[usize]) -> Exam {
        let line = |name| format!(r#"{{"question": "{name}", "choices": ["a", "b"], "gold": {gold}}}"#);
        fs::write(folder.join("piqa.jsonl"), ["", &line("q"), &line("r")].join("\n")).unwrap();
        let mut exam = Exam::new(texts, None);
        exam.ask(&[Benchmark::named("piqa").unwrap()], folder, usize::MAX, shots).unwrap();
        exam
    }

    /// Measures `gold` of two choices, and tells how often something was kept.
    fn take(folder: &Path, gold: usize, known: &mut ModelResult) -> (Answers, usize) {
        let exam = exam(folder, Vec::new(), gold, &[0, 1]);
        let mut kept = 0;
        let mut keep = |_: &ModelResult| -> Result<(), RowError> {
            kept += 1;
            Ok(())
        };
        let answers = exam.take(&trained(0), known, &mut keep, &mut |_, _, _| true).unwrap();
        (answers, kept)
    }

    #[test]
    fn what_is_known_is_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut known = ModelResult::new("m".into(), &trained(0));
        let (first, kept) = take(folder.path(), 0, &mut known);
        assert_eq!((first.complete, first.asked.benchmarks.len(), kept), (true, 2, 2));
        let (again, kept) = take(folder.path(), 0, &mut known);
        assert_eq!((again, kept), (first.clone(), 0));
        // Other answers are other questions; those before stay known.
        let (other, kept) = take(folder.path(), 1, &mut known);
        let [before, after] = [&first, &other].map(|answers| answers.asked.benchmarks[0].acc.mean);
        assert_eq!((before + after, kept, known.benchmarks.len()), (1.0, 2, 4));
        assert_eq!(take(folder.path(), 0, &mut known), (first, 0));
    }

    #[test]
    fn an_interrupt_keeps_what_was_done() {
        let folder = tempfile::tempdir().unwrap();
        let exam = exam(folder.path(), Vec::new(), 1, &[0, 1]);
        let mut known = ModelResult::new("m".into(), &trained(0));
        let mut kept = Vec::new();
        let mut keep = |known: &ModelResult| -> Result<(), RowError> {
            kept.push(known.benchmarks.len());
            Ok(())
        };
        let first_only = &mut |title: &str, _, _| title.contains("0-shot");
        let answers = exam.take(&trained(0), &mut known, &mut keep, first_only).unwrap();
        assert!(!answers.complete);
        assert_eq!((answers.asked.benchmarks.len(), known.benchmarks.len(), kept), (1, 1, vec![1]));
    }

    /// A text in which there is nothing to put together and a single page is the same tokens; its words are not,
    /// and it is told apart. Counted by hand: ` = A =` is 6 bytes and an empty part, =, A and =.
    #[test]
    fn detokenized_text_is_told_from_plain() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wiki.txt");
        fs::write(&path, " = A =").unwrap();
        let trained = trained(0);
        let fresh = || ModelResult::new("m".into(), &trained);
        let (mut known, mut asked) = (fresh(), fresh());
        let mut kept = 0;
        let mut read = |detokenizer, known: &mut ModelResult| {
            let exam = Exam::new(vec![ExamText { path: path.clone(), detokenizer }], Some(4));
            exam.check().unwrap();
            let mut keep = |_: &ModelResult| -> Result<(), RowError> {
                kept += 1;
                Ok(())
            };
            let cache = folder.path().join("cache");
            exam.read(&cache, &trained, known, &mut asked, &mut keep, &mut |_, _, _| true).unwrap();
            kept
        };
        let wikitext = Some(Detokenizer::WikiText);
        assert_eq!([None, wikitext, None, wikitext].map(|of| read(of, &mut known)), [1, 2, 2, 2]);
        let [plain, joined] = [&known.texts[0], &known.texts[1]];
        assert_eq!([plain.score.words, joined.score.words], [3, 4]);
        assert_eq!([plain, joined].map(|text| (text.score.bytes, text.score.tokens)), [(6, 6); 2]);
        assert_eq!(joined.fingerprint, format!("wikitext:{}", plain.fingerprint));
        assert_ne!(plain.score.nats, joined.score.nats, "the last two tokens after two more");
        let json = serde_json::to_value(joined).unwrap();
        assert_eq!(json["detokenizer"], "wikitext");
        assert_eq!(serde_json::from_value::<TextResult>(json).unwrap(), *joined);
        // Text of another kind is refused, and where it begins is no matter.
        fs::write(&path, "\n = A = b\n").unwrap();
        let exam = Exam::new(vec![ExamText { path, detokenizer: wikitext }], None);
        let said = exam.check().unwrap_err().to_string();
        assert!(said.contains("wiki.txt is no raw wikitext: its first line is no title"), "{said}");
    }

    /// It would be scored, and kept as nothing.
    #[test]
    fn what_is_no_number_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("a.txt");
        fs::write(&text, "one two").unwrap();
        let mut broken = trained(0);
        broken.model = broken.model.with_parameters(|name, values| {
            let mut numbers = values.to_vec();
            if name == "model.embeddings.weight" {
                numbers[usize::from(b'e') * values.shape[1]] = f32::NAN;
            }
            numbers
        });
        broken.folder = "runs/broken".into();
        let fresh = || ModelResult::new("m".into(), &broken);
        let (mut known, mut asked) = (fresh(), fresh());
        let mut keep = |_: &ModelResult| -> Result<(), RowError> { panic!("nothing to keep") };
        let exam = exam(folder.path(), vec![ExamText { path: text.clone(), detokenizer: None }], 0, &[0]);
        let said = exam.answer(&broken, &mut known, &mut asked, &mut keep, &mut |_, _, _| true).unwrap_err();
        let expected = "runs/broken: PIQA, 0-shot: the likelihood of a choice of line 2 is NaN";
        assert!(said.to_string().contains(expected), "{said}");
        // Tokens are kept in a folder of the test, not of the user.
        let cache = folder.path().join("cache");
        let said = exam.read(&cache, &broken, &mut known, &mut asked, &mut keep, &mut |_, _, _| true);
        let said = said.unwrap_err().to_string();
        assert!(said.contains(&format!("runs/broken: the cost of {} is NaN", text.display())), "{said}");
        assert_eq!([&known, &asked], [&fresh(), &fresh()]);
    }
}
