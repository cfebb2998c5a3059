//! Sums of two numbers, the paper's controlled test.
//!
//! ```text
//! prompt  BEGIN a + b =          both operands with n digits, the lowest first
//! target  the sum                n + 1 digits, the lowest first
//! ```
//!
//! That is the default. By [`Order`] only the sum is reversed; by [`Operands`] the two have lengths of their own;
//! and without [leading zeros](AdditionConfig::leading_zeros) the sum has as many digits as it needs and ends with
//! a token.
//!
//! A model reads the prompt and the target but for its last token; what it says after `=` and after every digit of
//! the target is what counts. Widths of training are 1 to [`AdditionConfig::max_width`], widths beyond are only
//! measured.
//!
//! A sample belongs to training, validation or test by a hash of its prompt ([`Sum::part`]), so that no two of
//! them share one.

mod sum;
mod tokenizer;

use std::collections::BTreeMap;

use rand::RngExt;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use self::sum::VOCABULARY;
pub(crate) use self::sum::{END, Part, Sum, one_digit_tests};
use super::{Batch, Moment, Split, Task, TaskError, VALIDATION, check, rng};
use crate::data::Tokenizer;
use crate::train::{Schedule, Scores, TrainConfig};

/// Options of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdditionConfig {
    /// Digits of an operand in training: from 1 to this.
    pub max_width: usize,
    /// Digits of an operand in measurements beyond: to this.
    pub beyond: usize,
    /// In which order digits are written.
    pub order: Order,
    /// How many digits the two operands have.
    pub operands: Operands,
    /// Whether operands may begin with zeros, and the sum has one digit more than the longer of them. If not, the
    /// highest digit of a number is not zero unless it is the only one, and the end of the sum is asked for too.
    pub leading_zeros: bool,
    /// How widths are drawn.
    pub widths: Widths,
    /// How digits of operands are drawn.
    pub mixture: Mixture,
    /// With [`Mixture::Sparse`]: the part of the samples that have a sparse operand at first.
    pub sparse: f64,
    /// With [`Mixture::Sparse`]: the part of training after which none has. Above 1, some are left at the end.
    pub sparse_until: f64,
    /// Samples of each width in a measurement.
    pub eval_samples: usize,
}

/// In which order digits are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Operands and sum with the lowest digit first, as in the authors' data.
    AllReversed,
    /// Operands with the highest digit first, the sum with the lowest: the paper's formula.
    SumReversed,
}

/// How many digits the two operands have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operands {
    /// The same number.
    Equal,
    /// Each its own: both lengths are uniform in training. In a measurement of a width one operand, by a coin, has
    /// that many digits, and the length of the other is uniform up to it.
    Independent,
}

/// How widths are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Widths {
    /// All alike.
    Uniform,
    /// All alike up to a width that grows as training accuracy allows.
    Adaptive,
}

/// How digits of operands are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixture {
    /// All digits alike.
    Uniform,
    /// Some samples have an operand most of whose digits are 0, ever fewer until none. What one operand's digit
    /// does to the sum is invisible while the other is uniform; here it shows.
    Sparse,
}

impl Default for AdditionConfig {
    fn default() -> Self {
        Self {
            max_width: 8,
            beyond: 12,
            order: Order::AllReversed,
            operands: Operands::Equal,
            leading_zeros: true,
            widths: Widths::Uniform,
            mixture: Mixture::Sparse,
            sparse: 0.8,
            sparse_until: 1.0,
            eval_samples: 64,
        }
    }
}

/// How to train on sums, unless told otherwise.
pub(super) fn recipe() -> TrainConfig {
    let base = TrainConfig::default();
    TrainConfig { batch: 128, schedule: Schedule { lr: 5e-4, warmup: 100, steps: 1000, ..base.schedule }, ..base }
}

impl AdditionConfig {
    /// Everything that can be wrong.
    pub fn validate(&self) -> Result<(), TaskError> {
        let most = 1 << 12;
        check("max_width", (1..=most).contains(&self.max_width), "from 1 to 4096", self.max_width)?;
        let range = format!("from max_width = {} to 4096", self.max_width);
        check("beyond", (self.max_width..=most).contains(&self.beyond), &range, self.beyond)?;
        check("sparse", (0.0..=1.0).contains(&self.sparse), "between 0 and 1", self.sparse)?;
        let until = self.sparse_until;
        check("sparse_until", (0.0..=1e9).contains(&until), "0 or more, 1 for the whole run", until)?;
        check("eval_samples", (1..=1 << 16).contains(&self.eval_samples), "from 1 to 65536", self.eval_samples)
    }

    /// Tokens of a sum whose operands have `width` digits: a begin token, both operands, `+`, `=`, and the sum but for
    /// its last digit.
    const fn tokens_of(width: usize) -> usize {
        3 * width + 3
    }

    /// Tokens of a sequence of training, on average.
    pub(super) fn tokens_per_sequence(&self) -> usize {
        Self::tokens_of(self.max_width.div_ceil(2))
    }

    /// Tokens of the held-out data of every measurement, at most.
    pub(super) fn held_out_tokens(&self) -> usize {
        (1..=self.beyond).map(|width| self.eval_samples * Self::tokens_of(width)).sum()
    }

    /// `count` samples of one width that are held out, the same for every run.
    pub(crate) fn held_out(&self, part: Part, width: usize, count: usize) -> Batch {
        // A stream of their own.
        let mut rng = rng(part as u64, (u64::MAX - width as u64).into());
        Batch::new((0..count).map(|_| {
            let other = match self.operands {
                Operands::Equal => width,
                Operands::Independent => rng.random_range(1..=width),
            };
            self.written(&self.draw(part, [width, other], false, &mut rng))
        }))
    }

    /// What is read of a sum, and what is asked.
    fn written(&self, sum: &Sum) -> (Vec<i32>, Vec<i64>) {
        sum.tokens_and_targets(self.order, self.leading_zeros)
    }

    /// A sum that belongs to `part`, of operands of these lengths in either order; the first may be sparse.
    fn draw(&self, part: Part, lengths: [usize; 2], sparse: bool, rng: &mut StdRng) -> Sum {
        let operand = |length: usize, zeros: f64, rng: &mut StdRng| -> Vec<u8> {
            let digit = |place: usize| {
                if place == 0 && length > 1 && !self.leading_zeros {
                    rng.random_range(1..10)
                } else if zeros > 0.0 && rng.random_bool(zeros) {
                    0
                } else {
                    rng.random_range(0..10)
                }
            };
            (0..length).map(digit).collect()
        };
        loop {
            let zeros = if sparse { rng.random_range(0.5..=1.0) } else { 0.0 };
            let (mut a, mut b) = (operand(lengths[0], zeros, rng), operand(lengths[1], 0.0, rng));
            if rng.random_bool(0.5) {
                std::mem::swap(&mut a, &mut b);
            }
            let sum = Sum { a, b };
            if sum.part() == part {
                return sum;
            }
        }
    }
}

/// The task, and how far it has come.
#[derive(Clone, Debug)]
pub(crate) struct Addition {
    config: AdditionConfig,
    tokenizer: Tokenizer,
    reach: Reach,
}

/// The largest number of digits drawn, and the recent accuracy that makes it grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Reach {
    width: usize,
    accuracy: f64,
}

/// Widths that adaptive training begins with.
const FIRST: usize = 2;
/// The recent accuracy at which a width is added.
const ENOUGH: f64 = 0.95;
/// The weight of the past in the recent accuracy.
const MEMORY: f64 = 0.8;

impl Addition {
    /// At its beginning.
    pub fn new(config: AdditionConfig) -> Self {
        let width = match config.widths {
            Widths::Uniform => config.max_width,
            Widths::Adaptive => FIRST.min(config.max_width),
        };
        Self { config, tokenizer: tokenizer::tokenizer(), reach: Reach { width, accuracy: 0.0 } }
    }

    /// The part of the samples that have a sparse operand now.
    fn sparse(&self, progress: f64) -> f64 {
        match self.config.mixture {
            Mixture::Uniform => 0.0,
            Mixture::Sparse if progress >= self.config.sparse_until => 0.0,
            Mixture::Sparse => self.config.sparse * (1.0 - progress / self.config.sparse_until),
        }
    }
}

impl Task for Addition {
    fn batch(&mut self, moment: Moment, count: usize) -> Batch {
        let (mut rng, sparse) = (moment.rng(), self.sparse(moment.progress()));
        Batch::new((0..count).map(|_| {
            let length = rng.random_range(1..=self.reach.width);
            let other = match self.config.operands {
                Operands::Equal => length,
                Operands::Independent => rng.random_range(1..=self.reach.width),
            };
            let sparse = rng.random_bool(sparse);
            self.config.written(&self.config.draw(Part::Train, [length, other], sparse, &mut rng))
        }))
    }

    fn splits(&self) -> Vec<Split> {
        let samples = self.config.eval_samples;
        let split = |name: &str, widths: std::ops::RangeInclusive<usize>| Split {
            name: name.into(),
            groups: widths
                .map(|n| (format!("width {n}"), self.config.held_out(Part::Validation, n, samples)))
                .collect(),
        };
        let AdditionConfig { max_width, beyond, .. } = self.config;
        let mut splits = vec![split(VALIDATION, 1..=max_width)];
        if beyond > max_width {
            splits.push(split("beyond", max_width + 1..=beyond));
        }
        splits
    }

    fn score(&self, validation: &Scores) -> f64 {
        validation.accuracy
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        Some(&self.tokenizer)
    }

    fn observe(&mut self, accuracy: f64) {
        if self.config.widths == Widths::Uniform {
            return;
        }
        self.reach.accuracy = MEMORY * self.reach.accuracy + (1.0 - MEMORY) * accuracy;
        if self.reach.accuracy > ENOUGH && self.reach.width < self.config.max_width {
            self.reach = Reach { width: self.reach.width + 1, accuracy: 0.0 };
        }
    }

    fn values(&self) -> BTreeMap<String, f64> {
        match self.config.widths {
            Widths::Uniform => BTreeMap::new(),
            Widths::Adaptive => BTreeMap::from([("width".into(), self.reach.width as f64)]),
        }
    }

    fn state(&self) -> Value {
        serde_json::to_value(&self.reach).expect("a reach is plain data")
    }

    fn restore(&mut self, state: Value) -> Result<(), TaskError> {
        let reach: Reach = serde_json::from_value(state).map_err(TaskError::State)?;
        let (width, most) = (reach.width, self.config.max_width);
        if !(1..=most).contains(&width) {
            let error = format!("a width of {width}, which must be from 1 to task.max_width = {most}");
            return Err(TaskError::State(serde::de::Error::custom(error)));
        }
        self.reach = reach;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use falcon_nn::IGNORED;

    use super::sum::{BEGIN, EQUALS, PLUS};
    use super::*;

    fn at(step: u64) -> Moment {
        Moment { seed: 7, step, steps: 100 }
    }

    /// All ways to write and draw sums.
    fn configs() -> Vec<AdditionConfig> {
        let mut configs = Vec::new();
        for order in [Order::AllReversed, Order::SumReversed] {
            for operands in [Operands::Equal, Operands::Independent] {
                for leading_zeros in [true, false] {
                    let base = AdditionConfig::default();
                    configs.push(AdditionConfig { max_width: 5, order, operands, leading_zeros, ..base });
                }
            }
        }
        configs
    }

    /// The sums of a batch, read from its tokens, each with what is asked.
    fn sums(config: &AdditionConfig, batch: &Batch) -> Vec<(Sum, Vec<i64>)> {
        let read = |window: &[usize]| {
            let (tokens, targets) = (&batch.tokens[window[0]..window[1]], &batch.targets[window[0]..window[1]]);
            assert_eq!(tokens[0], BEGIN);
            let place = |token| tokens.iter().position(|t| *t == token).unwrap();
            let (plus, equals) = (place(PLUS), place(EQUALS));
            let operand = |tokens: &[i32]| -> Vec<u8> {
                let digits = tokens.iter().map(|token| u8::try_from(*token).unwrap());
                match config.order {
                    Order::AllReversed => digits.rev().collect(),
                    Order::SumReversed => digits.collect(),
                }
            };
            let sum = Sum { a: operand(&tokens[1..plus]), b: operand(&tokens[plus + 1..equals]) };
            assert!(!tokens.contains(&END) && targets[..equals].iter().all(|target| *target == IGNORED));
            (sum, targets[equals..].to_vec())
        };
        batch.sequences.offsets().windows(2).map(read).collect()
    }

    #[test]
    fn what_is_asked_is_the_sum() {
        for config in configs() {
            let mut task = Addition::new(AdditionConfig { max_width: 18, ..config.clone() });
            for (sum, mut targets) in sums(&config, &task.batch(at(0), 200)) {
                let ended = targets.pop_if(|target| *target == i64::from(END)).is_some();
                assert_eq!(ended, !config.leading_zeros);
                let value = |digits: &[u8]| digits.iter().fold(0u64, |v, d| 10 * v + u64::from(*d));
                let target = targets.iter().rev().fold(0u64, |v, d| 10 * v + *d as u64);
                assert_eq!(value(&sum.a) + value(&sum.b), target, "{sum:?}");
                let longer = sum.a.len().max(sum.b.len());
                match config.leading_zeros {
                    true => assert_eq!(targets.len(), longer + 1),
                    // As many digits as the number has.
                    false => assert_eq!(targets.len(), target.to_string().len()),
                }
            }
        }
    }

    #[test]
    fn operands_have_the_lengths_that_are_asked_for() {
        for config in configs() {
            let lengths = |batch: &Batch| -> Vec<(usize, usize)> {
                sums(&config, batch).iter().map(|(sum, _)| (sum.a.len(), sum.b.len())).collect()
            };
            let learnt = lengths(&Addition::new(config.clone()).batch(at(0), 3000));
            let held = lengths(&config.held_out(Part::Test, 3, 600));
            let count = |of: &[(usize, usize)], pair| of.iter().filter(|lengths| **lengths == pair).count();
            match config.operands {
                Operands::Equal => {
                    assert!((1..=5).all(|n| count(&learnt, (n, n)).abs_diff(600) < 120), "{learnt:?}");
                    assert_eq!((count(&held, (3, 3)), learnt.iter().filter(|(a, b)| a != b).count()), (600, 0));
                }
                Operands::Independent => {
                    let pairs = (1..=5).flat_map(|a| (1..=5).map(move |b| (a, b)));
                    let counts: Vec<usize> = pairs.map(|pair| count(&learnt, pair)).collect();
                    // 3000 over 25 pairs, all alike.
                    assert!(counts.iter().all(|count| count.abs_diff(120) < 60), "{counts:?}");
                    // A third with both of 3 digits; of the others the coin makes two halves.
                    let counts = [(3, 3), (3, 1), (3, 2), (1, 3), (2, 3)].map(|pair| count(&held, pair));
                    assert_eq!(counts.iter().sum::<usize>(), 600, "one of the operands has 3 digits");
                    let wanted = [200, 100, 100, 100, 100];
                    assert!(counts.iter().zip(wanted).all(|(n, wanted)| n.abs_diff(wanted) < 50), "{counts:?}");
                }
            }
        }
    }

    #[test]
    fn the_highest_digit_is_zero_only_where_it_may_be() {
        for config in configs() {
            // Every sample is sparse.
            let config = AdditionConfig { sparse: 1.0, max_width: 3, ..config };
            let sums = sums(&config, &Addition::new(config.clone()).batch(at(0), 2000));
            let operands = || sums.iter().flat_map(|(sum, _)| [&sum.a, &sum.b]);
            let zeros = |place: usize, length: usize| {
                let of_length: Vec<_> = operands().filter(|operand| operand.len() == length).collect();
                of_length.iter().filter(|operand| operand[place] == 0).count() as f64 / of_length.len() as f64
            };
            // Half of the operands are sparse, with 3/4 of the digits set to zero; of the other digits a tenth is:
            // in all (0.75 + 0.25·0.1 + 0.1) / 2 = 0.4375.
            let as_drawn = |part: f64| (part - 0.4375).abs() < 0.05;
            assert!(as_drawn(zeros(1, 3)) && as_drawn(zeros(2, 3)) && as_drawn(zeros(1, 2)));
            // Of one digit fewer pairs are learnt than there are, so that the shares are rougher.
            assert!((zeros(0, 1) - 0.4375).abs() < 0.1, "an operand of one digit may be 0: {}", zeros(0, 1));
            for length in 2..=3 {
                let highest = zeros(0, length);
                assert!(if config.leading_zeros { as_drawn(highest) } else { highest == 0.0 }, "{highest}");
            }
        }
    }

    #[test]
    fn parts_share_no_sample() {
        for config in configs() {
            let config = AdditionConfig { max_width: 2, ..config };
            let prompts = |batch: &Batch| -> HashSet<(Vec<u8>, Vec<u8>)> {
                sums(&config, batch).into_iter().map(|(sum, _)| (sum.a, sum.b)).collect()
            };
            let mut task = Addition::new(config.clone());
            let learnt: HashSet<_> = (0..50).flat_map(|step| prompts(&task.batch(at(step), 200))).collect();
            for width in 1..=2 {
                let [validation, test] =
                    [Part::Validation, Part::Test].map(|part| prompts(&config.held_out(part, width, 64)));
                assert!(!validation.is_empty() && !test.is_empty());
                assert!(validation.is_disjoint(&test));
                assert!(validation.is_disjoint(&learnt) && test.is_disjoint(&learnt));
            }
        }
    }

    #[test]
    fn a_batch_depends_on_the_moment_alone() {
        for config in configs() {
            let (mut one, mut other) = (Addition::new(config.clone()), Addition::new(config.clone()));
            one.batch(at(0), 5);
            assert_eq!(one.batch(at(3), 9), other.batch(at(3), 9));
            assert_ne!(one.batch(at(3), 9), one.batch(at(4), 9));
            assert_ne!(one.batch(at(3), 9), one.batch(Moment { seed: 8, ..at(3) }, 9));
            assert_eq!(config.held_out(Part::Test, 4, 9), config.held_out(Part::Test, 4, 9));
        }
    }

    #[test]
    fn sparse_operands_fade() {
        let config = AdditionConfig { max_width: 16, sparse_until: 0.6, ..AdditionConfig::default() };
        let mut task = Addition::new(config.clone());
        assert_eq!((task.sparse(0.0), task.sparse(0.3), task.sparse(0.6)), (0.8, 0.4, 0.0));
        assert_eq!(Addition::new(AdditionConfig { sparse_until: 2.0, ..config }).sparse(1.0), 0.4);
        let mut zeros = |step| {
            let batch = task.batch(at(step), 400);
            let digits = batch.tokens.iter().filter(|token| **token < PLUS);
            digits.clone().filter(|token| **token == 0).count() as f64 / digits.count() as f64
        };
        assert!(zeros(0) > 0.2 && (zeros(99) - 0.1).abs() < 0.03, "{} {}", zeros(0), zeros(99));
    }

    #[test]
    fn widths_grow_with_accuracy() {
        let config = AdditionConfig { widths: Widths::Adaptive, max_width: 4, ..AdditionConfig::default() };
        let mut task = Addition::new(config.clone());
        let longest = |batch: &Batch| batch.sequences.lengths().max().unwrap();
        assert_eq!(longest(&task.batch(at(0), 99)), 1 + 3 * 2 + 2);
        (0..20).for_each(|_| task.observe(0.5));
        assert_eq!(task.values()["width"], 2.0);
        (0..15).for_each(|_| task.observe(1.0));
        assert_eq!(task.values()["width"], 3.0);
        let mut again = Addition::new(config);
        again.restore(task.state()).unwrap();
        assert_eq!(again.reach, task.reach);
        (0..99).for_each(|_| task.observe(1.0));
        assert_eq!(task.values()["width"], 4.0, "and not beyond");
        assert!(again.restore(Value::from(3)).is_err());
        for width in [0, 5] {
            let state = serde_json::json!({ "width": width, "accuracy": 0.5 });
            let said = again.restore(state).unwrap_err().to_string();
            assert!(said.contains(&format!("a width of {width}, which must be from 1")), "{said}");
        }
        assert_eq!(again.reach.width, 3, "as it was");
    }

    #[test]
    fn impossible_options_say_why() {
        let said = |config: AdditionConfig| config.validate().unwrap_err().to_string();
        let base = AdditionConfig::default;
        assert_eq!(
            said(AdditionConfig { max_width: 0, ..base() }),
            "task.max_width must be from 1 to 4096, got 0"
        );
        assert!(said(AdditionConfig { beyond: 3, ..base() }).contains("from max_width = 8 to 4096, got 3"));
        assert!(said(AdditionConfig { sparse: f64::NAN, ..base() }).contains("NaN"));
        assert!(said(AdditionConfig { eval_samples: 0, ..base() }).contains("eval_samples"));
    }
}
