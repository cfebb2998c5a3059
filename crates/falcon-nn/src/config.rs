//! What a model is made of, as `config.json` has it.

use falcon_kernels::rule::{Align, Columns, Decay, Gain, Read};
use falcon_kernels::{Form, Rule, RuleError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A whole model. Names are those that checkpoints of this field use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Tokens it knows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Inner width of the SwiGLU; 0 leaves it out.
    pub intermediate_size: usize,
    /// Whether the embedding is the output matrix, too.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial embedding.
    pub initializer_range: f64,
    /// Standard deviation of initial matrices.
    #[serde(default = "before::matrix_init")]
    pub matrix_init: MatrixInit,
    /// The width at which all multipliers of [`crate::mup`] are 1. The width of the model itself switches them off.
    pub mup_base_width: usize,
    /// What mixes tokens.
    #[serde(flatten)]
    pub mixer: MixerConfig,
}

/// The token mixer of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixerConfig {
    /// `softmax`, or the name of a rule in [`Rule::ALL`].
    pub mixer: String,
    /// Heads, each with a memory of its own.
    pub num_heads: usize,
    /// Heads of queries and keys, which value heads share in equal groups.
    pub num_key_heads: usize,
    /// Width of a query or key.
    pub head_dim: usize,
    /// Width of a value.
    pub head_v_dim: usize,
    /// Taps of the causal convolution after the projections; 0 leaves it out.
    pub conv_size: usize,
    /// What follows the convolution.
    pub conv_activation: Activation,
    /// Normalisation of queries and keys, head by head.
    pub qk_norm: QkNorm,
    /// Feature map of queries and keys, after their normalisation.
    pub feature_map: FeatureMap,
    /// Whether queries are divided by the root of their width; those of softmax attention always are.
    pub scale_queries: bool,
    /// Whether values are normalised as queries and keys are with [`QkNorm::Rms`].
    pub value_norm: bool,
    /// Pairs that each step writes.
    pub window: usize,
    /// Which key a value is paired with.
    pub align: Align,
    /// Whether a token reads before or after its own write.
    pub read: Read,
    /// Where the step size comes from.
    pub gain: GainGate,
    /// Where the decay comes from.
    pub decay: DecayGate,
    /// The largest ridge, for [`DecayGate::Lambda`].
    pub lambda_scale: f64,
    /// `σ(b)` of the ridge at the start, of the first head and of the last; the logits of those between are evenly
    /// spaced.
    #[serde(default = "before::lambda_init")]
    pub lambda_init: [f64; 2],
    /// `ε` of the step size `β / (E + λ + ε)`.
    #[serde(default = "before::step_eps")]
    pub step_eps: f64,
    /// `ε_γ`: a ridge never takes the carry `γ = 1 − ηλ` below this; none lets it fall where it falls.
    #[serde(default = "before::gamma_floor")]
    pub gamma_floor: Option<f64>,
    /// Normalisation of what was read.
    pub output_norm: OutputNorm,
    /// Gate of what was read.
    pub output_gate: OutputGate,
    /// Whether values are added to what was read, with a learned weight per head.
    pub value_skip: bool,
    /// Base of rotary positions; none without them.
    pub rope_theta: Option<f64>,
    /// `ε` of all normalisations.
    pub norm_eps: f64,
}

/// Values of keys that models saved by earlier versions do not have.
mod before {
    use super::MatrixInit;

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

macro_rules! option {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }
    };
}

option! {
    /// An activation.
    Activation {
        /// `x`.
        None,
        /// `x σ(x)`.
        Silu,
    }
}
option! {
    /// Normalisation of queries and keys.
    QkNorm {
        /// As they are.
        None,
        /// To a mean square of 1.
        Rms,
        /// To length 1.
        L2,
    }
}
option! {
    /// Standard deviation of the initial matrices inside the blocks, for a residual stream of `d` numbers.
    MatrixInit {
        /// `1 / √fan_in`; those that end a residual branch are divided by the root of the number of branches.
        FanIn,
        /// `0.5 / √d`; those that end a residual branch are divided by the root of the number of layers.
        HalfWidth,
    }
}
option! {
    /// Feature map of queries and keys.
    FeatureMap {
        /// `x`.
        Identity,
        /// `ELU(x) + 1`.
        EluPlusOne,
        /// `max(x, 0)`.
        Relu,
        /// `max(x, 0)²`.
        SquaredRelu,
        /// `x σ(x)`: Lightning attention.
        Silu,
    }
}
option! {
    /// Where the step size comes from. `h` is the normalised input of the block.
    GainGate {
        /// It is 1.
        None,
        /// `β = 2σ(w·h)`, and `η = β / (E + λ + ε)`: the paper's ctx-β.
        Beta,
        /// `η = softplus(w·h + b) / Ē`, which is `1 / Ē` where `w·h = 0`: ctx-η, the control is the step size
        /// itself and no energy divides it. `Ē` is the nominal energy of a normalised key
        /// ([`MixerConfig::nominal_energy`]), the unit of `η`. A rule that erases has `η ≤ 2 / (Ē (1 + λ̄))`, so
        /// that `η (E + λ) ≤ 2`.
        Eta,
        /// `η = σ(w·h)`: DeltaNet.
        Sigmoid,
        /// `η = Δ = softplus(w·h + b)`: Mamba-2. The decay uses the same `Δ`.
        Delta,
    }
}
option! {
    /// Where the decay comes from.
    DecayGate {
        /// Nothing decays.
        None,
        /// A ridge `λ_scale σ(w·h + b)`: `λ̄`, in units of the energy, or `λ` itself where the rule takes it so, as `online-ridge` does.
        Lambda,
        /// `γ = 1 − 2^(−5−i)` for head `i`: RetNet.
        Fixed,
        /// `γ = exp(−(8 / H)(1 − l / L) i)` for head `i` of `H` in layer `l` of `L`, both counted from 0:
        /// Lightning attention.
        Lightning,
        /// `γ = exp(−A Δ)`, `Δ = softplus(w·h + b)`, with a learned `A` for each head: Mamba-2, Gated DeltaNet.
        Selective,
    }
}
option! {
    /// Normalisation of what was read.
    OutputNorm {
        /// As it is.
        None,
        /// Head by head.
        Head,
        /// All heads together.
        All,
    }
}
option! {
    /// Gate of what was read.
    OutputGate {
        /// None.
        None,
        /// `norm(o) ⊙ silu(W h)`.
        AfterNorm,
        /// `norm(o ⊙ silu(W h))`.
        BeforeNorm,
    }
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ConfigError {
    /// A name that is none of those known.
    #[error("unknown {what} {got:?}; {known}")]
    Unknown {
        /// What it should name.
        what: &'static str,
        /// The name.
        got: String,
        /// The nearest known, or all.
        known: String,
    },
    /// A number outside its range.
    #[error("{name} must be {range}, got {got}")]
    Number {
        /// Which number.
        name: &'static str,
        /// What it may be.
        range: String,
        /// What it is.
        got: String,
    },
    /// Two options that do not go together.
    #[error("{first} needs {second}")]
    Together {
        /// The option.
        first: String,
        /// What it needs.
        second: String,
    },
    /// The options make no rule.
    #[error("no such rule: {0}")]
    Rule(#[from] RuleError),
    /// A model of another kind.
    #[error(
        "model_type is {got:?}, a model of another architecture; only {MODEL_TYPE:?} can be opened, which `falcon train` and `falcon export` write"
    )]
    Architecture {
        /// What the file says it is.
        got: String,
    },
    /// Not JSON, or not of this shape.
    #[error("not a configuration: {0}")]
    Json(String),
}

/// Names that are listed, at most.
const MANY: usize = 40;

/// The name among `known` that is nearest to `got`, for error messages.
pub fn nearest<'a>(got: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.into_iter().collect();
    let best = known.iter().min_by_key(|name| distance(got, name));
    match best {
        None => "nothing else is there".into(),
        Some(best) if distance(got, best) <= best.len().div_ceil(3) => format!("did you mean {best:?}?"),
        Some(_) if known.len() > MANY => format!("known are {}, …", known[..MANY].join(", ")),
        Some(_) => format!("known are {}", known.join(", ")),
    }
}

/// Edits from one name to another.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The mixer that is no rule.
pub(crate) const SOFTMAX: &str = "softmax";

impl MixerConfig {
    /// Whether this is softmax attention.
    pub fn is_softmax(&self) -> bool {
        self.mixer == SOFTMAX
    }

    /// The rule with all options in place. Softmax attention has none, which is an error here.
    pub fn rule(&self) -> Result<Rule, ConfigError> {
        if self.is_softmax() {
            let second = "a mixer other than \"softmax\", which has none".into();
            return Err(ConfigError::Together { first: "a rule".into(), second });
        }
        let named = Rule::ALL.into_iter().find(|(name, _)| *name == self.mixer);
        let Some((_, rule)) = named else {
            let known = Rule::ALL.iter().map(|(name, _)| *name).chain([SOFTMAX]);
            return Err(ConfigError::Unknown {
                what: "mixer",
                got: self.mixer.clone(),
                known: nearest(&self.mixer, known),
            });
        };
        let gain = match self.gain {
            GainGate::None => Gain::Unit,
            GainGate::Beta => Gain::Beta,
            GainGate::Eta | GainGate::Sigmoid | GainGate::Delta => Gain::Eta,
        };
        let decay = match (self.decay, rule.decay) {
            (DecayGate::None, _) => Decay::None,
            (DecayGate::Lambda, given @ (Decay::Ridge | Decay::ScaledRidge { .. })) => given,
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

    /// `Ē`: the energy of a normalised key, and 1 for keys that are not. No key has more, and features that
    /// [`GainGate::Eta`] is allowed with do not raise it. With `η ≤ 2 / (Ē (1 + λ̄))` and `λ = λ̄ E`, `η (E + λ) ≤
    /// 2 E / Ē ≤ 2`: a step never overshoots by more than it descends.
    pub fn nominal_energy(&self) -> f64 {
        match self.qk_norm {
            QkNorm::Rms => self.head_dim as f64,
            QkNorm::L2 | QkNorm::None => 1.0,
        }
    }

    /// Whether there is a gain for each value column.
    pub(crate) fn each_column(&self) -> bool {
        self.rule().is_ok_and(|rule| rule.columns == Columns::Each)
    }

    /// Everything that can be wrong.
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
        let number = |name, value: f64, good: bool, range: &str| {
            let error = || ConfigError::Number { name, range: range.into(), got: value.to_string() };
            if good && (value as f32).is_finite() { Ok(()) } else { Err(error()) }
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
        // Without it a vector of zeros would be divided by 0.
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
        if self.is_softmax() {
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
            let second = format!("{}: it has no memory that learns", unmet.join(", "));
            return Err(ConfigError::Together { first: "mixer \"softmax\"".into(), second });
        }
        let memory = self.num_heads * self.head_dim * self.head_v_dim;
        between("num_heads times head_dim times head_v_dim", memory, 1, LARGEST_STATE)?;
        let width = self.num_key_heads * self.head_dim + self.num_heads * self.head_v_dim;
        between("window - 1 times the widths of keys and values", (self.window - 1) * width, 0, LARGEST_STATE)?;
        self.rule()?;
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

/// No layer is wider; so no product of sizes overflows.
pub(crate) const WIDEST: usize = 1 << 20;
/// Numbers that a layer keeps of one sequence, at most: a gigabyte.
const LARGEST_STATE: usize = 1 << 28;
/// What the chunked form takes beside a chunk of its own length.
const LONGEST_WINDOW: usize = Form::MAX_CHUNK_AND_WINDOW - 64;

pub(crate) fn between(name: &'static str, value: usize, least: usize, most: usize) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Number { name, range: format!("from {least} to {most}"), got: value.to_string() })
}

/// Keys of `config.json` that other programs write, and that say nothing about what the model computes.
const FOREIGN: [&str; 20] = [
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
];

/// The key of `config.json` that has the fingerprint of the tokenizer that a model was trained with.
pub(crate) const TOKENIZER_KEY: &str = "tokenizer_fingerprint";

/// What Hugging Face's transformers know the models by; the Python package `falcon_fwa` registers it.
const MODEL_TYPE: &str = "falcon_fwa";
/// The class of the Python package that opens them.
const ARCHITECTURE: &str = "FalconFwaForCausalLM";

/// `config.json`: the configuration, and what it is of.
#[derive(Serialize)]
struct ConfigFile<'a> {
    model_type: &'static str,
    architectures: [&'static str; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_fingerprint: Option<&'a str>,
    #[serde(flatten)]
    config: &'a ModelConfig,
}

impl ModelConfig {
    /// Everything that can be wrong.
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

    /// As `config.json` has it.
    pub fn to_json(&self) -> String {
        self.to_json_for(None)
    }

    /// The same of a model whose tokenizer has this fingerprint, if it is known.
    pub fn to_json_for(&self, tokenizer: Option<&str>) -> String {
        let file = ConfigFile {
            model_type: MODEL_TYPE,
            architectures: [ARCHITECTURE],
            tokenizer_fingerprint: tokenizer,
            config: self,
        };
        serde_json::to_string_pretty(&file).expect("a configuration is plain data")
    }

    /// Reads `config.json`. Unknown keys are refused, but for those that other programs add: a misspelt one would go unnoticed.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let value: serde_json::Value = serde_json::from_str(json).map_err(|e| ConfigError::Json(e.to_string()))?;
        if let Some(got) = value.get("model_type").and_then(|got| got.as_str()).filter(|got| *got != MODEL_TYPE) {
            return Err(ConfigError::Architecture { got: got.into() });
        }
        let config: Self = serde_json::from_value(value.clone()).map_err(|e| ConfigError::Json(e.to_string()))?;
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
