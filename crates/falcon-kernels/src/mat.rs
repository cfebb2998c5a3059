//! Matrix products over slices, by the `gemm` crate's microkernels.

use gemm::Parallelism;

use crate::Real;

/// A matrix read through strides.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, F> {
    data: &'a [F],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, F: Real> Mat<'a, F> {
    /// Row-major with `cols` columns, as many rows as there are.
    pub fn new(data: &'a [F], cols: usize) -> Self {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} elements in rows of {cols}", data.len());
        Self { data, rows: data.len() / cols, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
}

/// `dst = dst · keep + a b`, with `dst` row-major.
pub(crate) fn matmul<F: Real>(dst: &mut [F], keep: F, a: Mat<'_, F>, b: Mat<'_, F>) {
    assert_eq!(a.cols, b.rows, "inner dimensions");
    assert_eq!(dst.len(), a.rows * b.cols, "size of the product");
    let accumulate = keep != F::zero();
    // SAFETY: `Mat` only holds shapes whose every element lies in its slice (checked in `new`, kept by `t`),
    // `dst` has `a.rows × b.cols` elements (checked above) and, being borrowed mutably, overlaps neither input.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            dst.as_mut_ptr(),
            1,
            b.cols as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            keep,
            F::one(),
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// `a b` as a new row-major matrix.
pub(crate) fn product<F: Real>(a: Mat<'_, F>, b: Mat<'_, F>) -> Vec<F> {
    let mut dst = vec![F::zero(); a.rows * b.cols];
    matmul(&mut dst, F::zero(), a, b);
    dst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_match_the_definition() {
        for (m, k, n) in [(1, 1, 1), (3, 5, 2), (16, 64, 33), (65, 7, 64), (0, 3, 2)] {
            let a: Vec<f64> = (0..m * k).map(|i| (i % 7) as f64 - 3.0).collect();
            let b: Vec<f64> = (0..k * n).map(|i| (i % 5) as f64 - 2.0).collect();
            let transposed: Vec<f64> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
            let mut dst = vec![1.0; m * n];
            matmul(&mut dst, 2.0, Mat::new(&a, k), Mat::new(&transposed, k).t());
            for i in 0..m {
                for j in 0..n {
                    let expected: f64 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                    assert_eq!(dst[i * n + j], 2.0 + expected, "{m}×{k}×{n}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "inner dimensions")]
    fn mismatched_products_are_refused() {
        product(Mat::new(&[1.0; 6], 3), Mat::new(&[1.0; 4], 2));
    }
}
