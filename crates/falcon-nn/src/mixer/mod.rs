//! The token mixer: projections, convolution, features, gates, mechanism, output. All models have the same mixer with
//! different options; in a Transformer, softmax attention replaces the rule and nothing else.

mod arrays;
mod attention;
mod feature;
mod gate;
mod memory;
mod output;
mod owner;
mod project;
mod rule;
mod state;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

pub(crate) use self::arrays::Arrays;
use self::feature::Feature;
use self::gate::Gate;
use self::memory::MechanismInputs;
use self::output::Output;
pub(crate) use self::owner::Owner;
use self::project::Project;
pub use self::state::MixerState;
use crate::config::{ConfigError, Mechanism, MixerConfig, WIDEST, between};
use crate::context::Context;
use crate::init::Init;
use crate::layers::{Linear, RmsNorm};
use crate::ops::Engine;
use crate::ops::packed::WeightFormat;
use crate::ops::project::project;
use crate::probe::Probe;
use crate::rotary::Rotary;
use crate::sequences::Sequences;

/// A layer that mixes tokens: one of the six Falcon rules, a baseline, or softmax attention, depending on its
/// configuration.
#[derive(Module, Debug)]
pub struct Mixer {
    project: Project,
    gate: Gate,
    output: Output,
    #[module(skip)]
    feature: Feature,
    #[module(skip)]
    mechanism: Mechanism,
    #[module(skip)]
    config: MixerConfig,
    #[module(skip)]
    engine: Engine,
}

impl MixerConfig {
    /// Makes a layer for a model of hidden size `hidden`, with the initial parameters of `seed`, on the fastest engine
    /// of `device`.
    pub fn init(&self, hidden: usize, seed: u64, device: &Device) -> Result<Mixer, ConfigError> {
        Mixer::new(self, hidden, &mut Init::new(seed, device))
    }
}

impl Mixer {
    /// Makes a layer with parameters from `init`.
    pub fn new(config: &MixerConfig, hidden: usize, init: &mut Init) -> Result<Self, ConfigError> {
        config.validate()?;
        between("hidden_size", hidden, 1, WIDEST)?;
        let engine = init.checked_engine()?;
        Ok(Self {
            project: Project::new(config, hidden, init),
            gate: Gate::new(config, hidden, init),
            output: Output::new(config, hidden, init),
            feature: Feature::new(config),
            mechanism: config.mechanism()?,
            config: config.clone(),
            engine,
        })
    }

    /// The engine that the layer computes with, chosen when it was made.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Runs a batch of fresh sequences, `[batch, time, hidden]` to the same shape.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, _, _] = x.dims();
        self.resume(x, &mut self.state(batch))
    }

    /// Runs the next tokens of a batch of sequences, `[batch, time, hidden]`, and advances `state`: a prompt, a piece
    /// of a long text, or one token at a time.
    pub fn resume(&self, x: Tensor<3>, state: &mut MixerState) -> Tensor<3> {
        let [batch, time, hidden] = x.dims();
        if batch * time == 0 {
            return x;
        }
        let y = self.run(x.reshape([batch * time, hidden]), &Sequences::uniform(batch, time), state);
        y.reshape([batch, time, hidden])
    }

    /// Runs the next tokens of packed sequences, `[tokens, hidden]`, and advances `state`.
    ///
    /// # Panics
    ///
    /// If the width of `x` is not the hidden size, if it does not have the tokens of the sequences, or if `state`
    /// belongs to another mixer or to other sequences. After a panic later than these checks, `state` holds no
    /// sequences.
    pub fn run(&self, x: Tensor<2>, sequences: &Sequences, state: &mut MixerState) -> Tensor<2> {
        let ([tokens, width], hidden) = (x.dims(), self.output.hidden());
        assert_eq!(width, hidden, "the width of the input must be the hidden size of the layer");
        assert_eq!(tokens, sequences.tokens(), "the input must have the tokens of the sequences");
        if tokens == 0 {
            return x;
        }
        let rotary = self.rotary(sequences, &state.positions);
        let mut context = Context { engine: self.engine, sequences, rotary, probe: &mut Probe::none() };
        let (y, after) = self.mix(x, None, state.take(), &mut context);
        *state = after;
        y
    }

    /// The state of `sequences` sequences before their first token.
    pub fn state(&self, sequences: usize) -> MixerState {
        self.owner().fresh(sequences)
    }

    /// The matrices, each with its format in a model whose matrices are in `format`. Gates are small and decide how
    /// long a memory lasts, so they are never in fewer bits than `bf16`.
    pub(crate) fn matrices_mut(
        &mut self,
        format: WeightFormat,
    ) -> impl Iterator<Item = (&mut Linear, WeightFormat)> {
        let gates = self.gate.matrices_mut().map(move |gate| (gate, format.of_gates()));
        let others = self.project.matrices_mut().into_iter().chain(self.output.matrices_mut());
        gates.chain(others.map(move |matrix| (matrix, format)))
    }

    pub(crate) fn owner(&self) -> Owner<'_> {
        let (mechanism, engine, device) = (&self.mechanism, self.engine, self.output.device());
        Owner { config: &self.config, mechanism, engine, device }
    }

    /// Rotary positions of the tokens of a call, if the mixer uses them. `start` is the number of tokens of each
    /// sequence so far.
    pub(crate) fn rotary(&self, sequences: &Sequences, start: &[usize]) -> Option<Rotary> {
        check_count(sequences, start);
        let theta = self.config.rope_theta?;
        Some(Rotary::new(theta, self.config.head_dim, sequences, start, self.engine, &self.output.device()))
    }

    /// Runs the mixer on `[tokens, hidden]`; returns the output, of the same shape, and the state after the tokens.
    /// With `norm`, the output is that of the whole residual branch, `x + mixer(norm(x))`.
    pub(crate) fn mix(
        &self,
        x: Tensor<2>,
        norm: Option<&RmsNorm>,
        state: MixerState,
        context: &mut Context<'_, '_>,
    ) -> (Tensor<2>, MixerState) {
        let MixerState { conv, memory, mut positions } = state;
        check_count(context.sequences, &positions);
        // The products of the input with the matrices of all parts are computed together. Each part then takes its own.
        let matrices =
            self.project.matrices().into_iter().chain(self.gate.matrices()).chain(self.output.matrices());
        let weights = matrices.map(Linear::val).collect();
        let mut products = project(context.engine, x.clone(), norm.map(RmsNorm::parts), weights).into_iter();
        let ([q, k, v], conv) = self.project.forward(&mut products, conv, context);
        let logits = self.gate.logits(&mut products);
        let output_gate = products.next();

        let (q, k, v) = self.feature.forward(q, k, v, context);
        for (name, tensor) in [("attn.q", &q), ("attn.k", &k), ("attn.v", &v)] {
            context.probe.show(name, tensor);
        }
        let inputs = MechanismInputs { q, k, v: v.clone(), gate: &self.gate, logits };
        let (read, memory) = memory.advance(&self.mechanism, inputs, context);
        context.probe.show("attn.read", &read);
        for (position, length) in positions.iter_mut().zip(context.sequences.lengths()) {
            *position += length;
        }
        let y = self.output.forward(read, v, output_gate, norm.map(|_| x), context);
        (y, MixerState { conv, memory, positions })
    }
}

/// Refuses a state with another number of sequences: some sequences would be left out without notice.
fn check_count(sequences: &Sequences, positions: &[usize]) {
    assert_eq!(
        positions.len(),
        sequences.count(),
        "the state must hold as many sequences as are given; after a call that panicked it holds none"
    );
}
