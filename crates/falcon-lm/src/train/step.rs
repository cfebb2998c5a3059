//! The gradients of one step.

use falcon_nn::{Model, cross_entropy, predictions};

use crate::evaluate::{Tally, logits};
use crate::tasks::Batch;

/// What a step learns from a batch.
#[derive(Clone, Debug)]
pub struct StepGradients {
    /// Cross-entropy in nats per target token.
    pub loss: f64,
    /// Fraction of target tokens whose largest logit is right.
    pub accuracy: f64,
    /// As [`Model::gradients`] has them.
    pub gradients: Vec<(String, Vec<f32>)>,
}

/// Loss, accuracy and gradients of a batch, computed in `parts` parts: less memory, and the same sum but for rounding.
pub fn gradients(model: &Model, batch: &Batch, parts: usize) -> StepGradients {
    let asked = batch.asked().max(1) as f64;
    let (mut loss, mut tally, mut sum) = (0.0, Tally::default(), Vec::<(String, Vec<f32>)>::new());
    for part in batch.split(parts) {
        let logits = logits(model, &part);
        tally += Tally::of(&part, &predictions(logits.clone().inner(), &part.targets));
        // The mean over the part counts as much as it has tokens.
        let share = part.asked() as f64 / asked;
        let mean = cross_entropy(logits, &part.targets).mul_scalar(share);
        let gradients = model.gradients(&mean.backward());
        loss += f64::from(mean.into_scalar::<f32>());
        if sum.is_empty() {
            sum = gradients;
            continue;
        }
        for ((_, sum), (_, part)) in sum.iter_mut().zip(gradients) {
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
    }
    StepGradients { loss, accuracy: tally.scores().accuracy, gradients: sum }
}
