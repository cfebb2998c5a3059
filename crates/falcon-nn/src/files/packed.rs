//! The matrices of packed models in files: BF16, or I8 with a factor for each block of a row in a tensor of its own.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use safetensors::tensor::{Dtype, TensorView};

use super::arrays::{Stored, check_finite, index};
use crate::file_error::FileError;
use crate::model::Model;
use crate::ops::packed::{LARGEST_SCALE, Numbers, PackedMatrix, WeightFormat, blocks};

/// The tensor of the factors has the name of its matrix and this ending.
const SCALES: &str = ".scales";

/// The tensors of a model, as its file has them.
pub(super) fn stored(model: &Model) -> Vec<Stored> {
    let (mut packed, mut tensors) = (BTreeMap::new(), Vec::new());
    // A clone shares the values, and hands out its matrices.
    let mut shared = model.clone();
    for (matrix, _) in shared.matrices_mut(model.weights()) {
        packed.extend(matrix.packed().map(|packed| (matrix.weight.id, packed)));
    }
    model.visit_parameters(|name, id, values| match packed.get(&id) {
        Some(matrix) => tensors.extend(of_matrix(name, matrix)),
        None => tensors.push(Stored::f32(name, &values.shape, &values.to_vec())),
    });
    tensors
}

fn of_matrix(name: &str, matrix: &PackedMatrix) -> Vec<Stored> {
    let shape = vec![matrix.outputs(), matrix.inputs()];
    let tensor = |kind, bytes| Stored { name: name.into(), kind, shape: shape.clone(), bytes };
    match matrix.numbers() {
        Numbers::Bf16(numbers) => {
            vec![tensor(Dtype::BF16, numbers.iter().flat_map(|x| x.to_le_bytes()).collect())]
        }
        Numbers::Int8 { values, scales } => {
            let shape = [matrix.outputs(), blocks(matrix.inputs())];
            let bytes = values.iter().map(|x| x.cast_unsigned()).collect();
            vec![tensor(Dtype::I8, bytes), Stored::f32(&format!("{name}{SCALES}"), &shape, scales)]
        }
    }
}

/// The matrices of a packed model while its files are read.
pub(super) struct Matrices {
    weights: WeightFormat,
    found: BTreeMap<String, Matrix>,
}

/// A matrix of which the file has all, a part or nothing so far.
struct Matrix {
    shape: [usize; 2],
    format: WeightFormat,
    numbers: Option<Vec<bf16>>,
    values: Option<Vec<i8>>,
    scales: Option<Vec<f32>>,
}

impl Matrices {
    /// The matrices that the file of `model` must have if its matrices are in the format `weights`: none if that is
    /// `f32`, because those are parameters like the others.
    pub fn of(model: &mut Model, weights: WeightFormat) -> Self {
        let mut names = BTreeMap::new();
        if weights != WeightFormat::F32 {
            model.visit_parameters(|name, id, _| drop(names.insert(id, name.to_string())));
        }
        let found = model.matrices_mut(weights).filter_map(|(matrix, format)| {
            let shape = matrix.weight.lazy_shape().dims();
            let none = Matrix { shape, format, numbers: None, values: None, scales: None };
            Some((names.remove(&matrix.weight.id)?, none))
        });
        Self { weights, found: found.collect() }
    }

    /// Whether this is the name of a matrix.
    pub fn contains(&self, name: &str) -> bool {
        self.found.contains_key(name)
    }

    /// Takes the tensor if it is a matrix or its factors.
    pub fn take(&mut self, name: &str, tensor: &TensorView<'_>, path: &Path) -> Result<bool, FileError> {
        if let Some(matrix) = self.found.get_mut(name) {
            matrix.take(self.weights, name, tensor, path)?;
            return Ok(true);
        }
        let matrix = name.strip_suffix(SCALES).and_then(|name| self.found.get_mut(name));
        match matrix.filter(|matrix| matrix.format == WeightFormat::Int8) {
            Some(matrix) => matrix.take_scales(self.weights, name, tensor, path).map(|()| true),
            None => Ok(false),
        }
    }

    /// The name and the shape of the first tensor that was not found.
    pub fn missing(&self) -> Option<(String, Vec<usize>)> {
        self.found.iter().find_map(|(name, matrix)| {
            let [outputs, inputs] = matrix.shape;
            if matrix.numbers.is_none() && matrix.values.is_none() {
                Some((name.clone(), vec![outputs, inputs]))
            } else if matrix.values.is_some() && matrix.scales.is_none() {
                Some((format!("{name}{SCALES}"), vec![outputs, blocks(inputs)]))
            } else {
                None
            }
        })
    }

    /// The matrices by name, once none is missing.
    pub fn finish(self) -> BTreeMap<String, PackedMatrix> {
        let packed = |(name, Matrix { shape, numbers, values, scales, .. }): (String, Matrix)| {
            let numbers = match (numbers, values, scales) {
                (Some(numbers), ..) => Numbers::Bf16(numbers),
                (None, Some(values), Some(scales)) => Numbers::Int8 { values, scales },
                _ => unreachable!("nothing is missing"),
            };
            (name, PackedMatrix::of(shape, numbers))
        };
        self.found.into_iter().map(packed).collect()
    }
}

impl Matrix {
    fn take(
        &mut self,
        weights: WeightFormat,
        name: &str,
        tensor: &TensorView<'_>,
        path: &Path,
    ) -> Result<(), FileError> {
        check_shape(name, tensor, self.shape, path)?;
        if self.format == WeightFormat::Int8 {
            check_type(name, tensor, Dtype::I8, weights, path)?;
            self.values = Some(tensor.data().iter().map(|byte| byte.cast_signed()).collect());
        } else {
            check_type(name, tensor, Dtype::BF16, weights, path)?;
            let (numbers, _) = tensor.data().as_chunks::<2>();
            let numbers: Vec<bf16> = numbers.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect();
            check_finite(name, tensor, numbers.iter().map(|number| number.to_f32()), path)?;
            self.numbers = Some(numbers);
        }
        Ok(())
    }

    fn take_scales(
        &mut self,
        weights: WeightFormat,
        name: &str,
        tensor: &TensorView<'_>,
        path: &Path,
    ) -> Result<(), FileError> {
        let [outputs, inputs] = self.shape;
        check_shape(name, tensor, [outputs, blocks(inputs)], path)?;
        check_type(name, tensor, Dtype::F32, weights, path)?;
        let (numbers, _) = tensor.data().as_chunks::<4>();
        let scales: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if let Some(at) = scales.iter().position(|scale| !(0.0..=LARGEST_SCALE).contains(scale)) {
            let (index, got) = (index(at, tensor.shape()), scales[at]);
            return Err(FileError::Scale { path: path.into(), name: name.into(), index, got });
        }
        self.scales = Some(scales);
        Ok(())
    }
}

fn check_shape(name: &str, tensor: &TensorView<'_>, expected: [usize; 2], path: &Path) -> Result<(), FileError> {
    if tensor.shape() == expected {
        return Ok(());
    }
    let (got, expected) = (tensor.shape().to_vec(), expected.to_vec());
    Err(FileError::Shape { path: path.into(), name: name.into(), got, expected })
}

fn check_type(
    name: &str,
    tensor: &TensorView<'_>,
    expected: Dtype,
    weights: WeightFormat,
    path: &Path,
) -> Result<(), FileError> {
    match tensor.dtype() {
        got if got == expected => Ok(()),
        got => Err(FileError::PackedType { path: path.into(), name: name.into(), got, expected, weights }),
    }
}
