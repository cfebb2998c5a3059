//! What every layer of a model receives besides its input.

use crate::ops::Engine;
use crate::probe::Probe;
use crate::rotary::Rotary;
use crate::sequences::Sequences;

/// What all layers share in one call.
pub(crate) struct Context<'a, 'p> {
    /// The engine that the layers compute with.
    pub engine: Engine,
    /// How the tokens are divided into sequences.
    pub sequences: &'a Sequences,
    /// Rotary positions of the tokens, if the model has them.
    pub rotary: Option<Rotary>,
    /// Observer of intermediate tensors.
    pub probe: &'a mut Probe<'p>,
}
