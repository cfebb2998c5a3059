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
    /// All are finite; since the checkpoint before this tensor is the first that has grown out of measure, or else has grown most.
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

/// Looks for what first went bad in a step on `batch`. `before` is the model of the checkpoint before.
pub fn diagnose(model: &Model, gradients: &[(String, Vec<f32>)], batch: &Batch, before: Option<&Model>) -> Fault {
    let mut bad = None;
    model.visit_parameters(|name, _, values| bad = bad.take().or_else(|| Bad::of(name, &values.to_vec())));
    if let Some(bad) = bad {
        return Fault::Parameter(bad);
    }
    let model = model.valid();
    model.observe(tokens(batch, &model.device()), &batch.sequences, |name, numbers| {
        bad = bad.take().or_else(|| Bad::of(name, numbers));
    });
    if let Some(bad) = bad {
        return Fault::Tensor(bad);
    }
    // The backward pass goes from the last to the first.
    if let Some(bad) = gradients.iter().rev().find_map(|(name, numbers)| Bad::of(name, numbers)) {
        return Fault::Gradient(bad);
    }
    before.map_or(Fault::Unknown, |before| grown(&model, &before.valid(), batch))
}

/// The first tensor that is out of measure, or else the one that has grown most.
fn grown(model: &Model, before: &Model, batch: &Batch) -> Fault {
    let sizes = |model: &Model| {
        let mut sizes = Vec::new();
        model.observe(tokens(batch, &model.device()), &batch.sequences, |name, numbers| {
            let square: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
            sizes.push((name.to_string(), (square / numbers.len().max(1) as f64).sqrt()));
        });
        sizes
    };
    let ratios: Vec<(String, f64)> = sizes(model)
        .into_iter()
        .zip(sizes(before))
        .map(|((name, now), (_, then))| (name, now / then.max(f64::MIN_POSITIVE)))
        .collect();
    let first = ratios.iter().find(|(_, times)| *times > OUT_OF_MEASURE);
    let most = || ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    first.or_else(most).map_or(Fault::Unknown, |(name, times)| Fault::Grown { name: name.clone(), times: *times })
}
