//! Estimates the cost of a run on this machine.

use std::time::Instant;

use burn::tensor::Device;
use falcon_lm::batch::Batch;
use falcon_lm::config::{RunConfig, RunConfigError};
use falcon_lm::tasks::TaskConfig;
use falcon_lm::train::{AdamW, clip, gradients};
use serde::Serialize;

/// The estimated cost of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowEstimate {
    /// The name of the row.
    pub name: String,
    /// The number of its seeds, each of which is a run.
    pub seeds: usize,
    /// Its share of the cost of a search, as a number of full runs.
    pub search: f64,
    /// The cost of a run.
    pub cost: RunEstimate,
}

/// The estimated cost of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunEstimate {
    /// The number of parameters of the model.
    pub parameters: usize,
    /// The number of tokens of the whole run.
    pub tokens: f64,
    /// The speed of training.
    pub tokens_per_second: f64,
    /// The duration of the whole run in seconds, without validation.
    pub seconds: f64,
    /// Floating-point operations per second, counted as 6 per token and parameter of a matrix.
    pub flops: f64,
}

/// Estimates the cost of a run by timing the two parts of a step: the gradients of one part of a batch, and the update.
/// Each is timed in `rounds` rounds, after one to warm up, and the fastest time is taken. The tokens are synthetic,
/// because the text makes no difference.
pub fn estimate_run(config: &RunConfig, rounds: usize) -> Result<RunEstimate, RunConfigError> {
    let TaskConfig::Text(task) = &config.task else { unreachable!("the task is set to text") };
    let mut model = config.model.init(config.train.seed, &Device::flex().autodiff())?;
    let mut optimizer = AdamW::new(config.train.optimizer);
    let vocabulary = config.model.vocab_size;
    let parts = config.train.accumulate.clamp(1, config.train.batch);
    let sequences = config.train.batch.div_ceil(parts);
    let token = |index: usize| (index * (index % 77) + 3 * index) % vocabulary;
    let sequence = |index: usize| {
        let tokens: Vec<u32> = (0..task.length).map(|i| token(index * task.length + i) as u32).collect();
        let targets = (1..=task.length).map(|i| Some(token(index * task.length + i) as u32)).collect();
        (tokens, targets)
    };
    let batch = Batch::new((0..sequences).map(sequence));
    let (mut part, mut update) = (f64::INFINITY, f64::INFINITY);
    for round in 0..=rounds {
        let begin = Instant::now();
        let gradients = gradients(&model, &batch, 1).gradients;
        let middle = Instant::now();
        optimizer.step(&mut model, &gradients, clip(&gradients, config.train.clip), 1e-4);
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
    Ok(RunEstimate {
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
    use crate::reproduce::TableRow;
    use crate::reproduce::language::{Corpus, SCALES, config};

    #[test]
    fn a_longer_run_costs_more() {
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        let cost = |steps: u64| {
            let more: Vec<_> =
                [format!("train.steps={steps}"), "model.hidden_size=16".into(), "task.length=8".into()]
                    .iter()
                    .map(|set| falcon_lm::config::Layer::set(set).unwrap())
                    .collect();
            let row = TableRow::parse("falcon-1a.3");
            estimate_run(&config(&corpus, &SCALES[0], &row, 0, &more).unwrap(), 1).unwrap()
        };
        let (short, long) = (cost(10), cost(10_000));
        assert_eq!((short.tokens, long.tokens), (640.0, 640_000.0));
        assert!(long.seconds > 10.0 * short.seconds && short.flops > 0.0, "{short:?} {long:?}");
    }
}
