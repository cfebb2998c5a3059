//! Models, tokenizers and states that are given to `generate`, `eval` and `export`.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use falcon_lm::data::{TOKENIZER_FILE, Tokenizer};
use falcon_nn::{CONFIG_FILE, Metadata, Model, ModelConfig, SavedState, WEIGHTS_FILE, read_arrays, write_arrays};

use crate::case::{Case, run_all};

/// A small model of bytes in the folder `model`.
fn model(folder: &Path) -> Model {
    let config = ModelConfig::preset("falcon-1a.3", "micro", 257).unwrap();
    let model = config.init(0, &Device::flex()).unwrap();
    model.save(&folder.join("model")).unwrap();
    Tokenizer::bytes().save(&folder.join("model").join(TOKENIZER_FILE)).unwrap();
    model
}

/// A small model whose weights are changed.
fn changed_model(folder: &Path, change: impl FnOnce(&mut falcon_nn::NamedArrays)) {
    model(folder);
    let path = folder.join("model").join(WEIGHTS_FILE);
    let mut arrays = read_arrays(&path).unwrap();
    change(&mut arrays);
    write_arrays(&path, &arrays).unwrap();
}

/// A model and the questions of a benchmark.
fn questions(folder: &Path, line: &str) {
    model(folder);
    let good = r#"{"question": "q", "choices": ["a", "b"], "gold": 0}"#;
    fs::write(folder.join("piqa.jsonl"), format!("{good}\n{line}\n")).unwrap();
}

/// A model and a named pipe.
fn pipe(folder: &Path) {
    model(folder);
    let status = std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
    assert!(status.success());
}

const CASES: &[Case] = &[
    Case::refused(
        "a folder that is no model",
        |folder| fs::create_dir(folder.join("model")).unwrap(),
        "generate model hello",
        &["model", "neither a run nor a model"],
    ),
    Case::refused(
        "a state that is continued and replaced at once",
        |folder| {
            let model = model(folder);
            model.save_state(&model.state(1), &folder.join("a.state")).unwrap();
        },
        "generate model hello --state-in a.state --state-out a.state",
        &["a.state", "this is the input"],
    ),
    Case::refused(
        "a weight that is not a number",
        |folder| changed_model(folder, |arrays| arrays.get_mut("model.norm.weight").unwrap().1[3] = f32::NAN),
        "generate model hello",
        &["model.safetensors", "\"model.norm.weight\" holds NaN at index [3]"],
    ),
    Case::refused(
        "an infinite weight in a model that is measured",
        |folder| {
            fs::write(folder.join("a.txt"), "text").unwrap();
            changed_model(folder, |arrays| arrays.get_mut("model.norm.weight").unwrap().1[0] = f32::INFINITY);
        },
        "eval model --text a.txt",
        &["\"model.norm.weight\" holds inf at index [0]"],
    ),
    Case::refused(
        "a state of another version, without a checksum",
        |folder| {
            let model = model(folder);
            let mut arrays = model.export_state(&model.state(1)).arrays;
            arrays.insert("positions".into(), (vec![1, 2], vec![0.0, 0.0]));
            write_arrays(&folder.join("old.state"), &arrays).unwrap();
        },
        "generate model hello --state-in old.state",
        &["old.state", "earlier version", "--state-out"],
    ),
    Case::refused(
        "a state of a model with other weights",
        |folder| {
            let model = model(folder);
            let texts = Metadata::from([("model".into(), "0123".into())]);
            let saved = SavedState { texts, ..model.export_state(&model.state(1)) };
            saved.write(&folder.join("a.state")).unwrap();
        },
        "generate model hello --state-in a.state",
        &["a.state", "fingerprint 0123"],
    ),
    Case::refused(
        "a state that is a pipe",
        pipe,
        "generate model hello --state-in pipe",
        &["pipe: this is a named pipe"],
    ),
    Case::refused(
        "a prompt from a pipe",
        pipe,
        "generate model --file pipe",
        &["pipe: this is a named pipe (FIFO)", "stdin"],
    ),
    Case::refused(
        "prompts from a pipe",
        pipe,
        "generate model --prompts pipe",
        &["pipe: this is a named pipe (FIFO)"],
    ),
    Case::refused(
        "prompts from a device",
        |folder| drop(model(folder)),
        "generate model --prompts /dev/zero",
        &["/dev/zero: this is a character device"],
    ),
    Case::refused(
        "a prompt that is longer than any line may be",
        |folder| {
            model(folder);
            fs::File::create(folder.join("zeros")).unwrap().set_len(3 << 20).unwrap();
        },
        "generate model --prompts -",
        &["stdin, line 1: longer than 1048576 bytes"],
    )
    .stdin("zeros"),
    Case::works(
        "a long prompt on stdin",
        |folder| {
            let words = "abcdefghijklmnopqrstuvwxyz\n";
            let tokenizer = Tokenizer::learn(300, std::iter::repeat_n(words.repeat(50), 3)).unwrap();
            let mut config = ModelConfig::preset("falcon-1a.3", "micro", tokenizer.size()).unwrap();
            config.num_hidden_layers = 1;
            config.init(0, &Device::flex()).unwrap().save(&folder.join("model")).unwrap();
            tokenizer.save(&folder.join("model").join(TOKENIZER_FILE)).unwrap();
            // 175 bytes of memory per byte of text would exceed the limit.
            fs::write(folder.join("long.txt"), words.repeat((8 << 20) / words.len())).unwrap();
        },
        "generate model -n 0 --stats",
        &["tokens"],
    )
    .stdin("long.txt")
    .memory(1024)
    .seconds(300),
    Case::refused(
        "a tokenizer of the same size",
        |folder| {
            model(folder).save_for(&folder.join("model"), Some("0123456789abcdef")).unwrap();
        },
        "generate model hello",
        &["tokenizer.json", "fingerprint", "trained with 0123456789abcdef", "--tokenizer"],
    ),
    Case::refused(
        "a question with one choice",
        |folder| questions(folder, r#"{"question": "q", "choices": ["a"], "gold": 0}"#),
        "eval model --tasks piqa --data .",
        &["piqa.jsonl, line 2: there is 1 choice"],
    ),
    Case::refused(
        "a question whose choices are all the same",
        |folder| questions(folder, r#"{"question": "q", "choices": ["a", "a", "a"], "gold": 0}"#),
        "eval model --tasks piqa --data .",
        &["piqa.jsonl, line 2: all 3 choices are the same"],
    ),
    Case::refused(
        "a question with an empty choice",
        |folder| questions(folder, r#"{"question": "q", "choices": ["a", " "], "gold": 0}"#),
        "eval model --tasks piqa --data .",
        &["piqa.jsonl, line 2: choice 1, counted from 0, is empty"],
    ),
    Case::refused(
        "a model of another architecture",
        |folder| {
            model(folder);
            fs::write(folder.join("model").join(CONFIG_FILE), r#"{"model_type": "llama", "vocab_size": 257}"#)
                .unwrap();
        },
        "generate model hello",
        &["config.json", "model_type is \"llama\"", "\"falcon_fwa\""],
    ),
    Case::refused(
        "weights that are far larger than the model",
        |folder| {
            model(folder);
            let weights = fs::File::options().write(true).open(folder.join("model").join(WEIGHTS_FILE)).unwrap();
            weights.set_len(200 << 20).unwrap();
        },
        "generate model hello",
        &["model.safetensors", "at most"],
    ),
    Case::refused(
        "a shard outside the folder",
        |folder| {
            model(folder);
            let from = folder.join("model").join(WEIGHTS_FILE);
            fs::rename(from, folder.join("away.safetensors")).unwrap();
            let index = r#"{"weight_map": {"model.norm.weight": "../away.safetensors"}}"#;
            fs::write(folder.join("model/model.safetensors.index.json"), index).unwrap();
        },
        "generate model hello",
        &["index.json", "\"../away.safetensors\"", "not the name of a file in the same folder"],
    ),
];

#[test]
fn models_and_states() {
    run_all(CASES);
}
