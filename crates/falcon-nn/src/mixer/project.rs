//! Projections to queries, keys and values, and the short convolution after each.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::config::MixerConfig;
use crate::context::Context;
use crate::init::Init;
use crate::layers::{Linear, ShortConv};

#[derive(Module, Debug)]
pub(crate) struct Project {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    q_conv1d: Option<ShortConv>,
    k_conv1d: Option<ShortConv>,
    v_conv1d: Option<ShortConv>,
    key_heads: usize,
    heads: usize,
}

/// The last tokens that the convolutions of queries, keys and values have seen.
pub(crate) type ConvState = [Option<Tensor<3>>; 3];

impl Project {
    pub fn new(config: &MixerConfig, hidden: usize, init: &mut Init) -> Self {
        let (keys, values) = (config.num_key_heads * config.head_dim, config.num_heads * config.head_v_dim);
        let mut linear = |width| Linear::matrix(width, hidden, init);
        let (q_proj, k_proj, v_proj) = (linear(keys), linear(keys), linear(values));
        let mut conv = |channels| {
            (config.conv_size > 0)
                .then(|| ShortConv::new(channels, config.conv_size, config.conv_activation, init))
        };
        let (q_conv1d, k_conv1d, v_conv1d) = (conv(keys), conv(keys), conv(values));
        let (key_heads, heads) = (config.num_key_heads, config.num_heads);
        Self { q_proj, k_proj, v_proj, q_conv1d, k_conv1d, v_conv1d, key_heads, heads }
    }

    /// The matrices that the input is multiplied with.
    pub fn matrices(&self) -> [&Linear; 3] {
        [&self.q_proj, &self.k_proj, &self.v_proj]
    }

    /// The same, to be packed.
    pub fn matrices_mut(&mut self) -> [&mut Linear; 3] {
        [&mut self.q_proj, &mut self.k_proj, &mut self.v_proj]
    }

    /// Queries, keys and values, `[tokens, heads, dim]` each, from the products with [`Self::matrices`]; and what the
    /// convolutions keep for the next call.
    pub fn forward(
        &self,
        products: &mut impl Iterator<Item = Tensor<2>>,
        [q_past, k_past, v_past]: ConvState,
        context: &Context<'_, '_>,
    ) -> ([Tensor<3>; 3], ConvState) {
        let mut finish = |conv: &Option<ShortConv>, past: Option<Tensor<3>>, heads: usize| {
            let y = products.next().expect("a product for each matrix");
            let (y, past) = match conv {
                Some(conv) => conv.forward(y, past, context),
                None => (y, None),
            };
            let [tokens, width] = y.dims();
            (y.reshape([tokens, heads, width / heads]), past)
        };
        let (q, q_past) = finish(&self.q_conv1d, q_past, self.key_heads);
        let (k, k_past) = finish(&self.k_conv1d, k_past, self.key_heads);
        let (v, v_past) = finish(&self.v_conv1d, v_past, self.heads);
        ([q, k, v], [q_past, k_past, v_past])
    }
}
