//! What a mixer keeps of a sequence.

use burn::tensor::Device;
use falcon_kernels::{Rule, Sizes};

use super::attention::Cache;
use super::project::ConvState;
use crate::config::MixerConfig;
use crate::ops::Path;
use crate::ops::rule::RuleState;

/// What a mixer keeps of a batch of sequences: of fixed size, unless it is softmax attention.
#[derive(Clone, Debug)]
pub struct MixerState {
    pub(crate) conv: ConvState,
    pub(crate) memory: Memory,
    /// Tokens of each sequence so far.
    pub(crate) positions: Vec<usize>,
}

/// The memory proper.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// Always there between calls.
    Rule(Option<RuleState>),
    Cache(Cache),
}

impl MixerState {
    pub(crate) fn fresh(
        config: &MixerConfig,
        rule: Option<&Rule>,
        path: Path,
        sequences: usize,
        device: &Device,
    ) -> Self {
        let sizes = Sizes {
            tokens: 0,
            sequences,
            heads: config.num_heads,
            key_heads: config.num_key_heads,
            dim_k: config.head_dim,
            dim_v: config.head_v_dim,
        };
        let memory = match rule {
            Some(rule) => Memory::Rule(Some(RuleState::fresh(path, rule, &sizes, device))),
            None => Memory::Cache(Cache::default()),
        };
        Self { conv: [None, None, None], memory, positions: vec![0; sequences] }
    }
}
