//! The input file: a safetensors container with a `meta` JSON string. Nothing in it is trusted.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::ScanError;
use crate::meta::Meta;
use crate::number::Number;
use crate::tensors::index_of;

/// A parsed file: its `meta` and its tensors, whose bytes are borrowed.
pub struct ScanFile<'a> {
    pub(crate) meta: Meta,
    pub(crate) tensors: BTreeMap<String, Raw<'a>>,
}

/// A tensor in the number format of the file.
pub(crate) struct Raw<'a> {
    dtype: Dtype,
    pub shape: Vec<usize>,
    bytes: &'a [u8],
}

const FLOATS: &str = "F64, F32, F16 or BF16";
const INTEGERS: &str = "I64, I32 or U32";

impl<'a> ScanFile<'a> {
    /// Parses the header and checks that it describes exactly the given bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ScanError> {
        let (header, metadata) = SafeTensors::read_metadata(bytes)?;
        let start = size_of::<u64>() + header;
        refuse_duplicates(&bytes[size_of::<u64>()..start])?;
        let meta =
            metadata.metadata().as_ref().and_then(|entries| entries.get("meta")).ok_or(ScanError::NoMeta)?;
        let mut tensors = BTreeMap::new();
        for (name, info) in metadata.tensors() {
            let (from, to) = info.data_offsets;
            let bytes =
                bytes[start..].get(from..to).ok_or_else(|| SafeTensorError::InvalidOffset(name.clone()))?;
            tensors.insert(name, Raw { dtype: info.dtype, shape: info.shape.clone(), bytes });
        }
        Ok(Self { meta: Meta::parse(meta)?, tensors })
    }

    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|raw| &raw.shape[..])
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The numbers of a tensor in the arithmetic of the scan, all of them finite; `None` if the file has no such
    /// tensor.
    pub(crate) fn read<F: Number>(&self, name: &str) -> Result<Option<Vec<F>>, ScanError> {
        let Some(raw) = self.tensors.get(name) else { return Ok(None) };
        let values: Vec<F> = match raw.dtype {
            Dtype::F64 => convert(raw.bytes, |b| F::of(f64::from_le_bytes(b))),
            Dtype::F32 => convert(raw.bytes, |b| F::of(f32::from_le_bytes(b).into())),
            Dtype::F16 => convert(raw.bytes, |b| F::of(f16::from_le_bytes(b).into())),
            Dtype::BF16 => convert(raw.bytes, |b| F::of(bf16::from_le_bytes(b).into())),
            dtype => {
                return Err(ScanError::Dtype { tensor: name.into(), dtype: dtype.to_string(), allowed: FLOATS });
            }
        };
        let Some(at) = values.iter().position(|x| !x.is_finite()) else { return Ok(Some(values)) };
        let (tensor, index) = (name.to_string(), index_of(at, &raw.shape));
        // A number that is finite in the file may be too large for f32.
        if let Some(value) = raw.f64_at(at).filter(|x| x.is_finite()) {
            return Err(ScanError::TooLarge { tensor, index, value });
        }
        Err(ScanError::NotFinite { tensor, index, value: values[at].wide() })
    }

    /// The numbers of an integer tensor; `None` if the file has no such tensor.
    pub(crate) fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, ScanError> {
        let Some(raw) = self.tensors.get(name) else { return Ok(None) };
        Ok(Some(match raw.dtype {
            Dtype::I64 => convert(raw.bytes, i64::from_le_bytes),
            Dtype::I32 => convert(raw.bytes, |b| i32::from_le_bytes(b).into()),
            Dtype::U32 => convert(raw.bytes, |b| u32::from_le_bytes(b).into()),
            dtype => {
                return Err(ScanError::Dtype { tensor: name.into(), dtype: dtype.to_string(), allowed: INTEGERS });
            }
        }))
    }
}

impl Raw<'_> {
    /// Element `at` of a tensor that the file holds in `f64`, the only format with numbers too large for `f32`.
    fn f64_at(&self, at: usize) -> Option<f64> {
        let bytes = self.bytes.as_chunks::<8>().0.get(at)?;
        (self.dtype == Dtype::F64).then(|| f64::from_le_bytes(*bytes))
    }
}

fn convert<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| from(*chunk)).collect()
}

/// Refuses a header that names a tensor twice. JSON allows that, and parsers silently keep the last.
fn refuse_duplicates(header: &[u8]) -> Result<(), ScanError> {
    let mut duplicate = None;
    let names = TensorNames { duplicate: &mut duplicate };
    let parsed = serde_json::Deserializer::from_slice(header).deserialize_map(names);
    match (duplicate, parsed) {
        (Some(name), _) => Err(ScanError::Duplicate { name }),
        (None, Err(error)) => Err(SafeTensorError::InvalidHeaderDeserialization(error).into()),
        (None, Ok(())) => Ok(()),
    }
}

/// Reads the names of the tensors in a header, and stores the first that is repeated.
struct TensorNames<'a> {
    duplicate: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for TensorNames<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if seen.contains(&name) {
                *self.duplicate = Some(name);
                return Err(A::Error::custom("duplicate"));
            }
            seen.insert(name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_refused() {
        assert!(refuse_duplicates(br#"{"a": {"x": 1}, "b": {"x": 1}}"#).is_ok());
        let error = refuse_duplicates(br#"{"a": 1, "b": 2, "a": 1}"#).unwrap_err();
        assert!(error.to_string().contains("\"a\" twice"), "{error}");
    }
}
