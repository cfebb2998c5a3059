//! `falcon export`: the files that it writes, and its errors. The Python tests load them with Transformers.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use burn::tensor::Device;
use falcon_lm::data::{TOKENIZER_FILE, Tokenizer};
use falcon_nn::{ModelConfig, WEIGHTS_FILE};
use serde_json::Value;
use tempfile::TempDir;

fn export(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_falcon")).arg("export").args(words).current_dir(folder).output().unwrap()
}

fn model(folder: &Path, vocabulary: usize) {
    let config = ModelConfig::preset("falcon-1a.3", "micro", vocabulary).unwrap();
    config.init(0, &Device::flex()).unwrap().save(&folder.join("model")).unwrap();
}

fn read(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

#[test]
fn an_export_has_weights_configuration_tokenizer_and_code() {
    let folder = TempDir::new().unwrap();
    model(folder.path(), 257);
    Tokenizer::bytes().save(&folder.path().join("model").join(TOKENIZER_FILE)).unwrap();
    let ran = export(folder.path(), &["model", "--hf", "hf", "--json"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let summary: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&summary["folder"], &summary["tokenizer"]), (&"hf".into(), &true.into()));
    let hf = folder.path().join("hf");
    let config = read(&hf, "config.json");
    assert_eq!(config["model_type"], "falcon_fwa");
    assert_eq!(config["auto_map"]["AutoModelForCausalLM"], "modeling_falcon_fwa.FalconFwaForCausalLM");
    assert_eq!((&config["eos_token_id"], &config["mixer"]), (&256.into(), &"falcon-1a".into()));
    assert_eq!(read(&hf, "tokenizer_config.json")["eos_token"], "<|endoftext|>");
    let weights = |folder: &str| fs::read(folder_of(&hf, folder).join(WEIGHTS_FILE)).unwrap();
    assert_eq!(weights("hf"), weights("model"));
    assert!(hf.join("configuration_falcon_fwa.py").is_file() && hf.join("modeling_falcon_fwa.py").is_file());
    // The folder is a model like any other, and no temporary folder is left.
    let ran = export(folder.path(), &["hf", "--hf", "again"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["again", "hf", "model"]);
}

fn folder_of(hf: &Path, name: &str) -> std::path::PathBuf {
    hf.parent().unwrap().join(name)
}

#[test]
fn a_model_without_a_tokenizer_is_exported_without_one() {
    let folder = TempDir::new().unwrap();
    model(folder.path(), 14);
    let ran = export(folder.path(), &["model", "--hf", "hf"]);
    assert!(ran.status.success());
    assert!(String::from_utf8_lossy(&ran.stdout).contains("without a tokenizer"));
    assert!(!folder.path().join("hf").join(TOKENIZER_FILE).exists());
}

#[test]
fn bad_arguments_are_refused_and_nothing_is_replaced() {
    let folder = TempDir::new().unwrap();
    model(folder.path(), 14);
    for (words, message) in [
        (["model", "--hf", "model"], "--hf model: exists already"),
        (["nothing", "--hf", "hf"], "nothing: neither a run nor a model"),
        (["model", "--hf", "no/such/hf"], "no/such: No such file"),
    ] {
        let ran = export(folder.path(), &words);
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
    assert!(!folder.path().join("hf").exists());
}
