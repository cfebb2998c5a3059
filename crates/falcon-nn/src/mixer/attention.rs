//! Softmax attention, with a cache that grows.

use burn::tensor::{Bool, Int, Tensor, activation};

use crate::ops::Engine;
use crate::ops::attention::attention;
use crate::sequences::Sequences;

/// Keys and values so far, `[batch, heads, time, dim]`: of all sequences together while they are equally long, or one by one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    parts: Vec<(Tensor<4>, Tensor<4>)>,
}

impl Cache {
    pub fn from_parts(parts: Vec<(Tensor<4>, Tensor<4>)>) -> Self {
        Self { parts }
    }

    pub fn parts(&self) -> &[(Tensor<4>, Tensor<4>)] {
        &self.parts
    }

    /// Some of `all` sequences, in this order; `rows` are the same numbers.
    pub fn select(&self, sequences: &[usize], all: usize, rows: Tensor<1, Int>) -> Self {
        let one_by_one = all > 1 && self.parts.len() == all;
        let parts = if one_by_one {
            sequences.iter().map(|sequence| self.parts[*sequence].clone()).collect()
        } else {
            let select = |x: &Tensor<4>| x.clone().select(0, rows.clone());
            self.parts.iter().map(|(k, v)| (select(k), select(v))).collect()
        };
        Self { parts }
    }

    /// The sequences of all these, each with how many it has, one after the other.
    pub fn join(caches: Vec<(Self, usize)>) -> Self {
        let Some((k, v)) = caches.iter().find_map(|(cache, _)| cache.parts.first()).cloned() else {
            return Self::default();
        };
        let separate = caches.into_iter().flat_map(|(mut cache, sequences)| {
            if cache.parts.is_empty() {
                // Of nothing read there are no keys.
                cache.parts =
                    vec![[&k, &v].map(|x| x.clone().slice([0..1, 0..x.dims()[1], 0..0])).into(); sequences];
            }
            cache.separate(sequences);
            cache.parts
        });
        Self { parts: separate.collect() }
    }

    /// The past takes no gradient.
    fn detach(&mut self) {
        let parts = std::mem::take(&mut self.parts).into_iter();
        self.parts = parts.map(|(k, v)| (k.detach(), v.detach())).collect();
    }

    /// One entry for each sequence.
    fn separate(&mut self, sequences: usize) {
        if self.parts.len() == 1 && sequences > 1 {
            let (k, v) = self.parts.remove(0);
            self.parts =
                (0..sequences).map(|i| [&k, &v].map(|x| x.clone().slice_dim(0, i..i + 1)).into()).collect();
        }
    }
}

/// `softmax(q Kᵀ) V` over what came before, `[tokens, heads, dim]` each; queries are scaled already.
pub(crate) fn attend(
    engine: Engine,
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    sequences: &Sequences,
    cache: &mut Cache,
) -> Tensor<3> {
    let count = sequences.count();
    if engine == Engine::Kernels && cache.parts.is_empty() {
        let rows = |tokens: std::ops::Range<usize>, batch: usize| {
            [&k, &v].map(|x| by_heads(x.clone().detach().slice_dim(0, tokens.clone()), batch)).into()
        };
        cache.parts = match sequences.time() {
            Some(_) => vec![rows(0..sequences.tokens(), count)],
            None => sequences.offsets().windows(2).map(|w| rows(w[0]..w[1], 1)).collect(),
        };
        return attention(q, k, v, sequences);
    }
    let together = cache.parts.len() <= 1;
    if let (Some(time), true) = (sequences.time(), together) {
        let (out, part) = batch(q, k, v, [count, time], cache.parts.pop());
        cache.parts.push(part);
        cache.detach();
        return out;
    }
    cache.separate(count);
    let mut past = std::mem::take(&mut cache.parts).into_iter();
    let parts = sequences.offsets().windows(2).map(|w| {
        let [q, k, v] = [&q, &k, &v].map(|x| x.clone().slice_dim(0, w[0]..w[1]));
        batch(q, k, v, [1, w[1] - w[0]], past.next())
    });
    let (out, parts): (Vec<_>, Vec<_>) = parts.unzip();
    cache.parts = parts;
    cache.detach();
    Tensor::cat(out, 0)
}

type Part = (Tensor<4>, Tensor<4>);

fn batch(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    [count, time]: [usize; 2],
    past: Option<Part>,
) -> (Tensor<3>, Part) {
    let [q, k, v] = [q, k, v].map(|x| by_heads(x, count));
    let (k, v) = match past {
        Some((k_past, v_past)) if k_past.dims()[2] > 0 => {
            (Tensor::cat(vec![k_past, k], 2), Tensor::cat(vec![v_past, v], 2))
        }
        _ => (k, v),
    };
    let total = k.dims()[2];
    let scores = q.matmul(k.clone().swap_dims(2, 3));
    let scores = if time > 1 {
        // Above the diagonal lies the future.
        let mask = Tensor::<2, Bool>::tril_mask([time, total], (total - time) as i64, &scores.device());
        scores.mask_fill(mask.unsqueeze::<4>(), f32::NEG_INFINITY)
    } else {
        scores
    };
    let out = activation::softmax(scores, 3).matmul(v.clone());
    let [_, heads, _, dim] = v.dims();
    (out.swap_dims(1, 2).reshape([count * time, heads, dim]), (k, v))
}

/// `[batch · time, heads, dim]` to `[batch, heads, time, dim]`.
fn by_heads(x: Tensor<3>, batch: usize) -> Tensor<4> {
    let [tokens, heads, dim] = x.dims();
    x.reshape([batch, tokens / batch, heads, dim]).swap_dims(1, 2)
}
