//! Matrices in fewer bits than `f32`: their rows as `f32`, and products with them. With plain loops, the compiler turns
//! blocks of a constant length into columns of a larger loop and gathers single bytes, which is ten times slower; so the
//! vector instructions are named here. Other processors than x86-64 widen rows to memory first.

#[cfg(target_arch = "x86_64")]
use pulp::{Arch, Simd};

use crate::dots::dots;

/// Integers with a common factor.
pub const BLOCK: usize = 32;

/// Rows of a matrix in fewer bits.
#[derive(Clone, Copy, Debug)]
pub enum NarrowRows<'a> {
    /// The upper halves of `f32`.
    Bf16(&'a [u16]),
    /// `scales[i / BLOCK] · values[i]`, with blocks counted in each row.
    Int8 {
        /// The integers.
        values: &'a [i8],
        /// The factor of each block.
        scales: &'a [f32],
    },
}

impl NarrowRows<'_> {
    /// `count` of the rows, from `first` on.
    pub fn part(self, first: usize, count: usize, inputs: usize) -> Self {
        let numbers = first * inputs..(first + count) * inputs;
        match self {
            Self::Bf16(rows) => Self::Bf16(&rows[numbers]),
            Self::Int8 { values, scales } => {
                let blocks = inputs.div_ceil(BLOCK);
                Self::Int8 { values: &values[numbers], scales: &scales[first * blocks..(first + count) * blocks] }
            }
        }
    }

    /// Sets `to` to the rows, which have `inputs` numbers each.
    ///
    /// # Panics
    ///
    /// If `to` does not have as many rows.
    pub fn widen(self, to: &mut [f32], inputs: usize) {
        assert!(inputs > 0 && to.len().is_multiple_of(inputs), "rows of {inputs} numbers");
        self.check(inputs, to.len() / inputs);
        #[cfg(target_arch = "x86_64")]
        match Arch::new() {
            Arch::V4(simd) => return self.widen_with(simd, to, inputs),
            Arch::V3(simd) => return self.widen_with(simd, to, inputs),
            _ => {}
        }
        self.widen_rest(to, inputs, 0);
    }

    /// Sets `dst`, `[rows of x, rows]`, to the products of all rows of `x` with these rows. Every product is summed as
    /// [`dots`] does it, so the bits are those of products with the widened rows. This is fastest for few rows of `x`,
    /// because the numbers are widened again for every one to three rows of `x`.
    ///
    /// # Panics
    ///
    /// If the lengths do not fit each other.
    pub fn dots(self, dst: &mut [f32], x: &[f32], inputs: usize) {
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "rows of {inputs} numbers");
        if x.is_empty() && dst.is_empty() {
            return;
        }
        let rows = dst.len() / (x.len() / inputs).max(1);
        assert_eq!(dst.len(), x.len() / inputs * rows, "a product with {rows} rows");
        self.check(inputs, rows);
        #[cfg(target_arch = "x86_64")]
        if inputs.is_multiple_of(BLOCK) {
            match Arch::new() {
                Arch::V4(simd) => return self.dots_with(simd, dst, x, inputs),
                Arch::V3(simd) => return self.dots_with(simd, dst, x, inputs),
                _ => {}
            }
        }
        let mut wide = vec![0.0; rows * inputs];
        self.widen(&mut wide, inputs);
        dots(dst, x, &wide, inputs);
    }

    fn check(self, inputs: usize, rows: usize) {
        let fits = match self {
            Self::Bf16(numbers) => numbers.len() == rows * inputs,
            Self::Int8 { values, scales } => {
                values.len() == rows * inputs && scales.len() == rows * inputs.div_ceil(BLOCK)
            }
        };
        assert!(fits, "{rows} rows of {inputs} numbers");
    }

    /// The numbers of every row from `start` on, one by one.
    #[inline(always)]
    fn widen_rest(self, to: &mut [f32], inputs: usize, start: usize) {
        for (row, to) in to.chunks_exact_mut(inputs).enumerate() {
            let to = &mut to[start..];
            match self {
                Self::Bf16(numbers) => {
                    for (to, from) in to.iter_mut().zip(&numbers[row * inputs + start..]) {
                        *to = f32::from_bits(u32::from(*from) << 16);
                    }
                }
                Self::Int8 { values, scales } => {
                    let scales = &scales[row * inputs.div_ceil(BLOCK)..];
                    for (i, (to, from)) in (start..).zip(to.iter_mut().zip(&values[row * inputs + start..])) {
                        *to = scales[i / BLOCK] * f32::from(*from);
                    }
                }
            }
        }
    }
}

/// Instruction sets with vectors of at most [`BLOCK`] numbers that can be made of fewer bits.
#[cfg(target_arch = "x86_64")]
trait Widen: Simd {
    /// A vector of upper halves.
    ///
    /// # Safety
    ///
    /// A vector of numbers must be valid for reading.
    unsafe fn bf16(self, from: *const u16) -> Self::f32s;

    /// A vector of integers, times `scale`.
    ///
    /// # Safety
    ///
    /// A vector of numbers must be valid for reading.
    unsafe fn int8(self, from: *const i8, scale: f32) -> Self::f32s;

    /// Runs a function that is inlined here, compiled for these instructions.
    fn compiled(self, f: impl FnOnce());
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use pulp::MemMask;
    use pulp::x86::{V3, V4};

    use super::{BLOCK, NarrowRows, Widen};
    use crate::dots::{Dots, Vectors};
    use crate::simd::prefetch_once;

    impl Widen for V4 {
        #[inline(always)]
        fn compiled(self, f: impl FnOnce()) {
            self.vectorize(f);
        }

        #[inline(always)]
        unsafe fn bf16(self, from: *const u16) -> Self::f32s {
            // SAFETY: the caller vouches for 16 numbers.
            let halves: [u16; 16] = unsafe { from.cast::<[u16; 16]>().read() };
            let wide = self.avx512f._mm512_cvtepu16_epi32(pulp::cast(halves));
            pulp::cast(self.avx512f._mm512_slli_epi32::<16>(wide))
        }

        #[inline(always)]
        unsafe fn int8(self, from: *const i8, scale: f32) -> Self::f32s {
            // SAFETY: the caller vouches for 16 numbers.
            let integers: [i8; 16] = unsafe { from.cast::<[i8; 16]>().read() };
            let wide = self.avx512f._mm512_cvtepi32_ps(self.avx512f._mm512_cvtepi8_epi32(pulp::cast(integers)));
            pulp::cast(self.avx512f._mm512_mul_ps(self.avx512f._mm512_set1_ps(scale), wide))
        }
    }

    impl Widen for V3 {
        #[inline(always)]
        fn compiled(self, f: impl FnOnce()) {
            self.vectorize(f);
        }

        #[inline(always)]
        unsafe fn bf16(self, from: *const u16) -> Self::f32s {
            // SAFETY: the caller vouches for 8 numbers.
            let halves: [u16; 8] = unsafe { from.cast::<[u16; 8]>().read() };
            let wide = self.avx2._mm256_cvtepu16_epi32(pulp::cast(halves));
            pulp::cast(self.avx2._mm256_slli_epi32::<16>(wide))
        }

        #[inline(always)]
        unsafe fn int8(self, from: *const i8, scale: f32) -> Self::f32s {
            // SAFETY: the caller vouches for 8 numbers.
            let integers = unsafe { from.cast::<i64>().read_unaligned() };
            let wide = self.avx2._mm256_cvtepi8_epi32(pulp::cast([integers, 0]));
            let wide = self.avx._mm256_cvtepi32_ps(wide);
            pulp::cast(self.avx._mm256_mul_ps(self.avx._mm256_set1_ps(scale), wide))
        }
    }

    impl NarrowRows<'_> {
        pub(super) fn widen_with<S: Widen>(self, simd: S, to: &mut [f32], inputs: usize) {
            simd.compiled(
                #[inline(always)]
                || {
                    let whole = inputs - inputs % BLOCK;
                    for (row, to) in to.chunks_exact_mut(inputs).enumerate() {
                        for start in (0..whole).step_by(S::F32_LANES) {
                            // SAFETY: `NarrowRows::check` has compared the lengths, and whole vectors of a row are inside
                            // of it.
                            unsafe {
                                let vector = self.vector(simd, row, start, inputs);
                                to.as_mut_ptr().add(start).cast::<S::f32s>().write_unaligned(vector);
                            }
                        }
                    }
                    self.widen_rest(to, inputs, whole);
                },
            );
        }

        /// [`NarrowRows::dots`] for rows of whole blocks.
        pub(super) fn dots_with<S: Widen>(self, simd: S, dst: &mut [f32], x: &[f32], inputs: usize) {
            simd.compiled(
                #[inline(always)]
                // SAFETY: `NarrowRows::dots` has compared the lengths.
                || unsafe {
                    match self {
                        Self::Bf16(rows) => Dots::new(dst, x, Bf16 { rows, inputs }, inputs).run(simd),
                        Self::Int8 { values, scales } => {
                            Dots::new(dst, x, Int8 { values, scales, inputs }, inputs).run(simd);
                        }
                    }
                },
            );
        }

        /// The vector of a row that begins at `start`.
        ///
        /// SAFETY: it must be inside of the row, and within a block.
        #[inline(always)]
        unsafe fn vector<S: Widen>(self, simd: S, row: usize, start: usize, inputs: usize) -> S::f32s {
            // SAFETY: the caller vouches for the vector.
            unsafe {
                match self {
                    Self::Bf16(rows) => Bf16 { rows, inputs }.vector(simd, row, start),
                    Self::Int8 { values, scales } => Int8 { values, scales, inputs }.vector(simd, row, start),
                }
            }
        }
    }

    #[derive(Clone, Copy)]
    struct Bf16<'a> {
        rows: &'a [u16],
        inputs: usize,
    }

    impl<S: Widen> Vectors<f32, S> for Bf16<'_> {
        #[inline(always)]
        unsafe fn vector(&self, simd: S, row: usize, start: usize) -> S::f32s {
            // SAFETY: the caller vouches for the vector.
            unsafe { simd.bf16(self.rows.as_ptr().add(row * self.inputs + start)) }
        }

        #[inline(always)]
        unsafe fn masked(&self, _: S, _: usize, _: usize, _: MemMask<S::m32s>) -> S::f32s {
            unreachable!("rows are whole blocks")
        }

        #[inline(always)]
        fn prefetch(&self, row: usize, start: usize) {
            prefetch_once(self.rows, row * self.inputs, start);
        }
    }

    #[derive(Clone, Copy)]
    struct Int8<'a> {
        values: &'a [i8],
        scales: &'a [f32],
        inputs: usize,
    }

    impl<S: Widen> Vectors<f32, S> for Int8<'_> {
        #[inline(always)]
        unsafe fn vector(&self, simd: S, row: usize, start: usize) -> S::f32s {
            // SAFETY: the caller vouches for the vector, and each block has a scale.
            unsafe {
                let scale = *self.scales.get_unchecked(row * self.inputs.div_ceil(BLOCK) + start / BLOCK);
                simd.int8(self.values.as_ptr().add(row * self.inputs + start), scale)
            }
        }

        #[inline(always)]
        unsafe fn masked(&self, _: S, _: usize, _: usize, _: MemMask<S::m32s>) -> S::f32s {
            unreachable!("rows are whole blocks")
        }

        #[inline(always)]
        fn prefetch(&self, row: usize, start: usize) {
            prefetch_once(self.values, row * self.inputs, start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of all integers and of numbers of every size, with a part of a block at the end.
    fn example<'a>(inputs: usize, integers: &'a mut Vec<i8>, halves: &'a mut Vec<u16>) -> [NarrowRows<'a>; 2] {
        const SCALES: &[f32] =
            &[0.37, -1.0, 2e-3, 1e9, 0.0, 7.0, 1.5, 3.0, -0.1, 12.0, 0.5, 9.0, 1.0, 2.0, 8.0, 4.0];
        *integers = (0..4 * inputs).map(|i| (i * 91 + 7) as i8).collect();
        *halves = (0..4 * inputs).map(|i| ((i as f32 * 0.7).sin().to_bits() >> 16) as u16).collect();
        let scales = &SCALES[..4 * inputs.div_ceil(BLOCK)];
        [NarrowRows::Bf16(halves), NarrowRows::Int8 { values: integers, scales }]
    }

    /// Every instruction set that the machine has gives the same bits.
    #[test]
    fn rows_are_widened() {
        for inputs in [1, 31, 96, 100] {
            let (mut integers, mut halves) = (Vec::new(), Vec::new());
            for rows in example(inputs, &mut integers, &mut halves) {
                let run = |f: &dyn Fn(&mut [f32])| {
                    let mut to = vec![f32::NAN; 4 * inputs];
                    f(&mut to);
                    to
                };
                let expected = run(&|to| rows.widen_rest(to, inputs, 0));
                match rows {
                    NarrowRows::Bf16(halves) => assert_eq!(expected[0].to_bits() >> 16, u32::from(halves[0])),
                    NarrowRows::Int8 { values, scales } => {
                        let (last, blocks) = (4 * inputs - 1, 4 * inputs.div_ceil(BLOCK));
                        assert_eq!(expected[last], scales[blocks - 1] * f32::from(values[last]));
                    }
                }
                assert_eq!(run(&|to| rows.widen(to, inputs)), expected);
                #[cfg(target_arch = "x86_64")]
                {
                    if let Some(simd) = pulp::x86::V3::try_new() {
                        assert_eq!(run(&|to| rows.widen_with(simd, to, inputs)), expected);
                    }
                    if let Some(simd) = pulp::x86::V4::try_new() {
                        assert_eq!(run(&|to| rows.widen_with(simd, to, inputs)), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn products_have_the_bits_of_products_with_widened_rows() {
        for inputs in [1, 31, 96, 100] {
            let (mut integers, mut halves) = (Vec::new(), Vec::new());
            for rows in example(inputs, &mut integers, &mut halves) {
                let mut wide = vec![f32::NAN; 4 * inputs];
                rows.widen(&mut wide, inputs);
                for count in [0, 1, 2, 5] {
                    let x: Vec<f32> = (0..count * inputs).map(|i| (i as f32 * 0.3).cos()).collect();
                    let (mut found, mut expected) = (vec![f32::NAN; 4 * count], vec![f32::NAN; 4 * count]);
                    rows.dots(&mut found, &x, inputs);
                    dots(&mut expected, &x, &wide, inputs);
                    assert_eq!(found, expected, "{count} rows of {inputs} numbers");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "2 rows of 3 numbers")]
    fn lengths_are_compared() {
        NarrowRows::Bf16(&[0; 5]).widen(&mut [0.0; 6], 3);
    }

    #[test]
    #[should_panic(expected = "rows of 3 numbers")]
    fn a_part_of_a_row_is_refused() {
        NarrowRows::Bf16(&[0; 3]).widen(&mut [0.0; 5], 3);
    }
}
