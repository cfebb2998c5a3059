//! 8-bit integers as `f32`. With plain loops, the compiler turns blocks of a constant length into columns of a larger loop
//! and gathers single bytes, which is ten times slower; so the vector instructions are named here.

use pulp::Arch;

/// Integers with a common factor.
pub const BLOCK: usize = 32;

/// Sets `to[b][i] = scales[b] · from[b][i]`, for as many blocks as all three have.
#[inline]
pub fn widen(to: &mut [[f32; BLOCK]], from: &[[i8; BLOCK]], scales: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    match Arch::new() {
        Arch::V4(simd) => return x86::widen_v4(simd, to, from, scales),
        Arch::V3(simd) => return x86::widen_v3(simd, to, from, scales),
        _ => {}
    }
    plain(to, from, scales);
}

fn plain(to: &mut [[f32; BLOCK]], from: &[[i8; BLOCK]], scales: &[f32]) {
    for ((to, from), scale) in to.iter_mut().zip(from).zip(scales) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *scale * f32::from(*from);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::__m128i;

    use pulp::x86::{V3, V4};

    use super::BLOCK;

    pub fn widen_v4(simd: V4, to: &mut [[f32; BLOCK]], from: &[[i8; BLOCK]], scales: &[f32]) {
        simd.vectorize(
            #[inline(always)]
            || {
                for ((to, from), scale) in to.iter_mut().zip(from).zip(scales) {
                    let scale = simd.avx512f._mm512_set1_ps(*scale);
                    for (to, from) in to.as_chunks_mut::<16>().0.iter_mut().zip(from.as_chunks::<16>().0) {
                        let integers = simd.avx512f._mm512_cvtepi8_epi32(pulp::cast(*from));
                        let numbers = simd.avx512f._mm512_cvtepi32_ps(integers);
                        *to = pulp::cast(simd.avx512f._mm512_mul_ps(scale, numbers));
                    }
                }
            },
        );
    }

    pub fn widen_v3(simd: V3, to: &mut [[f32; BLOCK]], from: &[[i8; BLOCK]], scales: &[f32]) {
        simd.vectorize(
            #[inline(always)]
            || {
                for ((to, from), scale) in to.iter_mut().zip(from).zip(scales) {
                    let scale = simd.avx._mm256_set1_ps(*scale);
                    for (to, from) in to.as_chunks_mut::<16>().0.iter_mut().zip(from.as_chunks::<16>().0) {
                        let low: __m128i = pulp::cast(*from);
                        let high = simd.sse2._mm_srli_si128::<8>(low);
                        for (to, eight) in to.as_chunks_mut::<8>().0.iter_mut().zip([low, high]) {
                            let numbers = simd.avx._mm256_cvtepi32_ps(simd.avx2._mm256_cvtepi8_epi32(eight));
                            *to = pulp::cast(simd.avx._mm256_mul_ps(scale, numbers));
                        }
                    }
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every instruction set that the machine has gives the products of the plain loop, for all integers.
    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let integers: Vec<i8> = (0..3 * BLOCK).map(|i| (i * 91 + 7) as i8).chain(i8::MIN..=i8::MAX).collect();
        let (from, _) = integers.as_chunks::<BLOCK>();
        let scales: Vec<f32> = (0..from.len()).map(|i| 0.37 * (i as f32 - 3.0)).collect();
        let run = |f: &dyn Fn(&mut [[f32; BLOCK]])| {
            let mut to = vec![[f32::NAN; BLOCK]; from.len()];
            f(&mut to);
            to
        };
        let expected = run(&|to| plain(to, from, &scales));
        assert_eq!(expected[1][0], scales[1] * f32::from(from[1][0]));
        assert_eq!(run(&|to| widen(to, from, &scales)), expected);
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = pulp::x86::V3::try_new() {
                assert_eq!(run(&|to| x86::widen_v3(simd, to, from, &scales)), expected);
            }
            if let Some(simd) = pulp::x86::V4::try_new() {
                assert_eq!(run(&|to| x86::widen_v4(simd, to, from, &scales)), expected);
            }
        }
    }
}
