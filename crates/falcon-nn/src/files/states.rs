//! Saved states: safetensors files whose metadata holds the positions, a format version and a checksum.

use std::collections::BTreeMap;
use std::path::Path;

use falcon_base::hex;
use sha2::{Digest, Sha256};

use super::arrays::{Metadata, NamedArrays, read_with_metadata, write_with};
use crate::file_error::FileError;
use crate::mixer::Arrays;
use crate::model::{Model, ModelState};

/// The state of a model as plain numbers, as a file holds it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedState {
    /// Number of tokens of each sequence so far.
    pub positions: Vec<usize>,
    /// The arrays of all layers by name.
    pub arrays: NamedArrays,
    /// Texts that are saved with the state, by names other than those of the format.
    pub texts: Metadata,
}

/// The key of the file's metadata. Its value is a JSON object with the version, the checksum, the positions and all
/// texts. It is a single key because safetensors does not define the order of several, and equal states should give
/// equal files.
const STATE_KEY: &str = "falcon_state";
/// The key of the format version within that object.
const VERSION_KEY: &str = "version";
/// The version that is written and read. Version 2 stored positions and counts as floating-point tensors.
const VERSION: &str = "3";
/// The key of the checksum within that object.
const CHECKSUM_KEY: &str = "sha256";
/// The key of the positions within that object. In files before version 2 it was the name of a tensor.
const POSITIONS: &str = "positions";
/// A position beyond this is refused, so that later ones do not overflow.
const LAST_POSITION: usize = 1 << 48;

impl SavedState {
    /// Writes a file with a format version and a checksum, which [`SavedState::read`] verifies.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let mut metadata = self.texts.clone();
        metadata.insert(VERSION_KEY.into(), VERSION.into());
        let positions: Vec<String> = self.positions.iter().map(usize::to_string).collect();
        metadata.insert(POSITIONS.into(), positions.join(" "));
        metadata.insert(CHECKSUM_KEY.into(), checksum(&self.arrays, &metadata));
        let text = serde_json::to_string(&metadata).expect("texts are plain data");
        write_with(path, &self.arrays, &Metadata::from([(STATE_KEY.to_string(), text)]))
    }

    /// Reads a file that [`SavedState::write`] has written. A file of another format version, or one that has been
    /// changed since, is refused.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let (arrays, outer) = read_with_metadata(path)?;
        let refuse = |what: String| FileError::State { path: path.into(), what };
        let inner = outer.get(STATE_KEY).and_then(|text| serde_json::from_str::<Metadata>(text).ok());
        let mut metadata = inner.unwrap_or_default();
        match metadata.get(VERSION_KEY).map(String::as_str) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(refuse(format!(
                    "a state of format version {other:?}, but this version of falcon reads {VERSION:?}: use the version \
                     that wrote it, or read the text again and save the state anew"
                )));
            }
            None if arrays.contains_key(POSITIONS) => {
                return Err(refuse(
                    "a state of an earlier version of falcon, which has no checksum: read the text again and save the \
                     state anew, as by `falcon generate --state-out`"
                        .into(),
                ));
            }
            None => return Err(refuse("not a saved state; `falcon generate --state-out` writes them".into())),
        }
        let Some(expected) = metadata.remove(CHECKSUM_KEY) else {
            return Err(refuse(format!("damaged: its metadata has no {CHECKSUM_KEY:?}; save the state anew")));
        };
        let got = checksum(&arrays, &metadata);
        if got != expected {
            return Err(refuse(format!(
                "damaged: its content has the SHA-256 {got}, where {expected} was written; save the state anew"
            )));
        }
        metadata.remove(VERSION_KEY);
        let positions = metadata.remove(POSITIONS).unwrap_or_default();
        let positions: Result<Vec<usize>, _> =
            positions.split_whitespace().map(|text| position(text, path)).collect();
        Ok(Self { positions: positions?, arrays, texts: metadata })
    }
}

fn position(text: &str, path: &Path) -> Result<usize, FileError> {
    text.parse().ok().filter(|position| *position <= LAST_POSITION).ok_or_else(|| FileError::Number {
        path: path.into(),
        name: POSITIONS.into(),
        got: format!("{text:?}, where a whole number up to {LAST_POSITION} is expected"),
    })
}

/// The hexadecimal SHA-256 of names, shapes, numbers and texts. Each part is preceded by its length, so that different
/// contents are never hashed as the same bytes.
fn checksum(arrays: &NamedArrays, metadata: &Metadata) -> String {
    let mut hash = Sha256::new();
    let count = |hash: &mut Sha256, number: usize| hash.update((number as u64).to_le_bytes());
    for (key, text) in metadata {
        for part in [key, text] {
            count(&mut hash, part.len());
            hash.update(part);
        }
    }
    count(&mut hash, arrays.len());
    for (name, (shape, numbers)) in arrays {
        count(&mut hash, name.len());
        hash.update(name);
        count(&mut hash, shape.len());
        shape.iter().for_each(|size| count(&mut hash, *size));
        numbers.iter().for_each(|number| hash.update(number.to_le_bytes()));
    }
    hex(&hash.finalize())
}

impl Model {
    /// Writes a state to a file, from which [`Model::load_state`] resumes.
    pub fn save_state(&self, state: &ModelState, path: &Path) -> Result<(), FileError> {
        self.export_state(state).write(path)
    }

    /// Reads a state that [`Model::save_state`] has written, with either engine. The state of another model is refused.
    pub fn load_state(&self, path: &Path) -> Result<ModelState, FileError> {
        self.import_state(SavedState::read(path)?, path)
    }

    /// The state as plain numbers, without texts.
    pub fn export_state(&self, state: &ModelState) -> SavedState {
        self.check_depth(state);
        let mut arrays = BTreeMap::new();
        for (index, (layer, state)) in self.layers().iter().zip(&state.layers).enumerate() {
            for (name, array) in layer.mixer().owner().arrays(state) {
                arrays.insert(format!("layers.{index}.{name}"), array);
            }
        }
        SavedState { positions: state.positions().to_vec(), arrays, texts: Metadata::new() }
    }

    /// The inverse of [`Model::export_state`]. Errors name `path`, the file that the state comes from.
    pub fn import_state(&self, saved: SavedState, path: &Path) -> Result<ModelState, FileError> {
        let SavedState { positions, arrays, .. } = saved;
        let mut arrays = Arrays { arrays, path: path.into(), prefix: String::new() };
        let mut layers = Vec::new();
        for (index, layer) in self.layers().iter().enumerate() {
            arrays.prefix = format!("layers.{index}.");
            layers.push(layer.mixer().owner().restore(&positions, &mut arrays)?);
        }
        match arrays.arrays.into_keys().next() {
            Some(name) => {
                let (path, hint) = (path.into(), "is it the state of another model?".into());
                Err(FileError::Unexpected { path, name, hint })
            }
            None => Ok(ModelState { layers }),
        }
    }
}
