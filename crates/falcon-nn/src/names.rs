//! Parameters by the names that checkpoints have.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor, TensorData};

use crate::config::{DecayGate, GainGate, MixerConfig, ModelConfig, OutputGate, OutputNorm};
use crate::model::Model;

/// One parameter of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name in a checkpoint, such as `model.layers.0.attn.q_proj.weight`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl Model {
    /// Every parameter, in the order of the model.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut found = Vec::new();
        self.visit_parameters(|name, _, values| {
            found.push(Parameter { name: name.into(), shape: values.shape });
        });
        found
    }

    /// Calls `f` with the name, Burn's identity and the values of every parameter.
    pub fn visit_parameters(&self, f: impl FnMut(&str, ParamId, Values<'_>)) {
        self.visit(&mut Visitor { path: Stack::default(), f });
    }

    /// The gradient of every parameter, by name, in the order of [`Model::parameters`]; zeros where the loss does not depend on it.
    pub fn gradients(&self, grads: &Gradients) -> Vec<(String, Vec<f32>)> {
        let mut found = Vec::new();
        self.visit_parameters(|name, _, values| found.push((name.to_string(), values.gradient(grads))));
        found
    }

    /// Replaces the values of every parameter by what `f` makes of them, as many: a step of plain gradient descent, say.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use falcon_nn::{ModelConfig, cross_entropy};
    ///
    /// let device = Device::flex().autodiff();
    /// let model = ModelConfig::preset("falcon-1a.3", "micro", 12)?.init(0, &device)?;
    /// let tokens = || Tensor::<2, Int>::from_data([[1, 2, 3, 4, 5]], &device);
    /// let loss = |logits: Tensor<3>| cross_entropy(logits.reshape([5, 12]), &[2, 3, 4, 5, 6]);
    ///
    /// let before = loss(model.forward(tokens()));
    /// let mut grads = model.gradients(&before.backward()).into_iter();
    /// let model = model.with_parameters(|name, values| {
    ///     let (of, grad) = grads.next().expect("as many as parameters, in their order");
    ///     assert_eq!(of, name);
    ///     values.to_vec().iter().zip(grad).map(|(x, g)| x - 0.001 * g).collect()
    /// });
    /// let after = loss(model.forward(tokens()));
    /// assert!(after.into_scalar::<f32>() < before.into_scalar::<f32>());
    /// # Ok::<(), falcon_nn::ConfigError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If `f` returns fewer numbers than the parameter has, or more.
    pub fn with_parameters(self, f: impl FnMut(&str, Values<'_>) -> Vec<f32>) -> Self {
        self.map(&mut Mapper { path: Stack::default(), f })
    }
}

/// The values of a parameter, fetched only if asked for.
pub struct Values<'a> {
    /// Its shape.
    pub shape: Vec<usize>,
    tensor: &'a dyn Numbers,
}

impl Values<'_> {
    /// Row-major.
    pub fn to_vec(&self) -> Vec<f32> {
        self.tensor.values()
    }

    /// The gradient of a loss, row-major; zeros where the loss does not depend on the parameter.
    pub fn gradient(&self, grads: &Gradients) -> Vec<f32> {
        self.tensor.gradient(grads).unwrap_or_else(|| vec![0.0; self.shape.iter().product()])
    }
}

/// A tensor, whatever its rank.
trait Numbers {
    fn values(&self) -> Vec<f32>;
    fn gradient(&self, grads: &Gradients) -> Option<Vec<f32>>;
}

impl<const D: usize> Numbers for Tensor<D> {
    fn values(&self) -> Vec<f32> {
        self.to_data().try_to_vec().expect("parameters are f32")
    }

    fn gradient(&self, grads: &Gradients) -> Option<Vec<f32>> {
        self.grad(grads).map(|grad| grad.values())
    }
}

/// Where in the module tree one is.
#[derive(Default)]
struct Stack(Vec<String>);

/// Parts of the mixer that have a file of their own here, but no name in a checkpoint.
const UNNAMED: [&str; 3] = ["project", "gate", "output"];

impl Stack {
    fn name(&self) -> String {
        let named = self.0.iter().map(String::as_str).filter(|part| !UNNAMED.contains(part));
        // As state-space models spell theirs.
        let named = named.map(|part| match part {
            "a_log" => "A_log",
            "d" => "D",
            part => part,
        });
        let name = named.collect::<Vec<_>>().join(".");
        if name.starts_with("lm_head") { name } else { format!("model.{name}") }
    }
}

struct Visitor<V> {
    path: Stack,
    f: V,
}

impl<V: FnMut(&str, ParamId, Values<'_>)> ModuleVisitor for Visitor<V> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.0.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.0.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        (self.f)(&self.path.name(), param.id, Values { shape: tensor.dims().to_vec(), tensor: &tensor });
    }
}

struct Mapper<M> {
    path: Stack,
    f: M,
}

impl<M: FnMut(&str, Values<'_>) -> Vec<f32>> ModuleMapper for Mapper<M> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.0.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let new = (self.f)(&self.path.name(), Values { shape: tensor.dims().to_vec(), tensor: &tensor });
        let new = Tensor::from_data(TensorData::new(new, tensor.dims()), &tensor.device());
        Param::from_mapped_value(id, if tensor.is_require_grad() { new.require_grad() } else { new }, mapper)
    }
}

impl MixerConfig {
    /// How many numbers a mixer for a residual stream of `d` numbers learns.
    pub fn parameter_count(&self, d: usize) -> usize {
        let (keys, values) = (self.num_key_heads * self.head_dim, self.num_heads * self.head_v_dim);
        let gains = match self.gain {
            GainGate::Beta | GainGate::Eta | GainGate::Sigmoid if self.each_column() => values * d,
            GainGate::Beta | GainGate::Eta | GainGate::Sigmoid => self.num_heads * d,
            GainGate::None | GainGate::Delta => 0,
        };
        let decays = match self.decay {
            DecayGate::Lambda => self.num_heads * (d + 1),
            DecayGate::Selective => self.num_heads * (d + 2),
            DecayGate::None | DecayGate::Fixed | DecayGate::Lightning => 0,
        };
        let norm = match self.output_norm {
            OutputNorm::None => 0,
            OutputNorm::Head => self.head_v_dim,
            OutputNorm::All => values,
        };
        let gate = if self.output_gate == OutputGate::None { 0 } else { values * d };
        let skip = if self.value_skip { self.num_heads } else { 0 };
        (2 * keys + 2 * values) * d + (2 * keys + values) * self.conv_size + gains + decays + norm + gate + skip
    }

    /// Numbers in the memory matrices of a layer, for one sequence. Softmax attention has none of fixed size.
    pub fn memory_size(&self) -> usize {
        self.rule().map_or(0, |rule| self.num_heads * self.head_dim * rule.state_columns(self.head_v_dim))
    }

    /// All numbers that a layer keeps of one sequence: memory, last key, tails of the window and of the
    /// convolutions. None for softmax attention, whose cache grows.
    pub fn state_size(&self) -> Option<usize> {
        let rule = self.rule().ok()?;
        let (keys, values) = (self.num_key_heads * self.head_dim, self.num_heads * self.head_v_dim);
        let tail = rule.tail_capacity() * (keys + values);
        let conv = self.conv_size.saturating_sub(1) * (2 * keys + values);
        Some(self.memory_size() + keys + tail + conv)
    }
}

impl ModelConfig {
    /// How many numbers a model of this configuration learns, without making one.
    pub fn parameter_count(&self) -> usize {
        let d = self.hidden_size;
        let mlp = if self.intermediate_size > 0 { d + 3 * d * self.intermediate_size } else { 0 };
        let outputs = if self.tie_word_embeddings { 1 } else { 2 };
        let layer = d + self.mixer.parameter_count(d) + mlp;
        outputs * self.vocab_size * d + self.num_hidden_layers * layer + d
    }

    /// All numbers that a model keeps of one sequence; none if they grow with it, as a Transformer's do.
    pub fn state_size(&self) -> Option<usize> {
        Some(self.num_hidden_layers * self.mixer.state_size()?)
    }
}
