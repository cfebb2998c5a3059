//! The inputs of a call, and the checks that they fit each other and the rule.

use crate::error::Error;
use crate::rule::{Columns, Decay, Gain, Rule};
use crate::{Real, View};

/// The inputs of one call: packed sequences with `tokens` rows in total.
///
/// Heads may be grouped: with fewer query/key heads than value heads, value head `h` reads and writes with
/// query/key head `h / (heads / key_heads)`.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, F> {
    /// Queries `[tokens, key_heads, dim_k]`, after feature map and normalisation.
    pub q: View<'a, F>,
    /// Keys `[tokens, key_heads, dim_k]`, after feature map and normalisation.
    pub k: View<'a, F>,
    /// Values `[tokens, heads, dim_v]`.
    pub v: View<'a, F>,
    /// `β` or `η`, `[tokens, heads, 1]`, or `[tokens, heads, dim_v]` for per-column rules. Absent for unit gains.
    pub gain: Option<View<'a, F>>,
    /// `λ` or `λ̄` `[tokens, heads, 1]`, or the gate `γ` in the shape of the gain. Absent without decay.
    pub decay: Option<View<'a, F>>,
    /// The start of each sequence, and the end of the last: `[0, …, tokens]` (`cu_seqlens`).
    pub offsets: &'a [usize],
}

/// The sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of tokens, over all sequences.
    pub tokens: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Number of value heads, each of which has its own memory.
    pub heads: usize,
    /// Number of query and key heads.
    pub key_heads: usize,
    /// Width of a query or key.
    pub dim_k: usize,
    /// Width of a value.
    pub dim_v: usize,
}

impl Sizes {
    /// Value heads per key head.
    pub fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Gains per token and head.
    pub fn gain_width(&self, rule: &Rule) -> usize {
        match rule.columns {
            Columns::Shared => 1,
            Columns::Each => self.dim_v,
        }
    }

    /// Ridges or gates per token and head: all columns share a ridge, but not a gate.
    pub fn decay_width(&self, rule: &Rule) -> usize {
        if rule.decay == Decay::Gate { self.gain_width(rule) } else { 1 }
    }
}

impl<F: Real> Inputs<'_, F> {
    /// The sizes of queries and values. [`Inputs::check`] makes sure that the other tensors agree.
    fn sizes(&self) -> Sizes {
        let [tokens, key_heads, dim_k] = self.q.shape();
        let [_, heads, dim_v] = self.v.shape();
        Sizes { tokens, sequences: self.offsets.len().saturating_sub(1), heads, key_heads, dim_k, dim_v }
    }

    /// What [`crate::Call::new`] checks of the inputs, for a rule that is possible.
    pub(crate) fn check(&self, rule: &Rule) -> Result<Sizes, Error> {
        let sizes = self.sizes();
        let Sizes { tokens, heads, key_heads, dim_k, dim_v, .. } = sizes;
        for (what, size) in [("heads", heads), ("query/key heads", key_heads), ("dim_k", dim_k), ("dim_v", dim_v)]
        {
            if size == 0 {
                return Err(Error::Zero { what });
            }
        }
        // A broadcast view can claim any number of tokens, but the outputs are an array.
        for (what, heads, dim) in [("heads", heads, dim_v), ("key heads", key_heads, dim_k)] {
            if !fits::<F>(&[tokens, heads, dim]) {
                return Err(Error::TooLarge { tokens, what, heads, dim });
            }
        }
        // The state is an array, too, and exists even without tokens.
        let tail = rule.tail_capacity().max(1);
        for (heads, width) in [(heads, rule.state_columns(dim_v)), (key_heads, dim_k)] {
            if !fits::<F>(&[sizes.sequences, heads, dim_k.max(tail), width]) {
                return Err(Error::StateTooLarge {
                    sequences: sizes.sequences,
                    heads: sizes.heads,
                    key_heads,
                    dim_k,
                    dim_v,
                    window: rule.window,
                });
            }
        }
        if heads % key_heads != 0 {
            return Err(Error::Groups { heads, key_heads });
        }
        shape("k", &self.k, [tokens, key_heads, dim_k], "tokens, key heads, dim_k, as q")?;
        shape("v", &self.v, [tokens, heads, dim_v], "tokens of q, heads, dim_v")?;
        check_offsets(self.offsets, tokens)?;

        let gain_width = sizes.gain_width(rule);
        let gain = optional("gain", self.gain, rule.gain != Gain::Unit)?;
        if let Some(gain) = gain {
            shape("gain", &gain, [tokens, heads, gain_width], "tokens, heads, 1 or dim_v if per-column")?;
            match rule.gain {
                // The ends of the range are allowed, because 2σ(·) rounds to them.
                Gain::Beta => range("gain", &gain, "beta", 2.0)?,
                Gain::Eta | Gain::Unit => range("gain", &gain, "eta", f64::INFINITY)?,
            }
        }
        let decay = optional("decay", self.decay, rule.decay != Decay::None)?;
        if let Some(decay) = decay {
            let expected = [tokens, heads, sizes.decay_width(rule)];
            shape("decay", &decay, expected, "tokens, heads, 1; a per-column gate has dim_v")?;
            match rule.decay {
                Decay::Gate => range("decay", &decay, "gamma", 1.0)?,
                Decay::Ridge | Decay::ScaledRidge { .. } | Decay::None => {
                    range("decay", &decay, "lambda", f64::INFINITY)?;
                }
            }
        }
        Ok(sizes)
    }

    /// Refuses numbers of `q`, `k` and `v` that are not finite, and names the first. The state is not checked.
    pub fn check_finite(&self) -> Result<(), Error> {
        for (tensor, view) in [("q", &self.q), ("k", &self.k), ("v", &self.v)] {
            if let Some((index, value)) = view.find(|x| !x.is_finite()) {
                return Err(Error::NotFinite { tensor, index: index.to_vec(), value: value.wide() });
            }
        }
        Ok(())
    }

    /// Numbers per token and head of the gain and of the decay, 0 where there is none.
    pub(crate) fn gate_widths(&self) -> [usize; 2] {
        [self.gain, self.decay].map(|view| view.map_or(0, |view| view.shape()[2]))
    }
}

/// Refuses offsets that do not cut `tokens` tokens into sequences: they start at 0, never fall, and end at `tokens`.
pub fn check_offsets(offsets: &[usize], tokens: usize) -> Result<(), Error> {
    let mut before = 0;
    for (position, &got) in offsets.iter().enumerate() {
        let ends = position > 0 && position + 1 == offsets.len();
        if got < before || got > tokens || (position == 0 && got != 0) || (ends && got != tokens) {
            return Err(Error::Offsets { tokens, got, position });
        }
        before = got;
    }
    match offsets {
        [] | [_] if tokens > 0 => Err(Error::NoOffsets { tokens }),
        _ => Ok(()),
    }
}

/// Whether an array can have these sizes, in bytes that can be addressed.
fn fits<F>(sizes: &[usize]) -> bool {
    let numbers = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    numbers.is_some_and(|numbers| numbers <= isize::MAX as usize / size_of::<F>())
}

/// Refuses a tensor whose shape is not the expected one.
pub(crate) fn shape<F: Real>(
    tensor: &'static str,
    view: &View<'_, F>,
    expected: [usize; 3],
    meaning: &'static str,
) -> Result<(), Error> {
    if view.shape() == expected {
        return Ok(());
    }
    Err(Error::Shape { tensor, got: view.shape().to_vec(), expected: expected.to_vec(), meaning })
}

fn optional<'a, F>(
    tensor: &'static str,
    view: Option<View<'a, F>>,
    used: bool,
) -> Result<Option<View<'a, F>>, Error> {
    match (&view, used) {
        (None, true) => Err(Error::Missing { tensor }),
        (Some(_), false) => Err(Error::Unused { tensor }),
        _ => Ok(view),
    }
}

fn range<F: Real>(
    tensor: &'static str,
    view: &View<'_, F>,
    meaning: &'static str,
    high: f64,
) -> Result<(), Error> {
    let (zero, top) = (F::zero(), F::of(high));
    // Negated comparisons, so that NaN is out of range too.
    match view.find(|x| !(x >= zero && x <= top && x.is_finite())) {
        None => Ok(()),
        Some((index, value)) => {
            let (index, value) = (index.to_vec(), value.wide());
            Err(Error::Range { tensor, index, value, meaning, low: 0.0, high })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sequence of two tokens, two heads, dim 1, with the given gains.
    fn check(rule: &Rule, k: &[f32], gain: Option<&[f32]>, offsets: &[usize]) -> Result<Sizes, Error> {
        let ones = [1f32; 4];
        let view = |data| View::new(data, [2, 2, 1]).unwrap();
        let inputs = Inputs {
            q: view(&ones),
            k: View::new(k, [k.len() / 2, 2, 1]).unwrap(),
            v: view(&ones),
            gain: gain.map(view),
            decay: None,
            offsets,
        };
        inputs.check_finite()?;
        inputs.check(rule)
    }

    #[test]
    fn errors_name_the_tensor_and_the_place() {
        let rule = Rule { decay: Decay::None, ..Rule::FALCON_1 };
        let k = [1f32; 4];
        let message = |r: Result<Sizes, Error>| r.unwrap_err().to_string();
        assert!(check(&rule, &k, Some(&[0.0, 1.0, 2.0, 0.5]), &[0, 2]).is_ok());
        assert_eq!(
            message(check(&rule, &k, Some(&[1.0, 1.0, 2.5, 1.0]), &[0, 2])),
            "gain[1, 0, 0] is 2.5: beta must be in [0, 2]"
        );
        assert!(message(check(&rule, &k, Some(&[1.0, f32::NAN, 1.0, 1.0]), &[0, 2])).starts_with("gain[0, 1, 0]"));
        assert_eq!(
            message(check(&rule, &[1.0, 1.0, 1.0, f32::INFINITY], Some(&k), &[0, 2])),
            "k[1, 1, 0] is inf: inputs must be finite"
        );
        assert_eq!(message(check(&rule, &k, None, &[0, 2])), "the rule needs gain, which was not given");
        assert!(message(check(&rule, &k[..2], Some(&k), &[0, 2])).starts_with("k has shape [1, 2, 1]"));
        assert!(message(check(&Rule::LINEAR_ATTENTION, &k, Some(&k), &[0, 2])).contains("does not use gain"));
        assert_eq!(
            message(check(&Rule::MAMBA_2, &k, Some(&[1.0, 1.0, 1.0, f32::INFINITY]), &[0, 2])),
            "gain[1, 1, 0] is inf: eta must be finite and at least 0"
        );
        assert!(message(check(&rule, &k, Some(&k), &[0])).ends_with("got no sequence: [0, 2] is one"));
        for offsets in [&[0usize, 1][..], &[1, 2], &[0, 3], &[0, 2, 1], &[]] {
            assert!(message(check(&rule, &k, Some(&k), offsets)).starts_with("sequence offsets"));
        }
    }
}
