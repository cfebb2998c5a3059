//! Cross-entropy.
//!
//! ```text
//! L = Σ_t (log Σ_j e^{z_tj} − z_{t,y_t}) / n        dz_tj = (softmax(z_t)_j − [j = y_t]) / n
//! ```

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData, activation};
use rayon::prelude::*;

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::slices::{ROWS, by_rows, exp, max, vectorised};

/// The target of a token that does not count.
pub const IGNORED: i64 = -100;

/// Mean cross-entropy in nats of logits `[tokens, vocabulary]`, over the tokens whose target is not [`IGNORED`]; 0 if there are none.
///
/// # Panics
///
/// If there is not one target for each row, or if one is outside the vocabulary.
pub fn cross_entropy(logits: Tensor<2>, targets: &[i64]) -> Tensor<1> {
    let engine = Engine::of(&logits.device());
    cross_entropy_by(engine, logits, targets)
}

fn cross_entropy_by(engine: Engine, logits: Tensor<2>, targets: &[i64]) -> Tensor<1> {
    let [tokens, vocabulary] = logits.dims();
    check(targets, tokens, vocabulary);
    let counted = targets.iter().filter(|target| **target != IGNORED).count();
    let device = logits.device();
    if counted == 0 {
        return (logits * 0.0).sum();
    }
    match engine {
        Engine::Kernels => {
            let op = CrossEntropy { targets: targets.to_vec(), counted };
            run(Arc::new(op), [logits.into_dispatch()])
        }
        Engine::Tensors => {
            let wanted: Vec<i32> = targets.iter().map(|target| (*target).max(0) as i32).collect();
            let weights: Vec<f32> =
                targets.iter().map(|y| if *y == IGNORED { 0.0 } else { 1.0 / counted as f32 }).collect();
            let wanted = Tensor::from_data(TensorData::new(wanted, [tokens, 1]), &device);
            let weights = Tensor::from_data(TensorData::new(weights, [tokens, 1]), &device);
            (activation::log_softmax(logits, 1).gather(1, wanted) * weights).sum().neg()
        }
    }
}

/// How well a token was predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Cross-entropy in nats: the negative logarithm of the probability it was given.
    pub loss: f64,
    /// Whether its logit was the largest; of equal ones, the first is.
    pub right: bool,
}

/// How well each token of logits `[tokens, vocabulary]` was predicted; none where the target is [`IGNORED`].
///
/// # Panics
///
/// As [`cross_entropy`].
pub fn predictions(logits: Tensor<2>, targets: &[i64]) -> Vec<Option<Prediction>> {
    let [tokens, vocabulary] = logits.dims();
    check(targets, tokens, vocabulary);
    let data = logits.into_data();
    let logits: &[f32] = data.as_slice().expect("logits are f32");
    let rows = logits.par_chunks(ROWS * vocabulary).zip(targets.par_chunks(ROWS));
    let blocks: Vec<Vec<_>> = rows
        .map(|(rows, targets)| {
            vectorised(
                #[inline(always)]
                || {
                    let rows = rows.chunks_exact(vocabulary).zip(targets);
                    rows.map(|(row, y)| {
                        (*y != IGNORED).then(|| {
                            let (most, sum) = partition(row);
                            let logit = row[*y as usize];
                            // Of equal ones the first, as elsewhere.
                            let right = logit >= most && row[..*y as usize].iter().all(|z| *z < logit);
                            Prediction { loss: surprise(most, sum, logit), right }
                        })
                    })
                    .collect()
                },
            )
        })
        .collect();
    blocks.concat()
}

fn check(targets: &[i64], tokens: usize, vocabulary: usize) {
    assert_eq!(targets.len(), tokens, "targets, and rows of logits");
    let outside = |y: &i64| *y != IGNORED && !(0..vocabulary as i64).contains(y);
    if let Some((t, target)) = targets.iter().enumerate().find(|(_, y)| outside(y)) {
        panic!("target {target} of token {t} is outside the vocabulary of {vocabulary}");
    }
}

#[derive(Debug)]
struct CrossEntropy {
    targets: Vec<i64>,
    counted: usize,
}

/// The largest logit, and the sum of exponentials relative to it.
#[inline(always)]
fn partition(row: &[f32]) -> (f32, f32) {
    let most = max(row);
    let mut lanes = [0.0; 16];
    let (blocks, rest) = row.as_chunks::<16>();
    for block in blocks {
        for (lane, z) in lanes.iter_mut().zip(block) {
            *lane += exp(*z - most);
        }
    }
    let tail: f32 = rest.iter().map(|z| exp(*z - most)).sum();
    (most, tail + lanes.iter().sum::<f32>())
}

/// `log Σ_j e^{z_j} − z_y`.
#[inline(always)]
fn surprise(most: f32, sum: f32, logit: f32) -> f64 {
    f64::from(most) + f64::from(sum).ln() - f64::from(logit)
}

impl SliceOp for CrossEntropy {
    fn forward(&self, inputs: &[Slice<'_>], _: bool) -> Array {
        let (logits, vocabulary) = (inputs[0].data, inputs[0].shape[1]);
        let parts: Vec<f64> = logits
            .par_chunks(ROWS * vocabulary)
            .zip(self.targets.par_chunks(ROWS))
            .map(|(rows, targets)| {
                vectorised(
                    #[inline(always)]
                    || {
                        let rows = rows.chunks_exact(vocabulary).zip(targets).filter(|(_, y)| **y != IGNORED);
                        rows.map(|(row, y)| {
                            let (most, sum) = partition(row);
                            surprise(most, sum, row[*y as usize])
                        })
                        .sum()
                    },
                )
            })
            .collect();
        Array { data: vec![(parts.iter().sum::<f64>() / self.counted as f64) as f32], shape: vec![1] }
    }

    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let (logits, vocabulary) = (inputs[0].data, inputs[0].shape[1]);
        let scale = grad[0] / self.counted as f32;
        let mut grads = vec![0.0; logits.len()];
        by_rows(&mut grads, vocabulary, |first, grads| {
            vectorised(
                #[inline(always)]
                || {
                    let rows = logits[first * vocabulary..].chunks_exact(vocabulary).zip(&self.targets[first..]);
                    for (grads, (row, y)) in grads.chunks_exact_mut(vocabulary).zip(rows) {
                        if *y == IGNORED {
                            continue;
                        }
                        let (most, sum) = partition(row);
                        let factor = scale / sum;
                        for (grad, z) in grads.iter_mut().zip(row) {
                            *grad = factor * exp(*z - most);
                        }
                        grads[*y as usize] -= scale;
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

    #[test]
    fn the_loss_is_its_tensor_operations() {
        for (tokens, vocabulary) in [(1, 3), (150, 37), (70, 100)] {
            let target = |t: usize| if t % 7 == 3 { IGNORED } else { (t * 5 % vocabulary) as i64 };
            let targets: Vec<i64> = (0..tokens).map(target).collect();
            crate::ops::testing::compare(&[vec![tokens, vocabulary]], |engine, inputs| {
                let logits = inputs[0].clone().reshape([tokens, vocabulary]).mul_scalar(20.0);
                vec![cross_entropy_by(engine, logits, &targets)]
            });
        }
    }

    #[test]
    fn the_loss_and_its_gradient_are_the_definitions() {
        let device = Device::flex().autodiff();
        let (tokens, vocabulary) = (150, 37);
        let data: Vec<f32> = (0..tokens * vocabulary).map(|i| 30.0 * (i as f32 * 0.37).sin()).collect();
        let targets: Vec<i64> =
            (0..tokens).map(|t| if t % 7 == 3 { IGNORED } else { (t * 5 % vocabulary) as i64 }).collect();
        let leaf =
            || Tensor::<2>::from_data(TensorData::new(data.clone(), [tokens, vocabulary]), &device).require_grad();
        let logits = leaf();
        let loss = cross_entropy(logits.clone(), &targets);
        let grad = numbers(logits.grad(&loss.backward()).unwrap());

        let counted = targets.iter().filter(|y| **y != IGNORED).count() as f64;
        let mut expected = 0.0;
        for (t, y) in targets.iter().enumerate() {
            let row: Vec<f64> = data[t * vocabulary..][..vocabulary].iter().map(|z| f64::from(*z)).collect();
            let most = row.iter().fold(f64::MIN, |a, b| a.max(*b));
            let total: f64 = row.iter().map(|z| (z - most).exp()).sum();
            for (j, z) in row.iter().enumerate() {
                let p = (z - most).exp() / total;
                let wanted = match *y {
                    IGNORED => 0.0,
                    y => (p - f64::from(u8::from(j == y as usize))) / counted,
                };
                assert!((f64::from(grad[t * vocabulary + j]) - wanted).abs() < 1e-8, "token {t}, word {j}");
            }
            if *y != IGNORED {
                expected += (most + total.ln() - row[*y as usize]) / counted;
            }
        }
        let loss = f64::from(numbers(loss)[0]);
        assert!((loss - expected).abs() < 1e-6 * expected, "{loss}, not {expected}");
        let each = predictions(leaf().inner(), &targets);
        let mean: f64 = each.iter().flatten().map(|prediction| prediction.loss / counted).sum();
        assert!((mean - expected).abs() < 1e-6 * expected, "{mean}, not {expected}");
        for (t, y) in targets.iter().enumerate() {
            let row = &data[t * vocabulary..][..vocabulary];
            let most = row.iter().fold(f32::MIN, |a, b| a.max(*b));
            let first = row.iter().position(|z| *z == most).map(|j| j as i64);
            let right = (*y != IGNORED).then(|| first == Some(*y));
            assert_eq!(each[t].map(|prediction| prediction.right), right, "token {t}");
        }
        let nothing = cross_entropy(leaf(), &vec![IGNORED; tokens]);
        assert_eq!(numbers(nothing), [0.0]);
    }

    #[test]
    #[should_panic(expected = "target 9 of token 1 is outside the vocabulary of 9")]
    fn targets_outside_are_refused() {
        cross_entropy(Tensor::zeros([2, 9], &Device::flex()), &[8, 9]);
    }
}
