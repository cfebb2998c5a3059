//! Models, tokenizers and states that are given to `generate`, `eval` and `export`.

use std::fs;

use crate::case::{Case, run_all};

const CASES: &[Case] = &[Case::refused(
    "a folder that is no model",
    |folder| fs::create_dir(folder.join("model")).unwrap(),
    "generate model hello",
    &["model", "neither a run nor a model"],
)];

#[test]
fn models_and_states() {
    run_all(CASES);
}
