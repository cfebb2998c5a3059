//! Matrix products over slices: large ones by the `gemm` crate, small ones by kernels of our own. Public for layers that
//! are built around the rules.

use std::ops::Range;

use gemm::Parallelism;

use crate::Real;
use crate::small::{self, Part, Product, Raw};

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

    fn reborrow(&mut self) -> MatMut<'_, F> {
        MatMut { data: &mut *self.data, rows: self.rows, cols: self.cols, row_stride: self.row_stride }
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
    if is_small(b) {
        small(dst, keep, a, b, Part::All);
    } else {
        general(dst, keep, a, b, Parallelism::None);
    }
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
    general(dst, keep, a, b, Parallelism::Rayon(0));
}

/// Whether a product with `b` is one of small matrices. This depends on the inner dimension alone, so that a product
/// has the same bits if its rows or columns are divided among threads.
fn is_small<F>(b: Mat<'_, F>) -> bool {
    b.rows <= small::MAX_INNER
}

/// A product, or the part of it that is wanted, by the kernels for small matrices.
fn small<F: Real>(dst: MatMut<'_, F>, keep: F, a: Mat<'_, F>, b: Mat<'_, F>, part: Part<'_>) {
    check_sizes(&dst, a, b);
    let raw = |m: Mat<'_, F>| Raw { data: m.data.as_ptr(), row_stride: m.row_stride, col_stride: m.col_stride };
    let product = Product {
        rows: dst.rows,
        cols: dst.cols,
        inner: a.cols,
        dst: dst.data.as_mut_ptr(),
        dst_stride: dst.row_stride,
        keep,
        a: raw(a),
        b: raw(b),
        part,
    };
    // SAFETY: all elements of a `Mat` or `MatMut` lie in its slice: `new` checks that, and blocks and transposes only
    // address elements of the matrix that they are taken from. `dst` is borrowed mutably, so it overlaps neither input,
    // and its rows do not overlap each other. The sizes fit, as checked above.
    unsafe { product.run() }
}

/// A product by the `gemm` crate.
fn general<F: Real>(dst: MatMut<'_, F>, keep: F, a: Mat<'_, F>, b: Mat<'_, F>, threads: Parallelism) {
    check_sizes(&dst, a, b);
    let accumulate = keep != F::zero();
    // SAFETY: as in `small`.
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

fn check_sizes<F>(dst: &MatMut<'_, F>, a: Mat<'_, F>, b: Mat<'_, F>) {
    assert_eq!(a.cols, b.rows, "inner dimensions");
    assert_eq!((dst.rows, dst.cols), (a.rows, b.cols), "size of the product");
}

/// Rows of a large triangular product that are computed at once: enough for a general product to be fast, and few
/// enough to skip most of the half that is zero.
const TRIANGLE: usize = 32;

/// `dst += a b` where row `i` of `a` is zero from column `bound(i)` on. The zeros are skipped; `bound` must not fall.
/// Row `i` of the result does not depend on the rows of `b` from `bound(i)` on, even if they are not finite. Rows of `b`
/// beyond the columns of `a` are not used.
pub fn lower_matmul<F: Real>(dst: &mut [F], a: Mat<'_, F>, b: Mat<'_, F>, bound: impl Fn(usize) -> usize) {
    let b = b.rows(0..a.cols);
    if is_small(b) {
        return small(MatMut::new(dst, b.cols), F::one(), a, b, Part::TermsBelow(&bound));
    }
    for start in (0..a.rows).step_by(TRIANGLE) {
        let rows = start..(start + TRIANGLE).min(a.rows);
        // The terms that all of these rows have, and those that only some have.
        let (shared, used) = (bound(rows.start).min(a.cols), bound(rows.end - 1).min(a.cols));
        let (a, mut dst) = (a.rows(rows.clone()), MatMut::new(&mut *dst, b.cols).block(rows, 0..b.cols));
        general(dst.reborrow(), F::one(), a.cols(0..shared), b.rows(0..shared), Parallelism::None);
        let below = |i: usize| bound(start + i).saturating_sub(shared);
        small(dst, F::one(), a.cols(shared..used), b.rows(shared..used), Part::TermsBelow(&below));
    }
}

/// `dst += aᵀ b` for `a` as in [`lower_matmul`]. Rows of `dst` beyond the columns of `a` are left alone.
pub fn lower_matmul_t<F: Real>(dst: &mut [F], a: Mat<'_, F>, b: Mat<'_, F>, bound: impl Fn(usize) -> usize) {
    let dst = &mut dst[..a.cols * b.cols];
    if is_small(b) {
        // Row `c` of the result has terms from the first row of `a` on that reaches beyond column `c`.
        let first = |c: usize| {
            let (mut low, mut high) = (0, a.rows);
            while low < high {
                let middle = low.midpoint(high);
                if bound(middle) > c { high = middle } else { low = middle + 1 }
            }
            low
        };
        return small(MatMut::new(dst, b.cols), F::one(), a.t(), b, Part::TermsFrom(&first));
    }
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
    if is_small(b) {
        return small(MatMut::new(dst, b.cols), F::zero(), a, b, Part::ColumnsBelow(&bound));
    }
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

    /// Every width and height of a tile, full and cut, in both number types, and what surrounds the result is left alone.
    #[test]
    fn small_products_of_all_shapes_match_the_definition() {
        fn check<F: Real>(m: usize, n: usize, k: usize) {
            let cast = |numbers: Vec<f64>| numbers.into_iter().map(F::of).collect::<Vec<F>>();
            let (a, b) = (cast(numbers(m * k, 7)), cast(numbers(k * n, 5)));
            let (mut a_t, mut b_t) = (a.clone(), b.clone());
            (0..m * k).for_each(|i| a_t[i % k * m + i / k] = a[i]);
            (0..k * n).for_each(|i| b_t[i % n * k + i / n] = b[i]);
            let expected: Vec<F> =
                (0..m * n).map(|i| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum()).collect();
            for keep in [0.0, 1.0, -2.0].map(F::of) {
                for a in [Mat::new(&a, k), Mat::new(&a_t, m).t()] {
                    for b in [Mat::new(&b, n), Mat::new(&b_t, k).t()] {
                        // With a border of one number on all sides.
                        let mut dst = vec![F::of(3.0); (m + 2) * (n + 2)];
                        matmul(MatMut::new(&mut dst, n + 2).block(1..m + 1, 1..n + 1), keep, a, b);
                        for (i, found) in dst.iter().enumerate() {
                            let (row, col) = (i / (n + 2), i % (n + 2));
                            let inside = (1..=m).contains(&row) && (1..=n).contains(&col);
                            let expected = if inside {
                                expected[(row - 1) * n + col - 1] + F::of(3.0) * keep
                            } else {
                                F::of(3.0)
                            };
                            assert_eq!(*found, expected, "{m} × {k} × {n}, row {row}, column {col}");
                        }
                    }
                }
            }
        }
        for (m, k) in [(1, 1), (2, 3), (3, 16), (7, 17), (8, 40), (13, 5)] {
            for n in (1..=70).chain([97, 128, 131]) {
                check::<f32>(m, n, k);
                check::<f64>(m, n, k);
            }
        }
        check::<f32>(5, 20, small::MAX_INNER);
        check::<f32>(5, 20, small::MAX_INNER + 1);
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
        // The last is too large for the kernels for small products.
        for (rows, offset) in [(1, 1), (31, 0), (64, 1), (77, 5), (small::MAX_INNER + 5, 2)] {
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
            // With rows of `b` that no row of `a` reaches.
            let longer: Vec<f64> = b.data.iter().copied().chain([f64::NAN; 6]).collect();
            let mut with_longer = vec![0.5; rows * n];
            lower_matmul(&mut with_longer, a, Mat::new(&longer, n), bound);
            assert_eq!(full, with_longer);

            let (mut full, mut lower) = (vec![0.5; width * n], vec![0.5; width * n]);
            matmul(MatMut::new(&mut full, n), 1.0, a.t(), c);
            lower_matmul_t(&mut lower, a, c, bound);
            assert_eq!(full, lower);
            let mut with_longer = vec![0.5; (width + 2) * n];
            lower_matmul_t(&mut with_longer, a, c, bound);
            assert_eq!(with_longer, [full, vec![0.5; 2 * n]].concat());

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
        hidden_rows(77);
        hidden_rows(small::MAX_INNER + 5);
    }

    fn hidden_rows(rows: usize) {
        let (offset, n) = (5, 3);
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
