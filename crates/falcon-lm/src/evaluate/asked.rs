//! The content of an exam, by which results recorded elsewhere are recognised.

use super::choices::BenchmarkResult;
use super::measure::{Exam, TextResult};
use super::questions::RequestError;
use crate::data::{CacheError, Tokenizer, cache_folder};
use crate::monitor::Monitor;

/// The fingerprints of everything that an exam asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The fingerprint of each text, as tokens.
    texts: Vec<String>,
    window: Option<u32>,
    benchmarks: Vec<AskedBenchmark>,
}

#[derive(Clone, Debug, PartialEq)]
struct AskedBenchmark {
    name: &'static str,
    shots: usize,
    fingerprint: String,
}

impl Exam {
    /// Everything that is asked of a model with this tokenizer. None if it was cancelled.
    pub fn asked(&self, tokenizer: &Tokenizer, monitor: &mut dyn Monitor) -> Result<Option<Asked>, CacheError> {
        match self.fingerprints(tokenizer, monitor) {
            Err(CacheError::Cancelled(_)) => Ok(None),
            asked => asked.map(Some),
        }
    }

    fn fingerprints(&self, tokenizer: &Tokenizer, monitor: &mut dyn Monitor) -> Result<Asked, CacheError> {
        let mut asked = Asked { texts: Vec::new(), window: self.window, benchmarks: Vec::new() };
        for text in &self.texts {
            let tokens = text.tokens(tokenizer, &cache_folder()?, self.check, monitor)?;
            asked.texts.push(tokens.fingerprint().to_string());
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
                asked.benchmarks.push(AskedBenchmark { name, shots, fingerprint });
            }
        }
        Ok(asked)
    }
}

impl Asked {
    /// Finds the results for everything that is asked, in order. None if any is missing.
    pub fn answers(
        &self,
        texts: &[TextResult],
        benchmarks: &[BenchmarkResult],
    ) -> Option<(Vec<TextResult>, Vec<BenchmarkResult>)> {
        let text = |wanted: &String| {
            let same = |text: &&TextResult| text.fingerprint == *wanted && text.window == self.window;
            texts.iter().find(same).cloned()
        };
        let benchmark = |wanted: &AskedBenchmark| {
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
    fn a_text_is_recognised_by_its_content_and_window() {
        let folder = tempfile::tempdir().unwrap();
        let exam = |name: &str, text: &str, window| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let exam = Exam::new(vec![ExamText { path, detokenizer: None }], window);
            exam.asked(&Tokenizer::bytes(), &mut ()).unwrap().unwrap()
        };
        let asked = exam("a.txt", "rain on the hill", Some(4));
        let known = [TextResult {
            text: "elsewhere/b.txt".into(),
            fingerprint: asked.texts[0].clone(),
            detokenizer: None,
            window: Some(4),
            score: TextScore { nats: 1.0, tokens: 1, bytes: 1, words: 1 },
        }];
        assert_eq!(asked.answers(&known, &[]), Some((known.to_vec(), Vec::new())));
        assert_eq!(
            exam("b.txt", "rain on the hill", Some(4)).answers(&known, &[]).unwrap().0,
            known,
            "another place"
        );
        assert_eq!(exam("c.txt", "snow on the hill", Some(4)).answers(&known, &[]), None, "another text");
        assert_eq!(exam("a.txt", "rain on the hill", Some(8)).answers(&known, &[]), None, "another window");
        assert_eq!(asked.answers(&[], &[]), None);
    }
}
