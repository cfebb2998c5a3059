//! Texts and benchmarks put to a trained model. What was measured of the same weights before is not measured again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::choices::fingerprint;
use super::{Benchmark, BenchmarkError, BenchmarkResult, Estimate, Item, Reading, TextScore, text_score};
use crate::data::{CacheError, Source, Tokens, cache_folder};
use crate::trained::{Trained, TrainedError};

/// What is asked.
#[derive(Debug, Default)]
pub struct Exam {
    /// Files or folders of text.
    pub texts: Vec<PathBuf>,
    /// Tokens of a window; none if texts are read from beginning to end.
    pub window: Option<u32>,
    /// Benchmarks and their questions.
    pub questions: Vec<(&'static Benchmark, Vec<Item>)>,
    /// Examples before each question, each number in turn.
    pub shots: Vec<usize>,
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
    /// Reads the questions of benchmarks from `folder`, at most `limit` of each.
    pub fn ask(
        &mut self,
        benchmarks: &[&'static Benchmark],
        folder: &Path,
        limit: usize,
    ) -> Result<(), BenchmarkError> {
        let most = self.shots.iter().copied().max().unwrap_or(0);
        for benchmark in benchmarks {
            let path = folder.join(format!("{}.jsonl", benchmark.name));
            self.questions.push((benchmark, benchmark.read(&path, limit, most)?));
        }
        Ok(())
    }

    /// Whether all texts are there.
    pub fn check(&self) -> Result<(), CacheError> {
        self.texts.iter().try_for_each(|path| Source::open(path).map(drop).map_err(CacheError::from))
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
        let complete = self.read(&cache_folder(), trained, known, &mut asked, keep, progress)?
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
        for path in &self.texts {
            let name = path.display().to_string();
            progress(&name, 0, 0);
            let source = Source::open(path).map_err(CacheError::from)?;
            let opened = Tokens::open(&source, tokenizer, cache, &mut |bytes| {
                progress(&format!("{name}: {} MiB made into tokens", bytes >> 20), 0, 0)
            });
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
            let reading = self.window.map_or(Reading::Whole, |window| Reading::Windows(window as usize));
            let score = text_score(model, &text, reading, &mut |done, all| progress(&name, done, all));
            let Some(score) = score else { return Ok(false) };
            finite(folder, score.nats, || format!("the cost of {name}"))?;
            let fingerprint = text.fingerprint().to_string();
            let found = TextResult { text: name, fingerprint, window: self.window, score };
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
        for (benchmark, items) in &self.questions {
            for &shots in &self.shots {
                let title = format!("{}, {shots}-shot", benchmark.title);
                progress(&title, 0, 0);
                let requests = benchmark.requests(items, tokenizer, shots);
                let print = fingerprint(items, &requests);
                let same = |old: &&BenchmarkResult| {
                    old.name == benchmark.name && old.shots == shots && old.fingerprint == print
                };
                if let Some(old) = known.benchmarks.iter().find(same) {
                    asked.benchmarks.push(old.clone());
                    continue;
                }
                let answers =
                    benchmark.put(model, items, &requests, shots, &mut |done, all| progress(&title, done, all));
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

    /// Measures `gold` of two choices, and tells how often something was kept.
    fn take(folder: &Path, gold: usize, known: &mut ModelResult) -> (Answers, usize) {
        let line = format!(r#"{{"question": "q", "choices": ["a", "b"], "gold": {gold}}}"#);
        fs::write(folder.join("piqa.jsonl"), [line.as_str(), &line].join("\n")).unwrap();
        let mut exam = Exam { shots: vec![0, 1], ..Exam::default() };
        exam.ask(&[Benchmark::named("piqa").unwrap()], folder, usize::MAX).unwrap();
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
        let line = r#"{"question": "q", "choices": ["a", "b"], "gold": 1}"#;
        fs::write(folder.path().join("piqa.jsonl"), [line, line].join("\n")).unwrap();
        let mut exam = Exam { shots: vec![0, 1], ..Exam::default() };
        exam.ask(&[Benchmark::named("piqa").unwrap()], folder.path(), 5).unwrap();
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

    /// It would be scored, and kept as nothing.
    #[test]
    fn what_is_no_number_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let line = r#"{"question": "q", "choices": ["a", "b"], "gold": 0}"#;
        fs::write(folder.path().join("piqa.jsonl"), ["", line].join("\n")).unwrap();
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
        let mut exam = Exam { shots: vec![0], texts: vec![text.clone()], ..Exam::default() };
        exam.ask(&[Benchmark::named("piqa").unwrap()], folder.path(), usize::MAX).unwrap();
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
