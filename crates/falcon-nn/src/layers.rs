//! The smaller layers: matrices, normalisation, convolution, SwiGLU. Activations are `[tokens, features]`.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation};

use crate::context::Context;
use crate::init::Init;
use crate::ops::Engine;
use crate::ops::conv::convolve;
use crate::ops::mlp::{Branch, mlp};
use crate::ops::norm::{Norm, Rms, normalise};
use crate::ops::packed::{Matrix, PackedMatrix, WeightFormat};
use crate::ops::project::{join, project};
use crate::ops::swiglu::swiglu;
use crate::ops::tensor::last;
use crate::options::Activation;
use crate::sequences::Sequences;

/// `y = x Wᵀ`, without bias.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    /// `[out, in]`, or `[out, 0]` if the matrix is packed.
    pub weight: Param<Tensor<2>>,
    /// The matrix in fewer bits.
    #[module(skip)]
    packed: Option<Arc<PackedMatrix>>,
}

impl Linear {
    /// A matrix `[out, in]` inside a block.
    pub(crate) fn matrix(out: usize, inputs: usize, init: &mut Init) -> Self {
        Self::new(init.matrix(out, inputs))
    }

    /// A matrix `[out, in]` that ends a residual branch.
    pub(crate) fn last(out: usize, inputs: usize, init: &mut Init) -> Self {
        Self::new(init.last_matrix(out, inputs))
    }

    pub(crate) fn new(weight: Param<Tensor<2>>) -> Self {
        Self { weight, packed: None }
    }

    /// The matrix `W`.
    pub(crate) fn val(&self) -> Matrix {
        match &self.packed {
            Some(packed) => Matrix::Packed(packed.clone()),
            None => Matrix::Full(self.weight.val()),
        }
    }

    /// Replaces the matrix by one in fewer bits.
    pub(crate) fn pack(&mut self, format: WeightFormat) {
        let weight = self.weight.val();
        let [_, inputs] = weight.dims();
        let numbers: Vec<f32> = weight.into_data().try_into_vec().expect("parameters are f32");
        self.set_packed(PackedMatrix::new(&numbers, inputs, format));
    }

    /// Replaces the matrix by this one.
    pub(crate) fn set_packed(&mut self, packed: PackedMatrix) {
        let empty = Tensor::zeros([packed.outputs(), 0], &self.weight.lazy_device());
        self.packed = Some(Arc::new(packed));
        self.weight = Param::initialized(self.weight.id, empty);
    }

    /// The matrix in fewer bits, if it is held so.
    pub(crate) fn packed(&self) -> Option<&PackedMatrix> {
        self.packed.as_deref()
    }
}

/// RMS normalisation with a learned weight.
#[derive(Module, Debug)]
pub(crate) struct RmsNorm {
    /// `[features]`.
    pub weight: Param<Tensor<1>>,
    eps: f64,
}

impl RmsNorm {
    pub(crate) fn new(features: usize, eps: f64, init: &Init) -> Self {
        Self { weight: init.values(std::iter::repeat_n(1.0, features)), eps }
    }

    /// The weight and `ε`.
    pub(crate) fn parts(&self) -> Rms {
        (self.weight.val(), self.eps)
    }

    /// Normalises over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>, context: &Context<'_, '_>) -> Tensor<D> {
        normalise(context.engine, Norm::Rms, x, Some(self.weight.val()), self.eps)
    }
}

/// A causal convolution over time, one filter per channel.
#[derive(Module, Debug)]
pub(crate) struct ShortConv {
    /// `[channels, 1, taps]`, the last tap for the current token.
    pub weight: Param<Tensor<3>>,
    #[module(skip)]
    activation: Activation,
}

impl ShortConv {
    pub(crate) fn new(channels: usize, taps: usize, activation: Activation, init: &mut Init) -> Self {
        let bound = (taps as f64).sqrt().recip();
        let weight = init.uniform([channels, 1, taps], |u| bound * (2.0 * u - 1.0));
        Self { weight, activation }
    }

    /// Filters `[tokens, channels]`. `before` holds the last `taps − 1` tokens of each sequence before this call,
    /// `[sequences, taps − 1, channels]`; those before the next call are returned. With one tap there are none.
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        before: Option<Tensor<3>>,
        context: &Context<'_, '_>,
    ) -> (Tensor<2>, Option<Tensor<3>>) {
        let sequences = context.sequences;
        let after = self.after(x.clone().detach(), sequences, before.clone());
        if context.engine == Engine::Kernels {
            return (convolve(x, self.weight.val(), before, sequences, self.activation), after);
        }
        let y = match sequences.time() {
            Some(_) => self.batch(self.joined(x, sequences.count(), before)),
            None => {
                // Sequences of unequal length run one after the other.
                let parts = sequences.offsets().windows(2).enumerate().map(|(index, w)| {
                    let x = x.clone().slice_dim(0, w[0]..w[1]);
                    let before = before.clone().map(|before| before.slice_dim(0, index..index + 1));
                    self.batch(self.joined(x, 1, before))
                });
                Tensor::cat(parts.collect(), 0)
            }
        };
        let y = match self.activation {
            Activation::None => y,
            Activation::Silu => activation::silu(y),
        };
        (y, after)
    }

    /// Appends `[batch · time, channels]` to the tokens before the call: `[batch, taps − 1 + time, channels]`.
    fn joined(&self, x: Tensor<2>, batch: usize, before: Option<Tensor<3>>) -> Tensor<3> {
        let [channels, _, taps] = self.weight.dims();
        let [tokens, _] = x.dims();
        let x = x.reshape([batch, tokens / batch, channels]);
        if taps == 1 {
            return x;
        }
        let fresh = || Tensor::zeros([batch, taps - 1, channels], &x.device());
        Tensor::cat(vec![before.unwrap_or_else(fresh), x], 1)
    }

    /// The last `taps − 1` tokens of each sequence, `[sequences, taps − 1, channels]`, if there is more than one tap.
    /// Always a copy: a view would keep all tokens of the call in memory until the next call.
    fn after(&self, x: Tensor<2>, sequences: &Sequences, before: Option<Tensor<3>>) -> Option<Tensor<3>> {
        let [channels, _, taps] = self.weight.dims();
        let (count, kept) = (sequences.count(), taps - 1);
        if kept == 0 {
            return None;
        }
        let device = x.device();
        let before = || before.unwrap_or_else(|| Tensor::zeros([count, kept, channels], &device));
        Some(match sequences.time() {
            Some(time) if time >= kept => last(x.reshape([count, time, channels]), kept),
            Some(time) => {
                let before = before().slice_dim(1, time..kept);
                Tensor::cat(vec![before, x.reshape([count, time, channels])], 1)
            }
            None => {
                let before = before().reshape([count * kept, channels]);
                let parts = sequences.offsets().windows(2).enumerate().flat_map(|(index, w)| {
                    let new = kept.min(w[1] - w[0]);
                    let old = before.clone().slice_dim(0, index * kept + new..(index + 1) * kept);
                    [old, x.clone().slice_dim(0, w[1] - new..w[1])]
                });
                Tensor::cat(parts.collect(), 0).reshape([count, kept, channels])
            }
        })
    }

    /// The convolution in tensor operations, from `[batch, taps − 1 + time, channels]` to `[batch · time, channels]`.
    fn batch(&self, x: Tensor<3>) -> Tensor<2> {
        let [channels, _, taps] = self.weight.dims();
        let [batch, length, _] = x.dims();
        let time = length + 1 - taps;
        let weight = self.weight.val().reshape([channels, taps]);
        let mut y = Tensor::zeros([batch, time, channels], &x.device());
        for tap in 0..taps {
            let weight = weight.clone().slice([0..channels, tap..tap + 1]).reshape([1, 1, channels]);
            y = y + x.clone().slice([0..batch, tap..tap + time]) * weight;
        }
        y.reshape([batch * time, channels])
    }
}

/// `W₂ (silu(W₁ x) ⊙ W₃ x)`.
#[derive(Module, Debug)]
pub(crate) struct SwiGlu {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl SwiGlu {
    pub(crate) fn new(hidden: usize, inner: usize, init: &mut Init) -> Self {
        Self {
            gate_proj: Linear::matrix(inner, hidden, init),
            up_proj: Linear::matrix(inner, hidden, init),
            down_proj: Linear::last(hidden, inner, init),
        }
    }

    /// The residual branch `x + mlp(norm(x))`.
    pub(crate) fn branch(&self, x: Tensor<2>, norm: &RmsNorm, context: &Context<'_, '_>) -> Tensor<2> {
        let engine = context.engine;
        let matrices = [&self.gate_proj, &self.up_proj, &self.down_proj].map(Linear::val);
        match (engine, matrices) {
            (Engine::Kernels, [Matrix::Full(gate), Matrix::Full(up), Matrix::Full(down)]) => {
                let (norm, eps) = norm.parts();
                mlp(x, Branch { norm, gate, up, down }, eps)
            }
            (_, [gate, up, down]) => {
                let mut products = project(engine, x.clone(), Some(norm.parts()), vec![gate, up]).into_iter();
                let mut next = || products.next().expect("two products");
                join(engine, swiglu(engine, next(), next()), None, down, Some(x))
            }
        }
    }

    /// The matrices, to be packed.
    pub(crate) fn matrices_mut(&mut self) -> [&mut Linear; 3] {
        [&mut self.gate_proj, &mut self.up_proj, &mut self.down_proj]
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::TensorMetadata;
    use burn::module::ParamId;
    use burn::tensor::Device;

    use super::*;
    use crate::ops::testing::compare;
    use crate::probe::Probe;

    /// Sequences of unequal length, in one block of rows and in several, fresh or continued, with any number of taps.
    #[test]
    fn the_convolution_equals_its_tensor_operations() {
        let channels = 5;
        for (taps, activation) in [1, 2, 4, 5]
            .into_iter()
            .flat_map(|taps| [Activation::None, Activation::Silu].map(|activation| (taps, activation)))
        {
            for (lengths, continued) in [(vec![3, 70, 1], false), (vec![3, 70, 1], true), (vec![9, 9], true)] {
                let (tokens, count) = (lengths.iter().sum::<usize>(), lengths.len());
                let kept = taps - 1;
                let shapes = [vec![tokens, channels], vec![channels, 1, taps], vec![count, kept.max(1), channels]];
                compare(&shapes, |engine, inputs| {
                    let [x, weight, past] = inputs else { unreachable!("three inputs") };
                    let weight = weight.clone().reshape([channels, 1, taps]);
                    let weight = Param::initialized(ParamId::new(), weight);
                    let layer = ShortConv { weight, activation };
                    let sequences = Sequences::packed(&lengths);
                    let context =
                        Context { engine, sequences: &sequences, rotary: None, probe: &mut Probe::none() };
                    let past = past.clone().detach().reshape([count, kept.max(1), channels]);
                    let past = (continued && kept > 0).then_some(past);
                    let (y, past) = layer.forward(x.clone().reshape([tokens, channels]), past, &context);
                    let kept = past.map(|past| past.flatten(0, 2));
                    [y.flatten(0, 1)].into_iter().chain(kept).collect()
                });
            }
        }
    }

    /// The state for the next call is a copy of a few rows, not a view that keeps all tokens in memory.
    #[test]
    fn the_state_is_not_a_view() {
        let device = Device::flex();
        let channels = 5;
        let layer = ShortConv::new(channels, 4, Activation::None, &mut Init::new(0, &device));
        for lengths in [vec![100], vec![50, 50], vec![1, 99], vec![60, 40], vec![2, 2], vec![1], vec![3]] {
            let sequences = Sequences::packed(&lengths);
            let x = Tensor::<2>::ones([sequences.tokens(), channels], &device);
            for before in [None, Some(Tensor::zeros([lengths.len(), 3, channels], &device))] {
                let engine = Engine::Kernels;
                let context = Context { engine, sequences: &sequences, rotary: None, probe: &mut Probe::none() };
                let (_, past) = layer.forward(x.clone(), before, &context);
                let past = past.expect("three taps look back");
                assert_eq!(past.dims(), [lengths.len(), 3, channels]);
                assert!(past.into_dispatch().can_mut(), "shared after {lengths:?}");
            }
        }
    }
}
