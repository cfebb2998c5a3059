//! The results of a scan, as named tensors.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use safetensors::{Dtype, SafeTensorError, View};

use crate::error::ScanError;
use crate::number::{Number, Numbers};

/// A result, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Sizes of its axes.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub data: Numbers,
}

impl Tensor {
    /// All numbers as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Numbers::F32(values) => values.iter().map(|x| f64::from(*x)).collect(),
            Numbers::F64(values) => values.clone(),
            Numbers::I64(values) => values.iter().map(|x| *x as f64).collect(),
        }
    }
}

/// The results of a scan by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors(BTreeMap<String, Tensor>);

impl Tensors {
    /// All results, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// One result.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Adds a result, all of whose numbers must be finite.
    pub(crate) fn put<F: Number>(
        &mut self,
        name: String,
        shape: Vec<usize>,
        values: Vec<F>,
    ) -> Result<(), ScanError> {
        debug_assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
        if let Some(at) = values.iter().position(|x| !x.is_finite()) {
            let (index, value) = (index_of(at, &shape), values[at].wide());
            return Err(ScanError::Overflow { tensor: name, index, value, dtype: F::NAME, advice: F::ADVICE });
        }
        self.0.insert(name, Tensor { shape, data: F::data(values) });
        Ok(())
    }

    pub(crate) fn put_counts(&mut self, name: &str, values: Vec<i64>) {
        self.0.insert(name.into(), Tensor { shape: vec![values.len()], data: Numbers::I64(values) });
    }

    /// The bytes of a safetensors file with these tensors and the `meta` string.
    pub fn to_bytes(&self, meta: &str) -> Result<Vec<u8>, SafeTensorError> {
        let info = HashMap::from([("meta".to_string(), meta.to_string())]);
        safetensors::serialize(&self.0, Some(info.into_iter().collect()))
    }
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        match self.data {
            Numbers::F32(_) => Dtype::F32,
            Numbers::F64(_) => Dtype::F64,
            Numbers::I64(_) => Dtype::I64,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(match &self.data {
            Numbers::F32(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Numbers::F64(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Numbers::I64(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        })
    }
    fn data_len(&self) -> usize {
        match &self.data {
            Numbers::F32(values) => size_of_val(&values[..]),
            Numbers::F64(values) => size_of_val(&values[..]),
            Numbers::I64(values) => size_of_val(&values[..]),
        }
    }
}

/// The index along each axis of element `at` of a row-major tensor.
pub(crate) fn index_of(at: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = at;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let here = rest % size.max(1);
            rest /= size.max(1);
            here
        })
        .collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_row_major() {
        assert_eq!(index_of(0, &[2, 3]), [0, 0]);
        assert_eq!(index_of(5, &[2, 3]), [1, 2]);
        assert_eq!(index_of(17, &[3, 1, 6]), [2, 0, 5]);
    }
}
