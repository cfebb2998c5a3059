//! Sums of two numbers of `n` digits, the paper's controlled test.
//!
//! ```text
//! prompt  a₁…aₙ + b₁…bₙ =        operands padded with zeros to n digits
//! target  the n + 1 digits of the sum, the lowest first
//! ```
//!
//! A model reads the prompt and the target but for its last digit; what it says after `=` and after every digit of the target is what
//! counts. Lengths of training are 1 to [`AdditionConfig::max_width`], lengths beyond are only measured.
//!
//! A sample belongs to training, validation or test by a hash of its prompt ([`part_of`]), so that no two of them share one.

use std::collections::BTreeMap;

use falcon_nn::IGNORED;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Batch, Moment, Split, Task, TaskError, VALIDATION, check, rng};
use crate::train::{Schedule, Scores, TrainConfig};

/// What the tokens stand for.
pub(super) const VOCABULARY: [char; 12] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '+', '='];
const PLUS: i32 = 10;
const EQUALS: i32 = 11;

/// Options of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdditionConfig {
    /// Digits of an operand in training: from 1 to this.
    pub max_width: usize,
    /// Digits of an operand in measurements beyond: to this.
    pub beyond: usize,
    /// How widths are drawn.
    pub widths: Widths,
    /// How operands are drawn.
    pub mixture: Mixture,
    /// With [`Mixture::Sparse`]: the part of the samples that have a sparse operand at first.
    pub sparse: f64,
    /// With [`Mixture::Sparse`]: the part of training after which none has. Above 1, some are left at the end.
    pub sparse_until: f64,
    /// Samples of each width in a measurement.
    pub eval_samples: usize,
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

/// How operands are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixture {
    /// All digits alike.
    Uniform,
    /// Some samples have an operand most of whose digits are 0, ever fewer until none. What one operand's digit does to the sum is
    /// invisible while the other is uniform; here it shows.
    Sparse,
}

/// To what a sample belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// To learn from.
    Train,
    /// To choose by.
    Validation,
    /// To report.
    Test,
}

impl Default for AdditionConfig {
    fn default() -> Self {
        Self {
            max_width: 8,
            beyond: 12,
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
    TrainConfig { batch: 128, schedule: Schedule { lr: 3e-3, warmup: 100, steps: 1000, ..base.schedule }, ..base }
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
}

/// A prompt: two operands of as many digits, the highest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub a: Vec<u8>,
    pub b: Vec<u8>,
}

impl Sum {
    /// The digits of the sum, the lowest first, one more than an operand has.
    pub fn digits(&self) -> Vec<u8> {
        let mut carry = 0;
        let pairs = self.a.iter().rev().zip(self.b.iter().rev());
        let mut digits: Vec<u8> = pairs
            .map(|(a, b)| {
                let sum = a + b + carry;
                carry = sum / 10;
                sum % 10
            })
            .collect();
        digits.push(carry);
        digits
    }

    /// What is read, and what is asked.
    pub fn tokens_and_targets(&self) -> (Vec<i32>, Vec<i64>) {
        let digits = self.digits();
        let operand = |digits: &[u8]| digits.iter().map(|digit| i32::from(*digit)).collect::<Vec<_>>();
        let mut tokens = operand(&self.a);
        tokens.push(PLUS);
        tokens.extend(operand(&self.b));
        tokens.push(EQUALS);
        let mut targets = vec![IGNORED; tokens.len() - 1];
        tokens.extend(digits[..digits.len() - 1].iter().map(|digit| i32::from(*digit)));
        targets.extend(digits.iter().map(|digit| i64::from(*digit)));
        (tokens, targets)
    }
}

/// To what a sample belongs, by the first hexadecimal digit of the SHA-256 of its prompt, such as `07+15=`: 0 is validation, 1 is test, all
/// others are training.
pub(crate) fn part_of(sum: &Sum) -> Part {
    let character = |digit: &u8| b'0' + digit;
    let prompt = sum.a.iter().map(character).chain([b'+']).chain(sum.b.iter().map(character)).chain([b'=']);
    match Sha256::digest(prompt.collect::<Vec<u8>>())[0] >> 4 {
        0 => Part::Validation,
        1 => Part::Test,
        _ => Part::Train,
    }
}

/// How many of the 100 sums of one digit are test prompts: few, so a measurement of that width repeats them.
pub(crate) fn one_digit_tests() -> usize {
    (0..100).filter(|i| part_of(&Sum { a: vec![i / 10], b: vec![i % 10] }) == Part::Test).count()
}

/// A prompt of `width` digits that belongs to `part`.
fn draw(part: Part, width: usize, sparse: bool, rng: &mut StdRng) -> Sum {
    loop {
        let operand = |zeros: f64, rng: &mut StdRng| -> Vec<u8> {
            (0..width).map(|_| if zeros > 0.0 && rng.random_bool(zeros) { 0 } else { digit(rng) }).collect()
        };
        let zeros = if sparse { rng.random_range(0.5..=1.0) } else { 0.0 };
        let (mut a, mut b) = (operand(zeros, rng), operand(0.0, rng));
        if rng.random_bool(0.5) {
            std::mem::swap(&mut a, &mut b);
        }
        let sum = Sum { a, b };
        if part_of(&sum) == part {
            return sum;
        }
    }
}

fn digit(rng: &mut impl Rng) -> u8 {
    rng.random_range(0..10)
}

/// The task, and how far it has come.
#[derive(Clone, Debug)]
pub(crate) struct Addition {
    config: AdditionConfig,
    reach: Reach,
}

/// The largest width drawn, and the recent accuracy that makes it grow.
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
        Self { config, reach: Reach { width, accuracy: 0.0 } }
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

/// `count` samples of one width that are held out, the same for every run.
pub(crate) fn held_out(part: Part, width: usize, count: usize) -> Batch {
    // A stream of their own.
    let mut rng = rng(part as u64, (u64::MAX - width as u64).into());
    Batch::new((0..count).map(|_| draw(part, width, false, &mut rng).tokens_and_targets()))
}

impl Task for Addition {
    fn batch(&mut self, moment: Moment, count: usize) -> Batch {
        let (mut rng, sparse) = (moment.rng(), self.sparse(moment.progress()));
        Batch::new((0..count).map(|_| {
            let width = rng.random_range(1..=self.reach.width);
            let sparse = rng.random_bool(sparse);
            draw(Part::Train, width, sparse, &mut rng).tokens_and_targets()
        }))
    }

    fn splits(&self) -> Vec<Split> {
        let samples = self.config.eval_samples;
        let split = |name: &str, widths: std::ops::RangeInclusive<usize>| Split {
            name: name.into(),
            groups: widths.map(|n| (format!("width {n}"), held_out(Part::Validation, n, samples))).collect(),
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

    use super::*;

    fn at(step: u64) -> Moment {
        Moment { seed: 7, step, steps: 100 }
    }

    #[test]
    fn sums_are_sums() {
        let sum = Sum { a: vec![0, 9, 9], b: vec![0, 0, 7] };
        assert_eq!(sum.digits(), [6, 0, 1, 0]);
        let (tokens, targets) = sum.tokens_and_targets();
        assert_eq!(tokens, [0, 9, 9, PLUS, 0, 0, 7, EQUALS, 6, 0, 1]);
        assert_eq!(targets, [[IGNORED; 7].as_slice(), &[6, 0, 1, 0]].concat());
        let mut rng = rng(1, 2);
        for width in 1..=18 {
            let sum = draw(Part::Train, width, width % 2 == 0, &mut rng);
            let value = |digits: &mut dyn Iterator<Item = &u8>| digits.fold(0u64, |v, d| 10 * v + u64::from(*d));
            let (a, b) = (value(&mut sum.a.iter()), value(&mut sum.b.iter()));
            assert_eq!(a + b, value(&mut sum.digits().iter().rev()));
        }
    }

    #[test]
    fn parts_share_no_sample() {
        let mut parts = [const { Vec::new() }; 3];
        for a in 0..100u8 {
            for b in 0..100u8 {
                let sum = Sum { a: vec![a / 10, a % 10], b: vec![b / 10, b % 10] };
                parts[part_of(&sum) as usize].push(sum);
            }
        }
        // printf '8+8=' | sha256sum says 0caa…, of '07+15=' e4bb….
        assert_eq!(part_of(&Sum { a: vec![8], b: vec![8] }), Part::Validation);
        assert_eq!(part_of(&Sum { a: vec![0, 7], b: vec![1, 5] }), Part::Train);
        let of_one =
            |part| (0..100u8).filter(|i| part_of(&Sum { a: vec![i / 10], b: vec![i % 10] }) == part).count();
        let narrow = [Part::Validation, Part::Test].map(of_one);
        assert!(narrow.iter().all(|count| (3..=12).contains(count)), "{narrow:?} of the 100 sums of one digit");
        let share = |part: Part| parts[part as usize].len() as f64 / 1e4;
        assert!((share(Part::Validation) - 0.0625).abs() < 0.02, "{}", share(Part::Validation));
        assert!((share(Part::Test) - 0.0625).abs() < 0.02, "{}", share(Part::Test));
        // What is drawn keeps to it, and every width has samples of every part.
        let mut task = Addition::new(AdditionConfig { max_width: 2, ..AdditionConfig::default() });
        let of = |batch: &Batch| -> HashSet<Vec<i32>> {
            let offsets = batch.sequences.offsets().windows(2);
            let sequences = offsets.map(|w| &batch.tokens[w[0]..w[1]]);
            sequences.map(|s| s[..=s.iter().position(|t| *t == EQUALS).unwrap()].to_vec()).collect()
        };
        let learnt: HashSet<_> = (0..50).flat_map(|step| of(&task.batch(at(step), 200))).collect();
        for width in 1..=2 {
            let (validation, test) =
                (of(&held_out(Part::Validation, width, 64)), of(&held_out(Part::Test, width, 64)));
            assert!(!validation.is_empty() && !test.is_empty());
            assert!(validation.is_disjoint(&test) && validation.is_disjoint(&learnt) && test.is_disjoint(&learnt));
        }
    }

    #[test]
    fn a_batch_depends_on_the_moment_alone() {
        let (mut one, mut other) =
            (Addition::new(AdditionConfig::default()), Addition::new(AdditionConfig::default()));
        one.batch(at(0), 5);
        assert_eq!(one.batch(at(3), 9), other.batch(at(3), 9));
        assert_ne!(one.batch(at(3), 9), one.batch(at(4), 9));
        assert_ne!(one.batch(at(3), 9), one.batch(Moment { seed: 8, ..at(3) }, 9));
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
        assert_eq!(longest(&task.batch(at(0), 99)), 3 * 2 + 2);
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
