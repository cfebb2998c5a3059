//! Random numbers that follow from a seed and a step alone, so that a resumed run draws what an uninterrupted run
//! draws.
//!
//! The generator is ChaCha with 12 rounds, by name: its output is the same on every platform and in every release.

use rand::SeedableRng;
use rand::rngs::ChaCha12Rng;

/// The point of a run at which a batch is drawn. All randomness of the batch follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The seed of the run.
    pub seed: u64,
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
}

impl Moment {
    /// A generator that depends on the seed and the step alone.
    pub fn rng(&self) -> ChaCha12Rng {
        rng(self.seed, self.step.into())
    }

    /// The fraction of the run that is done.
    pub fn progress(&self) -> f64 {
        self.step as f64 / self.steps as f64
    }
}

/// The generator of one of the independent streams of a seed.
pub(crate) fn rng(seed: u64, stream: u128) -> ChaCha12Rng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..24].copy_from_slice(&stream.to_le_bytes());
    ChaCha12Rng::from_seed(bytes)
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    /// Recorded runs can only be repeated as long as this number stays the same. It is also the number that the tests
    /// of `rand` 0.10 expect of `StdRng`, the generator of earlier versions of this crate.
    #[test]
    fn the_generator_has_not_changed() {
        let mut rng = rng(1 | 23 << 32, 456 | 7890 << 32);
        assert_eq!(rng.next_u64(), 10_719_222_850_664_546_238);
    }
}
