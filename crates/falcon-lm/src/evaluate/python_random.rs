//! The parts of Python's `random.Random` with which lm-evaluation-harness draws its examples: the same seed draws the
//! same examples here.

use std::collections::HashSet;

use rand_mt::Mt;

/// Python's generator, the 32-bit Mersenne Twister.
pub(super) struct PythonRandom(Mt);

impl PythonRandom {
    /// `random.Random(seed)`. Python seeds the twister with the 32-bit digits of an integer; a small one has a single
    /// digit.
    pub fn new(seed: u32) -> Self {
        Self(Mt::new_with_key([seed]))
    }

    /// A number below `bound`: as many bits as `bound` has, drawn again until the number is below it. A bound of 1
    /// consumes bits too, until one is 0.
    fn below(&mut self, bound: usize) -> usize {
        let bound = u32::try_from(bound).expect("fewer than 2^32 examples");
        loop {
            // The upper bits of a 32-bit number.
            let drawn = self.0.next_u32() >> bound.leading_zeros();
            if drawn < bound {
                return drawn as usize;
            }
        }
    }

    /// `sample(range(population), count)`: distinct numbers in the order in which they are drawn.
    ///
    /// Python draws from a list of the numbers left if that list takes less memory than a set of the numbers drawn;
    /// otherwise it draws from all numbers until it finds one that is not in the set. The two consume the generator
    /// differently, so the estimate of their sizes affects the result.
    pub fn sample(&mut self, population: usize, count: usize) -> Vec<usize> {
        assert!(count <= population, "{count} of {population} cannot be drawn");
        if population <= set_size(count) {
            let mut left: Vec<usize> = (0..population).collect();
            // Python, too, moves the last number to the place of the one drawn.
            return (0..count).map(|_| left.swap_remove(self.below(left.len()))).collect();
        }
        let mut drawn = HashSet::new();
        let mut fresh = || loop {
            let place = self.below(population);
            if drawn.insert(place) {
                return place;
            }
        };
        (0..count).map(|_| fresh()).collect()
    }
}

/// Python's estimate of the size of a set of `count` numbers, in entries of a list: 21, and for more than five
/// numbers the hash table, whose size is the smallest power of 4 that is at least three times their number.
fn set_size(count: usize) -> usize {
    let table = std::iter::successors(Some(1), |size| Some(4 * size)).find(|size| *size >= 3 * count);
    21 + table.filter(|_| count > 5).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Python 3.11: `r = random.Random(1234); [r.getrandbits(32) for _ in range(4)]`.
    #[test]
    fn the_twister_is_seeded_as_python_does() {
        let mut random = PythonRandom::new(1234);
        let drawn = [(); 4].map(|()| random.0.next_u32());
        assert_eq!(drawn, [4_150_886_329, 3_342_196_574, 1_892_932_127, 501_869_158]);
    }

    /// Python 3.11: `r.sample(range(population), count)`, with one `r = random.Random(1234)` for each series.
    #[test]
    fn samples_equal_those_of_python() {
        let series: [&[(usize, &[usize])]; 4] = [
            &[(2, &[1]), (2, &[0]), (2, &[0, 1]), (1, &[0]), (3, &[2, 0])],
            // A list up to a population of 21, a set above; with six or more, up to 85.
            &[(21, &[14, 3, 0, 2, 1]), (21, &[2, 3, 11, 7, 0])],
            &[(22, &[14, 3, 0, 2, 18]), (22, &[1, 21, 2, 3, 11])],
            &[
                (10042, &[7220]),
                (39905, &[7657, 490]),
                (5153, &[742]),
                (39905, &[38156, 2288, 5500, 6450, 23241, 15519]),
            ],
        ];
        for samples in series {
            let mut random = PythonRandom::new(1234);
            for (population, expected) in samples {
                assert_eq!(random.sample(*population, expected.len()), *expected, "of {population}");
            }
        }
        let mut random = PythonRandom::new(1234);
        let expected: [(usize, &[usize]); 4] = [
            (5, &[3, 0, 4, 2, 1]),
            (85, &[10, 12, 45, 30, 2, 3]),
            (85, &[2, 44, 82, 79, 61, 78]),
            (86, &[59, 19, 11, 23, 14, 1]),
        ];
        for (population, expected) in expected {
            assert_eq!(random.sample(population, expected.len()), expected, "of {population}");
        }
    }

    /// The same for large samples: the first two numbers, the last two and the sum, and then the next output of the
    /// generator.
    #[test]
    fn large_samples_equal_those_of_python() {
        let mut random = PythonRandom::new(1234);
        let expected = [
            (277, 22, [225, 59, 249, 127], 2578),
            (278, 22, [33, 277, 2, 170], 3010),
            (20_000, 6000, [4711, 15_493, 18_327, 778], 60_243_757),
            (1_000_000, 2000, [382_564, 960_015, 628_599, 514_902], 1_011_523_301),
        ];
        for (population, count, ends, sum) in expected {
            let got = random.sample(population, count);
            let got_ends = [got[0], got[1], got[count - 2], got[count - 1]];
            assert_eq!((got_ends, got.iter().sum::<usize>()), (ends, sum), "{count} of {population}");
        }
        assert_eq!(random.0.next_u32(), 3_875_208_781);
    }
}
