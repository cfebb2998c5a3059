//! Step sizes and decays from context.
//!
//! ```text
//! β = 2σ(W_b h)                       ctx-β: η = β / (E + λ + ε), computed by the rule
//! η = softplus(W_b h + b₁) / Ē        ctx-η; at most 2 / (Ē (1 + λ̄)) for rules that erase
//! λ̄ = λ_scale σ(W_a h + b)            a ridge in units of the energy, λ = λ̄ E
//! γ = exp(−A Δ), A = e^{a_log}, Δ = softplus(W_a h + b)
//! ```
//!
//! The paper names ctx-η without defining it. Here the network outputs the step size itself, which is not divided by
//! the energy of the key or by the ridge. The constant `b₁ = ln(e − 1)` makes both gates start at a full step, `β = 1`
//! and `η = 1 / Ē`. `Ē` is the nominal energy of a normalised key; [`MixerConfig::nominal_energy`] explains why the
//! bound is sufficient. The biases `b` of the ridge and of `Δ` are learned, one for each head.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};
use falcon_kernels::Rule;
use falcon_kernels::rule::{Columns, Decay};

use crate::config::MixerConfig;
use crate::context::Context;
use crate::init::Init;
use crate::layers::Linear;
use crate::ops::Engine;
use crate::ops::gate::{self, Gating, gates};
use crate::options::{DecayGate, GainGate};
use crate::probe::Probe;

#[derive(Module, Debug)]
pub(crate) struct Gate {
    /// Logits of the gain.
    b_proj: Option<Linear>,
    /// Logits of the decay.
    a_proj: Option<Linear>,
    /// Bias of the decay's logits, `[heads]`.
    a_bias: Option<Param<Tensor<1>>>,
    /// Logarithm of Mamba's `A`, `[heads]`.
    a_log: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: MixerConfig,
    /// Decay factors that do not depend on the input, one for each head.
    #[module(skip)]
    fixed: Option<Vec<f32>>,
}

/// `W_b h` and `W_a h`, if the layer has these matrices.
pub(crate) struct Logits {
    gain: Option<Tensor<2>>,
    decay: Option<Tensor<2>>,
}

/// Gain and decay of a rule, `[tokens, heads, 1 | dim_v]` each.
pub(crate) struct Gates {
    pub gain: Option<Tensor<3>>,
    pub decay: Option<Tensor<3>>,
}

/// The largest `β`, and the largest `η (E + λ)` with ctx-η.
const LARGEST_GAIN: f64 = 2.0;

impl Gate {
    pub fn new(config: &MixerConfig, hidden: usize, init: &mut Init) -> Self {
        let heads = config.num_heads;
        let gains = if config.each_column() { heads * config.head_v_dim } else { heads };
        let has_gain = matches!(config.gain, GainGate::Beta | GainGate::Eta | GainGate::Sigmoid);
        let has_decay = matches!(config.decay, DecayGate::Lambda | DecayGate::Selective);
        let b_proj = has_gain.then(|| Linear::matrix(gains, hidden, init));
        let a_proj = has_decay.then(|| Linear::matrix(heads, hidden, init));
        let a_bias = match config.decay {
            DecayGate::Lambda => {
                let [first, last] = config.lambda_init.map(|share| (share / (1.0 - share)).ln());
                let step = (last - first) / heads.saturating_sub(1).max(1) as f64;
                Some(init.values((0..heads).map(|i| first + step * i as f64)))
            }
            // Δ starts log-uniform between 0.001 and 0.1.
            DecayGate::Selective => Some(init.uniform([heads], |u| {
                let delta = (u * (0.1f64.ln() - 0.001f64.ln()) + 0.001f64.ln()).exp();
                delta + (-(-delta).exp_m1()).ln()
            })),
            DecayGate::None | DecayGate::Fixed | DecayGate::Lightning => None,
        };
        let a_log =
            (config.decay == DecayGate::Selective).then(|| init.uniform([heads], |u| (1.0 + 15.0 * u).ln()));
        let (layer, layers) = init.place();
        let fixed: Option<Vec<f32>> = match config.decay {
            DecayGate::Fixed => Some((0..heads).map(|i| 1.0 - (-5.0 - i as f32).exp2()).collect()),
            DecayGate::Lightning => {
                let slope = 8.0 / heads as f64 * (1.0 - layer as f64 / layers as f64);
                Some((0..heads).map(|i| (-slope * i as f64).exp() as f32).collect())
            }
            DecayGate::None | DecayGate::Lambda | DecayGate::Selective => None,
        };
        Self { b_proj, a_proj, a_bias, a_log, config: config.clone(), fixed }
    }

    /// The matrices that the input of the mixer is multiplied with.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        [&self.b_proj, &self.a_proj].into_iter().flatten()
    }

    /// The same, to be packed.
    pub fn matrices_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        [&mut self.b_proj, &mut self.a_proj].into_iter().flatten()
    }

    /// Takes the products with [`Self::matrices`].
    pub fn logits(&self, products: &mut impl Iterator<Item = Tensor<2>>) -> Logits {
        let mut product = |linear: &Option<Linear>| linear.as_ref().and_then(|_| products.next());
        Logits { gain: product(&self.b_proj), decay: product(&self.a_proj) }
    }

    /// The gates of the tokens of a call, for `rule`.
    pub fn forward(&self, rule: &Rule, logits: Logits, device: &Device, context: &Context<'_, '_>) -> Gates {
        let tokens = context.sequences.tokens();
        let gates = match context.engine {
            Engine::Kernels => self.by_kernels(rule, logits),
            Engine::Tensors => self.by_tensors(rule, logits, tokens),
        };
        let Some(gammas) = &self.fixed else { return gates };
        let heads = self.config.num_heads;
        let gammas = Tensor::<1>::from_data(gammas.as_slice(), device).reshape([1, heads, 1]);
        Gates { decay: Some(gammas.expand([tokens, heads, self.decays(rule)])), ..gates }
    }

    /// How many decays a head has. With a gain for each column, decay factors are given by column as well; ridges are
    /// not.
    fn decays(&self, rule: &Rule) -> usize {
        let is_factor = !matches!(self.config.decay, DecayGate::None | DecayGate::Lambda);
        if is_factor { self.gains(rule) } else { 1 }
    }

    /// How many gains a head has.
    fn gains(&self, rule: &Rule) -> usize {
        if rule.columns == Columns::Each { self.config.head_v_dim } else { 1 }
    }

    /// All gates but fixed decays, by the kernels.
    fn by_kernels(&self, rule: &Rule, logits: Logits) -> Gates {
        let config = &self.config;
        let gain = match config.gain {
            GainGate::None => None,
            GainGate::Sigmoid => Some(gate::GainFunction::Sigmoid { scale: 1.0 }),
            GainGate::Beta => Some(gate::GainFunction::Sigmoid { scale: LARGEST_GAIN }),
            GainGate::Eta => {
                Some(gate::GainFunction::Step { unit: 1.0 / config.nominal_energy(), most: largest_step(rule) })
            }
            GainGate::Delta => Some(gate::GainFunction::Delta),
        };
        let decay = match config.decay {
            DecayGate::None | DecayGate::Fixed | DecayGate::Lightning => None,
            DecayGate::Lambda => Some(gate::DecayFunction::Ridge { scale: config.lambda_scale }),
            DecayGate::Selective => Some(gate::DecayFunction::Selective),
        };
        let gating =
            Gating { gain, decay, heads: config.num_heads, gains: self.gains(rule), decays: self.decays(rule) };
        let vector = |param: &Option<Param<Tensor<1>>>| param.as_ref().map(|param| param.val().into_dispatch());
        let Logits { gain, decay } = logits;
        let inputs = [
            gain.map(Tensor::into_dispatch),
            decay.map(Tensor::into_dispatch),
            vector(&self.a_bias),
            vector(&self.a_log),
        ];
        let [gain, decay] = gates(gating, inputs);
        Gates { gain, decay }
    }

    /// The same gates in tensor operations.
    fn by_tensors(&self, rule: &Rule, logits: Logits, tokens: usize) -> Gates {
        let heads = self.config.num_heads;
        // The decay, `[tokens, heads]`: λ̄, or γ and the Δ it is made from.
        let from_context = logits.decay.zip(self.a_bias.as_ref()).map(|(a, bias)| a + bias.val().unsqueeze());
        let (decay, delta) = match (self.config.decay, from_context) {
            (DecayGate::Lambda, Some(a)) => {
                (Some(activation::sigmoid(a).mul_scalar(self.config.lambda_scale)), None)
            }
            (DecayGate::Selective, Some(a)) => {
                let delta = activation::softplus(a, 1.0);
                let a = self.a_log.as_ref().expect("selective decays have it").val().exp().unsqueeze();
                (Some((delta.clone() * a).neg().exp()), Some(delta))
            }
            _ => (None, None),
        };
        let unit = 1.0 / self.config.nominal_energy();
        let step = |z: Tensor<2>| activation::softplus(z.add_scalar(gate::FULL_STEP), 1.0).mul_scalar(unit);
        let gain = match self.config.gain {
            GainGate::None => None,
            GainGate::Sigmoid => logits.gain.map(activation::sigmoid),
            GainGate::Delta => delta,
            GainGate::Beta => logits.gain.map(|z| activation::sigmoid(z).mul_scalar(LARGEST_GAIN)),
            GainGate::Eta => logits.gain.map(step),
        };
        let gain = gain.map(|gain| gain.reshape([tokens, heads, self.gains(rule)]));
        let decay = decay.map(|decay| decay.reshape([tokens, heads, 1]));
        let gain = match (self.config.gain, largest_step(rule), gain) {
            (GainGate::Eta, Some(most), Some(gain)) => {
                let ridge = decay.as_ref().filter(|_| self.config.decay == DecayGate::Lambda);
                let bound = match ridge {
                    Some(ridge) => ridge.clone().add_scalar(1.0).recip().mul_scalar(most * unit),
                    None => Tensor::full([tokens, heads, 1], most * unit, &gain.device()),
                };
                Some(gain.min_pair(bound.expand([tokens, heads, self.gains(rule)])))
            }
            (_, _, gain) => gain,
        };
        Gates { gain, decay: decay.map(|decay| decay.expand([tokens, heads, self.decays(rule)])) }
    }

    /// Shows the gates to a probe, by the names that the paper gives them. For a ridge, `γ` is that of a key of nominal
    /// energy: `1 − ηλ` with `λ = λ̄ Ē` (or the given `λ`, for rules whose ridge is absolute) and `η = β / (Ē + λ + ε)`
    /// (or the given `η`), and not below the clamp of the rule.
    pub fn show(&self, rule: &Rule, gates: &Gates, probe: &mut Probe<'_>) {
        if !probe.is_on() {
            return;
        }
        let beta = self.config.gain == GainGate::Beta;
        if let Some(gain) = &gates.gain {
            probe.show(if beta { "attn.beta" } else { "attn.eta" }, gain);
        }
        match (&gates.decay, self.config.decay) {
            (Some(ridge), DecayGate::Lambda) => {
                probe.show("attn.lambda", ridge);
                let energy = self.config.nominal_energy();
                let absolute = rule.decay == Decay::Ridge;
                let lambda = if absolute { ridge.clone() } else { ridge.clone().mul_scalar(energy) };
                let eta_lambda = match &gates.gain {
                    Some(gain) if beta => {
                        gain.clone() / lambda.clone().add_scalar(energy + self.config.step_eps) * lambda
                    }
                    Some(gain) => gain.clone() * lambda,
                    None => lambda,
                };
                let gamma = eta_lambda.neg().add_scalar(1.0);
                probe.show("attn.gamma", &rule.clamp.map_or(gamma.clone(), |least| gamma.clamp_min(least)));
            }
            (Some(gamma), _) => probe.show("attn.gamma", gamma),
            (None, _) => {}
        }
    }
}

/// The largest `η (E + λ)` if the network controls `η` itself: beyond it, a rule that erases would overshoot.
fn largest_step(rule: &Rule) -> Option<f64> {
    rule.erases().then_some(LARGEST_GAIN)
}

#[cfg(test)]
mod tests {
    use burn::module::ParamId;
    use falcon_kernels::{Call, Form, Inputs, View};

    use super::*;
    use crate::config::Mechanism;
    use crate::ops::testing::compare;
    use crate::sequences::Sequences;

    fn rule(config: &MixerConfig) -> Rule {
        match config.mechanism().unwrap() {
            Mechanism::Rule(rule) => rule,
            Mechanism::Softmax => panic!("softmax attention has no gates"),
        }
    }

    /// The gates of one token for each row of the logits.
    fn gates(gate: &Gate, rule: &Rule, logits: Logits, engine: Engine, tokens: usize, device: &Device) -> Gates {
        let sequences = Sequences::uniform(1, tokens);
        let context = Context { engine, sequences: &sequences, rotary: None, probe: &mut Probe::none() };
        gate.forward(rule, logits, device, &context)
    }

    /// Every gain with every decay, by head and by column.
    #[test]
    fn gates_equal_their_tensor_operations() {
        let (heads, width) = (3, 4);
        let gains = [GainGate::None, GainGate::Beta, GainGate::Eta, GainGate::Sigmoid, GainGate::Delta];
        let decays =
            [DecayGate::None, DecayGate::Lambda, DecayGate::Fixed, DecayGate::Lightning, DecayGate::Selective];
        for (gain, decay) in gains.into_iter().flat_map(|gain| decays.map(|decay| (gain, decay))) {
            // Rules that erase bound the step, others do not.
            let cases = [(1, false), (5, true), (700, false), (520, true)];
            for (mixer, (tokens, each_column)) in
                ["falcon-1", "falcon-1a"].into_iter().flat_map(|mixer| cases.map(|case| (mixer, case)))
            {
                let has_gain = matches!(gain, GainGate::Beta | GainGate::Eta | GainGate::Sigmoid);
                let has_decay = matches!(decay, DecayGate::Lambda | DecayGate::Selective);
                let delta = gain == GainGate::Delta;
                // Skips gates that do not depend on the context, and configurations that are invalid.
                if !(has_gain || has_decay) || delta && (decay != DecayGate::Selective || each_column) {
                    continue;
                }
                let mut config = MixerConfig::preset("falcon-1.3", heads * width, heads).unwrap();
                (config.gain, config.decay, config.lambda_scale) = (gain, decay, 0.7);
                config.mixer = mixer.parse().unwrap();
                let columns = if each_column { Columns::Each } else { Columns::Shared };
                let rule = Rule { columns, ..rule(&config) };
                let columns = if each_column { width } else { 1 };
                let shapes = [vec![tokens, heads * columns], vec![tokens, heads], vec![heads], vec![heads]];
                compare(&shapes, |engine, inputs| {
                    let [z, a, bias, log] = inputs else { unreachable!("four inputs") };
                    let vector = |x: &Tensor<1>| Some(Param::initialized(ParamId::new(), x.clone()));
                    let initial = Gate::new(&config, heads * width, &mut Init::new(0, &z.device()));
                    let gate = Gate {
                        a_bias: if has_decay { vector(bias) } else { None },
                        a_log: if decay == DecayGate::Selective { vector(log) } else { None },
                        ..initial
                    };
                    let logits = Logits {
                        gain: has_gain.then(|| z.clone().reshape([tokens, heads * columns])),
                        decay: has_decay.then(|| a.clone().reshape([tokens, heads])),
                    };
                    let Gates { gain, decay } = gates(&gate, &rule, logits, engine, tokens, &z.device());
                    [gain, decay].into_iter().flatten().map(|gate| gate.flatten(0, 2)).collect()
                });
            }
        }
    }

    /// Gates of one token with given logits, the same for both heads: gain and decay of the first head.
    fn from_logits(name: &str, gain: f32, decay: f32) -> (f64, f64) {
        let device = Device::flex();
        let config = MixerConfig::preset(name, 8, 2).unwrap();
        let gate = Gate::new(&config, 8, &mut Init::new(0, &device));
        let logits = |x: f32| Some(Tensor::<2>::from_data([[x, x]], &device));
        let logits = Logits { gain: logits(gain), decay: logits(decay) };
        let Gates { gain, decay } = gates(&gate, &rule(&config), logits, Engine::Kernels, 1, &device);
        let first = |x: Option<Tensor<3>>| x.unwrap().into_data().try_to_vec::<f32>().unwrap()[0].into();
        (first(gain), first(decay))
    }

    /// Computed by hand, for heads of width 4: `Ē` is 1 after ℓ2 and 4 after RMS; `λ̄` starts at 0.95 · 0.01, and a
    /// logit that is higher by ln 99 makes it 0.95 / 2. Both controls start at a full step. With large logits, β
    /// approaches 2, η of a rule that erases stops at `2 / (Ē (1 + λ̄))`, and η of one that does not grows without
    /// bound.
    #[test]
    fn step_sizes_and_ridges_are_those_computed_by_hand() {
        let half = 99f32.ln();
        for (name, gain, decay, expected) in [
            ("falcon-1a.1", 0.0, 0.0, (1.0, 0.0095)),
            ("falcon-1a.2", 0.0, 0.0, (1.0, 0.0095)),
            ("falcon-1a.3", 0.0, half, (0.25, 0.475)),
            ("falcon-1.3", 0.0, half, (0.25, 0.475)),
            ("falcon-1a.1", 60.0, half, (2.0, 0.475)),
            ("falcon-1a.2", 60.0, half, (60.541325, 0.475)),
            ("falcon-1a.3", 60.0, half, (60.541325 / 4.0, 0.475)),
            ("falcon-1.3", 60.0, half, (0.5 / 1.475, 0.475)),
            ("falcon-3.1", 60.0, half, (2.0, 0.475)),
            ("falcon-3.3", 60.0, half, (0.5 / 1.475, 0.475)),
        ] {
            let got = from_logits(name, gain, decay);
            let close = |got: f64, expected: f64| (got / expected - 1.0).abs() < 1e-5;
            assert!(close(got.0, expected.0) && close(got.1, expected.1), "{name}: {got:?}, not {expected:?}");
        }
    }

    /// Computed by hand: layer 1 of 4 with 4 heads has a slope of 8/4 · (1 − 1/4) = 1.5.
    #[test]
    fn lightning_decays_by_head_and_layer() {
        let device = Device::flex();
        let config = MixerConfig::preset("lightning", 16, 4).unwrap();
        let mut init = Init::new(0, &device);
        init.enter_layer(1, 4);
        let gate = Gate::new(&config, 16, &mut init);
        let logits = Logits { gain: None, decay: None };
        let gates = gates(&gate, &rule(&config), logits, Engine::Kernels, 1, &device);
        let got: Vec<f32> = gates.decay.unwrap().into_data().try_to_vec().unwrap();
        let expected = [0.0, 1.5, 3.0, 4.5].map(|x: f32| (-x).exp());
        assert!(got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6), "{got:?}");
    }

    /// The `γ` that is shown is the one that the rule computes for a key of nominal energy.
    #[test]
    fn the_gamma_that_is_shown_is_that_of_the_rule() {
        let (heads, width) = (2, 4);
        let device = Device::flex();
        for (mixer, gain) in ["falcon-1", "falcon-1a", "online-ridge"]
            .into_iter()
            .flat_map(|mixer| [GainGate::Beta, GainGate::Eta, GainGate::None].map(|gain| (mixer, gain)))
        {
            let mut config = MixerConfig::preset("falcon-1.3", heads * width, heads).unwrap();
            (config.mixer, config.gain) = (mixer.parse().unwrap(), gain);
            let rule = rule(&config);
            let gate = Gate::new(&config, heads * width, &mut Init::new(0, &device));
            let (gains, ridges) = ([0.3f32, 1.9, 0.2, 0.05], [0.5f32, 0.1, 0.9, 0.02]);
            let tensor = |x: [f32; 4]| Tensor::<1>::from_data(x, &device).reshape([2, heads, 1]);
            let has_gain = gain != GainGate::None;
            let gates = Gates { gain: has_gain.then(|| tensor(gains)), decay: Some(tensor(ridges)) };
            let mut shown = Vec::new();
            let mut see = |name: &str, numbers: &[f32]| {
                if name == "attn.gamma" {
                    shown = numbers.to_vec();
                }
            };
            gate.show(&rule, &gates, &mut Probe::new(&mut see));

            // Keys of ones have the energy of keys that are normalised to a mean square of 1.
            let ones = vec![1.0f32; 2 * heads * width];
            let (keys, each) = (View::new(&ones, [2, heads, width]).unwrap(), [2, heads, 1]);
            let inputs = Inputs {
                q: keys,
                k: keys,
                v: keys,
                gain: has_gain.then(|| View::new(&gains, each).unwrap()),
                decay: Some(View::new(&ridges, each).unwrap()),
                offsets: &[0, 2],
            };
            let call = Call::new(&rule, Form::CHUNKED, inputs).unwrap();
            let found = call.coefficients(&call.fresh_state()).unwrap();
            // Not the first token: it has no pair, so its γ is 1 whatever the gates are.
            for i in heads..2 * heads {
                let (got, expected) = (shown[i], found.gamma[i]);
                assert!((got - expected).abs() < 1e-6, "{mixer} {gain:?}: {got}, not {expected}");
            }
        }
    }
}
