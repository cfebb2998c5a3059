//! Random numbers by the generator SplitMix64.

/// A small seeded generator that gives the same numbers on every machine.
pub struct Random(u64);

impl Random {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A uniform number from `low` to `high`, rounded to `f32`, so that the ends may occur.
    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        f64::from((low + (high - low) * unit) as f32)
    }

    /// A nearly normal number of mean 0 and variance 1: a sum of twelve uniform numbers.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform(0.0, 1.0)).sum::<f64>() - 6.0
    }

    /// `len` uniform numbers from `low` to `high`, exact in `f32`.
    pub fn uniforms(&mut self, len: usize, low: f64, high: f64) -> Vec<f64> {
        (0..len).map(|_| self.uniform(low, high)).collect()
    }

    /// `len` nearly normal numbers times `scale`, exact in `f32`.
    pub fn normals(&mut self, len: usize, scale: f64) -> Vec<f64> {
        (0..len).map(|_| f64::from((self.normal() * scale) as f32)).collect()
    }

    /// A whole number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
