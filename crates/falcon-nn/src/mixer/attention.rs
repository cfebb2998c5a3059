//! Softmax attention, with a cache that grows.

use burn::tensor::{Bool, Int, Tensor, activation};

use super::arrays::{Arrays, StateArrays};
use super::owner::Owner;
use crate::context::Context;
use crate::file_error::FileError;
use crate::ops::Engine;
use crate::ops::attention::{SCORES, attention};
use crate::ops::tensor::numbers;

/// Cached keys and values: one part for the whole batch if its sequences have always advanced together, otherwise one
/// part for each sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    parts: Vec<Past>,
}

/// Keys and values `[batch, heads, time, dim]`.
type Pair = (Tensor<4>, Tensor<4>);

/// Keys and values of some sequences, in blocks along time. A new token is appended to the last block, which is small,
/// so that earlier blocks need not be copied. `blocks` is empty only before the first `push`.
#[derive(Clone, Debug)]
struct Past {
    blocks: Vec<Pair>,
}

/// New tokens are appended to the last block while it has fewer tokens than this.
const SMALL_BLOCK: usize = 128;
/// Blocks are not joined if the result would have more tokens than this.
const LARGEST_BLOCK: usize = 4096;

/// The names under which a part of a cache is saved.
fn array_names(part: usize) -> [String; 2] {
    ["keys", "values"].map(|what| format!("cache.{part}.{what}"))
}

fn time((k, _): &Pair) -> usize {
    k.dims()[2]
}

fn concatenated((k, v): Pair, (k_next, v_next): Pair) -> Pair {
    (Tensor::cat(vec![k, k_next], 2), Tensor::cat(vec![v, v_next], 2))
}

impl Past {
    fn map(&self, f: impl Fn(&Tensor<4>) -> Tensor<4>) -> Self {
        Self { blocks: self.blocks.iter().map(|(k, v)| (f(k), f(v))).collect() }
    }

    fn whole(&self) -> Pair {
        self.blocks.iter().cloned().reduce(concatenated).expect("there is always one block")
    }

    fn push(&mut self, next: Pair) {
        match self.blocks.pop() {
            // A sequence without tokens so far.
            Some(last) if time(&last) == 0 => self.blocks.push(next),
            Some(last) if time(&last) < SMALL_BLOCK && time(&last) + time(&next) <= LARGEST_BLOCK => {
                self.blocks.push(concatenated(last, next));
            }
            last => self.blocks.extend(last.into_iter().chain([next])),
        }
        // Full blocks are merged in pairs, like carries in a binary counter, so that merging copies each token only a
        // few times, however long the sequence grows.
        while let [.., before, last] = &self.blocks[..] {
            if time(last) < SMALL_BLOCK || time(before) > time(last) || time(before) + time(last) > LARGEST_BLOCK {
                break;
            }
            let last = self.blocks.pop().expect("there are two");
            let before = self.blocks.pop().expect("there are two");
            self.blocks.push(concatenated(before, last));
        }
    }
}

impl Cache {
    pub fn from_parts(parts: Vec<Pair>) -> Self {
        Self { parts: parts.into_iter().map(|part| Past { blocks: vec![part] }).collect() }
    }

    /// All keys and values, `[batch, heads, time, dim]`.
    pub fn parts(&self) -> Vec<Pair> {
        self.parts.iter().map(Past::whole).collect()
    }

    /// How many numbers it holds.
    pub fn size(&self) -> usize {
        let numbers = |x: &Tensor<4>| x.dims().iter().product::<usize>();
        self.parts.iter().flat_map(|part| &part.blocks).map(|(k, v)| numbers(k) + numbers(v)).sum()
    }

    /// Selects `sequences`, in this order, from a cache of `all` sequences. `rows` holds the same indices as a tensor.
    pub fn select(&self, sequences: &[usize], all: usize, rows: Tensor<1, Int>) -> Self {
        let one_by_one = all > 1 && self.parts.len() == all;
        let parts = if one_by_one {
            sequences.iter().map(|sequence| self.parts[*sequence].clone()).collect()
        } else {
            self.parts.iter().map(|part| part.map(|x| x.clone().select(0, rows.clone()))).collect()
        };
        Self { parts }
    }

    /// Concatenates the sequences of several caches, each given with its number of sequences.
    pub fn join(caches: Vec<(Self, usize)>) -> Self {
        let Some(any) = caches.iter().find_map(|(cache, _)| cache.parts.first()).cloned() else {
            return Self::default();
        };
        // Sequences without tokens have no keys.
        let (k, v) = &any.blocks[0];
        let none = || [k, v].map(|x| x.clone().slice([0..1, 0..x.dims()[1], 0..0])).into();
        let separate = caches.into_iter().flat_map(|(mut cache, sequences)| {
            if cache.parts.is_empty() {
                cache = Self::from_parts((0..sequences).map(|_| none()).collect());
            }
            cache.separate(sequences);
            cache.parts
        });
        Self { parts: separate.collect() }
    }

    /// All that has to be saved.
    pub fn arrays(&self) -> StateArrays {
        let named = |(part, (k, v)): (usize, Pair)| {
            array_names(part).into_iter().zip([k, v].map(|x| (x.dims().to_vec(), numbers(&x))))
        };
        self.parts().into_iter().enumerate().flat_map(named).collect()
    }

    /// The inverse of [`Cache::arrays`], for sequences that have read `positions` tokens.
    pub fn restore(owner: &Owner<'_>, positions: &[usize], arrays: &mut Arrays) -> Result<Self, FileError> {
        let (sequences, config) = (positions.len(), owner.config);
        let count = (0..sequences).take_while(|part| arrays.shape(&array_names(*part)[0]).is_some()).count();
        // One part for all sequences, one for each, or none if all are fresh.
        let together = count == 1 && positions.iter().all(|position| *position == positions[0]);
        let fresh = count == 0 && positions.iter().all(|position| *position == 0);
        if count < sequences && !together && !fresh {
            return Err(arrays.refuse("cache", format!("{count} parts for {sequences} sequences")));
        }
        let batch = if together { sequences } else { 1 };
        let mut parts = Vec::new();
        for (part, time) in positions.iter().enumerate().take(count) {
            let [keys, values] = array_names(part);
            let k = arrays.tensor(&keys, [batch, config.num_heads, *time, config.head_dim], &owner.device)?;
            let v = arrays.tensor(&values, [batch, config.num_heads, *time, config.head_v_dim], &owner.device)?;
            parts.push((k, v));
        }
        Ok(Self::from_parts(parts))
    }

    /// Splits a common part into one for each sequence.
    fn separate(&mut self, sequences: usize) {
        if self.parts.len() == 1 && sequences != 1 {
            let all = self.parts.remove(0);
            self.parts = (0..sequences).map(|i| all.map(|x| x.clone().slice_dim(0, i..i + 1))).collect();
        }
    }
}

/// Computes causal attention `softmax(q Kᵀ) V` over the cache and the new tokens, and returns the output and the
/// extended cache. Inputs are `[tokens, heads, dim]` each; queries are already scaled.
pub(crate) fn attend(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    mut cache: Cache,
    context: &Context<'_, '_>,
) -> (Tensor<3>, Cache) {
    let sequences = context.sequences;
    let count = sequences.count();
    if context.engine == Engine::Kernels && cache.parts.is_empty() {
        let cached = |tokens: std::ops::Range<usize>, batch: usize| {
            [&k, &v].map(|x| by_heads(x.clone().detach().slice_dim(0, tokens.clone()), batch)).into()
        };
        let cache = Cache::from_parts(match sequences.time() {
            Some(_) => vec![cached(0..sequences.tokens(), count)],
            None => sequences.offsets().windows(2).map(|w| cached(w[0]..w[1], 1)).collect(),
        });
        return (attention(q, k, v, sequences), cache);
    }
    let together = cache.parts.len() <= 1;
    let (out, parts) = if let (Some(time), true) = (sequences.time(), together) {
        let (out, part) = attend_batch(q, k, v, [count, time], cache.parts.pop());
        (out, vec![part])
    } else {
        cache.separate(count);
        let mut past = cache.parts.into_iter();
        let parts = sequences.offsets().windows(2).map(|w| {
            let [q, k, v] = [&q, &k, &v].map(|x| x.clone().slice_dim(0, w[0]..w[1]));
            attend_batch(q, k, v, [1, w[1] - w[0]], past.next())
        });
        let (out, parts): (Vec<_>, Vec<_>) = parts.unzip();
        (Tensor::cat(out, 0), parts)
    };
    // No gradient flows through the cache.
    let parts = parts.iter().map(|part| part.map(|x| x.clone().detach())).collect();
    (out, Cache { parts })
}

/// [`attend`] for `count` sequences that have `time` new tokens each and share one part of the cache, if they have any.
fn attend_batch(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    [count, time]: [usize; 2],
    past: Option<Past>,
) -> (Tensor<3>, Past) {
    let [q, k, v] = [q, k, v].map(|x| by_heads(x, count));
    let mut past = past.unwrap_or(Past { blocks: Vec::new() });
    past.push((k, v));
    let total: usize = past.blocks.iter().map(self::time).sum();
    let heads = q.dims()[1];
    // Long inputs with a long cache have too many scores for one matrix, so a few query rows are computed at a time.
    let rows = (SCORES / (count * heads * total).max(1)).clamp(1, time);
    let out = (0..time).step_by(rows).map(|start| {
        let rows = rows.min(time - start);
        attend_rows(q.clone().slice_dim(2, start..start + rows), &past, total - time + start, total)
    });
    let out = Tensor::cat(out.collect(), 2);
    let dim = out.dims()[3];
    (out.swap_dims(1, 2).reshape([count * time, heads, dim]), past)
}

/// `softmax(q Kᵀ) V` of queries `[batch, heads, rows, dim]`. `before` tokens precede that of the first query.
fn attend_rows(q: Tensor<4>, past: &Past, before: usize, total: usize) -> Tensor<4> {
    let rows = q.dims()[2];
    let scores = past.blocks.iter().map(|(k, _)| q.clone().matmul(k.clone().swap_dims(2, 3)));
    let scores = Tensor::cat(scores.collect(), 3);
    let scores = if before + 1 < total {
        // Masks later tokens, which lie above the diagonal.
        let mask = Tensor::<2, Bool>::tril_mask([rows, total], before as i64, &scores.device());
        scores.mask_fill(mask.unsqueeze::<4>(), f32::NEG_INFINITY)
    } else {
        scores
    };
    let weights = activation::softmax(scores, 3);
    let mut start = 0;
    let parts = past.blocks.iter().map(|(_, v)| {
        let end = start + v.dims()[2];
        let part = weights.clone().slice_dim(3, start..end).matmul(v.clone());
        start = end;
        part
    });
    parts.reduce(|sum, part| sum + part).expect("there is always one block")
}

/// `[batch · time, heads, dim]` to `[batch, heads, time, dim]`.
fn by_heads(x: Tensor<3>, batch: usize) -> Tensor<4> {
    let [tokens, heads, dim] = x.dims();
    x.reshape([batch, tokens / batch, heads, dim]).swap_dims(1, 2)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;
    use crate::probe::Probe;
    use crate::sequences::Sequences;

    /// The largest difference between the outputs of a sequence that is read at once and those of the same sequence in
    /// pieces of the given lengths, and the cache after the pieces.
    fn difference(engine: Engine, heads: usize, pieces: &[usize]) -> (f32, Cache) {
        let device = Device::flex();
        let total = pieces.iter().sum();
        let [q, k, v] = [(); 3].map(|()| Tensor::<3>::random([total, heads, 8], Distribution::Default, &device));
        let at = |x: &Tensor<3>, start: usize, count: usize| x.clone().slice_dim(0, start..start + count);
        let run = |q: Tensor<3>, k, v, cache| {
            let sequences = Sequences::uniform(1, q.dims()[0]);
            attend(
                q,
                k,
                v,
                cache,
                &Context { engine, sequences: &sequences, rotary: None, probe: &mut Probe::none() },
            )
        };
        let mut cache = Cache::default();
        let mut start = 0;
        let parts = pieces.iter().map(|&count| {
            let [q, k, v] = [&q, &k, &v].map(|x| at(x, start, count));
            start += count;
            let (out, after) = run(q, k, v, std::mem::take(&mut cache));
            cache = after;
            out
        });
        let parts = Tensor::cat(parts.collect(), 0);
        let (whole, _) = run(q, k, v, Cache::default());
        ((parts - whole).abs().max().into_scalar::<f32>(), cache)
    }

    #[test]
    fn blocks_do_not_change_the_outputs() {
        let single = vec![1; 5 * SMALL_BLOCK / 2];
        let mixed =
            [[3, 1, SMALL_BLOCK, 1, 1, SMALL_BLOCK - 1, 2 * SMALL_BLOCK + 5, 7].as_slice(), &[1; 40]].concat();
        for engine in [Engine::Kernels, Engine::Tensors] {
            for pieces in [&single, &mixed] {
                let (difference, cache) = difference(engine, 2, pieces);
                assert!(difference < 1e-5, "{engine:?}: {difference}");
                let total: usize = pieces.iter().sum();
                assert!(cache.parts[0].blocks.len() > 1, "the test needs a cache of several blocks");
                assert_eq!(cache.size(), 2 * total * 2 * 8);
                assert_eq!(cache.parts()[0].0.dims(), [1, 2, total, 8]);
            }
        }
    }

    /// Many single tokens are kept in a few blocks.
    #[test]
    fn blocks_are_few() {
        let mut past = Past { blocks: Vec::new() };
        let device = Device::flex();
        for _ in 0..3 * LARGEST_BLOCK {
            let one = Tensor::zeros([1, 1, 1, 1], &device);
            past.push((one.clone(), one));
            assert!(past.blocks.len() <= 3 + 6, "{} blocks", past.blocks.len());
        }
        assert!(past.blocks.iter().map(time).eq([LARGEST_BLOCK, LARGEST_BLOCK, LARGEST_BLOCK]));
    }

    /// A piece with more scores than are held at once.
    #[test]
    fn long_pieces_are_read_by_rows() {
        let heads = 4;
        let pieces = [2000, 2500];
        assert!(heads * pieces[1] * 4500 > 2 * SCORES, "the test needs more scores than are held at once");
        let (difference, _) = difference(Engine::Kernels, heads, &pieces);
        assert!(difference < 1e-5, "{difference}");
    }
}
