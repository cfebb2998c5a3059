//! Safetensors files as arrays of 32-bit floats.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use falcon_base::files;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::file_error::FileError;

/// Arrays by name: their shapes and their numbers, row-major.
pub type NamedArrays = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Texts by name, which a safetensors file can hold beside its tensors.
pub type Metadata = BTreeMap<String, String>;

/// Reads a safetensors file. 16-bit floats are converted; non-finite numbers are refused.
pub fn read_arrays(path: &Path) -> Result<NamedArrays, FileError> {
    arrays_from_bytes(&files::read_file(path, u64::MAX)?, path)
}

/// [`read_arrays`] for a file whose contents have been read already; `path` is for error messages.
pub fn arrays_from_bytes(bytes: &[u8], path: &Path) -> Result<NamedArrays, FileError> {
    all_arrays(&open(bytes, path)?, path)
}

/// Writes a safetensors file atomically.
pub fn write_arrays(path: &Path, arrays: &NamedArrays) -> Result<(), FileError> {
    write_with(path, arrays, &pytorch())
}

/// Writes a safetensors file with the given metadata.
pub(super) fn write_with(path: &Path, arrays: &NamedArrays, metadata: &Metadata) -> Result<(), FileError> {
    let stored = arrays.iter().map(|(name, (shape, data))| Stored::f32(name, shape, data));
    write_stored(path, &stored.collect::<Vec<_>>(), metadata)
}

/// A tensor as it is stored.
pub(super) struct Stored {
    pub name: String,
    pub kind: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Stored {
    pub fn f32(name: &str, shape: &[usize], data: &[f32]) -> Self {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        Self { name: name.into(), kind: Dtype::F32, shape: shape.into(), bytes }
    }
}

/// Writes a safetensors file of tensors of any kind, atomically.
pub(super) fn write_stored(path: &Path, tensors: &[Stored], metadata: &Metadata) -> Result<(), FileError> {
    let views = tensors.iter().map(|Stored { name, kind, shape, bytes }| {
        (name.as_str(), TensorView::new(*kind, shape.clone(), bytes).expect("the bytes fill the shape"))
    });
    let metadata: HashMap<String, String> = metadata.clone().into_iter().collect();
    let bytes = safetensors::serialize(views, Some(metadata)).expect("names and views are valid");
    Ok(files::write_file(path, &bytes)?)
}

/// The metadata of a file of weights. Hugging Face's transformers refuse files without this entry.
pub(super) fn pytorch() -> Metadata {
    Metadata::from([("format".to_string(), "pt".to_string())])
}

/// Reads the tensors and the metadata of a file.
pub(super) fn read_with_metadata(path: &Path) -> Result<(NamedArrays, Metadata), FileError> {
    let bytes = files::read_file(path, u64::MAX)?;
    let tensors = open(&bytes, path)?;
    let arrays = all_arrays(&tensors, path)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("it was opened above");
    let metadata = header.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone())).collect();
    Ok((arrays, metadata))
}

/// Every tensor of a file, by name.
fn all_arrays(file: &SafeTensors<'_>, path: &Path) -> Result<NamedArrays, FileError> {
    let mut arrays = BTreeMap::new();
    for (name, tensor) in file.tensors() {
        let numbers = numbers(&name, &tensor, path)?;
        arrays.insert(name, (tensor.shape().to_vec(), numbers));
    }
    Ok(arrays)
}

/// The numbers of a tensor. Non-finite ones are refused.
pub(super) fn numbers(name: &str, tensor: &TensorView<'_>, path: &Path) -> Result<Vec<f32>, FileError> {
    let halves = |convert: fn([u8; 2]) -> f32| {
        let (numbers, _) = tensor.data().as_chunks::<2>();
        numbers.iter().map(|bytes| convert(*bytes)).collect()
    };
    let numbers: Vec<f32> = match tensor.dtype() {
        Dtype::F32 => {
            let (numbers, _) = tensor.data().as_chunks::<4>();
            numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
        Dtype::F16 => halves(|bytes| f16::from_le_bytes(bytes).to_f32()),
        Dtype::BF16 => halves(|bytes| bf16::from_le_bytes(bytes).to_f32()),
        got => return Err(FileError::Type { path: path.into(), name: name.into(), got }),
    };
    check_finite(name, tensor, numbers.iter().copied(), path)?;
    Ok(numbers)
}

/// Refuses the numbers of a tensor if one of them is not finite.
pub(super) fn check_finite(
    name: &str,
    tensor: &TensorView<'_>,
    numbers: impl Iterator<Item = f32>,
    path: &Path,
) -> Result<(), FileError> {
    match numbers.enumerate().find(|(_, number)| !number.is_finite()) {
        None => Ok(()),
        Some((at, got)) => {
            let index = index(at, tensor.shape());
            Err(FileError::NotFinite { path: path.into(), name: name.into(), index, got })
        }
    }
}

/// The index of element `at` of a row-major array, one coordinate for each dimension.
pub(super) fn index(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|size| {
            let place = at % size;
            at /= size;
            place
        })
        .collect();
    index.reverse();
    index
}

pub(super) fn open<'b>(bytes: &'b [u8], path: &Path) -> Result<SafeTensors<'b>, FileError> {
    SafeTensors::deserialize(bytes).map_err(|error| match cut_off(bytes) {
        Some((end, name)) => FileError::Truncated { path: path.into(), name, end, length: bytes.len() },
        None => FileError::Damaged { path: path.into(), source: error },
    })
}

/// If the header of a file is complete but the file ends before some tensors do: where the first of these would end,
/// and its name.
fn cut_off(bytes: &[u8]) -> Option<(usize, String)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(rest.get(..length)?).ok()?;
    let data = 8 + length;
    let ends = header.into_iter().filter_map(|(name, tensor)| {
        let end = usize::try_from(tensor.get("data_offsets")?.get(1)?.as_u64()?).ok()?;
        Some((data.checked_add(end)?, name))
    });
    ends.filter(|(end, _)| *end > bytes.len()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_an_index_for_each_dimension() {
        assert_eq!(index(0, &[2, 3]), [0, 0]);
        assert_eq!(index(5, &[2, 3]), [1, 2]);
        assert_eq!(index(7, &[9]), [7]);
        assert_eq!(index(0, &[]), Vec::<usize>::new());
    }
}
