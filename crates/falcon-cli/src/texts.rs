//! Options that several commands have for reading text.

use std::path::PathBuf;

use clap::ValueEnum;
use falcon_lm::data::Detokenizer;
use falcon_lm::evaluate::ExamText;

/// Corpora that are distributed as words separated by spaces, and can be detokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DetokenizeArg {
    /// The raw WikiText corpus, as lm-evaluation-harness reads it for its task wikitext.
    Wikitext,
}

impl From<DetokenizeArg> for Detokenizer {
    fn from(arg: DetokenizeArg) -> Self {
        match arg {
            DetokenizeArg::Wikitext => Self::WikiText,
        }
    }
}

/// The texts of `--text`, detokenized if `--detokenize` is given.
pub(crate) fn exam_texts(paths: &[PathBuf], detokenize: Option<DetokenizeArg>) -> Vec<ExamText> {
    let text = |path: &PathBuf| ExamText { path: path.clone(), detokenizer: detokenize.map(Into::into) };
    paths.iter().map(text).collect()
}
