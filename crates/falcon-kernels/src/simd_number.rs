//! Vectors of numbers, for both number types.

use num_traits::Zero;
use pulp::{MemMask, Simd};

/// A number type that `pulp` has vectors of.
pub trait SimdNumber: Copy + Zero + PartialEq {
    /// A vector.
    type Vector<S: Simd>: Copy;
    /// A choice of some of its lanes.
    type Mask<S: Simd>: Copy;

    /// Numbers in a vector.
    fn lanes<S: Simd>() -> usize;
    /// A vector of equal numbers.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// `a b`.
    fn product<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a b + c`.
    fn product_sum<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// The sum of all lanes.
    fn total<S: Simd>(simd: S, a: Self::Vector<S>) -> Self;
    /// The first lanes.
    fn mask<S: Simd>(simd: S, count: usize) -> MemMask<Self::Mask<S>>;
    /// Reads a vector.
    ///
    /// # Safety
    ///
    /// All its numbers must be valid for reading.
    unsafe fn load<S: Simd>(simd: S, from: *const Self) -> Self::Vector<S>;
    /// Reads the lanes of a mask, and sets the others to 0.
    ///
    /// # Safety
    ///
    /// The numbers of the mask must be valid for reading.
    unsafe fn load_masked<S: Simd>(simd: S, mask: MemMask<Self::Mask<S>>, from: *const Self) -> Self::Vector<S>;
    /// Writes a vector.
    ///
    /// # Safety
    ///
    /// All its numbers must be valid for writing.
    unsafe fn store<S: Simd>(simd: S, to: *mut Self, vector: Self::Vector<S>);
    /// Writes the lanes of a mask.
    ///
    /// # Safety
    ///
    /// The numbers of the mask must be valid for writing.
    unsafe fn store_masked<S: Simd>(simd: S, mask: MemMask<Self::Mask<S>>, to: *mut Self, vector: Self::Vector<S>);

    /// The side of the squares that [`Self::transpose_square`] transposes, or 0 if it cannot.
    #[inline(always)]
    fn square<S: Simd>() -> usize {
        0
    }

    /// Writes the transpose of a square; rows are `from_stride` and `to_stride` apart.
    ///
    /// # Safety
    ///
    /// [`Self::square`] must not be 0, and all numbers must be valid, for reading and for writing.
    #[inline(always)]
    unsafe fn transpose_square<S: Simd>(
        _from: *const Self,
        _from_stride: usize,
        _to: *mut Self,
        _to_stride: usize,
    ) {
        unreachable!("there are no squares")
    }
}

macro_rules! simd_number {
    ($number:ty, $index:ty, $vector:ident, $mask:ident, $lanes:ident, $splat:ident, $mul:ident, $mul_add:ident, $sum:ident, $between:ident,
     $load:ident, $store:ident, { $($transpose:item)* }) => {
        impl SimdNumber for $number {
            type Vector<S: Simd> = S::$vector;
            type Mask<S: Simd> = S::$mask;

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }

            #[inline(always)]
            fn product<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$mul(a, b)
            }

            #[inline(always)]
            fn product_sum<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$mul_add(a, b, c)
            }

            #[inline(always)]
            fn total<S: Simd>(simd: S, a: S::$vector) -> Self {
                simd.$sum(a)
            }

            #[inline(always)]
            fn mask<S: Simd>(simd: S, count: usize) -> MemMask<S::$mask> {
                // Without the functions that pulp would call for each width: a call for each load is slow.
                MemMask::new(simd.$between(0, count as $index).mask())
            }

            #[inline(always)]
            unsafe fn load<S: Simd>(_: S, from: *const Self) -> S::$vector {
                // SAFETY: the caller vouches for the numbers, and any bits are a vector.
                unsafe { from.cast::<S::$vector>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn load_masked<S: Simd>(simd: S, mask: MemMask<S::$mask>, from: *const Self) -> S::$vector {
                // SAFETY: the caller vouches for the numbers of the mask.
                unsafe { simd.$load(mask, from) }
            }

            #[inline(always)]
            unsafe fn store<S: Simd>(_: S, to: *mut Self, vector: S::$vector) {
                // SAFETY: the caller vouches for the numbers.
                unsafe { to.cast::<S::$vector>().write_unaligned(vector) }
            }

            #[inline(always)]
            unsafe fn store_masked<S: Simd>(simd: S, mask: MemMask<S::$mask>, to: *mut Self, vector: S::$vector) {
                // SAFETY: the caller vouches for the numbers of the mask.
                unsafe { simd.$store(mask, to, vector) }
            }

            $($transpose)*
        }
    };
}

simd_number!(
    f32,
    u32,
    f32s,
    m32s,
    F32_LANES,
    splat_f32s,
    mul_f32s,
    mul_add_e_f32s,
    reduce_sum_f32s,
    mask_between_m32s,
    mask_load_ptr_f32s,
    mask_store_ptr_f32s,
    {
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        fn square<S: Simd>() -> usize {
            if matches!(S::F32_LANES, 8 | 16) { S::F32_LANES } else { 0 }
        }

        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        unsafe fn transpose_square<S: Simd>(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            // SAFETY: the caller vouches for the numbers. A machine on which vectors have 16 lanes has AVX-512, and one
            // on which they have 8 has AVX.
            unsafe {
                if S::F32_LANES == 16 {
                    x86::transpose_16(from, from_stride, to, to_stride);
                } else {
                    x86::transpose_8(from, from_stride, to, to_stride);
                }
            }
        }
    }
);
simd_number!(
    f64,
    u64,
    f64s,
    m64s,
    F64_LANES,
    splat_f64s,
    mul_f64s,
    mul_add_e_f64s,
    reduce_sum_f64s,
    mask_between_m64s,
    mask_load_ptr_f64s,
    mask_store_ptr_f64s,
    {}
);

/// Transposes of squares that fit into the registers. Number `c` of row `r` has the index `r · n + c`. Interleaving rows
/// `i` and `i + n/2` rotates the bits of all indices to the left by one, so that `log₂ n` rounds exchange `r` and `c`.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    /// SAFETY: the machine must have AVX-512, and all numbers must be valid.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn transpose_16(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        let mut rows = [_mm512_setzero_ps(); 16];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the numbers.
            *row = unsafe { _mm512_loadu_ps(from.add(i * from_stride)) };
        }
        for _ in 0..4 {
            let before = rows;
            for i in 0..8 {
                rows[2 * i] = _mm512_permutex2var_ps(before[i], low, before[i + 8]);
                rows[2 * i + 1] = _mm512_permutex2var_ps(before[i], high, before[i + 8]);
            }
        }
        for (i, row) in rows.into_iter().enumerate() {
            // SAFETY: likewise.
            unsafe { _mm512_storeu_ps(to.add(i * to_stride), row) };
        }
    }

    /// SAFETY: the machine must have AVX, and all numbers must be valid.
    #[target_feature(enable = "avx")]
    pub unsafe fn transpose_8(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        let mut rows = [_mm256_setzero_ps(); 8];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: the caller vouches for the numbers.
            *row = unsafe { _mm256_loadu_ps(from.add(i * from_stride)) };
        }
        for _ in 0..3 {
            let before = rows;
            for i in 0..4 {
                let low = _mm256_unpacklo_ps(before[i], before[i + 4]);
                let high = _mm256_unpackhi_ps(before[i], before[i + 4]);
                rows[2 * i] = _mm256_permute2f128_ps::<0x20>(low, high);
                rows[2 * i + 1] = _mm256_permute2f128_ps::<0x31>(low, high);
            }
        }
        for (i, row) in rows.into_iter().enumerate() {
            // SAFETY: likewise.
            unsafe { _mm256_storeu_ps(to.add(i * to_stride), row) };
        }
    }
}
