//! Text that is learnt from or measured, and tokenizers made from it.

use std::fs;
use std::path::Path;

use crate::case::{Case, run_all};

fn corpus(folder: &Path) {
    fs::write(folder.join("corpus.txt"), "one two three\n".repeat(100)).unwrap();
}

const CASES: &[Case] = &[
    Case::refused(
        "a folder without text",
        |folder| fs::create_dir(folder.join("empty")).unwrap(),
        "tokenizer train empty -o tokenizer.json",
        &["empty", "no text"],
    ),
    Case::works(
        "a small corpus",
        corpus,
        "tokenizer train corpus.txt --size 260 -o tokenizer.json",
        &["260 tokens"],
    ),
];

#[test]
fn text_and_tokenizers() {
    run_all(CASES);
}
