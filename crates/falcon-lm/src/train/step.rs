//! The gradients of one step.

use falcon_nn::{Model, loss_and_predictions};

use crate::batch::Batch;
use crate::predict::logits;
use crate::scores::Tally;

/// Loss, accuracy and gradients of one batch.
#[derive(Clone, Debug)]
pub struct StepGradients {
    /// Mean cross-entropy in nats over all targets.
    pub loss: f64,
    /// Fraction of targets whose logit is the largest.
    pub accuracy: f64,
    /// The gradient of each parameter, in the order of [`Model::parameters`].
    pub gradients: Vec<Vec<f32>>,
}

/// Loss, accuracy and gradients of a batch. The batch is processed in `parts` parts: more parts take less memory, and
/// the results are the same up to rounding.
pub fn gradients(model: &Model, batch: &Batch, parts: usize) -> StepGradients {
    let mut sums =
        Sums { targets: batch.asked().max(1), loss: 0.0, tally: Tally::default(), gradients: Vec::new() };
    if parts <= 1 {
        sums.add(model, batch);
    } else {
        batch.split(parts).iter().for_each(|part| sums.add(model, part));
    }
    StepGradients { loss: sums.loss, accuracy: sums.tally.scores().accuracy, gradients: sums.gradients }
}

struct Sums {
    /// Targets of all parts together.
    targets: usize,
    loss: f64,
    tally: Tally,
    gradients: Vec<Vec<f32>>,
}

impl Sums {
    /// Adds a part, weighted by its share of the targets.
    fn add(&mut self, model: &Model, part: &Batch) {
        let (mean, predictions) = loss_and_predictions(logits(model, part), &part.targets);
        self.tally += Tally::of(part, &predictions);
        let mean = mean.mul_scalar(part.asked() as f64 / self.targets as f64);
        let gradients = model.gradients(mean.backward());
        self.loss += f64::from(mean.into_scalar::<f32>());
        if self.gradients.is_empty() {
            self.gradients = gradients;
        } else {
            for (sum, part) in self.gradients.iter_mut().zip(gradients) {
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
        }
    }
}
