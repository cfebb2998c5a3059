//! The scales of the experiment, and the configuration of its rows.

use falcon_lm::config::{Layer, RunConfig, RunConfigError};
use falcon_lm::tasks::{TaskConfig, TaskError};

use crate::reproduce::row::TableRow;
use crate::reproduce::scale::{ExperimentScale, row_config};

/// The initial values and the schedule of all rows, found in trials with Falcon-1A.3 at 32 digits: the same learning
/// rate for the embedding, the convolutions and the gates as for the matrices, matrices initialised with `1 / √fan_in`,
/// and memories that span 10 to 150 tokens from the first step on. With these values, that model got 66% of the digits
/// right in the time in which it got 42% right with the initial values of the presets.
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

/// All scales, the smallest first.
pub const SCALES: &[ExperimentScale] = &[
    ExperimentScale {
        name: "quick",
        models: &["transformer", "retnet", "falcon-1a.3", "falcon-3a.3"],
        seeds: 1,
        set: recipe!["model.size=micro", "task.max_width=4", "task.beyond=6", "train.steps=1000"],
        samples: Some(128),
        search: None,
    },
    ExperimentScale {
        name: "small",
        models: &[
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
        ],
        seeds: 3,
        set: recipe![
            "model.size=micro",
            "task.max_width=6",
            "task.beyond=12",
            "train.steps=2000",
            "train.batch=160",
        ],
        samples: Some(256),
        search: None,
    },
    ExperimentScale {
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
        samples: Some(256),
        search: None,
    },
];

/// The configuration of a row: the settings of the scale, overridden by `more`, which apply to all rows, and by the
/// settings of the row itself.
pub fn config(
    scale: &ExperimentScale,
    row: &TableRow,
    seed: u64,
    more: &[Layer],
) -> Result<RunConfig, RunConfigError> {
    let changes = row.set.iter().map(|set| Layer::set(set)).collect::<Result<Vec<_>, _>>()?;
    for key in ["max_width", "beyond"] {
        if let Some(layer) = changes.iter().find(|layer| layer.has("task", key)) {
            return Err(layer.refused("task", key, "the same for all rows of the table; use --set"));
        }
    }
    let config = row_config(&[Layer::of("task", "name", "addition")], scale, row, seed, more)?;
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

#[cfg(test)]
mod tests {
    use super::super::paper::PAPER;
    use super::*;

    #[test]
    fn scales_are_valid_and_rows_differ_only_where_allowed() {
        for scale in SCALES {
            for name in scale.models {
                let config = config(scale, &TableRow::parse(name), 3, &[]).unwrap();
                assert_eq!((config.train.seed, config.preset.as_str()), (3, *name));
            }
        }
        let more = [Layer::set("train.steps=77").unwrap()];
        assert_eq!(config(&SCALES[0], &TableRow::parse("retnet"), 0, &more).unwrap().train.schedule.steps, 77);
        let parameters =
            |name: &&str| config(&SCALES[1], &TableRow::parse(name), 0, &[]).unwrap().model.parameter_count();
        let sizes: Vec<usize> = SCALES[1].models.iter().map(parameters).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*most as f64 / *least as f64 <= 1.05, "all rows have about the same size: {sizes:?}");
        let preset = [Layer::set("model.preset=retnet").unwrap()];
        let refused = config(&SCALES[0], &TableRow::parse("mamba2"), 0, &preset).unwrap_err().to_string();
        assert!(refused.contains("use --models and --seeds"), "{refused}");
        assert!(PAPER.iter().all(|paper| SCALES[1].models.contains(&paper.preset)));
        let row = TableRow::parse("falcon-1a.3+model.align=same+task.sparse=0");
        let resolved = |row: &TableRow| config(&SCALES[0], row, 0, &[]).unwrap();
        let differences = resolved(&TableRow::parse("falcon-1a.3")).differences(&resolved(&row));
        assert_eq!(differences.len(), 2, "{differences:?}");
        let wider =
            config(&SCALES[0], &TableRow::parse("retnet+task.max_width=5"), 0, &[]).unwrap_err().to_string();
        assert!(wider.contains("the same for all rows of the table"), "{wider}");
    }
}
