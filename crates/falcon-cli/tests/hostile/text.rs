//! Text to train or evaluate on, and tokenizers trained on it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::case::{Case, run_all};

fn corpus(folder: &Path) {
    fs::write(folder.join("corpus.txt"), "one two three\n".repeat(100)).unwrap();
}

fn books(folder: &Path) {
    fs::create_dir(folder.join("books")).unwrap();
    fs::write(folder.join("books/a.txt"), "one two three\n".repeat(100)).unwrap();
}

fn pipe(folder: &Path, name: &str) {
    assert!(Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
}

/// A sparse file, which has a length and takes no space.
fn hole(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

/// A zstd file that expands to far more than its size: its blocks repeat one letter, 4 bytes for every 128 KiB.
fn bomb(path: &Path, blocks: usize) {
    let mut frame = 0xfd2f_b528u32.to_le_bytes().to_vec();
    // A window of 128 KiB, without length and checksum.
    frame.extend([0, 7 << 3]);
    for block in 1..=blocks {
        let header = (128 << 10) << 3 | 1 << 1 | u32::from(block == blocks);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(b'a');
    }
    fs::write(path, frame).unwrap();
}

/// A corpus, and a tokenizer of words with this normaliser, whose last token has this id.
fn tokenizer(folder: &Path, id: u64, normalizer: &str) {
    corpus(folder);
    let json = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {normalizer},
        "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": null,
        "model": {{"type": "WordLevel", "vocab": {{"</s>": 0, "[UNK]": 1, "a": {id}}}, "unk_token": "[UNK]"}}}}"#
    );
    fs::write(folder.join("tokenizer.json"), json).unwrap();
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
        "tokenizer train corpus.txt --size 260 -o tokenizer.json --threads 2",
        &["260 tokens"],
    ),
    Case::works(
        "a larger vocabulary than the text has",
        corpus,
        "tokenizer train corpus.txt --size 60000 -o tokenizer.json --json",
        &["\"asked\":60000", "instead of 60000"],
    ),
    Case::works(
        "a corpus on standard input",
        corpus,
        "tokenizer train - --size 260 -o tokenizer.json",
        &["260 tokens"],
    )
    .stdin("corpus.txt"),
    Case::refused(
        "an output that is the input",
        corpus,
        "tokenizer train corpus.txt -o corpus.txt",
        &["corpus.txt", "this is the input", "choose another name"],
    ),
    Case::refused(
        "an output that is a text of the input",
        books,
        "tokenizer train books -o books/new.txt",
        &["books/new.txt", "become part of the input books", "outside that folder"],
    ),
    Case::refused(
        "an output that would replace a file of another kind",
        |folder| {
            corpus(folder);
            fs::write(folder.join("notes.md"), "do not lose this").unwrap();
        },
        "tokenizer train corpus.txt -o notes.md",
        &["notes.md", "the file exists and is not a tokenizer", "choose another name"],
    ),
    Case::refused(
        "a page that would replace a text",
        corpus,
        "report runs -o corpus.txt",
        &["corpus.txt", "the file exists and is not an HTML page"],
    ),
    Case::works(
        "text without spaces",
        |folder| {
            let mut state = 1u64;
            let mut letter = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                b'a' + (state >> 33) as u8 % 26
            };
            fs::write(folder.join("letters.txt"), (0..1 << 20).map(|_| letter()).collect::<Vec<u8>>()).unwrap();
        },
        "tokenizer train letters.txt --size 4096 -o tokenizer.json",
        &["4096 tokens"],
    )
    .seconds(100),
    Case::refused(
        "a line of JSON that is longer than any line may be",
        |folder| hole(&folder.join("long.jsonl"), (256 << 20) + 10),
        "tokenizer train long.jsonl -o tokenizer.json",
        &["long.jsonl", "line 1", "256 MiB", ".txt"],
    )
    .memory(1024),
    Case::refused(
        "a question that is longer than any line may be",
        |folder| hole(&folder.join("piqa.jsonl"), (256 << 20) + 10),
        "eval model --tasks piqa --data .",
        &["piqa.jsonl", "line 1", "256 MiB"],
    )
    .memory(1024),
    Case::refused(
        "questions that are a pipe",
        |folder| pipe(folder, "piqa.jsonl"),
        "eval model --tasks piqa --data .",
        &["piqa.jsonl", "a named pipe"],
    ),
    Case::refused(
        "a file of 16 KiB that is 512 MiB of text",
        |folder| bomb(&folder.join("bomb.txt.zst"), 4096),
        "train --task text --set task.train=bomb.txt.zst",
        &["task.train", "bomb.txt.zst", "200 times", "FALCON_MAX_EXPANSION"],
    ),
    Case::refused(
        "a token id so large that a table of ids would take gigabytes",
        |folder| tokenizer(folder, 1_000_000_000, "null"),
        "train --task text --set task.train=corpus.txt --set task.tokenizer=tokenizer.json",
        &["tokenizer.json", "1000000000", "16777215"],
    )
    .memory(512),
    Case::refused(
        "a normaliser that replaces a letter by a megabyte",
        |folder| {
            let long = "b".repeat(1 << 20);
            tokenizer(
                folder,
                2,
                &format!(r#"{{"type": "Replace", "pattern": {{"String": "o"}}, "content": "{long}"}}"#),
            );
        },
        "train --task text --set task.train=corpus.txt --set task.tokenizer=tokenizer.json",
        &["tokenizer.json", "normalizer", "1048576 times as long"],
    )
    .memory(512),
    Case::refused(
        "a tokenizer file above the largest size that is read",
        |folder| {
            corpus(folder);
            hole(&folder.join("tokenizer.json"), 65 << 20);
        },
        "train --task text --set task.train=corpus.txt --set task.tokenizer=tokenizer.json",
        &["tokenizer.json", "68157440 bytes", "at most 67108864"],
    )
    .memory(512),
    Case::refused(
        "a pipe",
        |folder| pipe(folder, "pipe"),
        "tokenizer train pipe -o tokenizer.json",
        &["pipe", "a named pipe (FIFO)"],
    ),
    Case::refused(
        "a pipe among texts",
        |folder| {
            books(folder);
            pipe(folder, "books/b.txt");
        },
        "train --task text --set task.train=books",
        &["books/b.txt", "a named pipe (FIFO)"],
    ),
    Case::refused(
        "a device",
        |_| {},
        "train --task text --set task.train=/dev/zero",
        &["/dev/zero", "a character device"],
    ),
    Case::refused(
        "a Parquet file",
        |folder| fs::write(folder.join("data.parquet"), b"PAR1\x15\x00\x15\xffPAR1").unwrap(),
        "train --task text --set task.train=data.parquet",
        &["data.parquet", "Parquet", ".jsonl"],
    ),
    Case::refused(
        "a zip archive that is named as text",
        |folder| fs::write(folder.join("data.txt"), b"PK\x03\x04\x14\xff\xff").unwrap(),
        "train --task text --set task.train=data.txt",
        &["data.txt", "a zip archive", "unpack"],
    ),
    Case::refused(
        "standard input where it cannot be read",
        corpus,
        "train --task text --set task.train=corpus.txt --set task.valid=-",
        &["task.valid", "standard input", "a file first"],
    ),
    Case::refused(
        "a text with a negative weight",
        corpus,
        "train --task text --set task.train=[{path=\"corpus.txt\",weight=-1}]",
        &["task.train", "above 0", "-1 for corpus.txt"],
    ),
    Case::works(
        "several texts with weights, and standard input",
        |folder| {
            corpus(folder);
            books(folder);
        },
        "train --task text --size micro --set task.train=[{path=\"books\",weight=2},\"-\"] --set task.length=8 \
         --set train.steps=1 --set train.batch=2 --verify --verbose",
        &["finished: 1 steps", "stdin-"],
    )
    .stdin("corpus.txt"),
];

#[test]
fn text_and_tokenizers() {
    run_all(CASES);
}
