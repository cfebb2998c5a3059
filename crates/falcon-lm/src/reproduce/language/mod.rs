//! Language models of one size on one text: the paper's tables, at a size that one small machine can train.
//!
//! Every row trains one model by one configuration, the same for all rows but for the model. The checkpoint that is best on validation data
//! then reads the whole validation text and others, in windows of the length it was trained with, and is asked the paper's questions.

mod estimate;
mod paper;
mod record;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use falcon_nn::write_file;
use serde::{Deserialize, Serialize};

pub use self::estimate::{Estimate, estimate};
use self::paper::{PAPER, PaperRow, TASKS};
pub use self::record::LanguageRecord;
use super::fingerprint::{Fingerprint, Origin};
use super::results::{ResultRow, StateSize};
use super::rows::{self, Row, RowError, Scale};
use super::search::Search;
use crate::config::{Layer, RunConfig, RunConfigError};
use crate::evaluate::{Asked, BenchmarkResult, Exam, ExamText, ModelResult, OnProgress, TextResult};
use crate::tasks::{TaskConfig, VALIDATION};
use crate::train::{Record, Watch};
use crate::trained::Trained;

/// The paper's rows.
pub const ROWS: [&str; 10] = [
    "transformer",
    "retnet",
    "mamba2",
    "deltanet",
    "gated-deltanet",
    "falcon-1a.1",
    "falcon-1a.2",
    "falcon-1a.3",
    "falcon-3a.3",
    "falcon-1.3",
];

/// All scales, smallest first.
pub const SCALES: [Scale; 3] = [
    Scale {
        name: "quick",
        models: &["transformer", "retnet", "falcon-1a.3", "falcon-1.3"],
        seeds: 1,
        set: &[
            "model.size=micro",
            "task.length=256",
            "train.batch=8",
            "train.steps=200",
            "train.lr=2e-3",
            "train.eval_every=50",
        ],
        samples: 100,
        search: None,
    },
    Scale {
        name: "small",
        models: &[
            "transformer",
            "retnet",
            "lightning",
            "mamba2",
            "deltanet",
            "gated-deltanet",
            "falcon-1a.1",
            "falcon-1a.2",
            "falcon-1a.3",
            "falcon-3a.3",
            "falcon-1.3",
            "falcon-1a-deep",
        ],
        seeds: 3,
        set: &[
            "model.size=tiny",
            "task.length=512",
            "train.batch=4",
            "train.steps=2000",
            "train.lr=2e-3",
            "train.eval_every=200",
            "train.save_every=200",
        ],
        samples: 500,
        search: Some(Search::SMALL),
    },
    // Its optimiser and 49.2 billion tokens, about one window of text in memory at a time.
    Scale {
        name: "paper",
        models: &ROWS,
        seeds: 1,
        set: &[
            "model.size=130m",
            "task.length=1024",
            "train.batch=480",
            "train.accumulate=480",
            "train.steps=100000",
            "train.lr=1e-3",
            "train.final_fraction=0.05",
            "train.warmup=2000",
            "train.eval_every=1000",
            "train.save_every=1000",
        ],
        samples: usize::MAX,
        search: None,
    },
];

/// What all rows learn from and are measured on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// The text to learn from.
    pub train: PathBuf,
    /// The text to be measured on.
    pub valid: PathBuf,
    /// `bytes`, a `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    pub tokenizer: String,
}

/// Configuration of a row: that of the scale, then `more`, which is asked for all rows, then what the row changes.
pub fn config(
    corpus: &Corpus,
    scale: &Scale,
    row: &Row,
    seed: u64,
    more: &[Layer],
) -> Result<RunConfig, RunConfigError> {
    for (key, option) in [("train", "--train"), ("valid", "--valid"), ("tokenizer", "--tokenizer")] {
        if let Some(layer) = more.iter().find(|layer| layer.has("task", key)) {
            return Err(layer.refused("task", key, &format!("what {option} says; use that")));
        }
    }
    // Rows are read by one window and compared at one number of tokens.
    let path = |set: &str| set.split('=').next().unwrap_or(set).trim().to_string();
    if let Some(set) = row.set.iter().find(|set| !set.starts_with("model.") && path(set) != "train.lr") {
        let path = path(set);
        let (section, key) = path.split_once('.').unwrap_or((&path, ""));
        let what = "neither of the model nor train.lr; rows may differ in nothing else";
        return Err(Layer::set(set)?.refused(section, key, what));
    }
    let of = |key: &str, path: &Path| match path.to_str() {
        Some(text) => Ok(Layer::of("task", key, text)),
        None => Err(Layer::of("task", key, path.to_string_lossy()).refused(
            "task",
            key,
            "no UTF-8, as a configuration needs it; rename it",
        )),
    };
    let task = [
        Layer::of("task", "name", "text"),
        of("train", &corpus.train)?,
        of("valid", &corpus.valid)?,
        Layer::of("task", "tokenizer", corpus.tokenizer.as_str()),
    ];
    rows::config(&task, scale, row, seed, more)
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
    /// What it remembers of all it has read, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateSize>,
    /// Step of the best validation.
    pub best_step: u64,
    /// Tokens it learnt from until its end.
    pub tokens: usize,
    /// Time in training and validation.
    pub seconds: f64,
    /// Threads it was trained with, the last time it was taken up.
    pub threads: usize,
    /// Validation loss over training, by tokens read; of the part that is measured while training.
    pub curve: Vec<(usize, f64)>,
    /// Of whole texts, the validation text first.
    pub texts: Vec<TextResult>,
    /// Of benchmarks.
    pub benchmarks: Vec<BenchmarkResult>,
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

impl RowResult {
    /// The same row with the answers to what is asked, in order; none if it does not have all of them.
    pub fn answering(self, asked: &Asked) -> Option<Self> {
        let (texts, benchmarks) = asked.answers(&self.texts, &self.benchmarks)?;
        Some(Self { texts, benchmarks, ..self })
    }
}

/// Name of the measurements in a run's folder.
const RESULT_FILE: &str = "eval.json";

/// Trains a row in `folder` and puts `exam` to it; what was done of both before is not done again. None if it was
/// interrupted. `fingerprint` is that of the run.
pub fn run_row(
    row: &Row,
    config: &RunConfig,
    exam: &Exam,
    folder: &Path,
    fingerprint: Fingerprint,
    watch: &mut dyn Watch,
    progress: &mut OnProgress<'_>,
) -> Result<Option<RowResult>, RowError> {
    let Some(run) = rows::train(config, folder, watch)? else { return Ok(None) };
    let trained = Trained::open(&run.checkpoint, None, &Device::flex())?;
    let path = folder.join(RESULT_FILE);
    let known = std::fs::read(&path).ok().and_then(|json| serde_json::from_slice::<ModelResult>(&json).ok());
    let known = known.filter(|known| known.weights == trained.weights);
    let mut result = known.unwrap_or_else(|| ModelResult::new(row.name.clone(), &trained));
    let mut keep = |result: &ModelResult| {
        let json = serde_json::to_vec_pretty(result).expect("results are plain data");
        write_file(&path, &json).map_err(|error| RowError::Io { path: path.clone(), error })
    };
    let answers = exam.take(&trained, &mut result, &mut keep, progress)?;
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
    Ok(Some(RowResult {
        name: row.name.clone(),
        seed: config.train.seed,
        parameters: config.model.parameter_count(),
        state: Some(StateSize::of(&config.model)),
        best_step: run.best.step,
        tokens,
        seconds: run.seconds,
        threads: run.threads(),
        curve,
        texts: answers.asked.texts,
        benchmarks: answers.asked.benchmarks,
        origin: Some(run.origin(fingerprint)),
    }))
}

/// What rows of a configuration are asked: the validation text and others in windows of training's length. Questions are added to it.
pub fn exam(config: &RunConfig, texts: Vec<ExamText>) -> Exam {
    let TaskConfig::Text(task) = &config.task else { unreachable!("the task is set to text") };
    let window = u32::try_from(task.length).expect("validated: at most 2^20");
    let valid = ExamText { path: task.valid.clone(), detokenizer: None };
    Exam::new(std::iter::once(valid).chain(texts).collect(), Some(window))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_is_a_configuration() {
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        for scale in &SCALES {
            let parameters = |name: &&str| {
                let config = config(&corpus, scale, &Row::of(name), 3, &[]).unwrap();
                assert_eq!((config.train.seed, config.preset.as_str()), (3, *name));
                config.model.parameter_count()
            };
            let sizes: Vec<usize> = scale.models.iter().map(parameters).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            // The largest have a Transformer of 124M beside 130M, as the paper does.
            assert!(*most as f64 / *least as f64 <= 1.09, "{}: rows of one size: {sizes:?}", scale.name);
        }
        assert!(PAPER.iter().map(|paper| paper.preset).eq(ROWS));
        let paper = config(&corpus, &SCALES[2], &Row::of("falcon-1.3"), 0, &[]).unwrap().train;
        let tokens = paper.schedule.steps as usize * paper.batch * 1024;
        assert_eq!(tokens, 49_152_000_000, "the paper's budget");
        let (lr, last) = (paper.schedule.lr, paper.schedule.lr * paper.schedule.final_fraction);
        assert_eq!((lr, last, paper.schedule.warmup), (1e-3, 5e-5, 2000), "the authors' rates");
        let said = |row: &str, set: &str| {
            let more = [Layer::set(set).unwrap()];
            config(&corpus, &SCALES[0], &Row::of(row), 0, &more).unwrap_err().to_string()
        };
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let train = PathBuf::from(std::ffi::OsStr::from_bytes(b"caf\xe9.txt"));
            let said = config(&Corpus { train, ..corpus.clone() }, &SCALES[0], &Row::of("retnet"), 0, &[]);
            let said = said.unwrap_err().to_string();
            assert!(said.contains("task.train") && said.contains("this is no UTF-8"), "{said}");
        }
        assert!(said("retnet", "task.name=addition").contains("what the experiment is"));
        assert!(said("retnet+model.preset=mamba2", "train.lr=1").contains("use --models and --seeds"));
        assert!(said("retnet", "task.tokenizer=bytes").contains("what --tokenizer says"));
        assert!(said("retnet+task.length=8", "train.lr=1").contains("rows may differ in nothing else"));
        let steps = said("retnet+train.steps=8", "train.lr=1");
        assert!(
            steps.contains("train.steps = 8") && steps.contains("neither of the model nor train.lr"),
            "{steps}"
        );
        let own = config(&corpus, &SCALES[0], &Row::of("retnet+train.lr=7e-3"), 0, &[]).unwrap();
        assert_eq!(own.train.schedule.lr, 7e-3);
    }
}
