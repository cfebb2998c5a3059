//! Safetensors files as arrays of 32-bit numbers, read within limits and written whole or not at all.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::error::FileError;

/// Arrays by name: the shape and the numbers, row-major.
pub type NamedArrays = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Texts by name, which a safetensors file carries beside its tensors.
pub type Metadata = BTreeMap<String, String>;

/// Reads a safetensors file. Numbers of 16 bits are converted; infinite ones and those that are none are refused.
pub fn read_arrays(path: &Path) -> Result<NamedArrays, FileError> {
    let bytes = read_file(path, u64::MAX)?;
    all(&open(&bytes, path)?, path)
}

/// Writes a safetensors file by [`write_file`].
pub fn write_arrays(path: &Path, arrays: &NamedArrays) -> Result<(), FileError> {
    // Transformers refuse a file that does not say this.
    let metadata = Metadata::from([("format".to_string(), "pt".to_string())]);
    write_with(path, arrays, &metadata)
}

/// The same with other metadata.
pub(super) fn write_with(path: &Path, arrays: &NamedArrays, metadata: &Metadata) -> Result<(), FileError> {
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = arrays
        .iter()
        .map(|(name, (shape, data))| (name, shape, data.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(name, shape, data)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), data).expect("as many bytes as the shape has"))
    });
    let metadata: HashMap<String, String> = metadata.clone().into_iter().collect();
    let bytes = safetensors::serialize(views, Some(metadata)).expect("names and views are valid");
    write_file(path, &bytes).map_err(|error| FileError::Io { path: path.into(), error })
}

/// The tensors and the metadata of a file.
pub(super) fn read_with_metadata(path: &Path) -> Result<(NamedArrays, Metadata), FileError> {
    let bytes = read_file(path, u64::MAX)?;
    let tensors = open(&bytes, path)?;
    let arrays = all(&tensors, path)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("it was opened above");
    let metadata = header.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone())).collect();
    Ok((arrays, metadata))
}

/// Every tensor of a file, by name.
fn all(file: &SafeTensors<'_>, path: &Path) -> Result<NamedArrays, FileError> {
    let mut arrays = BTreeMap::new();
    for (name, tensor) in file.tensors() {
        let numbers = numbers(&name, &tensor, path)?;
        arrays.insert(name, (tensor.shape().to_vec(), numbers));
    }
    Ok(arrays)
}

/// The numbers of a tensor, all of which are finite.
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
    match numbers.iter().position(|number| !number.is_finite()) {
        None => Ok(numbers),
        Some(at) => {
            let index = index(at, tensor.shape());
            Err(FileError::NotFinite { path: path.into(), name: name.into(), index, got: numbers[at] })
        }
    }
}

/// The place of number `at` of a row-major array, one index for every dimension.
fn index(mut at: usize, shape: &[usize]) -> Vec<usize> {
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
        None => FileError::Damaged { path: path.into(), error },
    })
}

/// Where the first tensor ends that reaches beyond the end of a file whose header is whole, and its name.
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

/// The bytes of a regular file of at most `most` bytes. A pipe could keep the program waiting for ever.
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    let io = |error| FileError::Io { path: path.into(), error };
    let about = fs::metadata(path).map_err(io)?;
    if !about.is_file() {
        return Err(FileError::NotRegular { path: path.into() });
    }
    if about.len() > most {
        return Err(FileError::TooLarge { path: path.into(), got: about.len(), most });
    }
    fs::read(path).map_err(io)
}

/// How names begin of what is not yet in its place.
pub const ASIDE: &str = ".aside-";

/// A file to be moved to its place, in the same folder, when it is whole.
pub fn aside_file(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(ASIDE);
    // As any new file, subject to the umask; temporary files are private otherwise.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Writes a file beside its place, to the disk, and moves it there: whatever happens, the old file or the new one is
/// in its place.
pub fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = aside_file(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_dimension() {
        assert_eq!(index(0, &[2, 3]), [0, 0]);
        assert_eq!(index(5, &[2, 3]), [1, 2]);
        assert_eq!(index(7, &[9]), [7]);
        assert_eq!(index(0, &[]), Vec::<usize>::new());
    }
}
