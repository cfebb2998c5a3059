//! The tokenizer of an experiment that is given none: it is trained on the training text.

use std::fs;
use std::path::Path;

use falcon_base::AtPath;
use falcon_base::files::write_file;
use falcon_lm::data::{Source, TOKENIZER_FILE, Tokenizer, digest, sample};

use crate::reproduce::error::ExperimentError;

/// The size of its vocabulary, and the largest amount of text that it is trained on.
const VOCABULARY: usize = 4096;
const SAMPLE: usize = 16 << 20;

/// Name of the file with the hash of the text that the tokenizer was trained on.
const TRAINED_ON_FILE: &str = "tokenizer.from";

/// The path of the tokenizer in the output folder, which is trained on the text `train` unless it is there already.
pub(super) fn train_tokenizer(train: &Path, output: &Path) -> Result<String, ExperimentError> {
    let (path, trained_on) = (output.join(TOKENIZER_FILE), output.join(TRAINED_ON_FILE));
    let texts = sample(&[Source::open(train)?], SAMPLE)?;
    let text = digest(&texts) + "\n";
    if path.exists() {
        if fs::read_to_string(&trained_on).is_ok_and(|recorded| recorded == text) {
            return Ok(path.to_string_lossy().into_owned());
        }
        return Err(ExperimentError::OtherTokenizer { path });
    }
    let tokenizer = Tokenizer::learn(VOCABULARY, texts.into_iter())?;
    fs::create_dir_all(output).at(output)?;
    // The hash is written first, so that there is never a tokenizer without it.
    write_file(&trained_on, text.as_bytes())?;
    tokenizer.save(&path)?;
    Ok(path.to_string_lossy().into_owned())
}
