//! Step sizes and decays from context.
//!
//! ```text
//! β = 2σ(W_b h)                       ctx-β: η = β / (E + λ + ε), worked out by the rule
//! η = softplus(W_b h + b₁) / Ē        ctx-η; at most 2 / (Ē (1 + λ̄)) for rules that erase
//! λ̄ = λ_scale σ(W_a h + b)            a ridge in units of the energy, λ = λ̄ E
//! γ = exp(−A Δ), A = e^{a_log}, Δ = softplus(W_a h + b)
//! ```
//!
//! The paper names ctx-η without defining it. Here the control is the step size itself: it is not divided by the
//! energy of the key that is written, nor by the ridge. `b₁ = ln(e − 1)` is a constant, so that both controls
//! start at a full step, `β = 1` and `η = 1 / Ē`. The nominal energy `Ē` is that of a normalised key, and why the
//! bound is enough is in [`MixerConfig::nominal_energy`]. The bias `b` of the ridge and Mamba's are learned
//! vectors over the heads.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};
use falcon_kernels::rule::Decay;

use crate::config::{DecayGate, GainGate, MixerConfig};
use crate::init::Init;
use crate::layers::Linear;
use crate::ops::Engine;
use crate::ops::gate::{self, Gating, gates};
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
    /// Carries that do not depend on the input, one for each head.
    #[module(skip)]
    fixed: Option<Vec<f32>>,
    #[module(skip)]
    engine: Engine,
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

/// `β ≤ 2`, and what stands in its place for ctx-η.
const LARGEST_GAIN: f64 = 2.0;

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
                let [first, last] = config.lambda_init.map(|share| (share / (1.0 - share)).ln());
                let step = (last - first) / heads.saturating_sub(1).max(1) as f64;
                Some(init.values((0..heads).map(|i| first + step * i as f64)))
            }
            // So that Δ starts log-uniform between a thousandth and a tenth.
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
        let engine = init.layers_engine();
        Self { b_proj, a_proj, a_bias, a_log, config: config.clone(), each_column, fixed, engine }
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
        let gates = match self.engine {
            Engine::Kernels => self.by_kernels(logits),
            Engine::Tensors => self.by_tensors(logits, tokens),
        };
        let Some(gammas) = &self.fixed else { return gates };
        let heads = self.config.num_heads;
        let gammas = Tensor::<1>::from_data(gammas.as_slice(), device).reshape([1, heads, 1]);
        Gates { decay: Some(gammas.expand([tokens, heads, self.decays()])), ..gates }
    }

    /// How many decays a head has: a gate, unlike a ridge, is given for each column.
    fn decays(&self) -> usize {
        let gate = !matches!(self.config.decay, DecayGate::None | DecayGate::Lambda);
        if self.each_column && gate { self.config.head_v_dim } else { 1 }
    }

    /// How many gains a head has.
    fn gains(&self) -> usize {
        if self.each_column { self.config.head_v_dim } else { 1 }
    }

    /// The largest `η (E + λ)` where the control is `η`: a rule that erases would overshoot beyond it.
    fn most(&self) -> Option<f64> {
        self.config.rule().is_ok_and(|rule| rule.erases()).then_some(LARGEST_GAIN)
    }

    /// All but fixed decays.
    fn by_kernels(&self, logits: Logits) -> Gates {
        let config = &self.config;
        let gain = match (config.gain, config.decay) {
            (GainGate::None, _) => None,
            (GainGate::Sigmoid, _) => Some(gate::Gain::Sigmoid { scale: 1.0 }),
            (GainGate::Beta, _) => Some(gate::Gain::Sigmoid { scale: LARGEST_GAIN }),
            (GainGate::Eta, _) => {
                Some(gate::Gain::Step { unit: 1.0 / config.nominal_energy(), most: self.most() })
            }
            (GainGate::Delta, _) => Some(gate::Gain::Delta),
        };
        let decay = match config.decay {
            DecayGate::None | DecayGate::Fixed | DecayGate::Lightning => None,
            DecayGate::Lambda => Some(gate::Decay::Ridge { scale: config.lambda_scale }),
            DecayGate::Selective => Some(gate::Decay::Selective),
        };
        let gating = Gating { gain, decay, heads: config.num_heads, gains: self.gains(), decays: self.decays() };
        let vector = |of: &Option<Param<Tensor<1>>>| of.as_ref().map(|of| of.val().into_dispatch());
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

    /// The same in tensor operations.
    fn by_tensors(&self, logits: Logits, tokens: usize) -> Gates {
        let heads = self.config.num_heads;
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
        let gain = gain.map(|gain| gain.reshape([tokens, heads, self.gains()]));
        let decay = decay.map(|decay| decay.reshape([tokens, heads, 1]));
        let gain = match (self.config.gain, self.most(), gain) {
            (GainGate::Eta, Some(most), Some(gain)) => {
                let ridge = decay.as_ref().filter(|_| self.config.decay == DecayGate::Lambda);
                let bound = match ridge {
                    Some(ridge) => ridge.clone().add_scalar(1.0).recip().mul_scalar(most * unit),
                    None => Tensor::full([tokens, heads, 1], most * unit, &gain.device()),
                };
                Some(gain.min_pair(bound.expand([tokens, heads, self.gains()])))
            }
            (_, _, gain) => gain,
        };
        Gates { gain, decay: decay.map(|decay| decay.expand([tokens, heads, self.decays()])) }
    }

    /// Shows the gates by the names that the paper has for them. `γ` of a ridge is that of a key of nominal energy, `1 − ηλ` with `λ = λ̄ Ē`,
    /// or `λ` as it is where the rule takes it so, and `η = β / (Ē + λ + ε)`, or `η` as it is; and not below what
    /// the rule clamps it to.
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
                let (rule, energy) = (self.config.rule().ok(), self.config.nominal_energy());
                let absolute = rule.is_some_and(|rule| rule.decay == Decay::Ridge);
                let lambda = if absolute { ridge.clone() } else { ridge.clone().mul_scalar(energy) };
                let loss = match &gates.gain {
                    Some(gain) if beta => {
                        gain.clone() / lambda.clone().add_scalar(energy + self.config.step_eps) * lambda
                    }
                    Some(gain) => gain.clone() * lambda,
                    None => lambda,
                };
                let gamma = loss.neg().add_scalar(1.0);
                let least = rule.and_then(|rule| rule.clamp);
                probe.see("attn.gamma", &least.map_or(gamma.clone(), |least| gamma.clamp_min(least)));
            }
            (Some(gamma), _) => probe.see("attn.gamma", gamma),
            (None, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::ParamId;
    use falcon_kernels::{Call, Form, Inputs, View};

    use super::*;
    use crate::ops::testing::compare;

    /// Every gain with every decay, by head and by column.
    #[test]
    fn the_gates_are_their_tensor_operations() {
        let (heads, width) = (3, 4);
        let gains = [GainGate::None, GainGate::Beta, GainGate::Eta, GainGate::Sigmoid, GainGate::Delta];
        let decays =
            [DecayGate::None, DecayGate::Lambda, DecayGate::Fixed, DecayGate::Lightning, DecayGate::Selective];
        for (gain, decay) in gains.into_iter().flat_map(|gain| decays.map(|decay| (gain, decay))) {
            // Rules that erase bound their step, others do not.
            let cases = [(1, false), (5, true), (700, false), (520, true)];
            for (mixer, (tokens, each_column)) in
                ["falcon-1", "falcon-1a"].into_iter().flat_map(|mixer| cases.map(|case| (mixer, case)))
            {
                let has_gain = matches!(gain, GainGate::Beta | GainGate::Eta | GainGate::Sigmoid);
                let has_decay = matches!(decay, DecayGate::Lambda | DecayGate::Selective);
                let delta = gain == GainGate::Delta;
                // Nothing from context, or no configuration.
                if !(has_gain || has_decay) || delta && (decay != DecayGate::Selective || each_column) {
                    continue;
                }
                let mut config = MixerConfig::preset("falcon-1.3", heads * width, heads).unwrap();
                (config.gain, config.decay, config.lambda_scale) = (gain, decay, 0.7);
                config.mixer = mixer.into();
                let columns = if each_column { width } else { 1 };
                let shapes = [vec![tokens, heads * columns], vec![tokens, heads], vec![heads], vec![heads]];
                compare(&shapes, |engine, inputs| {
                    let [z, a, bias, log] = inputs else { unreachable!("four inputs") };
                    let vector = |of: &Tensor<1>| Some(Param::initialized(ParamId::new(), of.clone()));
                    let made = Gate::new(&config, heads * width, &mut Init::new(0, &z.device()));
                    let gate = Gate {
                        a_bias: if has_decay { vector(bias) } else { None },
                        a_log: if decay == DecayGate::Selective { vector(log) } else { None },
                        each_column,
                        engine,
                        ..made
                    };
                    let logits = Logits {
                        gain: has_gain.then(|| z.clone().reshape([tokens, heads * columns])),
                        decay: has_decay.then(|| a.clone().reshape([tokens, heads])),
                    };
                    let Gates { gain, decay } = gate.forward(logits, tokens, &z.device());
                    [gain, decay].into_iter().flatten().map(|of| of.flatten(0, 2)).collect()
                });
            }
        }
    }

    /// Gates of one token with given logits, the same for both heads: gain and decay of the first head.
    fn of_logits(name: &str, gain: f32, decay: f32) -> (f64, f64) {
        let device = Device::flex();
        let config = MixerConfig::preset(name, 8, 2).unwrap();
        let gate = Gate::new(&config, 8, &mut Init::new(0, &device));
        let logits = |of: f32| Some(Tensor::<2>::from_data([[of, of]], &device));
        let Gates { gain, decay } = gate.forward(Logits { gain: logits(gain), decay: logits(decay) }, 1, &device);
        let first = |of: Option<Tensor<3>>| of.unwrap().into_data().try_to_vec::<f32>().unwrap()[0].into();
        (first(gain), first(decay))
    }

    /// By hand, with heads of 4: `Ē` is 1 after ℓ2 and 4 after RMS; `λ̄` starts at 0.95 · 0.01, and a logit of ln
    /// 99 more makes it 0.95 / 2. Both controls start at a full step. Far up, β ends at 2, η of a rule that erases
    /// at `2 / (Ē (1 + λ̄))`, and η of one that does not goes on.
    #[test]
    fn two_controls() {
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
            let got = of_logits(name, gain, decay);
            let close = |got: f64, expected: f64| (got / expected - 1.0).abs() < 1e-5;
            assert!(close(got.0, expected.0) && close(got.1, expected.1), "{name}: {got:?}, not {expected:?}");
        }
    }

    /// By hand: layer 1 of 4 with 4 heads has a slope of 8/4 · (1 − 1/4) = 1.5.
    #[test]
    fn lightning_decays_by_head_and_layer() {
        let device = Device::flex();
        let config = MixerConfig::preset("lightning", 16, 4).unwrap();
        let mut init = Init::new(0, &device);
        init.at(1, 4);
        let gate = Gate::new(&config, 16, &mut init);
        let gates = gate.forward(Logits { gain: None, decay: None }, 1, &device);
        let got: Vec<f32> = gates.decay.unwrap().into_data().try_to_vec().unwrap();
        let expected = [0.0, 1.5, 3.0, 4.5].map(|x: f32| (-x).exp());
        assert!(got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6), "{got:?}");
    }

    /// `γ` as shown is what the rule makes of the gates of a key that has the nominal energy.
    #[test]
    fn what_is_shown_is_what_the_rule_does() {
        let (heads, width) = (2, 4);
        let device = Device::flex();
        for (mixer, gain) in ["falcon-1", "falcon-1a", "online-ridge"]
            .into_iter()
            .flat_map(|mixer| [GainGate::Beta, GainGate::Eta, GainGate::None].map(|gain| (mixer, gain)))
        {
            let mut config = MixerConfig::preset("falcon-1.3", heads * width, heads).unwrap();
            (config.mixer, config.gain) = (mixer.into(), gain);
            let rule = config.rule().unwrap();
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
            gate.show(&gates, &mut Probe::new(&mut see));

            // Keys of ones have the energy of those that are normalised to a mean square of 1.
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
            // The first token has no pair.
            for i in heads..2 * heads {
                let (got, expected) = (shown[i], found.gamma[i]);
                assert!((got - expected).abs() < 1e-6, "{mixer} {gain:?}: {got}, not {expected}");
            }
        }
    }
}
