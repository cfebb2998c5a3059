//! States on disk: safetensors files whose metadata has a format version and a checksum of everything else.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::arrays::{Metadata, NamedArrays, read_with_metadata, write_with};
use super::error::FileError;
use crate::mixer::Arrays;
use crate::model::{Model, ModelState};

/// The positions in a saved state, a number for each sequence.
const POSITIONS: &str = "positions";
/// The key of the file's metadata: a JSON object with the version, the checksum and all texts. One key, because the
/// order of several is not defined, and equal states should be equal files.
const STATE_KEY: &str = "falcon_state";
/// The key of that object that has the version of the format.
const VERSION_KEY: &str = "version";
/// The version that is written and read.
const VERSION: &str = "2";
/// The key of that object that has the checksum.
const CHECKSUM_KEY: &str = "sha256";

/// Writes arrays and texts with a format version and a checksum, by which [`read_sealed`] finds any change.
pub fn write_sealed(path: &Path, arrays: &NamedArrays, texts: &Metadata) -> Result<(), FileError> {
    let mut metadata = texts.clone();
    metadata.insert(VERSION_KEY.into(), VERSION.into());
    metadata.insert(CHECKSUM_KEY.into(), checksum(arrays, &metadata));
    let text = serde_json::to_string(&metadata).expect("texts are plain data");
    write_with(path, arrays, &Metadata::from([(STATE_KEY.to_string(), text)]))
}

/// Reads what [`write_sealed`] wrote. A file of another version, or one that has changed since, is refused.
pub fn read_sealed(path: &Path) -> Result<(NamedArrays, Metadata), FileError> {
    let (arrays, outer) = read_with_metadata(path)?;
    let refuse = |what: String| Err(FileError::State { path: path.into(), what });
    let inner = outer.get(STATE_KEY).and_then(|text| serde_json::from_str::<Metadata>(text).ok());
    let mut metadata = inner.unwrap_or_default();
    match metadata.get(VERSION_KEY).map(String::as_str) {
        Some(VERSION) => {}
        None if arrays.contains_key(POSITIONS) => {
            return refuse(
                "a state of an earlier version of falcon, which has no checksum: read the text again and save \
                 the state anew, as by `falcon generate --state-out`"
                    .into(),
            );
        }
        None => return refuse("not a saved state; `falcon generate --state-out` writes them".into()),
        Some(other) => {
            return refuse(format!(
                "a state of format version {other:?}, where this version of falcon reads {VERSION:?}: use the \
                 version that wrote it, or save the state anew"
            ));
        }
    }
    let Some(expected) = metadata.remove(CHECKSUM_KEY) else {
        return refuse(format!("damaged: its metadata has no {CHECKSUM_KEY:?}; save the state anew"));
    };
    let got = checksum(&arrays, &metadata);
    if got != expected {
        return refuse(format!(
            "damaged: its content has the SHA-256 {got}, where {expected} was written; save the state anew"
        ));
    }
    metadata.remove(VERSION_KEY);
    Ok((arrays, metadata))
}

/// SHA-256, in hexadecimal, over names, shapes, numbers and texts. Each part is preceded by its length, so that no
/// two contents are hashed as the same bytes.
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
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Model {
    /// Writes a state to a file, to be continued from another day.
    pub fn save_state(&self, state: &ModelState, path: &Path) -> Result<(), FileError> {
        write_sealed(path, &self.state_arrays(state), &Metadata::new())
    }

    /// A state as arrays, for a file that holds more than that.
    pub fn state_arrays(&self, state: &ModelState) -> NamedArrays {
        self.check_depth(state);
        let mut arrays = BTreeMap::new();
        for (index, (layer, state)) in self.layers().iter().zip(&state.layers).enumerate() {
            for (name, array) in layer.mixer().owner().arrays(state) {
                arrays.insert(format!("layers.{index}.{name}"), array);
            }
        }
        // In two halves, so that every position is exact.
        let halves = state.positions().iter().flat_map(|t| [(t >> 24) as f32, (t & 0xff_ffff) as f32]).collect();
        arrays.insert(POSITIONS.into(), (vec![state.positions().len(), 2], halves));
        arrays
    }

    /// Reads what [`Model::save_state`] wrote, with either engine. A state of another model is refused.
    pub fn load_state(&self, path: &Path) -> Result<ModelState, FileError> {
        self.restore_state(read_sealed(path)?.0, path)
    }

    /// Undoes [`Model::state_arrays`]; errors name `path`, where they came from.
    pub fn restore_state(&self, arrays: NamedArrays, path: &Path) -> Result<ModelState, FileError> {
        let mut arrays = Arrays { of: arrays, path: path.into(), prefix: String::new() };
        let sequences = match arrays.shape(POSITIONS) {
            Some(shape) => shape.first().copied().unwrap_or(0),
            None => {
                return Err(arrays.refuse(POSITIONS, "nothing: is it the state of a model?".into()));
            }
        };
        let halves = arrays.counts(POSITIONS, &[sequences, 2])?;
        let (halves, _) = halves.as_chunks::<2>();
        let positions: Vec<usize> = halves.iter().map(|[high, low]| (high << 24) + low).collect();
        let mut layers = Vec::new();
        for (index, layer) in self.layers().iter().enumerate() {
            arrays.prefix = format!("layers.{index}.");
            layers.push(layer.mixer().owner().restore(&positions, &mut arrays)?);
        }
        match arrays.of.into_keys().next() {
            Some(name) => {
                let (path, hint) = (path.into(), "is it the state of another model?".into());
                Err(FileError::Unexpected { path, name, hint })
            }
            None => Ok(ModelState { layers }),
        }
    }
}
