//! Matrix products over slices, computed by the `gemm` crate. Public for layers that are built around the rules.

use std::ops::Range;

use gemm::Parallelism;

use crate::Real;

/// A matrix read through strides.
#[derive(Clone, Copy)]
pub struct Mat<'a, F> {
    data: &'a [F],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, F: Real> Mat<'a, F> {
    /// A row-major matrix with `cols` columns and as many rows as the slice holds.
    pub fn new(data: &'a [F], cols: usize) -> Self {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} elements in rows of {cols}", data.len());
        Self { data, rows: data.len() / cols, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transpose, without copying.
    pub fn t(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }

    /// A range of rows.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let start = (range.start * self.row_stride).min(self.data.len());
        Self { data: &self.data[start..], rows: range.len(), ..self }
    }

    /// A range of columns.
    pub(crate) fn cols(self, range: Range<usize>) -> Self {
        self.t().rows(range).t()
    }

    fn at(self, row: usize, col: usize) -> F {
        self.data[row * self.row_stride + col * self.col_stride]
    }

    fn is_finite(self) -> bool {
        // Either the matrix or its transpose has contiguous rows.
        let lines = if self.col_stride == 1 { self } else { self.t() };
        (0..lines.rows).all(|i| {
            let line = &lines.data[i * lines.row_stride..][..lines.cols];
            // The loop has no early exit, so that the compiler can vectorise it.
            line.iter().fold(true, |finite, x| finite & x.is_finite())
        })
    }
}

/// A matrix to write to. Its rows are contiguous.
pub struct MatMut<'a, F> {
    data: &'a mut [F],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a, F: Real> MatMut<'a, F> {
    /// A row-major matrix with `cols` columns and as many rows as the slice holds.
    pub fn new(data: &'a mut [F], cols: usize) -> Self {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} elements in rows of {cols}", data.len());
        Self { rows: data.len() / cols, cols, row_stride: cols, data }
    }

    /// A range of rows and columns.
    pub(crate) fn block(self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        let start = (rows.start * self.row_stride + cols.start).min(self.data.len());
        Self { data: &mut self.data[start..], rows: rows.len(), cols: cols.len(), row_stride: self.row_stride }
    }
}

/// `dst = dst · keep + a b`.
pub fn matmul<F: Real>(dst: MatMut<'_, F>, keep: F, a: Mat<'_, F>, b: Mat<'_, F>) {
    product(dst, keep, a, b, Parallelism::None);
}

/// [`matmul`] where `b` is a memory or the adjoint of one. A memory before the first token, and an adjoint after the
/// last, are often all 0, and then the product is skipped.
pub(crate) fn matmul_memory<F: Real>(dst: &mut [F], keep: F, a: Mat<'_, F>, b: Mat<'_, F>) {
    if b.data.iter().any(|x| *x != F::zero()) {
        matmul(MatMut::new(dst, b.cols), keep, a, b);
    } else if keep == F::zero() {
        // Set rather than multiplied by 0, because it may not be finite.
        dst.fill(F::zero());
    } else {
        crate::real::scale(dst, keep);
    }
}

/// [`matmul`] on all threads of the current pool. The number of threads does not change the result.
pub fn matmul_parallel<F: Real>(dst: MatMut<'_, F>, keep: F, a: Mat<'_, F>, b: Mat<'_, F>) {
    product(dst, keep, a, b, Parallelism::Rayon(0));
}

fn product<F: Real>(dst: MatMut<'_, F>, keep: F, a: Mat<'_, F>, b: Mat<'_, F>, threads: Parallelism) {
    assert_eq!(a.cols, b.rows, "inner dimensions");
    assert_eq!((dst.rows, dst.cols), (a.rows, b.cols), "size of the product");
    let accumulate = keep != F::zero();
    // SAFETY: all elements of a `Mat` or `MatMut` lie in its slice: `new` checks that, and blocks and transposes only
    // address elements of the matrix that they are taken from. `dst` is borrowed mutably, so it overlaps neither input,
    // and its rows do not overlap each other.
    unsafe {
        gemm::gemm(
            dst.rows,
            dst.cols,
            a.cols,
            dst.data.as_mut_ptr(),
            1,
            dst.row_stride as isize,
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
            threads,
        );
    }
}

/// Rows of a triangular product that are computed at once: enough for the microkernels to be fast, and few enough to
/// skip most of the half that is zero.
const TRIANGLE: usize = 32;

/// `dst += a b` where row `i` of `a` is zero from column `bound(i)` on. The zeros are skipped; `bound` must not fall.
/// Row `i` of the result does not depend on the rows of `b` from `bound(i)` on, even if they are not finite.
pub fn lower_matmul<F: Real>(dst: &mut [F], a: Mat<'_, F>, b: Mat<'_, F>, bound: impl Fn(usize) -> usize) {
    for start in (0..a.rows).step_by(TRIANGLE) {
        let rows = start..(start + TRIANGLE).min(a.rows);
        let used = bound(rows.end - 1).min(a.cols);
        // The rows of `b` that only some of these rows of `a` use. The others multiply them by 0, and 0 · ∞ is not 0.
        let partly = bound(rows.start).min(used)..used;
        if b.rows(partly.clone()).is_finite() {
            let block = MatMut::new(dst, b.cols).block(rows.clone(), 0..b.cols);
            matmul(block, F::one(), a.rows(rows).cols(0..used), b.rows(0..used));
        } else {
            lower_matmul_careful(dst, a, b, rows, partly, &bound);
        }
    }
}

/// [`lower_matmul`] for these rows of `a`, where some number in the rows `partly` of `b`, which only some rows of `a`
/// use, is not finite. Such numbers are left out of the product, which does not change the bits of the other results,
/// and are added where they are used.
#[cold]
#[inline(never)]
fn lower_matmul_careful<F: Real>(
    dst: &mut [F],
    a: Mat<'_, F>,
    b: Mat<'_, F>,
    rows: Range<usize>,
    partly: Range<usize>,
    bound: &dyn Fn(usize) -> usize,
) {
    let hidden = |r: usize, c: usize| partly.contains(&r) && !b.at(r, c).is_finite();
    let finite: Vec<F> = (0..partly.end)
        .flat_map(|r| (0..b.cols).map(move |c| (r, c)))
        .map(|(r, c)| if hidden(r, c) { F::zero() } else { b.at(r, c) })
        .collect();
    let block = MatMut::new(dst, b.cols).block(rows.clone(), 0..b.cols);
    matmul(block, F::one(), a.rows(rows.clone()).cols(0..partly.end), Mat::new(&finite, b.cols));
    for i in rows {
        for r in partly.start..bound(i).min(partly.end) {
            for c in (0..b.cols).filter(|c| hidden(r, *c)) {
                dst[i * b.cols + c] += a.at(i, r) * b.at(r, c);
            }
        }
    }
}

/// `dst += aᵀ b` for `a` as in [`lower_matmul`].
pub fn lower_matmul_t<F: Real>(dst: &mut [F], a: Mat<'_, F>, b: Mat<'_, F>, bound: impl Fn(usize) -> usize) {
    for start in (0..a.rows).step_by(TRIANGLE) {
        let rows = start..(start + TRIANGLE).min(a.rows);
        let used = 0..bound(rows.end - 1).min(a.cols);
        let dst = MatMut::new(dst, b.cols).block(used.clone(), 0..b.cols);
        matmul(dst, F::one(), a.rows(rows.clone()).cols(used).t(), b.rows(rows));
    }
}

/// `dst = a b`, computed only for the columns below `bound(i)` of row `i`. What the other columns hold afterwards is
/// not specified.
pub fn product_lower<F: Real>(dst: &mut [F], a: Mat<'_, F>, b: Mat<'_, F>, bound: impl Fn(usize) -> usize) {
    for start in (0..a.rows).step_by(TRIANGLE) {
        let rows = start..(start + TRIANGLE).min(a.rows);
        let wanted = 0..bound(rows.end - 1).min(b.cols);
        let dst = MatMut::new(dst, b.cols).block(rows.clone(), wanted.clone());
        matmul(dst, F::zero(), a.rows(rows), b.cols(wanted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, modulus: usize) -> Vec<f64> {
        (0..len).map(|i| (i % modulus) as f64 - (modulus / 2) as f64).collect()
    }

    #[test]
    fn products_match_the_definition() {
        for (m, k, n) in [(1, 1, 1), (3, 5, 2), (16, 64, 33), (65, 7, 64), (0, 3, 2)] {
            let (a, b) = (numbers(m * k, 7), numbers(k * n, 5));
            let transposed: Vec<f64> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
            let mut dst = vec![1.0; m * n];
            matmul(MatMut::new(&mut dst, n), 2.0, Mat::new(&a, k), Mat::new(&transposed, k).t());
            for i in 0..m {
                for j in 0..n {
                    let expected: f64 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                    assert_eq!(dst[i * n + j], 2.0 + expected, "{m}×{k}×{n}");
                }
            }
            let mut parallel = vec![1.0; m * n];
            matmul_parallel(MatMut::new(&mut parallel, n), 2.0, Mat::new(&a, k), Mat::new(&transposed, k).t());
            assert_eq!(parallel, dst, "{m}×{k}×{n}");
        }
    }

    #[test]
    fn an_empty_memory_is_not_multiplied() {
        let (a, full, empty) = (numbers(6, 7), numbers(9, 5), vec![0.0; 9]);
        for keep in [0.0, 1.0, 2.0] {
            for b in [&full, &empty] {
                let (mut expected, mut got) = (vec![1.5; 6], vec![1.5; 6]);
                matmul(MatMut::new(&mut expected, 3), keep, Mat::new(&a, 3), Mat::new(b, 3).t());
                matmul_memory(&mut got, keep, Mat::new(&a, 3), Mat::new(b, 3).t());
                assert_eq!(got, expected);
            }
        }
        let mut anything = [f64::NAN; 6];
        matmul_memory(&mut anything, 0.0, Mat::new(&a, 3), Mat::new(&empty, 3));
        assert_eq!(anything, [0.0; 6]);
    }

    #[test]
    fn triangles_match_full_products() {
        for (rows, offset) in [(1, 1), (31, 0), (64, 1), (77, 5)] {
            let (width, n) = (rows + offset, 3);
            let bound = |i: usize| i + offset;
            let mut a = numbers(rows * width, 11);
            for i in 0..rows {
                a[i * width..(i + 1) * width][bound(i)..].fill(0.0);
            }
            let (b, c) = (numbers(width * n, 5), numbers(rows * n, 7));
            let (a, b, c) = (Mat::new(&a, width), Mat::new(&b, n), Mat::new(&c, n));

            let (mut full, mut lower) = (vec![0.5; rows * n], vec![0.5; rows * n]);
            matmul(MatMut::new(&mut full, n), 1.0, a, b);
            lower_matmul(&mut lower, a, b, bound);
            assert_eq!(full, lower);

            let (mut full, mut lower) = (vec![0.5; width * n], vec![0.5; width * n]);
            matmul(MatMut::new(&mut full, n), 1.0, a.t(), c);
            lower_matmul_t(&mut lower, a, c, bound);
            assert_eq!(full, lower);

            let (mut full, mut lower) = (vec![0.0; rows * width], vec![0.0; rows * width]);
            matmul(MatMut::new(&mut full, width), 0.0, c, b.t());
            product_lower(&mut lower, c, b.t(), bound);
            for i in 0..rows {
                assert_eq!(full[i * width..][..bound(i)], lower[i * width..][..bound(i)]);
            }
        }
    }

    /// A row of the product only depends on the rows of `b` below its bound, even if the others are not finite.
    #[test]
    fn triangles_do_not_see_what_is_hidden() {
        let (rows, offset, n) = (77, 5, 3);
        let (width, bound) = (rows + offset, |i: usize| i + offset);
        let mut a = numbers(rows * width, 11);
        for i in 0..rows {
            a[i * width..(i + 1) * width][bound(i)..].fill(0.0);
        }
        let b = numbers(width * n, 5);
        let product = |b: &[f64]| {
            let mut dst = vec![0.5; rows * n];
            lower_matmul(&mut dst, Mat::new(&a, width), Mat::new(b, n), bound);
            dst
        };
        let expected = product(&b);
        for (at, bad) in
            [(0, f64::NAN), (6, f64::INFINITY), (36, f64::NEG_INFINITY), (50, f64::NAN), (81, f64::NAN)]
        {
            let mut b = b.clone();
            b[at * n + 1] = bad;
            for (i, (found, expected)) in product(&b).chunks(n).zip(expected.chunks(n)).enumerate() {
                assert_eq!([found[0], found[2]], [expected[0], expected[2]], "other columns");
                if at >= bound(i) {
                    assert_eq!(found[1], expected[1], "row {i} does not see row {at}");
                } else if bad.is_nan() {
                    assert!(found[1].is_nan(), "row {i} sees row {at}");
                } else {
                    let sees = a[i * width + at];
                    assert!(
                        if sees == 0.0 { found[1].is_nan() } else { found[1] == sees * bad },
                        "row {i}, row {at}"
                    );
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "inner dimensions")]
    fn mismatched_products_are_refused() {
        let mut dst = [0.0; 4];
        matmul(MatMut::new(&mut dst, 2), 0.0, Mat::new(&[1.0; 6], 3), Mat::new(&[1.0; 4], 2));
    }

    #[test]
    #[should_panic(expected = "rows 1..4 of 3")]
    fn blocks_outside_are_refused() {
        Mat::new(&[1.0; 6], 2).rows(1..4);
    }
}
