//! Products of rows with rows, `y_ij = a_i · b_j`, without packing: a product with the transpose of a matrix whose numbers
//! are used a few times only, as in generation.

use pulp::{Arch, MemMask, Simd, WithSimd};

use crate::Real;

/// Sets `dst`, `[rows of a, rows of b]`, to the products of all rows of `a` with all rows of `b`; rows have `inner`
/// numbers. Every product is summed in the same order, however many rows there are: the bits of a row of `dst` do not
/// depend on the other rows of `a`.
///
/// ```
/// let mut y = [0.0; 4];
/// falcon_kernels::dots::dots(&mut y, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], 2);
/// assert_eq!(y, [17.0, 23.0, 39.0, 53.0]);
/// ```
///
/// # Panics
///
/// If the lengths do not fit each other.
pub fn dots<F: Real>(dst: &mut [F], a: &[F], b: &[F], inner: usize) {
    assert!(
        inner > 0 && a.len().is_multiple_of(inner) && b.len().is_multiple_of(inner),
        "rows of {inner} numbers"
    );
    let (rows, cols) = (a.len() / inner, b.len() / inner);
    assert_eq!(dst.len(), rows * cols, "a product of {rows} by {cols} rows");
    Arch::new().dispatch(Dots { dst, a, b, inner, rows, cols });
}

struct Dots<'a, F> {
    dst: &'a mut [F],
    a: &'a [F],
    b: &'a [F],
    inner: usize,
    rows: usize,
    cols: usize,
}

impl<F: Real> WithSimd for Dots<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // A multiply-add takes four cycles, and two are begun in each: at least eight sums have to be independent.
        let mut col = 0;
        while self.cols - col >= 8 {
            self.columns::<S, 8>(simd, col);
            col += 8;
        }
        while col < self.cols {
            self.columns::<S, 1>(simd, col);
            col += 1;
        }
    }
}

impl<F: Real> Dots<'_, F> {
    /// The products of all rows of `a` with the `C` rows of `b` from `col` on, which stay in cache meanwhile.
    #[inline(always)]
    fn columns<S: Simd, const C: usize>(&mut self, simd: S, col: usize) {
        let mut row = 0;
        // SAFETY: `dots` has checked the lengths, and all rows and columns named exist.
        unsafe {
            // Three rows need 24 sums, 8 vectors of `b` from memory, and 3 of `a`.
            while S::REGISTER_COUNT >= 32 && self.rows - row >= 3 {
                self.tile::<S, 3, C>(simd, row, col);
                row += 3;
            }
            while row < self.rows {
                self.tile::<S, 1, C>(simd, row, col);
                row += 1;
            }
        }
    }

    /// The products of `R` rows of `a` with `C` rows of `b`.
    ///
    /// SAFETY: the rows must exist, and the lengths must be those of [`dots`].
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize>(&mut self, simd: S, row: usize, col: usize) {
        let (inner, lanes) = (self.inner, F::lanes::<S>());
        let whole = inner - inner % lanes;
        let (a, b) = (self.a[row * inner..].as_ptr(), self.b[col * inner..].as_ptr());
        let mut sums = [[F::splat(simd, F::zero()); C]; R];
        // SAFETY: whole vectors of a row are inside of it, and the mask ends where the row does.
        unsafe {
            for p in (0..whole).step_by(lanes) {
                let load = |from| F::load(simd, from);
                add::<F, S, R, C>(simd, &mut sums, a.add(p), b.add(p), inner, load);
            }
            if whole < inner {
                let mask: MemMask<F::Mask<S>> = F::mask::<S>(simd, inner - whole);
                let load = |from| F::load_masked(simd, mask, from);
                add::<F, S, R, C>(simd, &mut sums, a.add(whole), b.add(whole), inner, load);
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                self.dst[(row + i) * self.cols + col + j] = F::total(simd, *sum);
            }
        }
    }
}

/// Adds the products of one vector of each row; rows are `stride` apart.
///
/// SAFETY: `load` must be able to read a vector of each row.
#[inline(always)]
unsafe fn add<F: Real, S: Simd, const R: usize, const C: usize>(
    simd: S,
    sums: &mut [[F::Vector<S>; C]; R],
    a: *const F,
    b: *const F,
    stride: usize,
    load: impl Fn(*const F) -> F::Vector<S>,
) {
    let mut left = [F::splat(simd, F::zero()); R];
    for i in 0..R {
        // SAFETY: the caller vouches for the row.
        left[i] = load(unsafe { a.add(i * stride) });
    }
    for j in 0..C {
        // SAFETY: likewise.
        let right = load(unsafe { b.add(j * stride) });
        for i in 0..R {
            sums[i][j] = F::product_sum(simd, left[i], right, sums[i][j]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_equal_the_definition_and_do_not_depend_on_other_rows() {
        let number = |i: usize| ((i * 37 % 101) as f64 / 50.0 - 1.0) as f32;
        for (rows, cols, inner) in [(1, 1, 1), (1, 9, 16), (2, 8, 33), (5, 17, 100), (16, 3, 7), (4, 24, 768)] {
            let a: Vec<f32> = (0..rows * inner).map(number).collect();
            let b: Vec<f32> = (0..cols * inner).map(|i| number(3 * i + 1)).collect();
            let mut y = vec![f32::NAN; rows * cols];
            dots(&mut y, &a, &b, inner);
            for (i, a) in a.chunks_exact(inner).enumerate() {
                let mut alone = vec![f32::NAN; cols];
                dots(&mut alone, a, &b, inner);
                assert_eq!(alone, y[i * cols..(i + 1) * cols], "row {i} of {rows}");
                for (j, b) in b.chunks_exact(inner).enumerate() {
                    let expected: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let error = (f64::from(y[i * cols + j]) - expected).abs();
                    assert!(error < 1e-5 * inner as f64, "{rows} {cols} {inner}: {error}");
                }
            }
        }
    }
}
