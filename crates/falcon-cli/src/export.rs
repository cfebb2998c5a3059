//! `falcon export`: a model for Hugging Face's transformers.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use falcon_lm::data::{TOKENIZER_FILE, Tokenizer};
use falcon_lm::trained::{Trained, TrainedError};
use falcon_nn::{CONFIG_FILE, FileError, Model, write_file};
use serde_json::{Value, json};
use thiserror::Error;

use crate::output::printed;

/// Arguments of `falcon export`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ExportArgs {
    /// A run, whose best checkpoint is taken, or a folder with a model.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// The folder to write. It must not be there yet.
    #[arg(long, value_name = "DIR")]
    pub hf: PathBuf,

    /// The tokenizer, if it is not beside the model: bytes, a tokenizer.json, or a folder with vocab.json and
    /// merges.txt.
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,

    /// Print one JSON object instead of a line of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
WHAT IS WRITTEN

  config.json              the model's configuration, and where its code is
  model.safetensors        its weights
  tokenizer.json           its tokenizer, with tokenizer_config.json; none if it has none
  *_falcon_fwa.py          what AutoModel needs with trust_remote_code=True; they import falcon_fwa

IN PYTHON

  pip install falcon-fwa transformers
  AutoModelForCausalLM.from_pretrained(\"DIR\", trust_remote_code=True)

EXAMPLES

  falcon export runs/books --hf books-hf
  falcon export runs/books/checkpoints/step-002000 --hf books-hf";

/// Why nothing is exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The folder is there.
    #[error("--hf {}: is there already; name a folder that is not, or remove it", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The model cannot be opened.
    #[error(transparent)]
    Trained(#[from] TrainedError),
    /// The same, of one without a tokenizer.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file cannot be written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What was to be printed could not be.
    #[error("the model is written, but stdout is not: {0}")]
    Output(#[from] io::Error),
}

/// The code that `trust_remote_code` loads. Everything is in the package. The classes are subclasses of the package's,
/// because transformers copy the file that defines such a class whenever a model is saved.
const CODE: [(&str, &str); 2] = [
    ("configuration_falcon_fwa.py", include_str!("export/configuration_falcon_fwa.py")),
    ("modeling_falcon_fwa.py", include_str!("export/modeling_falcon_fwa.py")),
];

/// Writes the folder, and prints where it is.
pub fn run(args: &ExportArgs) -> Result<(), ExportError> {
    let to = &args.hf;
    if to.symlink_metadata().is_ok() {
        return Err(ExportError::Exists { path: to.clone() });
    }
    let device = Device::flex();
    let (model, tokenizer) = match Trained::open(&args.model, args.tokenizer.as_deref(), &device) {
        Ok(trained) => (trained.model, Some(trained.tokenizer)),
        // One that learnt no text.
        Err(TrainedError::NoTokenizer { path }) => (Model::load(&path, &device)?, None),
        Err(error) => return Err(error.into()),
    };
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |error| ExportError::Io { path, error }
    };
    // Written aside and moved, so that a folder of this name is a whole model.
    let beside = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let aside = tempfile::Builder::new().prefix(falcon_nn::ASIDE).tempdir_in(beside).map_err(io(beside))?;
    let folder = aside.path();
    model.save(folder)?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        write_file(&path, text.as_bytes()).map_err(io(&path))
    };
    write(CONFIG_FILE, &configuration(&model, tokenizer.as_ref()))?;
    for (name, code) in CODE {
        write(name, code)?;
    }
    if let Some(tokenizer) = &tokenizer {
        let path = folder.join(TOKENIZER_FILE);
        tokenizer.save(&path).map_err(TrainedError::from)?;
        write("tokenizer_config.json", &pretty(&about(tokenizer)))?;
    }
    // A temporary folder is private; this one is not.
    #[cfg(unix)]
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(io(folder))?;
    fs::rename(folder, to).map_err(io(to))?;
    // It is where it belongs, and must not be removed with its old name.
    let _ = aside.keep();
    let parameters = model.config().parameter_count();
    let said = if args.json {
        json!({ "folder": to.display().to_string(), "parameters": parameters, "tokenizer": tokenizer.is_some() })
            .to_string()
    } else {
        let tokenizer = if tokenizer.is_some() { "" } else { ", without a tokenizer: it has none" };
        format!("{parameters} parameters{tokenizer} -> {}", to.display())
    };
    Ok(printed(writeln!(io::stdout(), "{said}"))?)
}

/// `config.json`, with where the code is, and the token that ends a document.
fn configuration(model: &Model, tokenizer: Option<&Tokenizer>) -> String {
    let fingerprint = tokenizer.map(Tokenizer::vocabulary_fingerprint);
    let json = model.config().to_json_for(fingerprint.as_deref());
    let mut config: Value = serde_json::from_str(&json).expect("it is JSON");
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
fn about(tokenizer: &Tokenizer) -> Value {
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
    serde_json::to_string_pretty(value).expect("it is plain data") + "\n"
}
