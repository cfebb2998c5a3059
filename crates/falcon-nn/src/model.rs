//! A language model: embedding, blocks, norm, output matrix.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};

use crate::config::{ConfigError, ModelConfig};
use crate::context::Context;
use crate::init::Init;
use crate::layers::{Linear, RmsNorm, SwiGlu};
use crate::mixer::{Mixer, MixerState};
use crate::mup;
use crate::ops::Engine;
use crate::ops::embedding::embed;
use crate::ops::linear::linear;
use crate::ops::packed::{PackedMatrix, WeightFormat};
use crate::probe::Probe;
use crate::sequences::Sequences;

/// Pre-norm blocks between an embedding and an output matrix, which may be one and the same matrix.
#[derive(Module, Debug)]
pub struct Model {
    embeddings: Linear,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Option<Linear>,
    #[module(skip)]
    config: ModelConfig,
    #[module(skip)]
    engine: Engine,
    #[module(skip)]
    weights: WeightFormat,
}

/// `x + mixer(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub(crate) struct Block {
    attn_norm: RmsNorm,
    attn: Mixer,
    mlp_norm: Option<RmsNorm>,
    mlp: Option<SwiGlu>,
}

/// What a model keeps for a batch of sequences: the states of its mixers.
#[derive(Clone, Debug)]
pub struct ModelState {
    pub(crate) layers: Vec<MixerState>,
}

impl ModelState {
    /// Number of tokens of each sequence so far.
    pub fn positions(&self) -> &[usize] {
        self.layers.first().map_or(&[], |layer| &layer.positions)
    }

    /// Size of all its numbers, in bytes.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(MixerState::bytes).sum()
    }
}

impl ModelConfig {
    /// Makes a model with the initial parameters of `seed`, on the fastest engine of `device`.
    pub fn init(&self, seed: u64, device: &Device) -> Result<Model, ConfigError> {
        Model::new(self, Engine::of(device), seed, device)
    }
}

impl Block {
    fn new(config: &ModelConfig, init: &mut Init) -> Result<Self, ConfigError> {
        let (hidden, eps, inner) = (config.hidden_size, config.mixer.norm_eps, config.intermediate_size);
        Ok(Self {
            attn_norm: RmsNorm::new(hidden, eps, init),
            attn: Mixer::new(&config.mixer, hidden, init)?,
            mlp_norm: (inner > 0).then(|| RmsNorm::new(hidden, eps, init)),
            mlp: (inner > 0).then(|| SwiGlu::new(hidden, inner, init)),
        })
    }

    /// The token mixer.
    pub(crate) fn mixer(&self) -> &Mixer {
        &self.attn
    }

    fn forward(&self, x: Tensor<2>, state: MixerState, context: &mut Context<'_, '_>) -> (Tensor<2>, MixerState) {
        let (mut x, state) = self.attn.mix(x, Some(&self.attn_norm), state, context);
        context.probe.show("attn", &x);
        if let (Some(norm), Some(mlp)) = (&self.mlp_norm, &self.mlp) {
            x = mlp.branch(x, norm, context);
            context.probe.show("mlp", &x);
        }
        (x, state)
    }
}

impl Model {
    /// Makes a model with the initial parameters of `seed` that computes with `engine`.
    pub fn new(config: &ModelConfig, engine: Engine, seed: u64, device: &Device) -> Result<Self, ConfigError> {
        config.validate()?;
        Self::with_init(config, &mut Init::new(seed, device).engine(engine).model(config))
    }

    pub(crate) fn with_init(config: &ModelConfig, init: &mut Init) -> Result<Self, ConfigError> {
        config.validate()?;
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let embeddings = Linear::new(init.normal([vocabulary, hidden], config.initializer_range));
        let count = config.num_hidden_layers;
        let block = |layer| {
            init.enter_layer(layer, count);
            Block::new(config, init)
        };
        let layers: Result<Vec<_>, _> = (0..count).map(block).collect();
        let lm_head = (!config.tie_word_embeddings)
            .then(|| Linear::new(init.normal([vocabulary, hidden], config.initializer_range)));
        Ok(Self {
            embeddings,
            layers: layers?,
            norm: RmsNorm::new(hidden, config.mixer.norm_eps, init),
            lm_head,
            config: config.clone(),
            engine: init.checked_engine()?,
            weights: WeightFormat::F32,
        })
    }

    /// The same model with its matrices in fewer bits, for inference on the CPU: a token is generated as fast as the
    /// matrices are read from memory. States and arithmetic stay `f32`, and states of the model can be continued. A
    /// packed model can be saved, and is then loaded as it is; it cannot be trained.
    ///
    /// # Panics
    ///
    /// If the model is packed already, or computes with [`Engine::Tensors`].
    pub fn packed(mut self, format: WeightFormat) -> Self {
        if format == WeightFormat::F32 {
            return self;
        }
        assert_eq!(self.engine, Engine::Kernels, "only models on the CPU can be packed");
        assert_eq!(self.weights, WeightFormat::F32, "a model can be packed once");
        self.matrices_mut(format).for_each(|(matrix, format)| matrix.pack(format));
        self.weights = format;
        self
    }

    /// The same model with its matrices replaced by `packed`, which is given the name of each and its format in a
    /// model whose matrices are in `format`.
    pub(crate) fn with_packed(
        mut self,
        format: WeightFormat,
        mut packed: impl FnMut(&str, WeightFormat) -> PackedMatrix,
    ) -> Self {
        let mut names = BTreeMap::new();
        self.visit_parameters(|name, id, _| drop(names.insert(id, name.to_string())));
        for (matrix, format) in self.matrices_mut(format) {
            matrix.set_packed(packed(&names[&matrix.weight.id], format));
        }
        self.weights = format;
        self
    }

    /// All matrices, each with its format in a model whose matrices are in `format`.
    pub(crate) fn matrices_mut(
        &mut self,
        format: WeightFormat,
    ) -> impl Iterator<Item = (&mut Linear, WeightFormat)> {
        let layers = self.layers.iter_mut().flat_map(move |layer| {
            let mlp = layer.mlp.iter_mut().flat_map(SwiGlu::matrices_mut);
            layer.attn.matrices_mut(format).chain(mlp.map(move |matrix| (matrix, format)))
        });
        let outer = [&mut self.embeddings].into_iter().chain(&mut self.lm_head);
        outer.map(move |matrix| (matrix, format)).chain(layers)
    }

    /// How the matrices are held.
    pub fn weights(&self) -> WeightFormat {
        self.weights
    }

    /// The blocks, first to last.
    pub(crate) fn layers(&self) -> &[Block] {
        &self.layers
    }

    /// The configuration that the model was made from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The engine that the model computes with, chosen when it is made or loaded. On devices without kernels it is
    /// [`Engine::Tensors`]; the engine never changes silently.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.norm.weight.val().device()
    }

    /// The state of `sequences` sequences before their first token.
    pub fn state(&self, sequences: usize) -> ModelState {
        ModelState { layers: self.layers.iter().map(|layer| layer.attn.state(sequences)).collect() }
    }

    /// The states of the given sequences, in this order. A sequence may be given more than once, to be continued in
    /// several ways.
    ///
    /// # Panics
    ///
    /// If a sequence does not exist.
    pub fn select(&self, state: &ModelState, sequences: &[usize]) -> ModelState {
        self.check_depth(state);
        let layers = self.layers.iter().zip(&state.layers);
        ModelState { layers: layers.map(|(layer, state)| layer.attn.owner().select(state, sequences)).collect() }
    }

    /// One state with the sequences of all given states, one state after the other, to be continued together.
    ///
    /// # Panics
    ///
    /// If no state is given, or if one belongs to another model.
    pub fn join(&self, mut states: Vec<ModelState>) -> ModelState {
        assert!(!states.is_empty(), "no states to join");
        states.iter().for_each(|state| self.check_depth(state));
        if states.len() == 1 {
            return states.remove(0);
        }
        let layer = |(index, layer): (usize, &Block)| {
            layer.attn.owner().join(&states.iter().map(|state| &state.layers[index]).collect::<Vec<_>>())
        };
        ModelState { layers: self.layers.iter().enumerate().map(layer).collect() }
    }

    /// Logits `[batch, time, vocabulary]` of fresh sequences `[batch, time]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, _] = tokens.dims();
        self.resume(tokens, &mut self.state(batch))
    }

    /// Logits `[batch, time, vocabulary]` of the next tokens `[batch, time]` of sequences; advances `state`.
    pub fn resume(&self, tokens: Tensor<2, Int>, state: &mut ModelState) -> Tensor<3> {
        let [batch, time] = tokens.dims();
        if batch * time == 0 {
            return Tensor::zeros([batch, time, self.config.vocab_size], &self.device());
        }
        let tokens: Vec<u32> = tokens.into_data().iter::<u32>().collect();
        let logits = self.run(&tokens, &Sequences::uniform(batch, time), state);
        logits.reshape([batch, time, self.config.vocab_size])
    }

    /// Logits `[sequences, vocabulary]` after one more token of each sequence; advances `state`.
    pub fn step(&self, tokens: &[u32], state: &mut ModelState) -> Tensor<2> {
        self.run(tokens, &Sequences::uniform(tokens.len(), 1), state)
    }

    /// Logits `[tokens, vocabulary]` of the next tokens of packed sequences, which may differ in length; advances
    /// `state`.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use falcon_nn::{ModelConfig, Sequences};
    ///
    /// let model = ModelConfig::preset("falcon-1.3", "micro", 12)?.init(0, &Device::flex())?;
    /// let mut state = model.state(2);
    /// // Two tokens of the first sequence, three of the second.
    /// let logits = model.run(&[1, 2, 3, 4, 5], &Sequences::packed(&[2, 3]), &mut state);
    /// assert_eq!((logits.dims(), state.positions()), ([5, 12], &[2, 3][..]));
    ///
    /// // Two ways to continue the second, and beside them a fresh sequence.
    /// let twice = model.select(&state, &[1, 1]);
    /// let mut state = model.join(vec![twice, model.state(1)]);
    /// let logits = model.step(&[6, 7, 8], &mut state);
    /// assert_eq!((logits.dims(), state.positions()), ([3, 12], &[4, 4, 1][..]));
    /// # Ok::<(), falcon_nn::ConfigError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the sequences do not have as many tokens as are given, if a token is outside the vocabulary, or if `state`
    /// belongs to another model or to other sequences. After a panic later than these checks, `state` is empty and
    /// every call refuses it.
    pub fn run(&self, tokens: &[u32], sequences: &Sequences, state: &mut ModelState) -> Tensor<2> {
        let x = self.hidden(tokens, sequences, state);
        self.logits(x)
    }

    /// The final hidden states, `[tokens, hidden]`, from which [`Model::logits`] computes logits; advances `state`.
    pub fn hidden(&self, tokens: &[u32], sequences: &Sequences, state: &mut ModelState) -> Tensor<2> {
        self.probed(tokens, sequences, state, &mut Probe::none())
    }

    /// Runs fresh packed sequences and calls `see` with the name and the numbers of every intermediate tensor, in the
    /// order in which they are computed: `embeddings`; for each layer tensors such as `layers.0.attn.q` and, if it has
    /// them, its gates `layers.0.attn.beta` or `eta`, `lambda` and `gamma`; then `norm` and `logits`.
    pub fn observe(&self, tokens: &[u32], sequences: &Sequences, mut see: impl FnMut(&str, &[f32])) {
        let mut probe = Probe::new(&mut see);
        let hidden = self.probed(tokens, sequences, &mut self.state(sequences.count()), &mut probe);
        probe.show("logits", &self.logits(hidden));
    }

    /// Refuses a state of another model, some of whose layers would be left out.
    pub(crate) fn check_depth(&self, state: &ModelState) {
        assert_eq!(
            self.layers.len(),
            state.layers.len(),
            "the state must have as many layers as the model; after a call that panicked it has none"
        );
    }

    fn probed(
        &self,
        tokens: &[u32],
        sequences: &Sequences,
        state: &mut ModelState,
        probe: &mut Probe<'_>,
    ) -> Tensor<2> {
        assert_eq!(tokens.len(), sequences.tokens(), "the sequences must have as many tokens as are given");
        self.check_depth(state);
        if sequences.tokens() == 0 {
            return Tensor::zeros([0, self.config.hidden_size], &self.device());
        }
        let rotary = self.layers[0].attn.rotary(sequences, state.positions());
        let mut context = Context { engine: self.engine, sequences, rotary, probe };
        let mut x = embed(self.engine, self.embeddings.val(), tokens, &self.device());
        context.probe.show("embeddings", &x);
        // A panic leaves the state without layers, so that no later call uses a state of which only some have advanced.
        let before = std::mem::take(&mut state.layers);
        let mut after = Vec::with_capacity(before.len());
        for (index, (layer, before)) in self.layers.iter().zip(before).enumerate() {
            context.probe.enter_layer(index);
            let (y, state) = layer.forward(x, before, &mut context);
            x = y;
            after.push(state);
        }
        state.layers = after;
        context.probe.leave_layers();
        let x = self.norm.forward(x, &context);
        context.probe.show("norm", &x);
        x
    }

    /// Logits from the hidden states of [`Model::hidden`].
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let output = self.lm_head.as_ref().unwrap_or(&self.embeddings);
        let multiplier = mup::output_multiplier(&self.config);
        let hidden = if multiplier == 1.0 { hidden } else { hidden.mul_scalar(multiplier) };
        linear(self.engine, hidden, output.val())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A call that panics between two layers leaves a state that later calls refuse.
    #[test]
    fn the_state_of_a_call_that_panicked_is_refused() {
        let device = Device::flex();
        for name in ["falcon-1.3", "transformer"] {
            let model = ModelConfig::preset(name, "micro", 9).unwrap().init(0, &device).unwrap();
            let mut state = model.state(1);
            let mut see = |name: &str, _: &[f32]| assert!(!name.starts_with("layers.1."), "stop here");
            let mut run = |see: &mut dyn FnMut(&str, &[f32])| {
                let sequences = Sequences::uniform(1, 2);
                catch_unwind(AssertUnwindSafe(|| {
                    model.probed(&[1, 2], &sequences, &mut state, &mut Probe::new(see));
                }))
            };
            assert!(run(&mut |_, _| {}).is_ok());
            assert!(run(&mut see).is_err());
            let refused = run(&mut |_, _| {}).unwrap_err();
            let message = refused.downcast_ref::<String>().expect("a formatted message");
            assert!(message.contains("after a call that panicked it has none"), "{name}: {message}");
        }
    }
}
