//! Language models from end to end: a tokenizer, a model, its perplexity, benchmarks and generated text.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// A folder with a text, a tokenizer and a model trained on it, made once for all tests.
struct House {
    folder: TempDir,
}

const SENTENCES: [&str; 3] = [
    "the quick brown fox jumps over the lazy dog.\n",
    "a dog sleeps under the tree.\n",
    "the fox is quick, the dog is not.\n",
];

fn house() -> &'static House {
    static HOUSE: OnceLock<House> = OnceLock::new();
    HOUSE.get_or_init(|| {
        let house = House { folder: TempDir::new().unwrap() };
        let text: String = (0..400).map(|i| SENTENCES[i * i % 3]).collect();
        fs::write(house.path("book.txt"), &text).unwrap();
        fs::write(house.path("part.txt"), &text[..3000]).unwrap();
        let other = "there is a house in the tree, and in the house a fox who sleeps. ".repeat(50) + &text;
        fs::write(house.path("house.txt"), other).unwrap();
        let said = house.json(&["tokenizer", "train", "book.txt", "--size", "300", "--output", "book.json"]);
        assert!(said["size"] == 300 && said["bytes_per_token"].as_f64().unwrap() > 1.5, "{said}");
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
        let trained = house.json(&args);
        let perplexity = trained["evaluations"][0]["about"]["token perplexity"].as_f64().unwrap();
        assert!(perplexity < 3.0, "{perplexity} a token, of 300 at first");
        house
    })
}

impl House {
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

    fn says(&self, args: &[&str]) -> String {
        let ran = self.run(args, "");
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.says(&[args, &["--json"]].concat())).unwrap()
    }

    fn refuses(&self, args: &[&str], expected: &str) {
        let ran = self.run(args, "");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
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
fn perplexity_is_counted_whole_and_by_windows() {
    let house = house();
    let whole = house.json(&["eval", "run", "--text", "part.txt"]);
    let of = |result: &Value| result[0]["texts"][0]["nats"].as_f64().unwrap();
    let windows = house.json(&["eval", "run", "--text", "part.txt", "--window", "8"]);
    assert_eq!(whole[0]["texts"][0]["bytes"], 3000);
    assert!(of(&whole) < of(&windows), "what came before helps: {} {}", of(&whole), of(&windows));
    let table = house.says(&["eval", "run", "--text", "part.txt", "--output", "kept.json"]);
    assert!(table.contains("| run   | part.txt | whole documents |"), "{table}");
    // Results in the file are not measured again: what it says is what is shown.
    let mut kept: Value = serde_json::from_slice(&fs::read(house.path("kept.json")).unwrap()).unwrap();
    kept[0]["texts"][0]["nats"] = Value::from(3000.0 * 2f64.ln());
    fs::write(house.path("kept.json"), kept.to_string()).unwrap();
    let again = house.says(&["eval", "run", "--text", "part.txt", "--output", "kept.json"]);
    assert!(again.contains(" 1.0000 |"), "a bit per byte: {again}");
}

/// Every page is read by itself, and words and bytes are those of the file: ` = A = ` and what follows, with an empty
/// word at the beginning and end of each page, and without the line end between pages.
#[test]
fn wikitext_is_detokenized() {
    let house = house();
    let pages = [" = A = \n the fox is quick , the dog is not . ", " = B = \n a dog sleeps . "];
    fs::write(house.path("wiki.txt"), pages.join("\n")).unwrap();
    let args = ["eval", "run", "--text", "wiki.txt", "--output", "wiki.json"];
    let joined = [&args[..], &["--detokenize", "wikitext"]].concat();
    let [plain, detokenized] = [&args[..], &joined].map(|args| house.json(args)[0]["texts"][0].clone());
    let counts = |text: &Value| ["bytes", "words"].map(|key| text[key].as_u64().unwrap());
    let (bytes, words) = (pages[0].len() + pages[1].len(), 3 + 10 + 3 + 4);
    assert_eq!(counts(&plain), [bytes as u64 + 1, words]);
    assert_eq!(counts(&detokenized), [bytes as u64, words + 4]);
    assert!(detokenized["tokens"].as_u64() < plain["tokens"].as_u64(), "{detokenized} {plain}");
    assert!(plain["fingerprint"] != detokenized["fingerprint"]);
    let kept: Value = serde_json::from_slice(&fs::read(house.path("wiki.json")).unwrap()).unwrap();
    assert_eq!(kept[0]["texts"].as_array().unwrap().len(), 2, "one does not stand for the other: {kept}");
    assert!(house.says(&joined).contains("| whole pages |"));
    assert!(house.says(&[&joined[..], &["--window", "4"]].concat()).contains("| pages in windows of 4 |"));
    house.refuses(
        &["eval", "run", "--text", "part.txt", "--detokenize", "wikitext"],
        "part.txt is not raw wikitext",
    );
}

#[test]
fn benchmarks_are_scored() {
    let house = house();
    let data = house.path("data");
    fs::create_dir_all(&data).unwrap();
    let lines = [
        r#"{"contexts": ["the quick brown", "under the"], "continuation": "fox jumps over", "gold": 0}"#,
        r#"{"contexts": ["a dog", "the quick brown"], "continuation": "fox jumps over the lazy", "gold": 1}"#,
    ];
    fs::write(data.join("winogrande.jsonl"), lines.join("\n")).unwrap();
    let last = r#"{"context": "the quick brown fox jumps over the lazy", "target": "dog."}"#;
    fs::write(data.join("lambada_openai.jsonl"), [last, last].join("\n")).unwrap();
    let tasks = ["eval", "run", "--tasks", "winogrande,lambada_openai", "--data", "data", "--shots", "0,1"];
    let result = &house.json(&tasks)[0]["benchmarks"];
    assert_eq!(result.as_array().unwrap().len(), 4);
    assert_eq!(result[0]["acc"]["mean"], 1.0, "{result}");
    assert_eq!(result[2]["acc"]["mean"], 1.0, "{result}");
    assert!(result[2]["perplexity"]["mean"].as_f64().unwrap() < 1.5, "{result}");
    let table = house.says(&tasks);
    let titles: Vec<&str> = table.lines().next().unwrap().split('|').map(str::trim).collect();
    assert_eq!(titles, ["", "0-shot", "WinoGrande", "LAMBADA ppl", "LAMBADA", "average", ""], "{table}");
    house.refuses(&["eval", "run", "--tasks", "hellaswg", "--data", "data"], "did you mean \"hellaswag\"?");
    house.refuses(&["eval", "run", "--tasks", "all,typo", "--data", "data"], "unknown benchmark \"typo\"");
    house.refuses(&["eval", "run", "--tasks", "piqa", "--data", "data"], "piqa.jsonl");
    house.refuses(&["eval", "run"], "nothing to measure");
    let one = house.json(&[&tasks[..], &["--limit", "1"]].concat());
    assert_eq!(one[0]["benchmarks"][1]["items"], 1, "the example is the question that is not asked: {one}");
    house.refuses(&[&tasks[..], &["--limit", "0"]].concat(), "winogrande.jsonl: no questions to ask");
    house.refuses(
        &["eval", "run", "--tasks", "winogrande", "--data", "data", "--shots", "2"],
        "winogrande.jsonl: 2 different questions to draw the examples of line 1 from, 3 are needed",
    );
}

#[test]
fn what_is_read_once_is_asked_many_times() {
    let house = house();
    let text = |value: &Value| value["texts"][0]["text"].as_str().unwrap().to_string();
    let draw = ["--temperature", "1", "--repetition-penalty", "1.1", "--seed", "7"];
    let whole = house.json(&[&["generate", "run", "the fox", "-n", "40"], &draw[..]].concat());
    let first = house
        .json(&[&["generate", "run", "the fox", "-n", "15", "--state-out", "half.memory"], &draw[..]].concat());
    let second = house.json(&[&["generate", "run", "-n", "25", "--state-in", "half.memory"], &draw[..]].concat());
    assert_eq!(text(&first) + &text(&second), text(&whole), "as if uninterrupted");
    // A text that is read once and continued from several times.
    house.says(&["generate", "run", "--file", "part.txt", "-n", "0", "--state-out", "book.memory"]);
    let greedy = ["--temperature", "0", "-n", "12"];
    let part = fs::read_to_string(house.path("part.txt")).unwrap() + "the quick";
    let asked =
        house.json(&[&["generate", "run", "the quick", "--state-in", "book.memory"], &greedy[..]].concat());
    let again = house.json(&[&["generate", "run", &part], &greedy[..]].concat());
    assert_eq!(text(&asked), text(&again));
    assert!(text(&asked).starts_with(" brown fox"), "{asked}");
    assert_eq!(asked["state_bytes"], again["state_bytes"], "whatever was read");
    fs::write(house.path("bad.memory"), &fs::read(house.path("book.memory")).unwrap()[..500]).unwrap();
    house.refuses(&["generate", "run", "--state-in", "bad.memory"], "bad.memory");
}

#[test]
fn text_comes_from_everywhere_and_stops() {
    let house = house();
    let greedy = ["--temperature", "0", "-n", "12"];
    let argument = house.says(&[&["generate", "run", "the quick"], &greedy[..]].concat());
    let piped = house.run(&[&["generate", "run"], &greedy[..]].concat(), "the quick\n");
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), argument);
    let stop = argument.trim_end().split(' ').next_back().unwrap();
    let stopped = house.says(&[&["generate", "run", "the quick", "--stop", stop], &greedy[..]].concat());
    assert_eq!(stopped.trim_end_matches('\n'), argument.split(stop).next().unwrap());
    fs::write(house.path("many.txt"), "the quick\na dog\n").unwrap();
    let many = house.json(&[&["generate", "run", "--prompts", "many.txt"], &greedy[..]].concat());
    assert_eq!(many["texts"].as_array().unwrap().len(), 2);
    assert_eq!(format!("{}\n", many["texts"][0]["text"].as_str().unwrap()), argument);
    house.refuses(&["generate", "run", "x", "--top-p", "0"], "--top-p must be above 0 and at most 1, got 0");
    house.refuses(&["generate", "nowhere", "x"], "nowhere: neither a run nor a model");
}

/// The lines that the help shows are valid lines of benchmarks.
#[test]
fn lines_of_the_help_are_questions() {
    let house = house();
    let help = house.says(&["eval", "--help"]);
    let folder = house.path("shown");
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
    let result = house.json(&["eval", "run", "--tasks", "all", "--data", "shown"]);
    assert_eq!(result[0]["benchmarks"].as_array().unwrap().len(), falcon_lm::evaluate::BENCHMARKS.len());
}

/// Many prompts that continue from one state give the same text as each by itself; `--echo` prints the prompts.
#[test]
fn a_state_is_continued_by_many_prompts() {
    let house = house();
    house.says(&["generate", "run", "--file", "part.txt", "-n", "0", "--state-out", "many.memory"]);
    fs::write(house.path("two.txt"), "the quick\n\na dog").unwrap();
    let greedy = ["--temperature", "0", "-n", "8", "--state-in", "many.memory"];
    let many = house.json(&[&["generate", "run", "--prompts", "two.txt"], &greedy[..]].concat());
    let one = |prompt| house.json(&[&["generate", "run", prompt], &greedy[..]].concat())["texts"][0].clone();
    assert_eq!(many["texts"], serde_json::json!([one("the quick"), one("a dog")]));
    let text = one("a dog")["text"].as_str().unwrap().to_string();
    let single = house.says(&[&["generate", "run", "a dog"], &greedy[..]].concat());
    assert_eq!(single, format!("{text}\n"));
    let echo = house.says(&[&["generate", "run", "a dog", "--echo"], &greedy[..]].concat());
    assert_eq!(echo, format!("a dog{text}\n"));
    let of =
        |more: &[&str]| house.says(&[&["generate", "run", "--prompts", "two.txt"], more, &greedy[..]].concat());
    assert!(of(&[]).ends_with(&format!("\n\n{text}\n\n")), "{:?}", of(&[]));
    assert!(of(&["--echo"]).ends_with(&format!("\n\na dog{text}\n\n")), "{:?}", of(&["--echo"]));
    let piped = house.run(&[&["generate", "run", "--prompts", "-"], &greedy[..]].concat(), "a dog\n");
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), format!("{text}\n\n"));
    let text = |more: &[&str]| {
        let all = house.json(&[&["generate", "run", "the lazy", "--temperature", "0"], more].concat());
        let [text, ended] = ["text", "ended_by"].map(|key| all["texts"][0][key].as_str().unwrap().to_string());
        (text, ended)
    };
    let (whole, (stopped, ended)) = (text(&[]).0, text(&["--stop", "\\n"]));
    assert!(whole.contains('\n') && ended == "stop", "{whole:?}");
    assert_eq!(whole.split('\n').next(), Some(stopped.as_str()));
    house.refuses(&["generate", "run", "x", "--stop", "\\q"], "unknown escape");
}

/// A tokenizer of the same size with other tokens is refused, in a run and in a copy of its model.
#[test]
fn a_tokenizer_of_the_same_size_is_refused() {
    let house = house();
    house.says(&["tokenizer", "train", "house.txt", "--size", "300", "--output", "same.json"]);
    house.refuses(&["generate", "run", "x", "--tokenizer", "same.json"], "was trained with");
    house.refuses(
        &["eval", "run", "--text", "part.txt", "--tokenizer", "same.json"],
        "same.json: the tokenizer has the",
    );
    house.says(&["export", "run", "--hf", "exported"]);
    assert!(house.says(&["generate", "exported", "the", "-n", "1"]).len() > 1);
    fs::copy(house.path("same.json"), house.path("exported/tokenizer.json")).unwrap();
    house.refuses(&["generate", "exported", "x"], "its tokens mean other text");
}

/// A model of the default task, addition, continues sums.
#[test]
fn a_model_of_sums_is_spoken_to() {
    let house = house();
    let sets =
        ["model.hidden_size=16", "model.num_heads=2", "model.num_hidden_layers=1", "model.intermediate_size=16"];
    let more = ["task.max_width=2", "task.beyond=2", "task.eval_samples=4", "train.batch=4", "train.steps=3"];
    let mut args = vec!["train", "--run", "sums"];
    sets.iter().chain(&more).for_each(|set| args.extend(["--set", set]));
    house.says(&args);
    let said = house.json(&["generate", "sums", "21+43=", "-n", "3", "--temperature", "0"]);
    let of = |key: &str| said[key].as_u64().unwrap();
    assert_eq!((of("tokens_read"), of("context") - of("tokens_said")), (6, 7), "and the beginning: {said}");
    let text = said["texts"][0]["text"].as_str().unwrap();
    assert!(text.len() <= 3 && text.chars().all(|c| "0123456789+=".contains(c)), "{text:?}");
    house.refuses(&["generate", "sums", "21 + 43 ="], "the character ' ', which the tokenizer does not know");
    house.refuses(&["eval", "sums", "--text", "part.txt"], "the character 't'");
    house.says(&["export", "sums", "--hf", "sums-hf"]);
    house.says(&["generate", "sums-hf", "1+2=", "-n", "2"]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_is_no_failure_and_no_success() {
    let house = house();
    fs::write(house.path("long.txt"), fs::read_to_string(house.path("book.txt")).unwrap().repeat(100)).unwrap();
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
        command.args(args).current_dir(house.folder.path()).env("FALCON_CACHE", house.path("cache"));
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
            assert!(process.try_wait().unwrap().is_none(), "{args:?}: it ended by itself");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(Command::new("kill").arg(signal).arg(process.id().to_string()).status().unwrap().success());
        let ran = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{args:?} after {signal}: {said}");
        assert!(said.contains("once more to stop at once"), "{args:?}: {said}");
        if args[0] == "eval" {
            assert!(said.contains("stopped before anything was measured"), "{said}");
            assert!(ran.stdout.is_empty(), "no table of nothing: {}", String::from_utf8_lossy(&ran.stdout));
        }
    }
}

/// Common mistakes.
#[test]
fn bad_text_and_foreign_tokenizers_are_refused() {
    let house = house();
    fs::write(house.path("empty.txt"), "").unwrap();
    house.refuses(&["eval", "run", "--text", "empty.txt"], "empty.txt has no text");
    fs::write(house.path("latin.txt"), b"caf\xe9 au lait").unwrap();
    house.refuses(&["eval", "run", "--text", "latin.txt"], "latin.txt: byte 3 is not UTF-8");
    house.refuses(&["tokenizer", "train", "latin.txt"], "byte 3 is not UTF-8");
    house.refuses(
        &["eval", "run", "--text", "part.txt", "--tokenizer", "bytes"],
        "the tokenizer has 257 tokens, the model",
    );
    house.says(&["tokenizer", "train", "book.txt", "--size", "280", "--output", "other.json"]);
    house.refuses(&["generate", "run", "x", "--tokenizer", "other.json"], "has 280 tokens, the model");
    // The tokenizer's file has been replaced by another; the run keeps its own.
    house.says(&["tokenizer", "train", "house.txt", "--size", "300", "--output", "swapped.json"]);
    copy_folder(&house.path("run"), &house.path("copy"));
    let config = fs::read_to_string(house.path("run/config.toml")).unwrap();
    fs::write(house.path("copy/config.toml"), config.replace("book.json", "swapped.json")).unwrap();
    house.refuses(&["train", "--run", "copy"], "config.toml: edited since the last checkpoint");
    copy_folder(&house.path("run"), &house.path("copy"));
    let swapped = ["train", "--run", "copy", "--set", "task.tokenizer=swapped.json"];
    house.refuses(&swapped, "swapped.json has changed since the run began");
    let tokenizers = ["run", "copy"].map(|run| fs::read(house.path(run).join("tokenizer.json")).unwrap());
    assert_eq!(tokenizers[0], tokenizers[1]);
    // A damaged cache is made again. This test has a cache of its own, because other tests use the common one.
    let args = ["eval", "run", "--text", "part.txt", "--json"];
    let before = house.run_with(&args, "", "mine").stdout;
    for entry in fs::read_dir(house.path("mine")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    }
    let after = house.run_with(&args, "", "mine");
    assert!(after.status.success() && after.stdout == before);
}
