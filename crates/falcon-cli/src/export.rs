//! `falcon export`: a model for Hugging Face Transformers.

use std::io::{self, Write};
use std::path::PathBuf;

use burn::tensor::Device;
use clap::Args;
use falcon_base::PathError;
use falcon_base::files::write_file;
use falcon_lm::data::{TOKENIZER_FILE, Tokenizer};
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::{CONFIG_FILE, FileError, Model, WeightFormat};
use serde_json::{Value, json};
use thiserror::Error;

use crate::folder::{FolderError, NewFolder};
use crate::output::ignore_closed_stdout;

/// Arguments of `falcon export`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct ExportArgs {
    /// The model: a run of `falcon train`, whose best checkpoint is taken, or a folder with config.json and
    /// model.safetensors.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The folder to write. It must not exist yet.
    #[arg(long, value_name = "DIR")]
    pub hf: PathBuf,

    /// The tokenizer, if it is not next to the model: bytes, a tokenizer.json, or a folder with vocab.json and
    /// merges.txt.
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

const HELP: &str = "\
FILES WRITTEN

  config.json              the configuration of the model, with the place of its code
  model.safetensors        the weights
  tokenizer.json           the tokenizer, if there is one, with tokenizer_config.json
  *_falcon_fwa.py          code that AutoModel loads with trust_remote_code=True; it imports
                           the package falcon_fwa

IN PYTHON

  pip install falcon-fwa transformers
  AutoModelForCausalLM.from_pretrained(\"DIR\", trust_remote_code=True)

EXAMPLES

  falcon export runs/books --hf books-hf
  falcon export runs/books/checkpoints/step-002000 --hf books-hf";

/// Why `falcon export` failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The folder cannot be written.
    #[error("--hf {0}")]
    Folder(#[from] FolderError),
    /// The weights are in a format that Transformers cannot read.
    #[error(
        "{}: its weights were converted to {weights}, which Transformers cannot read: export the model that it was \
         made from, or convert that to bf16",
        path.display()
    )]
    Converted {
        /// The model.
        path: PathBuf,
        /// The format of its weights.
        weights: WeightFormat,
    },
    /// The model cannot be opened.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// A model without a tokenizer cannot be opened, or the model cannot be saved.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Stdout cannot be written.
    #[error("the model is written, but stdout is not: {0}")]
    Output(#[from] io::Error),
}

/// The files that `trust_remote_code` loads. They only subclass the classes of the Python package, because Transformers
/// copies the file that defines such a class whenever a model is saved.
const CODE: [(&str, &str); 2] = [
    ("configuration_falcon_fwa.py", include_str!("export/configuration_falcon_fwa.py")),
    ("modeling_falcon_fwa.py", include_str!("export/modeling_falcon_fwa.py")),
];

/// Writes the folder, and prints where it is.
pub fn run(args: &ExportArgs) -> Result<(), ExportError> {
    let (to, folder) = (&args.hf, NewFolder::beside(&args.hf)?);
    let device = Device::flex();
    let (model, tokenizer) = match Trained::open(&args.model, args.tokenizer.as_deref(), &device) {
        Ok(trained) => (trained.model, Some(trained.tokenizer)),
        // The model was not trained on text.
        Err(TrainedError::NoTokenizer { path }) => (Model::load(&path, &device)?, None),
        Err(error) => return Err(error.into()),
    };
    if model.weights() == WeightFormat::Int8 {
        return Err(ExportError::Converted { path: args.model.clone(), weights: model.weights() });
    }
    model.save(folder.path())?;
    let write = |name: &str, text: &str| write_file(&folder.path().join(name), text.as_bytes());
    write(CONFIG_FILE, &configuration(&model, tokenizer.as_ref()))?;
    for (name, code) in CODE {
        write(name, code)?;
    }
    if let Some(tokenizer) = &tokenizer {
        let path = folder.path().join(TOKENIZER_FILE);
        tokenizer.save(&path).map_err(TrainedError::from)?;
        write("tokenizer_config.json", &pretty(&tokenizer_configuration(tokenizer)))?;
    }
    folder.rename(to)?;
    let parameters = model.config().parameter_count();
    let line = if args.json {
        json!({ "folder": to.display().to_string(), "parameters": parameters, "tokenizer": tokenizer.is_some() })
            .to_string()
    } else {
        let tokenizer = if tokenizer.is_some() { "" } else { ", without a tokenizer, because the model has none" };
        format!("{parameters} parameters{tokenizer} -> {}", to.display())
    };
    Ok(ignore_closed_stdout(writeln!(io::stdout(), "{line}"))?)
}

/// `config.json` with the place of the code, and the tokens that begin and end a document.
fn configuration(model: &Model, tokenizer: Option<&Tokenizer>) -> String {
    let fingerprint = tokenizer.map(Tokenizer::vocabulary_fingerprint);
    let json = model.config_json(fingerprint.as_deref());
    let mut config: Value = serde_json::from_str(&json).expect("a configuration is JSON");
    config["auto_map"] = json!({
        "AutoConfig": "configuration_falcon_fwa.FalconFwaConfig",
        "AutoModel": "modeling_falcon_fwa.FalconFwaModel",
        "AutoModelForCausalLM": "modeling_falcon_fwa.FalconFwaForCausalLM",
    });
    if let Some(tokenizer) = tokenizer {
        config["bos_token_id"] = tokenizer.begin().into();
        config["eos_token_id"] = tokenizer.end().into();
    }
    pretty(&config)
}

/// `tokenizer_config.json`: the tokens that documents begin and end with.
fn tokenizer_configuration(tokenizer: &Tokenizer) -> Value {
    let end = tokenizer.end_text();
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.begin_text(),
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": false,
    })
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value can be written as JSON") + "\n"
}
