//! The models of the paper, by name. A preset is data: a mixer's options, and sizes.

use falcon_kernels::Rule;
use falcon_kernels::rule::{Align, Read};

use crate::config::{
    Activation, ConfigError, DecayGate, FeatureMap, GainGate, MixerConfig, ModelConfig, OutputGate, OutputNorm,
    QkNorm, SOFTMAX, WIDEST, between, nearest,
};

/// Names of all presets.
pub const PRESETS: [&str; 14] = [
    "falcon-1a.1",
    "falcon-1a.2",
    "falcon-1a.3",
    "falcon-2a.3",
    "falcon-3a.3",
    "falcon-1.3",
    "falcon-2.3",
    "falcon-3.3",
    "transformer",
    "linear-attention",
    "retnet",
    "mamba2",
    "deltanet",
    "gated-deltanet",
];

/// Names of all sizes.
pub const SIZES: [&str; 5] = ["micro", "tiny", "small", "130m", "340m"];

/// What a size means before a preset adapts it.
struct Size {
    hidden: usize,
    layers: usize,
    heads: usize,
    /// Inner width of the SwiGLU beside attention.
    intermediate: usize,
    /// The same beside a mixer that has as many parameters as attention: some sizes give all models but the Transformer a little more.
    wider: usize,
    /// For mixers with a matrix more.
    gated: usize,
    /// Layers of a model without SwiGLU.
    alone: usize,
}

fn size(name: &str) -> Result<Size, ConfigError> {
    Ok(match name {
        "micro" => Size { hidden: 128, layers: 2, heads: 4, intermediate: 352, wider: 352, gated: 320, alone: 3 },
        "tiny" => Size { hidden: 128, layers: 4, heads: 4, intermediate: 352, wider: 352, gated: 320, alone: 6 },
        "small" => Size { hidden: 320, layers: 8, heads: 5, intermediate: 768, wider: 768, gated: 672, alone: 12 },
        "130m" => {
            Size { hidden: 768, layers: 12, heads: 12, intermediate: 2048, wider: 2304, gated: 2048, alone: 24 }
        }
        "340m" => {
            Size { hidden: 1024, layers: 24, heads: 16, intermediate: 2560, wider: 2560, gated: 2240, alone: 44 }
        }
        _ => {
            let known = nearest(name, SIZES);
            return Err(ConfigError::Unknown { what: "size", got: name.into(), known });
        }
    })
}

impl MixerConfig {
    /// A mixer by name, for a residual stream of `hidden` numbers: as in the paper, or to be changed from there. `mamba2` has heads of its own,
    /// and does not look at `heads`.
    pub fn preset(name: &str, hidden: usize, heads: usize) -> Result<Self, ConfigError> {
        let wrong =
            |name, range: String, got: usize| Err(ConfigError::Number { name, range, got: got.to_string() });
        if heads == 0 {
            return wrong("num_heads", "1 at least".into(), heads);
        }
        between("hidden_size", hidden, 1, WIDEST)?;
        // Mamba-2 has heads of its own.
        if name != "mamba2" && !hidden.is_multiple_of(heads) {
            return wrong("hidden_size", format!("a multiple of num_heads = {heads}"), hidden);
        }
        let width = hidden / heads;
        let base = |mixer: &str| Self {
            mixer: mixer.into(),
            num_heads: heads,
            num_key_heads: heads,
            head_dim: width,
            head_v_dim: width,
            conv_size: 4,
            conv_activation: Activation::None,
            qk_norm: QkNorm::Rms,
            feature_map: FeatureMap::Identity,
            scale_queries: false,
            value_norm: false,
            window: Rule::ALL.iter().find(|(known, _)| *known == mixer).map_or(1, |(_, rule)| rule.window),
            align: Align::Same,
            read: Read::After,
            gain: GainGate::None,
            decay: DecayGate::None,
            lambda_scale: 1.0,
            output_norm: OutputNorm::Head,
            output_gate: OutputGate::None,
            value_skip: false,
            rope_theta: None,
            norm_eps: 1e-6,
        };
        // Next-latent alignment and a context-conditioned ridge; the number says how keys and step size are normalised.
        let falcon = |rule: &str, qk_norm, gain| Self {
            align: Align::Next,
            qk_norm,
            gain,
            decay: DecayGate::Lambda,
            ..base(rule)
        };
        let config = match name {
            "falcon-1a.1" => falcon("falcon-1a", QkNorm::L2, GainGate::Beta),
            "falcon-1a.2" => falcon("falcon-1a", QkNorm::L2, GainGate::Eta),
            "falcon-1a.3" => falcon("falcon-1a", QkNorm::Rms, GainGate::Eta),
            "falcon-2a.3" => falcon("falcon-2a", QkNorm::Rms, GainGate::Eta),
            "falcon-3a.3" => falcon("falcon-3a", QkNorm::Rms, GainGate::Eta),
            "falcon-1.3" => falcon("falcon-1", QkNorm::Rms, GainGate::Eta),
            "falcon-2.3" => falcon("falcon-2", QkNorm::Rms, GainGate::Eta),
            "falcon-3.3" => falcon("falcon-3", QkNorm::Rms, GainGate::Eta),
            "transformer" => Self {
                conv_size: 0,
                qk_norm: QkNorm::None,
                output_norm: OutputNorm::None,
                rope_theta: Some(10_000.0),
                ..base(SOFTMAX)
            },
            // Katharopoulos et al.: φ = ELU + 1, divided by the total weight.
            "linear-attention" => Self {
                conv_size: 0,
                qk_norm: QkNorm::None,
                feature_map: FeatureMap::EluPlusOne,
                output_norm: OutputNorm::None,
                ..base("normalised-linear-attention")
            },
            // Sun et al.: rotary positions, a fixed decay per head, group norm, swish gate.
            "retnet" => Self {
                conv_size: 0,
                qk_norm: QkNorm::None,
                scale_queries: true,
                decay: DecayGate::Fixed,
                output_gate: OutputGate::AfterNorm,
                rope_theta: Some(10_000.0),
                ..base("retnet")
            },
            // Dao and Gu: twice the width, one group of B and C, no SwiGLU beside it.
            "mamba2" if 2 * hidden > 64 && !hidden.is_multiple_of(32) => {
                return wrong("hidden_size", "a multiple of 32, half the width of a Mamba-2 head".into(), hidden);
            }
            "mamba2" => Self {
                num_heads: 2 * hidden / 64.min(2 * hidden),
                num_key_heads: 1,
                head_dim: 128.min(hidden),
                head_v_dim: 64.min(2 * hidden),
                conv_activation: Activation::Silu,
                qk_norm: QkNorm::None,
                gain: GainGate::Delta,
                decay: DecayGate::Selective,
                output_norm: OutputNorm::All,
                output_gate: OutputGate::BeforeNorm,
                value_skip: true,
                ..base("mamba-2")
            },
            // Yang et al.: SiLU after the convolution, keys of length 1.
            "deltanet" => Self {
                conv_activation: Activation::Silu,
                qk_norm: QkNorm::L2,
                gain: GainGate::Sigmoid,
                ..base("deltanet")
            },
            "gated-deltanet" => Self {
                conv_activation: Activation::Silu,
                qk_norm: QkNorm::L2,
                gain: GainGate::Sigmoid,
                decay: DecayGate::Selective,
                output_gate: OutputGate::AfterNorm,
                ..base("gated-deltanet")
            },
            _ => {
                let known = nearest(name, PRESETS);
                return Err(ConfigError::Unknown { what: "preset", got: name.into(), known });
            }
        };
        config.validate()?;
        Ok(config)
    }
}

impl ModelConfig {
    /// A model by the names of a preset and a size.
    pub fn preset(name: &str, size_name: &str, vocab_size: usize) -> Result<Self, ConfigError> {
        let Size { hidden, layers, heads, intermediate, wider, gated, alone } = size(size_name)?;
        let mixer = MixerConfig::preset(name, hidden, heads)?;
        let (layers, intermediate) = match (name, mixer.each_column(), mixer.output_gate) {
            ("transformer", ..) => (layers, intermediate),
            ("mamba2", ..) => (alone, 0),
            // A matrix more, for the gains or for the gate.
            (_, true, _) | (_, _, OutputGate::AfterNorm | OutputGate::BeforeNorm) => (layers, gated),
            _ => (layers, wider),
        };
        let config = Self {
            vocab_size,
            hidden_size: hidden,
            num_hidden_layers: layers,
            intermediate_size: intermediate,
            tie_word_embeddings: true,
            initializer_range: 0.02,
            mup_base_width: 128,
            mixer,
        };
        config.validate()?;
        Ok(config)
    }
}
