//! The number types of the kernels, and the loops over slices that the kernels share.

use std::fmt::{Debug, Display};
use std::iter::Sum;

use num_traits::{Float, NumAssign};

use crate::simd_number::SimdNumber;

/// A floating-point type that the kernels compute in: `f32` or `f64`. No other type can implement it.
pub trait Real:
    Float + NumAssign + Sum + Default + Debug + Display + Send + Sync + SimdNumber + Sealed + 'static
{
    /// The value of this type nearest to `value`.
    fn of(value: f64) -> Self;
    /// This value as `f64`, without rounding.
    fn wide(self) -> f64;
}

/// Keeps [`Real`] to the types of this file.
pub trait Sealed {}
impl Sealed for f32 {}
impl Sealed for f64 {}

impl Real for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
}

// The loops below are always inlined, so that inside `simd::dispatch` they are compiled for the vector instructions
// that the machine has.

/// `Σ aᵢ bᵢ`, in sixteen partial sums so that the compiler can keep them in vector registers.
#[inline(always)]
pub(crate) fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    debug_assert_eq!(a.len(), b.len());
    if let ([a], [b]) = (a, b) {
        return *a * *b;
    }
    const LANES: usize = 16;
    let mut lanes = products::<F, F, LANES>(a, b, |x| x);
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `Σ aᵢ bᵢ` in `f64`. For energies, which span twenty orders of magnitude; the cost is small beside that of the scan.
#[inline(always)]
pub(crate) fn dot_f64<F: Real>(a: &[F], b: &[F]) -> f64 {
    const LANES: usize = 8;
    let lanes = products::<F, f64, LANES>(a, b, F::wide);
    lanes.iter().sum()
}

/// `LANES` partial sums of `Σ aᵢ bᵢ`, each over every `LANES`-th `i`, computed in `T`.
#[inline(always)]
pub fn products<F: Real, T: Real, const LANES: usize>(a: &[F], b: &[F], to: impl Fn(F) -> T) -> [T; LANES] {
    let mut lanes = [T::zero(); LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] += to(x[lane]) * to(y[lane]);
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += to(*x) * to(*y);
    }
    lanes
}

/// `y += scale · x`.
#[inline(always)]
pub(crate) fn axpy<F: Real>(y: &mut [F], scale: F, x: &[F]) {
    debug_assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * *x;
    }
}

/// `y += x`.
#[inline(always)]
pub(crate) fn add<F: Real>(y: &mut [F], x: &[F]) {
    debug_assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y += *x;
    }
}

/// `y *= scale`.
#[inline(always)]
pub(crate) fn scale<F: Real>(y: &mut [F], scale: F) {
    for y in y {
        *y *= scale;
    }
}

/// `y ⊙= x`.
#[inline(always)]
pub(crate) fn multiply<F: Real>(y: &mut [F], x: &[F]) {
    debug_assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y *= *x;
    }
}

/// Numbers of a row that stay in registers where several rows share them.
const NARROW: usize = 16;

/// `y += Σ_l weights[l] · row l`, where rows are `stride` apart in `rows`. A tile of `y` stays in registers throughout.
#[inline(always)]
pub(crate) fn combine<F: Real>(y: &mut [F], weights: &[F], rows: &[F], stride: usize) {
    // Wide tiles, because the sums of a tile are independent of each other while those of a number have to wait.
    let wide = combine_tiles::<F, 64>(y, 0, weights, rows, stride);
    let done = combine_tiles::<F, 16>(y, wide, weights, rows, stride);
    let rest = &mut y[done..];
    for (l, weight) in weights.iter().enumerate() {
        axpy(rest, *weight, &rows[l * stride + done..][..rest.len()]);
    }
}

/// [`combine`] for as many tiles of `TILE` numbers as fit behind the first `done`. Returns how many numbers are done
/// then.
#[inline(always)]
fn combine_tiles<F: Real, const TILE: usize>(
    y: &mut [F],
    mut done: usize,
    weights: &[F],
    rows: &[F],
    stride: usize,
) -> usize {
    while let Some(tile) = y[done..].first_chunk_mut::<TILE>() {
        let mut sum = *tile;
        for (l, weight) in weights.iter().enumerate() {
            let row: &[F; TILE] = rows[l * stride + done..].first_chunk().expect("a row as wide as y");
            for lane in 0..TILE {
                sum[lane] += *weight * row[lane];
            }
        }
        *tile = sum;
        done += TILE;
    }
    done
}

/// Multiplies every row by `gamma`, and adds the decayed rows to each of `sums`:
/// `sums[n] += Σ_l weights[n][l] · row l`.
#[inline(always)]
pub(crate) fn decay_combine<F: Real, const N: usize>(
    rows: &mut [F],
    gamma: &[F],
    weights: [&[F]; N],
    sums: [&mut [F]; N],
) {
    let width = gamma.len();
    let weights = weights.map(|weights| &weights[..rows.len() / width]);
    let mut start = 0;
    while start + NARROW <= width {
        let gamma: &[F; NARROW] = gamma[start..].first_chunk().expect("a tile");
        let mut tiles = [[F::zero(); NARROW]; N];
        for n in 0..N {
            tiles[n].copy_from_slice(&sums[n][start..][..NARROW]);
        }
        for (l, row) in rows.chunks_exact_mut(width).enumerate() {
            let row: &mut [F; NARROW] = row[start..].first_chunk_mut().expect("a tile");
            for lane in 0..NARROW {
                row[lane] *= gamma[lane];
            }
            for n in 0..N {
                let weight = weights[n][l];
                for lane in 0..NARROW {
                    tiles[n][lane] += weight * row[lane];
                }
            }
        }
        for n in 0..N {
            sums[n][start..][..NARROW].copy_from_slice(&tiles[n]);
        }
        start += NARROW;
    }
    for (l, row) in rows.chunks_exact_mut(width).enumerate() {
        multiply(&mut row[start..], &gamma[start..]);
        for n in 0..N {
            axpy(&mut sums[n][start..], weights[n][l], &row[start..]);
        }
    }
}
