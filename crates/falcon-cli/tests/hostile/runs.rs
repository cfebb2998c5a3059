//! Configurations, and folders of runs.

use std::fs;

use crate::case::{Case, run_all};

const CASES: &[Case] = &[Case::refused(
    "a configuration with an unknown key",
    |folder| fs::write(folder.join("run.toml"), "[train]\nstep = 3\n").unwrap(),
    "train run.toml",
    &["run.toml", "train.step", "\"steps\""],
)];

#[test]
fn configurations_and_runs() {
    run_all(CASES);
}
