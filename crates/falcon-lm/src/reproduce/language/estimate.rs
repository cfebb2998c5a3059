//! What a run would cost on this machine.

use std::time::Instant;

use burn::tensor::Device;

use crate::config::{RunConfig, RunConfigError};
use crate::tasks::{Batch, TaskConfig};
use crate::train::{AdamW, clip, gradients};

/// A cost.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Numbers the model learns.
    pub parameters: usize,
    /// Tokens of the whole run.
    pub tokens: f64,
    /// Tokens read and learnt from per second.
    pub tokens_per_second: f64,
    /// Seconds of the whole run, without measurements on held-out data.
    pub seconds: f64,
    /// Floating-point operations per second, counted as 6 per token for every number in a matrix.
    pub flops: f64,
}

/// Times the parts of a step, the gradients of one part of a batch and an update, `rounds` times after one to warm up, and takes the
/// fastest: on tokens made up, as the text makes no difference.
pub fn estimate(config: &RunConfig, rounds: usize) -> Result<Estimate, RunConfigError> {
    let TaskConfig::Text(task) = &config.task else { unreachable!("the task is set to text") };
    let mut model = config.model.init(config.train.seed, &Device::flex().autodiff())?;
    let mut optimizer = AdamW::new(config.train.optimizer);
    let vocabulary = config.model.vocab_size;
    let parts = config.train.accumulate.clamp(1, config.train.batch);
    let sequences = config.train.batch.div_ceil(parts);
    let token = |index: usize| (index * (index % 77) + 3 * index) % vocabulary;
    let sequence = |of: usize| {
        let tokens: Vec<i32> = (0..task.length).map(|i| token(of * task.length + i) as i32).collect();
        let targets = (1..=task.length).map(|i| token(of * task.length + i) as i64).collect();
        (tokens, targets)
    };
    let batch = Batch::new((0..sequences).map(sequence));
    let (mut part, mut update) = (f64::INFINITY, f64::INFINITY);
    for round in 0..=rounds {
        let begin = Instant::now();
        let mut gradients = gradients(&model, &batch, 1).gradients;
        let middle = Instant::now();
        clip(&mut gradients, config.train.clip);
        model = optimizer.step(model, &gradients, 1e-4);
        if round > 0 || rounds == 0 {
            part = part.min((middle - begin).as_secs_f64());
            update = update.min(middle.elapsed().as_secs_f64());
        }
    }
    let matrices = model.parameters().into_iter().filter(|p| p.shape.len() == 2);
    let numbers: usize = matrices.map(|p| p.shape.iter().product::<usize>()).sum();
    let steps = config.train.schedule.steps as f64;
    let seconds = steps * (parts as f64 * part + update);
    let tokens = steps * (config.train.batch * task.length) as f64;
    Ok(Estimate {
        parameters: config.model.parameter_count(),
        tokens,
        tokens_per_second: tokens / seconds,
        seconds,
        flops: 6.0 * numbers as f64 * tokens / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::Row;
    use crate::reproduce::language::{Corpus, SCALES};

    #[test]
    fn a_longer_run_costs_more() {
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        let cost = |steps: u64| {
            let more: Vec<_> =
                [format!("train.steps={steps}"), "model.hidden_size=16".into(), "task.length=8".into()]
                    .iter()
                    .map(|set| crate::config::Layer::set(set).unwrap())
                    .collect();
            let row = Row::of("falcon-1a.3");
            estimate(&super::super::config(&corpus, &SCALES[0], &row, 0, &more).unwrap(), 1).unwrap()
        };
        let (short, long) = (cost(10), cost(10_000));
        assert_eq!((short.tokens, long.tokens), (640.0, 640_000.0));
        assert!(long.seconds > 10.0 * short.seconds && short.flops > 0.0, "{short:?} {long:?}");
    }
}
