//! The reasons for which a rule or a call is refused, with the values that caused them.

use std::fmt;

use thiserror::Error;

/// A constant of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// `ε` of the step size.
    Eps,
    /// `ε_γ`, the smallest decay factor that a ridge can give.
    Clamp,
    /// `ε` of the denominator of a normalised read.
    Normaliser,
}

impl fmt::Display for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eps => "eps",
            Self::Clamp => "clamp (eps_gamma)",
            Self::Normaliser => "normaliser eps",
        })
    }
}

/// A combination of options that no kernel can run.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum RuleError {
    /// A window without pairs.
    #[error("the window must hold at least 1 pair, got 0")]
    EmptyWindow,
    /// A window longer than is sensible: every state holds that many pairs.
    #[error("a window of {window} pairs is too long, at most {most}{}", curvature(*.curved))]
    WindowTooLong {
        /// The window asked for.
        window: usize,
        /// The longest allowed.
        most: usize,
        /// Whether the limit is lower because the rule needs the curvature of the window.
        curved: bool,
    },
    /// Per-column gains together with a window, which no kernel supports.
    #[error("per-column gains need window 1, got {window}")]
    ColumnsWithWindow {
        /// The window asked for.
        window: usize,
    },
    /// Per-column gains for a rule without a gain.
    #[error("a unit gain cannot be per-column: use gain beta or eta, or shared columns")]
    ColumnsWithoutGain,
    /// A normaliser for a regression rule, whose writes have no weights to sum.
    #[error("only inner-product rules can be normalised: a regression write is not a weighted sum")]
    NormalisedRegression,
    /// A normaliser together with per-column gains: its column would need a gain of its own.
    #[error("a normalised rule needs one gain for all columns")]
    NormalisedColumns,
    /// A constant outside its range.
    #[error("{constant} must be in [0, {below}), got {value}")]
    Constant {
        /// Which constant.
        constant: Constant,
        /// Its value.
        value: f64,
        /// The end of its range.
        below: f64,
    },
}

/// Why a call was refused. Nothing has been written when one is returned.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// The rule is not possible.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A tensor of the wrong shape.
    #[error("{tensor} has shape {got:?}, expected {expected:?} ({meaning})")]
    Shape {
        /// Which tensor.
        tensor: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// The shape that fits the other tensors.
        expected: Vec<usize>,
        /// The meaning of the axes.
        meaning: &'static str,
    },
    /// A slice that is too short for its view, or too long for a view without strides.
    #[error("a view of shape {shape:?}{} needs {} elements, got {got}", strided(.strides), counted(.needed))]
    View {
        /// The shape.
        shape: [usize; 3],
        /// The strides of tokens and heads, if they were given.
        strides: Option<[usize; 2]>,
        /// Elements needed, unless their number overflows.
        needed: Option<usize>,
        /// Elements given.
        got: usize,
    },
    /// An array of the wrong length.
    #[error("{tensor} has {got} elements, expected {needed}")]
    Length {
        /// Which tensor.
        tensor: &'static str,
        /// Elements given.
        got: usize,
        /// Elements needed.
        needed: usize,
    },
    /// A tensor that the rule needs and that was not given.
    #[error("the rule needs {tensor}, which was not given")]
    Missing {
        /// Which tensor.
        tensor: &'static str,
    },
    /// A tensor that was given and that the rule does not use.
    #[error("the rule does not use {tensor}: leave it out")]
    Unused {
        /// Which tensor.
        tensor: &'static str,
    },
    /// Value heads that are not a multiple of the key heads.
    #[error("{heads} value heads cannot be grouped over {key_heads} key heads: not a multiple")]
    Groups {
        /// Value heads.
        heads: usize,
        /// Query and key heads.
        key_heads: usize,
    },
    /// Offsets that do not cut the tokens into sequences.
    #[error("sequence offsets must rise from 0 to {tokens} (the tokens), got {got} at position {position}")]
    Offsets {
        /// Number of tokens.
        tokens: usize,
        /// The wrong offset.
        got: usize,
        /// Its position.
        position: usize,
    },
    /// Tokens without a sequence.
    #[error("sequence offsets must rise from 0 to {tokens} (the tokens), got no sequence: [0, {tokens}] is one")]
    NoOffsets {
        /// Number of tokens.
        tokens: usize,
    },
    /// A size that must not be zero.
    #[error("{what} must be at least 1, got 0")]
    Zero {
        /// Which size.
        what: &'static str,
    },
    /// A tensor with more elements than an array can hold, as a broadcast view can claim.
    #[error("{tokens} tokens of {heads} {what} and width {dim} are more than an array can hold")]
    TooLarge {
        /// Tokens.
        tokens: usize,
        /// Which heads.
        what: &'static str,
        /// How many of them.
        heads: usize,
        /// Width.
        dim: usize,
    },
    /// A state with more elements than an array can hold.
    #[error(
        "the state of {sequences} sequences of {heads} heads, {key_heads} key heads, dim_k {dim_k}, dim_v {dim_v} and window {window} is more than an array can hold"
    )]
    StateTooLarge {
        /// Sequences.
        sequences: usize,
        /// Value heads.
        heads: usize,
        /// Query and key heads.
        key_heads: usize,
        /// Width of a key.
        dim_k: usize,
        /// Width of a value.
        dim_v: usize,
        /// Pairs in the window.
        window: usize,
    },
    /// A chunk that would need too much working memory.
    #[error(
        "a chunk of {chunk} tokens with window {window} is too long: together at most {most}; use shorter chunks or the recurrent form"
    )]
    ChunkTooLong {
        /// Tokens per chunk.
        chunk: usize,
        /// The rule's window.
        window: usize,
        /// The most that their sum may be.
        most: usize,
    },
    /// A tail with more pairs than the window can use.
    #[error("sequence {sequence} has a tail of {tail} pairs, the window can use at most {most}")]
    TailTooLong {
        /// Which sequence.
        sequence: usize,
        /// Pairs in its tail.
        tail: usize,
        /// Pairs that the window holds besides its newest one.
        most: usize,
    },
    /// NaN or infinity in the input.
    #[error("{tensor}{index:?} is {value}: inputs must be finite")]
    NotFinite {
        /// Which tensor.
        tensor: &'static str,
        /// Its index.
        index: Vec<usize>,
        /// The value.
        value: f64,
    },
    /// A gain, ridge or gate outside the range the rule needs.
    #[error("{tensor}{index:?} is {value}: {meaning} must be {}", range(*.low, *.high))]
    Range {
        /// Which tensor.
        tensor: &'static str,
        /// Its index.
        index: Vec<usize>,
        /// The value.
        value: f64,
        /// What the number means.
        meaning: &'static str,
        /// The smallest value allowed.
        low: f64,
        /// The largest value allowed.
        high: f64,
    },
    /// A sequence for which the masked form would need too much memory.
    #[error(
        "a sequence of {tokens} tokens with window {window} is too long for the masked form, at most {most} tokens: use chunked or recurrent"
    )]
    MaskedTooLong {
        /// Tokens of the longest sequence.
        tokens: usize,
        /// The rule's window.
        window: usize,
        /// The longest sequence that it can run with that window.
        most: usize,
    },
    /// A tape that recorded another call than the one it is given.
    #[error("the tape recorded the {what} {recorded}, the call has {got}: pass the call that was recorded")]
    OtherCall {
        /// What differs.
        what: &'static str,
        /// As it was recorded.
        recorded: String,
        /// As the call has it.
        got: String,
    },
    /// A decoding step over another number of tokens than one of each sequence.
    #[error("a step takes 1 token of each sequence, got {got} of sequence {sequence}")]
    OneToken {
        /// Which sequence.
        sequence: usize,
        /// Its tokens.
        got: usize,
    },
    /// A tail without a last key.
    #[error("sequence {sequence} has a tail of {tail} pairs but no last key: next-latent alignment needs both")]
    TailWithoutKey {
        /// Which sequence.
        sequence: usize,
        /// Pairs in its tail.
        tail: usize,
    },
    /// An error in the gradient of the outgoing state.
    #[error("grad_state: {0}")]
    GradState(Box<Error>),
    /// A state that was made for another rule or other sizes.
    #[error("the state has {what} {got}, the call needs {expected}")]
    State {
        /// Which size.
        what: &'static str,
        /// Its value in the state.
        got: usize,
        /// Its value in the call.
        expected: usize,
    },
}

fn range(low: f64, high: f64) -> String {
    if high == f64::INFINITY { format!("finite and at least {low}") } else { format!("in [{low}, {high}]") }
}

fn curvature(curved: bool) -> &'static str {
    if curved { ": the curvature of a window costs its cube at every step" } else { "" }
}

fn strided(strides: &Option<[usize; 2]>) -> String {
    strides.map_or(String::new(), |strides| format!(" and strides {strides:?}"))
}

pub(crate) fn counted(needed: &Option<usize>) -> String {
    needed.map_or("more than can be addressed".into(), |needed| needed.to_string())
}
