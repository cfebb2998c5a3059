//! Products of rows with rows, `y_ij = a_i · b_j`, without packing: a product with the transpose of a matrix whose numbers
//! are used a few times only, as in generation.

use pulp::{Arch, MemMask, Simd, WithSimd};

use crate::Real;
use crate::simd::prefetch_once;

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
    // SAFETY: `b` has `cols` rows of `inner` numbers.
    Arch::new().dispatch(Plain(unsafe { Dots::new(dst, a, Rows { numbers: b, inner }, inner) }));
}

/// The rows that others are multiplied by: whatever a vector of numbers can be made of.
pub(crate) trait Vectors<F: Real, S: Simd>: Copy {
    /// The vector of a row that begins at `start`.
    ///
    /// # Safety
    ///
    /// It must be inside of the row.
    unsafe fn vector(&self, simd: S, row: usize, start: usize) -> F::Vector<S>;

    /// The numbers of a row from `start` on that the mask names, and 0 for the others.
    ///
    /// # Safety
    ///
    /// They must be inside of the row.
    unsafe fn masked(&self, simd: S, row: usize, start: usize, mask: MemMask<F::Mask<S>>) -> F::Vector<S>;

    /// Asks the processor to fetch the numbers of a row from `start` on, if a line of the cache begins there, counted from
    /// the start of the row. The row need not exist.
    fn prefetch(&self, row: usize, start: usize);
}

/// Rows of numbers as they are.
#[derive(Clone, Copy)]
struct Rows<'a, F> {
    numbers: &'a [F],
    inner: usize,
}

impl<F: Real, S: Simd> Vectors<F, S> for Rows<'_, F> {
    #[inline(always)]
    unsafe fn vector(&self, simd: S, row: usize, start: usize) -> F::Vector<S> {
        // SAFETY: the caller vouches for the vector.
        unsafe { F::load(simd, self.numbers.as_ptr().add(row * self.inner + start)) }
    }

    #[inline(always)]
    unsafe fn masked(&self, simd: S, row: usize, start: usize, mask: MemMask<F::Mask<S>>) -> F::Vector<S> {
        // SAFETY: the caller vouches for the numbers.
        unsafe { F::load_masked(simd, mask, self.numbers.as_ptr().add(row * self.inner + start)) }
    }

    #[inline(always)]
    fn prefetch(&self, row: usize, start: usize) {
        prefetch_once(self.numbers, row * self.inner, start);
    }
}

/// Products of the rows of `a` with those of `b`.
pub(crate) struct Dots<'a, F, B> {
    dst: &'a mut [F],
    a: &'a [F],
    b: B,
    inner: usize,
    rows: usize,
    cols: usize,
}

struct Plain<'a, F>(Dots<'a, F, Rows<'a, F>>);

impl<F: Real> WithSimd for Plain<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.0.run(simd);
    }
}

impl<'a, F: Real, B> Dots<'a, F, B> {
    /// `dst` is `[rows of a, rows of b]`.
    ///
    /// # Safety
    ///
    /// `b` must have as many rows, of `inner` numbers, as `dst` has columns.
    pub unsafe fn new(dst: &'a mut [F], a: &'a [F], b: B, inner: usize) -> Self {
        let rows = a.len() / inner;
        let cols = dst.len() / rows.max(1);
        Self { dst, a, b, inner, rows, cols }
    }

    #[inline(always)]
    pub fn run<S: Simd>(mut self, simd: S)
    where
        B: Vectors<F, S>,
    {
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

    /// The products of all rows of `a` with the `C` rows of `b` from `col` on, which stay in cache meanwhile.
    #[inline(always)]
    fn columns<S: Simd, const C: usize>(&mut self, simd: S, col: usize)
    where
        B: Vectors<F, S>,
    {
        let mut row = 0;
        // SAFETY: all rows and columns named exist, as the caller of `new` has vouched.
        unsafe {
            // The first tile reads `b` from memory, the others from the cache.
            if self.rows > 0 {
                self.tile::<S, 1, C, true>(simd, 0, col);
                row = 1;
            }
            // Three rows need 24 sums, 8 vectors of `b` from memory, and 3 of `a`.
            while S::REGISTER_COUNT >= 32 && self.rows - row >= 3 {
                self.tile::<S, 3, C, false>(simd, row, col);
                row += 3;
            }
            while row < self.rows {
                self.tile::<S, 1, C, false>(simd, row, col);
                row += 1;
            }
        }
    }

    /// The products of `R` rows of `a` with `C` rows of `b`. `AHEAD` asks for the next rows of `b` meanwhile.
    ///
    /// SAFETY: the rows must exist.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize, const AHEAD: bool>(
        &mut self,
        simd: S,
        row: usize,
        col: usize,
    ) where
        B: Vectors<F, S>,
    {
        let (inner, lanes, b) = (self.inner, F::lanes::<S>(), self.b);
        let whole = inner - inner % lanes;
        let a = Rows { numbers: self.a, inner };
        let mut sums = [[F::splat(simd, F::zero()); C]; R];
        // SAFETY: whole vectors of a row are inside of it, and the mask ends where the row does.
        unsafe {
            for p in (0..whole).step_by(lanes) {
                if AHEAD && C > 1 {
                    // Eight rows at a time are more streams than the processor follows by itself.
                    (0..C).for_each(|j| b.prefetch(col + C + j, p));
                }
                let left = std::array::from_fn(
                    #[inline(always)]
                    |i| a.vector(simd, row + i, p),
                );
                add::<F, S, R, C>(
                    simd,
                    &mut sums,
                    left,
                    #[inline(always)]
                    |j| b.vector(simd, col + j, p),
                );
            }
            if whole < inner {
                let mask: MemMask<F::Mask<S>> = F::mask::<S>(simd, inner - whole);
                let left = std::array::from_fn(
                    #[inline(always)]
                    |i| a.masked(simd, row + i, whole, mask),
                );
                add::<F, S, R, C>(
                    simd,
                    &mut sums,
                    left,
                    #[inline(always)]
                    |j| b.masked(simd, col + j, whole, mask),
                );
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                self.dst[(row + i) * self.cols + col + j] = F::total(simd, *sum);
            }
        }
    }
}

/// Adds the products of one vector of each row.
#[inline(always)]
fn add<F: Real, S: Simd, const R: usize, const C: usize>(
    simd: S,
    sums: &mut [[F::Vector<S>; C]; R],
    left: [F::Vector<S>; R],
    right: impl Fn(usize) -> F::Vector<S>,
) {
    for j in 0..C {
        let right = right(j);
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
