//! Runs and experiments that take less than a second.

#![allow(dead_code, reason = "no test binary uses all of this file")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use falcon_lm::train::{Record, checkpoint_steps, read_metrics};

/// Runs `falcon reproduce addition` with models of a few thousand parameters.
pub fn addition(args: &[&str], output: &Path) -> Output {
    let tiny = ["hidden_size=16", "num_heads=2", "intermediate_size=16"].map(|key| format!("--set=model.{key}"));
    let small =
        ["--set=task.max_width=2", "--set=task.beyond=3", "--set=task.eval_samples=4", "--set=train.batch=4"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.args(["reproduce", "addition", "--steps", "12"]).args(tiny).args(small).args(args);
    command.arg("--output").arg(output).output().unwrap()
}

/// What a command wrote to stdout. The command must have succeeded.
pub fn stdout_of(ran: &Output) -> String {
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Sends Ctrl-C to a process as soon as `begun` holds, and returns how it ended.
pub fn interrupt(mut process: Child, begun: impl Fn() -> bool) -> Output {
    let start = Instant::now();
    while !begun() {
        assert!(process.try_wait().unwrap().is_none(), "the process ended by itself");
        if start.elapsed() > Duration::from_secs(120) {
            process.kill().unwrap();
            panic!("the process has not begun");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").arg("-INT").arg(process.id().to_string()).status().unwrap().success());
    process.wait_with_output().unwrap()
}

/// Runs `falcon reproduce lm` in a folder filled by [`corpus`], with models of a few thousand parameters.
pub fn lm(args: &[&str], folder: &Path) -> Output {
    let tiny = ["hidden_size=16", "num_heads=2", "intermediate_size=16"].map(|key| format!("--set=model.{key}"));
    let small = ["--set=task.length=16", "--set=train.batch=2", "--set=train.eval_every=6", "--steps=12"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.current_dir(folder).env("FALCON_CACHE", folder.join("cache"));
    command.args(["reproduce", "lm", "--train", "train.txt", "--valid", "valid.txt"]);
    command.args(tiny).args(small).args(args).output().unwrap()
}

/// Writes texts, and two questions of every benchmark.
pub fn corpus(folder: &Path) {
    let words = ["rain", "falls", "on", "the", "hill", "and", "runs", "to", "a", "river"];
    let text = |from: usize, count: usize| -> String {
        (from..from + count).map(|i| words[i * i % 7 + i % 4]).collect::<Vec<_>>().join(" ")
    };
    for (name, from, count) in [("train.txt", 0, 4000), ("valid.txt", 7, 300)] {
        fs::write(folder.join(name), text(from, count)).unwrap();
    }
    fs::write(folder.join("wiki.txt"), format!(" = Rain = \n {} \n", text(11, 100))).unwrap();
    let eval = folder.join("eval");
    fs::create_dir_all(&eval).unwrap();
    // Two questions with different answers: each is the example of the other.
    let write_two = |name: &str, line: &str, other: [&str; 2]| {
        fs::write(eval.join(format!("{name}.jsonl")), [line, &line.replace(other[0], other[1])].join("\n"))
            .unwrap();
    };
    let question = r#"{"question": "rain falls", "context": "on the", "choices": ["hill", "river"], "gold": 0}"#;
    for name in ["piqa", "hellaswag", "arc_easy", "arc_challenge", "openbookqa", "social_iqa", "sciq"] {
        write_two(name, question, ["0}", "1}"]);
    }
    write_two(
        "winogrande",
        r#"{"contexts": ["rain on", "a river"], "continuation": "runs", "gold": 1}"#,
        ["1}", "0}"],
    );
    write_two("lambada_openai", r#"{"context": "rain falls on the", "target": "hill"}"#, ["hill", "river"]);
}

/// Options of a model that takes milliseconds per step.
pub const TINY: [&str; 26] = [
    "--set",
    "model.hidden_size=16",
    "--set",
    "model.num_heads=2",
    "--set",
    "model.num_hidden_layers=1",
    "--set",
    "model.intermediate_size=16",
    "--set",
    "task.max_width=2",
    "--set",
    "task.beyond=3",
    "--set",
    "task.widths=adaptive",
    "--set",
    "task.eval_samples=4",
    "--set",
    "train.batch=4",
    "--set",
    "train.steps=40",
    "--set",
    "train.warmup=5",
    "--set",
    "train.eval_every=7",
    "--set",
    "train.save_every=1",
];

/// The last checkpoint and the records of a run, without times.
pub fn result(run: &Path) -> (Vec<Vec<u8>>, Vec<Record>) {
    let last = *checkpoint_steps(run).unwrap().last().unwrap();
    let folder = run.join(format!("checkpoints/step-{last:06}"));
    let files = ["model.safetensors", "optimizer.safetensors", "progress.json", "config.json"];
    let records =
        read_metrics(&run.join("metrics.jsonl")).unwrap().into_iter().filter_map(|record| match record {
            Record::Train(record) => Some(Record::Train(falcon_lm::train::TrainRecord { seconds: 0.0, ..record })),
            Record::Eval(record) => Some(Record::Eval(falcon_lm::train::EvalRecord { seconds: 0.0, ..record })),
            Record::Gates(record) => Some(Record::Gates(record)),
            Record::Start(_) | Record::Stop(_) => None,
        });
    (files.iter().map(|file| fs::read(folder.join(file)).unwrap()).collect(), records.collect())
}
