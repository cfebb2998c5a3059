//! Options of the addition task, and the sums that they describe.

use rand::RngExt;
use rand::rngs::ChaCha12Rng;
use serde::{Deserialize, Serialize};

use super::sum::{DigitOrder, Part, Sum};
use crate::batch::Batch;
use crate::random::rng;
use crate::tasks::error::{TaskError, check};

/// Options of the addition task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdditionConfig {
    /// The largest number of digits of an operand in training.
    pub max_width: usize,
    /// The largest number of digits of an operand in evaluations beyond the training widths.
    pub beyond: usize,
    /// The order in which digits are written.
    pub order: DigitOrder,
    /// How the lengths of the two operands relate.
    pub operands: Operands,
    /// Whether numbers are padded with zeros: operands may begin with zeros, and the sum has one digit more than the
    /// longer operand. Otherwise no number begins with a zero unless it is 0, and the sum is followed by an end token.
    pub leading_zeros: bool,
    /// How widths are drawn.
    pub widths: Widths,
    /// How the digits of operands are drawn.
    pub mixture: Mixture,
    /// With [`Mixture::Sparse`]: the fraction of samples with a sparse operand at the start of training.
    pub sparse: f64,
    /// With [`Mixture::Sparse`]: the fraction of training after which no sample has a sparse operand. Above 1, some
    /// samples still have one at the end of training.
    pub sparse_until: f64,
    /// Samples of each width in an evaluation.
    pub eval_samples: usize,
}

/// How the lengths of the two operands relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operands {
    /// Both have the same number of digits.
    Equal,
    /// Both lengths are drawn uniformly in training. In an evaluation of a width, one operand, chosen at random, has
    /// that many digits, and the length of the other is uniform up to it.
    Independent,
}

/// How widths are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Widths {
    /// Uniformly.
    Uniform,
    /// Uniformly up to a width that grows with the training accuracy.
    Adaptive,
}

/// How the digits of operands are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixture {
    /// Uniformly.
    Uniform,
    /// A fraction of the samples, decreasing during training, has a sparse operand, whose digits are mostly 0. These
    /// samples show how a single digit affects the sum, which is hidden where both operands are uniform.
    Sparse,
}

impl Default for AdditionConfig {
    fn default() -> Self {
        Self {
            max_width: 8,
            beyond: 12,
            order: DigitOrder::AllReversed,
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

impl AdditionConfig {
    /// Checks the options.
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

    /// Number of tokens that a model reads for a sum whose operands have `width` digits: the begin token, both
    /// operands, `+`, `=`, and the sum without its last digit.
    const fn tokens_of(width: usize) -> usize {
        3 * width + 3
    }

    /// The mean number of tokens in a training sequence.
    pub(in crate::tasks) fn tokens_per_sequence(&self) -> usize {
        Self::tokens_of(self.max_width.div_ceil(2))
    }

    /// The largest number of held-out tokens in one evaluation.
    pub(in crate::tasks) fn held_out_tokens(&self) -> usize {
        (1..=self.beyond).map(|width| self.eval_samples * Self::tokens_of(width)).sum()
    }

    /// `count` samples of one width from a held-out part, the same for every run.
    pub fn held_out(&self, part: Part, width: usize, count: usize) -> Batch {
        // Training uses the number of the step as the stream, which never becomes this large.
        let mut rng = rng(part as u64, (u64::MAX - width as u64).into());
        Batch::new((0..count).map(|_| {
            let other = match self.operands {
                Operands::Equal => width,
                Operands::Independent => rng.random_range(1..=width),
            };
            self.tokens_and_targets(&self.draw(part, [width, other], false, &mut rng))
        }))
    }

    /// The tokens of a sum and their targets.
    pub(super) fn tokens_and_targets(&self, sum: &Sum) -> (Vec<u32>, Vec<Option<u32>>) {
        sum.tokens_and_targets(self.order, self.leading_zeros)
    }

    /// A random sum that belongs to `part`. The operands have these lengths, in random order. If `sparse`, the operand
    /// of the first length is sparse.
    pub(super) fn draw(&self, part: Part, lengths: [usize; 2], sparse: bool, rng: &mut ChaCha12Rng) -> Sum {
        let operand = |length: usize, zeros: f64, rng: &mut ChaCha12Rng| -> Vec<u8> {
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
