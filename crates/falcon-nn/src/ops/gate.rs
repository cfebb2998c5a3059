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

use super::blocks::{Buffers, by_blocks, rows};
use super::bridge::{Array, ManyOp, Primitive, Slice, run_many};
use super::slices::{sigmoid, vectorised};

/// How the gain is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GainFunction {
    /// `c σ(z)`.
    Sigmoid { scale: f64 },
    /// `c softplus(z + b₁)` with the unit `c`, bounded by `most · c`, or `most · c / (1 + λ)` if there is a ridge.
    Step { unit: f64, most: Option<f64> },
    /// `Δ`.
    Delta,
}

/// `b₁ = ln(e − 1)`: `softplus(b₁) = 1`.
pub(crate) const FULL_STEP: f64 = 0.541_324_854_612_918_1;

/// How the decay is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DecayFunction {
    /// A ridge `λ`.
    Ridge { scale: f64 },
    /// A decay factor `γ = exp(−A Δ)`.
    Selective,
}

/// The gates of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gating {
    pub gain: Option<GainFunction>,
    pub decay: Option<DecayFunction>,
    pub heads: usize,
    /// Number of gains of a head.
    pub gains: usize,
    /// How many times the decay of a head is repeated.
    pub decays: usize,
}

/// On the CPU: the gain and the decay, `[tokens, heads, …]` each, if the layer has them. The inputs are `z`,
/// `[tokens, heads · gains]`, for a gain other than `Δ`; `a`, `[tokens, heads]`, and `b`, `[heads]`, for a decay; and
/// `l`, `[heads]`, for a selective decay.
pub(crate) fn gates(gating: Gating, inputs: [Option<Primitive>; 4]) -> [Option<Tensor<3>>; 2] {
    let present = [gating.gain.is_some(), gating.decay.is_some()];
    if present == [false, false] {
        return [None, None];
    }
    let mut outputs = run_many(Arc::new(gating), inputs.into_iter().flatten().collect()).into_iter();
    present.map(|there| {
        let output = there.then(|| outputs.next().expect("an output for each gate"));
        output.map(Tensor::from_dispatch)
    })
}

/// The inputs by name.
struct GateInputs<'a> {
    z: Option<&'a [f32]>,
    a: Option<&'a [f32]>,
    b: &'a [f32],
    /// `A = e^l`.
    rates: Vec<f32>,
    tokens: usize,
}

impl Gating {
    fn named<'a>(&self, inputs: &[Slice<'a>]) -> GateInputs<'a> {
        let tokens = inputs[0].shape[0];
        let mut inputs = inputs.iter().map(|input| input.data);
        let mut next = |there: bool| there.then(|| inputs.next().expect("an input for each"));
        let z = next(matches!(self.gain, Some(GainFunction::Sigmoid { .. } | GainFunction::Step { .. })));
        let a = next(self.decay.is_some());
        let b = next(self.decay.is_some()).unwrap_or_default();
        let logs = next(matches!(self.decay, Some(DecayFunction::Selective))).unwrap_or_default();
        GateInputs { z, a, b, rates: logs.iter().map(|x| x.exp()).collect(), tokens }
    }

    /// Computes what the decay is made from, for rows of heads: `λ` for a ridge, `Δ` for a selective decay.
    #[inline(always)]
    fn raw_decay(&self, a: &[f32], b: &[f32], y: &mut [f32]) {
        for (y, a) in y.chunks_exact_mut(self.heads).zip(a.chunks_exact(self.heads)) {
            match self.decay {
                Some(DecayFunction::Ridge { scale }) => {
                    let scale = scale as f32;
                    y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = scale * sigmoid(a + b));
                }
                Some(DecayFunction::Selective) => {
                    y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = softplus(a + b))
                }
                None => {}
            }
        }
    }

    /// The largest step, `most · c / (1 + λ)`, or infinity without a bound.
    #[inline(always)]
    fn bound(&self, unit: f64, most: Option<f64>, ridge: f32) -> f32 {
        let ridge = if let Some(DecayFunction::Ridge { .. }) = self.decay { ridge } else { 0.0 };
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
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Vec<Array> {
        let GateInputs { z, a, b, rates, tokens } = self.named(inputs);
        let (heads, gains, decays) = (self.heads, self.gains, self.decays);
        let widths = [self.gain.map(|_| gains), self.decay.map(|_| decays)];
        let mut outputs: Vec<_> =
            widths.into_iter().flatten().map(|width| (vec![0.0; tokens * heads * width], width)).collect();
        let buffers =
            Buffers { out: outputs.iter_mut().map(|(y, _)| &mut y[..]).collect(), scratch: [heads], sums: 0 };
        by_blocks(tokens, buffers, |block| {
            let ([raw], mut out) = (block.scratch, block.out.into_iter());
            let gain = self.gain.and_then(|gain| Some((gain, out.next()?)));
            let decay = self.decay.and_then(|decay| Some((decay, out.next()?)));
            vectorised(
                #[inline(always)]
                || {
                    if let Some(a) = a {
                        self.raw_decay(rows(a, heads, &block.rows), b, raw);
                    }
                    match (gain, z) {
                        (Some((GainFunction::Delta, gain)), _) => gain.copy_from_slice(raw),
                        (Some((kind, gain)), Some(z)) => {
                            let z = rows(z, heads * gains, &block.rows).chunks_exact(gains);
                            for ((gain, z), ridge) in gain.chunks_exact_mut(gains).zip(z).zip(&*raw) {
                                let numbers = gain.iter_mut().zip(z);
                                match kind {
                                    GainFunction::Step { unit, most } => {
                                        let (bound, unit) = (self.bound(unit, most, *ridge), unit as f32);
                                        numbers.for_each(|(gain, z)| {
                                            let step = unit * softplus(*z + FULL_STEP as f32);
                                            // NaN stays NaN.
                                            *gain = if step > bound { bound } else { step };
                                        });
                                    }
                                    GainFunction::Sigmoid { scale } => {
                                        let scale = scale as f32;
                                        numbers.for_each(|(gain, z)| *gain = scale * sigmoid(*z));
                                    }
                                    GainFunction::Delta => unreachable!("Δ needs no z"),
                                }
                            }
                        }
                        _ => {}
                    }
                    match decay {
                        Some((DecayFunction::Ridge { .. }, decay)) => decay.copy_from_slice(raw),
                        Some((DecayFunction::Selective, decay)) => {
                            let deltas = raw.iter().zip(rates.iter().cycle());
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
        let GateInputs { z, a, b, rates, tokens } = self.named(inputs);
        let (heads, gains, decays) = (self.heads, self.gains, self.decays);
        let mut grads = grads.into_iter();
        let grad_gain = self.gain.and_then(|_| grads.next().flatten());
        let grad_decay = self.decay.and_then(|_| grads.next().flatten());
        let mut grad_z = z.map(|z| vec![0.0; z.len()]);
        let mut grad_a = a.map(|a| vec![0.0; a.len()]);
        let buffers = Buffers {
            out: [&mut grad_z, &mut grad_a].into_iter().flatten().map(|grad| &mut grad[..]).collect(),
            scratch: [heads, heads],
            sums: b.len() + rates.len(),
        };
        let (_, sums) = by_blocks(tokens, buffers, |block| {
            let ([raw, grad_raw], mut out) = (block.scratch, block.out.into_iter());
            let (grad_z, grad_a) = (z.and_then(|_| out.next()), a.and_then(|_| out.next()));
            let (grad_b, grad_logs) = block.sums.split_at_mut(b.len());
            let grad_gain = grad_gain.as_ref().map(|grad| rows(grad, heads * gains, &block.rows));
            let grad_decay = grad_decay.as_ref().map(|grad| rows(grad, heads * decays, &block.rows));
            vectorised(
                #[inline(always)]
                || {
                    if let Some(a) = a {
                        self.raw_decay(rows(a, heads, &block.rows), b, raw);
                    }
                    // dλ or dΔ, first the part that comes through the gain.
                    grad_raw.fill(0.0);
                    match (self.gain, z, grad_z, grad_gain) {
                        (Some(GainFunction::Delta), .., Some(grad)) => grad_raw.copy_from_slice(grad),
                        (Some(gain), Some(z), Some(grad_z), Some(grad)) => {
                            let z = rows(z, heads * gains, &block.rows).chunks_exact(gains);
                            let heads = grad_z.chunks_exact_mut(gains).zip(z).zip(grad.chunks_exact(gains));
                            for (((grad_z, z), grad), (ridge, grad_ridge)) in
                                heads.zip(raw.iter().zip(&mut *grad_raw))
                            {
                                let numbers = grad_z.iter_mut().zip(z).zip(grad);
                                match gain {
                                    GainFunction::Step { unit, most } => {
                                        let (bound, unit) = (self.bound(unit, most, *ridge), unit as f32);
                                        let mut at_bound = 0.0;
                                        for ((grad_z, z), grad) in numbers {
                                            let z = *z + FULL_STEP as f32;
                                            let bounded = unit * softplus(z) > bound;
                                            *grad_z = if bounded { 0.0 } else { grad * unit * sigmoid(z) };
                                            at_bound += if bounded { *grad } else { 0.0 };
                                        }
                                        if at_bound != 0.0
                                            && matches!(self.decay, Some(DecayFunction::Ridge { .. }))
                                        {
                                            *grad_ridge = -at_bound * bound / (1.0 + ridge);
                                        }
                                    }
                                    GainFunction::Sigmoid { scale } => {
                                        let scale = scale as f32;
                                        for ((grad_z, z), grad) in numbers {
                                            let s = sigmoid(*z);
                                            *grad_z = grad * scale * s * (1.0 - s);
                                        }
                                    }
                                    GainFunction::Delta => unreachable!("Δ needs no z"),
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
                            let (s, raw) = (sigmoid(a[i] + b[head]), raw[i]);
                            let grad: f32 =
                                grad_decay.map_or(0.0, |grad| grad[i * decays..][..decays].iter().sum());
                            grad_a[i] = match self.decay {
                                Some(DecayFunction::Selective) => {
                                    let through = -rates[head] * (-rates[head] * raw).exp() * grad;
                                    grad_logs[head] += through * raw;
                                    (grad_raw[i] + through) * s
                                }
                                _ => (grad_raw[i] + grad) * raw * (1.0 - s),
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
