//! `falcon convert`: a model with its weights in fewer bits.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use falcon_base::{AtPath, PathError};
use falcon_lm::data::TOKENIZER_FILE;
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::{FileError, Model, WeightFormat, tokenizer_fingerprint, weight_files};
use indicatif::HumanBytes;
use serde_json::json;
use thiserror::Error;

use crate::folder::{FolderError, NewFolder};
use crate::output::ignore_closed_stdout;
use crate::progress::Progress;

/// Arguments of `falcon convert`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct ConvertArgs {
    /// The model: a run of `falcon train`, whose best checkpoint is taken, or a folder with config.json and
    /// model.safetensors.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The format of the weights: bf16 (half of the size) or int8 (a third).
    #[arg(long, value_name = "FORMAT", value_parser = packed)]
    pub weights: WeightFormat,

    /// The folder to write. It must not exist yet.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,

    /// The tokenizer, if it is not next to the model: bytes, a tokenizer.json, or a folder with vocab.json and
    /// merges.txt.
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

/// A format other than `f32`, which a model has already.
fn packed(name: &str) -> Result<WeightFormat, String> {
    match name.parse() {
        Ok(WeightFormat::F32) => Err("a model has f32 weights before it is converted: choose bf16 or int8".into()),
        format => format.map_err(|error| error.to_string()),
    }
}

const HELP: &str = "\
FILES WRITTEN

  config.json              the configuration of the model, with the key weight_format
  model.safetensors        matrices as BF16; or as I8, with factors for blocks of 32 numbers in a
                           tensor NAME.scales beside each (gates as BF16). The rest stays F32
  tokenizer.json           the tokenizer, if there is one

  generate and eval open the folder as any model, and hold its weights as they are stored. Text
  and perplexity are bit for bit those of the original with --weights, and opening it needs a
  fraction of the memory. A state saved with one cannot be continued with the other. What was
  rounded away is lost: keep the original to train from, and to convert to another format. Python and Hugging
  Face Transformers open bf16, and refuse int8.

EXAMPLES

  falcon convert runs/books --weights int8 --output books-int8
  falcon generate books-int8 \"Once upon a time\"
  falcon eval runs/books books-int8 --text book.txt";

/// Why `falcon convert` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The folder to write is the model.
    #[error("--output {}: this is the model itself; name a new folder", path.display())]
    Same {
        /// The folder.
        path: PathBuf,
    },
    /// The folder cannot be written.
    #[error("--output {0}")]
    Folder(#[from] FolderError),
    /// The model cannot be opened.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// A model without a tokenizer cannot be opened, or the model cannot be saved.
    #[error(transparent)]
    File(#[from] FileError),
    /// The size of a file cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The weights were converted earlier.
    #[error("{}: its weights are {weights} already; convert the model that it was made from", path.display())]
    Converted {
        /// The model.
        path: PathBuf,
        /// The format of its weights.
        weights: WeightFormat,
    },
    /// Stdout cannot be written.
    #[error("the model is written, but stdout is not: {0}")]
    Output(#[from] io::Error),
}

/// Writes the folder, and prints what it saves.
pub fn run(args: &ConvertArgs) -> Result<(), ConvertError> {
    let to = &args.output;
    let is_same =
        |path: &Path| fs::canonicalize(path).is_ok_and(|path| fs::canonicalize(to).is_ok_and(|to| to == path));
    let source = Trained::check(&args.model)?;
    if is_same(&args.model) || is_same(&source) {
        return Err(ConvertError::Same { path: to.clone() });
    }
    let folder = NewFolder::beside(to)?;
    let progress = Progress::spinner("opening the model");
    let device = Device::flex();
    let (model, tokenizer) = match Trained::open(&args.model, args.tokenizer.as_deref(), &device) {
        Ok(trained) => (trained.model, Some(trained.tokenizer)),
        // The model was not trained on text.
        Err(TrainedError::NoTokenizer { path }) => (Model::load(&path, &device)?, None),
        Err(error) => return Err(error.into()),
    };
    if model.weights() != WeightFormat::F32 {
        return Err(ConvertError::Converted { path: source, weights: model.weights() });
    }
    let parameters = model.config().parameter_count();
    progress.message(format!("converting to {}", args.weights));
    let model = model.packed(args.weights);
    let fingerprint = match &tokenizer {
        Some(tokenizer) => Some(tokenizer.vocabulary_fingerprint()),
        None => tokenizer_fingerprint(&source)?,
    };
    model.save_for(folder.path(), fingerprint.as_deref())?;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.save(&folder.path().join(TOKENIZER_FILE)).map_err(TrainedError::from)?;
    }
    let (before, after) = (size(&source)?, size(folder.path())?);
    folder.rename(to)?;
    drop(progress);
    let line = if args.json {
        json!({
            "folder": to.display().to_string(), "weights": args.weights.to_string(), "parameters": parameters,
            "bytes_before": before, "bytes_after": after, "tokenizer": tokenizer.is_some(),
        })
        .to_string()
    } else {
        let tokenizer = if tokenizer.is_some() { "" } else { ", without a tokenizer, because the model has none" };
        format!(
            "{parameters} parameters as {}{tokenizer}: {} -> {}, {}",
            args.weights,
            HumanBytes(before),
            to.display(),
            HumanBytes(after)
        )
    };
    Ok(ignore_closed_stdout(writeln!(io::stdout(), "{line}"))?)
}

/// The size of the weights of a model.
fn size(folder: &Path) -> Result<u64, ConvertError> {
    let mut bytes = 0;
    for file in weight_files(folder)? {
        bytes += fs::metadata(&file).at(&file)?.len();
    }
    Ok(bytes)
}
