//! Configurations of models and mixers, as `config.json` holds them.

use std::fmt;
use std::str::FromStr;

use falcon_base::nearest;
use falcon_kernels::rule::{Align, Columns, Decay, Gain, Read};
use falcon_kernels::{Form, Rule, RuleError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::options::{Activation, DecayGate, FeatureMap, GainGate, MatrixInit, OutputGate, OutputNorm, QkNorm};

/// The configuration of a whole model. Keys have the names that are usual in `config.json` of language models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Hidden size: the width of the residual stream.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Inner width of the SwiGLU; with 0, blocks have none.
    pub intermediate_size: usize,
    /// Whether the embedding also serves as the output matrix.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial embedding.
    pub initializer_range: f64,
    /// Standard deviation of the initial matrices inside the blocks.
    #[serde(default = "earlier_defaults::matrix_init")]
    pub matrix_init: MatrixInit,
    /// The hidden size at which all multipliers of [`crate::mup`] are 1. With the model's own hidden size, there is no
    /// width scaling.
    pub mup_base_width: usize,
    /// The token mixer of every block.
    #[serde(flatten)]
    pub mixer: MixerConfig,
}

/// The configuration of a token mixer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixerConfig {
    /// The mechanism: softmax attention or a rule. The options below replace those of the rule; whatever they do not
    /// cover, such as the objective, is that of the rule.
    pub mixer: MixerKind,
    /// Number of value heads, each with its own memory.
    pub num_heads: usize,
    /// Number of query and key heads, each shared by an equal group of value heads.
    pub num_key_heads: usize,
    /// Width of a query or key.
    pub head_dim: usize,
    /// Width of a value.
    pub head_v_dim: usize,
    /// Taps of the causal convolution after the projections; with 0 there is none.
    pub conv_size: usize,
    /// Activation after the convolution.
    pub conv_activation: Activation,
    /// Normalisation of queries and keys, head by head.
    pub qk_norm: QkNorm,
    /// Feature map of queries and keys, applied after their normalisation.
    pub feature_map: FeatureMap,
    /// Whether queries are divided by the square root of their width. Those of softmax attention always are.
    pub scale_queries: bool,
    /// Whether values are normalised as queries and keys are with [`QkNorm::Rms`].
    pub value_norm: bool,
    /// Number of pairs that each step writes.
    pub window: usize,
    /// Which key a value is paired with.
    pub align: Align,
    /// Whether a token reads before or after its own write.
    pub read: Read,
    /// How the step size is computed.
    pub gain: GainGate,
    /// How the decay is computed.
    pub decay: DecayGate,
    /// The largest ridge, for [`DecayGate::Lambda`].
    pub lambda_scale: f64,
    /// The initial `σ(b)` of the ridge, for the first and the last head; the logits of the heads between them are
    /// evenly spaced.
    #[serde(default = "earlier_defaults::lambda_init")]
    pub lambda_init: [f64; 2],
    /// `ε` of the step size `β / (E + λ + ε)`.
    #[serde(default = "earlier_defaults::step_eps")]
    pub step_eps: f64,
    /// `ε_γ`, the least decay factor `γ = 1 − ηλ` that a ridge leaves. With none, the factor has no lower bound.
    #[serde(default = "earlier_defaults::gamma_floor")]
    pub gamma_floor: Option<f64>,
    /// Normalisation of the output of the mechanism.
    pub output_norm: OutputNorm,
    /// Gate on the output of the mechanism.
    pub output_gate: OutputGate,
    /// Whether values are added to the output of the mechanism, with a learned weight per head.
    pub value_skip: bool,
    /// Base of rotary positions; with none, there are no rotary positions.
    pub rope_theta: Option<f64>,
    /// `ε` of all normalisations.
    pub norm_eps: f64,
}

/// The mechanism that a configuration names: its key `mixer`.
///
/// ```
/// use falcon_nn::MixerKind;
///
/// let kind: MixerKind = "falcon-1a".parse()?;
/// assert!(matches!(kind, MixerKind::Rule(named) if named.rule().window == 1));
/// assert_eq!("softmax".parse::<MixerKind>()?, MixerKind::Softmax);
/// # Ok::<(), falcon_nn::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MixerKind {
    /// Softmax attention, named `softmax`.
    Softmax,
    /// A fast-weight rule, by its name in [`Rule::ALL`].
    Rule(NamedRule),
}

/// A rule of [`Rule::ALL`] with its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedRule {
    name: &'static str,
    rule: Rule,
}

impl NamedRule {
    /// The name in [`Rule::ALL`].
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The rule with its own options, before a configuration changes any.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }
}

/// The name of softmax attention in configurations.
const SOFTMAX: &str = "softmax";

impl MixerKind {
    /// Whether it is attention over a cache. Its queries are always scaled, and it has none of the options of a memory.
    pub(crate) fn attends(&self) -> bool {
        match self {
            Self::Softmax => true,
            Self::Rule(_) => false,
        }
    }

    /// Whether every value column has a gain of its own.
    pub(crate) fn each_column(&self) -> bool {
        matches!(self, Self::Rule(named) if named.rule.columns == Columns::Each)
    }

    /// The default window, alignment and read, which a preset or a configuration may replace.
    pub(crate) fn timing(&self) -> (usize, Align, Read) {
        match self {
            Self::Softmax => (1, Align::Same, Read::After),
            Self::Rule(named) => (named.rule.window, named.rule.align, named.rule.read),
        }
    }
}

impl fmt::Display for MixerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Softmax => SOFTMAX,
            Self::Rule(named) => named.name,
        })
    }
}

impl FromStr for MixerKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        if name == SOFTMAX {
            return Ok(Self::Softmax);
        }
        match Rule::ALL.into_iter().find(|(known, _)| *known == name) {
            Some((name, rule)) => Ok(Self::Rule(NamedRule { name, rule })),
            None => {
                let known = nearest(name, Rule::ALL.iter().map(|(known, _)| *known).chain([SOFTMAX]));
                Err(ConfigError::Unknown { what: "mixer", got: name.into(), known })
            }
        }
    }
}

impl TryFrom<String> for MixerKind {
    type Error = ConfigError;

    fn try_from(name: String) -> Result<Self, ConfigError> {
        name.parse()
    }
}

impl From<MixerKind> for String {
    fn from(kind: MixerKind) -> Self {
        kind.to_string()
    }
}

/// The mechanism of a layer, with every option of its configuration applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mechanism {
    /// Softmax attention over a cache that grows with the sequence.
    Softmax,
    /// A rule that writes to a memory of fixed size.
    Rule(Rule),
}

/// How many numbers a mechanism keeps of one sequence.
pub(crate) struct StateSize {
    /// In the memory matrices of all heads.
    pub memory: usize,
    /// Besides these: the last key, and the pairs that the windows of the next tokens will need.
    pub rest: usize,
}

impl Mechanism {
    /// The size of the state in a layer; none if it grows with the sequence.
    pub(crate) fn state_size(&self, config: &MixerConfig) -> Option<StateSize> {
        match self {
            Self::Softmax => None,
            Self::Rule(rule) => {
                let (keys, values) =
                    (config.num_key_heads * config.head_dim, config.num_heads * config.head_v_dim);
                Some(StateSize {
                    memory: config.num_heads * config.head_dim * rule.state_columns(config.head_v_dim),
                    rest: keys + rule.tail_capacity() * (keys + values),
                })
            }
        }
    }
}

/// Defaults of keys that configurations of earlier versions do not have.
mod earlier_defaults {
    use crate::options::MatrixInit;

    pub fn matrix_init() -> MatrixInit {
        MatrixInit::FanIn
    }

    /// `σ(−5)` and `σ(−2)`.
    pub fn lambda_init() -> [f64; 2] {
        [0.006_692_850_924_284_856, 0.119_202_922_022_117_56]
    }

    pub fn step_eps() -> f64 {
        1e-6
    }

    pub fn gamma_floor() -> Option<f64> {
        Some(1e-3)
    }
}

/// Why a configuration is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A name that is not known.
    #[error("unknown {what} {got:?}; {known}")]
    Unknown {
        /// What the name should stand for.
        what: &'static str,
        /// The name.
        got: String,
        /// The most similar known name, or all of them.
        known: String,
    },
    /// A number outside its range.
    #[error("{name} must be {range}, got {got}")]
    Number {
        /// The key.
        name: &'static str,
        /// The allowed values.
        range: String,
        /// The value.
        got: String,
    },
    /// An option that needs another one.
    #[error("{first} needs {second}")]
    Together {
        /// The option.
        first: String,
        /// What it needs.
        second: String,
    },
    /// Options that do not form a valid rule.
    #[error("the options do not form a valid rule: {0}")]
    Rule(#[from] RuleError),
    /// A model of another architecture.
    #[error(
        "model_type is {got:?}, a model of another architecture; only {MODEL_TYPE:?} can be opened, which `falcon train` and `falcon export` write"
    )]
    Architecture {
        /// The `model_type` in the file.
        got: String,
    },
    /// Text that is not JSON, or JSON that is not a configuration.
    #[error("not a configuration: {0}")]
    Json(#[from] serde_json::Error),
}

impl MixerConfig {
    /// `Ē`: the energy of a normalised key, or 1 if keys are not normalised. It is the largest energy that a
    /// normalised key can have, and the feature maps allowed with [`GainGate::Eta`] do not raise it. So with
    /// `η ≤ 2 / (Ē (1 + λ̄))` and `λ = λ̄ E`, `η (E + λ) ≤ 2 E / Ē ≤ 2`: a step does not raise the objective that it
    /// descends, as long as `γ` is not clamped.
    pub fn nominal_energy(&self) -> f64 {
        match self.qk_norm {
            QkNorm::Rms => self.head_dim as f64,
            QkNorm::L2 | QkNorm::None => 1.0,
        }
    }

    /// The mechanism with all options applied. Options that the mechanism does not have are refused.
    pub fn mechanism(&self) -> Result<Mechanism, ConfigError> {
        match self.mixer {
            MixerKind::Softmax => self.check_softmax().map(|()| Mechanism::Softmax),
            MixerKind::Rule(named) => self.apply_to(named.rule).map(Mechanism::Rule),
        }
    }

    /// The rule with the options of this configuration in place of its own.
    fn apply_to(&self, rule: Rule) -> Result<Rule, ConfigError> {
        let gain = match self.gain {
            GainGate::None => Gain::Unit,
            GainGate::Beta => Gain::Beta,
            GainGate::Eta | GainGate::Sigmoid | GainGate::Delta => Gain::Eta,
        };
        let decay = match (self.decay, rule.decay) {
            (DecayGate::None, _) => Decay::None,
            // The rule determines the kind of its ridge.
            (DecayGate::Lambda, ridge @ (Decay::Ridge | Decay::ScaledRidge { .. })) => ridge,
            (DecayGate::Lambda, _) => Decay::ScaledRidge { detach: false },
            (DecayGate::Fixed | DecayGate::Lightning | DecayGate::Selective, _) => Decay::Gate,
        };
        let rule = Rule {
            window: self.window,
            align: self.align,
            read: self.read,
            gain,
            decay,
            eps: self.step_eps,
            clamp: self.gamma_floor,
            ..rule
        };
        rule.validate()?;
        Ok(rule)
    }

    fn check_softmax(&self) -> Result<(), ConfigError> {
        let needs = [
            (self.gain == GainGate::None, "gain \"none\""),
            (self.decay == DecayGate::None, "decay \"none\""),
            (self.window == 1, "window 1"),
            (self.align == Align::Same, "align \"same\""),
            (self.read == Read::After, "read \"after\""),
            (self.num_key_heads == self.num_heads, "as many key heads as heads"),
        ];
        let unmet: Vec<_> = needs.into_iter().filter(|(met, _)| !met).map(|(_, need)| need).collect();
        if unmet.is_empty() {
            return Ok(());
        }
        let second = format!("{}: it has no memory that is written to", unmet.join(", "));
        Err(ConfigError::Together { first: format!("mixer {SOFTMAX:?}"), second })
    }

    /// Whether every value column has a gain of its own.
    pub(crate) fn each_column(&self) -> bool {
        self.mixer.each_column()
    }

    /// Checks every value and combination.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value) in [
            ("num_heads", self.num_heads),
            ("num_key_heads", self.num_key_heads),
            ("head_dim", self.head_dim),
            ("head_v_dim", self.head_v_dim),
        ] {
            between(name, value, 1, WIDEST)?;
        }
        if !self.num_heads.is_multiple_of(self.num_key_heads) {
            let range = format!("a divisor of num_heads = {}", self.num_heads);
            return Err(ConfigError::Number { name: "num_key_heads", range, got: self.num_key_heads.to_string() });
        }
        between("num_heads times head_dim", self.num_heads * self.head_dim, 1, WIDEST)?;
        between("num_heads times head_v_dim", self.num_heads * self.head_v_dim, 1, WIDEST)?;
        between("conv_size", self.conv_size, 0, 1024)?;
        between("window", self.window, 1, LONGEST_WINDOW)?;
        let number = |name, value: f64, valid: bool, range: &str| {
            let error = || ConfigError::Number { name, range: range.into(), got: value.to_string() };
            if valid && (value as f32).is_finite() { Ok(()) } else { Err(error()) }
        };
        number("lambda_scale", self.lambda_scale, self.lambda_scale >= 0.0, "0 or more")?;
        for share in self.lambda_init {
            number(
                "lambda_init",
                share,
                (1e-6..=1.0 - 1e-6).contains(&share),
                "two numbers from 1e-6 to 1 - 1e-6",
            )?;
        }
        number("step_eps", self.step_eps, self.step_eps >= 0.0, "0 or more")?;
        if let Some(floor) = self.gamma_floor {
            number("gamma_floor", floor, (0.0..1.0).contains(&floor), "\"none\", or from 0 to below 1")?;
        }
        // With ε = 0 a vector of zeros would be divided by 0.
        number("norm_eps", self.norm_eps, self.norm_eps as f32 > 0.0, "above 0, in 32 bits")?;
        if let Some(theta) = self.rope_theta {
            number("rope_theta", theta, theta > 1.0, "above 1")?;
        }
        if self.rope_theta.is_some() && !self.head_dim.is_multiple_of(2) {
            return Err(ConfigError::Number {
                name: "head_dim",
                range: "even, for rotary positions".into(),
                got: self.head_dim.to_string(),
            });
        }
        if self.mixer.attends() {
            return self.mechanism().map(drop);
        }
        let memory = self.num_heads * self.head_dim * self.head_v_dim;
        between("num_heads times head_dim times head_v_dim", memory, 1, LARGEST_STATE)?;
        let width = self.num_key_heads * self.head_dim + self.num_heads * self.head_v_dim;
        between("window - 1 times the widths of keys and values", (self.window - 1) * width, 0, LARGEST_STATE)?;
        self.mechanism()?;
        let known_energy =
            self.qk_norm != QkNorm::None && matches!(self.feature_map, FeatureMap::Identity | FeatureMap::Relu);
        if self.gain == GainGate::Eta && !known_energy {
            return Err(ConfigError::Together {
                first: "gain \"eta\"".into(),
                second: "keys of known energy: qk_norm \"rms\" or \"l2\", and feature_map \"identity\" or \"relu\"; or use gain \"beta\"".into(),
            });
        }
        if self.gain == GainGate::Delta && self.each_column() {
            return Err(ConfigError::Together {
                first: "gain \"delta\"".into(),
                second: "a rule with one gain for all columns".into(),
            });
        }
        if self.gain == GainGate::Delta && self.decay != DecayGate::Selective {
            return Err(ConfigError::Together {
                first: "gain \"delta\"".into(),
                second: "decay \"selective\", with which it shares Δ".into(),
            });
        }
        Ok(())
    }
}

/// The largest width of a layer. It keeps products of sizes from overflowing.
pub(crate) const WIDEST: usize = 1 << 20;
/// The most numbers that a layer may keep for one sequence: a gigabyte of them.
const LARGEST_STATE: usize = 1 << 28;
/// The longest window that the chunked form takes together with a chunk of the usual length.
const LONGEST_WINDOW: usize = Form::MAX_CHUNK_AND_WINDOW - 64;

pub(crate) fn between(name: &'static str, value: usize, least: usize, most: usize) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Number { name, range: format!("from {least} to {most}"), got: value.to_string() })
}

/// Keys that other programs write to `config.json` and that do not change what the model computes.
const FOREIGN: &[&str] = &[
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    TOKENIZER_KEY,
    "torch_dtype",
    "transformers_version",
    "use_cache",
    WEIGHT_FORMAT_KEY,
];

/// The key of `config.json` that holds the fingerprint of the tokenizer that the model was trained with.
pub(crate) const TOKENIZER_KEY: &str = "tokenizer_fingerprint";
/// The key of `config.json` that says in which format the matrices are stored, if it is not `f32`.
pub(crate) const WEIGHT_FORMAT_KEY: &str = "weight_format";

/// The `model_type` under which the Python package `falcon_fwa` registers the models with Hugging Face's transformers.
const MODEL_TYPE: &str = "falcon_fwa";
/// The class of the Python package that opens the models.
const ARCHITECTURE: &str = "FalconFwaForCausalLM";

/// `config.json`: the configuration, and keys that identify the kind of model.
#[derive(Serialize)]
struct ConfigFile<'a> {
    model_type: &'static str,
    architectures: [&'static str; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_fingerprint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_format: Option<&'a str>,
    /// What Hugging Face's transformers compute in, where the stored matrices would make them take fewer bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'static str>,
    #[serde(flatten)]
    config: &'a ModelConfig,
}

impl ModelConfig {
    /// Checks every value and combination.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value, least, most) in [
            ("vocab_size", self.vocab_size, 1, 1 << 26),
            ("hidden_size", self.hidden_size, 1, WIDEST),
            ("intermediate_size", self.intermediate_size, 0, WIDEST),
            ("num_hidden_layers", self.num_hidden_layers, 1, 1 << 14),
            ("mup_base_width", self.mup_base_width, 1, WIDEST),
        ] {
            between(name, value, least, most)?;
        }
        let range = self.initializer_range as f32;
        if !(range.is_finite() && range > 0.0) {
            let got = self.initializer_range.to_string();
            let range = "above 0, in 32 bits".into();
            return Err(ConfigError::Number { name: "initializer_range", range, got });
        }
        self.mixer.validate()
    }

    /// The text of `config.json`.
    pub fn to_json(&self) -> String {
        self.to_json_for(None)
    }

    /// The text of `config.json`, with the fingerprint of the model's tokenizer if it is known.
    pub fn to_json_for(&self, tokenizer: Option<&str>) -> String {
        self.to_json_with(tokenizer, None)
    }

    /// The text of `config.json`, with the fingerprint of the tokenizer and the format of the matrices.
    pub(crate) fn to_json_with(&self, tokenizer: Option<&str>, weight_format: Option<&str>) -> String {
        let file = ConfigFile {
            model_type: MODEL_TYPE,
            architectures: [ARCHITECTURE],
            tokenizer_fingerprint: tokenizer,
            weight_format,
            dtype: weight_format.map(|_| "float32"),
            config: self,
        };
        serde_json::to_string_pretty(&file).expect("a configuration is plain data")
    }

    /// Reads the text of `config.json`. Unknown keys are refused, because a misspelt key would otherwise go unnoticed;
    /// keys that other programs are known to add are ignored.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let value: serde_json::Value = serde_json::from_str(json)?;
        if let Some(got) = value.get("model_type").and_then(|got| got.as_str()).filter(|got| *got != MODEL_TYPE) {
            return Err(ConfigError::Architecture { got: got.into() });
        }
        let config: Self = serde_json::from_value(value.clone())?;
        let known = serde_json::to_value(&config).expect("a configuration is plain data");
        if let (Some(got), Some(known)) = (value.as_object(), known.as_object())
            && let Some(unknown) =
                got.keys().find(|key| !known.contains_key(*key) && !FOREIGN.contains(&key.as_str()))
        {
            return Err(ConfigError::Unknown {
                what: "key",
                got: unknown.clone(),
                known: nearest(unknown, known.keys().map(String::as_str)),
            });
        }
        config.validate()?;
        Ok(config)
    }
}
