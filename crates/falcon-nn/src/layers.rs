//! The small parts: matrices, normalisation, convolution, SwiGLU. Everything is `[tokens, features]`.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation};

use crate::config::Activation;
use crate::init::Init;
use crate::sequences::Sequences;

/// `y = x Wᵀ`, without bias.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Param<Tensor<2>>,
}

impl Linear {
    pub(crate) fn new(weight: Param<Tensor<2>>) -> Self {
        Self { weight }
    }

    /// `[tokens, in]` to `[tokens, out]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val().transpose())
    }
}

/// `x / √(mean x² + ε)` over the last axis.
pub(crate) fn rms<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    let scale = x.clone().square().mean_dim(D - 1).add_scalar(eps).sqrt().recip();
    x * scale
}

/// `x / √(Σ x² + ε)` over the last axis.
pub(crate) fn l2<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    let scale = x.clone().square().sum_dim(D - 1).add_scalar(eps).sqrt().recip();
    x * scale
}

/// RMS normalisation with a learned weight.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[features]`.
    pub weight: Param<Tensor<1>>,
    eps: f64,
}

impl RmsNorm {
    pub(crate) fn new(features: usize, eps: f64, init: &Init) -> Self {
        Self { weight: init.values(std::iter::repeat_n(1.0, features)), eps }
    }

    /// Over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms(x, self.eps) * self.weight.val().unsqueeze()
    }
}

/// A causal convolution over time, one filter a channel.
#[derive(Module, Debug)]
pub struct ShortConv {
    /// `[channels, 1, taps]`, the last tap for the current token.
    pub weight: Param<Tensor<3>>,
    #[module(skip)]
    activation: Activation,
}

impl ShortConv {
    pub(crate) fn new(channels: usize, taps: usize, activation: Activation, init: &mut Init) -> Self {
        Self { weight: init.normal([channels, 1, taps], (3.0 * taps as f64).sqrt().recip()), activation }
    }

    /// `[tokens, channels]`. `past` holds the tokens before, `[sequences, taps − 1, channels]`, and is moved on.
    pub(crate) fn forward(&self, x: Tensor<2>, sequences: &Sequences, past: &mut Option<Tensor<3>>) -> Tensor<2> {
        let [channels, _, taps] = self.weight.dims();
        let fresh = || Tensor::zeros([sequences.count(), (taps - 1).max(1), channels], &x.device());
        let before = past.take().unwrap_or_else(fresh);
        let (y, after) = match sequences.time() {
            Some(time) => self.batch(x.reshape([sequences.count(), time, channels]), before),
            None => {
                // Of unequal length: one after the other.
                let parts = sequences.offsets().windows(2).enumerate().map(|(index, w)| {
                    let x = x.clone().slice_dim(0, w[0]..w[1]).unsqueeze();
                    self.batch(x, before.clone().slice_dim(0, index..index + 1))
                });
                let (y, after): (Vec<_>, Vec<_>) = parts.unzip();
                let after: Option<Vec<_>> = after.into_iter().collect();
                (Tensor::cat(y, 0), after.map(|after| Tensor::cat(after, 0)))
            }
        };
        *past = after.map(Tensor::detach);
        match self.activation {
            Activation::None => y,
            Activation::Silu => activation::silu(y),
        }
    }

    /// `[batch, time, channels]` to `[batch · time, channels]`, and what comes before the next token, if more than one tap asks.
    fn batch(&self, x: Tensor<3>, before: Tensor<3>) -> (Tensor<2>, Option<Tensor<3>>) {
        let [batch, time, channels] = x.dims();
        let [_, _, taps] = self.weight.dims();
        let x = if taps > 1 { Tensor::cat(vec![before, x], 1) } else { x };
        let weight = self.weight.val().reshape([channels, taps]);
        let mut y = Tensor::zeros([batch, time, channels], &x.device());
        for tap in 0..taps {
            let weight = weight.clone().slice([0..channels, tap..tap + 1]).reshape([1, 1, channels]);
            y = y + x.clone().slice([0..batch, tap..tap + time]) * weight;
        }
        let after = (taps > 1).then(|| x.slice([0..batch, time..time + taps - 1]));
        (y.reshape([batch * time, channels]), after)
    }
}

/// `W₂ (silu(W₁ x) ⊙ W₃ x)`.
#[derive(Module, Debug)]
pub struct SwiGlu {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl SwiGlu {
    pub(crate) fn new(hidden: usize, inner: usize, init: &mut Init) -> Self {
        Self {
            gate_proj: Linear::new(init.matrix(inner, hidden)),
            up_proj: Linear::new(init.matrix(inner, hidden)),
            down_proj: Linear::new(init.last_matrix(hidden, inner)),
        }
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let gate = activation::silu(self.gate_proj.forward(x.clone()));
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}
