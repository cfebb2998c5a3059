//! Evaluates trained language models.

use std::path::Path;

use burn::tensor::Device;
use falcon_base::files::write_file;
use falcon_lm::batch::VALIDATION;
use falcon_lm::config::RunConfig;
use falcon_lm::evaluate::{Exam, ExamText, ModelResult};
use falcon_lm::monitor::Monitor;
use falcon_lm::tasks::TaskConfig;
use falcon_lm::train::Record;
use falcon_lm::trained::Trained;

use super::experiment::{LanguageMeasured, LanguageTraining};
use crate::reproduce::training::{FinishedRun, RowError};

/// Name of the file in the folder of a run that keeps its results.
const RESULT_FILE: &str = "eval.json";

/// What all rows are evaluated on: the validation text and `texts`, in windows of the length of training. Benchmarks
/// are added to it.
pub(super) fn exam(config: &RunConfig, texts: Vec<ExamText>) -> Exam {
    let TaskConfig::Text(task) = &config.task else { unreachable!("the task is set to text") };
    let window = u32::try_from(task.length).expect("validated: at most 2^20");
    let valid = task.valid.iter().map(|path| ExamText { path: path.clone(), detokenizer: None });
    Exam::new(valid.chain(texts).collect(), Some(window))
}

/// Evaluates the best checkpoint of a run. Results that are in the folder of the run already are not measured again.
/// None if interrupted.
pub(super) fn evaluate_run(
    run: &FinishedRun,
    name: &str,
    exam: &Exam,
    folder: &Path,
    monitor: &mut dyn Monitor,
) -> Result<Option<(LanguageTraining, LanguageMeasured)>, RowError> {
    let trained = Trained::open(&run.checkpoint, None, &Device::flex())?;
    let path = folder.join(RESULT_FILE);
    let kept = std::fs::read(&path).ok().and_then(|json| serde_json::from_slice::<ModelResult>(&json).ok());
    let kept = kept.filter(|kept| kept.weights == trained.weights);
    let mut result = kept.unwrap_or_else(|| ModelResult::new(name.into(), &trained));
    let mut keep = |result: &ModelResult| -> Result<(), RowError> {
        let json = serde_json::to_vec_pretty(result).expect("results are plain data");
        Ok(write_file(&path, &json)?)
    };
    let answers = exam.take(&trained, &mut result, &mut keep, monitor)?;
    if !answers.complete {
        return Ok(None);
    }
    let mut tokens = 0;
    let mut curve = Vec::new();
    for record in &run.records {
        match record {
            Record::Train(record) => tokens += record.tokens,
            Record::Eval(record) if record.split == VALIDATION => curve.push((tokens, record.total.loss)),
            _ => {}
        }
    }
    let (texts, benchmarks) = (answers.asked.texts, answers.asked.benchmarks);
    Ok(Some((LanguageTraining { tokens }, LanguageMeasured { curve, texts, benchmarks })))
}
