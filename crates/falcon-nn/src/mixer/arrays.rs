//! The arrays of a saved state, by name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::{Device, Tensor, TensorData};

use crate::file_error::FileError;

/// Shape and numbers.
pub(crate) type ShapedArray = (Vec<usize>, Vec<f32>);

/// The arrays of one state, with the names they are saved under.
pub(crate) type StateArrays = Vec<(String, ShapedArray)>;

/// The arrays of a saved state that no mixer has taken yet. Each mixer takes those whose names begin with its prefix.
pub(crate) struct Arrays {
    pub arrays: BTreeMap<String, ShapedArray>,
    /// The file, for error messages.
    pub path: PathBuf,
    pub prefix: String,
}

impl Arrays {
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.arrays.get(&self.full_name(name)).map(|(shape, _)| shape.as_slice())
    }

    pub fn take(&mut self, name: &str, expected: &[usize]) -> Result<Vec<f32>, FileError> {
        let (path, name) = (self.path.clone(), self.full_name(name));
        match self.arrays.remove(&name) {
            Some((shape, data)) if shape == expected => Ok(data),
            Some((got, _)) => Err(FileError::Shape { path, name, got, expected: expected.to_vec() }),
            None => {
                let hint = "is it the state of another model?".into();
                Err(FileError::Missing { path, name, shape: expected.to_vec(), hint })
            }
        }
    }

    pub fn tensor<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
        device: &Device,
    ) -> Result<Tensor<D>, FileError> {
        let data = self.take(name, &shape)?;
        Ok(Tensor::from_data(TensorData::new(data, shape), device))
    }

    pub fn refuse(&self, name: &str, got: String) -> FileError {
        FileError::Number { path: self.path.clone(), name: self.full_name(name), got }
    }
}
