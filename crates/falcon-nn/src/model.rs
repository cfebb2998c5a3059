//! A language model: embedding, blocks, norm, output.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};

use crate::config::{ConfigError, ModelConfig};
use crate::init::Init;
use crate::layers::{Linear, RmsNorm, SwiGlu};
use crate::mixer::{Mixer, MixerState};
use crate::mup;
use crate::ops::Engine;
use crate::ops::embedding::embed;
use crate::ops::linear::linear;
use crate::probe::Probe;
use crate::rotary::Rotary;
use crate::sequences::Sequences;

/// Pre-norm blocks between an embedding and an output matrix, which may be the same.
#[derive(Module, Debug)]
pub struct Model {
    embeddings: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Option<Linear>,
    #[module(skip)]
    config: ModelConfig,
    #[module(skip)]
    engine: Engine,
}

/// A row for every token.
#[derive(Module, Debug)]
pub(crate) struct Embedding {
    /// `[vocabulary, hidden]`.
    pub weight: Param<Tensor<2>>,
}

/// `x + mixer(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub(crate) struct Block {
    attn_norm: RmsNorm,
    attn: Mixer,
    mlp_norm: Option<RmsNorm>,
    mlp: Option<SwiGlu>,
}

/// What a model keeps of a batch of sequences: the states of its mixers.
#[derive(Clone, Debug)]
pub struct ModelState {
    pub(crate) layers: Vec<MixerState>,
}

impl ModelState {
    /// Tokens of each sequence so far.
    pub fn positions(&self) -> &[usize] {
        &self.layers[0].positions
    }

    /// Numbers held, in bytes.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(MixerState::bytes).sum()
    }
}

impl ModelConfig {
    /// A model with the initial parameters of `seed`, on the fastest engine that `device` has.
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

    /// Its token mixer.
    pub(crate) fn mixer(&self) -> &Mixer {
        &self.attn
    }

    fn forward(
        &self,
        x: Tensor<2>,
        sequences: &Sequences,
        rotary: Option<&Rotary>,
        state: &mut MixerState,
        probe: &mut Probe<'_>,
    ) -> Tensor<2> {
        let x = self.attn.mix(x, Some(&self.attn_norm), sequences, rotary, state, probe);
        probe.see("attn", &x);
        let x = match (&self.mlp_norm, &self.mlp) {
            (Some(norm), Some(mlp)) => mlp.branch(x, norm),
            _ => return x,
        };
        probe.see("mlp", &x);
        x
    }
}

impl Model {
    /// A model with the initial parameters of `seed`, computing by `engine`.
    pub fn new(config: &ModelConfig, engine: Engine, seed: u64, device: &Device) -> Result<Self, ConfigError> {
        config.validate()?;
        Self::with_init(config, &mut Init::new(seed, device).engine(engine).model(config))
    }

    pub(crate) fn with_init(config: &ModelConfig, init: &mut Init) -> Result<Self, ConfigError> {
        config.validate()?;
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let embeddings = Embedding { weight: init.normal([vocabulary, hidden], config.initializer_range) };
        let count = config.num_hidden_layers;
        let block = |layer| {
            init.at(layer, count);
            Block::new(config, init)
        };
        let layers: Result<Vec<_>, _> = (0..count).map(block).collect();
        let lm_head = (!config.tie_word_embeddings).then(|| {
            let weight = init.normal([vocabulary, hidden], config.initializer_range);
            Linear { weight }
        });
        Ok(Self {
            embeddings,
            layers: layers?,
            norm: RmsNorm::new(hidden, config.mixer.norm_eps, init),
            lm_head,
            config: config.clone(),
            engine: init.checked_engine()?,
        })
    }

    /// Its blocks, first to last.
    pub(crate) fn layers(&self) -> &[Block] {
        &self.layers
    }

    /// What it was made from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How it computes: settled when it is made or loaded, by the device it is on. Where there are no kernels that is by
    /// [`Engine::Tensors`]; nothing changes engines silently.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Where its parameters are.
    pub fn device(&self) -> Device {
        self.embeddings.weight.val().device()
    }

    /// The state before the first token of `sequences` sequences.
    pub fn state(&self, sequences: usize) -> ModelState {
        ModelState { layers: self.layers.iter().map(|layer| layer.attn.state(sequences)).collect() }
    }

    /// The states of some sequences of `state`, in this order; one may be taken more than once, to go on from it in many ways.
    ///
    /// # Panics
    ///
    /// If there is no such sequence.
    pub fn select(&self, state: &ModelState, sequences: &[usize]) -> ModelState {
        self.check_depth(state);
        let layers = self.layers.iter().zip(&state.layers);
        ModelState { layers: layers.map(|(layer, state)| layer.attn.owner().select(state, sequences)).collect() }
    }

    /// The sequences of all these states side by side, one state after the other: to be gone on with together.
    ///
    /// # Panics
    ///
    /// If there is none, or if they are not all of this model.
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

    /// Logits `[batch, time, vocabulary]` of the next tokens `[batch, time]`, moving `state` on.
    pub fn resume(&self, tokens: Tensor<2, Int>, state: &mut ModelState) -> Tensor<3> {
        let [batch, time] = tokens.dims();
        if batch * time == 0 {
            return Tensor::zeros([batch, time, self.config.vocab_size], &self.device());
        }
        let logits = self.run(tokens.reshape([batch * time]), &Sequences::uniform(batch, time), state);
        logits.reshape([batch, time, self.config.vocab_size])
    }

    /// Logits `[sequences, vocabulary]` after one more token of each sequence, `[sequences]`.
    pub fn step(&self, tokens: Tensor<1, Int>, state: &mut ModelState) -> Tensor<2> {
        let sequences = Sequences::uniform(tokens.dims()[0], 1);
        self.run(tokens, &sequences, state)
    }

    /// Logits `[tokens, vocabulary]` of packed sequences: of any length, side by side, moving `state` on.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use falcon_nn::{ModelConfig, Sequences};
    ///
    /// let device = Device::flex();
    /// let model = ModelConfig::preset("falcon-1.3", "micro", 12)?.init(0, &device)?;
    /// let mut state = model.state(2);
    /// // Two tokens of the first sequence, three of the second.
    /// let logits = model.run(Tensor::from_data([1, 2, 3, 4, 5], &device), &Sequences::packed(&[2, 3]), &mut state);
    /// assert_eq!((logits.dims(), state.positions()), ([5, 12], &[2, 3][..]));
    ///
    /// // Two ways to go on from the second, and beside them one that has read nothing.
    /// let twice = model.select(&state, &[1, 1]);
    /// let mut state = model.join(vec![twice, model.state(1)]);
    /// let logits = model.step(Tensor::from_data([6, 7, 8], &device), &mut state);
    /// assert_eq!((logits.dims(), state.positions()), ([3, 12], &[4, 4, 1][..]));
    /// # Ok::<(), falcon_nn::ConfigError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there are other tokens than the sequences have, or if `state` is of another model or of other sequences.
    pub fn run(&self, tokens: Tensor<1, Int>, sequences: &Sequences, state: &mut ModelState) -> Tensor<2> {
        let x = self.hidden(tokens, sequences, state);
        self.logits(x)
    }

    /// What the output matrix is applied to, `[tokens, hidden]`.
    pub fn hidden(&self, tokens: Tensor<1, Int>, sequences: &Sequences, state: &mut ModelState) -> Tensor<2> {
        self.probed(tokens, sequences, state, &mut Probe::none())
    }

    /// Calls `see` with the name and the numbers of every tensor on the way to the logits of fresh packed sequences, in the order they
    /// are computed: `embeddings`; then those of each layer, such as `layers.0.attn.q` and, where it has them, its gates,
    /// `layers.0.attn.beta` or `eta`, `lambda` and `gamma`; then `norm` and `logits`.
    pub fn observe(&self, tokens: Tensor<1, Int>, sequences: &Sequences, mut see: impl FnMut(&str, &[f32])) {
        let mut probe = Probe::new(&mut see);
        let hidden = self.probed(tokens, sequences, &mut self.state(sequences.count()), &mut probe);
        probe.see("logits", &self.logits(hidden));
    }

    /// A state of another model would leave layers out.
    pub(crate) fn check_depth(&self, state: &ModelState) {
        assert_eq!(self.layers.len(), state.layers.len(), "layers of the model, and of the state");
    }

    fn probed(
        &self,
        tokens: Tensor<1, Int>,
        sequences: &Sequences,
        state: &mut ModelState,
        probe: &mut Probe<'_>,
    ) -> Tensor<2> {
        assert_eq!(tokens.dims()[0], sequences.tokens(), "tokens given, and tokens of the sequences");
        self.check_depth(state);
        if sequences.tokens() == 0 {
            return Tensor::zeros([0, self.config.hidden_size], &self.device());
        }
        let rotary = self.layers[0].attn.rotary(sequences, state.positions());
        let mut x = embed(self.engine, self.embeddings.weight.val(), tokens);
        probe.see("embeddings", &x);
        for (index, (layer, state)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            probe.enter_layer(index);
            x = layer.forward(x, sequences, rotary.as_ref(), state, probe);
        }
        probe.leave_layers();
        let x = self.norm.forward(x);
        probe.see("norm", &x);
        x
    }

    /// Logits from [`Model::hidden`].
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let output = self.lm_head.as_ref().map_or(&self.embeddings.weight, |head| &head.weight);
        let multiplier = mup::output_multiplier(&self.config);
        let hidden = if multiplier == 1.0 { hidden } else { hidden.mul_scalar(multiplier) };
        linear(self.engine, hidden, output.val())
    }
}
