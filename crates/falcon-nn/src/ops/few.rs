//! Products of matrices with a few vectors, `y_i = W_i x`, as in generation: every number of a matrix is read once, and
//! threads share the rows of all matrices together.

use falcon_kernels::dots::dots;
use falcon_kernels::vector::NarrowRows;
use rayon::prelude::*;

use super::bridge::Slice;

/// With more vectors, each number of a matrix is used so often that a product which blocks both sides is faster. That
/// product sums in another order, so results differ by rounding.
pub(super) const FEW: usize = 32;
/// Rows of one task.
pub(super) const TASK: usize = 64;

/// A matrix `[outputs, inputs]`.
#[derive(Clone, Copy)]
pub(super) struct RowMatrix<'a> {
    pub rows: MatrixRows<'a>,
    pub inputs: usize,
    pub outputs: usize,
}

/// The numbers of a matrix.
#[derive(Clone, Copy)]
pub(super) enum MatrixRows<'a> {
    Full(&'a [f32]),
    Narrow(NarrowRows<'a>),
}

impl<'a> From<&Slice<'a>> for RowMatrix<'a> {
    fn from(slice: &Slice<'a>) -> Self {
        Self { rows: MatrixRows::Full(slice.data), inputs: slice.shape[1], outputs: slice.shape[0] }
    }
}

impl<'a> RowMatrix<'a> {
    /// Some of the rows.
    fn part(&self, first: usize, count: usize) -> Self {
        let inputs = self.inputs;
        let numbers = first * inputs..(first + count) * inputs;
        let rows = match self.rows {
            MatrixRows::Full(rows) => MatrixRows::Full(&rows[numbers]),
            MatrixRows::Narrow(rows) => MatrixRows::Narrow(rows.part(first, count, inputs)),
        };
        Self { rows, inputs, outputs: count }
    }

    /// `x Wᵀ`, `[tokens, outputs]`, on this thread.
    fn multiply(&self, x: &[f32], y: &mut [f32]) {
        let inputs = self.inputs;
        match self.rows {
            MatrixRows::Full(rows) => dots(y, x, rows, inputs),
            MatrixRows::Narrow(rows) => rows.dots(y, x, inputs),
        }
    }
}

/// `x W_iᵀ`, `[tokens, outputs]`, for every matrix. The bits of a row do not depend on the other rows, nor on the
/// number of threads.
pub(super) fn multiply_few(matrices: &[RowMatrix<'_>], x: &[f32]) -> Vec<Vec<f32>> {
    let tokens = matrices.first().map_or(0, |matrix| x.len() / matrix.inputs);
    if tokens == 0 {
        return vec![Vec::new(); matrices.len()];
    }
    let total: usize = matrices.iter().map(|matrix| matrix.outputs).sum();
    // The products of one task after the other.
    let mut products = vec![0.0; tokens * total];
    let (mut rest, mut tasks) = (&mut products[..], Vec::new());
    for matrix in matrices {
        for first in (0..matrix.outputs).step_by(TASK) {
            let part = matrix.part(first, TASK.min(matrix.outputs - first));
            let (y, after) = std::mem::take(&mut rest).split_at_mut(tokens * part.outputs);
            rest = after;
            tasks.push((part, y));
        }
    }
    tasks.into_par_iter().for_each(|(part, y)| part.multiply(x, y));
    if tokens == 1 && matrices.len() == 1 {
        return vec![products];
    }
    let mut rest = &products[..];
    matrices
        .iter()
        .map(|matrix| {
            let (mine, after) = rest.split_at(tokens * matrix.outputs);
            rest = after;
            if tokens == 1 { mine.to_vec() } else { together(mine.chunks(tokens * TASK), tokens, matrix.outputs) }
        })
        .collect()
}

/// `[tokens, outputs]` from the products of tasks, `[tokens, rows]` each.
pub(super) fn together<'a>(parts: impl Iterator<Item = &'a [f32]>, tokens: usize, outputs: usize) -> Vec<f32> {
    let mut y = vec![0.0; tokens * outputs];
    for (index, part) in parts.enumerate() {
        let rows = part.len() / tokens;
        for (y, part) in y.chunks_exact_mut(outputs).zip(part.chunks_exact(rows)) {
            y[index * TASK..][..rows].copy_from_slice(part);
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| (i * step % 1009) as f32 / 504.0 - 1.0).collect()
    }

    #[test]
    fn products_of_several_matrices_equal_the_definition() {
        for inputs in [1, 71, 96] {
            let full = [1, TASK, 2 * TASK + 3].map(|outputs| numbers(outputs * inputs, 37));
            let half: Vec<u16> = full[2].iter().map(|x| (x.to_bits() >> 16) as u16).collect();
            let wide: Vec<f32> = half.iter().map(|x| f32::from_bits(u32::from(*x) << 16)).collect();
            let narrow = MatrixRows::Narrow(NarrowRows::Bf16(&half));
            let kinds = full.each_ref().map(|full| MatrixRows::Full(full)).into_iter().chain([narrow]);
            let matrices = kinds.zip(full.iter().chain([&wide])).map(|(rows, full)| {
                let outputs = full.len() / inputs;
                (RowMatrix { rows, inputs, outputs }, full)
            });
            let (matrices, full): (Vec<_>, Vec<_>) = matrices.unzip();
            for tokens in [1, 2, 5, FEW] {
                let x = numbers(tokens * inputs, 101);
                let found = multiply_few(&matrices, &x);
                for ((y, full), matrix) in found.iter().zip(&full).zip(&matrices) {
                    let alone = multiply_few(&[*matrix], &x[(tokens - 1) * inputs..]);
                    assert_eq!(y[(tokens - 1) * matrix.outputs..], alone[0], "{tokens} tokens");
                    for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(matrix.outputs)) {
                        for (row, y) in full.chunks_exact(inputs).zip(y) {
                            let expected: f64 =
                                x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                            assert!((f64::from(*y) - expected).abs() < 1e-5 * inputs as f64, "{tokens} tokens");
                        }
                    }
                }
            }
        }
        assert!(multiply_few(&[], &[]).is_empty());
        let matrix = RowMatrix { rows: MatrixRows::Full(&[1.0; 6]), inputs: 3, outputs: 2 };
        assert_eq!(multiply_few(&[matrix, matrix], &[]), [Vec::<f32>::new(), Vec::new()]);
    }
}
