//! Everything that can be wrong with a call, each with its numbers.

use std::fmt;

use thiserror::Error;

/// A constant of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// `ε` of the step size.
    Eps,
    /// `ε_γ`, the least carry that a ridge leaves.
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

/// A combination of options that is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum RuleError {
    /// A window of no pairs writes nothing.
    #[error("the window must hold at least 1 pair, got 0")]
    EmptyWindow,
    /// A window nobody can mean: every state would hold that many pairs.
    #[error("a window of {window} pairs is too long, at most {most}{}", curvature(*.curved))]
    WindowTooLong {
        /// The window asked for.
        window: usize,
        /// The longest allowed.
        most: usize,
        /// Whether it is limited because the rule asks for its curvature.
        curved: bool,
    },
    /// No kernel does both.
    #[error("per-column gains need window 1, got {window}")]
    ColumnsWithWindow {
        /// The window asked for.
        window: usize,
    },
    /// There is no gain to give each column.
    #[error("a unit gain cannot be per-column: use gain beta or eta, or shared columns")]
    ColumnsWithoutGain,
    /// A regression write has no weight to divide by.
    #[error("only inner-product rules can be normalised: a regression write is not a weighted sum")]
    NormalisedRegression,
    /// The normaliser is one column and would need a gain of its own.
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
    /// The rule itself is impossible.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A tensor of the wrong shape.
    #[error("{tensor} has shape {got:?}, expected {expected:?} ({meaning})")]
    Shape {
        /// Which tensor.
        tensor: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// The shape that fits the others.
        expected: Vec<usize>,
        /// What the axes are.
        meaning: &'static str,
    },
    /// A slice that is too short for how it is viewed, or too long for an array without strides.
    #[error("a view of shape {shape:?}{} needs {} elements, got {got}", strided(.strides), counted(.needed))]
    View {
        /// The shape.
        shape: [usize; 3],
        /// From one token, and from one head, to the next, if they were given.
        strides: Option<[usize; 2]>,
        /// Elements needed, if they can be counted.
        needed: Option<usize>,
        /// Elements there.
        got: usize,
    },
    /// An array of the wrong length.
    #[error("{tensor} has {got} elements, expected {needed}")]
    Length {
        /// Which tensor.
        tensor: &'static str,
        /// Elements there.
        got: usize,
        /// Elements needed.
        needed: usize,
    },
    /// A tensor the rule reads was not given.
    #[error("the rule needs {tensor}, which was not given")]
    Missing {
        /// Which tensor.
        tensor: &'static str,
    },
    /// A tensor the rule does not read was given.
    #[error("the rule does not use {tensor}: leave it out")]
    Unused {
        /// Which tensor.
        tensor: &'static str,
    },
    /// Value heads that cannot be shared out among the key heads.
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
        /// The offending offset.
        got: usize,
        /// Where it is.
        position: usize,
    },
    /// Tokens that are in no sequence.
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
    /// A tensor with more elements than can be counted, which only broadcast views can have.
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
    /// A state with more elements than can be counted.
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
    /// A chunk whose working memory would not be sensible.
    #[error(
        "a chunk of {chunk} tokens with window {window} is too long: together at most {most}; use shorter chunks or the recurrent form"
    )]
    ChunkTooLong {
        /// Tokens per chunk.
        chunk: usize,
        /// The rule's window.
        window: usize,
        /// What they may come to.
        most: usize,
    },
    /// A tail longer than the window has use for.
    #[error("sequence {sequence} has a tail of {tail} pairs, the window has use for at most {most}")]
    TailTooLong {
        /// Which sequence.
        sequence: usize,
        /// Pairs in its tail.
        tail: usize,
        /// Pairs the window sees besides its newest.
        most: usize,
    },
    /// NaN or infinity in the input.
    #[error("{tensor}{index:?} is {value}: inputs must be finite")]
    NotFinite {
        /// Which tensor.
        tensor: &'static str,
        /// Where.
        index: Vec<usize>,
        /// What is there.
        value: f64,
    },
    /// A gain, ridge or gate outside the range the rule needs.
    #[error("{tensor}{index:?} is {value}: {meaning} must be {}", range(*.low, *.high))]
    Range {
        /// Which tensor.
        tensor: &'static str,
        /// Where.
        index: Vec<usize>,
        /// What is there.
        value: f64,
        /// What it stands for.
        meaning: &'static str,
        /// Smallest allowed.
        low: f64,
        /// Largest allowed.
        high: f64,
    },
    /// The masked form would need more memory than is sensible.
    #[error(
        "a sequence of {tokens} tokens with window {window} is too long for the masked form, at most {most} tokens: use chunked or recurrent"
    )]
    MaskedTooLong {
        /// Tokens of the longest sequence.
        tokens: usize,
        /// The rule's window.
        window: usize,
        /// The longest it takes with that window.
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
    /// A decoding step takes one token of each sequence.
    #[error("a step takes 1 token of each sequence, got {got} of sequence {sequence}")]
    OneToken {
        /// Which sequence.
        sequence: usize,
        /// Its tokens.
        got: usize,
    },
    /// A tail without the key that must follow it.
    #[error("sequence {sequence} has a tail of {tail} pairs but no last key: next-latent alignment needs both")]
    TailWithoutKey {
        /// Which sequence.
        sequence: usize,
        /// Pairs in its tail.
        tail: usize,
    },
    /// What is wrong with the gradient of the outgoing state.
    #[error("grad_state: {0}")]
    GradState(Box<Error>),
    /// A state made for another rule or other sizes.
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
    needed.map_or("more than can be counted".into(), |needed| needed.to_string())
}
