//! The parameters of a model by their names in checkpoints, and the numbers of parameters and of state.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor, TensorData};

use crate::config::{MixerConfig, ModelConfig, StateSize};
use crate::model::Model;
use crate::options::{DecayGate, GainGate, OutputGate, OutputNorm};

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

    /// The gradient of every parameter, in the order of [`Model::parameters`]; zeros where the loss does not depend on
    /// it. The gradients are moved out, not copied.
    pub fn gradients(&self, mut grads: Gradients) -> Vec<Vec<f32>> {
        let mut found = Vec::new();
        self.visit_parameters(|_, _, values| found.push(values.take_gradient(&mut grads)));
        found
    }

    /// Changes the values of all parameters at once, in the order of [`Model::parameters`]. This is how an optimizer
    /// takes a step. Values that no clone of the model shares are changed in place.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use falcon_nn::{ModelConfig, cross_entropy};
    ///
    /// let device = Device::flex().autodiff();
    /// let mut model = ModelConfig::preset("falcon-1a.3", "micro", 12)?.init(0, &device)?;
    /// let tokens = || Tensor::<2, Int>::from_data([[1, 2, 3, 4, 5]], &device);
    /// let targets = [2, 3, 4, 5, 6].map(Some);
    /// let loss = |logits: Tensor<3>| cross_entropy(logits.reshape([5, 12]), &targets);
    ///
    /// let before = loss(model.forward(tokens()));
    /// let gradients = model.gradients(before.backward());
    /// model.update_parameters(|parameters| {
    ///     for (values, gradient) in parameters.iter_mut().zip(&gradients) {
    ///         values.iter_mut().zip(gradient).for_each(|(x, g)| *x -= 0.001 * g);
    ///     }
    /// });
    /// let after = loss(model.forward(tokens()));
    /// assert!(after.into_scalar::<f32>() < before.into_scalar::<f32>());
    /// # Ok::<(), falcon_nn::ConfigError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If `update` changes the length of a parameter. A panic within `update` leaves a model without values.
    pub fn update_parameters(&mut self, update: impl FnOnce(&mut [Vec<f32>])) {
        // While an empty model takes the place of this one, nothing else holds its values, and they can be moved out
        // and back without copies.
        let empty = self.clone().map(&mut Empty);
        let mut taken = TakeValues::default();
        let empty_again = std::mem::replace(self, empty).map(&mut taken);
        update(&mut taken.values);
        *self = empty_again.map(&mut PutBack(taken.values.into_iter().zip(taken.places)));
    }

    /// Replaces the values of every parameter by what `f` returns for its name.
    ///
    /// # Panics
    ///
    /// If `f` returns fewer values than the parameter has, or more.
    pub fn with_parameters(mut self, mut f: impl FnMut(&str, Vec<f32>) -> Vec<f32>) -> Self {
        let parameters = self.parameters();
        self.update_parameters(|values| {
            for (values, parameter) in values.iter_mut().zip(parameters) {
                *values = f(&parameter.name, std::mem::take(values));
            }
        });
        self
    }
}

/// The values of a parameter, which are copied only by [`Values::to_vec`].
pub struct Values<'a> {
    /// Its shape.
    pub shape: Vec<usize>,
    tensor: &'a dyn Numbers,
}

impl Values<'_> {
    /// A copy of the values, row-major.
    pub fn to_vec(&self) -> Vec<f32> {
        self.tensor.values()
    }

    /// Moves the gradient of a loss out of `grads`, row-major; zeros where the loss does not depend on the parameter.
    fn take_gradient(&self, grads: &mut Gradients) -> Vec<f32> {
        self.tensor.take_gradient(grads).unwrap_or_else(|| vec![0.0; self.shape.iter().product()])
    }
}

/// A parameter, whatever its rank.
trait Numbers {
    fn values(&self) -> Vec<f32>;
    fn take_gradient(&self, grads: &mut Gradients) -> Option<Vec<f32>>;
}

impl<const D: usize> Numbers for Param<Tensor<D>> {
    fn values(&self) -> Vec<f32> {
        self.val().to_data().try_to_vec().expect("parameters are f32")
    }

    fn take_gradient(&self, grads: &mut Gradients) -> Option<Vec<f32>> {
        self.val().grad_remove(grads).map(into_vec)
    }
}

/// The values of a tensor; moved, not copied, where nothing else holds them.
fn into_vec<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("parameters are f32")
}

/// The names of the modules from the root of the tree down to the current one.
#[derive(Default)]
struct Stack(Vec<String>);

/// Modules of the mixer that do not occur in the names of checkpoints.
const UNNAMED: [&str; 3] = ["project", "gate", "output"];

impl Stack {
    fn name(&self) -> String {
        let named = self.0.iter().map(String::as_str).filter(|part| !UNNAMED.contains(part));
        // The spelling of these names in checkpoints of state-space models.
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
        // Values that nobody asks for are not made.
        (self.f)(&self.path.name(), param.id, Values { shape: param.lazy_shape().to_vec(), tensor: param });
    }
}

/// Leaves every parameter without values.
struct Empty;

impl ModuleMapper for Empty {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, Tensor::zeros([0; D], &tensor.device()), mapper)
    }
}

/// The shape of a parameter whose values [`TakeValues`] has moved out, and whether it is trained.
struct Place {
    shape: Vec<usize>,
    trained: bool,
}

/// Moves the values out of all parameters and puts empty tensors in their place.
#[derive(Default)]
struct TakeValues {
    values: Vec<Vec<f32>>,
    places: Vec<Place>,
}

impl ModuleMapper for TakeValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        self.places.push(Place { shape: tensor.dims().to_vec(), trained: tensor.is_require_grad() });
        let empty = Tensor::zeros([0; D], &tensor.device());
        self.values.push(into_vec(tensor));
        Param::from_mapped_value(id, empty, mapper)
    }
}

/// Puts values back into the parameters that [`TakeValues`] has moved them out of.
struct PutBack<I>(I);

impl<I: Iterator<Item = (Vec<f32>, Place)>> ModuleMapper for PutBack<I> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, empty, mapper) = param.consume();
        let (values, Place { shape, trained }) = self.0.next().expect("as many as were taken");
        assert_eq!(
            values.len(),
            shape.iter().product::<usize>(),
            "the number of values of a parameter must not change"
        );
        let tensor = Tensor::from_data(TensorData::new(values, shape), &empty.device());
        Param::from_mapped_value(id, if trained { tensor.require_grad() } else { tensor }, mapper)
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

    /// Numbers in the memory matrices of a layer, for one sequence; 0 for a mechanism whose state grows.
    pub fn memory_size(&self) -> usize {
        self.fixed_state().map_or(0, |size| size.memory)
    }

    /// All numbers that a layer keeps of one sequence: memory, last key, tails of the window and of the
    /// convolutions. None if their number grows with the sequence, as in the cache of softmax attention.
    pub fn state_size(&self) -> Option<usize> {
        let StateSize { memory, rest } = self.fixed_state()?;
        let (keys, values) = (self.num_key_heads * self.head_dim, self.num_heads * self.head_v_dim);
        let conv = self.conv_size.saturating_sub(1) * (2 * keys + values);
        Some(memory + rest + conv)
    }

    fn fixed_state(&self) -> Option<StateSize> {
        self.mechanism().ok()?.state_size(self)
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

    /// All numbers that a model keeps of one sequence. None if their number grows with the sequence.
    pub fn state_size(&self) -> Option<usize> {
        Some(self.num_hidden_layers * self.mixer.state_size()?)
    }
}
