//! From the output of the mechanism to the residual stream.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::config::MixerConfig;
use crate::context::Context;
use crate::init::Init;
use crate::layers::{Linear, RmsNorm};
use crate::ops::project::join;
use crate::ops::swiglu::swiglu;
use crate::options::{OutputGate, OutputNorm};

#[derive(Module, Debug)]
pub(crate) struct Output {
    o_norm: Option<RmsNorm>,
    g_proj: Option<Linear>,
    o_proj: Linear,
    /// Weights with which values are added to the output of the mechanism, `[heads]`.
    d: Option<Param<Tensor<1>>>,
    #[module(skip)]
    norm: OutputNorm,
    #[module(skip)]
    gate: OutputGate,
}

impl Output {
    pub fn new(config: &MixerConfig, hidden: usize, init: &mut Init) -> Self {
        let width = config.num_heads * config.head_v_dim;
        let normed = match config.output_norm {
            OutputNorm::None => None,
            OutputNorm::Head => Some(config.head_v_dim),
            OutputNorm::All => Some(width),
        };
        let gate = config.output_gate;
        Self {
            o_norm: normed.map(|width| RmsNorm::new(width, config.norm_eps, init)),
            g_proj: (gate != OutputGate::None).then(|| Linear::matrix(width, hidden, init)),
            o_proj: Linear::last(hidden, width, init),
            d: config.value_skip.then(|| init.values(std::iter::repeat_n(1.0, config.num_heads))),
            norm: config.output_norm,
            gate,
        }
    }

    /// The hidden size.
    pub fn hidden(&self) -> usize {
        self.o_proj.weight.dims()[0]
    }

    pub fn device(&self) -> Device {
        self.o_proj.weight.val().device()
    }

    /// The matrix that the input of the mixer is multiplied with for the gate, if there is one.
    pub fn matrices(&self) -> Option<&Linear> {
        self.g_proj.as_ref()
    }

    /// All matrices, to be packed.
    pub fn matrices_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.g_proj.iter_mut().chain([&mut self.o_proj])
    }

    /// `read` and `v` are `[tokens, heads, dim_v]`, `gate` is the product with [`Self::matrices`], and `x` is the
    /// residual stream if the result is to be added to it.
    pub fn forward(
        &self,
        read: Tensor<3>,
        v: Tensor<3>,
        gate: Option<Tensor<2>>,
        x: Option<Tensor<2>>,
        context: &Context<'_, '_>,
    ) -> Tensor<2> {
        let engine = context.engine;
        let [tokens, heads, width] = read.dims();
        let read = match &self.d {
            Some(d) => read + v * d.val().reshape([1, heads, 1]),
            None => read,
        };
        let read = read.reshape([tokens, heads * width]);
        let norm = self.o_norm.as_ref();
        let (read, norm) = match (self.gate, gate) {
            (OutputGate::BeforeNorm, Some(gate)) => (swiglu(engine, gate, read), norm),
            (OutputGate::AfterNorm, Some(gate)) => (swiglu(engine, gate, self.normed(read, heads, context)), None),
            _ => (read, norm),
        };
        join(engine, read, norm.map(RmsNorm::parts), self.o_proj.val(), x)
    }

    fn normed(&self, read: Tensor<2>, heads: usize, context: &Context<'_, '_>) -> Tensor<2> {
        let [tokens, width] = read.dims();
        match (&self.o_norm, self.norm) {
            (Some(norm), OutputNorm::Head) => {
                norm.forward(read.reshape([tokens, heads, width / heads]), context).reshape([tokens, width])
            }
            (Some(norm), _) => norm.forward(read, context),
            (None, _) => read,
        }
    }
}
