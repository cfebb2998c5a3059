//! The files that hold the weights of a model: a single one, or the shards that an index lists.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use falcon_base::files::read_file;
use serde::Deserialize;

use crate::file_error::FileError;

/// Name of the file of weights in the folder of a model.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Name of the index of weights in several files, as Hugging Face's transformers write it.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// The largest index that is read. An index of a million tensors is smaller.
const LARGEST_INDEX: u64 = 1 << 28;

/// A file of weights, and the tensors that it must hold if an index lists them.
pub(super) struct Shard {
    pub path: PathBuf,
    pub tensors: Option<BTreeSet<String>>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that hold the weights of the model in `folder`.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    Ok(shards(folder)?.into_iter().map(|shard| shard.path).collect())
}

/// The files that hold the weights of the model in `folder`, with the tensors that an index lists for each.
pub(super) fn shards(folder: &Path) -> Result<Vec<Shard>, FileError> {
    let (single, path) = (folder.join(WEIGHTS_FILE), folder.join(INDEX_FILE));
    if single.exists() || !path.exists() {
        return Ok(vec![Shard { path: single, tensors: None }]);
    }
    let wrong = |what: String| FileError::Index { path: path.clone(), what };
    let json = read_file(&path, LARGEST_INDEX)?;
    let index: Index =
        serde_json::from_slice(&json).map_err(|source| FileError::IndexJson { path: path.clone(), source })?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map {
        files.entry(file).or_default().insert(tensor);
    }
    if files.is_empty() {
        return Err(wrong("its weight_map lists no tensor".into()));
    }
    let shard = |(file, tensors): (String, BTreeSet<String>)| {
        let tensor = tensors.first().expect("a file is listed for a tensor").clone();
        // A path could lead out of the folder.
        if Path::new(&file).file_name() != Some(OsStr::new(&file)) || file.contains(['/', '\\']) {
            return Err(wrong(format!(
                "tensor {tensor:?} is in {file:?}, which is not the name of a file in the same folder"
            )));
        }
        let path = folder.join(&file);
        if !path.exists() {
            return Err(wrong(format!("the shard {file:?} with tensor {tensor:?} is missing: copy it here")));
        }
        Ok(Shard { path, tensors: Some(tensors) })
    };
    files.into_iter().map(shard).collect()
}
