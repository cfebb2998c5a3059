//! Fingerprints of the texts and questions of an exam, by which results of the same texts and questions are found where
//! they were recorded elsewhere.

use super::choices::BenchmarkResult;
use super::measure::{Exam, TextResult};
use super::questions::RequestError;
use crate::data::{CacheError, Tokenizer, cache_folder};
use crate::monitor::Monitor;

/// The fingerprints of the texts and questions of an exam, for one tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub struct ExamFingerprints {
    /// The fingerprint of each text, as tokens.
    texts: Vec<String>,
    window: Option<u32>,
    benchmarks: Vec<BenchmarkFingerprint>,
}

/// The fingerprint of a benchmark's questions with a number of examples before each.
#[derive(Clone, Debug, PartialEq)]
struct BenchmarkFingerprint {
    name: &'static str,
    shots: usize,
    fingerprint: String,
}

impl Exam {
    /// The fingerprints of all texts and questions for a model with this tokenizer. None if the work was cancelled.
    pub fn fingerprints(
        &self,
        tokenizer: &Tokenizer,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<ExamFingerprints>, CacheError> {
        match self.compute_fingerprints(tokenizer, monitor) {
            Err(CacheError::Cancelled(_)) => Ok(None),
            fingerprints => fingerprints.map(Some),
        }
    }

    fn compute_fingerprints(
        &self,
        tokenizer: &Tokenizer,
        monitor: &mut dyn Monitor,
    ) -> Result<ExamFingerprints, CacheError> {
        let mut fingerprints = ExamFingerprints { texts: Vec::new(), window: self.window, benchmarks: Vec::new() };
        for text in &self.texts {
            let tokens = text.tokens(tokenizer, &cache_folder()?, self.check, monitor)?;
            fingerprints.texts.push(tokens.fingerprint().to_string());
        }
        for (questions, all_shots) in &self.questions {
            for &shots in all_shots {
                let name = questions.benchmark.name;
                monitor.stage(&format!("{name}, {shots}-shot"));
                let requests = questions.requests(tokenizer, shots, monitor).map_err(|error| match error {
                    RequestError::Tokenizer(error) => CacheError::from(error),
                    RequestError::Cancelled(cancelled) => cancelled.into(),
                })?;
                let fingerprint = questions.fingerprint(&requests);
                fingerprints.benchmarks.push(BenchmarkFingerprint { name, shots, fingerprint });
            }
        }
        Ok(fingerprints)
    }
}

impl ExamFingerprints {
    /// Finds the results with these fingerprints, in the order of the exam. None if any is missing.
    pub fn find_results(
        &self,
        texts: &[TextResult],
        benchmarks: &[BenchmarkResult],
    ) -> Option<(Vec<TextResult>, Vec<BenchmarkResult>)> {
        let text = |wanted: &String| {
            let same = |found: &&TextResult| found.fingerprint == *wanted && found.window == self.window;
            texts.iter().find(same).cloned()
        };
        let benchmark = |wanted: &BenchmarkFingerprint| {
            let same = |found: &&BenchmarkResult| {
                found.name == wanted.name && found.shots == wanted.shots && found.fingerprint == wanted.fingerprint
            };
            benchmarks.iter().find(same).cloned()
        };
        let texts: Option<Vec<_>> = self.texts.iter().map(text).collect();
        let benchmarks: Option<Vec<_>> = self.benchmarks.iter().map(benchmark).collect();
        texts.zip(benchmarks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::measure::ExamText;
    use crate::scores::TextScore;

    #[test]
    fn results_are_found_by_the_content_of_a_text_and_the_window() {
        let folder = tempfile::tempdir().unwrap();
        let fingerprints = |name: &str, text: &str, window| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let exam = Exam::new(vec![ExamText { path, detokenizer: None }], window);
            exam.fingerprints(&Tokenizer::bytes(), &mut ()).unwrap().unwrap()
        };
        let original = fingerprints("a.txt", "rain on the hill", Some(4));
        let recorded = [TextResult {
            text: "elsewhere/b.txt".into(),
            fingerprint: original.texts[0].clone(),
            detokenizer: None,
            window: Some(4),
            score: TextScore { nats: 1.0, tokens: 1, bytes: 1, words: 1 },
        }];
        assert_eq!(original.find_results(&recorded, &[]), Some((recorded.to_vec(), Vec::new())));
        assert_eq!(
            fingerprints("b.txt", "rain on the hill", Some(4)).find_results(&recorded, &[]).unwrap().0,
            recorded,
            "the same text under another name"
        );
        assert_eq!(
            fingerprints("c.txt", "snow on the hill", Some(4)).find_results(&recorded, &[]),
            None,
            "another text"
        );
        assert_eq!(
            fingerprints("a.txt", "rain on the hill", Some(8)).find_results(&recorded, &[]),
            None,
            "another window"
        );
        assert_eq!(original.find_results(&[], &[]), None);
    }
}
