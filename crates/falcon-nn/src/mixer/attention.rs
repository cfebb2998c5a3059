//! Softmax attention, with a cache that grows.

use burn::tensor::{Bool, Int, Tensor, activation};

use crate::ops::Engine;
use crate::ops::attention::{SCORES, attention};
use crate::sequences::Sequences;

/// Keys and values so far: of all sequences together while they are equally long, or one by one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    parts: Vec<Past>,
}

/// Keys and values `[batch, heads, time, dim]`.
type Pair = (Tensor<4>, Tensor<4>);

/// Keys and values of some sequences, cut into blocks along time: another token is put beside the few of the last block, and all that came
/// before stays where it is. There is a block at least, but for one that is being made.
#[derive(Clone, Debug)]
struct Past {
    blocks: Vec<Pair>,
}

/// Tokens of a block that others are still put beside.
const RECENT: usize = 128;
/// Tokens of a block that is not joined with another any more.
const LARGEST: usize = 4096;

fn time((k, _): &Pair) -> usize {
    k.dims()[2]
}

fn beside((k, v): Pair, (k_next, v_next): Pair) -> Pair {
    (Tensor::cat(vec![k, k_next], 2), Tensor::cat(vec![v, v_next], 2))
}

impl Past {
    fn map(&self, f: impl Fn(&Tensor<4>) -> Tensor<4>) -> Self {
        Self { blocks: self.blocks.iter().map(|(k, v)| (f(k), f(v))).collect() }
    }

    fn whole(&self) -> Pair {
        self.blocks.iter().cloned().reduce(beside).expect("there is always one block")
    }

    fn push(&mut self, next: Pair) {
        match self.blocks.pop() {
            // Of a sequence that had read nothing.
            Some(last) if time(&last) == 0 => self.blocks.push(next),
            Some(last) if time(&last) < RECENT && time(&last) + time(&next) <= LARGEST => {
                self.blocks.push(beside(last, next));
            }
            last => self.blocks.extend(last.into_iter().chain([next])),
        }
        // Blocks that are full double, as in a binary counter: a token is copied a few times, however many follow.
        while let [.., before, last] = &self.blocks[..] {
            if time(last) < RECENT || time(before) > time(last) || time(before) + time(last) > LARGEST {
                break;
            }
            let last = self.blocks.pop().expect("there are two");
            let before = self.blocks.pop().expect("there are two");
            self.blocks.push(beside(before, last));
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

    /// Numbers held.
    pub fn numbers(&self) -> usize {
        let size = |x: &Tensor<4>| x.dims().iter().product::<usize>();
        self.parts.iter().flat_map(|part| &part.blocks).map(|(k, v)| size(k) + size(v)).sum()
    }

    /// Some of `all` sequences, in this order; `rows` are the same numbers.
    pub fn select(&self, sequences: &[usize], all: usize, rows: Tensor<1, Int>) -> Self {
        let one_by_one = all > 1 && self.parts.len() == all;
        let parts = if one_by_one {
            sequences.iter().map(|sequence| self.parts[*sequence].clone()).collect()
        } else {
            self.parts.iter().map(|part| part.map(|x| x.clone().select(0, rows.clone()))).collect()
        };
        Self { parts }
    }

    /// The sequences of all these, each with how many it has, one after the other.
    pub fn join(caches: Vec<(Self, usize)>) -> Self {
        let Some(any) = caches.iter().find_map(|(cache, _)| cache.parts.first()).cloned() else {
            return Self::default();
        };
        // Of nothing read there are no keys.
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

    /// The past takes no gradient.
    fn detach(&mut self) {
        self.parts = self.parts.iter().map(|part| part.map(|x| x.clone().detach())).collect();
    }

    /// One entry for each sequence.
    fn separate(&mut self, sequences: usize) {
        if self.parts.len() == 1 && sequences != 1 {
            let all = self.parts.remove(0);
            self.parts = (0..sequences).map(|i| all.map(|x| x.clone().slice_dim(0, i..i + 1))).collect();
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
        *cache = Cache::from_parts(match sequences.time() {
            Some(_) => vec![rows(0..sequences.tokens(), count)],
            None => sequences.offsets().windows(2).map(|w| rows(w[0]..w[1], 1)).collect(),
        });
        return attention(q, k, v, sequences);
    }
    let together = cache.parts.len() <= 1;
    if let (Some(time), true) = (sequences.time(), together) {
        let (out, past) = batch(q, k, v, [count, time], cache.parts.pop());
        cache.parts.push(past);
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

fn batch(
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
    // A long piece after a long past has many scores: some rows at a time.
    let rows = (SCORES / (count * heads * total).max(1)).clamp(1, time);
    let out = (0..time).step_by(rows).map(|start| {
        let rows = rows.min(time - start);
        weighted(q.clone().slice_dim(2, start..start + rows), &past, total - time + start, total)
    });
    let out = Tensor::cat(out.collect(), 2);
    let dim = out.dims()[3];
    (out.swap_dims(1, 2).reshape([count * time, heads, dim]), past)
}

/// `softmax(q Kᵀ) V` of queries `[batch, heads, rows, dim]`, of which the first has `before` tokens before it.
fn weighted(q: Tensor<4>, past: &Past, before: usize, total: usize) -> Tensor<4> {
    let rows = q.dims()[2];
    let scores = past.blocks.iter().map(|(k, _)| q.clone().matmul(k.clone().swap_dims(2, 3)));
    let scores = Tensor::cat(scores.collect(), 3);
    let scores = if before + 1 < total {
        // Above the diagonal lies the future.
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

    /// Largest difference between a sequence read at once and the same in pieces, whose lengths are given.
    fn apart(engine: Engine, heads: usize, pieces: &[usize]) -> (f32, Cache) {
        let device = Device::flex();
        let total = pieces.iter().sum();
        let [q, k, v] = [(); 3].map(|()| Tensor::<3>::random([total, heads, 8], Distribution::Default, &device));
        let at = |x: &Tensor<3>, start: usize, count: usize| x.clone().slice_dim(0, start..start + count);
        let mut cache = Cache::default();
        let mut start = 0;
        let parts = pieces.iter().map(|&count| {
            let [q, k, v] = [&q, &k, &v].map(|x| at(x, start, count));
            start += count;
            attend(engine, q, k, v, &Sequences::uniform(1, count), &mut cache)
        });
        let parts = Tensor::cat(parts.collect(), 0);
        let whole = attend(engine, q, k, v, &Sequences::uniform(1, total), &mut Cache::default());
        ((parts - whole).abs().max().into_scalar::<f32>(), cache)
    }

    #[test]
    fn blocks_do_not_show() {
        let single = vec![1; 5 * RECENT / 2];
        let mixed = [[3, 1, RECENT, 1, 1, RECENT - 1, 2 * RECENT + 5, 7].as_slice(), &[1; 40]].concat();
        for engine in [Engine::Kernels, Engine::Tensors] {
            for pieces in [&single, &mixed] {
                let (apart, cache) = apart(engine, 2, pieces);
                assert!(apart < 1e-5, "{engine:?}: {apart}");
                let total: usize = pieces.iter().sum();
                assert!(cache.parts[0].blocks.len() > 1, "else nothing was tested");
                assert_eq!(cache.numbers(), 2 * total * 2 * 8);
                assert_eq!(cache.parts()[0].0.dims(), [1, 2, total, 8]);
            }
        }
    }

    /// Of many tokens there are few blocks, and none that must be copied again is large.
    #[test]
    fn blocks_are_few() {
        let mut past = Past { blocks: Vec::new() };
        let device = Device::flex();
        for _ in 0..3 * LARGEST {
            let one = Tensor::zeros([1, 1, 1, 1], &device);
            past.push((one.clone(), one));
            assert!(past.blocks.len() <= 3 + 6, "{}", past.blocks.len());
        }
        assert!(past.blocks.iter().map(time).eq([LARGEST, LARGEST, LARGEST]));
    }

    /// A piece whose scores are more than are held at once.
    #[test]
    fn long_pieces_are_read_by_rows() {
        let heads = 4;
        let pieces = [2000, 2500];
        assert!(heads * pieces[1] * 4500 > 2 * SCORES, "else nothing was tested");
        let (apart, _) = apart(Engine::Kernels, heads, &pieces);
        assert!(apart < 1e-5, "{apart}");
    }
}
