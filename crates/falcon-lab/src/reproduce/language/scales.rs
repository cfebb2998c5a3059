//! The scales of the experiment, and the configuration of its rows.

use std::path::{Path, PathBuf};

use falcon_lm::config::{Layer, RunConfig, RunConfigError};

use super::paper::PRESETS;
use crate::reproduce::row::TableRow;
use crate::reproduce::scale::{ExperimentScale, row_config};
use crate::reproduce::search::Search;

/// All scales, the smallest first.
pub const SCALES: &[ExperimentScale] = &[
    ExperimentScale {
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
        samples: Some(100),
        search: None,
    },
    ExperimentScale {
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
        samples: Some(500),
        search: Some(Search::SMALL),
    },
    // The paper's optimizer and 49.2 billion tokens; gradients are accumulated over single windows, to save memory.
    ExperimentScale {
        name: "paper",
        models: &PRESETS,
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
        samples: None,
        search: None,
    },
];

/// The texts and the tokenizer of all rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// The training text.
    pub train: PathBuf,
    /// The validation text.
    pub valid: PathBuf,
    /// `bytes`, a `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    pub tokenizer: String,
}

/// The configuration of a row: the settings of the scale, overridden by `more`, which apply to all rows, and by the
/// settings of the row itself.
pub fn config(
    corpus: &Corpus,
    scale: &ExperimentScale,
    row: &TableRow,
    seed: u64,
    more: &[Layer],
) -> Result<RunConfig, RunConfigError> {
    for (key, option) in [("train", "--train"), ("valid", "--valid"), ("tokenizer", "--tokenizer")] {
        if let Some(layer) = more.iter().find(|layer| layer.has("task", key)) {
            return Err(layer.refused("task", key, &format!("set by {option}; use that option")));
        }
    }
    // All rows must see the same windows and the same number of tokens.
    let path = |set: &str| set.split('=').next().unwrap_or(set).trim().to_string();
    if let Some(set) = row.set.iter().find(|set| !set.starts_with("model.") && path(set) != "train.lr") {
        let path = path(set);
        let (section, key) = path.split_once('.').unwrap_or((&path, ""));
        let what = "neither a key of the model nor train.lr; rows may not differ in anything else";
        return Err(Layer::set(set)?.refused(section, key, what));
    }
    let text = |key: &str, path: &Path| match path.to_str() {
        Some(path) => Ok(Layer::of("task", key, path)),
        None => Err(Layer::of("task", key, path.to_string_lossy()).refused(
            "task",
            key,
            "not UTF-8, as a configuration must be; rename the file",
        )),
    };
    let task = [
        Layer::of("task", "name", "text"),
        text("train", &corpus.train)?,
        text("valid", &corpus.valid)?,
        Layer::of("task", "tokenizer", corpus.tokenizer.as_str()),
    ];
    row_config(&task, scale, row, seed, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_valid_and_rows_differ_only_where_allowed() {
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        for scale in SCALES {
            let parameters = |name: &&str| {
                let config = config(&corpus, scale, &TableRow::parse(name), 3, &[]).unwrap();
                assert_eq!((config.train.seed, config.preset.as_str()), (3, *name));
                config.model.parameter_count()
            };
            let sizes: Vec<usize> = scale.models.iter().map(parameters).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            // At the largest scale a Transformer has 124M parameters and the others 130M, as in the paper.
            assert!(*most as f64 / *least as f64 <= 1.09, "{}: rows of one size: {sizes:?}", scale.name);
        }
        let paper = config(&corpus, &SCALES[2], &TableRow::parse("falcon-1.3"), 0, &[]).unwrap().train;
        let tokens = paper.schedule.steps as usize * paper.batch * 1024;
        assert_eq!(tokens, 49_152_000_000, "the paper's budget");
        let (lr, last) = (paper.schedule.lr, paper.schedule.lr * paper.schedule.final_fraction);
        assert_eq!((lr, last, paper.schedule.warmup), (1e-3, 5e-5, 2000), "the authors' rates");
        let error = |row: &str, set: &str| {
            let more = [Layer::set(set).unwrap()];
            config(&corpus, &SCALES[0], &TableRow::parse(row), 0, &more).unwrap_err().to_string()
        };
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let train = PathBuf::from(std::ffi::OsStr::from_bytes(b"caf\xe9.txt"));
            let corpus = Corpus { train, ..corpus.clone() };
            let result = config(&corpus, &SCALES[0], &TableRow::parse("retnet"), 0, &[]);
            let error = result.unwrap_err().to_string();
            assert!(error.contains("task.train") && error.contains("not UTF-8"), "{error}");
        }
        assert!(error("retnet", "task.name=addition").contains("determined by the experiment"));
        assert!(error("retnet+model.preset=mamba2", "train.lr=1").contains("use --models and --seeds"));
        assert!(error("retnet", "task.tokenizer=bytes").contains("set by --tokenizer"));
        assert!(error("retnet+task.length=8", "train.lr=1").contains("rows may not differ in anything else"));
        let steps = error("retnet+train.steps=8", "train.lr=1");
        assert!(
            steps.contains("train.steps = 8") && steps.contains("neither a key of the model nor train.lr"),
            "{steps}"
        );
        let own = config(&corpus, &SCALES[0], &TableRow::parse("retnet+train.lr=7e-3"), 0, &[]).unwrap();
        assert_eq!(own.train.schedule.lr, 7e-3);
    }
}
