//! Addition of two numbers, the paper's synthetic task.
//!
//! ```text
//! prompt  BEGIN a + b =          both operands with n digits, the lowest first
//! target  the sum                n + 1 digits, the lowest first
//! ```
//!
//! This is the default format. With another [`DigitOrder`] only the sum is reversed; with other [`Operands`] the two
//! numbers differ in length; and without [leading zeros](AdditionConfig::leading_zeros) the sum has as many digits as it
//! needs, followed by an end token.
//!
//! The model reads the prompt and the target except for its last token. The loss covers the predictions after `=` and
//! after every digit of the target. Training uses widths from 1 to [`AdditionConfig::max_width`]; larger widths are
//! only evaluated.
//!
//! A hash of the prompt assigns each sample to training, validation or test ([`Sum::part`]), so that the three never
//! share a prompt.

mod config;
mod sum;
mod tokenizer;

use std::collections::BTreeMap;

use rand::RngExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::config::{AdditionConfig, Mixture, Operands, Widths};
pub(super) use self::sum::VOCABULARY;
pub use self::sum::{DigitOrder, END, Part, Sum, one_digit_tests};
pub(super) use self::tokenizer::tokenizer;
use super::error::TaskError;
use super::task::Task;
use crate::batch::{Batch, Split, VALIDATION};
use crate::data::Tokenizer;
use crate::random::Moment;
use crate::recipe::{Schedule, TrainConfig};
use crate::scores::Scores;

/// The default recipe of the task.
pub(super) fn recipe() -> TrainConfig {
    let base = TrainConfig::default();
    TrainConfig { batch: 128, schedule: Schedule { lr: 5e-4, warmup: 100, steps: 1000, ..base.schedule }, ..base }
}

/// The addition task with the state of its curriculum.
#[derive(Clone, Debug)]
pub(crate) struct Addition {
    config: AdditionConfig,
    tokenizer: Tokenizer,
    curriculum: Curriculum,
}

/// State of the curriculum: the largest width drawn, and the smoothed training accuracy that decides when it grows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Curriculum {
    width: usize,
    accuracy: f64,
}

/// The largest width at the start of adaptive training.
const FIRST_WIDTH: usize = 2;
/// The smoothed accuracy above which the largest width grows by one.
const ACCURACY_TO_GROW: f64 = 0.95;
/// The weight of earlier steps in the smoothed accuracy.
const SMOOTHING: f64 = 0.8;

impl Addition {
    /// The task at the start of training.
    pub fn new(config: AdditionConfig, tokenizer: Tokenizer) -> Self {
        let width = match config.widths {
            Widths::Uniform => config.max_width,
            Widths::Adaptive => FIRST_WIDTH.min(config.max_width),
        };
        Self { config, tokenizer, curriculum: Curriculum { width, accuracy: 0.0 } }
    }

    /// The fraction of samples with a sparse operand at this point of training.
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
            let length = rng.random_range(1..=self.curriculum.width);
            let other = match self.config.operands {
                Operands::Equal => length,
                Operands::Independent => rng.random_range(1..=self.curriculum.width),
            };
            let sparse = rng.random_bool(sparse);
            self.config.tokens_and_targets(&self.config.draw(Part::Train, [length, other], sparse, &mut rng))
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
        self.curriculum.accuracy = SMOOTHING * self.curriculum.accuracy + (1.0 - SMOOTHING) * accuracy;
        if self.curriculum.accuracy > ACCURACY_TO_GROW && self.curriculum.width < self.config.max_width {
            self.curriculum = Curriculum { width: self.curriculum.width + 1, accuracy: 0.0 };
        }
    }

    fn values(&self) -> BTreeMap<String, f64> {
        match self.config.widths {
            Widths::Uniform => BTreeMap::new(),
            Widths::Adaptive => BTreeMap::from([("width".into(), self.curriculum.width as f64)]),
        }
    }

    fn state(&self) -> Value {
        serde_json::to_value(&self.curriculum).expect("the state is plain data")
    }

    fn restore(&mut self, state: Value) -> Result<(), TaskError> {
        let curriculum: Curriculum = serde_json::from_value(state).map_err(TaskError::State)?;
        let (width, most) = (curriculum.width, self.config.max_width);
        if !(1..=most).contains(&width) {
            let error = format!("a width of {width}, which must be from 1 to task.max_width = {most}");
            return Err(TaskError::State(serde::de::Error::custom(error)));
        }
        self.curriculum = curriculum;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::sum::{BEGIN, EQUALS, PLUS};
    use super::*;

    fn addition(config: AdditionConfig) -> Addition {
        Addition::new(config, tokenizer())
    }

    fn at(step: u64) -> Moment {
        Moment { seed: 7, step, steps: 100 }
    }

    /// All ways to write and draw sums.
    fn configs() -> Vec<AdditionConfig> {
        let mut configs = Vec::new();
        for order in [DigitOrder::AllReversed, DigitOrder::SumReversed] {
            for operands in [Operands::Equal, Operands::Independent] {
                for leading_zeros in [true, false] {
                    let base = AdditionConfig::default();
                    configs.push(AdditionConfig { max_width: 5, order, operands, leading_zeros, ..base });
                }
            }
        }
        configs
    }

    /// The sums of a batch, read from its tokens, each with its targets.
    fn sums(config: &AdditionConfig, batch: &Batch) -> Vec<(Sum, Vec<u32>)> {
        let read = |window: &[usize]| {
            let (tokens, targets) = (&batch.tokens[window[0]..window[1]], &batch.targets[window[0]..window[1]]);
            assert_eq!(tokens[0], BEGIN);
            let place = |token| tokens.iter().position(|t| *t == token).unwrap();
            let (plus, equals) = (place(PLUS), place(EQUALS));
            let operand = |tokens: &[u32]| -> Vec<u8> {
                let digits = tokens.iter().map(|token| u8::try_from(*token).unwrap());
                match config.order {
                    DigitOrder::AllReversed => digits.rev().collect(),
                    DigitOrder::SumReversed => digits.collect(),
                }
            };
            let sum = Sum { a: operand(&tokens[1..plus]), b: operand(&tokens[plus + 1..equals]) };
            assert!(!tokens.contains(&END) && targets[..equals].iter().all(Option::is_none));
            (sum, targets[equals..].iter().copied().flatten().collect())
        };
        batch.sequences.offsets().windows(2).map(read).collect()
    }

    #[test]
    fn targets_are_the_digits_of_the_sum() {
        for config in configs() {
            let mut task = addition(AdditionConfig { max_width: 18, ..config.clone() });
            for (sum, mut targets) in sums(&config, &task.batch(at(0), 200)) {
                let ended = targets.pop_if(|target| *target == END).is_some();
                assert_eq!(ended, !config.leading_zeros);
                let value = |digits: &[u8]| digits.iter().fold(0u64, |v, d| 10 * v + u64::from(*d));
                let target = targets.iter().rev().fold(0u64, |v, d| 10 * v + u64::from(*d));
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
    fn operands_have_the_configured_lengths() {
        for config in configs() {
            let lengths = |batch: &Batch| -> Vec<(usize, usize)> {
                sums(&config, batch).iter().map(|(sum, _)| (sum.a.len(), sum.b.len())).collect()
            };
            let trained = lengths(&addition(config.clone()).batch(at(0), 3000));
            let held = lengths(&config.held_out(Part::Test, 3, 600));
            let count = |all: &[(usize, usize)], pair| all.iter().filter(|lengths| **lengths == pair).count();
            match config.operands {
                Operands::Equal => {
                    assert!((1..=5).all(|n| count(&trained, (n, n)).abs_diff(600) < 120), "{trained:?}");
                    assert_eq!((count(&held, (3, 3)), trained.iter().filter(|(a, b)| a != b).count()), (600, 0));
                }
                Operands::Independent => {
                    let pairs = (1..=5).flat_map(|a| (1..=5).map(move |b| (a, b)));
                    let counts: Vec<usize> = pairs.map(|pair| count(&trained, pair)).collect();
                    // 3000 samples over 25 equally likely pairs of lengths.
                    assert!(counts.iter().all(|count| count.abs_diff(120) < 60), "{counts:?}");
                    // The length of the other operand is 1, 2 or 3 with equal chance, and the order is random.
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
            let sums = sums(&config, &addition(config.clone()).batch(at(0), 2000));
            let operands = || sums.iter().flat_map(|(sum, _)| [&sum.a, &sum.b]);
            let zeros = |place: usize, length: usize| {
                let of_length: Vec<_> = operands().filter(|operand| operand.len() == length).collect();
                of_length.iter().filter(|operand| operand[place] == 0).count() as f64 / of_length.len() as f64
            };
            // Half of the operands are sparse: on average 3/4 of their digits are set to zero. Of all other digits, a
            // tenth is zero. The fraction of zeros is (0.75 + 0.25·0.1 + 0.1) / 2 = 0.4375.
            let as_drawn = |part: f64| (part - 0.4375).abs() < 0.05;
            assert!(as_drawn(zeros(1, 3)) && as_drawn(zeros(2, 3)) && as_drawn(zeros(1, 2)));
            // Only the training part of the 100 sums of one-digit operands is drawn, so this fraction is less exact.
            assert!((zeros(0, 1) - 0.4375).abs() < 0.1, "an operand of one digit may be 0: {}", zeros(0, 1));
            for length in 2..=3 {
                let highest = zeros(0, length);
                assert!(if config.leading_zeros { as_drawn(highest) } else { highest == 0.0 }, "{highest}");
            }
        }
    }

    #[test]
    fn training_validation_and_test_share_no_sample() {
        for config in configs() {
            let config = AdditionConfig { max_width: 2, ..config };
            let prompts = |batch: &Batch| -> HashSet<(Vec<u8>, Vec<u8>)> {
                sums(&config, batch).into_iter().map(|(sum, _)| (sum.a, sum.b)).collect()
            };
            let mut task = addition(config.clone());
            let trained: HashSet<_> = (0..50).flat_map(|step| prompts(&task.batch(at(step), 200))).collect();
            for width in 1..=2 {
                let [validation, test] =
                    [Part::Validation, Part::Test].map(|part| prompts(&config.held_out(part, width, 64)));
                assert!(!validation.is_empty() && !test.is_empty());
                assert!(validation.is_disjoint(&test));
                assert!(validation.is_disjoint(&trained) && test.is_disjoint(&trained));
            }
        }
    }

    #[test]
    fn a_batch_depends_on_the_moment_alone() {
        for config in configs() {
            let (mut one, mut other) = (addition(config.clone()), addition(config.clone()));
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
        let mut task = addition(config.clone());
        assert_eq!((task.sparse(0.0), task.sparse(0.3), task.sparse(0.6)), (0.8, 0.4, 0.0));
        assert_eq!(addition(AdditionConfig { sparse_until: 2.0, ..config }).sparse(1.0), 0.4);
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
        let mut task = addition(config.clone());
        let longest = |batch: &Batch| batch.sequences.lengths().max().unwrap();
        assert_eq!(longest(&task.batch(at(0), 99)), 1 + 3 * 2 + 2);
        (0..20).for_each(|_| task.observe(0.5));
        assert_eq!(task.values()["width"], 2.0);
        (0..15).for_each(|_| task.observe(1.0));
        assert_eq!(task.values()["width"], 3.0);
        let mut restored = addition(config);
        restored.restore(task.state()).unwrap();
        assert_eq!(restored.curriculum, task.curriculum);
        (0..99).for_each(|_| task.observe(1.0));
        assert_eq!(task.values()["width"], 4.0, "the width does not grow beyond max_width");
        assert!(restored.restore(Value::from(3)).is_err());
        for width in [0, 5] {
            let state = serde_json::json!({ "width": width, "accuracy": 0.5 });
            let message = restored.restore(state).unwrap_err().to_string();
            assert!(message.contains(&format!("a width of {width}, which must be from 1")), "{message}");
        }
        assert_eq!(restored.curriculum.width, 3, "a refused state changes nothing");
    }

    #[test]
    fn impossible_options_are_refused_with_the_reason() {
        let message = |config: AdditionConfig| config.validate().unwrap_err().to_string();
        let base = AdditionConfig::default;
        assert_eq!(
            message(AdditionConfig { max_width: 0, ..base() }),
            "task.max_width must be from 1 to 4096, got 0"
        );
        assert!(message(AdditionConfig { beyond: 3, ..base() }).contains("from max_width = 8 to 4096, got 3"));
        assert!(message(AdditionConfig { sparse: f64::NAN, ..base() }).contains("NaN"));
        assert!(message(AdditionConfig { eval_samples: 0, ..base() }).contains("eval_samples"));
    }
}
