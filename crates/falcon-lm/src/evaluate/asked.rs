//! What an exam asks, told by content, so that answers recorded elsewhere can be recognised.

use super::choices::fingerprint;
use super::measure::Exam;
use super::{BenchmarkResult, OnProgress, TextResult};
use crate::data::{CacheError, Tokenizer, Tokens, cache_folder};

/// Everything that an exam asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The content of each text, as tokens.
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
    /// Everything that is asked of a model with this tokenizer. None if `progress` said to stop.
    pub fn asked(
        &self,
        tokenizer: &Tokenizer,
        progress: &mut OnProgress<'_>,
    ) -> Result<Option<Asked>, CacheError> {
        let mut asked = Asked { texts: Vec::new(), window: self.window, benchmarks: Vec::new() };
        for text in &self.texts {
            let name = text.path.display().to_string();
            let source = text.source(&mut || progress(&name, 0, 0))?;
            let opened = Tokens::open(&source, tokenizer, &cache_folder()?, self.check, &mut |bytes| {
                progress(&format!("{name}: {} MiB made into tokens", bytes >> 20), 0, 0)
            });
            match opened {
                Err(CacheError::Interrupted) => return Ok(None),
                opened => asked.texts.push(opened?.fingerprint().to_string()),
            }
        }
        for (questions, all_shots) in &self.questions {
            for &shots in all_shots {
                let name = questions.benchmark.name;
                let (title, all) = (format!("{name}, {shots}-shot"), questions.asked.len());
                let requests = questions.requests(tokenizer, shots, &mut |done| progress(&title, done, all))?;
                let Some(requests) = requests else { return Ok(None) };
                let fingerprint = fingerprint(&questions.asked, &requests);
                asked.benchmarks.push(AskedBenchmark { name, shots, fingerprint });
            }
        }
        Ok(Some(asked))
    }
}

impl Asked {
    /// The answers to all that is asked, in order, if there are answers to all of it.
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
    use crate::evaluate::{ExamText, TextScore};

    #[test]
    fn a_text_is_known_by_its_content_and_window() {
        let folder = tempfile::tempdir().unwrap();
        let exam = |name: &str, text: &str, window| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let exam = Exam::new(vec![ExamText { path, detokenizer: None }], window);
            exam.asked(&Tokenizer::bytes(), &mut |_, _, _| true).unwrap().unwrap()
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
