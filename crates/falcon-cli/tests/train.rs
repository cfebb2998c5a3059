//! `falcon train`: runs that finish, are interrupted, and fail. `kills.rs` has runs that are killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use falcon_lm::train::{Record, checkpoint_steps, read_metrics};
use serde_json::Value;
use tempfile::TempDir;

mod experiments;

use experiments::{TINY, result};

fn falcon() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.env("FALCON_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    command
}

fn command(run: &Path, more: &[&str]) -> Command {
    let mut command = falcon();
    command.arg("train").args(TINY).arg("--json").args(more).arg("--run").arg(run);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn train(run: &Path, more: &[&str]) -> Output {
    command(run, more).output().unwrap()
}

fn stderr_of(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

fn summary(ran: &Output) -> Value {
    assert!(ran.status.success(), "{}", stderr_of(ran));
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn a_run_ends_with_a_model_and_its_records() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let done = summary(&train(&run, &[]));
    assert_eq!((&done["outcome"], &done["step"]), (&Value::from("finished"), &Value::from(40)));
    assert_eq!(
        done["evaluations"].as_array().unwrap().len(),
        2,
        "the evaluations of the last step: validation and beyond"
    );
    assert!(done["tokens_per_second"].as_f64().unwrap() > 0.0);
    let records = read_metrics(&run.join("metrics.jsonl")).unwrap();
    let count = |f: fn(&Record) -> bool| records.iter().filter(|record| f(record)).count();
    assert_eq!(count(|record| matches!(record, Record::Train(_))), 40);
    assert_eq!(count(|record| matches!(record, Record::Eval(_))), 2 * 6, "every 7 steps and at the end");
    assert_eq!(count(|record| matches!(record, Record::Gates(_))), 6);
    let best = done["best"]["step"].as_u64().unwrap();
    let steps = checkpoint_steps(&run).unwrap();
    assert!(steps.contains(&best) && steps.contains(&40) && steps.len() <= 3, "{steps:?} with {best} the best");
    // A report on one run, and on two.
    let page = folder.path().join("page.html");
    let report = |runs: &[&Path]| falcon().arg("report").args(runs).arg("-o").arg(&page).output().unwrap();
    assert!(report(&[&run, &run]).status.success());
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.matches("<path").count() > 10 && html.contains("falcon-3a.3") && !html.contains("NaN"));
    assert!(report(&[folder.path()]).status.success(), "a report on a folder that holds runs");
    let json = falcon().args(["report", "--json", "-o"]).arg(&page).arg(&run).output().unwrap();
    let json = summary(&json);
    assert_eq!((&json["page"], json["runs"].as_array().unwrap().len()), (&page.to_str().unwrap().into(), 1));
    let missing = report(&[&folder.path().join("none")]);
    assert!(stderr_of(&missing).contains("none: not a run"), "{}", stderr_of(&missing));
    // The same command has nothing left to do, another configuration is refused, and the folder alone is enough.
    assert_eq!(summary(&train(&run, &[]))["steps_now"], 0);
    let refused = train(&run, &["--set", "train.batch=5"]);
    assert!(!refused.status.success() && stderr_of(&refused).contains("train.batch is 4 in the run, 5 here"));
    let alone = falcon().args(["train", "--json", "--run"]).arg(&run).output().unwrap();
    assert_eq!(summary(&alone)["step"], 40);
}

#[test]
fn results_do_not_depend_on_threads_or_parts() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    summary(&train(&one, &["--threads", "1"]));
    summary(&train(&two, &["--threads", "2"]));
    assert_eq!(result(&one), result(&two));
    // Accumulating over parts of a batch gives the same result up to rounding.
    let parts = folder.path().join("parts");
    summary(&train(&parts, &["--set", "train.accumulate=3"]));
    let losses = |run: &Path| -> Vec<f64> {
        let records = result(run).1.into_iter();
        records
            .filter_map(|record| if let Record::Train(record) = record { Some(record.loss) } else { None })
            .collect()
    };
    let (whole, parts) = (losses(&one), losses(&parts));
    assert!((whole[0] - parts[0]).abs() < 1e-6 && (whole[9] - parts[9]).abs() < 1e-3, "{whole:?} {parts:?}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_is_saved() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let more = ["--set", "train.steps=100000", "--set", "train.save_every=100000"];
    let mut process = command(&run, &more).spawn().unwrap();
    let metrics = run.join("metrics.jsonl");
    while !read_metrics(&metrics).is_ok_and(|records| records.len() >= 5) {
        assert!(process.try_wait().unwrap().is_none(), "the process ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    // While the run goes on, its folder is locked.
    let second = train(&run, &more);
    assert!(
        stderr_of(&second).contains("another process") && stderr_of(&second).contains(&process.id().to_string())
    );
    assert!(Command::new("kill").arg("-INT").arg(process.id().to_string()).status().unwrap().success());
    let ran = process.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(130), "{}", stderr_of(&ran));
    let done: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(done["outcome"], "interrupted");
    let saved = *checkpoint_steps(&run).unwrap().last().unwrap();
    assert_eq!(done["step"].as_u64(), Some(saved));
    assert!(
        matches!(read_metrics(&metrics).unwrap().last(), Some(Record::Stop(stop)) if stop.reason == "interrupted")
    );
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    summary(&train(&run, &[]));
    let expected = result(&run);
    for file in ["model.safetensors", "optimizer.safetensors", "progress.json", "SHA256SUMS"] {
        let path = run.join("checkpoints/step-000040").join(file);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let ran = train(&run, &[]);
        assert!(
            stderr_of(&ran).contains("damaged") && stderr_of(&ran).contains("step-000040"),
            "{file}: {}",
            stderr_of(&ran)
        );
        assert!(summary(&ran)["steps_now"].as_u64().unwrap() >= 1, "it resumes from an earlier checkpoint");
        assert_eq!(result(&run), expected, "{file}");
    }
    // A missing file, and a truncated one.
    fs::remove_file(run.join("checkpoints/step-000040/model.safetensors")).unwrap();
    summary(&train(&run, &[]));
    fs::write(run.join("checkpoints/step-000040/optimizer.safetensors"), [1, 2, 3]).unwrap();
    summary(&train(&run, &[]));
    assert_eq!(result(&run), expected);
    // Without any intact checkpoint the run cannot be resumed, and it is not silently started again.
    for step in checkpoint_steps(&run).unwrap() {
        fs::remove_file(run.join(format!("checkpoints/step-{step:06}/SHA256SUMS"))).unwrap();
    }
    for _ in 0..2 {
        let ran = train(&run, &[]);
        assert!(!ran.status.success(), "{}", stderr_of(&ran));
        assert!(stderr_of(&ran).contains("none of its checkpoints can be used"), "{}", stderr_of(&ran));
    }
}

#[test]
fn a_bad_loss_names_the_step_and_the_tensor() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let ran = train(&run, &["--set", "train.lr=1e30", "--set", "train.warmup=0", "--set", "train.spike=0"]);
    assert_eq!(ran.status.code(), Some(2));
    let stderr = stderr_of(&ran);
    assert!(
        stderr.contains("step 2: the loss is") || stderr.contains("step 2: the norm of the gradients is"),
        "{stderr}"
    );
    assert!(stderr.contains("the first bad tensor is"), "{stderr}");
    assert!(stderr.contains("checkpoints/step-000001"), "the checkpoint before is not named: {stderr}");
    let records = read_metrics(&run.join("metrics.jsonl")).unwrap();
    assert!(matches!(records.last(), Some(Record::Stop(stop)) if stop.reason.contains("first bad tensor")));
    // A spike: the loss is finite, but worse than guessing and far above its recent value.
    let run = folder.path().join("spike");
    let more =
        ["--set", "train.lr=3", "--set", "train.warmup=0", "--set", "train.spike=1.5", "--set", "train.steps=400"];
    let ran = train(&run, &more);
    let stderr = stderr_of(&ran);
    assert!(
        stderr.contains("the loss jumped to")
            && (stderr.contains("grown far beyond its size is") || stderr.contains("has grown most is")),
        "{stderr}"
    );
}

#[cfg(unix)]
#[test]
fn a_full_disk_loses_no_checkpoint() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    summary(&train(&run, &["--set", "train.keep=3"]));
    let expected = result(&run);
    fs::remove_dir_all(run.join("checkpoints/step-000040")).unwrap();
    // No file may grow beyond 8 KiB: like a full disk, this is an error of writing.
    let script = "ulimit -f 8; exec \"$@\"";
    let limited = |run: &Path| {
        let inner = command(run, &["--set", "train.keep=3"]);
        let mut outer = Command::new("bash");
        outer.args(["-c", script, "bash"]).arg(inner.get_program()).args(inner.get_args());
        outer.output().unwrap()
    };
    let ran = limited(&run);
    assert_eq!(ran.status.code(), Some(2), "{}", stderr_of(&ran));
    assert!(stderr_of(&ran).contains("File too large"), "{}", stderr_of(&ran));
    // The run is resumed when there is space again.
    summary(&train(&run, &["--set", "train.keep=3"]));
    assert_eq!(result(&run), expected);
    let fresh = folder.path().join("fresh");
    let ran = limited(&fresh);
    assert!(
        stderr_of(&ran).contains("cannot be written") && stderr_of(&ran).contains("there is no checkpoint yet"),
        "{}",
        stderr_of(&ran)
    );
}

#[test]
fn bad_arguments_are_refused_before_anything_is_written() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    for (more, expected) in [
        (["--set", "train.lrr=1"], "unknown key train.lrr; did you mean \"lr\"?"),
        (["--set", "train.steps=0"], "steps must be at least 1"),
        (["--model", "falcon-9"], "unknown preset \"falcon-9\""),
        (["--task", "adition"], "did you mean \"addition\"?"),
        (["--size", "large"], "unknown size \"large\""),
    ] {
        let ran = train(&run, &more);
        assert_eq!(ran.status.code(), Some(2), "{more:?}");
        assert!(stderr_of(&ran).contains(expected), "{more:?}: {}", stderr_of(&ran));
        assert!(!run.exists(), "{more:?} left a folder behind");
    }
    let text = |more: &[&str]| {
        falcon().args(["train", "--task", "text"]).args(more).arg("--run").arg(&run).output().unwrap()
    };
    assert!(stderr_of(&text(&[])).contains("task.train names no file"));
    let missing = text(&["--set", "task.train=nowhere.txt"]);
    assert!(stderr_of(&missing).contains("nowhere.txt: No such file"), "{}", stderr_of(&missing));
    let config = falcon().args(["train", "nowhere.toml"]).output().unwrap();
    assert!(stderr_of(&config).contains("nowhere.toml: No such file"));
    assert!(!run.exists());
    // A folder that holds something else, and a path where no folder can be.
    fs::write(folder.path().join("letter.txt"), "dear").unwrap();
    let foreign = train(folder.path(), &[]);
    assert!(stderr_of(&foreign).contains("is not a run"), "{}", stderr_of(&foreign));
    let below = train(&folder.path().join("letter.txt/run"), &[]);
    assert!(stderr_of(&below).contains("Not a directory"), "{}", stderr_of(&below));
}

#[cfg(unix)]
#[test]
fn a_closed_stdout_does_not_end_the_training() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut process = falcon();
    process.arg("train").args(TINY).args(["--set", "train.steps=6"]).arg("--run").arg(&run);
    let ran = process.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", stderr_of(&ran));
    assert_eq!(checkpoint_steps(&run).unwrap().last(), Some(&6));
    assert!(stderr_of(&ran).contains("parameters"), "no progress on stderr: {}", stderr_of(&ran));
}

#[cfg(unix)]
#[test]
fn threads_that_cannot_be_started_are_reported() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let mut bench = falcon();
    bench.args(["bench", "train", "--no-peer", "--threads", "1024"]);
    let mut generate = falcon();
    generate.args(["bench", "generate", "--measure", "--size", "micro", "--threads", "1024"]);
    for mut program in [command(&run, &["--threads", "1024"]), bench, generate] {
        // Stacks larger than the address space.
        let ran = program.env("RUST_MIN_STACK", (1u64 << 47).to_string()).output().unwrap();
        assert_eq!(ran.status.code(), Some(2), "{program:?}: {}", stderr_of(&ran));
        let stderr = stderr_of(&ran);
        assert!(
            stderr.contains("cannot start 1024 threads: ") && stderr.contains("use a smaller --threads"),
            "{stderr}"
        );
    }
    assert!(!run.exists());
}

/// The configuration file in the help is valid, and has every key.
#[test]
fn the_configuration_file_in_the_help_is_complete() {
    let folder = TempDir::new().unwrap();
    let help = falcon().args(["train", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, files) = help.split_once("A COMPLETE CONFIGURATION FILE").unwrap();
    let (files, _) = files.split_once("THE FOLDER OF A RUN").unwrap();
    let (addition, text) = files.split_once("For text").unwrap();
    let (defaults, text) = text.split_at(text.find("[task]").unwrap());
    let resolve = |file: &str| -> Value {
        let path = folder.path().join("file.toml");
        fs::write(&path, file).unwrap();
        let ran = falcon().args(["train", "--dry-run", "--json"]).arg(&path).output().unwrap();
        assert!(ran.status.success() && !stderr_of(&ran).contains('['), "{}", stderr_of(&ran));
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let assert_shown = |file: &str, keys: &Value| {
        for key in keys.as_object().unwrap().keys() {
            let start = format!("{key} = ");
            assert!(
                file.lines().any(|line| line.trim_start().starts_with(&start)),
                "the help lacks the key {key}"
            );
        }
    };
    let addition_config = resolve(addition);
    assert_shown(addition, &addition_config["task"]);
    assert_shown(addition, &addition_config["train"]);
    let text_config = resolve(text);
    assert_shown(text, &text_config["task"]);
    // The defaults for text that the help names.
    let train = &text_config["train"];
    let words = defaults.split(|c: char| c.is_whitespace() || "(),".contains(c)).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    for (name, value) in
        [("lr", "1e-3"), ("beta1", "0.9"), ("beta2", "0.95"), ("weight_decay", "0.1"), ("clip", "1")]
    {
        assert!(words.windows(2).any(|pair| pair == [name, value]), "no {name} {value} in: {defaults}");
        assert_eq!(train[name].as_f64(), value.parse().ok(), "{name}");
    }
    assert!(defaults.contains("batch 32, steps 2000") && train["batch"] == 32 && train["steps"] == 2000);
}

#[test]
fn a_dry_run_prints_the_configuration() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let json = summary(&train(&run, &["--dry-run"]));
    assert_eq!((&json["model"]["preset"], &json["model"]["size"]), (&"falcon-3a.3".into(), &"tiny".into()));
    assert_eq!((&json["model"]["hidden_size"], &json["task"]["max_width"]), (&16.into(), &2.into()));
    assert_eq!((&json["task"]["name"], &json["train"]["steps"]), (&"addition".into(), &40.into()));
    let toml = falcon().args(["train", "--dry-run"]).args(TINY).output().unwrap();
    let toml = String::from_utf8(toml.stdout).unwrap();
    assert!(toml.contains("\n[model]\npreset = \"falcon-3a.3\"") && toml.contains("\nsteps = 40\n"), "{toml}");
    assert!(!run.exists());
}

#[test]
fn text_is_learnt_from_a_file() {
    let folder = TempDir::new().unwrap();
    let book = folder.path().join("book.txt");
    fs::write(&book, "the quick brown fox jumps over the lazy dog. ".repeat(200)).unwrap();
    let config = folder.path().join("run.toml");
    let text = format!(
        "[model]\npreset = \"falcon-1a.3\"\nhidden_size = 32\nnum_heads = 2\nnum_hidden_layers = 1\nintermediate_size = 32\n\
         [task]\nname = \"text\"\ntrain = {book:?}\nlength = 64\neval_sequences = 4\n\
         [train]\nsteps = 60\nbatch = 8\nlr = 1e-2\nwarmup = 5\neval_every = 60"
    );
    fs::write(&config, text).unwrap();
    let run = folder.path().join("run");
    let ran = falcon().args(["train", "--json"]).arg(&config).arg("--run").arg(&run).output().unwrap();
    let loss = summary(&ran)["evaluations"][0]["loss"].as_f64().unwrap();
    assert!(loss < 1.0, "{loss} nats per byte; an untrained model has 5.5");
}
