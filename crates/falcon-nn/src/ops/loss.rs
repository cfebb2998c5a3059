//! Cross-entropy of logits.
//!
//! ```text
//! L = Σ_t (log Σ_j e^{z_tj} − z_{t,y_t}) / n        dz_tj = (softmax(z_t)_j − [j = y_t]) / n
//! ```
//!
//! One pass over the logits finds the largest of each row and the sum of exponentials. Loss, accuracy and gradient all
//! follow from these.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData, activation};
use rayon::prelude::*;

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{ROWS, by_rows, exp, max, vectorised};

/// Mean cross-entropy in nats of logits `[tokens, vocabulary]` over the tokens that have a target; 0 if none has.
///
/// # Panics
///
/// If there is not one entry of `targets` for each row, or if a target is outside the vocabulary.
pub fn cross_entropy(logits: Tensor<2>, targets: &[Option<u32>]) -> Tensor<1> {
    loss_and_predictions(logits, targets).0
}

/// The mean cross-entropy as [`cross_entropy`] computes it, and the [`Prediction`] of every token, both from one pass
/// over the logits.
///
/// # Panics
///
/// As [`cross_entropy`].
pub fn loss_and_predictions(logits: Tensor<2>, targets: &[Option<u32>]) -> (Tensor<1>, Vec<Option<Prediction>>) {
    let engine = Engine::of(&logits.device());
    loss_and_predictions_by(engine, logits, targets)
}

fn loss_and_predictions_by(
    engine: Engine,
    logits: Tensor<2>,
    targets: &[Option<u32>],
) -> (Tensor<1>, Vec<Option<Prediction>>) {
    let [tokens, vocabulary] = logits.dims();
    check(targets, tokens, vocabulary);
    let rows = RowStatistics::of(engine, logits.clone().inner(), targets);
    let counted = targets.iter().flatten().count();
    if counted == 0 {
        return ((logits * 0.0).sum(), rows.predictions(targets));
    }
    let predictions = rows.predictions(targets);
    let loss = match engine {
        Engine::Kernels => {
            let op = CrossEntropy { targets: targets.to_vec(), counted, rows };
            run(Arc::new(op), [logits.into_dispatch()])
        }
        Engine::Tensors => {
            let device = logits.device();
            let wanted: Vec<i32> = targets.iter().map(|target| target.unwrap_or(0) as i32).collect();
            let weights: Vec<f32> =
                targets.iter().map(|target| if target.is_some() { 1.0 / counted as f32 } else { 0.0 }).collect();
            let wanted = Tensor::from_data(TensorData::new(wanted, [tokens, 1]), &device);
            let weights = Tensor::from_data(TensorData::new(weights, [tokens, 1]), &device);
            (activation::log_softmax(logits, 1).gather(1, wanted) * weights).sum().neg()
        }
    };
    (loss, predictions)
}

/// How well a token was predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Cross-entropy in nats: the negative logarithm of the probability of the target.
    pub loss: f64,
    /// Whether the target has the largest logit. Of several equal logits the first counts as the largest.
    pub right: bool,
}

/// How well each token of logits `[tokens, vocabulary]` was predicted; `None` where there is no target.
///
/// # Panics
///
/// As [`cross_entropy`].
pub fn predictions(logits: Tensor<2>, targets: &[Option<u32>]) -> Vec<Option<Prediction>> {
    let [tokens, vocabulary] = logits.dims();
    check(targets, tokens, vocabulary);
    RowStatistics::of(Engine::of(&logits.device()), logits.inner(), targets).predictions(targets)
}

fn check(targets: &[Option<u32>], tokens: usize, vocabulary: usize) {
    assert_eq!(targets.len(), tokens, "there must be one entry of targets for each row of logits");
    let outside = |target: &Option<u32>| target.is_some_and(|target| target as usize >= vocabulary);
    if let Some((t, Some(target))) = targets.iter().enumerate().find(|(_, target)| outside(target)) {
        panic!("target {target} of token {t} is outside the vocabulary of {vocabulary}");
    }
}

/// What loss, accuracy and gradient need to know of a row of logits.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The largest logit.
    largest: f32,
    /// `Σ_j e^{z_j − largest}`.
    sum: f32,
    /// `log Σ_j e^{z_j} − z_y` for the target `y`.
    loss: f64,
    /// Whether the target's logit is the largest, and the first of that size.
    right: bool,
}

/// The largest logit of a row, and the sum of exponentials relative to it.
#[inline(always)]
fn partition(row: &[f32]) -> (f32, f32) {
    let largest = max(row);
    let mut lanes = [0.0; 16];
    let (blocks, rest) = row.as_chunks::<16>();
    for block in blocks {
        for (lane, z) in lanes.iter_mut().zip(block) {
            *lane += exp(*z - largest);
        }
    }
    let tail: f32 = rest.iter().map(|z| exp(*z - largest)).sum();
    (largest, tail + lanes.iter().sum::<f32>())
}

/// The statistics of every row. Those of rows without a target are zeros and are not used.
#[derive(Clone, Debug)]
struct RowStatistics(Vec<Row>);

impl RowStatistics {
    /// One pass over logits that carry no gradient.
    fn of(engine: Engine, logits: Tensor<2>, targets: &[Option<u32>]) -> Self {
        let op = Statistics { targets: targets.to_vec() };
        let numbers: Vec<f32> = match engine {
            Engine::Kernels => {
                let rows: Tensor<2> = run(Arc::new(op), [logits.into_dispatch()]);
                rows.into_data().try_into_vec().expect("statistics are f32")
            }
            Engine::Tensors => {
                let (shape, data) = (logits.dims(), logits.into_data());
                let logits = Slice { data: data.as_slice().expect("logits are f32"), shape: &shape };
                op.forward(&[logits], false).data
            }
        };
        let (rows, _) = numbers.as_chunks::<{ Statistics::WIDTH }>();
        let row = |&[largest, sum, target, right]: &[f32; Statistics::WIDTH]| {
            let loss = f64::from(largest) + f64::from(sum).ln() - f64::from(target);
            Row { largest, sum, loss, right: right == 1.0 }
        };
        Self(rows.iter().map(row).collect())
    }

    fn predictions(&self, targets: &[Option<u32>]) -> Vec<Option<Prediction>> {
        let rows = self.0.iter().zip(targets);
        rows.map(|(row, target)| target.map(|_| Prediction { loss: row.loss, right: row.right })).collect()
    }
}

/// The operation behind [`RowStatistics`]: of each row of logits the largest, the sum of exponentials, the target's
/// logit, and 1 if that is the first of the largest. Nothing differentiates it.
#[derive(Debug)]
struct Statistics {
    targets: Vec<Option<u32>>,
}

impl Statistics {
    /// Numbers for each row.
    const WIDTH: usize = 4;
}

impl SliceOp for Statistics {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let (logits, vocabulary) = (inputs[0].data, inputs[0].shape[1]);
        let mut rows = vec![0.0; self.targets.len() * Self::WIDTH];
        let blocks = rows.par_chunks_mut(ROWS * Self::WIDTH).zip(logits.par_chunks(ROWS * vocabulary.max(1)));
        blocks.zip(self.targets.par_chunks(ROWS)).for_each(|((out, logits), targets)| {
            vectorised(
                #[inline(always)]
                || {
                    let rows = logits.chunks_exact(vocabulary).zip(targets);
                    for (out, (row, target)) in out.chunks_exact_mut(Self::WIDTH).zip(rows) {
                        let Some(target) = *target else { continue };
                        let ((largest, sum), logit) = (partition(row), row[target as usize]);
                        let right = logit >= largest && row[..target as usize].iter().all(|z| *z < logit);
                        out.copy_from_slice(&[largest, sum, logit, f32::from(u8::from(right))]);
                    }
                },
            );
        });
        Array { data: rows, shape: vec![self.targets.len(), Self::WIDTH] }
    }

    fn backward(&self, _: &[Slice<'_>], _: Vec<f32>) -> Vec<Vec<f32>> {
        unreachable!("its input carries no gradient")
    }
}

#[derive(Debug)]
struct CrossEntropy {
    targets: Vec<Option<u32>>,
    /// Number of tokens with a target.
    counted: usize,
    rows: RowStatistics,
}

impl SliceOp for CrossEntropy {
    fn forward(&self, _: &[Slice<'_>], _: bool) -> Array {
        let losses = self.rows.0.iter().zip(&self.targets).filter(|(_, target)| target.is_some());
        let sum: f64 = losses.map(|(row, _)| row.loss).sum();
        Array { data: vec![(sum / self.counted as f64) as f32], shape: vec![1] }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (logits, vocabulary) = (inputs[0].data, inputs[0].shape[1]);
        let scale = grad[0] / self.counted as f32;
        let mut grads = vec![0.0; logits.len()];
        by_rows(&mut grads, vocabulary, |first, grads| {
            vectorised(
                #[inline(always)]
                || {
                    let rows = logits[first * vocabulary..].chunks_exact(vocabulary);
                    let rows = rows.zip(&self.rows.0[first..]).zip(&self.targets[first..]);
                    for (grads, ((logits, row), target)) in grads.chunks_exact_mut(vocabulary).zip(rows) {
                        let Some(target) = target else { continue };
                        let factor = scale / row.sum;
                        for (grad, z) in grads.iter_mut().zip(logits) {
                            *grad = factor * exp(*z - row.largest);
                        }
                        grads[*target as usize] -= scale;
                    }
                },
            );
        });
        vec![grads]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    /// Every seventh token has no target.
    fn target(t: usize, vocabulary: usize) -> Option<u32> {
        (t % 7 != 3).then_some((t * 5 % vocabulary) as u32)
    }

    #[test]
    fn the_loss_equals_its_tensor_operations() {
        for (tokens, vocabulary) in [(1, 3), (150, 37), (70, 100)] {
            let targets: Vec<Option<u32>> = (0..tokens).map(|t| target(t, vocabulary)).collect();
            crate::ops::testing::compare(&[vec![tokens, vocabulary]], |engine, inputs| {
                let logits = inputs[0].clone().reshape([tokens, vocabulary]).mul_scalar(20.0);
                vec![loss_and_predictions_by(engine, logits, &targets).0]
            });
        }
    }

    #[test]
    fn the_loss_and_its_gradient_match_their_definitions() {
        let device = Device::flex().autodiff();
        let (tokens, vocabulary) = (150, 37);
        let data: Vec<f32> = (0..tokens * vocabulary).map(|i| 30.0 * (i as f32 * 0.37).sin()).collect();
        let targets: Vec<Option<u32>> = (0..tokens).map(|t| target(t, vocabulary)).collect();
        let leaf =
            || Tensor::<2>::from_data(TensorData::new(data.clone(), [tokens, vocabulary]), &device).require_grad();
        let logits = leaf();
        let (loss, together) = loss_and_predictions(logits.clone(), &targets);
        let grad = numbers(logits.grad(&loss.backward()).unwrap());

        let counted = targets.iter().flatten().count() as f64;
        let mut expected = 0.0;
        for (t, y) in targets.iter().enumerate() {
            let row: Vec<f64> = data[t * vocabulary..][..vocabulary].iter().map(|z| f64::from(*z)).collect();
            let most = row.iter().fold(f64::MIN, |a, b| a.max(*b));
            let total: f64 = row.iter().map(|z| (z - most).exp()).sum();
            for (j, z) in row.iter().enumerate() {
                let p = (z - most).exp() / total;
                let wanted = y.map_or(0.0, |y| (p - f64::from(u8::from(j == y as usize))) / counted);
                assert!((f64::from(grad[t * vocabulary + j]) - wanted).abs() < 1e-8, "token {t}, word {j}");
            }
            if let Some(y) = y {
                expected += (most + total.ln() - row[*y as usize]) / counted;
            }
        }
        let loss = f64::from(numbers(loss)[0]);
        assert!((loss - expected).abs() < 1e-6 * expected, "{loss}, not {expected}");
        let each = predictions(leaf().inner(), &targets);
        assert_eq!(each, together);
        let mean: f64 = each.iter().flatten().map(|prediction| prediction.loss / counted).sum();
        assert!((mean - expected).abs() < 1e-6 * expected, "{mean}, not {expected}");
        for (t, y) in targets.iter().enumerate() {
            let row = &data[t * vocabulary..][..vocabulary];
            let most = row.iter().fold(f32::MIN, |a, b| a.max(*b));
            let first = row.iter().position(|z| *z == most);
            let right = y.map(|y| first == Some(y as usize));
            assert_eq!(each[t].map(|prediction| prediction.right), right, "token {t}");
        }
        let nothing = cross_entropy(leaf(), &vec![None; tokens]);
        assert_eq!(numbers(nothing), [0.0]);
    }

    #[test]
    #[should_panic(expected = "target 9 of token 1 is outside the vocabulary of 9")]
    fn targets_outside_are_refused() {
        cross_entropy(Tensor::zeros([2, 9], &Device::flex()), &[Some(8), Some(9)]);
    }
}
