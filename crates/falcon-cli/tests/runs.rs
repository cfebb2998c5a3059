//! Runs that are resumed, extended, edited, moved, removed, and started from other models.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use falcon_lm::train::{Record, checkpoint_steps, read_metrics};
use serde_json::Value;
use tempfile::TempDir;

/// A model that takes milliseconds per step.
const TINY: &str = "--set model.hidden_size=16 --set model.num_heads=2 --set model.num_hidden_layers=1 \
                    --set model.intermediate_size=16 --set train.warmup=2 --set train.eval_every=10 \
                    --set train.save_every=5 --threads 1";
const SUMS: &str = "--set task.max_width=2 --set task.beyond=3 --set task.eval_samples=4 --batch 4";

fn falcon(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.current_dir(folder).env("FALCON_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    command
}

/// `falcon train` with arguments that are separated by spaces.
fn train(folder: &Path, arguments: &str) -> Output {
    falcon(folder).arg("train").args(arguments.split_whitespace()).output().unwrap()
}

fn stderr_of(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

/// The summary of `falcon train --json`, which must succeed.
fn train_json(folder: &Path, arguments: &str) -> Value {
    let ran = train(folder, &format!("{arguments} --json"));
    assert!(ran.status.success(), "{arguments}: {}", stderr_of(&ran));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// The error of a run that was refused.
fn refused(folder: &Path, arguments: &str) -> String {
    let ran = train(folder, arguments);
    assert_eq!(ran.status.code(), Some(2), "{arguments}: {}", stderr_of(&ran));
    stderr_of(&ran)
}

/// The learning rates of all steps.
fn rates(run: &Path) -> Vec<f64> {
    let records = read_metrics(&run.join("metrics.jsonl")).unwrap();
    records.into_iter().filter_map(|r| if let Record::Train(r) = r { Some(r.lr) } else { None }).collect()
}

#[test]
fn a_run_is_extended_and_adjusted() {
    let folder = TempDir::new().unwrap();
    let (root, run) = (folder.path(), folder.path().join("run"));
    train_json(root, &format!("{TINY} {SUMS} --steps 20 --lr 1e-2 --run run"));
    // Only keys that are given are compared, not the defaults of the others.
    assert_eq!(train_json(root, "--run run")["steps_now"], 0);
    assert_eq!(train_json(root, "--run run --set train.keep=3")["steps_now"], 0);
    let ran = train(root, "--run run --steps 40");
    let text = stderr_of(&ran);
    assert!(ran.status.success() && text.contains("from step 21 on, train.steps is 40; it was 20"), "{text}");
    // 18 steps after the warm-up of 2, in the middle of the cosine: between the highest learning rate and the lowest.
    let all = rates(&run);
    assert_eq!(all.len(), 40);
    assert!(all[19] < 1e-3 && all[20] > 5e-3 && all[39] < 1e-3, "{all:?}");
    let shown = [format!("{:.2e}", all[19]), format!("{:.2e}", all[20]), format!("{:.2e}", all[39])];
    assert!(shown.iter().all(|rate| text.contains(rate)), "{shown:?}: {text}");
    assert!(fs::read_to_string(run.join("config.toml")).unwrap().contains("\nsteps = 40\n"));
    // Keys that decide the data or the shape of the model cannot change, and neither can steps that are done.
    for (given, words) in [
        ("--batch 8", "train.batch is 4 in the run, 8 here"),
        ("--set train.seed=1", "train.seed is 0 in the run, 1 here"),
        ("--set model.num_hidden_layers=2", "model.num_hidden_layers is 1 in the run, 2 here"),
        ("--set task.max_width=3", "task.max_width is 2 in the run, 3 here"),
        ("--model retnet", "whose model.preset is \"falcon-3a.3\", not \"retnet\""),
        ("--task text", "whose task.name is \"addition\", not \"text\""),
        ("--steps 30", "the run has done 40 steps"),
    ] {
        let text = refused(root, &format!("--run run {given}"));
        assert!(text.contains(words), "{given}: {text}");
    }
    assert_eq!(checkpoint_steps(&run).unwrap().last(), Some(&40));
}

/// The run in the default folder is not changed by arguments that were meant for a new run.
#[test]
fn the_run_in_the_default_folder_is_resumed_unchanged() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    train_json(root, &format!("{TINY} {SUMS} --steps 10"));
    assert_eq!(train_json(root, "")["steps_now"], 0);
    let text = refused(root, "--lr 1e-2");
    assert!(text.contains("train.lr is 0.0005 in the run, 0.01 here"), "{text}");
    assert!(text.contains("falcon train --run runs/addition-falcon-3a.3 --set KEY=VALUE"), "{text}");
}

#[test]
fn an_edited_configuration_is_used_or_refused() {
    let folder = TempDir::new().unwrap();
    let (root, file) = (folder.path(), folder.path().join("run/config.toml"));
    train_json(root, &format!("{TINY} {SUMS} --steps 10 --run run"));
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, before.replace("\nsteps = 10\n", "\nsteps = 15\n")).unwrap();
    let ran = train(root, "--run run");
    assert!(stderr_of(&ran).contains("from step 11 on, train.steps is 15; it was 10"), "{}", stderr_of(&ran));
    fs::write(&file, before.replace("\nhidden_size = 16\n", "\nhidden_size = 32\n")).unwrap();
    let text = refused(root, "--run run --steps 20");
    assert!(
        text.contains("config.toml: edited since the last checkpoint")
            && text.contains("model.hidden_size is 16 in the run, 32 here"),
        "{text}"
    );
}

#[cfg(unix)]
#[test]
fn a_folder_that_disappears_is_an_error() {
    let folder = TempDir::new().unwrap();
    let (root, run) = (folder.path(), folder.path().join("run"));
    let arguments = format!("train {TINY} {SUMS} --steps 100000 --run run");
    for elsewhere in ["moved", "gone"] {
        let mut command = falcon(root);
        let process = command.args(arguments.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = process.spawn().unwrap();
        while !checkpoint_steps(&run).is_ok_and(|steps| !steps.is_empty()) {
            assert!(process.try_wait().unwrap().is_none(), "the process ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::rename(&run, root.join(elsewhere)).unwrap();
        let ran = process.wait_with_output().unwrap();
        assert_eq!(ran.status.code(), Some(2), "{}", stderr_of(&ran));
        let messages = ["was removed, moved or replaced during training", "No such file"];
        assert!(messages.iter().any(|message| stderr_of(&ran).contains(message)), "{}", stderr_of(&ran));
        let _ = fs::remove_dir_all(&run);
    }
    // A folder that was moved still is a run.
    let last = *checkpoint_steps(&root.join("moved")).unwrap().last().unwrap();
    let summary = train_json(root, &format!("--run moved --steps {}", last + 3));
    assert_eq!(summary["step"], last + 3);
}

#[test]
fn files_of_the_user_survive_pruning() {
    let folder = TempDir::new().unwrap();
    let (root, checkpoints) = (folder.path(), folder.path().join("run/checkpoints"));
    train_json(root, &format!("{TINY} {SUMS} --steps 5 --set train.save_every=1 --run run"));
    let old = checkpoints.join("step-000004");
    fs::write(old.join("notes.txt"), "the best so far").unwrap();
    let mine = checkpoints.join("step-000003");
    let _ = fs::remove_dir_all(&mine);
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("plot.png"), "picture").unwrap();
    train_json(root, "--run run --steps 15");
    assert_eq!(fs::read_to_string(old.join("notes.txt")).unwrap(), "the best so far");
    assert!(!old.join("model.safetensors").exists(), "the files of the run are removed");
    assert_eq!(fs::read_to_string(mine.join("plot.png")).unwrap(), "picture");
    let steps = checkpoint_steps(&folder.path().join("run")).unwrap();
    assert!(!steps.contains(&3) && !steps.contains(&4), "{steps:?}");
}

/// Sentences of few words, so that a small vocabulary is enough.
fn write_book(folder: &Path) {
    let text = "the quick brown fox jumps over the lazy dog. a dog sleeps; the fox is gone.\n".repeat(100);
    fs::write(folder.join("book.txt"), text).unwrap();
}

const TEXT: &str =
    "--task text --set task.train=book.txt --set task.length=32 --set task.eval_sequences=4 --batch 4";

#[test]
fn a_run_starts_from_another_model() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    write_book(root);
    train_json(root, &format!("{TINY} {TEXT} --steps 60 --lr 1e-2 --run first"));
    let train_tokenizer = "tokenizer train book.txt --size 280 -o words.json";
    assert!(falcon(root).args(train_tokenizer.split(' ')).output().unwrap().status.success());
    let loss = |run: &str, step: u64| -> f64 {
        let records = read_metrics(&root.join(run).join("metrics.jsonl")).unwrap();
        let at = |record: &Record| match record {
            Record::Train(record) if record.step == step => Some(record.loss),
            _ => None,
        };
        records.iter().find_map(at).unwrap()
    };
    // The same vocabulary: training continues with the weights.
    train_json(root, &format!("{TEXT} --init-from first --steps 3 --set train.warmup=1 --run same"));
    assert!(loss("same", 1) < 0.7 * loss("first", 1), "{} and {}", loss("same", 1), loss("first", 1));
    // Another vocabulary: the embeddings of bytes are kept, those of words are new.
    let ran =
        train(root, &format!("{TEXT} --init-from first --steps 3 --set task.tokenizer=words.json --run other"));
    assert!(ran.status.success(), "{}", stderr_of(&ran));
    assert!(
        stderr_of(&ran).contains("257 of 280 rows of the embedding are those of its tokens"),
        "{}",
        stderr_of(&ran)
    );
    assert!(stderr_of(&ran).contains("23 new tokens, such as \""), "{}", stderr_of(&ran));
    // Addition has a vocabulary of its own.
    let ran = train(root, &format!("--task addition {SUMS} --init-from first --steps 3 --run sums"));
    assert!(ran.status.success(), "{}", stderr_of(&ran));
    // A run that was killed right after its start no longer needs the model it started from.
    fs::rename(root.join("first"), root.join("elsewhere")).unwrap();
    fs::remove_dir_all(root.join("same/checkpoints/step-000003")).unwrap();
    assert_eq!(train_json(root, "--run same")["step"], 3);
    for (arguments, words) in [
        ("--init-from nowhere", "nowhere: neither a run nor a model"),
        ("--init-from elsewhere --set model.hidden_size=32", "has shape [257, 16] there and [257, 32]"),
        ("--init-from elsewhere --set model.num_hidden_layers=2", "it has no model.layers.1."),
        ("--init-from elsewhere --model retnet", "cannot be used with"),
    ] {
        let text = refused(root, &format!("{TEXT} {arguments} --run refused"));
        assert!(text.contains(words), "{arguments}: {text}");
    }
}

/// A run needs only its folder: neither the place where it was started nor the file of its tokenizer.
#[test]
fn a_run_is_portable() {
    let folder = TempDir::new().unwrap();
    let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
    fs::create_dir(&here).unwrap();
    fs::create_dir(&there).unwrap();
    write_book(&here);
    let train_tokenizer = "tokenizer train book.txt --size 280 -o words.json";
    assert!(falcon(&here).args(train_tokenizer.split(' ')).output().unwrap().status.success());
    train_json(&here, &format!("{TINY} {TEXT} --set task.tokenizer=words.json --steps 10 --run run"));
    fs::remove_file(here.join("words.json")).unwrap();
    fs::rename(here.join("run"), there.join("moved")).unwrap();
    assert_eq!(train_json(&there, "--run moved --steps 20")["step"], 20);
    // Text that has moved is given by its new name and recognised by its content.
    fs::rename(here.join("book.txt"), there.join("tome.txt")).unwrap();
    assert_eq!(
        train_json(folder.path(), "--run there/moved --steps 30 --set task.train=there/tome.txt")["step"],
        30
    );
    fs::write(there.join("other.txt"), "another story altogether. ".repeat(200)).unwrap();
    let text = refused(&there, "--run moved --steps 40 --set task.train=other.txt");
    assert!(text.contains("has changed since the run began"), "{text}");
}

/// The estimate is accurate enough to decide whether a run fits into memory.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_estimated_and_checked() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    write_book(root);
    for (index, (model, size)) in [
        ("falcon-1a.3", "--set task.length=256 --batch 4"),
        ("transformer", "--set task.length=256 --batch 8"),
        ("mamba2", "--set task.length=256 --batch 4"),
        ("falcon-1.3", "--size small --set task.length=64 --batch 2"),
    ]
    .into_iter()
    .enumerate()
    {
        let book = "--task text --set task.train=book.txt --set task.eval_sequences=1 --steps 2 --threads 1";
        let arguments = format!("{book} --model {model} {size}");
        let estimate =
            train_json(root, &format!("{arguments} --dry-run"))["memory"]["total"].as_u64().unwrap() as f64;
        let peak =
            train_json(root, &format!("{arguments} --run run-{index}"))["peak_memory"].as_u64().unwrap() as f64;
        assert!((0.7..1.6).contains(&(estimate / peak)), "{model}: {estimate:.3e} estimated, {peak:.3e} measured");
    }
    let text = refused(root, "--batch 1048576 --run run");
    assert!(text.contains("this run needs about") && text.contains("--no-memory-check"), "{text}");
    let text = refused(root, "--set task.max_width=4096 --set task.beyond=4096 --run run");
    assert!(text.contains("activations") && text.contains("data"), "{text}");
    assert!(!root.join("run").exists());
    let shown = train(root, "--size 340m --dry-run");
    assert!(String::from_utf8_lossy(&shown.stdout).starts_with("# memory: about "), "{}", stderr_of(&shown));
}

/// A terminal shows few lines, cut to its width, and every evaluation once.
#[cfg(target_os = "linux")]
#[test]
fn progress_fits_the_terminal() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    write_book(root);
    let program = env!("CARGO_BIN_EXE_falcon");
    let command = format!("stty rows 24 cols 60; {program} train {TINY} {TEXT} --steps 20 --run run");
    let mut script = Command::new("script");
    let ran = script.args(["-qec", &command, "/dev/null"]).current_dir(root);
    let ran = ran.env("FALCON_CACHE", root.join("cache")).output().unwrap();
    assert!(ran.status.success());
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let plain = console::strip_ansi_codes(&text);
    let title = plain.split("parameters").next().unwrap();
    assert!(title.ends_with("falcon-3a.3: 6,474 "), "{title:?}");
    assert!(plain.contains("perplexity") && !plain.contains("bits/byte"), "cut at 60 columns: {plain}");
    assert_eq!(plain.matches("step     20  validation").count(), 1, "{plain}");
    assert!(!plain.contains("hidden_size"), "the configuration is in a file: {plain}");
    assert!(plain.contains("parameters") && plain.contains("epoch") && plain.contains("perplexity"), "{plain}");
    let text = stderr_of(&train(root, &format!("{TINY} {TEXT} --steps 20 --run other --verbose")));
    assert!(text.contains("hidden_size = 16") && text.contains("bits/byte"), "{text}");
}

#[test]
fn a_dry_run_of_text_needs_no_file() {
    let folder = TempDir::new().unwrap();
    let shown = train_json(folder.path(), "--task text --dry-run --lr 0.25 --steps 7 --batch 3");
    let train = &shown["train"];
    assert_eq!((&train["lr"], &train["steps"], &train["batch"]), (&0.25.into(), &7.into(), &3.into()));
    assert_eq!(shown["model"]["vocab_size"], 257);
}
