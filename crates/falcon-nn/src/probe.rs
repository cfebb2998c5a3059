//! Observation of intermediate tensors.

use burn::tensor::Tensor;

type Callback<'a> = &'a mut dyn FnMut(&str, &[f32]);

/// Calls a callback with the name and the values of every tensor that is passed to [`Probe::show`]. Without a callback
/// it does nothing.
pub(crate) struct Probe<'a> {
    prefix: String,
    callback: Option<Callback<'a>>,
}

impl<'a> Probe<'a> {
    /// A probe without a callback.
    pub fn none() -> Self {
        Self { prefix: String::new(), callback: None }
    }

    pub fn new(callback: Callback<'a>) -> Self {
        Self { prefix: String::new(), callback: Some(callback) }
    }

    /// Prefixes the names of the tensors that follow with `layers.{index}.`.
    pub fn enter_layer(&mut self, index: usize) {
        if self.callback.is_some() {
            self.prefix = format!("layers.{index}.");
        }
    }

    /// Removes the prefix of the layer.
    pub fn leave_layers(&mut self) {
        self.prefix.clear();
    }

    pub fn is_on(&self) -> bool {
        self.callback.is_some()
    }

    pub fn show<const D: usize>(&mut self, name: &str, tensor: &Tensor<D>) {
        if let Some(callback) = &mut self.callback {
            let values = tensor.to_data().try_to_vec::<f32>().expect("activations are f32");
            callback(&format!("{}{name}", self.prefix), &values);
        }
    }
}
