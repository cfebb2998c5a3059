//! How the next token is chosen from the logits.

use std::num::NonZeroUsize;

use rand::RngExt;
use thiserror::Error;

use crate::random::rng;

/// Options of sampling, which are applied in this order: repetition penalty, top-k, temperature, top-p.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by the temperature. At 0 the most likely token is always taken.
    pub temperature: f64,
    /// Draw only from this many of the most likely tokens; `None` allows all of them.
    pub top_k: Option<NonZeroUsize>,
    /// Draw only from the nucleus: the fewest of the most likely tokens whose probabilities together reach this. 1
    /// allows all tokens.
    pub top_p: f64,
    /// Makes tokens that already occurred in the sequence less likely: their positive logits are divided by it, their
    /// negative ones multiplied. 1 changes nothing.
    pub repetition_penalty: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: None, top_p: 0.95, repetition_penalty: 1.0, seed: 0 }
    }
}

/// An option of [`Sampling`] is out of range.
#[derive(Debug, Error, PartialEq)]
#[error("{name} must be {range}, got {got}")]
pub struct SamplingError {
    /// The option.
    pub name: &'static str,
    /// The values that are allowed, in words.
    pub range: &'static str,
    /// The value given.
    pub got: f64,
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    logit: f64,
    token: u32,
}

impl Candidate {
    /// Orders candidates from the most likely to the least likely; equal ones by token, so that the order is unique.
    fn by_likelihood(&self, other: &Self) -> std::cmp::Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

impl Sampling {
    /// Checks that every option is in its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let Self { temperature, top_p, repetition_penalty, .. } = *self;
        let check = |name, good, range, got| if good { Ok(()) } else { Err(SamplingError { name, range, got }) };
        check("temperature", (0.0..=100.0).contains(&temperature), "from 0 to 100", temperature)?;
        check("top-p", top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1", top_p)?;
        let good = (0.01..=100.0).contains(&repetition_penalty);
        check("repetition-penalty", good, "from 0.01 to 100", repetition_penalty)
    }

    /// Draws the next token of a sequence. `seen` marks the tokens that have occurred in it. A draw depends only on the
    /// seed, the sequence's number and the position, so that a sequence resumed from a saved state gets the same
    /// tokens as an uninterrupted one.
    pub(super) fn choose(&self, logits: &[f32], seen: &[bool], sequence: usize, position: usize) -> u32 {
        let mut candidates: Vec<Candidate> = (0..)
            .zip(logits.iter().zip(seen))
            .map(|(token, (logit, seen))| self.candidate(token, *logit, *seen))
            .collect();
        if self.temperature == 0.0 {
            return most_likely(&candidates).token;
        }
        if let Some(top_k) = self.top_k.map(NonZeroUsize::get).filter(|top_k| *top_k < candidates.len()) {
            candidates.select_nth_unstable_by(top_k - 1, Candidate::by_likelihood);
            candidates.truncate(top_k);
        }
        let highest = most_likely(&candidates).logit;
        let weight = |candidate: &Candidate| ((candidate.logit - highest) / self.temperature).exp();
        let weights = self
            .nucleus_by_selection(&mut candidates, weight)
            .unwrap_or_else(|| self.nucleus_by_sorting(&mut candidates, weight));
        let mut draw = rng(self.seed, (sequence as u128) << 48 | position as u128).random::<f64>()
            * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            draw -= weight;
            draw < 0.0
        });
        candidates[chosen.unwrap_or(weights.len() - 1)].token
    }

    fn candidate(&self, token: u32, logit: f32, seen: bool) -> Candidate {
        let (logit, penalty) = (f64::from(logit), self.repetition_penalty);
        let logit = match seen && penalty != 1.0 {
            true if logit > 0.0 => logit / penalty,
            true => logit * penalty,
            false => logit,
        };
        Candidate { logit, token }
    }

    /// The definition of the nucleus: sorts all candidates by likelihood, so that the nucleus comes first, and returns
    /// the weights of the nucleus.
    fn nucleus_by_sorting(&self, candidates: &mut [Candidate], weight: impl Fn(&Candidate) -> f64) -> Vec<f64> {
        candidates.sort_unstable_by(Candidate::by_likelihood);
        let mut weights: Vec<f64> = candidates.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let last = weights.iter().position(|weight| {
            sum += weight / total;
            sum >= self.top_p
        });
        weights.truncate(last.map_or(weights.len(), |last| last + 1));
        weights
    }

    /// The same as [`Sampling::nucleus_by_sorting`] to the last bit, but sorts only as many of the most likely
    /// candidates as the nucleus has, block by block. `None` if the sums are too close to `top_p` to be sure: here
    /// the weights of all candidates are summed in another order, which rounds differently.
    fn nucleus_by_selection(
        &self,
        candidates: &mut [Candidate],
        weight: impl Fn(&Candidate) -> f64,
    ) -> Option<Vec<f64>> {
        // A sum of n numbers that are not negative is off by a relative error of at most n ε/2, whatever its order.
        let margin = 8.0 * candidates.len() as f64 * f64::EPSILON;
        if candidates.len() <= FIRST_BLOCK || self.top_p >= 1.0 - margin {
            return None;
        }
        let total: f64 = candidates.iter().map(&weight).sum();
        let (mut weights, mut sum, mut block) = (Vec::new(), 0.0, FIRST_BLOCK);
        while weights.len() < candidates.len() {
            let mut rest = &mut candidates[weights.len()..];
            if block < rest.len() {
                (rest, ..) = rest.select_nth_unstable_by(block, Candidate::by_likelihood);
            }
            rest.sort_unstable_by(Candidate::by_likelihood);
            for weight in rest.iter().map(&weight) {
                weights.push(weight);
                sum += weight / total;
                match sum - self.top_p {
                    above if above > margin => return Some(weights),
                    below if below < -margin => {}
                    // Too close, or NaN because a logit is not finite.
                    _ => return None,
                }
            }
            block *= GROWTH;
        }
        None
    }
}

fn most_likely(candidates: &[Candidate]) -> Candidate {
    candidates.iter().copied().min_by(Candidate::by_likelihood).expect("a vocabulary is not empty")
}

/// Candidates that are sorted first; a trained model's nucleus seldom has more.
const FIRST_BLOCK: usize = 64;
/// Each block of candidates is this many times as large as the one before, so that a large nucleus takes few passes.
const GROWTH: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// The plain definition of sampling: everything is sorted.
    fn plain(sampling: &Sampling, logits: &[f32], position: usize) -> u32 {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |token: u32| f64::from(logits[token as usize]);
        order.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)));
        if sampling.temperature == 0.0 {
            return order[0];
        }
        order.truncate(sampling.top_k.map_or(order.len(), NonZeroUsize::get));
        let weight = |token: &u32| ((logit(*token) - logit(order[0])) / sampling.temperature).exp();
        let total: f64 = order.iter().map(weight).sum();
        let (mut sum, mut kept) = (0.0, Vec::new());
        for token in &order {
            kept.push((*token, weight(token)));
            sum += weight(token) / total;
            if sum >= sampling.top_p {
                break;
            }
        }
        let uniform = rng(sampling.seed, position as u128).random::<f64>();
        let mut draw = uniform * kept.iter().map(|(_, weight)| weight).sum::<f64>();
        for (token, weight) in &kept {
            draw -= weight;
            if draw < 0.0 {
                return *token;
            }
        }
        kept[kept.len() - 1].0
    }

    #[test]
    fn partial_selection_draws_what_a_full_sort_draws() {
        let mut random = rng(1, 2);
        for size in [1, 2, 63, 64, 65, 700, 5000] {
            for step in [0.0, 0.5, 3.0] {
                // Multiples of `step` have many ties; logits that are all equal put the sums right onto top-p.
                let mut logits: Vec<f32> = (0..size).map(|_| random.random_range(-6.0..6.0)).collect();
                logits.iter_mut().filter(|_| step > 0.0).for_each(|logit| *logit = (*logit / step).round() * step);
                let equal = vec![1.0; size];
                let mut broken = logits.clone();
                broken[size / 2] = f32::NAN;
                for logits in [&logits, &equal, &broken] {
                    for top_k in [None, NonZeroUsize::new(1), NonZeroUsize::new(40), NonZeroUsize::new(400)] {
                        for top_p in [0.01, 0.5, 0.9, 0.95, 1.0 - 1e-15, 1.0] {
                            for temperature in [0.0, 0.3, 1.0, 8.0] {
                                let sampling =
                                    Sampling { temperature, top_k, top_p, seed: 7, ..Sampling::default() };
                                for position in 0..3 {
                                    let got = sampling.choose(logits, &vec![false; size], 0, position);
                                    assert_eq!(
                                        got,
                                        plain(&sampling, logits, position),
                                        "{size} {step} {sampling:?}"
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_options() {
        let logits = [1.0, 3.0, 2.0, -1.0, 2.5];
        let unseen = [false; 5];
        let drawn = |sampling: &Sampling| -> Vec<usize> {
            let mut counts = vec![0; 5];
            (0..4000).for_each(|position| counts[sampling.choose(&logits, &unseen, 0, position) as usize] += 1);
            counts
        };
        let all = Sampling { temperature: 1.0, top_p: 1.0, ..Sampling::default() };
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        for (count, logit) in drawn(&all).into_iter().zip(logits) {
            let expected = 4000.0 * f64::from(logit).exp() / total;
            assert!((count as f64 - expected).abs() < 4.0 * expected.sqrt(), "{count} for {expected}");
        }
        let two = drawn(&Sampling { top_k: NonZeroUsize::new(2), ..all.clone() });
        assert!(two[1] > 0 && two[4] > 0 && two[0] + two[2] + two[3] == 0, "{two:?}");
        // e³ alone is 0.47 of the whole, e³ + e^2.5 0.76.
        let nucleus = drawn(&Sampling { top_p: 0.6, ..all.clone() });
        assert!(nucleus[1] > 0 && nucleus[4] > 0 && nucleus[0] + nucleus[2] + nucleus[3] == 0, "{nucleus:?}");
        assert_eq!(drawn(&Sampling { top_p: 0.1, ..all.clone() })[1], 4000);
        assert_eq!(drawn(&Sampling { temperature: 0.0, ..all.clone() })[1], 4000);
        let mut seen = unseen;
        (seen[1], seen[4]) = (true, true);
        let greedy = Sampling { temperature: 0.0, repetition_penalty: 2.0, ..all.clone() };
        assert_eq!(greedy.choose(&logits, &seen, 0, 0), 2, "tokens that have occurred are less likely");
        assert_ne!(drawn(&all), drawn(&Sampling { seed: 1, ..all.clone() }));
        assert_eq!(drawn(&all), drawn(&all));
        for bad in [
            Sampling { temperature: -1.0, ..all.clone() },
            Sampling { top_p: 0.0, ..all.clone() },
            Sampling { repetition_penalty: f64::NAN, ..all },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }

    /// No two sequences have the same draws, however many sequences there are, and the draws of a sequence are those of
    /// earlier versions.
    #[test]
    fn every_sequence_has_draws_of_its_own() {
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed: 5, ..Sampling::default() };
        let drawn = |sequence: usize| -> Vec<u32> {
            (0..20).map(|position| sampling.choose(&[0.0; 1000], &[false; 1000], sequence, position)).collect()
        };
        assert_eq!(drawn(3)[..5], [756, 566, 178, 290, 601]);
        let all = [0, 1, 65_535, 65_536, 65_537, 1 << 32].map(drawn);
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one), "{index}: {one:?}");
        }
    }
}
