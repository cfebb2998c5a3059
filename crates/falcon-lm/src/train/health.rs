//! What went wrong when a loss goes bad.

use std::fmt;

use burn::module::Module;
use falcon_nn::Model;

use crate::evaluate::tokens;
use crate::tasks::Batch;

/// The first thing that is not as it should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A parameter has numbers that are none.
    Parameter(Bad),
    /// A tensor on the way to the logits has.
    Tensor(Bad),
    /// The gradient of a parameter has, the last layer's first.
    Gradient(Bad),
    /// All numbers are finite. This is the first tensor that has grown out of measure since the last checkpoint or, if none has, the one
    /// that has grown most.
    Grown {
        /// The tensor.
        name: String,
        /// How often its root mean square is that of the checkpoint.
        times: f64,
    },
    /// Nothing is to be seen.
    Unknown,
}

/// Numbers that are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Bad {
    /// Where.
    pub name: String,
    /// How many of them.
    pub count: usize,
    /// Of how many.
    pub of: usize,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} of {} numbers are not finite)", self.name, self.count, self.of)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(bad) => write!(f, "the first bad tensor is the parameter {bad}"),
            Self::Tensor(bad) => write!(f, "the first bad tensor is {bad}"),
            Self::Gradient(bad) => write!(f, "the first bad tensor is the gradient of {bad}"),
            Self::Grown { name, times } => {
                let which = match *times > OUT_OF_MEASURE {
                    true => "first tensor that has grown out of measure",
                    false => "tensor that has grown most",
                };
                write!(f, "the {which} is {name}, {times:.1} times what it was at the checkpoint before")
            }
            Self::Unknown => write!(f, "no tensor stands out"),
        }
    }
}

impl Bad {
    /// None if all numbers are good.
    fn of(name: &str, numbers: &[f32]) -> Option<Self> {
        let count = numbers.iter().filter(|number| !number.is_finite()).count();
        (count > 0).then(|| Self { name: name.into(), count, of: numbers.len() })
    }
}

/// Growth that is out of measure.
const OUT_OF_MEASURE: f64 = 3.0;

/// Tokens that are looked at together: all tensors on the way are held at once, and a model that fits in memory only by parts should not
/// be ended by the look that explains it.
const LOOK: usize = 2048;

/// A batch in parts that can be looked at.
pub(super) fn looks(batch: &Batch) -> Vec<Batch> {
    batch.split(batch.tokens.len().div_ceil(LOOK))
}

/// Looks for what first went bad in a step on `batch`: its first part that has something bad counts. `before` is the model of the
/// checkpoint before.
pub(super) fn diagnose(
    model: &Model,
    gradients: &[(String, Vec<f32>)],
    batch: &Batch,
    before: Option<&Model>,
) -> Fault {
    let mut bad = None;
    model.visit_parameters(|name, _, values| bad = bad.take().or_else(|| Bad::of(name, &values.to_vec())));
    if let Some(bad) = bad {
        return Fault::Parameter(bad);
    }
    let model = model.valid();
    let parts = looks(batch);
    for part in &parts {
        model.observe(tokens(part, &model.device()), &part.sequences, |name, numbers| {
            bad = bad.take().or_else(|| Bad::of(name, numbers));
        });
        if let Some(bad) = bad {
            return Fault::Tensor(bad);
        }
    }
    // The backward pass goes from the last to the first.
    if let Some(bad) = gradients.iter().rev().find_map(|(name, numbers)| Bad::of(name, numbers)) {
        return Fault::Gradient(bad);
    }
    before.map_or(Fault::Unknown, |before| grown(&model, &before.valid(), &parts))
}

/// The first tensor that is out of measure, or else the one that has grown most.
fn grown(model: &Model, before: &Model, parts: &[Batch]) -> Fault {
    let ratios: Vec<(String, f64)> = sizes(model, parts)
        .into_iter()
        .zip(sizes(before, parts))
        .map(|((name, now), (_, then))| (name, now / then.max(f64::MIN_POSITIVE)))
        .collect();
    let first = ratios.iter().find(|(_, times)| *times > OUT_OF_MEASURE);
    let most = || ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    first.or_else(most).map_or(Fault::Unknown, |(name, times)| Fault::Grown { name: name.clone(), times: *times })
}

/// The root mean square of every tensor on the way to the logits, over all parts.
fn sizes(model: &Model, parts: &[Batch]) -> Vec<(String, f64)> {
    let mut sums: Vec<(String, f64, usize)> = Vec::new();
    for part in parts {
        model.observe(tokens(part, &model.device()), &part.sequences, |name, numbers| {
            let square: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
            match sums.iter_mut().find(|(of, ..)| of == name) {
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
        let model = model.clone().with_parameters(|name, values| {
            let mut numbers = values.to_vec();
            if name == parameter {
                found = true;
                change(&mut numbers);
            }
            numbers
        });
        assert!(found, "{parameter} of {:?}", model.parameters().into_iter().map(|p| p.name).collect::<Vec<_>>());
        model
    }

    fn batch(tokens: &[i32], length: usize) -> Batch {
        Batch::new(tokens.iter().map(|token| (vec![*token; length], vec![1; length])))
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
        let of = numbers(&broken, EMBEDDINGS).len();
        let bad = Bad { name: EMBEDDINGS.into(), count: 1, of };
        assert_eq!(diagnose(&broken, &[], &batch(&[3, 7], 4), None), Fault::Parameter(bad));
    }

    #[test]
    fn a_bad_gradient_is_named_the_last_layers_first() {
        let gradients = [("a", vec![f32::NAN]), ("b", vec![f32::INFINITY, 1.0]), ("c", vec![1.0])];
        let gradients = gradients.map(|(name, numbers)| (name.to_string(), numbers));
        let bad = Bad { name: "b".into(), count: 1, of: 2 };
        assert_eq!(diagnose(&model(), &gradients, &batch(&[3, 7], 4), None), Fault::Gradient(bad));
    }

    /// Batches of more than one part: what is counted is of the part that is bad, here the first.
    #[test]
    fn a_bad_tensor_is_looked_for_by_parts() {
        let broken = changed(&model(), "model.layers.0.attn.q_proj.weight", |numbers| numbers.fill(f32::MAX));
        let [part, whole] =
            [&[3][..], &[3, 7]].map(|sequences| diagnose(&broken, &[], &batch(sequences, LOOK), None));
        assert!(matches!(&whole, Fault::Tensor(Bad { name, .. }) if name == "layers.0.attn.q"), "{whole}");
        assert_eq!(whole, part);
    }

    /// One token's embedding is ten times what it was, and that token is in the last part alone: by hand, the root mean square over both.
    #[test]
    fn growth_is_measured_over_all_parts() {
        let before = model();
        let width = before.config().hidden_size;
        let of = |token: usize| token * width..(token + 1) * width;
        let grown = changed(&before, EMBEDDINGS, |numbers| numbers[of(7)].iter_mut().for_each(|x| *x *= 10.0));
        let all = numbers(&before, EMBEDDINGS);
        let square = |token: usize| all[of(token)].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let expected = ((square(3) + 100.0 * square(7)) / (square(3) + square(7))).sqrt();
        let fault = diagnose(&grown, &[], &batch(&[3, 7], LOOK), Some(&before));
        let Fault::Grown { name, times } = &fault else { panic!("{fault}") };
        assert!(name == "embeddings" && (times / expected - 1.0).abs() < 1e-5, "{fault}, {expected}");
        assert_eq!(diagnose(&grown, &[], &batch(&[3, 7], 4), None), Fault::Unknown);
    }
}
