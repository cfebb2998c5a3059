//! Step sizes and decays from context, by head or by column.
//!
//! ```text
//! u = c σ(z), or c softplus(z + b₁), at most 2c / (1 + λ), or Δ
//! λ = s σ(a + b), or γ = exp(−A Δ) with Δ = softplus(a + b) and A = e^l
//! dz = du u (1 − σ(z)), or c du σ(z + b₁), and where u is at its bound dλ = −du u / (1 + λ)
//! da = dλ λ (1 − σ(a + b)), or dΔ σ(a + b)    db = Σ da    dl = −Σ dγ γ A Δ
//! ```

use std::sync::Arc;

use burn::tensor::Tensor;

use super::blocks::{Room, by_blocks, rows};
use super::bridge::{Array, ManyOp, Primitive, Slice, run_many};
use super::slices::{sigmoid, vectorised};

/// What the gain is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gain {
    /// `c σ(z)`.
    Sigmoid { scale: f64 },
    /// `c softplus(z + b₁)` with the unit `c`, and no more than `most · c`, over `1 + λ` where there is a ridge.
    Step { unit: f64, most: Option<f64> },
    /// `Δ`.
    Delta,
}

/// `b₁ = ln(e − 1)`: `softplus(b₁) = 1`.
pub(crate) const FULL_STEP: f64 = 0.541_324_854_612_918_1;

/// What the decay is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decay {
    /// `λ`.
    Ridge { scale: f64 },
    /// `γ`.
    Selective,
}

/// Which gates there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gating {
    pub gain: Option<Gain>,
    pub decay: Option<Decay>,
    pub heads: usize,
    /// Gains of a head.
    pub gains: usize,
    /// How often the decay of a head is repeated.
    pub decays: usize,
}

/// On the CPU: gain and decay `[tokens, heads, …]`, where there are such. Inputs are `z`, `[tokens, heads · gains]`, for a gain that is no
/// `Δ`; for a decay `a`, `[tokens, heads]`, and `b`, `[heads]`; for a selective one `l`, `[heads]`.
pub(crate) fn gates(of: Gating, inputs: [Option<Primitive>; 4]) -> [Option<Tensor<3>>; 2] {
    if of.outputs() == 0 {
        return [None, None];
    }
    let mut outputs = run_many(Arc::new(of), inputs.into_iter().flatten().collect()).into_iter();
    [of.gain.is_some(), of.decay.is_some()].map(|there| {
        let output = there.then(|| outputs.next().expect("an output for each gate"));
        output.map(Tensor::from_dispatch)
    })
}

/// The inputs that there are.
struct Named<'a> {
    z: Option<&'a [f32]>,
    a: Option<&'a [f32]>,
    b: &'a [f32],
    /// `A = e^l`.
    rates: Vec<f32>,
    tokens: usize,
}

impl Gating {
    fn named<'a>(&self, inputs: &[Slice<'a>]) -> Named<'a> {
        let tokens = inputs[0].shape[0];
        let mut inputs = inputs.iter().map(|input| input.data);
        let mut next = |there: bool| there.then(|| inputs.next().expect("an input for each"));
        let z = next(matches!(self.gain, Some(Gain::Sigmoid { .. } | Gain::Step { .. })));
        let a = next(self.decay.is_some());
        let b = next(self.decay.is_some()).unwrap_or_default();
        let logs = next(matches!(self.decay, Some(Decay::Selective))).unwrap_or_default();
        Named { z, a, b, rates: logs.iter().map(|x| x.exp()).collect(), tokens }
    }

    /// `λ` or `Δ`, whichever the decay has, of rows of heads.
    #[inline(always)]
    fn before(&self, a: &[f32], b: &[f32], y: &mut [f32]) {
        for (y, a) in y.chunks_exact_mut(self.heads).zip(a.chunks_exact(self.heads)) {
            match self.decay {
                Some(Decay::Ridge { scale }) => {
                    let scale = scale as f32;
                    y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = scale * sigmoid(a + b));
                }
                Some(Decay::Selective) => y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = softplus(a + b)),
                None => {}
            }
        }
    }

    /// The largest step: `most · c / (1 + λ)`, or without bound.
    #[inline(always)]
    fn bound(&self, unit: f64, most: Option<f64>, ridge: f32) -> f32 {
        let ridge = if let Some(Decay::Ridge { .. }) = self.decay { ridge } else { 0.0 };
        most.map_or(f32::INFINITY, |most| (most * unit) as f32 / (1.0 + ridge))
    }
}

/// `log(1 + eˣ)`. NaN stays NaN.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + (-x.abs()).exp().ln_1p()
}

impl ManyOp for Gating {
    fn outputs(&self) -> usize {
        usize::from(self.gain.is_some()) + usize::from(self.decay.is_some())
    }

    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Vec<Array> {
        let Named { z, a, b, rates, tokens } = self.named(inputs);
        let (heads, gains, decays) = (self.heads, self.gains, self.decays);
        let widths = [self.gain.map(|_| gains), self.decay.map(|_| decays)];
        let mut outputs: Vec<_> =
            widths.into_iter().flatten().map(|width| (vec![0.0; tokens * heads * width], width)).collect();
        let room = Room { out: outputs.iter_mut().map(|(y, _)| &mut y[..]).collect(), scratch: [heads], sums: 0 };
        by_blocks(tokens, room, |block| {
            let ([before], mut out) = (block.scratch, block.out.into_iter());
            let gain = self.gain.and_then(|gain| Some((gain, out.next()?)));
            let decay = self.decay.and_then(|decay| Some((decay, out.next()?)));
            vectorised(
                #[inline(always)]
                || {
                    if let Some(a) = a {
                        self.before(rows(a, heads, &block.rows), b, before);
                    }
                    match (gain, z) {
                        (Some((Gain::Delta, gain)), _) => gain.copy_from_slice(before),
                        (Some((kind, gain)), Some(z)) => {
                            let z = rows(z, heads * gains, &block.rows).chunks_exact(gains);
                            for ((gain, z), ridge) in gain.chunks_exact_mut(gains).zip(z).zip(&*before) {
                                let of = gain.iter_mut().zip(z);
                                match kind {
                                    Gain::Step { unit, most } => {
                                        let (bound, unit) = (self.bound(unit, most, *ridge), unit as f32);
                                        of.for_each(|(gain, z)| {
                                            let step = unit * softplus(*z + FULL_STEP as f32);
                                            // NaN stays NaN.
                                            *gain = if step > bound { bound } else { step };
                                        });
                                    }
                                    Gain::Sigmoid { scale } => {
                                        let scale = scale as f32;
                                        of.for_each(|(gain, z)| *gain = scale * sigmoid(*z));
                                    }
                                    Gain::Delta => unreachable!("Δ needs no z"),
                                }
                            }
                        }
                        _ => {}
                    }
                    match decay {
                        Some((Decay::Ridge { .. }, decay)) => decay.copy_from_slice(before),
                        Some((Decay::Selective, decay)) => {
                            let deltas = before.iter().zip(rates.iter().cycle());
                            for (decay, (delta, rate)) in decay.chunks_exact_mut(decays).zip(deltas) {
                                decay.fill((-rate * delta).exp());
                            }
                        }
                        None => {}
                    }
                },
            );
        });
        outputs.into_iter().map(|(data, width)| Array { data, shape: vec![tokens, heads, width] }).collect()
    }

    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        let Named { z, a, b, rates, tokens } = self.named(inputs);
        let (heads, gains, decays) = (self.heads, self.gains, self.decays);
        let mut grads = grads.into_iter();
        let grad_gain = self.gain.and_then(|_| grads.next().flatten());
        let grad_decay = self.decay.and_then(|_| grads.next().flatten());
        let mut grad_z = z.map(|z| vec![0.0; z.len()]);
        let mut grad_a = a.map(|a| vec![0.0; a.len()]);
        let room = Room {
            out: [&mut grad_z, &mut grad_a].into_iter().flatten().map(|grad| &mut grad[..]).collect(),
            scratch: [heads, heads],
            sums: b.len() + rates.len(),
        };
        let (_, sums) = by_blocks(tokens, room, |block| {
            let ([before, grad_before], mut out) = (block.scratch, block.out.into_iter());
            let (grad_z, grad_a) = (z.and_then(|_| out.next()), a.and_then(|_| out.next()));
            let (grad_b, grad_logs) = block.sums.split_at_mut(b.len());
            let grad_gain = grad_gain.as_ref().map(|grad| rows(grad, heads * gains, &block.rows));
            let grad_decay = grad_decay.as_ref().map(|grad| rows(grad, heads * decays, &block.rows));
            vectorised(
                #[inline(always)]
                || {
                    if let Some(a) = a {
                        self.before(rows(a, heads, &block.rows), b, before);
                    }
                    // dλ or dΔ, first by way of the gain.
                    grad_before.fill(0.0);
                    match (self.gain, z, grad_z, grad_gain) {
                        (Some(Gain::Delta), .., Some(grad)) => grad_before.copy_from_slice(grad),
                        (Some(gain), Some(z), Some(grad_z), Some(grad)) => {
                            let z = rows(z, heads * gains, &block.rows).chunks_exact(gains);
                            let of = grad_z.chunks_exact_mut(gains).zip(z).zip(grad.chunks_exact(gains));
                            for (((grad_z, z), grad), (ridge, grad_ridge)) in
                                of.zip(before.iter().zip(&mut *grad_before))
                            {
                                let of = grad_z.iter_mut().zip(z).zip(grad);
                                match gain {
                                    Gain::Step { unit, most } => {
                                        let (bound, unit) = (self.bound(unit, most, *ridge), unit as f32);
                                        let mut at_bound = 0.0;
                                        for ((grad_z, z), grad) in of {
                                            let z = *z + FULL_STEP as f32;
                                            let bounded = unit * softplus(z) > bound;
                                            *grad_z = if bounded { 0.0 } else { grad * unit * sigmoid(z) };
                                            at_bound += if bounded { *grad } else { 0.0 };
                                        }
                                        if at_bound != 0.0 && matches!(self.decay, Some(Decay::Ridge { .. })) {
                                            *grad_ridge = -at_bound * bound / (1.0 + ridge);
                                        }
                                    }
                                    Gain::Sigmoid { scale } => {
                                        let scale = scale as f32;
                                        for ((grad_z, z), grad) in of {
                                            let s = sigmoid(*z);
                                            *grad_z = grad * scale * s * (1.0 - s);
                                        }
                                    }
                                    Gain::Delta => unreachable!("Δ needs no z"),
                                }
                            }
                        }
                        _ => {}
                    }
                    let (Some(a), Some(grad_a)) = (a, grad_a) else { return };
                    let a = rows(a, heads, &block.rows);
                    for row in 0..block.rows.len() {
                        for head in 0..heads {
                            let i = row * heads + head;
                            let (s, before) = (sigmoid(a[i] + b[head]), before[i]);
                            let grad: f32 =
                                grad_decay.map_or(0.0, |grad| grad[i * decays..][..decays].iter().sum());
                            grad_a[i] = match self.decay {
                                Some(Decay::Selective) => {
                                    let through = -rates[head] * (-rates[head] * before).exp() * grad;
                                    grad_logs[head] += through * before;
                                    (grad_before[i] + through) * s
                                }
                                _ => (grad_before[i] + grad) * before * (1.0 - s),
                            };
                            grad_b[head] += grad_a[i];
                        }
                    }
                },
            );
        });
        let (grad_b, grad_logs) = sums.split_at(b.len());
        let sums = [grad_b, grad_logs].into_iter().filter(|grad| !grad.is_empty()).map(<[f32]>::to_vec);
        [grad_z, grad_a].into_iter().flatten().chain(sums).collect()
    }
}
