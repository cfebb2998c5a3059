//! The three forms of a rule, and how each divides a sequence into segments.

use crate::error::Error;
use crate::rule::{Columns, Rule};
use crate::scratch::Scratch;
use crate::segment::{Segment, SegmentGrad};
use crate::{Real, chunked, masked, recurrent};

/// How a rule is computed. All forms have the same inputs, outputs and states; results differ by rounding only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Step by step: the definition.
    Recurrent,
    /// The whole sequence as one masked product, O(T²) in time and memory: for reading and testing.
    Masked,
    /// Matrix products inside chunks of tokens: for training.
    Chunked {
        /// Tokens per chunk, at least 1. The last chunk may be shorter; rules with per-column gains divide a chunk
        /// further, see [`Form::stretch`].
        chunk: usize,
    },
}

impl Form {
    /// Chunks of 64 tokens.
    pub const CHUNKED: Form = Form::Chunked { chunk: 64 };

    /// The most numbers that the masked form may hold at once for one head.
    const MASKED_LIMIT: usize = 1 << 28;

    /// The largest sum of the tokens of a chunk and the window of the rule. Working memory grows with its square.
    pub const MAX_CHUNK_AND_WINDOW: usize = 1 << 14;

    /// Steps between two memories that the recurrent form saves for its backward pass.
    const RECURRENT_STRETCH: usize = 64;

    /// Refuses a sequence of `longest` tokens that would need more working memory than is sensible.
    pub(crate) fn check(self, rule: &Rule, longest: usize) -> Result<(), Error> {
        match self {
            Form::Recurrent => Ok(()),
            Form::Chunked { chunk: 0 } => Err(Error::Zero { what: "the chunk size" }),
            Form::Chunked { chunk } => {
                let together = self.stretch(rule).unwrap_or(chunk).min(longest);
                let most = Self::MAX_CHUNK_AND_WINDOW;
                if together.saturating_add(rule.window) <= most {
                    Ok(())
                } else {
                    Err(Error::ChunkTooLong { chunk, window: rule.window, most })
                }
            }
            Form::Masked => {
                let most = Self::MASKED_LIMIT.isqrt() / rule.window;
                if longest <= most {
                    Ok(())
                } else {
                    Err(Error::MaskedTooLong { tokens: longest, window: rule.window, most })
                }
            }
        }
    }

    /// The most tokens in a chunk of a rule with per-column gains. Its work per token grows with the chunk and is not a
    /// matrix product, so longer chunks would be slower.
    const COLUMNS_CHUNK: usize = 64;

    /// How many tokens this form computes at once for `rule`; `None` means a whole sequence.
    pub fn stretch(self, rule: &Rule) -> Option<usize> {
        match self {
            Form::Recurrent => Some(Self::RECURRENT_STRETCH),
            Form::Masked => None,
            Form::Chunked { chunk } if rule.columns == Columns::Each => Some(chunk.min(Self::COLUMNS_CHUNK)),
            Form::Chunked { chunk } => Some(chunk),
        }
    }

    /// The segments of a sequence of `tokens` tokens.
    pub(crate) fn segments(
        self,
        rule: &Rule,
        tokens: usize,
    ) -> impl DoubleEndedIterator<Item = std::ops::Range<usize>> + ExactSizeIterator {
        let length = self.stretch(rule).unwrap_or(tokens.max(1));
        (0..tokens.div_ceil(length)).map(move |i| i * length..((i + 1) * length).min(tokens))
    }

    pub(crate) fn forward<F: Real>(
        self,
        segment: &Segment<F>,
        memory: &mut [F],
        out: &mut [F],
        scratch: &mut Scratch<F>,
    ) {
        match self {
            Form::Recurrent => recurrent::forward(segment, memory, out),
            Form::Masked => masked::forward(segment, memory, out),
            Form::Chunked { .. } => chunked::forward(segment, memory, out, scratch),
        }
    }

    pub(crate) fn backward<F: Real>(
        self,
        segment: &Segment<F>,
        memory: &[F],
        grad_out: &[F],
        adjoint: &mut [F],
        grad: &mut SegmentGrad<F>,
        scratch: &mut Scratch<F>,
    ) {
        match self {
            Form::Recurrent => recurrent::backward(segment, memory, grad_out, adjoint, grad),
            Form::Masked => masked::backward(segment, memory, grad_out, adjoint, grad),
            Form::Chunked { .. } => chunked::backward(segment, memory, grad_out, adjoint, grad, scratch),
        }
    }
}
