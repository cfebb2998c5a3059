//! Shared parts of the CPU operations: sums in lanes, threads, and an exponential that the compiler can vectorise.

use falcon_kernels::vector::products;
pub(super) use falcon_kernels::vector::vectorised;
use rayon::prelude::*;

/// Rows of one task. A constant, so that sums over tasks do not depend on the number of threads.
pub(super) const ROWS: usize = 64;

/// `eˣ` to within three units in the last place, between 1e-38 and 1e38. NaN stays NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding this number leaves the nearest integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    // x = n ln 2 + r with |r| ≤ ln 2 / 2. ln 2 is split into two parts, so that r is exact.
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let series =
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    power * series
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Fills `out` in blocks of rows of `width`, in parallel. `f` gets the index of the first row of a block, and the
/// block.
pub(super) fn by_rows(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    out.par_chunks_mut(ROWS * width).enumerate().for_each(|(block, out)| f(block * ROWS, out));
}

/// Number of partial results, which the compiler can keep in vector registers.
const LANES: usize = 16;

/// `Σ aᵢ bᵢ`. The partial sums are those of the kernels, but they are added one after the other where the kernels add
/// them pairwise; the two round differently, and models trained with either depend on it.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    products::<f32, f32, LANES>(a, b, |x| x).iter().sum()
}

/// `Σ xᵢ`.
#[inline(always)]
pub(super) fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |sum, x| sum + x)
}

/// The largest number. NaNs are ignored.
#[inline(always)]
pub(super) fn max(x: &[f32]) -> f32 {
    fold(x, f32::NEG_INFINITY, |most, x| if x > most { x } else { most })
}

#[inline(always)]
fn fold(x: &[f32], first: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [first; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = f(lanes[lane], block[lane]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, *x);
    }
    lanes.into_iter().fold(first, f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_accurate() {
        for i in -8700..=8800 {
            let x = i as f32 / 100.0 + 0.003;
            let (got, expected) = (f64::from(exp(x)), f64::from(x.min(88.0)).exp());
            // The unit in the last place of the exact result.
            let unit = f64::from((expected as f32).next_up()) - f64::from(expected as f32);
            assert!((got - expected).abs() < 3.0 * unit, "exp({x}) = {got}, not {expected}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(f32::INFINITY) > 1e38);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn sum_and_max_match_their_definitions() {
        for len in [0, 1, 15, 16, 50] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 7 % 23) as f32) - 30.0).collect();
            assert_eq!(sum(&x), x.iter().sum::<f32>());
            assert_eq!(max(&x), x.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b)));
        }
        assert_eq!(max(&[1.0, f32::NAN, 3.0]), 3.0);
        assert!(sum(&[1.0, f32::NAN]).is_nan());
    }
}
