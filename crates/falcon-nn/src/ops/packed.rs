//! Matrices in fewer bits than `f32`, for inference: products `y = W x` that read every number of `W` once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use burn::tensor::Tensor;
use falcon_base::nearest;
use falcon_kernels::mat::{Mat, MatMut, matmul};
use falcon_kernels::vector::{BLOCK, NarrowRows};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use thiserror::Error;

use super::bridge::{Array, ManyOp, Slice, run_many};
use super::few::{FEW, MatrixRows, RowMatrix, TASK, multiply_few, together};
use super::norm::{Normaliser, Rms, normaliser, normed};

/// How the matrices of a model are held while it generates. States, norms, convolutions and all arithmetic are `f32` in
/// every format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightFormat {
    /// As they were trained: 4 bytes for each number.
    #[default]
    F32,
    /// The upper half of an `f32`, with 8 significant bits: 2 bytes.
    Bf16,
    /// 8-bit integers in blocks of 32 with a common factor: 1.125 bytes. Gates, which are small and decide how long a
    /// memory lasts, are `bf16`.
    Int8,
}

impl WeightFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// The format of the matrices of gates, in a model whose other matrices are in this format.
    pub(crate) fn of_gates(self) -> Self {
        match self {
            Self::F32 => Self::F32,
            Self::Bf16 | Self::Int8 => Self::Bf16,
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

/// A name that no format has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown weight format {got:?}: {known}")]
pub struct UnknownFormat {
    got: String,
    known: String,
}

impl FromStr for WeightFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL.into_iter().find(|format| format.to_string() == name).ok_or_else(|| {
            let known = nearest(name, ["f32", "bf16", "int8"]);
            UnknownFormat { got: name.into(), known }
        })
    }
}

/// A matrix `[outputs, inputs]` in fewer bits.
pub(crate) struct PackedMatrix {
    outputs: usize,
    inputs: usize,
    numbers: Numbers,
}

/// The numbers of a matrix, row by row.
pub(crate) enum Numbers {
    Bf16(Vec<bf16>),
    /// `values[i] · scales[i / BLOCK]`, with blocks counted in each row.
    Int8 {
        values: Vec<i8>,
        scales: Vec<f32>,
    },
}

impl fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedMatrix [{}, {}]", self.outputs, self.inputs)
    }
}

/// The largest factor of a block of 8-bit integers: with it, no number of the matrix is infinite.
pub(crate) const LARGEST_SCALE: f32 = f32::MAX / 128.0;

/// The number of blocks in a row.
pub(crate) fn blocks(inputs: usize) -> usize {
    inputs.div_ceil(BLOCK)
}

impl PackedMatrix {
    /// Rounds a matrix with rows of `inputs` numbers to the nearest finite numbers of a format with fewer bits.
    ///
    /// # Panics
    ///
    /// If a number is not finite.
    pub fn new(numbers: &[f32], inputs: usize, format: WeightFormat) -> Self {
        assert!(
            numbers.iter().all(|x| x.is_finite()),
            "a matrix with numbers that are not finite cannot be packed"
        );
        let numbers_in = numbers;
        let numbers = match format {
            WeightFormat::F32 => unreachable!("a matrix is packed into fewer bits only"),
            WeightFormat::Bf16 => {
                let (least, most) = (bf16::MIN.to_f32(), bf16::MAX.to_f32());
                Numbers::Bf16(numbers.iter().map(|x| bf16::from_f32(x.clamp(least, most))).collect())
            }
            WeightFormat::Int8 => {
                let (mut values, mut scales) = (Vec::with_capacity(numbers.len()), Vec::new());
                for block in numbers.chunks_exact(inputs).flat_map(|row| row.chunks(BLOCK)) {
                    let most = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    // Less than a 127th only for numbers that `f32` just holds, so that no product is infinite.
                    let scale = (most / 127.0).min(LARGEST_SCALE);
                    scales.push(scale);
                    // A block of zeros, or of numbers too small to divide by, is a block of zeros.
                    let inverse = if scale.is_normal() { scale.recip() } else { 0.0 };
                    values.extend(block.iter().map(|x| (x * inverse).round() as i8));
                }
                Numbers::Int8 { values, scales }
            }
        };
        Self { outputs: numbers_in.len() / inputs, inputs, numbers }
    }

    /// A matrix of numbers that were packed earlier.
    ///
    /// # Panics
    ///
    /// If their number is not that of the shape.
    pub fn of([outputs, inputs]: [usize; 2], numbers: Numbers) -> Self {
        let (found, scales) = match &numbers {
            Numbers::Bf16(numbers) => (numbers.len(), None),
            Numbers::Int8 { values, scales } => (values.len(), Some(scales.len())),
        };
        assert_eq!(found, outputs * inputs, "the numbers of [{outputs}, {inputs}]");
        assert!(scales.is_none_or(|scales| scales == outputs * blocks(inputs)), "a scale for every block");
        Self { outputs, inputs, numbers }
    }

    /// The numbers as they are held.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// The number of rows.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The length of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    fn matrix(&self) -> RowMatrix<'_> {
        RowMatrix { rows: MatrixRows::Narrow(self.rows()), inputs: self.inputs, outputs: self.outputs }
    }

    fn rows(&self) -> NarrowRows<'_> {
        match &self.numbers {
            Numbers::Bf16(numbers) => NarrowRows::Bf16(numbers.reinterpret_cast()),
            Numbers::Int8 { values, scales } => NarrowRows::Int8 { values, scales },
        }
    }

    /// Writes the rows from `first` on to `rows`, whose length says how many.
    pub fn unpack(&self, first: usize, rows: &mut [f32]) {
        self.rows().part(first, rows.len() / self.inputs, self.inputs).widen(rows, self.inputs);
    }

    /// `x Wᵀ`, `[tokens, outputs]`, for many tokens.
    fn multiply_many(&self, x: &[f32]) -> Vec<f32> {
        let (inputs, tokens) = (self.inputs, x.len() / self.inputs);
        let parts: Vec<Vec<f32>> = (0..self.outputs.div_ceil(TASK))
            .into_par_iter()
            .map(|index| {
                let rows = TASK.min(self.outputs - index * TASK);
                let (mut unpacked, mut part) = (vec![0.0; rows * inputs], vec![0.0; tokens * rows]);
                self.unpack(index * TASK, &mut unpacked);
                let to = MatMut::new(&mut part, rows);
                matmul(to, 0.0, Mat::new(x, inputs), Mat::new(&unpacked, inputs).t());
                part
            })
            .collect();
        together(parts.iter().map(|part| &part[..]), tokens, self.outputs)
    }
}

/// A matrix of a layer.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a handle that is passed to one operation, never stored")]
pub(crate) enum Matrix {
    /// `[out, in]`, differentiable.
    Full(Tensor<2>),
    /// For inference on the CPU.
    Packed(Arc<PackedMatrix>),
}

impl Matrix {
    /// The number of rows.
    pub fn outputs(&self) -> usize {
        match self {
            Self::Full(weight) => weight.dims()[0],
            Self::Packed(packed) => packed.outputs(),
        }
    }

    /// The matrices as tensors, or, if they are packed, as those. The matrices of one model are of one kind.
    pub fn unzip(matrices: Vec<Self>) -> Result<Vec<Tensor<2>>, Vec<Arc<PackedMatrix>>> {
        let (mut full, mut packed) = (Vec::new(), Vec::new());
        for matrix in matrices {
            match matrix {
                Self::Full(tensor) => full.push(tensor),
                Self::Packed(matrix) => packed.push(matrix),
            }
        }
        assert!(full.is_empty() || packed.is_empty(), "the matrices of a model are packed all or none");
        if packed.is_empty() { Ok(full) } else { Err(packed) }
    }
}

/// The products of `norm(x)`, or of `x`, with packed matrices.
pub(crate) fn products(x: Tensor<2>, norm: Option<Rms>, matrices: Vec<Arc<PackedMatrix>>) -> Vec<Tensor<2>> {
    let op = PackedOp { norm: norm.as_ref().map(normaliser), matrices };
    let inputs = [Some(x.into_dispatch()), norm.map(|(weight, _)| weight.into_dispatch())];
    run_many(Arc::new(op), inputs.into_iter().flatten().collect()).into_iter().map(Tensor::from_dispatch).collect()
}

#[derive(Debug)]
struct PackedOp {
    norm: Option<Normaliser>,
    matrices: Vec<Arc<PackedMatrix>>,
}

impl ManyOp for PackedOp {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Vec<Array> {
        let x = &inputs[0];
        let mut scratch = vec![0.0; if self.norm.is_some() { x.data.len() } else { 0 }];
        let n = normed(self.norm.map(|norm| (norm, inputs[1].data)), x.data, &mut scratch);
        let tokens = x.shape[0];
        let products = if tokens <= FEW {
            multiply_few(&self.matrices.iter().map(|matrix| matrix.matrix()).collect::<Vec<_>>(), n)
        } else {
            self.matrices.iter().map(|matrix| matrix.multiply_many(n)).collect()
        };
        let arrays = products.into_iter().zip(&self.matrices);
        arrays.map(|(data, matrix)| Array { data, shape: vec![tokens, matrix.outputs] }).collect()
    }

    fn backward(&self, _: &[Slice<'_>], _: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        panic!("a model with packed weights is for inference: train the model that it was made from")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * step % 1009) as f32 / 504.0 - 1.0) * (1.0 + (i % 7) as f32)).collect()
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        let (outputs, inputs) = (5, 71);
        let full = numbers(outputs * inputs, 37);
        for (format, bound) in [(WeightFormat::Bf16, 1.0 / 256.0), (WeightFormat::Int8, 0.5 / 127.0)] {
            let packed = PackedMatrix::new(&full, inputs, format);
            let mut found = vec![f32::NAN; full.len()];
            packed.unpack(0, &mut found);
            for (found, full) in found.chunks_exact(inputs).zip(full.chunks_exact(inputs)) {
                for (found, full) in found.chunks(BLOCK).zip(full.chunks(BLOCK)) {
                    let most = full.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    for (found, full) in found.iter().zip(full) {
                        let unit = if format == WeightFormat::Bf16 { full.abs() } else { most };
                        assert!((found - full).abs() <= 1.0001 * bound * unit, "{format}: {found} for {full}");
                    }
                }
            }
            let mut third = vec![0.0; inputs];
            packed.unpack(3, &mut third);
            assert_eq!(third, found[3 * inputs..4 * inputs]);
        }
        // Nothing to scale by, and a number at the end of the range.
        for extreme in [0.0, 1e-45, f32::MAX] {
            for format in [WeightFormat::Bf16, WeightFormat::Int8] {
                let packed = PackedMatrix::new(&[extreme; 33], 33, format);
                let mut found = [f32::NAN; 33];
                packed.unpack(0, &mut found);
                assert!(
                    found.iter().all(|x| (x / f32::MAX - extreme / f32::MAX).abs() < 0.01),
                    "{format}, {extreme}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn products_are_those_of_the_rounded_matrix() {
        for (outputs, inputs) in [(1, 1), (130, 71), (64, 96)] {
            for format in [WeightFormat::Bf16, WeightFormat::Int8] {
                let packed = Arc::new(PackedMatrix::new(&numbers(outputs * inputs, 37), inputs, format));
                let mut rounded = vec![0.0; outputs * inputs];
                packed.unpack(0, &mut rounded);
                for tokens in [1, 16, FEW, FEW + 1, 100] {
                    let x = numbers(tokens * inputs, 101);
                    let op = PackedOp { norm: None, matrices: vec![packed.clone()] };
                    let slice = Slice { data: &x, shape: &[tokens, inputs] };
                    let y = op.forward(&[slice], false).remove(0);
                    assert_eq!(y.shape, [tokens, outputs]);
                    for (x, y) in x.chunks_exact(inputs).zip(y.data.chunks_exact(outputs)) {
                        for (row, y) in rounded.chunks_exact(inputs).zip(y) {
                            let expected: f64 =
                                x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                            let error = (f64::from(*y) - expected).abs();
                            assert!(error < 1e-4 * (inputs as f64), "{format}, {tokens} tokens: {error}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn formats_have_names() {
        for format in WeightFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let error = "float".parse::<WeightFormat>().unwrap_err().to_string();
        assert_eq!(error, "unknown weight format \"float\": known are f32, bf16, int8");
    }
}
