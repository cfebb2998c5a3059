//! Configurations, and folders of runs.

use std::fs;

use crate::case::{Case, run_all};

const CASES: &[Case] = &[
    Case::refused(
        "a configuration with an unknown key",
        |folder| fs::write(folder.join("run.toml"), "[train]\nstep = 3\n").unwrap(),
        "train run.toml",
        &["run.toml", "train.step", "\"steps\""],
    ),
    Case::refused(
        "a batch that fits no memory",
        |_| (),
        "train --batch 1048576",
        &["this run needs about", "train.batch"],
    ),
    Case::refused(
        "sums whose held-out data fits no memory",
        |_| (),
        "train --set task.max_width=4096 --set task.beyond=4096",
        &["this run needs about", "data"],
    ),
    Case::refused(
        "a model that fits no memory",
        |_| (),
        "train --size 340m",
        &["this run needs about", "optimizer"],
    ),
];

#[test]
fn configurations_and_runs() {
    run_all(CASES);
}
