//! Language models from end to end: a tokenizer, a model, its perplexity, benchmarks and generated text.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// A folder with a text, a tokenizer and a model trained on it, which all tests share.
struct Fixture {
    folder: TempDir,
}

const SENTENCES: [&str; 3] = [
    "the quick brown fox jumps over the lazy dog.\n",
    "a dog sleeps under the tree.\n",
    "the fox is quick, the dog is not.\n",
];

fn fixture() -> &'static Fixture {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    FIXTURE.get_or_init(|| {
        let fixture = Fixture { folder: TempDir::new().unwrap() };
        let text: String = (0..400).map(|i| SENTENCES[i * i % 3]).collect();
        fs::write(fixture.path("book.txt"), &text).unwrap();
        fs::write(fixture.path("part.txt"), &text[..3000]).unwrap();
        let other = "there is a house in the tree, and in the house a fox who sleeps. ".repeat(50) + &text;
        fs::write(fixture.path("house.txt"), other).unwrap();
        let summary = fixture.json(&["tokenizer", "train", "book.txt", "--size", "300", "--output", "book.json"]);
        assert!(summary["size"] == 300 && summary["bytes_per_token"].as_f64().unwrap() > 1.5, "{summary}");
        let sets = [
            "model.hidden_size=32",
            "model.num_heads=2",
            "model.num_hidden_layers=1",
            "model.intermediate_size=32",
            "model.mup_base_width=32",
            "model.matrix_init=fan-in",
        ];
        let more = [
            "task.train=book.txt",
            "task.tokenizer=book.json",
            "task.length=32",
            "train.steps=80",
            "train.batch=8",
            "train.lr=1e-2",
            "train.warmup=5",
            "train.eval_every=40",
        ];
        let mut args = vec!["train", "--model", "falcon-3a.3", "--task", "text", "--run", "run"];
        sets.iter().chain(&more).for_each(|set| args.extend(["--set", set]));
        let trained = fixture.json(&args);
        let perplexity = trained["evaluations"][0]["about"]["token perplexity"].as_f64().unwrap();
        assert!(perplexity < 3.0, "{perplexity} per token; an untrained model has 300");
        fixture
    })
}

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, args: &[&str], stdin: &str) -> Output {
        self.run_with(args, stdin, "cache")
    }

    fn run_with(&self, args: &[&str], stdin: &str, cache: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
        command.args(args).current_dir(self.folder.path()).env("FALCON_CACHE", self.path(cache));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read stdin may have ended already.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// What a command prints to stdout. The command must succeed.
    fn stdout_of(&self, args: &[&str]) -> String {
        let ran = self.run(args, "");
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout_of(&[args, &["--json"]].concat())).unwrap()
    }

    /// Checks that a command is refused with an error that contains `expected`.
    fn assert_refused(&self, args: &[&str], expected: &str) {
        let ran = self.run(args, "");
        let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn perplexity_is_measured_on_whole_documents_and_in_windows() {
    let fixture = fixture();
    let whole = fixture.json(&["eval", "run", "--text", "part.txt"]);
    let nats = |result: &Value| result[0]["texts"][0]["nats"].as_f64().unwrap();
    let windows = fixture.json(&["eval", "run", "--text", "part.txt", "--window", "8"]);
    assert_eq!(whole[0]["texts"][0]["bytes"], 3000);
    assert!(nats(&whole) < nats(&windows), "more context helps: {} and {}", nats(&whole), nats(&windows));
    let table = fixture.stdout_of(&["eval", "run", "--text", "part.txt", "--output", "kept.json"]);
    assert!(table.contains("| run   | part.txt | whole documents |"), "{table}");
    // Results in the file are not measured again: the table shows the changed number.
    let mut kept: Value = serde_json::from_slice(&fs::read(fixture.path("kept.json")).unwrap()).unwrap();
    kept[0]["texts"][0]["nats"] = Value::from(3000.0 * 2f64.ln());
    fs::write(fixture.path("kept.json"), kept.to_string()).unwrap();
    let again = fixture.stdout_of(&["eval", "run", "--text", "part.txt", "--output", "kept.json"]);
    assert!(again.contains(" 1.0000 |"), "the table shows one bit per byte, as the file has it: {again}");
}

/// Every page is read by itself, and words and bytes are those of the file: ` = A = ` and what follows, with an empty
/// word at the beginning and end of each page, and without the line end between pages.
#[test]
fn wikitext_is_detokenized() {
    let fixture = fixture();
    let pages = [" = A = \n the fox is quick , the dog is not . ", " = B = \n a dog sleeps . "];
    fs::write(fixture.path("wiki.txt"), pages.join("\n")).unwrap();
    let args = ["eval", "run", "--text", "wiki.txt", "--output", "wiki.json"];
    let joined = [&args[..], &["--detokenize", "wikitext"]].concat();
    let [plain, detokenized] = [&args[..], &joined].map(|args| fixture.json(args)[0]["texts"][0].clone());
    let counts = |text: &Value| ["bytes", "words"].map(|key| text[key].as_u64().unwrap());
    let (bytes, words) = (pages[0].len() + pages[1].len(), 3 + 10 + 3 + 4);
    assert_eq!(counts(&plain), [bytes as u64 + 1, words]);
    assert_eq!(counts(&detokenized), [bytes as u64, words + 4]);
    assert!(detokenized["tokens"].as_u64() < plain["tokens"].as_u64(), "{detokenized} {plain}");
    assert!(plain["fingerprint"] != detokenized["fingerprint"]);
    let kept: Value = serde_json::from_slice(&fs::read(fixture.path("wiki.json")).unwrap()).unwrap();
    assert_eq!(kept[0]["texts"].as_array().unwrap().len(), 2, "both results are kept: {kept}");
    assert!(fixture.stdout_of(&joined).contains("| whole pages |"));
    assert!(fixture.stdout_of(&[&joined[..], &["--window", "4"]].concat()).contains("| pages in windows of 4 |"));
    fixture.assert_refused(
        &["eval", "run", "--text", "part.txt", "--detokenize", "wikitext"],
        "part.txt is not raw wikitext",
    );
}

#[test]
fn benchmarks_are_scored() {
    let fixture = fixture();
    let data = fixture.path("data");
    fs::create_dir_all(&data).unwrap();
    let lines = [
        r#"{"contexts": ["the quick brown", "under the"], "continuation": "fox jumps over", "gold": 0}"#,
        r#"{"contexts": ["a dog", "the quick brown"], "continuation": "fox jumps over the lazy", "gold": 1}"#,
    ];
    fs::write(data.join("winogrande.jsonl"), lines.join("\n")).unwrap();
    let last = r#"{"context": "the quick brown fox jumps over the lazy", "target": "dog."}"#;
    fs::write(data.join("lambada_openai.jsonl"), [last, last].join("\n")).unwrap();
    let tasks = ["eval", "run", "--tasks", "winogrande,lambada_openai", "--data", "data", "--shots", "0,1"];
    let result = &fixture.json(&tasks)[0]["benchmarks"];
    assert_eq!(result.as_array().unwrap().len(), 4);
    assert_eq!(result[0]["acc"]["mean"], 1.0, "{result}");
    assert_eq!(result[2]["acc"]["mean"], 1.0, "{result}");
    assert!(result[2]["perplexity"]["mean"].as_f64().unwrap() < 1.5, "{result}");
    let table = fixture.stdout_of(&tasks);
    let titles: Vec<&str> = table.lines().next().unwrap().split('|').map(str::trim).collect();
    assert_eq!(titles, ["", "0-shot", "WinoGrande", "LAMBADA ppl", "LAMBADA", "average", ""], "{table}");
    fixture
        .assert_refused(&["eval", "run", "--tasks", "hellaswg", "--data", "data"], "did you mean \"hellaswag\"?");
    fixture
        .assert_refused(&["eval", "run", "--tasks", "all,typo", "--data", "data"], "unknown benchmark \"typo\"");
    fixture.assert_refused(&["eval", "run", "--tasks", "piqa", "--data", "data"], "piqa.jsonl");
    fixture.assert_refused(&["eval", "run"], "nothing to measure");
    let one = fixture.json(&[&tasks[..], &["--limit", "1"]].concat());
    assert_eq!(one[0]["benchmarks"][1]["items"], 1, "the example is the question that is not asked: {one}");
    fixture.assert_refused(&[&tasks[..], &["--limit", "0"]].concat(), "winogrande.jsonl: no questions to ask");
    fixture.assert_refused(
        &["eval", "run", "--tasks", "winogrande", "--data", "data", "--shots", "2"],
        "winogrande.jsonl: 2 different questions to draw the examples of line 1 from, 3 are needed",
    );
}

#[test]
fn a_saved_state_can_be_continued() {
    let fixture = fixture();
    let text = |value: &Value| value["texts"][0]["text"].as_str().unwrap().to_string();
    let draw = ["--temperature", "1", "--repetition-penalty", "1.1", "--seed", "7"];
    let whole = fixture.json(&[&["generate", "run", "the fox", "-n", "40"], &draw[..]].concat());
    let first = fixture
        .json(&[&["generate", "run", "the fox", "-n", "15", "--state-out", "half.memory"], &draw[..]].concat());
    let second =
        fixture.json(&[&["generate", "run", "-n", "25", "--state-in", "half.memory"], &draw[..]].concat());
    assert_eq!(text(&first) + &text(&second), text(&whole), "the same text as without saving the state");
    // A text that is read once and continued from several times.
    fixture.stdout_of(&["generate", "run", "--file", "part.txt", "-n", "0", "--state-out", "book.memory"]);
    let greedy = ["--temperature", "0", "-n", "12"];
    let part = fs::read_to_string(fixture.path("part.txt")).unwrap() + "the quick";
    let from_state =
        fixture.json(&[&["generate", "run", "the quick", "--state-in", "book.memory"], &greedy[..]].concat());
    let again = fixture.json(&[&["generate", "run", &part], &greedy[..]].concat());
    assert_eq!(text(&from_state), text(&again));
    assert!(text(&from_state).starts_with(" brown fox"), "{from_state}");
    assert_eq!(
        from_state["state_bytes"], again["state_bytes"],
        "the size of the state does not depend on the text"
    );
    fs::write(fixture.path("bad.memory"), &fs::read(fixture.path("book.memory")).unwrap()[..500]).unwrap();
    fixture.assert_refused(&["generate", "run", "--state-in", "bad.memory"], "bad.memory");
}

/// Weights in fewer bits say nearly what the model says, and their results and states are not taken for the model's.
#[test]
fn weights_are_held_in_fewer_bits() {
    let fixture = fixture();
    let generate =
        ["generate", "run", "the quick", "--temperature", "0", "-n", "12", "--state-out", "full.memory"];
    let eval = ["eval", "run", "--text", "part.txt", "--output", "formats.json"];
    let text = fixture.json(&generate)["texts"][0]["text"].clone();
    let nats = |result: &Value| result[0]["texts"][0]["nats"].as_f64().unwrap();
    let full = nats(&fixture.json(&eval));
    for format in ["bf16", "int8"] {
        let weights = ["--weights", format];
        let packed = fixture.json(&[&generate[..7], &weights].concat());
        assert_eq!(packed["texts"][0]["text"], text, "{format}");
        let packed = nats(&fixture.json(&[&eval[..], &weights].concat()));
        assert!(packed != full && (packed / full - 1.0).abs() < 0.01, "{format}: {packed} for {full}");
        assert_eq!(nats(&fixture.json(&[&eval[..], &weights].concat())), packed, "the result in the file");
        fixture.assert_refused(
            &["generate", "run", "--state-in", "full.memory", "--weights", format],
            "saved with weights of fingerprint",
        );
    }
    assert_eq!(nats(&fixture.json(&eval)), full, "results of every format are kept");
    fixture.assert_refused(&["generate", "run", "x", "--weights", "int4"], "did you mean \"int8\"");
}

#[test]
fn prompts_come_from_arguments_stdin_and_files() {
    let fixture = fixture();
    let greedy = ["--temperature", "0", "-n", "12"];
    let argument = fixture.stdout_of(&[&["generate", "run", "the quick"], &greedy[..]].concat());
    let piped = fixture.run(&[&["generate", "run"], &greedy[..]].concat(), "the quick\n");
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), argument);
    let stop = argument.trim_end().split(' ').next_back().unwrap();
    let stopped = fixture.stdout_of(&[&["generate", "run", "the quick", "--stop", stop], &greedy[..]].concat());
    assert_eq!(stopped.trim_end_matches('\n'), argument.split(stop).next().unwrap());
    fs::write(fixture.path("many.txt"), "the quick\na dog\n").unwrap();
    let many = fixture.json(&[&["generate", "run", "--prompts", "many.txt"], &greedy[..]].concat());
    assert_eq!(many["texts"].as_array().unwrap().len(), 2);
    assert_eq!(format!("{}\n", many["texts"][0]["text"].as_str().unwrap()), argument);
    fixture
        .assert_refused(&["generate", "run", "x", "--top-p", "0"], "--top-p must be above 0 and at most 1, got 0");
    fixture.assert_refused(&["generate", "nowhere", "x"], "nowhere: neither a run nor a model");
}

#[test]
fn benchmark_lines_of_the_help_are_valid() {
    let fixture = fixture();
    let help = fixture.stdout_of(&["eval", "--help"]);
    let folder = fixture.path("shown");
    fs::create_dir_all(&folder).unwrap();
    let mut names = Vec::new();
    for line in help.lines().map(str::trim_start) {
        if line.starts_with('{') {
            for name in names.drain(..) {
                fs::write(folder.join(format!("{name}.jsonl")), [line, line].join("\n")).unwrap();
            }
        } else {
            let words = line.split([' ', ',', ':']).map(String::from);
            names = words.filter(|word| falcon_lm::evaluate::Benchmark::named(word).is_some()).collect();
        }
    }
    let result = fixture.json(&["eval", "run", "--tasks", "all", "--data", "shown"]);
    assert_eq!(result[0]["benchmarks"].as_array().unwrap().len(), falcon_lm::evaluate::BENCHMARKS.len());
}

/// Many prompts that continue from one state give the same text as each by itself; `--echo` prints the prompts.
#[test]
fn a_state_is_continued_by_many_prompts() {
    let fixture = fixture();
    fixture.stdout_of(&["generate", "run", "--file", "part.txt", "-n", "0", "--state-out", "many.memory"]);
    fs::write(fixture.path("two.txt"), "the quick\n\na dog").unwrap();
    let greedy = ["--temperature", "0", "-n", "8", "--state-in", "many.memory"];
    let many = fixture.json(&[&["generate", "run", "--prompts", "two.txt"], &greedy[..]].concat());
    let one = |prompt| fixture.json(&[&["generate", "run", prompt], &greedy[..]].concat())["texts"][0].clone();
    assert_eq!(many["texts"], serde_json::json!([one("the quick"), one("a dog")]));
    let text = one("a dog")["text"].as_str().unwrap().to_string();
    let single = fixture.stdout_of(&[&["generate", "run", "a dog"], &greedy[..]].concat());
    assert_eq!(single, format!("{text}\n"));
    let echo = fixture.stdout_of(&[&["generate", "run", "a dog", "--echo"], &greedy[..]].concat());
    assert_eq!(echo, format!("a dog{text}\n"));
    let print_all = |more: &[&str]| {
        fixture.stdout_of(&[&["generate", "run", "--prompts", "two.txt"], more, &greedy[..]].concat())
    };
    assert!(print_all(&[]).ends_with(&format!("\n\n{text}\n\n")), "{:?}", print_all(&[]));
    assert!(print_all(&["--echo"]).ends_with(&format!("\n\na dog{text}\n\n")), "{:?}", print_all(&["--echo"]));
    let piped = fixture.run(&[&["generate", "run", "--prompts", "-"], &greedy[..]].concat(), "a dog\n");
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), format!("{text}\n\n"));
    let text = |more: &[&str]| {
        let all = fixture.json(&[&["generate", "run", "the lazy", "--temperature", "0"], more].concat());
        let [text, ended] = ["text", "ended_by"].map(|key| all["texts"][0][key].as_str().unwrap().to_string());
        (text, ended)
    };
    let (whole, (stopped, ended)) = (text(&[]).0, text(&["--stop", "\\n"]));
    assert!(whole.contains('\n') && ended == "stop", "{whole:?}");
    assert_eq!(whole.split('\n').next(), Some(stopped.as_str()));
    fixture.assert_refused(&["generate", "run", "x", "--stop", "\\q"], "unknown escape");
}

/// A tokenizer of the same size with other tokens is refused, in a run and in a copy of its model.
#[test]
fn a_tokenizer_of_the_same_size_is_refused() {
    let fixture = fixture();
    fixture.stdout_of(&["tokenizer", "train", "house.txt", "--size", "300", "--output", "same.json"]);
    fixture.assert_refused(&["generate", "run", "x", "--tokenizer", "same.json"], "was trained with");
    fixture.assert_refused(
        &["eval", "run", "--text", "part.txt", "--tokenizer", "same.json"],
        "same.json: the tokenizer has the",
    );
    fixture.stdout_of(&["export", "run", "--hf", "exported"]);
    assert!(fixture.stdout_of(&["generate", "exported", "the", "-n", "1"]).len() > 1);
    fs::copy(fixture.path("same.json"), fixture.path("exported/tokenizer.json")).unwrap();
    fixture.assert_refused(&["generate", "exported", "x"], "its tokens mean other text");
}

#[test]
fn a_model_of_addition_continues_sums() {
    let fixture = fixture();
    let sets =
        ["model.hidden_size=16", "model.num_heads=2", "model.num_hidden_layers=1", "model.intermediate_size=16"];
    let more = ["task.max_width=2", "task.beyond=2", "task.eval_samples=4", "train.batch=4", "train.steps=3"];
    let mut args = vec!["train", "--run", "sums"];
    sets.iter().chain(&more).for_each(|set| args.extend(["--set", set]));
    fixture.stdout_of(&args);
    let result = fixture.json(&["generate", "sums", "21+43=", "-n", "3", "--temperature", "0"]);
    let count = |key: &str| result[key].as_u64().unwrap();
    let context_before = count("context") - count("tokens_said");
    assert_eq!(
        (count("tokens_read"), context_before),
        (6, 7),
        "6 tokens of the prompt and one that begins: {result}"
    );
    let text = result["texts"][0]["text"].as_str().unwrap();
    assert!(text.len() <= 3 && text.chars().all(|c| "0123456789+=".contains(c)), "{text:?}");
    fixture.assert_refused(
        &["generate", "sums", "21 + 43 ="],
        "the character ' ', which the tokenizer does not know",
    );
    fixture.assert_refused(&["eval", "sums", "--text", "part.txt"], "the character 't'");
    fixture.stdout_of(&["export", "sums", "--hf", "sums-hf"]);
    fixture.stdout_of(&["generate", "sums-hf", "1+2=", "-n", "2"]);
}

#[cfg(unix)]
#[test]
fn interrupts_have_exit_codes_of_their_own() {
    let fixture = fixture();
    fs::write(fixture.path("long.txt"), fs::read_to_string(fixture.path("book.txt")).unwrap().repeat(100))
        .unwrap();
    for args in [
        &["generate", "run", "the", "-n", "100000000", "--temperature", "0"][..],
        &["generate", "run", "--file", "long.txt"],
        &["eval", "run", "--text", "long.txt", "--window", "8"],
    ]
    .into_iter()
    .flat_map(|args| [(args, "-INT", 130), (args, "-TERM", 143)])
    {
        let (args, signal, code) = args;
        let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
        command.args(args).current_dir(fixture.folder.path()).env("FALCON_CACHE", fixture.path("cache"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // Wait until the system shows that a handler is installed.
        let status = format!("/proc/{}/status", process.id());
        let caught = || {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
            u64::from_str_radix(mask.trim(), 16).unwrap_or(0) & 2 != 0
        };
        while Path::new("/proc/self/status").exists() && !caught() {
            assert!(process.try_wait().unwrap().is_none(), "{args:?}: the process ended by itself");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(Command::new("kill").arg(signal).arg(process.id().to_string()).status().unwrap().success());
        let ran = process.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{args:?} after {signal}: {stderr}");
        assert!(stderr.contains("once more to stop at once"), "{args:?}: {stderr}");
        if args[0] == "eval" {
            assert!(stderr.contains("stopped before anything was measured"), "{stderr}");
            assert!(ran.stdout.is_empty(), "an empty table is printed: {}", String::from_utf8_lossy(&ran.stdout));
        }
    }
}

#[test]
fn bad_text_and_foreign_tokenizers_are_refused() {
    let fixture = fixture();
    fs::write(fixture.path("empty.txt"), "").unwrap();
    fixture.assert_refused(&["eval", "run", "--text", "empty.txt"], "empty.txt has no text");
    fs::write(fixture.path("latin.txt"), b"caf\xe9 au lait").unwrap();
    fixture.assert_refused(&["eval", "run", "--text", "latin.txt"], "latin.txt: byte 3 is not UTF-8");
    fixture.assert_refused(&["tokenizer", "train", "latin.txt"], "byte 3 is not UTF-8");
    fixture.assert_refused(
        &["eval", "run", "--text", "part.txt", "--tokenizer", "bytes"],
        "the tokenizer has 257 tokens, the model",
    );
    fixture.stdout_of(&["tokenizer", "train", "book.txt", "--size", "280", "--output", "other.json"]);
    fixture.assert_refused(&["generate", "run", "x", "--tokenizer", "other.json"], "has 280 tokens, the model");
    // The tokenizer's file has been replaced by another; the run keeps its own.
    fixture.stdout_of(&["tokenizer", "train", "house.txt", "--size", "300", "--output", "swapped.json"]);
    copy_folder(&fixture.path("run"), &fixture.path("copy"));
    let config = fs::read_to_string(fixture.path("run/config.toml")).unwrap();
    fs::write(fixture.path("copy/config.toml"), config.replace("book.json", "swapped.json")).unwrap();
    fixture.assert_refused(&["train", "--run", "copy"], "config.toml: edited since the last checkpoint");
    copy_folder(&fixture.path("run"), &fixture.path("copy"));
    let swapped = ["train", "--run", "copy", "--set", "task.tokenizer=swapped.json"];
    fixture.assert_refused(&swapped, "swapped.json has changed since the run began");
    let tokenizers = ["run", "copy"].map(|run| fs::read(fixture.path(run).join("tokenizer.json")).unwrap());
    assert_eq!(tokenizers[0], tokenizers[1]);
    // A damaged cache is made again. This test has a cache of its own, because other tests use the common one.
    let args = ["eval", "run", "--text", "part.txt", "--json"];
    let before = fixture.run_with(&args, "", "mine").stdout;
    for entry in fs::read_dir(fixture.path("mine")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    }
    let after = fixture.run_with(&args, "", "mine");
    assert!(after.status.success() && after.stdout == before);
}
