//! Commands that are killed without warning, at random moments: no earlier file is lost, no half-written file is taken
//! for a complete one, and running the same command to its end gives the same result as without the kills.
//!
//! `FALCON_KILLS` is the number of kills of all tests together. The default is small enough to run with every change.

#![cfg(unix)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use falcon_lab::reproduce::addition::AdditionExperiment;
use falcon_lab::reproduce::language::LanguageExperiment;
use falcon_lab::reproduce::{Experiment, ExperimentRecord, RESULTS_FILE};
use falcon_lm::train::checkpoint_steps;
use serde_json::Value;
use tempfile::TempDir;

mod experiments;

use experiments::{TINY, corpus, result};

/// The number of kills of all tests together.
fn kills() -> usize {
    std::env::var("FALCON_KILLS").map_or(60, |number| number.parse().expect("FALCON_KILLS is a number"))
}

/// Random numbers from a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }

    fn up_to(&mut self, duration: Duration) -> Duration {
        Duration::from_micros(self.below(duration.as_micros() as u64))
    }
}

/// A folder whose subfolder `input` has the files that a command reads, and `work` those that it writes.
struct Place {
    folder: TempDir,
    args: Vec<String>,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: TempDir::new().unwrap(), args: Vec::new() };
        fs::create_dir(place.path("input")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command to its end.
    fn prepare(&self, args: &[&str]) {
        assert_success(&self.command(args).output().unwrap());
    }

    fn command(&self, args: &[impl AsRef<std::ffi::OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
        command.args(args).current_dir(self.folder.path()).env("FALCON_CACHE", self.path("work/cache"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs a command with `args` and kills it repeatedly: `share` sixtieths of all kills. `before` prepares every
    /// fresh start. After every kill, `check` is called with the result of a run without kills. When the command has
    /// been run to its end, `result` reads its result, which must be that of a run without kills.
    fn kill<T: PartialEq + Debug>(
        mut self,
        args: &[&str],
        share: usize,
        before: impl Fn(&Path, usize),
        check: impl Fn(&Path, &T),
        result: impl Fn(&Path) -> T,
    ) {
        self.args = args.iter().map(ToString::to_string).collect();
        let work = self.path("work");
        let fresh = |round: usize| {
            let _ = fs::remove_dir_all(&work);
            fs::create_dir(&work).unwrap();
            before(&work, round);
        };
        fresh(0);
        let begin = Instant::now();
        self.prepare(args);
        let (mut usual, expected) = (begin.elapsed(), result(&work));
        let wanted = (kills() * share).div_ceil(60);
        let (mut random, mut killed, mut begun, mut round) = (Random(share as u64), 0, 0, 0);
        while killed < wanted {
            fresh(round);
            round += 1;
            for again in 0..=random.below(4) {
                begun += 1;
                assert!(
                    begun <= 50 + 20 * wanted,
                    "only {killed} of {begun} runs were still going on when killed"
                );
                let mut process = self.command(&self.args).spawn().unwrap();
                let pause = random.up_to(usual);
                std::thread::sleep(pause);
                if process.try_wait().unwrap().is_some() {
                    assert_success(&process.wait_with_output().unwrap());
                    // The very first run may have been slow, which would make the pauses of later ones too long.
                    usual = if again == 0 { pause.max(usual / 2) } else { usual };
                    break;
                }
                process.kill().unwrap();
                process.wait().unwrap();
                killed += 1;
                check(&work, &expected);
            }
            self.prepare(args);
            assert!(
                result(&work) == expected,
                "{}: another result than without kills, after {killed} kills, in round {round}",
                args.join(" ")
            );
        }
        println!("{killed} kills of `falcon {}`, which takes {usual:.2?}, in {round} rounds", args[..2].join(" "));
    }
}

fn assert_success(ran: &Output) {
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
}

/// A place with a trained model of text, and text to evaluate it on.
fn place_with_model() -> Place {
    let place = Place::new();
    let text = "the quick brown fox jumps over the lazy dog, and a dog sleeps under the tree.\n";
    fs::write(place.path("input/book.txt"), text.repeat(400)).unwrap();
    fs::write(place.path("input/other.txt"), text.repeat(200).replace("dog", "cat")).unwrap();
    let sets = ["model.hidden_size=16", "model.num_heads=2", "model.num_hidden_layers=1", "task.length=32"];
    let more = ["task.train=input/book.txt", "train.steps=3", "train.batch=2", "task.eval_sequences=2"];
    let mut args = vec!["train", "--task", "text", "--run", "input/run"];
    sets.iter().chain(&more).for_each(|set| args.extend(["--set", set]));
    place.prepare(&args);
    place
}

/// An older tokenizer, which every second round has in the place of the output.
const OLD_TOKENIZER: &[u8] = br#"{"added_tokens": []}"#;

/// An older state: a safetensors file with one number.
fn old_state() -> Vec<u8> {
    let header = br#"{"positions":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat()
}

/// Writes an old file before every second round.
fn old_file(name: &'static str, old: Vec<u8>) -> impl Fn(&Path, usize) {
    move |work, round| {
        if round % 2 == 1 {
            fs::write(work.join(name), &old).unwrap();
        }
    }
}

/// Checks that a file is missing, the old one, or the complete new one.
fn check_old_or_new(name: &'static str, old: Vec<u8>) -> impl Fn(&Path, &Vec<u8>) {
    move |work, expected| match fs::read(work.join(name)) {
        Ok(found) => {
            assert!(
                found == old || found == *expected,
                "{name} is neither the old file nor the complete new one: it has {} bytes",
                found.len()
            )
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
}

fn file(name: &'static str) -> impl Fn(&Path) -> Vec<u8> {
    move |work| fs::read(work.join(name)).unwrap()
}

#[test]
fn killed_training_loses_no_checkpoint() {
    let place = Place::new();
    let args = [&["train"], &TINY[..], &["--set", "train.steps=15", "--run", "work/run"]].concat();
    // The last checkpoint never goes back to an earlier step: a kill loses no checkpoint.
    let saved = Cell::new(0);
    let check = |work: &Path, _: &_| {
        let steps = checkpoint_steps(&work.join("run")).unwrap_or_default();
        let last = steps.last().copied().unwrap_or(0);
        assert!(
            last >= saved.get(),
            "the checkpoint of step {} is lost, the last one is of step {last}",
            saved.get()
        );
        saved.set(last);
    };
    place.kill(&args, 16, |_, _| saved.set(0), check, |work| result(&work.join("run")));
}

/// The cached token files, by name.
fn tokens(work: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(work.join("cache")).into_iter().flatten().map(Result::unwrap);
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    named
        .filter(|(name, _)| name.ends_with(".tokens"))
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect()
}

#[test]
fn killed_tokenization_leaves_no_partial_cache_file() {
    let place = Place::new();
    let line = |i: usize| format!("line {i}: rain falls on hill {} and runs to a river\n", i * i % 97);
    fs::write(place.path("input/book.txt"), (0..12_000).map(line).collect::<String>()).unwrap();
    fs::write(place.path("input/valid.txt"), (0..1500).map(|i| line(3 * i)).collect::<String>()).unwrap();
    let train_tokenizer = ["tokenizer", "train", "input/valid.txt", "--size", "300", "-o", "input/tokenizer.json"];
    place.prepare(&train_tokenizer);
    let sets = ["task.train=input/book.txt", "task.valid=input/valid.txt", "task.tokenizer=input/tokenizer.json"];
    let more = ["model.hidden_size=16", "model.num_heads=2", "model.num_hidden_layers=1", "task.length=16"];
    let less = ["train.steps=1", "train.batch=1", "task.eval_sequences=1"];
    let mut args = vec!["train", "--task", "text", "--run", "work/run"];
    sets.iter().chain(&more).chain(&less).for_each(|set| args.extend(["--set", set]));
    type Files = (BTreeMap<String, Vec<u8>>, Vec<Vec<u8>>);
    let check = |work: &Path, expected: &Files| {
        for (name, found) in tokens(work) {
            assert!(expected.0[&name] == found, "{name} is not a complete file: it has {} bytes", found.len());
        }
    };
    place.kill(&args, 9, |_, _| (), check, |work| (tokens(work), result(&work.join("run")).0));
}

#[test]
fn killed_tokenizer_training_leaves_the_old_or_the_new_file() {
    let place = Place::new();
    let line = |i: usize| format!("word{} and word{} are words of line {i}\n", i * i % 997, i * 7 % 89);
    fs::write(place.path("input/book.txt"), (0..4000).map(line).collect::<String>()).unwrap();
    let name = "tokenizer.json";
    let args = ["tokenizer", "train", "input/book.txt", "--size", "600", "-o", "work/tokenizer.json"];
    place.kill(
        &args,
        7,
        old_file(name, OLD_TOKENIZER.into()),
        check_old_or_new(name, OLD_TOKENIZER.into()),
        file(name),
    );
}

#[test]
fn killed_evaluation_loses_no_result() {
    let place = place_with_model();
    let args =
        ["eval", "input/run", "-t", "input/book.txt", "-t", "input/other.txt", "-w", "32", "-o", "work/eval.json"];
    // Results are written as they come: the file has more and more of them.
    let last_count = Cell::new(0);
    let check = |work: &Path, expected: &Vec<u8>| {
        let texts = |bytes: &[u8]| -> Vec<Value> {
            let json: Value = serde_json::from_slice(bytes).expect("eval.json is complete JSON");
            let models = json.as_array().cloned().unwrap_or_else(|| json["models"].as_array().cloned().unwrap());
            models.into_iter().flat_map(|model| model["texts"].as_array().cloned().unwrap()).collect()
        };
        let found = fs::read(work.join("eval.json")).map_or(Vec::new(), |bytes| texts(&bytes));
        assert_eq!(found, texts(expected)[..found.len()], "other results than without kills");
        assert!(found.len() >= last_count.get(), "{} of {} results are left", found.len(), last_count.get());
        last_count.set(found.len());
    };
    place.kill(&args, 7, |_, _| last_count.set(0), check, file("eval.json"));
}

#[test]
fn killed_generation_leaves_the_old_or_the_new_state() {
    let place = place_with_model();
    let name = "book.memory";
    let args =
        ["generate", "input/run", "--file", "input/other.txt", "-n", "20", "--state-out", "work/book.memory"];
    place.kill(&args, 7, old_file(name, old_state()), check_old_or_new(name, old_state()), file(name));
}

/// The rows of the record in a folder, if there is one, as JSON without times and without the number of threads,
/// because the last run of an experiment uses all threads.
fn rows<E: Experiment>(folder: &Path) -> Vec<Value> {
    if !folder.join(RESULTS_FILE).exists() {
        return Vec::new();
    }
    let record =
        serde_json::to_value(ExperimentRecord::<E>::read(folder).expect("the record is complete")).unwrap();
    let untimed = |mut row: Value| {
        row["seconds"] = 0.into();
        if let Some(threads) = row.get_mut("threads") {
            *threads = 0.into();
        }
        row
    };
    let searched = record["search"]["models"].as_array().into_iter().flatten();
    let trials = searched.flat_map(|model| model["trials"].as_array().unwrap());
    record["rows"].as_array().unwrap().iter().chain(trials).cloned().map(untimed).collect()
}

/// Checks that a record has only correct rows and lost none, and that the picture next to it is complete.
fn check_record<E: Experiment>(last_count: &Cell<usize>) -> impl Fn(&Path, &Vec<Value>) {
    move |work, expected| {
        let found = rows::<E>(&work.join("out"));
        assert!(found.iter().all(|row| expected.contains(row)), "not all of {found:?}\nare in {expected:?}");
        assert!(
            found.len() >= last_count.get(),
            "{} of {} rows and trials are left",
            found.len(),
            last_count.get()
        );
        last_count.set(found.len());
        if let Ok(svg) = fs::read_to_string(work.join("out/curves.svg")) {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        }
    }
}

#[test]
fn killed_addition_experiment_loses_no_row() {
    let place = Place::new();
    let tiny = ["hidden_size=16", "num_heads=2", "num_hidden_layers=1"].map(|key| format!("--set=model.{key}"));
    let small =
        ["--set=task.max_width=2", "--set=task.beyond=3", "--set=task.eval_samples=4", "--set=train.batch=4"];
    let args = ["reproduce", "addition", "--models", "retnet,falcon-1a.3", "--seeds", "2", "--steps", "20"];
    let tiny = tiny.each_ref().map(String::as_str);
    let args = [&args[..], &tiny, &small, &["--set=train.save_every=3", "--output", "work/out"]].concat();
    let last_count = Cell::new(0);
    let result = |work: &Path| rows::<AdditionExperiment>(&work.join("out"));
    place.kill(&args, 7, |_, _| last_count.set(0), check_record::<AdditionExperiment>(&last_count), result);
}

#[test]
fn killed_language_experiment_loses_no_row_and_no_trial() {
    let place = Place::new();
    corpus(&place.path("input"));
    let tiny = ["--set=model.hidden_size=16", "--set=model.num_heads=2", "--set=model.num_hidden_layers=1"];
    let small = ["--set=task.length=16", "--set=train.batch=2", "--set=train.eval_every=2", "--steps=4"];
    let args =
        ["reproduce", "lm", "--models", "retnet", "--train", "input/train.txt", "--valid", "input/valid.txt"];
    let args = [&args[..], &tiny, &small, &["--search=2", "--output", "work/out"]].concat();
    let last_count = Cell::new(0);
    let result = |work: &Path| rows::<LanguageExperiment>(&work.join("out"));
    place.kill(&args, 7, |_, _| last_count.set(0), check_record::<LanguageExperiment>(&last_count), result);
}
