//! `falcon convert`: what it writes, what opens it, and its errors.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use burn::tensor::Device;
use falcon_lm::data::{TOKENIZER_FILE, Tokenizer};
use falcon_nn::{CONFIG_FILE, ModelConfig, WEIGHTS_FILE};
use serde_json::Value;
use tempfile::TempDir;

fn falcon(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.args(words).current_dir(folder).env("FALCON_CACHE", folder.join("cache")).output().unwrap()
}

fn stdout_of(folder: &Path, words: &[&str]) -> String {
    let ran = falcon(folder, words);
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

fn json(folder: &Path, words: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(folder, &[words, &["--json"]].concat())).unwrap()
}

fn assert_refused(folder: &Path, words: &[&str], message: &str) {
    let ran = falcon(folder, words);
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{words:?}: {stderr}");
    assert!(stderr.contains(message), "{words:?}: {stderr}");
}

/// A folder with a text and a model of bytes, which has random weights.
fn place() -> TempDir {
    let folder = TempDir::new().unwrap();
    let config = ModelConfig::preset("falcon-1a.3", "micro", 257).unwrap();
    let model = config.init(0, &Device::flex()).unwrap();
    let fingerprint = Tokenizer::bytes().vocabulary_fingerprint();
    model.save_for(&folder.path().join("model"), Some(&fingerprint)).unwrap();
    Tokenizer::bytes().save(&folder.path().join("model").join(TOKENIZER_FILE)).unwrap();
    fs::write(folder.path().join("a.txt"), "the quick brown fox jumps over the lazy dog\n".repeat(20)).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The converted model says bit for bit what the original says with `--weights`.
#[test]
fn a_converted_model_is_the_model_with_those_weights() {
    let place = place();
    let folder = place.path();
    let nats = |words: &[&str]| json(folder, words)[0]["texts"][0]["nats"].as_f64().unwrap();
    for (format, share) in [("bf16", 0.5), ("int8", 0.3)] {
        let summary = json(folder, &["convert", "model", "--weights", format, "--output", format]);
        assert_eq!(
            (&summary["folder"], &summary["weights"], &summary["tokenizer"]),
            (&format.into(), &format.into(), &true.into())
        );
        let size = |model: &str| fs::metadata(folder.join(model).join(WEIGHTS_FILE)).unwrap().len();
        assert_eq!(summary["bytes_before"].as_u64(), Some(size("model")));
        assert_eq!(summary["bytes_after"].as_u64(), Some(size(format)));
        let smaller = size(format) as f64 / size("model") as f64;
        assert!((share - 0.05..share + 0.1).contains(&smaller), "{format}: {smaller} of the size");
        assert_eq!(names(&folder.join(format)), [CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE]);
        let config: Value =
            serde_json::from_slice(&fs::read(folder.join(format).join(CONFIG_FILE)).unwrap()).unwrap();
        assert_eq!((&config["weight_format"], &config["dtype"]), (&format.into(), &"float32".into()));
        assert_eq!(
            fs::read(folder.join(format).join(TOKENIZER_FILE)).unwrap(),
            fs::read(folder.join("model").join(TOKENIZER_FILE)).unwrap()
        );
        let text = |model: &str, more: &[&str]| {
            stdout_of(folder, &[&["generate", model, "the quick", "-n", "40"], more].concat())
        };
        let expected = text("model", &["--weights", format]);
        assert_eq!(text(format, &[]), expected);
        assert_eq!(text(format, &["--weights", format]), expected);
        let expected = nats(&["eval", "model", "--text", "a.txt", "--weights", format]);
        assert_eq!(nats(&["eval", format, "--text", "a.txt"]), expected);
        assert_ne!(nats(&["eval", "model", "--text", "a.txt"]), expected);
        let state = format!("{format}.memory");
        stdout_of(folder, &["generate", format, "the quick", "-n", "3", "--state-out", &state]);
        stdout_of(folder, &["generate", format, "--state-in", &state, " fox", "-n", "3"]);
        let other = if format == "bf16" { "int8" } else { "bf16" };
        for asked in ["f32", other] {
            assert_refused(
                folder,
                &["generate", format, "x", "--weights", asked],
                &format!("its weights were converted to {format}, and what was rounded away is lost: for {asked}"),
            );
        }
        assert_refused(
            folder,
            &["convert", format, "--weights", other, "--output", "again"],
            &format!("{format}: its weights are {format} already"),
        );
        assert_refused(
            folder,
            &[
                "train",
                "--init-from",
                format,
                "--task",
                "text",
                "--set",
                "task.train=a.txt",
                "--set",
                "task.length=8",
                "--run",
                "new",
            ],
            &format!(
                "its weights were converted to {format} to generate with: start from the model that it was made from"
            ),
        );
    }
    assert_eq!(names(folder), ["a.txt", "bf16", "bf16.memory", "cache", "int8", "int8.memory", "model"]);
    // Transformers read BF16, and nothing that they could take for other numbers.
    stdout_of(folder, &["export", "bf16", "--hf", "hf"]);
    let weights = |model: &str| fs::read(folder.join(model).join(WEIGHTS_FILE)).unwrap();
    assert_eq!(weights("hf"), weights("bf16"));
    let text = |model: &str| stdout_of(folder, &["generate", model, "the", "-n", "9"]);
    assert_eq!(text("hf"), text("bf16"));
    assert_refused(
        folder,
        &["export", "int8", "--hf", "hf8"],
        "converted to int8, which Transformers cannot read",
    );
    assert!(!folder.join("hf8").exists());
}

#[test]
fn a_model_without_a_tokenizer_is_converted_without_one() {
    let place = place();
    fs::remove_file(place.path().join("model").join(TOKENIZER_FILE)).unwrap();
    let line = stdout_of(place.path(), &["convert", "model", "--weights", "int8", "-o", "small"]);
    assert!(line.contains("parameters as int8, without a tokenizer") && line.contains("-> small, "), "{line}");
    assert_eq!(names(&place.path().join("small")), [CONFIG_FILE, WEIGHTS_FILE]);
    // Another tokenizer is still refused.
    let fingerprint = |model: &str| falcon_nn::tokenizer_fingerprint(&place.path().join(model)).unwrap();
    assert!(fingerprint("small").is_some());
    assert_eq!(fingerprint("small"), fingerprint("model"));
}

#[test]
fn bad_arguments_are_refused_and_nothing_is_replaced() {
    let place = place();
    let folder = place.path();
    fs::create_dir(folder.join("there")).unwrap();
    let before = fs::read(folder.join("model").join(WEIGHTS_FILE)).unwrap();
    for (words, message) in [
        (["model", "--weights", "int8", "--output", "model"], "--output model: this is the model itself"),
        (["model", "--weights", "int8", "--output", "there/../model"], "this is the model itself"),
        (["model", "--weights", "int8", "--output", "there"], "--output there: exists already"),
        (["model", "--weights", "int8", "--output", "no/such"], "no: No such file"),
        (["nothing", "--weights", "int8", "--output", "new"], "nothing: neither a run nor a model"),
        (["model", "--weights", "f32", "--output", "new"], "choose bf16 or int8"),
        (["model", "--weights", "int4", "--output", "new"], "did you mean \"int8\"?"),
    ] {
        assert_refused(folder, &[&["convert"], &words[..]].concat(), message);
    }
    let weights = folder.join("model").join(WEIGHTS_FILE);
    fs::write(&weights, &before[..before.len() / 2]).unwrap();
    assert_refused(folder, &["convert", "model", "--weights", "int8", "-o", "new"], "cut off: tensor");
    assert_eq!(names(folder), ["a.txt", "model", "there"]);
}
