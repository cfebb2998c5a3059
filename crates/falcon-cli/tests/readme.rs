//! The commands of the README are run as they are written, but with less work. The commands in help texts are only
//! parsed. The code of the README is compared with examples, which are compiled and run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use clap::Parser;
use falcon_cli::args::Cli;
use tempfile::TempDir;

/// The test command of the README, which runs this test too.
const TESTS: &str = "./test.sh";
/// The part of the test command that tests Rust.
const RUST_TESTS: &str = "cargo test --release --workspace";
/// The command that installs the Python package. The test command installs it too, and runs the Python code of the
/// pages.
const INSTALL: &str = "pip install './python[transformers]'";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The code blocks of a page that begin with ```` ```kind ````.
fn blocks(page: &str, kind: &str) -> Vec<String> {
    let open = format!("\n```{kind}\n");
    page.split(&open).skip(1).map(|rest| rest.split("\n```").next().unwrap().to_string()).collect()
}

/// The commands of a page, each with the lines of output that the page shows.
fn commands(page: &str) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for line in blocks(page, "console").iter().flat_map(|block| block.lines()) {
        match line.strip_prefix("$ ") {
            Some(command) => all.push((command.split("  #").next().unwrap().trim().into(), Vec::new())),
            None => all.last_mut().expect("a command comes first").1.push(line.into()),
        }
    }
    all
}

/// A command as the test runs it: the program instead of cargo, with options for less work.
fn smaller(command: &str) -> String {
    let command = command.replace("cargo run --release -- ", "falcon ");
    if let Some((_, example)) = command.split_once(" --example ") {
        return format!("examples/{example}");
    }
    let tiny = "--set model.hidden_size=16 --set model.num_heads=2 --set model.intermediate_size=16";
    let less = match command.split(' ').nth(1).unwrap() {
        "reproduce" if command.contains("--from") => String::new(),
        "reproduce" => format!("--steps 4 {tiny} --set train.batch=4 --set task.eval_samples=2"),
        "train" => format!("--set train.steps=4 {tiny} --set train.batch=4"),
        "generate" if !command.contains("-n 0") => "-n 5".into(),
        _ => String::new(),
    };
    format!("{command} {less}")
}

/// A line with its numbers replaced, because they differ from run to run.
fn shape(line: &str) -> String {
    line.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
}

/// The examples that the README links to can be run, and print something.
#[test]
fn examples_of_the_readme_run() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_falcon")).parent().unwrap().join("examples");
    let mut names: Vec<&str> = page
        .split("](")
        .filter_map(|link| link.split(')').next()?.strip_suffix(".rs")?.split_once("/examples/"))
        .map(|(_, name)| name)
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["layer", "rule"]);
    for name in names {
        let ran = Command::new(built.join(name)).output().unwrap_or_else(|error| {
            panic!("{name}: {error}; `{RUST_TESTS}` builds it, and `cargo build --release --examples`")
        });
        assert!(
            ran.status.success() && !ran.stdout.is_empty(),
            "{name}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}

#[cfg(unix)]
#[test]
fn commands_of_the_readme_run() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["golden", "books", "bin"] {
        fs::create_dir(at(name)).unwrap();
    }
    for entry in fs::read_dir(root().join("golden")).unwrap() {
        let path = entry.unwrap().path();
        std::os::unix::fs::symlink(&path, at("golden").join(path.file_name().unwrap())).unwrap();
    }
    let text = "Once upon a time there was a river, and in short, it ran to the sea.\n".repeat(200);
    for name in ["book.txt", "books/one.txt", "books/two.txt", "long.txt"] {
        fs::write(at(name), &text).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_falcon"), at("bin/falcon")).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_falcon")).parent().unwrap().join("examples");
    std::os::unix::fs::symlink(built, at("examples")).unwrap();

    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let (mut tests, mut installs) = (0, 0);
    for (command, shown) in commands(&page) {
        if command == TESTS || command == INSTALL {
            tests += usize::from(command == TESTS);
            installs += usize::from(command == INSTALL);
            continue;
        }
        let line = smaller(&command);
        let ran = Command::new("sh")
            .args(["-c", &line])
            .current_dir(folder.path())
            .env("PATH", &path)
            .env("FALCON_CACHE", at("cache"))
            .output()
            .unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{command}\nrun as {line}\n{stdout}{stderr}");
        let printed: Vec<String> = stdout.lines().map(shape).collect();
        for line in &shown {
            assert!(
                printed.contains(&shape(line)),
                "{command}: the README shows {line}\nand this was printed:\n{stdout}"
            );
        }
    }
    assert_eq!((tests, installs), (1, 1), "the README has the test command, {TESTS}, and {INSTALL}");
    let script = fs::read_to_string(root().join("test.sh")).unwrap();
    assert!(script.contains(RUST_TESTS) && script.contains("install --quiet ./python"));
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    assert_eq!(ci.lines().last(), Some(TESTS), "the last line of .ci/run is the test command of the README");
}

/// All lines of a block of Rust code in the README are in one example, in the same order.
#[test]
fn code_of_the_readme_is_in_examples() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    // White space does not count: the page aligns comments, and the formatter formats the file.
    let lines = |text: &str| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).filter(|line| !line.is_empty()).collect()
    };
    let mut sources = Vec::new();
    for name in ["kernels", "nn", "lm"] {
        for entry in fs::read_dir(root().join(format!("crates/falcon-{name}/examples"))).unwrap() {
            sources.push(lines(&fs::read_to_string(entry.unwrap().path()).unwrap()));
        }
    }
    let blocks = blocks(&page, "rust");
    assert!(!blocks.is_empty());
    for block in blocks {
        let wanted = lines(&block);
        // In the same order, with anything in between.
        let missing = |source: &Vec<String>| {
            let mut rest = source.iter();
            wanted.iter().find(|line| !rest.any(|found| found == *line)).cloned()
        };
        let all: Vec<Option<String>> = sources.iter().map(missing).collect();
        assert!(
            all.contains(&None),
            "no example has all of this:\n{block}\nthe first line that each example lacks: {all:#?}"
        );
    }
}

/// Examples in help texts are valid command lines.
#[test]
fn examples_of_help_texts_are_valid() {
    fn collect(command: &clap::Command, lines: &mut Vec<String>) {
        let texts = [command.get_after_help(), command.get_after_long_help()].into_iter().flatten();
        for text in texts {
            let text = text.to_string();
            lines.extend(text.lines().filter_map(|line| {
                let at = line
                    .find("falcon ")
                    .filter(|at| line[..*at].trim().is_empty() || line[..*at].contains('|'))?;
                Some(line[at..].to_string())
            }));
        }
        command.get_subcommands().for_each(|command| collect(command, lines));
    }
    let mut lines = Vec::new();
    collect(&Cli::command(), &mut lines);
    assert!(lines.len() > 20, "{} examples", lines.len());
    for line in lines {
        if line.starts_with("falcon COMMAND") {
            continue;
        }
        // Quoted text is one word; what follows several spaces or `>` is not part of the command.
        let command = line.split("   ").next().unwrap().split(" > ").next().unwrap();
        let words = command.split('"').enumerate().flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().map(String::from).collect::<Vec<_>>(),
            _ => vec![part.to_string()],
        });
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{line}\n{error}");
        }
    }
}

/// The targets of all links between pages, and from pages to the code, exist.
#[test]
fn targets_of_links_exist() {
    let mut pages = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    for folder in ["docs", "bench", "fuzz", "golden"] {
        let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let mut found = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") {
                continue;
            }
            found += 1;
            let file = target.split('#').next().unwrap();
            assert!(page.parent().unwrap().join(file).exists(), "{}: {target}", page.display());
        }
    }
    assert!(found > 50, "{found} links");
}

#[test]
fn completion_scripts_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = Command::new(env!("CARGO_BIN_EXE_falcon")).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && script.contains("reproduce") && script.contains("state-out"), "{shell}");
    }
}

/// An output that cannot be written is refused before the work begins.
#[test]
fn outputs_are_checked_first() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.txt"), "some text").unwrap();
    let stderr_of = |args: &[&str]| {
        let ran =
            Command::new(env!("CARGO_BIN_EXE_falcon")).current_dir(folder.path()).args(args).output().unwrap();
        assert_eq!(ran.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    let missing = "there is no folder nowhere: create it first";
    assert!(stderr_of(&["tokenizer", "train", "a.txt", "-o", "nowhere/t.json"]).contains(missing));
    assert!(stderr_of(&["report", "runs", "-o", "nowhere/r.html"]).contains(missing));
    assert!(stderr_of(&["generate", "run", "--state-out", "nowhere/m"]).contains(missing));
    assert!(stderr_of(&["bench", "generate", "--picture", "nowhere/p.svg"]).contains(missing));
    let not_a_file = stderr_of(&["generate", "run", "--state-out", "."]);
    assert!(not_a_file.contains("not a file that can be replaced"), "{not_a_file}");
}
