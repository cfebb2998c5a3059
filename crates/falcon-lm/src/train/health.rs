//! Finds the tensor that made a loss non-finite or made it spike.

use std::fmt;

use burn::module::Module;
use falcon_nn::Model;

use crate::batch::Batch;

/// The first tensor that explains a failed step.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A parameter has non-finite values.
    Parameter(NonFinite),
    /// An intermediate tensor has non-finite values.
    Tensor(NonFinite),
    /// The gradient of a parameter has non-finite values; the last layer is searched first.
    Gradient(NonFinite),
    /// All values are finite. This is the first tensor that has grown far beyond its size at the last checkpoint or,
    /// if none has, the one that has grown most.
    Grown {
        /// The tensor.
        name: String,
        /// Its root mean square, divided by that at the checkpoint.
        times: f64,
    },
    /// No tensor stands out.
    Unknown,
}

/// The non-finite values of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// Name of the tensor.
    pub name: String,
    /// Number of non-finite values.
    pub count: usize,
    /// Number of all values.
    pub total: usize,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} of {} values are not finite)", self.name, self.count, self.total)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(bad) => write!(f, "the first bad tensor is the parameter {bad}"),
            Self::Tensor(bad) => write!(f, "the first bad tensor is {bad}"),
            Self::Gradient(bad) => write!(f, "the first bad tensor is the gradient of {bad}"),
            Self::Grown { name, times } => {
                let which = match *times > LARGE_GROWTH {
                    true => "first tensor that has grown far beyond its size",
                    false => "tensor that has grown most",
                };
                write!(f, "the {which} is {name}, {times:.1} times its size at the last checkpoint")
            }
            Self::Unknown => write!(f, "no tensor stands out"),
        }
    }
}

impl NonFinite {
    /// Counts the non-finite values of a tensor; `None` if all are finite.
    fn of(name: &str, numbers: &[f32]) -> Option<Self> {
        let count = numbers.iter().filter(|number| !number.is_finite()).count();
        (count > 0).then(|| Self { name: name.into(), count, total: numbers.len() })
    }
}

/// Growth of a tensor's root mean square above which the tensor is considered the cause of a spike.
const LARGE_GROWTH: f64 = 3.0;

/// The most tokens that are examined together. All intermediate tensors of a part are in memory at once, so a large
/// batch is examined in parts.
const TOKENS_PER_PART: usize = 2048;

/// Splits a batch into parts that are small enough to be examined.
pub(super) fn examined_parts(batch: &Batch) -> Vec<Batch> {
    batch.split(batch.tokens.len().div_ceil(TOKENS_PER_PART))
}

/// Finds the first tensor that explains a failed step on `batch`, in the first part of the batch that has one.
/// `before` is the model of the last checkpoint.
pub(super) fn diagnose(model: &Model, gradients: &[Vec<f32>], batch: &Batch, before: Option<&Model>) -> Fault {
    let mut bad = None;
    model.visit_parameters(|name, _, values| bad = bad.take().or_else(|| NonFinite::of(name, &values.to_vec())));
    if let Some(bad) = bad {
        return Fault::Parameter(bad);
    }
    let model = model.valid();
    let parts = examined_parts(batch);
    for part in &parts {
        model.observe(&part.tokens, &part.sequences, |name, numbers| {
            bad = bad.take().or_else(|| NonFinite::of(name, numbers));
        });
        if let Some(bad) = bad {
            return Fault::Tensor(bad);
        }
    }
    // The backward pass begins with the last layer, so the last bad gradient is the first that was computed.
    let gradients = model.parameters().into_iter().zip(gradients).rev();
    if let Some(bad) =
        gradients.into_iter().find_map(|(parameter, numbers)| NonFinite::of(&parameter.name, numbers))
    {
        return Fault::Gradient(bad);
    }
    before.map_or(Fault::Unknown, |before| grown(&model, &before.valid(), &parts))
}

/// The first tensor that has grown by more than [`LARGE_GROWTH`], or else the one that has grown most.
fn grown(model: &Model, before: &Model, parts: &[Batch]) -> Fault {
    let ratios: Vec<(String, f64)> = sizes(model, parts)
        .into_iter()
        .zip(sizes(before, parts))
        .map(|((name, now), (_, then))| (name, now / then.max(f64::MIN_POSITIVE)))
        .collect();
    let first = ratios.iter().find(|(_, times)| *times > LARGE_GROWTH);
    let most = || ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    first.or_else(most).map_or(Fault::Unknown, |(name, times)| Fault::Grown { name: name.clone(), times: *times })
}

/// The root mean square of every intermediate tensor, over all parts.
fn sizes(model: &Model, parts: &[Batch]) -> Vec<(String, f64)> {
    let mut sums: Vec<(String, f64, usize)> = Vec::new();
    for part in parts {
        model.observe(&part.tokens, &part.sequences, |name, numbers| {
            let square: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
            match sums.iter_mut().find(|(tensor, ..)| tensor == name) {
                Some((_, squares, count)) => {
                    *squares += square;
                    *count += numbers.len();
                }
                None => sums.push((name.to_string(), square, numbers.len())),
            }
        });
    }
    sums.into_iter().map(|(name, squares, count)| (name, (squares / count.max(1) as f64).sqrt())).collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::*;

    const EMBEDDINGS: &str = "model.embeddings.weight";

    fn model() -> Model {
        let config = ModelConfig::preset("falcon-1a.3", "micro", 12).unwrap();
        config.init(0, &Device::flex().autodiff()).unwrap()
    }

    /// A model with the numbers of one parameter changed.
    fn changed(model: &Model, parameter: &str, change: impl Fn(&mut [f32])) -> Model {
        let mut found = false;
        let model = model.clone().with_parameters(|name, mut numbers| {
            if name == parameter {
                found = true;
                change(&mut numbers);
            }
            numbers
        });
        assert!(found, "{parameter} of {:?}", model.parameters().into_iter().map(|p| p.name).collect::<Vec<_>>());
        model
    }

    fn batch(tokens: &[u32], length: usize) -> Batch {
        Batch::new(tokens.iter().map(|token| (vec![*token; length], vec![Some(1); length])))
    }

    fn numbers(model: &Model, parameter: &str) -> Vec<f32> {
        let mut found = Vec::new();
        model.visit_parameters(|name, _, values| {
            if name == parameter {
                found = values.to_vec();
            }
        });
        found
    }

    #[test]
    fn a_bad_weight_is_named() {
        let broken = changed(&model(), EMBEDDINGS, |numbers| numbers[5] = f32::NAN);
        let total = numbers(&broken, EMBEDDINGS).len();
        let bad = NonFinite { name: EMBEDDINGS.into(), count: 1, total };
        assert_eq!(diagnose(&broken, &[], &batch(&[3, 7], 4), None), Fault::Parameter(bad));
    }

    #[test]
    fn the_bad_gradient_nearest_to_the_output_is_named() {
        let model = model();
        let gradients = [vec![f32::NAN], vec![f32::INFINITY, 1.0], vec![1.0]];
        let bad = NonFinite { name: model.parameters()[1].name.clone(), count: 1, total: 2 };
        assert_eq!(diagnose(&model, &gradients, &batch(&[3, 7], 4), None), Fault::Gradient(bad));
    }

    /// Only the first part with a bad tensor is counted: two bad parts give the same result as the first of them.
    #[test]
    fn a_large_batch_is_examined_in_parts() {
        let broken = changed(&model(), "model.layers.0.attn.q_proj.weight", |numbers| numbers.fill(f32::MAX));
        let [part, whole] =
            [&[3][..], &[3, 7]].map(|sequences| diagnose(&broken, &[], &batch(sequences, TOKENS_PER_PART), None));
        assert!(matches!(&whole, Fault::Tensor(NonFinite { name, .. }) if name == "layers.0.attn.q"), "{whole}");
        assert_eq!(whole, part);
    }

    /// The embedding of one token is ten times as large as before, and the token occurs only in the last part. The
    /// expected growth is that of the root mean square over both parts, computed by hand.
    #[test]
    fn growth_is_measured_over_all_parts() {
        let before = model();
        let width = before.config().hidden_size;
        let row = |token: usize| token * width..(token + 1) * width;
        let grown = changed(&before, EMBEDDINGS, |numbers| numbers[row(7)].iter_mut().for_each(|x| *x *= 10.0));
        let all = numbers(&before, EMBEDDINGS);
        let square = |token: usize| all[row(token)].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let expected = ((square(3) + 100.0 * square(7)) / (square(3) + square(7))).sqrt();
        let fault = diagnose(&grown, &[], &batch(&[3, 7], TOKENS_PER_PART), Some(&before));
        let Fault::Grown { name, times } = &fault else { panic!("{fault}") };
        assert!(name == "embeddings" && (times / expected - 1.0).abs() < 1e-5, "{fault}, {expected}");
        assert_eq!(diagnose(&grown, &[], &batch(&[3, 7], 4), None), Fault::Unknown);
    }
}
