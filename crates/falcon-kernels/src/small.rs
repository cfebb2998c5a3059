//! Products of small matrices that are in cache: no packing, and no general-purpose call around each.
//!
//! A tile of the result stays in vector registers while the loop runs over the inner dimension:
//!
//! ```text
//! tile[i] += a[i][p] · b[p]        p = 0, 1, …        i: rows of the tile, b[p]: some vectors of a row of b
//! ```
//!
//! Every number of the result is one sum in the order of `p`, whatever tile it is in. So results do not depend on how a
//! matrix is divided, and leaving out terms that a mask excludes does not change the bits of the others.

use std::mem::MaybeUninit;

use pulp::{Arch, MemMask, Simd, WithSimd};

use crate::simd_number::SimdNumber;

/// The largest inner dimension that products are computed for here. With more, the rows of `b` that a tile reads leave
/// the cache before the next tile, and blocking them is what general products are for.
pub(crate) const MAX_INNER: usize = 256;
/// The most columns of a tile: four vectors of 64 bytes.
const MAX_COLS: usize = 64;

/// A matrix by its address and its strides. Whoever makes one vouches that all elements in use are valid.
#[derive(Clone, Copy)]
pub(crate) struct Raw<F> {
    pub data: *const F,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<F> Raw<F> {
    /// SAFETY: the element must be in the matrix.
    #[inline(always)]
    unsafe fn at(self, row: usize, col: usize) -> *const F {
        // SAFETY: the caller vouches for the element.
        unsafe { self.data.add(row * self.row_stride + col * self.col_stride) }
    }
}

/// A number for each row of a product.
pub(crate) type Bound<'a> = &'a dyn Fn(usize) -> usize;

/// Which terms of a product are computed. Each bound is that of a row of the result, and must not fall.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    /// All of them.
    All,
    /// In row `i`, the terms `p < bound(i)`: row `i` of `a` is zero from there on, and rows of `b` from there on are
    /// not read for it.
    TermsBelow(Bound<'a>),
    /// In row `i`, the terms `p ≥ bound(i)`: row `i` of `a` is zero before.
    TermsFrom(Bound<'a>),
    /// In row `i`, the columns below `bound(i)`. What the other columns hold afterwards is not specified, so a tile may
    /// end with a whole vector.
    ColumnsBelow(Bound<'a>),
}

/// `dst = dst · keep + a b`; `dst` is only written if `keep` is 0. Rows of `dst` are contiguous.
pub(crate) struct Product<'a, F> {
    pub rows: usize,
    pub cols: usize,
    pub inner: usize,
    pub dst: *mut F,
    pub dst_stride: usize,
    pub keep: F,
    pub a: Raw<F>,
    pub b: Raw<F>,
    pub part: Part<'a>,
}

impl<F: SimdNumber> Product<'_, F> {
    /// Computes the product.
    ///
    /// SAFETY: all elements of the three matrices must be valid for reading, those of `dst` also for writing, and `dst`
    /// must overlap neither `a` nor `b`.
    pub unsafe fn run(self) {
        // Otherwise `b` must be the transpose of a matrix with contiguous rows that fit into the room for them.
        let fits = self.inner <= MAX_INNER && self.b.row_stride == 1;
        assert!(self.b.col_stride == 1 || fits, "an inner dimension of {}", self.inner);
        Arch::new().dispatch(self);
    }
}

impl<F: SimdNumber> WithSimd for Product<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // As many sums as registers hold, beside a row of `b` and an element of `a`; and at least eight, because a
        // multiply-add takes four cycles and two are begun in each.
        match (S::REGISTER_COUNT >= 32, self.cols <= 2 * F::lanes::<S>()) {
            (true, true) => self.panels::<S, 8, 2>(simd),
            (true, false) => self.panels::<S, 4, 4>(simd),
            (false, _) => self.panels::<S, 4, 3>(simd),
        }
    }
}

impl<F: SimdNumber> Product<'_, F> {
    /// Tiles of up to `R` rows and `V` vectors.
    #[inline(always)]
    fn panels<S: Simd, const R: usize, const V: usize>(&self, simd: S) {
        let mut col = 0;
        let mut copied = [const { MaybeUninit::<F>::uninit() }; MAX_INNER * MAX_COLS];
        while col < self.cols {
            let panel = (self.cols - col).min(V * F::lanes::<S>());
            let b = self.columns::<S>(col, panel, &mut copied);
            let mut row = 0;
            while row < self.rows {
                row += match self.rows - row {
                    // Narrow tiles are high, so that they have as many sums.
                    left if left >= 8 && V == 4 && self.width::<S>(row + 7, col, panel) <= 2 * F::lanes::<S>() => {
                        self.tile_of::<S, 8, 2>(simd, b, row, col, panel)
                    }
                    left if left >= R => self.tile_of::<S, R, V>(simd, b, row, col, panel),
                    left if left >= 2 => self.tile_of::<S, 2, V>(simd, b, row, col, panel),
                    _ => self.tile_of::<S, 1, V>(simd, b, row, col, panel),
                };
            }
            col += panel;
        }
    }

    /// The columns `col..col + panel` of `b`, with contiguous rows: in place, or copied.
    #[inline(always)]
    fn columns<S: Simd>(&self, col: usize, panel: usize, copied: &mut [MaybeUninit<F>]) -> Raw<F> {
        // SAFETY: `run` vouches for the elements of `b`, and that there is room for a transpose.
        unsafe {
            let first = self.b.at(0, col);
            if self.b.col_stride == 1 {
                return Raw { data: first, ..self.b };
            }
            let to = copied.as_mut_ptr().cast::<F>();
            transpose::<F, S>(first, self.b.col_stride, [panel, self.inner], to);
            Raw { data: to, row_stride: panel, col_stride: 1 }
        }
    }

    /// How many columns of a panel are wanted in a row.
    #[inline(always)]
    fn width<S: Simd>(&self, row: usize, col: usize, panel: usize) -> usize {
        match &self.part {
            Part::ColumnsBelow(bound) => {
                let wanted = bound(row).min(self.cols).saturating_sub(col);
                wanted.next_multiple_of(F::lanes::<S>()).min(panel)
            }
            _ => panel,
        }
    }

    /// The tile at a row and a column, no wider than `panel`, with the columns `b`. Returns its number of rows.
    #[inline(always)]
    fn tile_of<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        b: Raw<F>,
        row: usize,
        col: usize,
        panel: usize,
    ) -> usize {
        let width = self.width::<S>(row + R - 1, col, panel);
        let (vectors, rest) = (width / F::lanes::<S>(), width % F::lanes::<S>());
        let mask = F::mask::<S>(simd, rest);
        // SAFETY: `run` vouches for the matrices, and the tile is inside `dst`.
        unsafe {
            // `V` is known when this is compiled, so that tiles that are wider are left out.
            match (vectors, rest) {
                (0, 0) => {}
                (0, _) => self.tile::<S, R, 1, true>(simd, b, row, col, mask),
                (1, 0) => self.tile::<S, R, 1, false>(simd, b, row, col, mask),
                (1, _) => self.tile::<S, R, 2, true>(simd, b, row, col, mask),
                (2, 0) => self.tile::<S, R, 2, false>(simd, b, row, col, mask),
                (2, _) if V > 2 => self.tile::<S, R, 3, true>(simd, b, row, col, mask),
                (3, 0) if V > 2 => self.tile::<S, R, 3, false>(simd, b, row, col, mask),
                (3, _) if V > 3 => self.tile::<S, R, 4, true>(simd, b, row, col, mask),
                (4, 0) if V > 3 => self.tile::<S, R, 4, false>(simd, b, row, col, mask),
                _ => unreachable!("a tile of {width} columns"),
            }
        }
        R
    }

    /// A tile of `R` rows and `V` vectors, the last of which is cut by `mask` if `CUT`.
    ///
    /// SAFETY: as for [`Self::run`], and the tile must be inside `dst`.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const V: usize, const CUT: bool>(
        &self,
        simd: S,
        b: Raw<F>,
        row: usize,
        col: usize,
        mask: MemMask<F::Mask<S>>,
    ) {
        let lanes = F::lanes::<S>();
        // SAFETY: this is only called with rows of `b` or `dst` of which at least the numbers of the tile are valid.
        let load = |from: *const F, v: usize| unsafe {
            let from = from.add(v * lanes);
            if CUT && v == V - 1 { F::load_masked(simd, mask, from) } else { F::load(simd, from) }
        };
        let mut sums = [[F::splat(simd, F::zero()); V]; R];
        // The terms that all rows of the tile have, and those that only some have.
        let (shared, partly) = match &self.part {
            Part::All | Part::ColumnsBelow(_) => (0..self.inner, 0..0),
            Part::TermsFrom(bound) => (bound(row).min(self.inner)..self.inner, 0..0),
            Part::TermsBelow(bound) => {
                let (first, last) = (bound(row).min(self.inner), bound(row + R - 1).min(self.inner));
                (0..first, first..last)
            }
        };
        for p in shared {
            // SAFETY: the tile is inside `dst`, so its rows are rows of `a` and its columns are those of `b`.
            unsafe {
                let b = b.at(p, 0);
                let mut vectors = [F::splat(simd, F::zero()); V];
                for v in 0..V {
                    vectors[v] = load(b, v);
                }
                for i in 0..R {
                    let a = F::splat(simd, *self.a.at(row + i, p));
                    for v in 0..V {
                        sums[i][v] = F::product_sum(simd, a, vectors[v], sums[i][v]);
                    }
                }
            }
        }
        if !partly.is_empty() {
            let Part::TermsBelow(bound) = &self.part else { unreachable!("all rows have the same terms") };
            let mut ends = [0; R];
            for i in 0..R {
                ends[i] = bound(row + i);
            }
            for p in partly {
                // SAFETY: as above.
                unsafe {
                    let b = b.at(p, 0);
                    let mut vectors = [F::splat(simd, F::zero()); V];
                    for v in 0..V {
                        vectors[v] = load(b, v);
                    }
                    for i in 0..R {
                        // Left out rather than multiplied by 0: a later row of `b` may not be finite.
                        if p < ends[i] {
                            let a = F::splat(simd, *self.a.at(row + i, p));
                            for v in 0..V {
                                sums[i][v] = F::product_sum(simd, a, vectors[v], sums[i][v]);
                            }
                        }
                    }
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: the tile is inside `dst`.
            unsafe {
                let to = self.dst.add((row + i) * self.dst_stride + col);
                for v in 0..V {
                    let sum = if self.keep == F::zero() {
                        sums[v]
                    } else {
                        F::product_sum(simd, F::splat(simd, self.keep), load(to, v), sums[v])
                    };
                    let to = to.add(v * lanes);
                    if CUT && v == V - 1 {
                        F::store_masked(simd, mask, to, sum);
                    } else {
                        F::store(simd, to, sum);
                    }
                }
            }
        }
    }
}

/// Writes the transpose of a matrix with contiguous rows, which are `stride` apart, to `to`, contiguously.
///
/// SAFETY: all numbers must be valid for reading, and `to` for writing as many.
#[inline(always)]
unsafe fn transpose<F: SimdNumber, S: Simd>(from: *const F, stride: usize, [rows, cols]: [usize; 2], to: *mut F) {
    let side = F::square::<S>();
    // The part that whole squares cover.
    let [done_rows, done_cols] = [rows, cols].map(|count| count.checked_div(side).unwrap_or(0) * side);
    for row in (0..done_rows).step_by(side.max(1)) {
        for col in (0..done_cols).step_by(side) {
            // SAFETY: the square is in both matrices.
            unsafe {
                F::transpose_square::<S>(from.add(row * stride + col), stride, to.add(col * rows + row), rows);
            }
        }
    }
    for row in 0..rows {
        for col in if row < done_rows { done_cols } else { 0 }..cols {
            // SAFETY: the number is in both matrices.
            unsafe { *to.add(col * rows + row) = *from.add(row * stride + col) };
        }
    }
}
