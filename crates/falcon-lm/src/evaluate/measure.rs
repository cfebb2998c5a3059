//! Texts and benchmarks put to a trained model. What was measured of the same weights before is not measured again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Benchmark, BenchmarkError, BenchmarkResult, Item, Reading, TextScore, fingerprint, text_score};
use crate::data::{CacheError, Source, Tokens, cache_folder};
use crate::trained::Trained;

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
pub type Progress<'a> = dyn FnMut(&str, usize, usize) -> bool + 'a;

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

    /// Measures what `result` does not have yet, and gives it to `keep` after every part. False if it was interrupted.
    pub fn take<E: From<CacheError>>(
        &self,
        trained: &Trained,
        result: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        progress: &mut Progress<'_>,
    ) -> Result<bool, E> {
        Ok(self.read(trained, result, keep, progress)? && self.answer(trained, result, keep, progress)?)
    }

    fn read<E: From<CacheError>>(
        &self,
        Trained { model, tokenizer, .. }: &Trained,
        result: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        progress: &mut Progress<'_>,
    ) -> Result<bool, E> {
        for path in &self.texts {
            let name = path.display().to_string();
            let source = Source::open(path).map_err(CacheError::from)?;
            let text = Tokens::open(&source, tokenizer, &cache_folder(), &mut |bytes| {
                progress(&format!("{name}: bytes made into tokens"), bytes, 0)
            })?;
            let same = |old: &TextResult| {
                old.text == name && old.fingerprint == text.fingerprint() && old.window == self.window
            };
            if result.texts.iter().any(same) {
                continue;
            }
            let reading = self.window.map_or(Reading::Whole, |window| Reading::Windows(window as usize));
            let score = text_score(model, &text, reading, &mut |done, all| progress(&name, done, all));
            let Some(score) = score else { return Ok(false) };
            let (fingerprint, window) = (text.fingerprint().to_string(), self.window);
            result.texts.retain(|old| old.text != name || old.window != window);
            result.texts.push(TextResult { text: name, fingerprint, window, score });
            keep(result)?;
        }
        Ok(true)
    }

    fn answer<E: From<CacheError>>(
        &self,
        Trained { model, tokenizer, .. }: &Trained,
        result: &mut ModelResult,
        keep: &mut dyn FnMut(&ModelResult) -> Result<(), E>,
        progress: &mut Progress<'_>,
    ) -> Result<bool, E> {
        for (benchmark, items) in &self.questions {
            for &shots in &self.shots {
                let requests = benchmark.requests(items, tokenizer, shots);
                let same = |old: &BenchmarkResult| old.name == benchmark.name && old.shots == shots;
                let asked = fingerprint(&requests);
                if result.benchmarks.iter().any(|old| same(old) && old.fingerprint == asked) {
                    continue;
                }
                let title = format!("{}, {shots}-shot", benchmark.title);
                let found =
                    benchmark.run(model, items, &requests, shots, &mut |done, all| progress(&title, done, all));
                let Some(found) = found else { return Ok(false) };
                result.benchmarks.retain(|old| !same(old));
                result.benchmarks.push(found);
                keep(result)?;
            }
        }
        Ok(true)
    }
}
