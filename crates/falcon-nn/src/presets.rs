//! The models of the paper and those it compares with, by name. A preset is data: the options of a mixer, and sizes.

use falcon_base::nearest;

use crate::config::{ConfigError, MixerConfig, MixerKind, ModelConfig, WIDEST, between};
use crate::options::{Activation, DecayGate, FeatureMap, GainGate, MatrixInit, OutputGate, OutputNorm, QkNorm};

/// Names of all presets.
pub const PRESETS: &[&str] = &[
    "falcon-1a.1",
    "falcon-1a.2",
    "falcon-1a.3",
    "falcon-2a.3",
    "falcon-3a.3",
    "falcon-1.3",
    "falcon-2.3",
    "falcon-3.1",
    "falcon-3.3",
    "falcon-1a-deep",
    "transformer",
    "linear-attention",
    "retnet",
    "lightning",
    "mamba2",
    "deltanet",
    "gated-deltanet",
];

/// Names of all sizes.
pub const SIZES: &[&str] = &["micro", "tiny", "tiny-wide", "small", "130m", "340m"];

/// The dimensions of a size, before a preset adapts them.
struct Dimensions {
    hidden: usize,
    layers: usize,
    heads: usize,
    /// Width of a head. The heads together may be wider than the residual stream.
    head_dim: usize,
    /// Inner width of Falcon's SwiGLU, 8/3 of the hidden size. Models with other mixers get the width that gives a
    /// block the same number of parameters.
    intermediate: usize,
    /// Inner width of the Transformer's SwiGLU, for sizes at which the paper's Transformer has fewer parameters than
    /// the models it is compared with.
    transformer: Option<usize>,
    /// Number of layers of a model without SwiGLU.
    layers_without_swiglu: usize,
}

fn size(name: &str) -> Result<Dimensions, ConfigError> {
    // 320 is the multiple of 64 nearest to 8/3 of this hidden size, and comes closest to the number of parameters that
    // Mamba-2 can have with whole layers.
    let tiny = Dimensions {
        hidden: 128,
        layers: 4,
        heads: 4,
        head_dim: 32,
        intermediate: 320,
        transformer: None,
        layers_without_swiglu: 6,
    };
    Ok(match name {
        "micro" => Dimensions { layers: 2, layers_without_swiglu: 3, ..tiny },
        "tiny" => tiny,
        // Addition of many digits needs several heads that are not narrow.
        "tiny-wide" => Dimensions { head_dim: 64, intermediate: 336, layers_without_swiglu: 9, ..tiny },
        "small" => Dimensions {
            hidden: 320,
            layers: 8,
            heads: 5,
            head_dim: 64,
            intermediate: 864,
            transformer: None,
            layers_without_swiglu: 15,
        },
        "130m" => Dimensions {
            hidden: 768,
            layers: 12,
            heads: 6,
            head_dim: 128,
            intermediate: 2048,
            transformer: Some(2048),
            layers_without_swiglu: 24,
        },
        "340m" => Dimensions {
            hidden: 1024,
            layers: 24,
            heads: 8,
            head_dim: 128,
            intermediate: 2730,
            transformer: Some(2730),
            layers_without_swiglu: 50,
        },
        _ => {
            let known = nearest(name, SIZES.iter().copied());
            return Err(ConfigError::Unknown { what: "size", got: name.into(), known });
        }
    })
}

impl MixerConfig {
    /// The mixer of a preset, for a model of hidden size `hidden`. Any field may then be changed. The presets without
    /// a SwiGLU, `mamba2` and `falcon-1a-deep`, choose their number of heads themselves and ignore `heads`.
    pub fn preset(name: &str, hidden: usize, heads: usize) -> Result<Self, ConfigError> {
        let wrong =
            |name, range: String, got: usize| Err(ConfigError::Number { name, range, got: got.to_string() });
        if name.contains('@') {
            let second = "the hidden_size and num_heads of its size; set head_dim instead".into();
            return Err(ConfigError::Together { first: "a preset NAME@OTHER".into(), second });
        }
        if heads == 0 {
            return wrong("num_heads", "at least 1".into(), heads);
        }
        between("hidden_size", hidden, 1, WIDEST)?;
        if !stands_alone(name) && !hidden.is_multiple_of(heads) {
            return wrong("hidden_size", format!("a multiple of num_heads = {heads}"), hidden);
        }
        Self::with_heads(name, hidden, heads, hidden / heads)
    }

    /// The mixer of a preset with heads of a given width, which need not divide the hidden size.
    fn with_heads(name: &str, hidden: usize, heads: usize, width: usize) -> Result<Self, ConfigError> {
        let wrong =
            |name, range: String, got: usize| Err(ConfigError::Number { name, range, got: got.to_string() });
        let base = |kind: MixerKind| {
            let (window, align, read) = kind.timing();
            Self {
                mixer: kind,
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
                window,
                align,
                read,
                gain: GainGate::None,
                decay: DecayGate::None,
                lambda_scale: 0.95,
                lambda_init: [0.01, 0.01],
                step_eps: 1e-3,
                gamma_floor: Some(0.01),
                output_norm: OutputNorm::Head,
                output_gate: OutputGate::None,
                value_skip: false,
                rope_theta: None,
                norm_eps: 1e-5,
            }
        };
        let rule = |name: &str| base(name.parse().expect("presets name rules that exist"));
        // The authors' block: SiLU after the convolution, a ridge computed from the context, a gate on the output. The
        // digit after the dot stands for the normalisation of keys and step size.
        let falcon = |name: &str, qk_norm, gain| Self {
            conv_activation: Activation::Silu,
            qk_norm,
            gain,
            decay: DecayGate::Lambda,
            output_gate: OutputGate::AfterNorm,
            ..rule(name)
        };
        // Mamba-2's block: a mixer twice as wide as the residual stream, and no SwiGLU.
        let mamba_block = |name: &str| Self {
            num_heads: 2 * hidden / 64.min(2 * hidden),
            num_key_heads: 1,
            head_dim: 128.min(hidden),
            head_v_dim: 64.min(2 * hidden),
            conv_activation: Activation::Silu,
            output_norm: OutputNorm::All,
            output_gate: OutputGate::BeforeNorm,
            value_skip: true,
            ..rule(name)
        };
        let config = match name {
            "falcon-1a.1" => falcon("falcon-1a", QkNorm::L2, GainGate::Beta),
            "falcon-1a.2" => falcon("falcon-1a", QkNorm::L2, GainGate::Eta),
            "falcon-1a.3" => falcon("falcon-1a", QkNorm::Rms, GainGate::Eta),
            "falcon-2a.3" => falcon("falcon-2a", QkNorm::Rms, GainGate::Eta),
            "falcon-3a.3" => falcon("falcon-3a", QkNorm::Rms, GainGate::Eta),
            "falcon-1.3" => falcon("falcon-1", QkNorm::Rms, GainGate::Eta),
            "falcon-2.3" => falcon("falcon-2", QkNorm::Rms, GainGate::Eta),
            "falcon-3.1" => falcon("falcon-3", QkNorm::L2, GainGate::Beta),
            "falcon-3.3" => falcon("falcon-3", QkNorm::Rms, GainGate::Eta),
            // The authors' baseline: rotary positions, RMS norm of queries and keys.
            "transformer" => Self {
                conv_size: 0,
                output_norm: OutputNorm::None,
                rope_theta: Some(10_000.0),
                ..base(MixerKind::Softmax)
            },
            // Katharopoulos et al.: φ = ELU + 1, divided by the total weight.
            "linear-attention" => Self {
                conv_size: 0,
                qk_norm: QkNorm::None,
                feature_map: FeatureMap::EluPlusOne,
                output_norm: OutputNorm::None,
                ..rule("normalised-linear-attention")
            },
            // Sun et al.: rotary positions, a fixed decay per head, values twice as wide as keys, group norm,
            // swish gate.
            "retnet" => Self {
                head_v_dim: 2 * width,
                conv_size: 0,
                qk_norm: QkNorm::None,
                scale_queries: true,
                decay: DecayGate::Fixed,
                output_gate: OutputGate::AfterNorm,
                rope_theta: Some(10_000.0),
                ..rule("retnet")
            },
            // Qin et al.: a fixed decay per head and layer, SiLU features, a norm over all heads, a gate.
            "lightning" => Self {
                conv_size: 0,
                qk_norm: QkNorm::None,
                feature_map: FeatureMap::Silu,
                decay: DecayGate::Lightning,
                output_norm: OutputNorm::All,
                output_gate: OutputGate::AfterNorm,
                ..rule("retnet")
            },
            // Dao and Gu: twice the width, one group of B and C, no SwiGLU.
            "mamba2" | "falcon-1a-deep" if 2 * hidden > 64 && !hidden.is_multiple_of(32) => {
                return wrong("hidden_size", "a multiple of 32, half the width of a Mamba-2 head".into(), hidden);
            }
            "mamba2" => Self {
                qk_norm: QkNorm::None,
                gain: GainGate::Delta,
                decay: DecayGate::Selective,
                ..mamba_block("mamba-2")
            },
            // Ours: the rule and the gates of Falcon-1A.1 in Mamba-2's block, with different initial ridges in its
            // heads. In place of the SwiGLU it has more layers.
            "falcon-1a-deep" => Self {
                qk_norm: QkNorm::L2,
                gain: GainGate::Beta,
                decay: DecayGate::Lambda,
                lambda_init: [0.0067, 0.119],
                ..mamba_block("falcon-1a")
            },
            // Yang et al.: SiLU after the convolution, keys of length 1.
            "deltanet" => Self {
                conv_activation: Activation::Silu,
                qk_norm: QkNorm::L2,
                gain: GainGate::Sigmoid,
                ..rule("deltanet")
            },
            // Yang et al.: keys of three quarters of the width, values twice as wide, a decay from context, a
            // gate.
            "gated-deltanet" => Self {
                head_dim: (3 * width / 4).max(1),
                head_v_dim: 2 * (3 * width / 4).max(1),
                conv_activation: Activation::Silu,
                qk_norm: QkNorm::L2,
                gain: GainGate::Sigmoid,
                decay: DecayGate::Selective,
                output_gate: OutputGate::AfterNorm,
                ..rule("gated-deltanet")
            },
            _ => {
                let known = nearest(name, PRESETS.iter().copied());
                return Err(ConfigError::Unknown { what: "preset", got: name.into(), known });
            }
        };
        config.validate()?;
        Ok(config)
    }
}

/// Whether a preset has no SwiGLU, and more layers instead.
fn stands_alone(preset: &str) -> bool {
    matches!(preset, "mamba2" | "falcon-1a-deep")
}

/// Where the width of the SwiGLU compensates for the parameters of a mixer, it changes in steps of this size.
const STEP: f64 = 8.0;

impl ModelConfig {
    /// The model of a preset and a size. `NAME@OTHER` is the preset `NAME` with keys made narrower or wider until its
    /// memory is as large as that of the preset `OTHER`.
    pub fn preset(name: &str, size_name: &str, vocab_size: usize) -> Result<Self, ConfigError> {
        let size = size(size_name)?;
        let (base, other) = name.split_once('@').map_or((name, None), |(base, other)| (base, Some(other)));
        let mut mixer = MixerConfig::with_heads(base, size.hidden, size.heads, size.head_dim)?;
        let layers = if stands_alone(base) { size.layers_without_swiglu } else { size.layers };
        if let Some(other) = other {
            let other = Self::preset(other, size_name, vocab_size)?;
            mixer.match_memory(&other.mixer, other.num_hidden_layers as f64 / layers as f64)?;
        }
        let intermediate_size = match (base, size.transformer) {
            (base, _) if stands_alone(base) => 0,
            ("transformer", Some(given)) => given,
            _ => {
                let falcon = MixerConfig::with_heads("falcon-1a.3", size.hidden, size.heads, size.head_dim)?;
                let count = |mixer: &MixerConfig| mixer.parameter_count(size.hidden) as f64;
                let spare = (count(&falcon) - count(&mixer)) / (3 * size.hidden) as f64;
                let inner = size.intermediate as f64 + STEP * (spare / STEP).round();
                inner.max(STEP) as usize
            }
        };
        let config = Self {
            vocab_size,
            hidden_size: size.hidden,
            num_hidden_layers: layers,
            intermediate_size,
            tie_word_embeddings: true,
            initializer_range: 0.02,
            matrix_init: MatrixInit::HalfWidth,
            mup_base_width: 1024,
            mixer,
        };
        config.validate()?;
        Ok(config)
    }
}

impl MixerConfig {
    /// Makes keys narrower or wider until the memory has `share` times as many numbers as that of `other`, as nearly
    /// as even widths allow.
    fn match_memory(&mut self, other: &Self, share: f64) -> Result<(), ConfigError> {
        for (preset, config) in [("NAME", &*self), ("OTHER", other)] {
            if config.mixer.attends() {
                let second = format!("memories of fixed size; that of {preset} grows with the sequence");
                return Err(ConfigError::Together { first: "a preset NAME@OTHER".into(), second });
            }
        }
        let wanted = share * other.memory_size() as f64 / (self.num_heads * self.head_v_dim) as f64;
        self.head_dim = 2 * ((wanted / 2.0).round() as usize).max(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The models of one size have the same number of parameters within 2%; the paper's Transformer has fewer.
    #[test]
    fn models_of_one_size_have_equally_many_parameters() {
        for (size, vocabulary) in
            [("micro", 4096), ("tiny", 4096), ("tiny-wide", 14), ("small", 8192), ("130m", 50257), ("340m", 50257)]
        {
            let count = |name: &str| ModelConfig::preset(name, size, vocabulary).unwrap().parameter_count() as f64;
            let falcon = count("falcon-1a.3");
            for &name in PRESETS {
                let paper = name == "transformer" && matches!(size, "130m" | "340m");
                let (least, most) = if paper { (0.92, 0.95) } else { (0.98, 1.02) };
                let ratio = count(name) / falcon;
                assert!((least..=most).contains(&ratio), "{size} {name}: {ratio:.3} of {falcon}");
            }
        }
        let parameters = |name| ModelConfig::preset(name, "130m", 50257).unwrap().parameter_count();
        assert_eq!(parameters("transformer") / 100_000, 1235, "123.5M");
        assert_eq!(parameters("falcon-1a.3") / 100_000, 1308, "130.6M, and what convolutions and gates have");
    }

    #[test]
    fn name_at_other_has_as_much_memory_as_other() {
        let memory = |name: &str| {
            let config = ModelConfig::preset(name, "tiny", 256).unwrap();
            config.num_hidden_layers * config.mixer.memory_size()
        };
        let falcon = memory("falcon-1a.3");
        assert_eq!(falcon, 4 * 4 * 32 * 32);
        for name in ["retnet", "lightning", "mamba2", "deltanet", "gated-deltanet", "falcon-2.3"] {
            let ratio = memory(&format!("{name}@falcon-1a.3")) as f64 / falcon as f64;
            assert!((0.93..=1.07).contains(&ratio), "{name}: {ratio}");
        }
        assert!(memory("mamba2") > 10 * falcon);
        let refusal = |name: &str| ModelConfig::preset(name, "tiny", 256).unwrap_err().to_string();
        assert!(refusal("transformer@retnet").contains("that of NAME grows"), "{}", refusal("transformer@retnet"));
        assert!(refusal("retnet@transformer").contains("that of OTHER grows"));
        assert!(refusal("retnet@mamba").contains("did you mean \"mamba2\"?"), "{}", refusal("retnet@mamba"));
    }
}
