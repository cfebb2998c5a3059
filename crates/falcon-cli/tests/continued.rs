//! `falcon reproduce` resumes from records: rows that they have are not trained again, on whichever machine they were
//! made.

use std::fs;
use std::path::Path;
use std::process::Output;

use falcon_lab::reproduce::RESULTS_FILE;
use falcon_lab::reproduce::addition::AdditionRecord;
use falcon_lab::reproduce::language::LanguageRecord;
use serde_json::Value;
use tempfile::TempDir;

mod experiments;

use experiments::{addition, corpus, lm, stdout_of};

/// What a command wrote to stderr. The command must have succeeded.
fn stderr_of(ran: &Output) -> String {
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

/// Copies the record alone to another folder.
fn copy_record(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::copy(from.join(RESULTS_FILE), to.join(RESULTS_FILE)).unwrap();
}

/// Edits a record as JSON.
fn edit(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join(RESULTS_FILE);
    let mut record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut record);
    fs::write(path, serde_json::to_vec_pretty(&record).unwrap()).unwrap();
}

fn runs(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("config.toml").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_record_alone_is_enough_to_resume() {
    let folder = TempDir::new().unwrap();
    let [first, here, other] = ["first", "here", "other"].map(|name| folder.path().join(name));
    stderr_of(&addition(&["--models", "retnet,falcon-1a.3+train.steps=6"], &first));
    edit(&first, |record| {
        for row in record["rows"].as_array_mut().unwrap() {
            row["origin"]["machine"] = "a machine elsewhere, 3 cores".into();
        }
    });
    copy_record(&first, &here);
    // A new row between them: rows are in the order of --models, wherever they come from.
    let models = ["--models", "retnet,deltanet,falcon-1a.3+train.steps=6"];
    let stderr = stderr_of(&addition(&models, &here));
    let taken = format!(
        "2 runs taken from {}, and not trained again: retnet, seed 0; falcon-1a.3 train.steps=6, seed 0",
        here.join(RESULTS_FILE).display()
    );
    assert!(stderr.contains(&taken), "{stderr}");
    assert_eq!(runs(&here), ["deltanet-s0"]);
    let [before, now] = [&first, &here].map(|folder| AdditionRecord::read(folder).unwrap());
    let names: Vec<&str> = now.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["retnet", "deltanet", "falcon-1a.3 train.steps=6"]);
    assert_eq!(
        [&now.rows[0], &now.rows[2]],
        [&before.rows[0], &before.rows[1]],
        "rows that are taken do not change"
    );
    assert_eq!(now.planned, None);
    assert!(now.rows[2].best_step <= 6);
    let page = fs::read_to_string(here.join("table.md")).unwrap();
    let elsewhere = "a machine elsewhere, 3 cores (retnet, falcon-1a.3 train.steps=6); ";
    assert!(page.contains("Trained on 2 machines: ") && page.contains(elsewhere), "{page}");
    // With another number of steps, it is still the paper's model.
    let line = |name: &str| page.lines().find(|line| line.starts_with(&format!("| {name} "))).unwrap().to_string();
    assert!(line("falcon-1a.3 train.steps=6").ends_with("| 99.8 | 85.9 | 100 / 69 |"), "{page}");
    // Records are given by a folder and by a file; a row is taken from the first that has it.
    let json = here.join(RESULTS_FILE);
    let from = ["--continue-from", first.to_str().unwrap(), "--continue-from", json.to_str().unwrap()];
    let stderr = stderr_of(&addition(&[&models[..], &from].concat(), &other));
    assert!(stderr.contains("1 run taken from") && stderr.contains("deltanet, seed 0\n"), "{stderr}");
    assert_eq!(AdditionRecord::read(&other).unwrap().rows, now.rows);
    assert_eq!(runs(&other), [""; 0]);
}

#[test]
fn rows_of_other_runs_are_trained_again() {
    let folder = TempDir::new().unwrap();
    let [first, here] = ["first", "here"].map(|name| folder.path().join(name));
    stderr_of(&addition(&["--models", "retnet"], &first));
    let from = ["--models", "retnet", "--continue-from", first.to_str().unwrap()];
    let assert_trained_again = |more: &[&str], reason: &str| {
        let _ = fs::remove_dir_all(&here);
        let stderr = stderr_of(&addition(&[&from, more].concat(), &here));
        assert!(stderr.contains(reason) && stderr.contains("it is trained again"), "{more:?}: {stderr}");
        assert!(runs(&here).contains(&"retnet-s0".to_string()), "{more:?}: {stderr}");
    };
    let different = "was trained with another configuration or on other data";
    assert_trained_again(&["--set", "train.lr=1e-3"], different);
    assert_trained_again(&["--set", "task.eval_samples=5"], different);
    // A new seed is no reason for a note.
    let _ = fs::remove_dir_all(&here);
    let stderr = stderr_of(&addition(&[&from[..], &["--seeds", "2"]].concat(), &here));
    assert!(stderr.contains("1 run taken") && !stderr.contains("again:\n"), "{stderr}");
    assert_eq!(runs(&here), ["retnet-s1"]);
    edit(&first, |record| record["samples"] = 7.into());
    assert_trained_again(&[], "was not evaluated in the way that is asked for now");
    edit(&first, |record| record["rows"][0]["name"] = "mamba2".into());
    assert_trained_again(&["--models", "mamba2"], different);
    // An invalid fingerprint, and a folder without a record.
    edit(&first, |record| record["rows"][0]["origin"]["fingerprint"] = "beef".into());
    let bad = addition(&from, &here);
    let stderr = String::from_utf8_lossy(&bad.stderr);
    assert_eq!(bad.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("results.json") && stderr.contains("64 hexadecimal digits"), "{stderr}");
    let none = addition(&["--models", "retnet", "--continue-from", "nowhere"], &here);
    assert!(String::from_utf8_lossy(&none.stderr).contains("nowhere/results.json"));
}

/// Records of earlier versions have no fingerprints. Presets are taken from them if the record says how they were
/// trained.
#[test]
fn rows_without_fingerprints_are_taken_where_one_can_be_derived() {
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("first");
    stderr_of(&addition(&["--models", "retnet,deltanet,deltanet+model.conv_size=3"], &first));
    edit(&first, |record| {
        for row in record["rows"].as_array_mut().unwrap() {
            row.as_object_mut().unwrap().remove("origin").unwrap();
        }
    });
    let from = ["--continue-from", first.to_str().unwrap()];
    let resume = |name: &str, more: &[&str]| {
        let here = folder.path().join(name);
        let stderr = stderr_of(&addition(&[&from, more].concat(), &here));
        (stderr, runs(&here))
    };
    let (stderr, trained) = resume("same", &["--models", "deltanet,deltanet+model.conv_size=3,retnet"]);
    assert_eq!(trained, ["deltanet-conv_size=3-s0"], "{stderr}");
    assert!(
        stderr.contains("conv_size=3, seed 0: the row in") && stderr.contains("has no fingerprint"),
        "{stderr}"
    );
    let record = AdditionRecord::read(&folder.path().join("same")).unwrap();
    assert!(record.rows.iter().all(|row| row.origin.is_some()), "a fingerprint that was derived is recorded");
    // The first row of the record has this value anyway, but other rows do not.
    let (stderr, trained) = resume("set", &["--models", "deltanet", "--set", "model.conv_size=0"]);
    assert_eq!(trained, ["deltanet-s0"], "{stderr}");
    // The same command, but another configuration of the first row.
    edit(&first, |record| {
        record["config"] = record["config"].as_str().unwrap().replace("\nbatch = 4\n", "\nbatch = 5\n").into();
    });
    let (stderr, trained) = resume("other", &["--models", "deltanet"]);
    assert_eq!(trained, ["deltanet-s0"], "{stderr}");
    assert!(stderr.contains("none can be derived from the record"), "{stderr}");
}

/// Rows whose run folders are on another machine are only in the record, which an experiment without them must not
/// overwrite.
#[test]
fn rows_that_only_a_record_has_are_kept() {
    let folder = TempDir::new().unwrap();
    let [first, here] = ["first", "here"].map(|name| folder.path().join(name));
    stderr_of(&addition(&["--models", "retnet,deltanet"], &first));
    copy_record(&first, &here);
    for _ in 0..2 {
        let stderr = stderr_of(&addition(&["--models", "mamba2,retnet"], &here));
        assert!(stderr.contains("1 run taken"), "{stderr}");
        let kept = fs::read(here.join("results.1.json")).unwrap();
        assert_eq!(kept, fs::read(first.join(RESULTS_FILE)).unwrap());
        assert!(!here.join("results.2.json").exists());
        copy_record(&first, &here);
    }
    // No copy is needed for rows that have a folder.
    stderr_of(&addition(&["--models", "retnet"], &first));
    assert!(!first.join("results.1.json").exists());
    // The record of another experiment is not overwritten either.
    fs::write(here.join(RESULTS_FILE), "{\"rows\": 3}").unwrap();
    let other = addition(&["--models", "mamba2"], &here);
    let stderr = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("choose another folder by --output"), "{stderr}");
    assert_eq!(fs::read(here.join(RESULTS_FILE)).unwrap(), b"{\"rows\": 3}");
}

/// The recorded experiment at 32 digits can be resumed from its record alone, on any machine: the configurations that
/// `reproduce` makes today have the fingerprints of the recorded rows.
#[test]
fn the_record_at_32_digits_can_be_resumed() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/addition/authors");
    let folder = TempDir::new().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.args(["reproduce", "addition", "--scale", "paper", "--models", "falcon-3a.3,falcon-1a.3"]);
    command.arg("--continue-from").arg(&recorded).arg("--output").arg(folder.path());
    let stderr = stderr_of(&command.output().unwrap());
    assert!(stderr.contains("2 runs taken from"), "{stderr}");
    let recorded = AdditionRecord::read(&recorded).unwrap();
    let resumed = AdditionRecord::read(folder.path()).unwrap();
    assert_eq!(resumed.rows.len(), 2);
    for row in &resumed.rows {
        assert!(recorded.rows.contains(row), "{} is not the recorded row", row.name);
    }
}

#[test]
fn a_search_and_its_rows_are_taken_from_a_record() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    let at = |name: &str| folder.path().join(name);
    let args = ["--models", "retnet,falcon-1a.3+train.lr=2e-3", "--search=6", "--data", "eval", "--output"];
    stderr_of(&lm(&[&args[..], &["first"]].concat(), folder.path()));
    let first = LanguageRecord::read(&at("first")).unwrap();
    // The same texts in another folder.
    fs::create_dir(at("moved")).unwrap();
    for name in ["train.txt", "valid.txt", "wiki.txt"] {
        fs::rename(at(name), at("moved").join(name)).unwrap();
    }
    fs::rename(at("eval"), at("moved/eval")).unwrap();
    let moved = at("moved");
    let from = ["out", "--continue-from", "../first"];
    let stderr = stderr_of(&lm(&[&args[..], &from].concat(), &moved));
    assert!(stderr.contains("8 of 8 trials of the search taken from ../first/results.json"), "{stderr}");
    assert!(stderr.contains("2 runs taken from ../first/results.json"), "{stderr}");
    assert!(!moved.join("out/search").exists() && runs(&moved.join("out")).is_empty());
    let now = LanguageRecord::read(&moved.join("out")).unwrap();
    assert_eq!((&now.rows, &now.search), (&first.rows, &first.search));
    // More evaluations than the record has, and fewer.
    let wiki = [&args[..], &["wiki"], &from[1..], &["--text", "wiki.txt"]].concat();
    let stderr = stderr_of(&lm(&wiki, &moved));
    assert!(stderr.contains("8 of 8 trials") && stderr.contains("was not evaluated in the way"), "{stderr}");
    assert_eq!(runs(&moved.join("wiki")).len(), 2);
    let less = [&args[..], &["less"], &from[1..], &["--shots", "1"]].concat();
    let stderr = stderr_of(&lm(&less, &moved));
    assert!(stderr.contains("2 runs taken"), "{stderr}");
    let less = LanguageRecord::read(&moved.join("less")).unwrap();
    assert!(
        less.rows
            .iter()
            .all(|row| row.measured.benchmarks.len() == 9 && row.measured.benchmarks.iter().all(|b| b.shots == 1))
    );
    // Another text of the same name.
    fs::write(moved.join("valid.txt"), "snow lies on the field ".repeat(40)).unwrap();
    let stderr = stderr_of(&lm(&[&args[..], &["snow"], &from[1..]].concat(), &moved));
    assert!(!stderr.contains("trials of the search taken") && stderr.contains("on other data"), "{stderr}");
}

/// Trials are recorded before the first row is done.
#[test]
fn trials_are_recorded_as_they_end() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    // The search succeeds, but the only row cannot start.
    fs::create_dir_all(folder.path().join("out/retnet-s0")).unwrap();
    fs::write(folder.path().join("out/retnet-s0/config.toml"), "not a run").unwrap();
    let args = ["--models", "retnet", "--tokenizer", "bytes", "--search=2", "--output", "out"];
    assert_eq!(lm(&args, folder.path()).status.code(), Some(2));
    let record = LanguageRecord::read(&folder.path().join("out")).unwrap();
    assert_eq!((record.rows.len(), record.planned), (0, Some(1)));
    assert_eq!(record.search.as_ref().unwrap().models[0].trials.len(), 6);
    let page = fs::read_to_string(folder.path().join("out/table.md")).unwrap();
    assert!(
        page.contains("**Partial: 0 of 1 runs are done.**") && page.contains("| search: validation loss"),
        "{page}"
    );
    let args =
        ["--models", "retnet", "--tokenizer", "bytes", "--search=2", "--continue-from", "out", "--output", "new"];
    let ran = lm(&args, folder.path());
    assert!(stderr_of(&ran).contains("6 of 6 trials") && stdout_of(&ran).contains("| retnet "));
}
