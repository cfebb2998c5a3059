//! Sums of more digits than were ever seen: the paper's table, run again.
//!
//! Every row trains one model by one configuration, the same for all rows but for the model. The checkpoint that is best on validation data is
//! then measured on test samples of every width, in training's range and beyond: teacher-forced, as the paper does, and by letting the model
//! read its own digits, which the paper does not.

mod record;

use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use falcon_nn::{IGNORED, Model, Prediction, Sequences, WEIGHTS_FILE, predictions, write_file};
use serde::{Deserialize, Serialize};

pub use self::record::AdditionRecord;
use super::rows::{self, Row, RowError, Scale};
use crate::config::{Layer, RunConfig, RunConfigError};
use crate::evaluate::{Tally, logits};
use crate::tasks::addition::{Part, held_out};
use crate::tasks::{Batch, TaskConfig, TaskError};
use crate::train::{Checkpoint, Watch, sum};

/// The paper's rows, and those beside them.
pub const ROWS: [&str; 13] = [
    "transformer",
    "retnet",
    "mamba2",
    "deltanet",
    "gated-deltanet",
    "falcon-1a.1",
    "falcon-1a.2",
    "falcon-1a.3",
    "falcon-2a.3",
    "falcon-3a.3",
    "falcon-1.3",
    "falcon-2.3",
    "falcon-3.3",
];

/// All scales, smallest first.
pub const SCALES: [Scale; 3] = [
    Scale {
        name: "quick",
        models: &["transformer", "retnet", "falcon-1a.3", "falcon-3a.3"],
        seeds: 1,
        set: &["model.size=micro", "task.max_width=4", "task.beyond=6", "train.steps=1000"],
        samples: 128,
        search: None,
    },
    Scale {
        name: "small",
        models: &ROWS,
        seeds: 3,
        set: &["model.size=micro", "task.max_width=6", "task.beyond=9", "train.steps=2000", "train.batch=160"],
        samples: 256,
        search: None,
    },
    Scale {
        name: "paper",
        models: &["transformer", "retnet", "falcon-1a.3", "falcon-3a.3"],
        seeds: 1,
        set: &[
            "model.size=micro",
            "model.num_heads=8",
            "task.max_width=32",
            "task.beyond=48",
            "task.eval_samples=16",
            "train.steps=3000",
            "train.batch=256",
            "train.eval_every=200",
            "train.save_every=200",
        ],
        samples: 256,
        search: None,
    },
];

/// What the paper reports of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PaperRow {
    /// The preset.
    pub preset: &'static str,
    /// Accuracy of the best validation, in percent.
    pub validation: f64,
    /// Mean over 33 to 48 digits.
    pub beyond: f64,
    /// Of 33 digits.
    pub first: f64,
    /// Of 48 digits.
    pub last: f64,
}

/// Widths 1–32 in training, 33–48 beyond; teacher-forced accuracy of target digits in percent.
const PAPER: [PaperRow; 8] = [
    PaperRow { preset: "transformer", validation: 100.0, beyond: 65.8, first: 97.0, last: 49.0 },
    PaperRow { preset: "retnet", validation: 99.7, beyond: 82.9, first: 99.0, last: 63.0 },
    PaperRow { preset: "mamba2", validation: 100.0, beyond: 75.2, first: 100.0, last: 51.0 },
    PaperRow { preset: "falcon-1a.1", validation: 100.0, beyond: 80.6, first: 100.0, last: 59.0 },
    PaperRow { preset: "falcon-1a.2", validation: 100.0, beyond: 85.2, first: 100.0, last: 63.0 },
    PaperRow { preset: "falcon-1a.3", validation: 99.8, beyond: 85.9, first: 100.0, last: 69.0 },
    PaperRow { preset: "falcon-3a.3", validation: 99.9, beyond: 87.2, first: 100.0, last: 69.0 },
    PaperRow { preset: "falcon-1.3", validation: 100.0, beyond: 68.8, first: 100.0, last: 48.0 },
];

/// What a trained model does with sums of one width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WidthResult {
    /// Digits of an operand.
    pub width: usize,
    /// Fraction of target digits that are right where it reads the true ones before.
    pub accuracy: f64,
    /// Fraction of sums that are right in all digits. Whether it reads the true digits or its own makes no difference to these.
    pub exact: f64,
    /// Fraction of target digits that are right where it reads its own.
    pub free: f64,
    /// Teacher-forced accuracy of each digit of the target, the lowest first.
    pub digits: Vec<f64>,
}

/// What became of one model and seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// The row.
    pub name: String,
    /// Of initial values and data.
    pub seed: u64,
    /// Numbers the model learnt.
    pub parameters: usize,
    /// Step of the best validation.
    pub best_step: u64,
    /// Its accuracy.
    pub validation: f64,
    /// Time in training and validation.
    pub seconds: f64,
    /// Threads it was trained with, the last time it was taken up.
    pub threads: usize,
    /// On test samples, by width.
    pub widths: Vec<WidthResult>,
}

/// Name of the result in a run's folder.
const RESULT_FILE: &str = "result.json";

/// Configuration of a row: that of the scale, what the row changes, then what is asked for.
pub fn config(scale: &Scale, row: &Row, seed: u64, more: &[Layer]) -> Result<RunConfig, RunConfigError> {
    let of_row = row.set.iter().map(|set| Layer::set(set)).collect::<Result<Vec<_>, _>>()?;
    for key in ["max_width", "beyond"] {
        if let Some(layer) = of_row.iter().find(|layer| layer.has("task", key)) {
            return Err(layer.refused("task", key, "one for all rows of the table; use --set"));
        }
    }
    let config = rows::config(&[Layer::of("task", "name", "addition")], scale, row, seed, more)?;
    match &config.task {
        TaskConfig::Addition(task) if task.beyond == task.max_width => {
            Err(RunConfigError::Task(TaskError::Number {
                name: "beyond",
                range: format!("above max_width = {}, for something to measure", task.max_width),
                got: task.beyond.to_string(),
            }))
        }
        _ => Ok(config),
    }
}

/// Trains and measures a row in `folder`, or reads what became of it before. None if it was interrupted.
pub fn run_row(
    row: &Row,
    config: &RunConfig,
    samples: usize,
    folder: &Path,
    watch: &mut dyn Watch,
) -> Result<Option<RowResult>, RowError> {
    let Some(run) = rows::train(config, folder, watch)? else { return Ok(None) };
    let path = folder.join(RESULT_FILE);
    let weights = sum(&run.checkpoint.join(WEIGHTS_FILE)).map_err(Box::new)?;
    let known: Option<Kept> = std::fs::read(&path).ok().and_then(|json| serde_json::from_slice(&json).ok());
    if let Some(known) = known.filter(|known| known.weights == weights && known.samples == samples) {
        return Ok(Some(known.result));
    }
    let model =
        Checkpoint::load(&run.checkpoint, config.train.optimizer, &Device::flex()).map_err(Box::new)?.model;
    let TaskConfig::Addition(task) = &config.task else { unreachable!("the task is set to addition") };
    let result = RowResult {
        name: row.name.clone(),
        seed: config.train.seed,
        parameters: config.model.parameter_count(),
        best_step: run.best.step,
        validation: run.best.score,
        seconds: run.seconds,
        threads: run.threads,
        widths: (1..=task.beyond).map(|width| measure(&model, width, samples)).collect(),
    };
    let kept = Kept { weights, samples, result };
    let json = serde_json::to_vec_pretty(&kept).expect("a result is plain data");
    write_file(&path, &json).map_err(|error| RowError::Io { path, error })?;
    Ok(Some(kept.result))
}

/// A result, and what it was measured on.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// Hash of the weights.
    weights: String,
    /// Test samples of each width.
    samples: usize,
    #[serde(flatten)]
    result: RowResult,
}

/// Test samples of one width.
fn measure(model: &Model, width: usize, samples: usize) -> WidthResult {
    let batch = held_out(Part::Test, width, samples);
    let forced = predictions(logits(model, &batch), &batch.targets);
    let scores = Tally::of(&batch, &forced).scores();
    let right: Vec<&Prediction> = forced.iter().flatten().collect();
    let digits = (0..=width).map(|digit| {
        let of_digit = right.iter().skip(digit).step_by(width + 1);
        of_digit.clone().filter(|prediction| prediction.right).count() as f64 / samples as f64
    });
    WidthResult {
        width,
        accuracy: scores.accuracy,
        exact: scores.exact,
        free: free_running(model, &batch, width),
        digits: digits.collect(),
    }
}

/// Fraction of target digits that are right where the model reads its own, all samples of a batch side by side.
fn free_running(model: &Model, batch: &Batch, width: usize) -> f64 {
    let (count, prompt) = (batch.sequences.count(), 2 * width + 2);
    let length = prompt + width;
    let prompts = batch.tokens.chunks_exact(length).flat_map(|sequence| &sequence[..prompt]);
    let prompts: Vec<i32> = prompts.copied().collect();
    let targets: Vec<i64> = batch.targets.iter().copied().filter(|target| *target != IGNORED).collect();
    let device = model.device();
    let mut state = model.state(count);
    let tokens = Tensor::<1, Int>::from_data(TensorData::new(prompts, [count * prompt]), &device);
    let all = model.hidden(tokens, &Sequences::uniform(count, prompt), &mut state);
    let ends: Vec<i32> = (1..=count).map(|i| (i * prompt - 1) as i32).collect();
    let ends = Tensor::<1, Int>::from_data(TensorData::new(ends, [count]), &device);
    let mut logits = model.logits(all.select(0, ends));
    let mut right = 0;
    for digit in 0..=width {
        let said: Vec<i32> =
            logits.clone().argmax(1).into_data().convert::<i32>().try_into_vec().expect("indices");
        let wanted = targets.iter().skip(digit).step_by(width + 1);
        right += said.iter().zip(wanted).filter(|(said, wanted)| i64::from(**said) == **wanted).count();
        if digit < width {
            logits = model.step(Tensor::from_data(TensorData::new(said, [count]), &device), &mut state);
        }
    }
    right as f64 / (count * (width + 1)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_is_a_configuration() {
        for scale in &SCALES {
            for name in scale.models {
                let config = config(scale, &Row::of(name), 3, &[]).unwrap();
                assert_eq!((config.train.seed, config.preset.as_str()), (3, *name));
            }
        }
        let more = [Layer::set("train.steps=77").unwrap()];
        assert_eq!(config(&SCALES[0], &Row::of("retnet"), 0, &more).unwrap().train.schedule.steps, 77);
        let parameters = |name: &&str| config(&SCALES[1], &Row::of(name), 0, &[]).unwrap().model.parameter_count();
        let sizes: Vec<usize> = ROWS.iter().map(parameters).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*most as f64 / *least as f64 <= 1.05, "rows of one size: {sizes:?}");
        let preset = [Layer::set("model.preset=retnet").unwrap()];
        let refused = config(&SCALES[0], &Row::of("mamba2"), 0, &preset).unwrap_err().to_string();
        assert!(refused.contains("use --models and --seeds"), "{refused}");
        assert!(PAPER.iter().all(|paper| ROWS.contains(&paper.preset)));
        let row = Row::of("falcon-1a.3+model.align=same+task.sparse=0");
        assert_eq!(row.name, "falcon-1a.3 align=same task.sparse=0");
        let of = |row: &Row| config(&SCALES[0], row, 0, &[]).unwrap();
        let differences = of(&Row::of("falcon-1a.3")).differences(&of(&row));
        assert_eq!(differences.len(), 2, "{differences:?}");
        assert_eq!(Row::of("retnet+model.rope_theta=1e+4").set, ["model.rope_theta=1e+4"]);
        let wider = config(&SCALES[0], &Row::of("retnet+task.max_width=5"), 0, &[]).unwrap_err().to_string();
        assert!(wider.contains("one for all rows of the table"), "{wider}");
    }

    /// Three ways of counting, of a model that knows nothing, agree where they must.
    #[test]
    fn measurements_agree() {
        let scale = &SCALES[0];
        let config = config(scale, &Row::of("falcon-1a.3"), 0, &[]).unwrap();
        let model = config.model.init(0, &Device::flex()).unwrap();
        let result = measure(&model, 1, 300);
        assert_eq!(result.digits.len(), 2);
        assert!((result.digits.iter().sum::<f64>() / 2.0 - result.accuracy).abs() < 1e-12);
        assert!(result.exact <= result.accuracy.min(result.free));
        // Where the targets are what it says itself, reading them or its own is the same, and all of it is right.
        let mut batch = held_out(Part::Test, 3, 20);
        for digit in 0..=3 {
            let logits = logits(&model, &batch);
            let said: Vec<i32> = logits.argmax(1).into_data().convert::<i32>().try_into_vec().unwrap();
            for sequence in 0..20 {
                let (at, next) = (sequence * 11 + 7 + digit, sequence * 11 + 8 + digit);
                batch.targets[at] = i64::from(said[at]);
                if digit < 3 {
                    batch.tokens[next] = said[at];
                }
            }
        }
        assert_eq!(free_running(&model, &batch, 3), 1.0);
        let forced = predictions(logits(&model, &batch), &batch.targets);
        assert!(forced.iter().flatten().all(|prediction| prediction.right));
        batch.targets[7 + 3] = (batch.targets[7 + 3] + 1) % 10;
        assert_eq!(free_running(&model, &batch, 3), 1.0 - 1.0 / 80.0);
    }
}
