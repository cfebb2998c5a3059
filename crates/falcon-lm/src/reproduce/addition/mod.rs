//! Sums of more digits than were ever seen: the paper's table, run again.
//!
//! Every row trains one model by one configuration, the same for all rows but for the model. The checkpoint that
//! is best on validation data is then measured on test samples of every width, in training's range and beyond:
//! teacher-forced, by digits and by whole sums, and by letting the model read its own digits, which the paper does
//! not.

mod record;

use std::path::Path;

use burn::tensor::Device;
use falcon_nn::{IGNORED, Model, Sequences, WEIGHTS_FILE, predictions, write_file};
use serde::{Deserialize, Serialize};

pub use self::record::AdditionRecord;
use super::fingerprint::{Fingerprint, Origin};
use super::results::{ResultRow, StateSize};
use super::rows::{self, Row, RowError, Scale};
use crate::config::{Layer, RunConfig, RunConfigError};
use crate::evaluate::{Tally, logits, parts, whole_numbers};
use crate::tasks::addition::{END, Part};
use crate::tasks::{AdditionConfig, Batch, TaskConfig, TaskError, VALIDATION};
use crate::train::{Checkpoint, Record, Watch, sum};

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

/// How all rows begin and learn, found in trials with Falcon-1A.3 at 32 digits: as fast in the embedding, the
/// convolutions and the gates as in the matrices, from matrices of `1 / √fan_in`, with memories that span 10 to
/// 150 tokens from the first step on. With the presets' own initial values it came to 42% of the digits in the
/// time in which these come to 66%.
macro_rules! recipe {
    ($($set:literal),* $(,)?) => {
        &[
            "model.mup_base_width=128",
            "model.matrix_init=fan-in",
            "model.lambda_init=[0.0067,0.119]",
            "train.lr=3e-3",
            "train.final_fraction=0.1",
            $($set),*
        ]
    };
}

/// All scales, smallest first.
pub const SCALES: [Scale; 3] = [
    Scale {
        name: "quick",
        models: &["transformer", "retnet", "falcon-1a.3", "falcon-3a.3"],
        seeds: 1,
        set: recipe!["model.size=micro", "task.max_width=4", "task.beyond=6", "train.steps=1000"],
        samples: 128,
        search: None,
    },
    Scale {
        name: "small",
        models: &ROWS,
        seeds: 3,
        set: recipe![
            "model.size=micro",
            "task.max_width=6",
            "task.beyond=12",
            "train.steps=2000",
            "train.batch=160",
        ],
        samples: 256,
        search: None,
    },
    Scale {
        name: "paper",
        models: &[
            "transformer",
            "retnet",
            "mamba2",
            "gated-deltanet",
            "falcon-1a.1",
            "falcon-1a.2",
            "falcon-1a.3",
            "falcon-3a.3",
            "falcon-1.3",
        ],
        seeds: 1,
        set: recipe![
            "model.size=tiny-wide",
            "task.max_width=32",
            "task.beyond=64",
            "task.eval_samples=64",
            "train.steps=3600",
            "train.batch=96",
            "train.eval_every=300",
            "train.save_every=300",
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
    /// Of the best validation, in percent.
    pub validation: f64,
    /// Mean over 33 to 48 digits.
    pub beyond: f64,
    /// Of 33 digits.
    pub first: f64,
    /// Of 48 digits.
    pub last: f64,
}

/// Widths 1–32 in training, 33–48 beyond, in percent: of target digits by its text, but an earlier version called
/// the same numbers exact match of whole sequences, and those of 33 and 48 digits are whole percents.
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
    /// Digits of the longer operand.
    pub width: usize,
    /// Fraction of target digits that are right where it reads the true ones before. The end of a sum counts as
    /// one, where it is asked for.
    pub accuracy: f64,
    /// Fraction of sums that are right in all digits. Whether it reads the true digits or its own makes no
    /// difference to these.
    pub exact: f64,
    /// Fraction of target digits that are right where it reads its own.
    pub free: f64,
    /// Teacher-forced accuracy of each digit of the target, the lowest first, over those samples that have it. The
    /// end of a sum is not among them.
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
    /// Numbers in its state, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateSize>,
    /// Step of the best validation.
    pub best_step: u64,
    /// Its accuracy.
    pub validation: f64,
    /// The fraction of sums that are right in all digits in the same validation, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_validation: Option<f64>,
    /// Time in training and validation.
    pub seconds: f64,
    /// Threads it was trained with, the last time it was taken up.
    pub threads: usize,
    /// On test samples, by width.
    pub widths: Vec<WidthResult>,
    /// Where it comes from. Rows recorded by earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

impl ResultRow for RowResult {
    fn name(&self) -> &str {
        &self.name
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn parameters(&self) -> usize {
        self.parameters
    }

    fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    fn with_origin(self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..self }
    }
}

/// Name of the result in a run's folder.
const RESULT_FILE: &str = "result.json";

/// Configuration of a row: that of the scale, then `more`, which is asked for all rows, then what the row changes.
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

/// Trains and measures a row in `folder`, or reads what became of it before. None if it was interrupted. `fingerprint`
/// is that of the run.
pub fn run_row(
    row: &Row,
    config: &RunConfig,
    samples: usize,
    folder: &Path,
    fingerprint: Fingerprint,
    watch: &mut dyn Watch,
) -> Result<Option<RowResult>, RowError> {
    let Some(run) = rows::train(config, folder, watch)? else { return Ok(None) };
    let path = folder.join(RESULT_FILE);
    let weights = sum(&run.checkpoint.join(WEIGHTS_FILE)).map_err(Box::new)?;
    let known: Option<Kept> = std::fs::read(&path).ok().and_then(|json| serde_json::from_slice(&json).ok());
    if let Some(known) = known.filter(|known| known.weights == weights && known.samples == samples) {
        return Ok(Some(known.result.with_origin(run.origin(fingerprint))));
    }
    let model =
        Checkpoint::load(&run.checkpoint, config.train.optimizer, &Device::flex()).map_err(Box::new)?.model;
    let TaskConfig::Addition(task) = &config.task else { unreachable!("the task is set to addition") };
    let result = RowResult {
        name: row.name.clone(),
        seed: config.train.seed,
        parameters: config.model.parameter_count(),
        state: Some(StateSize::of(&config.model)),
        best_step: run.best.step,
        validation: run.best.score,
        exact_validation: exact_validation(&run.records, run.best.step),
        seconds: run.seconds,
        threads: run.threads(),
        widths: (1..=task.beyond).map(|width| measure(&model, task, width, samples)).collect(),
        origin: Some(run.origin(fingerprint)),
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

/// The exact match of the validation at a step. A run that was killed and taken up again may have measured twice
/// there, with the same result.
fn exact_validation(records: &[Record], step: u64) -> Option<f64> {
    records.iter().rev().find_map(|record| match record {
        Record::Eval(eval) if eval.split == VALIDATION && eval.step == step => Some(eval.total.exact),
        _ => None,
    })
}

/// Test samples of one width.
fn measure(model: &Model, task: &AdditionConfig, width: usize, samples: usize) -> WidthResult {
    let (mut tally, mut digits, mut free, mut asked) = (Tally::default(), Vec::<Share>::new(), 0, 0);
    for part in parts(&task.held_out(Part::Test, width, samples)) {
        let forced = predictions(logits(model, &part), &part.targets);
        tally += Tally::of(&part, &forced);
        for window in part.sequences.offsets().windows(2) {
            let targets = part.targets[window[0]..window[1]].iter().zip(&forced[window[0]..window[1]]);
            let of_digits = targets.filter(|(target, _)| **target != i64::from(END));
            for (place, prediction) in of_digits.filter_map(|(_, prediction)| prediction.as_ref()).enumerate() {
                if place == digits.len() {
                    digits.push(Share::default());
                }
                digits[place].count(prediction.right);
            }
        }
        free += free_running(model, &part);
        asked += part.asked();
    }
    let scores = tally.scores();
    WidthResult {
        width,
        accuracy: scores.accuracy,
        exact: scores.exact,
        free: free as f64 / asked as f64,
        digits: digits.iter().map(Share::fraction).collect(),
    }
}

/// How many of some predictions are right.
#[derive(Clone, Copy, Default)]
struct Share {
    right: usize,
    all: usize,
}

impl Share {
    fn count(&mut self, right: bool) {
        self.right += usize::from(right);
        self.all += 1;
    }

    fn fraction(&self) -> f64 {
        self.right as f64 / self.all as f64
    }
}

/// How many target tokens are right where the model reads what it said itself, all samples of a batch side by
/// side. A sample whose targets are all said goes on with the others, but is no longer scored.
fn free_running(model: &Model, batch: &Batch) -> usize {
    let (mut prompts, mut lengths, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for window in batch.sequences.offsets().windows(2) {
        let (tokens, targets) = (&batch.tokens[window[0]..window[1]], &batch.targets[window[0]..window[1]]);
        let last = targets.iter().position(|target| *target != IGNORED).expect("a sum is asked for");
        prompts.extend_from_slice(&tokens[..=last]);
        lengths.push(last + 1);
        wanted.push(&targets[last..]);
    }
    let (device, count) = (model.device(), lengths.len());
    let tensor = |numbers| whole_numbers(numbers, &device);
    let (mut state, sequences) = (model.state(count), Sequences::packed(&lengths));
    let ends: Vec<i32> = sequences.offsets()[1..].iter().map(|end| *end as i32 - 1).collect();
    let mut logits = model.logits(model.hidden(tensor(prompts), &sequences, &mut state).select(0, tensor(ends)));
    let (steps, mut right) = (wanted.iter().map(|targets| targets.len()).max().unwrap_or(0), 0);
    for step in 0..steps {
        let said: Vec<i32> = logits.argmax(1).into_data().convert::<i32>().try_into_vec().expect("indices");
        let here = said.iter().zip(&wanted).filter_map(|(said, wanted)| Some((*said, *wanted.get(step)?)));
        right += here.filter(|(said, wanted)| i64::from(*said) == *wanted).count();
        if step + 1 == steps {
            break;
        }
        logits = model.step(tensor(said), &mut state);
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Operands;
    use crate::train::{EvalRecord, Scores};

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

    fn model_and_task() -> (Model, AdditionConfig) {
        let config = config(&SCALES[0], &Row::of("falcon-1a.3"), 0, &[]).unwrap();
        let TaskConfig::Addition(task) = config.task else { unreachable!("the task is addition") };
        (config.model.init(0, &Device::flex()).unwrap(), task)
    }

    /// Sums whose lengths differ.
    fn ragged(task: &AdditionConfig) -> AdditionConfig {
        AdditionConfig { operands: Operands::Independent, leading_zeros: false, ..task.clone() }
    }

    /// Three ways of counting, of a model that knows nothing, agree where they must.
    #[test]
    fn measurements_agree() {
        let (model, task) = model_and_task();
        let result = measure(&model, &task, 1, 300);
        assert_eq!(result.digits.len(), 2);
        assert!((result.digits.iter().sum::<f64>() / 2.0 - result.accuracy).abs() < 1e-12);
        assert!(result.exact <= result.accuracy.min(result.free));
        // More than one part makes no difference.
        let task = ragged(&task);
        let whole = task.held_out(Part::Test, 6, 500);
        assert!(parts(&whole).len() > 1);
        let forced = predictions(logits(&model, &whole), &whole.targets);
        let result = measure(&model, &task, 6, 500);
        assert_eq!(result.accuracy, Tally::of(&whole, &forced).scores().accuracy);
        assert_eq!(result.free, free_running(&model, &whole) as f64 / whole.asked() as f64);
    }

    /// Each digit is counted over the sums that have it, and the end is none.
    #[test]
    fn digits_are_of_the_sums_that_have_them() {
        let (model, task) = model_and_task();
        let task = ragged(&task);
        let batch = task.held_out(Part::Test, 3, 40);
        let forced = predictions(logits(&model, &batch), &batch.targets);
        let (mut right, mut all) = ([0.0; 4], [0.0; 4]);
        for window in batch.sequences.offsets().windows(2) {
            // What stands after `=`, and after every digit, but for what is said after the last.
            let equals = (window[0]..window[1]).find(|at| batch.targets[*at] != IGNORED).unwrap();
            for at in equals..window[1] - 1 {
                right[at - equals] += f64::from(u8::from(forced[at].unwrap().right));
                all[at - equals] += 1.0;
            }
        }
        assert!(all[0] == 40.0 && all[3] > 0.0 && all[3] < all[2], "sums of 3 and of 4 digits: {all:?}");
        let digits: Vec<f64> = right.iter().zip(all).map(|(right, all)| right / all).collect();
        assert_eq!(measure(&model, &task, 3, 40).digits, digits);
    }

    /// Where the targets are what a model says itself, reading them or its own is the same, and all of it is
    /// right.
    #[test]
    fn what_a_model_says_itself_is_right() {
        let (model, task) = model_and_task();
        for task in [ragged(&task), task] {
            let mut batch = task.held_out(Part::Test, 3, 20);
            let windows: Vec<(usize, usize)> =
                batch.sequences.offsets().windows(2).map(|window| (window[0], window[1])).collect();
            let equals = |(from, to): (usize, usize), batch: &Batch| {
                (from..to).find(|at| batch.targets[*at] != IGNORED).unwrap()
            };
            for digit in 0..=4 {
                let logits = logits(&model, &batch);
                let said: Vec<i32> = logits.argmax(1).into_data().convert::<i32>().try_into_vec().unwrap();
                for window in &windows {
                    let at = equals(*window, &batch) + digit;
                    if at < window.1 {
                        batch.targets[at] = i64::from(said[at]);
                    }
                    if at + 1 < window.1 {
                        batch.tokens[at + 1] = said[at];
                    }
                }
            }
            let asked = batch.asked();
            assert_eq!(free_running(&model, &batch), asked);
            let forced = predictions(logits(&model, &batch), &batch.targets);
            assert!(forced.iter().flatten().all(|prediction| prediction.right));
            // The last of the first sequence and the first of the second.
            for at in [windows[0].1 - 1, equals(windows[1], &batch)] {
                batch.targets[at] = (batch.targets[at] + 1) % 10;
            }
            assert_eq!(free_running(&model, &batch), asked - 2);
        }
    }

    #[test]
    fn exact_match_is_that_of_the_best_validation() {
        let eval = |step, split: &str, exact| {
            let total = Scores { exact, ..Scores::default() };
            let (split, groups, about) = (split.into(), Vec::new(), Default::default());
            Record::Eval(EvalRecord { step, split, total, groups, about, score: None, seconds: 0.0 })
        };
        let records = [
            eval(10, VALIDATION, 0.25),
            eval(20, VALIDATION, 0.5),
            eval(20, "beyond", 0.1),
            eval(30, VALIDATION, 0.4),
        ];
        assert_eq!(exact_validation(&records, 20), Some(0.5));
        assert_eq!(exact_validation(&records, 40), None);
    }
}
