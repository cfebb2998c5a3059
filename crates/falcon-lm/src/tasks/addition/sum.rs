//! A sum of two numbers: its digits, its form as tokens, and the part of the data that it belongs to.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The size of the vocabulary: the ten digits, which are their own tokens, and the four tokens below.
pub(in crate::tasks) const VOCABULARY: usize = 14;
pub(super) const PLUS: u32 = 10;
pub(super) const EQUALS: u32 = 11;
pub(super) const BEGIN: u32 = 12;
/// Ends a sum without leading zeros; only a target, never an input.
pub const END: u32 = 13;

/// The order in which digits are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DigitOrder {
    /// Operands and sum have the lowest digit first, as in the authors' data.
    AllReversed,
    /// Operands have the highest digit first, the sum the lowest, as in the paper's formula.
    SumReversed,
}

/// Two operands, each with the highest digit first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The first operand.
    pub a: Vec<u8>,
    /// The second operand.
    pub b: Vec<u8>,
}

/// The part of the data that a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Training data.
    Train,
    /// Held-out data for choosing checkpoints.
    Validation,
    /// Held-out data for reported results.
    Test,
}

impl Sum {
    /// The digits of the sum, lowest first: one more than the longer operand has.
    pub fn digits(&self) -> Vec<u8> {
        let mut carry = 0;
        // Places are counted from the lowest digit; beyond the end of the shorter operand its digits are 0.
        let digit = |operand: &[u8], place| operand.iter().rev().nth(place).copied().unwrap_or(0);
        let mut digits: Vec<u8> = (0..self.a.len().max(self.b.len()))
            .map(|place| {
                let sum = digit(&self.a, place) + digit(&self.b, place) + carry;
                carry = sum / 10;
                sum % 10
            })
            .collect();
        digits.push(carry);
        digits
    }

    /// The tokens to read and the target after each of them. Without leading zeros the number of digits is part of the
    /// answer, so that the target after the last digit is the end token.
    pub fn tokens_and_targets(&self, order: DigitOrder, leading_zeros: bool) -> (Vec<u32>, Vec<Option<u32>>) {
        let mut answer: Vec<u32> = self.digits().into_iter().map(u32::from).collect();
        if !leading_zeros {
            let highest = answer.iter().rposition(|digit| *digit != 0).unwrap_or(0);
            answer.truncate(highest + 1);
            answer.push(END);
        }
        let operand = |digits: &[u8]| -> Vec<u32> {
            let digits = digits.iter().copied().map(u32::from);
            match order {
                DigitOrder::AllReversed => digits.rev().collect(),
                DigitOrder::SumReversed => digits.collect(),
            }
        };
        let mut tokens = [&[BEGIN], &*operand(&self.a), &[PLUS], &operand(&self.b), &[EQUALS]].concat();
        let mut targets = vec![None; tokens.len() - 1];
        targets.extend(answer.iter().copied().map(Some));
        tokens.extend(&answer[..answer.len() - 1]);
        (tokens, targets)
    }

    /// The part that the sum belongs to, by the first hexadecimal digit of the SHA-256 of its prompt with the highest
    /// digits first, such as `07+15=`: 0 is validation, 1 is test, all others are training. The hashed form does not
    /// depend on the [`DigitOrder`], so that a sum that is trained on in one order is not held out in another.
    pub fn part(&self) -> Part {
        let character = |digit: &u8| b'0' + digit;
        let prompt = self.a.iter().map(character).chain([b'+']).chain(self.b.iter().map(character)).chain([b'=']);
        match Sha256::digest(prompt.collect::<Vec<u8>>())[0] >> 4 {
            0 => Part::Validation,
            1 => Part::Test,
            _ => Part::Train,
        }
    }
}

/// How many of the 100 sums of one-digit operands are test data. They are so few that an evaluation of that width
/// repeats them.
pub fn one_digit_tests() -> usize {
    (0..100).filter(|i| Sum { a: vec![i / 10], b: vec![i % 10] }.part() == Part::Test).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &[u8], b: &[u8]) -> Sum {
        Sum { a: a.to_vec(), b: b.to_vec() }
    }

    /// The tokens, and the targets from `=` on.
    fn written(sum: &Sum, order: DigitOrder, leading_zeros: bool) -> (Vec<u32>, Vec<u32>) {
        let (tokens, targets) = sum.tokens_and_targets(order, leading_zeros);
        assert_eq!(tokens.len(), targets.len());
        let equals = tokens.iter().position(|token| *token == EQUALS).unwrap();
        assert!(targets[..equals].iter().all(Option::is_none), "no targets before the sum");
        (tokens, targets[equals..].iter().copied().flatten().collect())
    }

    #[test]
    fn digits_are_those_of_the_sum() {
        assert_eq!(sum(&[0, 9, 9], &[0, 0, 7]).digits(), [6, 0, 1, 0]);
        assert_eq!(sum(&[9, 5], &[7]).digits(), [2, 0, 1]);
        assert_eq!(sum(&[7], &[9, 9, 5]).digits(), [2, 0, 0, 1]);
        assert_eq!(sum(&[0], &[0]).digits(), [0, 0]);
    }

    #[test]
    fn digits_are_written_in_the_given_order() {
        let sum = sum(&[1, 2, 3], &[9, 0, 5]);
        // 123 + 905 = 1028.
        let (tokens, targets) = written(&sum, DigitOrder::AllReversed, true);
        assert_eq!(tokens, [BEGIN, 3, 2, 1, PLUS, 5, 0, 9, EQUALS, 8, 2, 0]);
        assert_eq!(targets, [8, 2, 0, 1]);
        let (tokens, targets) = written(&sum, DigitOrder::SumReversed, true);
        assert_eq!(tokens, [BEGIN, 1, 2, 3, PLUS, 9, 0, 5, EQUALS, 8, 2, 0]);
        assert_eq!(targets, [8, 2, 0, 1]);
    }

    #[test]
    fn leading_zeros_are_written_or_the_last_target_is_the_end_token() {
        // 95 + 7 = 102.
        let longer = sum(&[9, 5], &[7]);
        let (tokens, targets) = written(&longer, DigitOrder::AllReversed, true);
        assert_eq!((tokens, targets), (vec![BEGIN, 5, 9, PLUS, 7, EQUALS, 2, 0], vec![2, 0, 1]));
        let (tokens, targets) = written(&longer, DigitOrder::AllReversed, false);
        assert_eq!((tokens, targets), (vec![BEGIN, 5, 9, PLUS, 7, EQUALS, 2, 0, 1], vec![2, 0, 1, END]));
        // 12 + 7 = 19: no carry, and a digit less.
        let shorter = sum(&[1, 2], &[7]);
        assert_eq!(written(&shorter, DigitOrder::AllReversed, true).1, [9, 1, 0]);
        let (tokens, targets) = written(&shorter, DigitOrder::SumReversed, false);
        assert_eq!((tokens, targets), (vec![BEGIN, 1, 2, PLUS, 7, EQUALS, 9, 1], vec![9, 1, END]));
        // Zeros that are not leading are kept, as in 5 + 5 = 10, and so is the single digit of 0 + 0 = 0.
        assert_eq!(written(&sum(&[5], &[5]), DigitOrder::AllReversed, false).1, [0, 1, END]);
        let zero = sum(&[0], &[0]);
        let (tokens, targets) = written(&zero, DigitOrder::AllReversed, false);
        assert_eq!((tokens, targets), (vec![BEGIN, 0, PLUS, 0, EQUALS, 0], vec![0, END]));
        assert_eq!(written(&zero, DigitOrder::AllReversed, true).1, [0, 0]);
    }

    #[test]
    fn parts_follow_from_the_hash_of_the_prompt() {
        // `printf '8+8=' | sha256sum` prints 0caa…; for '07+15=' it prints e4bb….
        assert_eq!(sum(&[8], &[8]).part(), Part::Validation);
        assert_eq!(sum(&[0, 7], &[1, 5]).part(), Part::Train);
        let mut parts = [0; 3];
        for a in 0..100u8 {
            for b in 0..100u8 {
                parts[sum(&[a / 10, a % 10], &[b / 10, b % 10]).part() as usize] += 1;
            }
        }
        for part in [Part::Validation, Part::Test] {
            let share = f64::from(parts[part as usize]) / 1e4;
            assert!((share - 0.0625).abs() < 0.02, "{part:?}: {share}");
            let count = (0..100u8).filter(|i| sum(&[i / 10], &[i % 10]).part() == part).count();
            assert!((3..=12).contains(&count), "{part:?}: {count} of the 100 sums of one digit");
        }
    }
}
