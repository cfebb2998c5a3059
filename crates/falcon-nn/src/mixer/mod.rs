//! The token mixer: projections, convolution, features, gates, rule, output. One for all models; softmax attention takes
//! the place of the rule and nothing else.

mod attention;
mod feature;
mod gate;
mod output;
mod project;
mod state;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use falcon_kernels::Rule;

use self::attention::attend;
use self::feature::Feature;
use self::gate::{Gate, Gates};
use self::output::Output;
use self::project::Project;
pub use self::state::MixerState;
pub(crate) use self::state::{Arrays, Memory, Owner};
use crate::config::{ConfigError, MixerConfig, WIDEST, between};
use crate::init::Init;
use crate::layers::RmsNorm;
use crate::ops::Engine;
use crate::ops::project::project;
use crate::ops::rule::rule;
use crate::ops::tensor::RuleInputs;
use crate::probe::Probe;
use crate::rotary::Rotary;
use crate::sequences::Sequences;

/// A layer that mixes tokens: one of the six rules, a baseline, or softmax attention, as its configuration says.
#[derive(Module, Debug)]
pub struct Mixer {
    project: Project,
    gate: Gate,
    output: Output,
    #[module(skip)]
    feature: Feature,
    #[module(skip)]
    rule: Option<Rule>,
    #[module(skip)]
    config: MixerConfig,
    #[module(skip)]
    engine: Engine,
}

impl MixerConfig {
    /// A layer for a residual stream of `hidden` numbers with the initial parameters of `seed`, on the fastest engine that `device` has.
    pub fn init(&self, hidden: usize, seed: u64, device: &Device) -> Result<Mixer, ConfigError> {
        Mixer::new(self, hidden, &mut Init::new(seed, device))
    }
}

impl Mixer {
    /// A layer with parameters from `init`.
    pub fn new(config: &MixerConfig, hidden: usize, init: &mut Init) -> Result<Self, ConfigError> {
        config.validate()?;
        between("hidden_size", hidden, 1, WIDEST)?;
        let engine = init.checked_engine()?;
        Ok(Self {
            project: Project::new(config, hidden, init),
            gate: Gate::new(config, hidden, init),
            output: Output::new(config, hidden, init),
            feature: Feature::new(config, engine),
            rule: if config.is_softmax() { None } else { Some(config.rule()?) },
            config: config.clone(),
            engine,
        })
    }

    /// How it computes: settled when it was made, by the device it was made on.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// A batch of fresh sequences, `[batch, time, hidden]` to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, _, _] = x.dims();
        self.resume(x, &mut self.state(batch))
    }

    /// The next tokens of a batch of sequences, `[batch, time, hidden]`, moving `state` on: a prompt, a piece of a long text,
    /// or one token at a time.
    pub fn resume(&self, x: Tensor<3>, state: &mut MixerState) -> Tensor<3> {
        let [batch, time, hidden] = x.dims();
        if batch * time == 0 {
            return x;
        }
        let y = self.run(x.reshape([batch * time, hidden]), &Sequences::uniform(batch, time), state);
        y.reshape([batch, time, hidden])
    }

    /// The next tokens of packed sequences, `[tokens, hidden]`, moving `state` on.
    ///
    /// # Panics
    ///
    /// If `x` has another width than the layer or other tokens than the sequences, or if `state` is of another mixer or of other sequences.
    pub fn run(&self, x: Tensor<2>, sequences: &Sequences, state: &mut MixerState) -> Tensor<2> {
        let ([tokens, width], hidden) = (x.dims(), self.output.hidden());
        assert_eq!(width, hidden, "width of the input, and of the layer");
        assert_eq!(tokens, sequences.tokens(), "tokens given, and tokens of the sequences");
        if tokens == 0 {
            return x;
        }
        let rotary = self.rotary(sequences, &state.positions);
        self.mix(x, None, sequences, rotary.as_ref(), state, &mut Probe::none())
    }

    /// The state before the first token of `sequences` sequences.
    pub fn state(&self, sequences: usize) -> MixerState {
        self.owner().fresh(sequences)
    }

    pub(crate) fn owner(&self) -> Owner<'_> {
        Owner { config: &self.config, rule: self.rule.as_ref(), engine: self.engine, device: self.output.device() }
    }

    /// Rotary positions, if the mixer has them.
    pub(crate) fn rotary(&self, sequences: &Sequences, start: &[usize]) -> Option<Rotary> {
        check_count(sequences, start);
        let theta = self.config.rope_theta?;
        Some(Rotary::new(theta, self.config.head_dim, sequences, start, self.engine, &self.output.device()))
    }

    /// `[tokens, hidden]` to the same: the mixer alone or, with a norm, a branch of the residual stream, `x + mix(norm(x))`.
    pub(crate) fn mix(
        &self,
        x: Tensor<2>,
        norm: Option<&RmsNorm>,
        sequences: &Sequences,
        rotary: Option<&Rotary>,
        state: &mut MixerState,
        probe: &mut Probe<'_>,
    ) -> Tensor<2> {
        check_count(sequences, &state.positions);
        // Whatever is a product with the input, at once; each part then takes its own.
        let matrices =
            self.project.matrices().into_iter().chain(self.gate.matrices()).chain(self.output.matrices());
        let weights = matrices.map(|linear| linear.weight.val()).collect();
        let mut products = project(self.engine, x.clone(), norm.map(RmsNorm::parts), weights).into_iter();
        let (q, k, v) = self.project.forward(&mut products, sequences, &mut state.conv);
        let logits = self.gate.logits(&mut products);
        let output_gate = products.next();

        let (q, k, v) = self.feature.forward(q, k, v, rotary);
        [("attn.q", &q), ("attn.k", &k), ("attn.v", &v)].into_iter().for_each(|(name, x)| probe.see(name, x));
        let read = match (&self.rule, &mut state.memory) {
            (Some(of), Memory::Rule(memory)) => {
                let gates = self.gate.forward(logits, sequences.tokens(), &x.device());
                self.gate.show(&gates, probe);
                let Gates { gain, decay } = gates;
                let inputs = RuleInputs { q, k, v: v.clone(), gain, decay };
                let before = memory.take().expect("an earlier call with this state panicked; make a new state");
                let (read, after) = rule(of, inputs, sequences, before);
                *memory = Some(after);
                read
            }
            (None, Memory::Cache(cache)) => attend(self.engine, q, k, v.clone(), sequences, cache),
            _ => panic!("the state is of another mixer"),
        };
        probe.see("attn.read", &read);
        for (position, length) in state.positions.iter_mut().zip(sequences.lengths()) {
            *position += length;
        }
        self.output.forward(read, v, output_gate, norm.map(|_| x))
    }
}

/// A state of other sequences would leave some out.
fn check_count(sequences: &Sequences, positions: &[usize]) {
    assert_eq!(positions.len(), sequences.count(), "sequences of the state, and sequences given");
}
