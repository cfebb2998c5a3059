//! Step sizes and decays from context.
//!
//! ```text
//! β = 2σ(W_b h)                       ctx-β: η = β / (E + λ + ε), worked out by the rule
//! η = 2σ(W_b h) / (Ē (1 + λ̄))         ctx-η
//! λ̄ = λ_scale σ(W_a h + b)            a ridge in units of the energy, λ = λ̄ E
//! γ = exp(−e^A Δ), Δ = softplus(W_a h + b)
//! ```
//!
//! The paper names ctx-η without defining it; the nominal energy `Ē` is that of a normalised key, and the bound this gives is in
//! [`MixerConfig::nominal_energy`]. The bias `b` of the ridge starts spread over the heads, so that their memories span ten to a hundred and
//! fifty tokens from the first step on; it and Mamba's are vectors, no bias of a projection.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};

use crate::config::{DecayGate, GainGate, MixerConfig};
use crate::init::Init;
use crate::layers::Linear;
use crate::probe::Probe;

#[derive(Module, Debug)]
pub(crate) struct Gate {
    /// To the gain.
    b_proj: Option<Linear>,
    /// To the decay.
    a_proj: Option<Linear>,
    /// `[heads]`.
    a_bias: Option<Param<Tensor<1>>>,
    /// Logarithm of Mamba's `A`, `[heads]`.
    a_log: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: MixerConfig,
    each_column: bool,
}

/// `W_b h` and `W_a h`, where there are such matrices.
pub(crate) struct Logits {
    gain: Option<Tensor<2>>,
    decay: Option<Tensor<2>>,
}

/// What a rule is steered with, `[tokens, heads, 1 or dim_v]` each.
pub(crate) struct Gates {
    pub gain: Option<Tensor<3>>,
    pub decay: Option<Tensor<3>>,
}

/// Biases of the ridge, from the first head to the last: `γ` from 0.99 to 0.89 where `β` is 1.
const LAMBDA_BIAS: (f64, f64) = (-5.0, -2.0);

impl Gate {
    pub fn new(config: &MixerConfig, hidden: usize, init: &mut Init) -> Self {
        let heads = config.num_heads;
        let each_column = config.each_column();
        let gains = if each_column { heads * config.head_v_dim } else { heads };
        let has_gain = matches!(config.gain, GainGate::Beta | GainGate::Eta | GainGate::Sigmoid);
        let has_decay = matches!(config.decay, DecayGate::Lambda | DecayGate::Selective);
        let b_proj = has_gain.then(|| Linear::matrix(gains, hidden, init));
        let a_proj = has_decay.then(|| Linear::matrix(heads, hidden, init));
        let a_bias = match config.decay {
            DecayGate::Lambda => {
                let (first, last) = LAMBDA_BIAS;
                let step = (last - first) / heads.saturating_sub(1).max(1) as f64;
                Some(init.values((0..heads).map(|i| first + step * i as f64)))
            }
            // So that Δ starts log-uniform between a thousandth and a tenth.
            DecayGate::Selective => Some(init.uniform(heads, |u| {
                let delta = (u * (0.1f64.ln() - 0.001f64.ln()) + 0.001f64.ln()).exp();
                delta + (-(-delta).exp_m1()).ln()
            })),
            DecayGate::None | DecayGate::Fixed => None,
        };
        let a_log = (config.decay == DecayGate::Selective).then(|| init.uniform(heads, |u| (1.0 + 15.0 * u).ln()));
        Self { b_proj, a_proj, a_bias, a_log, config: config.clone(), each_column }
    }

    /// What the input of the mixer is multiplied with.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        [&self.b_proj, &self.a_proj].into_iter().flatten()
    }

    /// Takes the products with [`Self::matrices`].
    pub fn logits(&self, products: &mut impl Iterator<Item = Tensor<2>>) -> Logits {
        let mut of = |linear: &Option<Linear>| linear.as_ref().and_then(|_| products.next());
        Logits { gain: of(&self.b_proj), decay: of(&self.a_proj) }
    }

    /// The gates of so many tokens.
    pub fn forward(&self, logits: Logits, tokens: usize, device: &Device) -> Gates {
        let (heads, width) = (self.config.num_heads, self.config.head_v_dim);
        // The decay: λ̄, or Δ and with it γ; `[tokens, heads]`.
        let from_context = logits.decay.zip(self.a_bias.as_ref()).map(|(a, bias)| a + bias.val().unsqueeze());
        let (decay, delta) = match (self.config.decay, from_context) {
            (DecayGate::Lambda, Some(a)) => {
                (Some(activation::sigmoid(a).mul_scalar(self.config.lambda_scale)), None)
            }
            (DecayGate::Selective, Some(a)) => {
                let delta = activation::softplus(a, 1.0);
                let a = self.a_log.as_ref().expect("a selective decay has it").val().exp().unsqueeze();
                (Some((delta.clone() * a).neg().exp()), Some(delta))
            }
            (DecayGate::Fixed, _) => {
                let gammas: Vec<f32> = (0..heads).map(|i| 1.0 - (-5.0 - i as f32).exp2()).collect();
                let gammas = Tensor::<1>::from_data(gammas.as_slice(), device);
                (Some(gammas.unsqueeze::<2>().expand([tokens, heads])), None)
            }
            _ => (None, None),
        };
        let gain = logits.gain.map(activation::sigmoid);
        let gain = match self.config.gain {
            GainGate::None => None,
            GainGate::Sigmoid => gain,
            GainGate::Delta => delta,
            GainGate::Beta => gain.map(|gain| gain.mul_scalar(2.0)),
            GainGate::Eta => gain.map(|gain| gain.mul_scalar(2.0 / self.config.nominal_energy())),
        };
        let columns = if self.each_column { width } else { 1 };
        let gain = gain.map(|gain| gain.reshape([tokens, heads, columns]));
        let decay = decay.map(|decay| decay.reshape([tokens, heads, 1]));
        let gain = match (self.config.gain, self.config.decay, &decay) {
            (GainGate::Eta, DecayGate::Lambda, Some(ridge)) => {
                gain.map(|gain| gain / ridge.clone().add_scalar(1.0))
            }
            _ => gain,
        };
        // A gate, unlike a ridge, is given for each column.
        let decay = match (self.config.decay, self.each_column) {
            (DecayGate::Fixed | DecayGate::Selective, true) => decay.map(|d| d.expand([tokens, heads, width])),
            _ => decay,
        };
        Gates { gain, decay }
    }

    /// Shows the gates by the names that the paper has for them. `γ` of a ridge is that of a key of nominal energy: `1 − β λ̄ / (1 + λ̄)`,
    /// or `1 − η Ē λ̄`, and not below what the rule clamps it to.
    pub fn show(&self, gates: &Gates, probe: &mut Probe<'_>) {
        if !probe.is_on() {
            return;
        }
        let beta = self.config.gain == GainGate::Beta;
        if let Some(gain) = &gates.gain {
            probe.see(if beta { "attn.beta" } else { "attn.eta" }, gain);
        }
        match (&gates.decay, self.config.decay) {
            (Some(ridge), DecayGate::Lambda) => {
                probe.see("attn.lambda", ridge);
                let step = match &gates.gain {
                    Some(gain) if beta => gain.clone() / ridge.clone().add_scalar(1.0),
                    Some(gain) => gain.clone().mul_scalar(self.config.nominal_energy()),
                    None => ridge.ones_like().mul_scalar(self.config.nominal_energy()),
                };
                let gamma = (step * ridge.clone()).neg().add_scalar(1.0);
                let least = self.config.rule().ok().and_then(|rule| rule.clamp);
                probe.see("attn.gamma", &least.map_or(gamma.clone(), |least| gamma.clamp_min(least)));
            }
            (Some(gamma), _) => probe.see("attn.gamma", gamma),
            (None, _) => {}
        }
    }
}
