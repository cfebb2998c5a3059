//! Evaluates trained models on texts and benchmarks. Results that were recorded before for the same weights are not
//! computed again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::benchmark::Benchmark;
use super::choices::{BenchmarkResult, Estimate};
use super::likelihood::likelihoods;
use super::perplexity::{Reading, text_score};
use super::questions::{BenchmarkError, Questions, RequestError};
use crate::data::{CacheError, Check, Detokenizer, Source, SourceError, Tokenizer, Tokens, cache_folder};
use crate::monitor::{Cancelled, Monitor, from_fn};
use crate::scores::TextScore;
use crate::trained::{Trained, TrainedError};

/// The texts and benchmarks that models are evaluated on.
#[derive(Debug)]
pub struct Exam {
    /// How thoroughly to check that texts have not changed since they were encoded.
    pub check: Check,
    pub(super) texts: Vec<ExamText>,
    pub(super) window: Option<u32>,
    /// The questions of each benchmark, and numbers of examples, for each of which all questions are asked once.
    pub(super) questions: Vec<(Questions, Vec<usize>)>,
}

/// A text to evaluate models on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExamText {
    /// The file or folder.
    pub path: PathBuf,
    /// How to detokenize the text, if it was split into words. It is then read as lm-evaluation-harness reads it:
    /// every page by itself, and with a window, the last window of a page as long as the others.
    pub detokenizer: Option<Detokenizer>,
}

impl ExamText {
    pub(super) fn source(&self, monitor: &mut dyn Monitor) -> Result<Source, SourceError> {
        let source = Source::find(&self.path, monitor)?;
        match self.detokenizer {
            Some(detokenizer) => source.detokenized(detokenizer),
            None => Ok(source),
        }
    }

    /// Encodes the text, or opens its tokens in the folder `cache` if it was encoded before.
    pub(super) fn tokens(
        &self,
        tokenizer: &Tokenizer,
        cache: &Path,
        check: Check,
        monitor: &mut dyn Monitor,
    ) -> Result<Tokens, CacheError> {
        let mut encoding = from_fn(|bytes| {
            monitor.stage(&format!("{}: {} MiB encoded", self.path.display(), bytes >> 20));
            !monitor.cancelled()
        });
        Tokens::open(&self.source(&mut encoding)?, tokenizer, cache, check, &mut encoding)
    }
}

/// The results of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResult {
    /// The model, as it was named on the command line.
    pub model: String,
    /// The fingerprint of its weights.
    pub weights: String,
    /// Results on texts.
    #[serde(default)]
    pub texts: Vec<TextResult>,
    /// Results on benchmarks.
    #[serde(default)]
    pub benchmarks: Vec<BenchmarkResult>,
}

/// A model's result on a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextResult {
    /// The file or folder.
    pub text: String,
    /// Identifies the content of the text, as tokens.
    pub fingerprint: String,
    /// How the text was detokenized, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detokenizer: Option<Detokenizer>,
    /// Tokens of a window; none if every document was read from beginning to end.
    pub window: Option<u32>,
    /// The likelihood of the text.
    #[serde(flatten)]
    pub score: TextScore,
}

impl ModelResult {
    /// A model without results.
    pub fn new(model: String, trained: &Trained) -> Self {
        Self { model, weights: trained.weights.clone(), texts: Vec::new(), benchmarks: Vec::new() }
    }
}

/// The results of an [`Exam`].
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The results for the texts and questions of the exam, in its order.
    pub asked: ModelResult,
    /// Whether there are results for everything; false if the evaluation was cancelled.
    pub complete: bool,
}

/// Why an evaluation ends early.
enum Stop<E> {
    Cancelled,
    Failed(E),
}

impl<E> From<Cancelled> for Stop<E> {
    fn from(Cancelled: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl<E: From<TrainedError>> From<TrainedError> for Stop<E> {
    fn from(error: TrainedError) -> Self {
        Self::Failed(error.into())
    }
}

impl<E: From<CacheError>> From<CacheError> for Stop<E> {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Cancelled(_) => Self::Cancelled,
            error => Self::Failed(error.into()),
        }
    }
}

impl Exam {
    /// An exam of texts, to be read in windows of so many tokens, or from beginning to end.
    pub fn new(texts: Vec<ExamText>, window: Option<u32>) -> Self {
        Self { check: Check::Sampled, texts, window, questions: Vec::new() }
    }

    /// Adds benchmarks, whose files are in `folder`, with at most `limit` questions of each. They are asked once for
    /// each number of examples in `shots`.
    pub fn ask(
        &mut self,
        benchmarks: &[&'static Benchmark],
        folder: &Path,
        limit: Option<usize>,
        shots: &[usize],
    ) -> Result<(), BenchmarkError> {
        let most = shots.iter().copied().max().unwrap_or(0);
        for benchmark in benchmarks {
            let path = folder.join(benchmark.file_name());
            self.questions.push((Questions::read(benchmark, &path, limit, most)?, shots.to_vec()));
        }
        Ok(())
    }

    /// Checks that all texts can be opened.
    pub fn check(&self) -> Result<(), CacheError> {
        self.texts.iter().try_for_each(|text| text.source(&mut ()).map(drop).map_err(CacheError::from))
    }

    /// Evaluates a model on the texts and questions that `known` has no results for. Every new result is added to
    /// `known`, which is then passed to `keep`. Returns the results of this exam. The stages that `monitor` receives
    /// are texts and benchmarks; the progress is the number of tokens or requests done. A model with non-finite
    /// likelihoods is refused before these are kept, because JSON cannot represent them.
    pub fn take<E: From<CacheError> + From<TrainedError>>(
        &self,
        trained: &Trained,
        known: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        monitor: &mut dyn Monitor,
    ) -> Result<Answers, E> {
        let mut results = ModelResult { texts: Vec::new(), benchmarks: Vec::new(), ..known.clone() };
        let ended = self
            .read_texts(&cache_folder()?, trained, known, &mut results, keep, monitor)
            .and_then(|()| self.ask_questions(trained, known, &mut results, keep, monitor));
        match ended {
            Ok(()) => Ok(Answers { asked: results, complete: true }),
            Err(Stop::Cancelled) => Ok(Answers { asked: results, complete: false }),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn read_texts<E: From<CacheError> + From<TrainedError>>(
        &self,
        cache: &Path,
        Trained { model, tokenizer, folder, .. }: &Trained,
        known: &mut ModelResult,
        results: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        monitor: &mut dyn Monitor,
    ) -> Result<(), Stop<E>> {
        for exam_text in &self.texts {
            let (name, detokenizer) = (exam_text.path.display().to_string(), exam_text.detokenizer);
            monitor.stage(&name);
            let text = exam_text.tokens(tokenizer, cache, self.check, monitor)?;
            let same = |old: &&TextResult| {
                old.text == name && old.fingerprint == text.fingerprint() && old.window == self.window
            };
            if let Some(old) = known.texts.iter().find(same) {
                results.texts.push(old.clone());
                continue;
            }
            let reading = match (self.window, detokenizer) {
                (None, _) => Reading::Whole,
                (Some(window), None) => Reading::Windows(window as usize),
                (Some(window), Some(Detokenizer::WikiText)) => Reading::FullWindows(window as usize),
            };
            monitor.stage(&name);
            let score = text_score(model, &text, reading, monitor)?;
            check_finite(folder, score.nats, || format!("the log-likelihood of {name}"))?;
            let fingerprint = text.fingerprint().to_string();
            let found = TextResult { text: name, fingerprint, detokenizer, window: self.window, score };
            known.texts.push(found.clone());
            results.texts.push(found);
            keep(known).map_err(Stop::Failed)?;
        }
        Ok(())
    }

    fn ask_questions<E: From<TrainedError>>(
        &self,
        Trained { model, tokenizer, folder, .. }: &Trained,
        known: &mut ModelResult,
        results: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        monitor: &mut dyn Monitor,
    ) -> Result<(), Stop<E>> {
        for (questions, all_shots) in &self.questions {
            let Questions { benchmark, asked: items, .. } = questions;
            for &shots in all_shots {
                let title = format!("{}, {shots}-shot", benchmark.title);
                monitor.stage(&format!("{title}: encoding"));
                let requests = match questions.requests(tokenizer, shots, monitor) {
                    Err(RequestError::Cancelled(cancelled)) => return Err(cancelled.into()),
                    Err(RequestError::Tokenizer(error)) => {
                        return Err(TrainedError::Text { what: title, source: error }.into());
                    }
                    Ok(requests) => requests,
                };
                let fingerprint = questions.fingerprint(&requests);
                let same = |old: &&BenchmarkResult| {
                    old.name == benchmark.name && old.shots == shots && old.fingerprint == fingerprint
                };
                if let Some(old) = known.benchmarks.iter().find(same) {
                    results.benchmarks.push(old.clone());
                    continue;
                }
                monitor.stage(&title);
                let answers = likelihoods(model, &requests, monitor)?;
                let lines = items.iter().flat_map(|item| vec![item.line(); item.ways()]);
                for (answer, line) in answers.iter().zip(lines) {
                    let what = || format!("{title}: the log-likelihood of a choice of line {line}");
                    check_finite(folder, answer.log, what)?;
                }
                let found = questions.grade(&requests, &answers, shots);
                if let Some(Estimate { mean, stderr }) = found.perplexity {
                    check_finite(folder, mean + stderr, || format!("{title}: the perplexity"))?;
                }
                known.benchmarks.push(found.clone());
                results.benchmarks.push(found);
                keep(known).map_err(Stop::Failed)?;
            }
        }
        Ok(())
    }
}

/// Refuses a result that is not finite.
fn check_finite(model: &Path, got: f64, what: impl FnOnce() -> String) -> Result<(), TrainedError> {
    if got.is_finite() { Ok(()) } else { Err(TrainedError::NotFinite { path: model.into(), what: what(), got }) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::*;

    fn trained(seed: u64) -> Trained {
        let config = ModelConfig::preset("falcon-1a.3", "micro", 257).unwrap();
        let model = config.init(seed, &Device::flex()).unwrap();
        Trained { model, tokenizer: Tokenizer::bytes(), folder: PathBuf::new(), weights: format!("{seed}") }
    }

    /// An exam of texts and two questions.
    fn exam(folder: &Path, texts: Vec<ExamText>, gold: usize, shots: &[usize]) -> Exam {
        let line = |name| format!(r#"{{"question": "{name}", "choices": ["a", "b"], "gold": {gold}}}"#);
        fs::write(folder.join("piqa.jsonl"), ["", &line("q"), &line("r")].join("\n")).unwrap();
        let mut exam = Exam::new(texts, None);
        exam.ask(&[Benchmark::named("piqa").unwrap()], folder, None, shots).unwrap();
        exam
    }

    /// Asks questions whose right answer is `gold`. Returns the answers, and how often a result was kept.
    fn take(folder: &Path, gold: usize, known: &mut ModelResult) -> (Answers, usize) {
        let exam = exam(folder, Vec::new(), gold, &[0, 1]);
        let mut kept = 0;
        let mut keep = |_: &ModelResult| -> Result<(), Box<dyn std::error::Error>> {
            kept += 1;
            Ok(())
        };
        let answers = exam.take(&trained(0), known, &mut keep, &mut ()).unwrap();
        (answers, kept)
    }

    #[test]
    fn recorded_results_are_not_computed_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut known = ModelResult::new("m".into(), &trained(0));
        let (first, kept) = take(folder.path(), 0, &mut known);
        assert_eq!((first.complete, first.asked.benchmarks.len(), kept), (true, 2, 2));
        let (again, kept) = take(folder.path(), 0, &mut known);
        assert_eq!((again, kept), (first.clone(), 0));
        // Questions with other right answers are other questions; the results of the first ones are kept.
        let (other, kept) = take(folder.path(), 1, &mut known);
        let [before, after] = [&first, &other].map(|answers| answers.asked.benchmarks[0].acc.mean);
        assert_eq!((before + after, kept, known.benchmarks.len()), (1.0, 2, 4));
        assert_eq!(take(folder.path(), 0, &mut known), (first, 0));
    }

    /// Cancels the second part of an exam.
    #[derive(Default)]
    struct FirstOnly {
        cancelled: bool,
    }

    impl Monitor for FirstOnly {
        fn stage(&mut self, name: &str) {
            self.cancelled = !name.contains("0-shot");
        }

        fn cancelled(&mut self) -> bool {
            self.cancelled
        }
    }

    #[test]
    fn cancelling_keeps_the_results_so_far() {
        let folder = tempfile::tempdir().unwrap();
        let exam = exam(folder.path(), Vec::new(), 1, &[0, 1]);
        let mut known = ModelResult::new("m".into(), &trained(0));
        let mut kept = Vec::new();
        let mut keep = |known: &ModelResult| -> Result<(), Box<dyn std::error::Error>> {
            kept.push(known.benchmarks.len());
            Ok(())
        };
        let answers = exam.take(&trained(0), &mut known, &mut keep, &mut FirstOnly::default()).unwrap();
        assert!(!answers.complete);
        assert_eq!((answers.asked.benchmarks.len(), known.benchmarks.len(), kept), (1, 1, vec![1]));
    }

    /// A text of one page, which detokenizing does not change, has the same tokens but another number of words and
    /// another fingerprint. Counted by hand: ` = A =` is 6 bytes, and its parts are an empty one, =, A and =.
    #[test]
    fn detokenized_text_differs_from_plain_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wiki.txt");
        fs::write(&path, " = A =").unwrap();
        let trained = trained(0);
        let fresh = || ModelResult::new("m".into(), &trained);
        let (mut known, mut results) = (fresh(), fresh());
        let mut kept = 0;
        let mut read = |detokenizer, known: &mut ModelResult| {
            let exam = Exam::new(vec![ExamText { path: path.clone(), detokenizer }], Some(4));
            exam.check().unwrap();
            let mut keep = |_: &ModelResult| -> Result<(), Box<dyn std::error::Error>> {
                kept += 1;
                Ok(())
            };
            let cache = folder.path().join("cache");
            assert!(exam.read_texts(&cache, &trained, known, &mut results, &mut keep, &mut ()).is_ok());
            kept
        };
        let wikitext = Some(Detokenizer::WikiText);
        assert_eq!(
            [None, wikitext, None, wikitext].map(|detokenizer| read(detokenizer, &mut known)),
            [1, 2, 2, 2]
        );
        let [plain, joined] = [&known.texts[0], &known.texts[1]];
        assert_eq!([plain.score.words, joined.score.words], [3, 4]);
        assert_eq!([plain, joined].map(|text| (text.score.bytes, text.score.tokens)), [(6, 6); 2]);
        assert_eq!(joined.fingerprint, format!("wikitext:{}", plain.fingerprint));
        assert_ne!(
            plain.score.nats, joined.score.nats,
            "a full last window has two more tokens before the last two"
        );
        let json = serde_json::to_value(joined).unwrap();
        assert_eq!(json["detokenizer"], "wikitext");
        assert_eq!(serde_json::from_value::<TextResult>(json).unwrap(), *joined);
        // Text of another kind is refused.
        fs::write(&path, "\n = A = b\n").unwrap();
        let exam = Exam::new(vec![ExamText { path, detokenizer: wikitext }], None);
        let error = exam.check().unwrap_err().to_string();
        assert!(error.contains("wiki.txt is not raw wikitext: its first line is not a title"), "{error}");
    }

    fn failure(ended: Result<(), Stop<Box<dyn std::error::Error>>>) -> String {
        match ended {
            Err(Stop::Failed(error)) => error.to_string(),
            _ => panic!("the evaluation should fail"),
        }
    }

    /// A result that is not finite would be written to JSON as null.
    #[test]
    fn a_non_finite_result_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("a.txt");
        fs::write(&text, "one two").unwrap();
        let mut broken = trained(0);
        let width = broken.model.config().hidden_size;
        broken.model = broken.model.with_parameters(|name, mut values| {
            if name == "model.embeddings.weight" {
                values[usize::from(b'e') * width] = f32::NAN;
            }
            values
        });
        broken.folder = "runs/broken".into();
        let fresh = || ModelResult::new("m".into(), &broken);
        let (mut known, mut results) = (fresh(), fresh());
        let mut keep = |_: &ModelResult| -> Result<(), Box<dyn std::error::Error>> { panic!("nothing to keep") };
        let exam = exam(folder.path(), vec![ExamText { path: text.clone(), detokenizer: None }], 0, &[0]);
        let error = failure(exam.ask_questions(&broken, &mut known, &mut results, &mut keep, &mut ()));
        let expected = "runs/broken: PIQA, 0-shot: the log-likelihood of a choice of line 2 is NaN";
        assert!(error.contains(expected), "{error}");
        // The test's own cache, not the user's.
        let cache = folder.path().join("cache");
        let error = failure(exam.read_texts(&cache, &broken, &mut known, &mut results, &mut keep, &mut ()));
        assert!(
            error.contains(&format!("runs/broken: the log-likelihood of {} is NaN", text.display())),
            "{error}"
        );
        assert_eq!([&known, &results], [&fresh(), &fresh()]);
    }
}
