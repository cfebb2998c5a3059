//! What a mechanism remembers of the tokens it has read. When a layer runs, this is the only place that distinguishes
//! the mechanisms; what each of them does is in a file of its own.

use burn::tensor::{Int, Tensor};

use super::arrays::{Arrays, StateArrays};
use super::attention::{Cache, attend};
use super::gate::{Gate, Gates, Logits};
use super::owner::Owner;
use super::rule;
use crate::config::Mechanism;
use crate::context::Context;
use crate::file_error::FileError;
use crate::ops::rule::RuleState;
use crate::ops::tensor::RuleInputs;

/// The memory of a mechanism, for a batch of sequences.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    Rule(RuleState),
    Cache(Cache),
}

/// What a layer hands to its mechanism: queries, keys and values, `[tokens, heads, dim]` each, and the gates.
pub(super) struct MechanismInputs<'a> {
    pub q: Tensor<3>,
    pub k: Tensor<3>,
    pub v: Tensor<3>,
    pub gate: &'a Gate,
    pub logits: Logits,
}

const OTHER_MIXER: &str = "the state belongs to another mixer";

impl Memory {
    /// The memory before any token.
    pub fn fresh(owner: &Owner<'_>, sequences: usize) -> Self {
        match owner.mechanism {
            Mechanism::Rule(rule) => Self::Rule(rule::fresh(owner, rule, sequences)),
            Mechanism::Softmax => Self::Cache(Cache::default()),
        }
    }

    /// Reads the next tokens; returns the outputs and the memory after them.
    pub fn advance(
        self,
        mechanism: &Mechanism,
        inputs: MechanismInputs<'_>,
        context: &mut Context<'_, '_>,
    ) -> (Tensor<3>, Self) {
        let MechanismInputs { q, k, v, gate, logits } = inputs;
        match mechanism {
            Mechanism::Rule(rule) => {
                let gates = gate.forward(rule, logits, &q.device(), context);
                gate.show(rule, &gates, context.probe);
                let Gates { gain, decay } = gates;
                let inputs = RuleInputs { q, k, v, gain, decay };
                let (read, memory) = crate::ops::rule::rule(rule, inputs, context.sequences, self.into_rule());
                (read, Self::Rule(memory))
            }
            Mechanism::Softmax => {
                let (read, cache) = attend(q, k, v, self.into_cache(), context);
                (read, Self::Cache(cache))
            }
        }
    }

    /// The memories of the given sequences out of `all`, in this order. `rows` holds the same indices as a tensor.
    pub fn select(&self, owner: &Owner<'_>, sequences: &[usize], all: usize, rows: Tensor<1, Int>) -> Self {
        match owner.mechanism {
            Mechanism::Rule(rule) => Self::Rule(rule::select(owner, rule, self.as_rule(), sequences)),
            Mechanism::Softmax => Self::Cache(self.as_cache().select(sequences, all, rows)),
        }
    }

    /// One memory of the sequences of several, each given with its number of sequences.
    pub fn join(owner: &Owner<'_>, memories: &[(&Self, usize)]) -> Self {
        match owner.mechanism {
            Mechanism::Rule(rule) => {
                Self::Rule(rule::join(owner, rule, memories.iter().map(|(memory, _)| memory.as_rule())))
            }
            Mechanism::Softmax => {
                let caches = memories.iter().map(|(memory, sequences)| (memory.as_cache().clone(), *sequences));
                Self::Cache(Cache::join(caches.collect()))
            }
        }
    }

    /// All that has to be saved, besides the positions of the sequences.
    pub fn arrays(&self, owner: &Owner<'_>) -> StateArrays {
        match owner.mechanism {
            Mechanism::Rule(rule) => rule::arrays(rule, self.as_rule()),
            Mechanism::Softmax => self.as_cache().arrays(),
        }
    }

    /// The inverse of [`Memory::arrays`], for sequences that have read `positions` tokens.
    pub fn restore(owner: &Owner<'_>, positions: &[usize], arrays: &mut Arrays) -> Result<Self, FileError> {
        Ok(match owner.mechanism {
            Mechanism::Rule(rule) => Self::Rule(rule::restore(owner, rule, positions, arrays)?),
            Mechanism::Softmax => Self::Cache(Cache::restore(owner, positions, arrays)?),
        })
    }

    /// How many numbers it holds.
    pub fn size(&self) -> usize {
        match self {
            Self::Rule(memory) => memory.size(),
            Self::Cache(cache) => cache.size(),
        }
    }

    fn as_rule(&self) -> &RuleState {
        let Self::Rule(memory) = self else { panic!("{OTHER_MIXER}") };
        memory
    }

    fn into_rule(self) -> RuleState {
        let Self::Rule(memory) = self else { panic!("{OTHER_MIXER}") };
        memory
    }

    fn as_cache(&self) -> &Cache {
        let Self::Cache(cache) = self else { panic!("{OTHER_MIXER}") };
        cache
    }

    fn into_cache(self) -> Cache {
        let Self::Cache(cache) = self else { panic!("{OTHER_MIXER}") };
        cache
    }
}
