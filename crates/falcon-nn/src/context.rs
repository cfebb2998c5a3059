//! What every layer of a model is handed with its input.

use crate::ops::Engine;
use crate::probe::Probe;
use crate::rotary::Rotary;
use crate::sequences::Sequences;

/// One call, as all its layers see it.
pub(crate) struct Context<'a, 'p> {
    /// How the layers compute.
    pub engine: Engine,
    /// How the tokens fall into sequences.
    pub sequences: &'a Sequences,
    /// Rotary positions of the tokens, if the model has them.
    pub rotary: Option<Rotary>,
    /// Observer of intermediate tensors.
    pub probe: &'a mut Probe<'p>,
}
