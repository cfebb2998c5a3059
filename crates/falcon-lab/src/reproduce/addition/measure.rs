//! Evaluates trained models on sums of every width.

use std::path::Path;

use burn::tensor::Device;
use falcon_base::files::write_file;
use falcon_lm::batch::{Batch, VALIDATION};
use falcon_lm::config::RunConfig;
use falcon_lm::predict::{logits, parts, select_rows};
use falcon_lm::scores::Tally;
use falcon_lm::tasks::addition::{END, Part};
use falcon_lm::tasks::{AdditionConfig, TaskConfig};
use falcon_lm::train::{Checkpoint, Record, sum};
use falcon_nn::{Model, Sequences, WEIGHTS_FILE, predictions};
use serde::{Deserialize, Serialize};

use crate::reproduce::training::{FinishedRun, RowError};

/// The results of a trained model on sums of one width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WidthResult {
    /// The number of digits of the longer operand.
    pub width: usize,
    /// The fraction of target digits that are right with the true digits before them as input. The end token of a sum
    /// counts as a digit, if the task has one.
    pub accuracy: f64,
    /// The fraction of sums in which all digits are right. This is the same with the true digits as input and with
    /// the model's own.
    pub exact: f64,
    /// The fraction of target digits that are right with the model's own digits as input.
    pub free: f64,
    /// The teacher-forced accuracy of each digit of the sum, the lowest first, over the samples that have it. The end
    /// token is not included.
    pub digits: Vec<f64>,
}

/// Name of the file in the folder of a run that keeps its results.
const RESULT_FILE: &str = "result.json";

/// The results of a run, and the weights and number of samples that they were measured with.
#[derive(Serialize, Deserialize)]
struct KeptWidths {
    /// The hash of the evaluated weights.
    weights: String,
    /// The number of test samples of each width.
    samples: usize,
    widths: Vec<WidthResult>,
}

/// Evaluates the best checkpoint of a run on every width, unless the results are in its folder already.
pub(super) fn evaluate_widths(
    run: &FinishedRun,
    config: &RunConfig,
    samples: usize,
    folder: &Path,
) -> Result<Vec<WidthResult>, RowError> {
    let path = folder.join(RESULT_FILE);
    let weights = sum(&run.checkpoint.join(WEIGHTS_FILE)).map_err(Box::new)?;
    let kept: Option<KeptWidths> = std::fs::read(&path).ok().and_then(|json| serde_json::from_slice(&json).ok());
    if let Some(kept) = kept.filter(|kept| kept.weights == weights && kept.samples == samples) {
        return Ok(kept.widths);
    }
    let model =
        Checkpoint::load(&run.checkpoint, config.train.optimizer, &Device::flex()).map_err(Box::new)?.model;
    let TaskConfig::Addition(task) = &config.task else { unreachable!("the task is set to addition") };
    let widths = (1..=task.beyond).map(|width| measure(&model, task, width, samples)).collect();
    let kept = KeptWidths { weights, samples, widths };
    let json = serde_json::to_vec_pretty(&kept).expect("results are plain data");
    write_file(&path, &json)?;
    Ok(kept.widths)
}

/// The exact match of the validation at a step. A run that was killed and resumed may have recorded it twice, with
/// the same value.
pub(super) fn exact_validation(records: &[Record], step: u64) -> Option<f64> {
    records.iter().rev().find_map(|record| match record {
        Record::Eval(eval) if eval.split == VALIDATION && eval.step == step => Some(eval.total.exact),
        _ => None,
    })
}

/// Evaluates a model on test samples of one width.
fn measure(model: &Model, task: &AdditionConfig, width: usize, samples: usize) -> WidthResult {
    let (mut tally, mut digits, mut free, mut asked) = (Tally::default(), Vec::<RightCount>::new(), 0, 0);
    for part in parts(&task.held_out(Part::Test, width, samples)) {
        let forced = predictions(logits(model, &part), &part.targets);
        tally += Tally::of(&part, &forced);
        for window in part.sequences.offsets().windows(2) {
            let targets = part.targets[window[0]..window[1]].iter().zip(&forced[window[0]..window[1]]);
            let digit_targets = targets.filter(|(target, _)| **target != Some(END));
            for (place, prediction) in digit_targets.filter_map(|(_, prediction)| prediction.as_ref()).enumerate()
            {
                if place == digits.len() {
                    digits.push(RightCount::default());
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
        digits: digits.iter().map(RightCount::fraction).collect(),
    }
}

/// Counts right predictions.
#[derive(Clone, Copy, Default)]
struct RightCount {
    right: usize,
    all: usize,
}

impl RightCount {
    fn count(&mut self, right: bool) {
        self.right += usize::from(right);
        self.all += 1;
    }

    fn fraction(&self) -> f64 {
        self.right as f64 / self.all as f64
    }
}

/// Counts the target tokens that are right with the model's own predictions as input. All samples of a batch are
/// continued together; those whose targets end earlier are continued too, but not scored.
fn free_running(model: &Model, batch: &Batch) -> usize {
    let (mut prompts, mut lengths, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for window in batch.sequences.offsets().windows(2) {
        let (tokens, targets) = (&batch.tokens[window[0]..window[1]], &batch.targets[window[0]..window[1]]);
        let last = targets.iter().position(Option::is_some).expect("every sample has targets");
        prompts.extend_from_slice(&tokens[..=last]);
        lengths.push(last + 1);
        wanted.push(&targets[last..]);
    }
    let (mut state, sequences) = (model.state(lengths.len()), Sequences::packed(&lengths));
    let ends: Vec<usize> = sequences.offsets()[1..].iter().map(|end| end - 1).collect();
    let mut logits = model.logits(select_rows(model.hidden(&prompts, &sequences, &mut state), &ends));
    let (steps, mut right) = (wanted.iter().map(|targets| targets.len()).max().unwrap_or(0), 0);
    for step in 0..steps {
        let predicted: Vec<u32> = logits.argmax(1).into_data().iter::<u32>().collect();
        let pairs = predicted.iter().zip(&wanted).filter_map(|(token, wanted)| Some((*token, *wanted.get(step)?)));
        right += pairs.filter(|(token, wanted)| Some(*token) == *wanted).count();
        if step + 1 == steps {
            break;
        }
        logits = model.step(&predicted, &mut state);
    }
    right
}

#[cfg(test)]
mod tests {
    use falcon_lm::scores::Scores;
    use falcon_lm::tasks::Operands;
    use falcon_lm::train::EvalRecord;

    use super::super::scales::{SCALES, config};
    use super::*;
    use crate::reproduce::TableRow;

    fn model_and_task() -> (Model, AdditionConfig) {
        let config = config(&SCALES[0], &TableRow::parse("falcon-1a.3"), 0, &[]).unwrap();
        let TaskConfig::Addition(task) = config.task else { unreachable!("the task is addition") };
        (config.model.init(0, &Device::flex()).unwrap(), task)
    }

    /// A task whose sums differ in length.
    fn ragged(task: &AdditionConfig) -> AdditionConfig {
        AdditionConfig { operands: Operands::Independent, leading_zeros: false, ..task.clone() }
    }

    /// Counts by digit, by sum and by token agree on an untrained model.
    #[test]
    fn counts_agree_with_each_other() {
        let (model, task) = model_and_task();
        let result = measure(&model, &task, 1, 300);
        assert_eq!(result.digits.len(), 2);
        assert!((result.digits.iter().sum::<f64>() / 2.0 - result.accuracy).abs() < 1e-12);
        assert!(result.exact <= result.accuracy.min(result.free));
        // Splitting a batch makes no difference.
        let task = ragged(&task);
        let whole = task.held_out(Part::Test, 6, 500);
        assert!(parts(&whole).len() > 1);
        let forced = predictions(logits(&model, &whole), &whole.targets);
        let result = measure(&model, &task, 6, 500);
        assert_eq!(result.accuracy, Tally::of(&whole, &forced).scores().accuracy);
        assert_eq!(result.free, free_running(&model, &whole) as f64 / whole.asked() as f64);
    }

    /// The end token is not a digit.
    #[test]
    fn each_digit_is_counted_over_the_sums_that_have_it() {
        let (model, task) = model_and_task();
        let task = ragged(&task);
        let batch = task.held_out(Part::Test, 3, 40);
        let forced = predictions(logits(&model, &batch), &batch.targets);
        let (mut right, mut all) = ([0.0; 4], [0.0; 4]);
        for window in batch.sequences.offsets().windows(2) {
            // The predictions after `=` and after every digit but the last.
            let equals = (window[0]..window[1]).find(|at| batch.targets[*at].is_some()).unwrap();
            for at in equals..window[1] - 1 {
                right[at - equals] += f64::from(u8::from(forced[at].unwrap().right));
                all[at - equals] += 1.0;
            }
        }
        assert!(all[0] == 40.0 && all[3] > 0.0 && all[3] < all[2], "sums of 3 and of 4 digits: {all:?}");
        let digits: Vec<f64> = right.iter().zip(all).map(|(right, all)| right / all).collect();
        assert_eq!(measure(&model, &task, 3, 40).digits, digits);
    }

    /// If the targets are the model's own predictions, the true digits and the model's own are the same input, and all
    /// predictions are right.
    #[test]
    fn own_predictions_used_as_targets_are_all_right() {
        let (model, task) = model_and_task();
        for task in [ragged(&task), task] {
            let mut batch = task.held_out(Part::Test, 3, 20);
            let windows: Vec<(usize, usize)> =
                batch.sequences.offsets().windows(2).map(|window| (window[0], window[1])).collect();
            let equals = |(from, to): (usize, usize), batch: &Batch| {
                (from..to).find(|at| batch.targets[*at].is_some()).unwrap()
            };
            for digit in 0..=4 {
                let logits = logits(&model, &batch);
                let predicted: Vec<u32> = logits.argmax(1).into_data().iter::<u32>().collect();
                for window in &windows {
                    let at = equals(*window, &batch) + digit;
                    if at < window.1 {
                        batch.targets[at] = Some(predicted[at]);
                    }
                    if at + 1 < window.1 {
                        batch.tokens[at + 1] = predicted[at];
                    }
                }
            }
            let asked = batch.asked();
            assert_eq!(free_running(&model, &batch), asked);
            let forced = predictions(logits(&model, &batch), &batch.targets);
            assert!(forced.iter().flatten().all(|prediction| prediction.right));
            // Makes the last target of the first sequence and the first target of the second wrong.
            for at in [windows[0].1 - 1, equals(windows[1], &batch)] {
                batch.targets[at] = batch.targets[at].map(|digit| (digit + 1) % 10);
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
