//! `falcon bench`: its output and its errors. Speeds are not tested here.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use falcon_kernels::Rule;
use serde_json::Value;

const TINY: [&str; 8] = ["--tokens", "70", "--dims", "8", "--heads", "2", "--repeats", "1"];

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_falcon")).args(["bench", "kernels"]).args(args).output().unwrap()
}

fn serve(requests: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_falcon"))
        .args(["bench", "kernels", "--serve"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The process may end before it has read everything.
    let _ = process.stdin.take().unwrap().write_all(requests.as_bytes());
    process.wait_with_output().unwrap()
}

fn stderr_of(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

fn rows(args: &[&str]) -> Vec<Value> {
    let ran = bench(&[&TINY[..], &["--json"], args].concat());
    assert!(ran.status.success(), "{}", stderr_of(&ran));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// The rows of one table, each with all `fields`, finite and positive.
fn table<'a>(rows: &'a [Value], name: &str, fields: &[&str]) -> Vec<&'a Value> {
    let rows: Vec<_> = rows.iter().filter(|row| row["table"] == name).collect();
    for row in &rows {
        for field in fields {
            let value = row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"));
            assert!(value.is_finite() && value > 0.0, "{field} of {row}");
        }
    }
    rows
}

const KERNELS: [&str; 15] = [
    "tokens",
    "dim",
    "heads",
    "batch",
    "threads",
    "chunk",
    "repeats",
    "forward_ms",
    "both_ms",
    "forward_tokens_per_second",
    "both_tokens_per_second",
    "forward_gflops",
    "both_gflops",
    "forward_of_gemm",
    "forward_us_per_token_head",
];

#[test]
fn every_rule_has_a_row_with_every_figure() {
    let rows = rows(&["--batch", "2"]);
    let kernels = table(&rows, "kernels", &KERNELS);
    assert_eq!(kernels.len(), Rule::ALL.len() - 2, "all rules but the two that are only timed on request");
    assert!(kernels.iter().all(|row| row["backward_over_forward"].is_number() && row["batch"] == 2));
    assert_eq!(table(&rows, "gemm", &["threads", "gflops", "side"]).len(), 1);
    let figures = ["ns_per_token", "tokens_per_second", "gb_per_second", "machine_gb_per_second", "of_machine"];
    assert_eq!(table(&rows, "decode", &figures).len(), 2);
}

#[test]
fn rules_and_threads_can_be_chosen() {
    let rows = rows(&["--rules", "online-ridge,retnet", "--threads", "1,2"]);
    let values = |name: &str, key: &str| -> Vec<String> {
        table(&rows, name, &[]).iter().map(|row| row[key].to_string()).collect()
    };
    assert_eq!(values("kernels", "threads"), ["1", "1", "2", "2"]);
    assert_eq!(values("kernels", "rule")[..2], [r#""online-ridge""#, r#""retnet""#]);
    assert_eq!(values("gemm", "threads"), ["1", "2"]);
    assert_eq!(values("decode", "rule").len(), 4);
}

#[test]
fn tables_can_be_left_out() {
    let (only, without) = (rows(&["--decode"]), rows(&["--no-decode", "--rules", "falcon-1"]));
    assert!(!only.is_empty() && only.iter().all(|row| row["table"] == "decode"));
    assert!(!without.is_empty() && without.iter().all(|row| row["table"] != "decode"));
}

#[test]
fn scaling_measures_each_length_in_its_own_process() {
    let rows = rows(&["--scaling", "--rules", "falcon-1", "--tokens", "4096"]);
    let figures = ["tokens", "forward_ns_per_token", "forward_relative", "both_ns_per_token", "both_relative"];
    let rows = table(&rows, "scaling", &figures);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["forward_relative"], 1.0);
    if let (Some(short), Some(long)) = (rows[0]["both_peak_bytes"].as_u64(), rows[1]["both_peak_bytes"].as_u64()) {
        assert!(short < long);
        assert!(rows[1]["forward_peak_bytes"].as_u64().unwrap() < long);
    }
}

#[test]
fn tables_are_printed_by_default() {
    let ran = bench(&[&TINY[..], &["--rules", "falcon-1"]].concat());
    let out = String::from_utf8(ran.stdout).unwrap();
    for words in ["This machine", "Kernels: f32, 2 heads, 1 sequence", "fwd %gemm", "falcon-1", "Decode:"] {
        assert!(out.contains(words), "{out:?} lacks {words:?}");
    }
    let help = bench(&["--help"]);
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("EXAMPLES") && help.contains("--scaling") && !help.contains("--serve"), "{help}");
}

#[test]
fn bad_arguments_are_refused() {
    for args in [
        &["--tokens", "0"][..],
        &["--tokens", "many"],
        &["--tokens", "1024,"],
        &["--dims", "0"],
        &["--dims", "64,4096"],
        &["--heads", "0"],
        &["--batch", "0"],
        &["--threads", "0"],
        &["--threads", "1,0"],
        &["--chunk", "0"],
        &["--repeats", "0"],
        &["--rules", "falcon-9"],
        &["--decode", "--no-decode"],
        &["--decode", "--scaling"],
        &["--tokens", "16777216", "--heads", "1024"],
        &["--scaling", "--tokens", "16777216", "--heads", "1024"],
        &["--decode", "--heads", "1024", "--dims", "1024"],
        // Each size alone would fit.
        &["--no-decode", "--heads", "64", "--dims", "512", "--tokens", "8192,8193"],
        &["--scaling", "--heads", "64", "--dims", "512", "--tokens", "8192,8193"],
    ] {
        let ran = bench(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {}", stderr_of(&ran));
        assert!(ran.stdout.is_empty(), "{args:?}");
        assert!(stderr_of(&ran).starts_with("error: "), "{args:?}: {}", stderr_of(&ran));
    }
    assert!(stderr_of(&bench(&["--rules", "falcon-9"])).contains("falcon-1, falcon-2"));
    assert!(stderr_of(&bench(&["--tokens", "16777216", "--heads", "1024"])).contains("GiB, the limit is "));
}

/// Within the limit of all benchmarks, but more than there is.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_is_not_available_is_not_asked_for() {
    let script = "ulimit -v 4000000; exec \"$@\"";
    let program =
        [env!("CARGO_BIN_EXE_falcon"), "bench", "kernels", "--decode", "--heads", "300", "--dims", "1024"];
    let ran = Command::new("sh").args(["-c", script, "sh"]).args(program).output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "{}", stderr_of(&ran));
    let stderr = stderr_of(&ran);
    assert!(stderr.contains("this needs about 4.9 GiB, the limit is 3."), "{stderr}");
}

#[test]
fn requests_are_answered_line_by_line() {
    let request = |mode: &str, tokens: usize| {
        format!(
            r#"{{"rule":"falcon-2","tokens":{tokens},"dim":8,"heads":2,"threads":1,"mode":"{mode}","chunk":16}}"#
        )
    };
    let requests = [request("forward", 70), request("both", 70), request("forward", 70)].join("\n");
    let ran = serve(&requests);
    assert!(ran.status.success(), "{}", stderr_of(&ran));
    let answers: Vec<Value> = ran.stdout.split(|&b| b == b'\n').flat_map(serde_json::from_slice).collect();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer["seconds"].as_f64().unwrap() > 0.0));
    for (bad, words) in [
        ("hello".into(), "request 1: expected value"),
        (request("forward", 0), "request 1: tokens must be in 1..=16777216, got 0"),
        (request("backward", 1), "unknown variant `backward`"),
        (request("both", 1).replace("falcon-2", "falcon-9"), "no rule \"falcon-9\""),
    ] {
        let ran = serve(&bad);
        assert_eq!(ran.status.code(), Some(2), "{bad}");
        assert!(stderr_of(&ran).contains(words), "{}", stderr_of(&ran));
    }
}

#[test]
fn generation_is_timed_after_every_context() {
    let run = |args: &[&str]| {
        let few = ["bench", "generate", "--size", "micro", "--contexts", "300,20", "--tokens", "2"];
        Command::new(env!("CARGO_BIN_EXE_falcon")).args(few).args(args).output().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("picture.svg");
    let ran = run(&["--models", "falcon-1.3,transformer", "--json", "--picture", &picture.display().to_string()]);
    assert!(ran.status.success(), "{}", stderr_of(&ran));
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.contains("falcon-1.3</text>") && picture.contains("transformer</text>"), "{picture}");
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    let results = |model: &str| -> Vec<&Value> { rows.iter().filter(|row| row["model"] == model).collect() };
    let (falcon, transformer) = (results("falcon-1.3"), results("transformer"));
    for results in [&falcon, &transformer] {
        let contexts: Vec<_> = results.iter().map(|result| result["context"].as_u64().unwrap()).collect();
        assert_eq!(contexts, [20, 300]);
        assert!(results.iter().all(|result| result["seconds_per_token"].as_f64().unwrap() > 0.0));
    }
    assert_eq!(falcon[0]["state_bytes"], falcon[1]["state_bytes"], "the state of Falcon-1.3 does not grow");
    // Two layers with 128 numbers of keys and 128 of values per token, for the context and four more tokens.
    assert_eq!(transformer[1]["state_bytes"], (300 + 4) * 2 * 256 * 4);
    // Only if the system reports the free memory.
    if std::path::Path::new("/proc/meminfo").exists() {
        let wide = run(&["--models", "transformer", "--contexts", "1000000000"]);
        assert!(
            String::from_utf8_lossy(&wide.stdout).contains("too large for this memory"),
            "{}",
            stderr_of(&wide)
        );
    }
    // Names are checked before anything is measured.
    let unknown = run(&["--models", "transformer,falcon-9"]);
    assert!(stderr_of(&unknown).contains("falcon-9") && unknown.stdout.is_empty());
}

/// Weights in fewer bits need less memory, and sequences side by side keep a state each.
#[test]
fn generation_is_timed_for_every_format_and_for_many_sequences() {
    let run = |args: &[&str]| -> Vec<Value> {
        let few = ["bench", "generate", "--models", "falcon-1a.3", "--contexts", "20", "--tokens", "2", "--json"];
        let ran = Command::new(env!("CARGO_BIN_EXE_falcon")).args(few).args(args).output().unwrap();
        assert!(ran.status.success(), "{}", stderr_of(&ran));
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let rows = run(&["--size", "tiny", "--weights", "f32,bf16,int8"]);
    let formats: Vec<&str> = rows.iter().map(|row| row["weights"].as_str().unwrap()).collect();
    assert_eq!(formats, ["f32", "bf16", "int8"]);
    if let [Some(full), Some(half), Some(third)] =
        [0, 1, 2].map(|format: usize| rows[format]["resident_bytes"].as_u64())
    {
        // 7.2 million parameters of 4 bytes, of 2, or of 1.125, beside what every process has.
        assert!(half + 10_000_000 < full && third + 4_000_000 < half, "{full} {half} {third}");
    }
    let rows = run(&["--size", "micro", "--sequences", "3"]);
    let one = run(&["--size", "micro"]);
    assert_eq!(rows[0]["state_bytes"].as_u64().unwrap(), 3 * one[0]["state_bytes"].as_u64().unwrap());
    let (all, each) = (&rows[0]["tokens_per_second"], &rows[0]["seconds_per_token"]);
    assert!((all.as_f64().unwrap() * each.as_f64().unwrap() - 3.0).abs() < 1e-9);
}

/// The row of a context whose process failed does not affect the others.
#[cfg(unix)]
#[test]
fn a_context_that_cannot_be_measured_has_a_row() {
    // A cache of 400 MB, in a process whose memory is limited to that.
    let script = "ulimit -v 400000; exec \"$@\"";
    let few =
        ["bench", "generate", "--size", "micro", "--contexts", "20,200000", "--tokens", "1", "--threads", "1"];
    let models = ["--models", "transformer,falcon-1a.3", "--contexts", "20"];
    let ran = |args: &[&str]| {
        let mut outer = Command::new("bash");
        outer.args(["-c", script, "bash", env!("CARGO_BIN_EXE_falcon")]).args(args).output().unwrap()
    };
    assert!(
        ran(&[&few[..4], &models, &few[6..]].concat()).status.success(),
        "a context of 20 tokens fits into the limit"
    );
    let ran = ran(&[&few[..], &models[..2], &["--json"]].concat());
    assert_eq!(ran.status.code(), Some(2), "{}", stderr_of(&ran));
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    let kinds: Vec<&str> = rows.iter().map(|row| row["context_is"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["random", "failed", "read", "read"], "{}", stderr_of(&ran));
    assert!(
        stderr_of(&ran).contains("error: the process that measures transformer ended early"),
        "{}",
        stderr_of(&ran)
    );
}

/// Tokens that are generated after one context are not part of the next, even if the contexts are close together.
#[test]
fn every_context_is_measured_at_its_length() {
    let few = ["bench", "generate", "--size", "micro", "--models", "falcon-1a.3", "--contexts", "20,24", "--json"];
    let ran = Command::new(env!("CARGO_BIN_EXE_falcon")).args(few).args(["--tokens", "9"]).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    let contexts: Vec<u64> = rows.iter().map(|row| row["context"].as_u64().unwrap()).collect();
    assert_eq!(contexts, [20, 24]);
}

#[test]
fn training_steps_are_timed() {
    let few = [
        "bench",
        "train",
        "--no-peer",
        "--models",
        "falcon-1a.3",
        "--batch",
        "1",
        "--time",
        "4",
        "--repeats",
        "1",
    ];
    let ran = Command::new(env!("CARGO_BIN_EXE_falcon")).args(few).arg("--json").output().unwrap();
    assert!(ran.status.success(), "{}", stderr_of(&ran));
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(
        rows.len() == 1 && rows[0]["name"] == "falcon-1a.3" && rows[0]["ms"].as_f64().unwrap() > 0.0,
        "{rows:?}"
    );
}

fn train_steps(args: &[&str]) -> Output {
    let few = ["bench", "train", "--models", "falcon-1a.3", "--repeats", "1"];
    Command::new(env!("CARGO_BIN_EXE_falcon")).args(few).args(args).output().unwrap()
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let ran = train_steps(&["--no-peer", "--batch", "65536", "--time", "65536"]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr_of(&ran).contains("GiB: use fewer or smaller --batch or --tokens"), "{}", stderr_of(&ran));
}

/// A shell script takes the place of PyTorch.
#[cfg(unix)]
#[test]
fn steps_are_timed_beside_a_peer() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python");
    let train_steps_with = |script: &str| {
        std::fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        train_steps(&["--batch", "1", "--tokens", "4", "--json", "--python", python.to_str().unwrap()])
    };
    let hello = r#"echo '{"torch": "9.9", "parameters": 7}'"#;
    let ran = train_steps_with(&format!("{hello}; while read line; do echo 0.5; done"));
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", stderr_of(&ran)));
    assert_eq!(rows[0]["name"], "PyTorch eager 9.9, transformer");
    assert_eq!(
        (&rows[0]["parameters"], &rows[0]["ms"], &rows[0]["ratio"]),
        (&7.into(), &500.0.into(), &1.0.into())
    );
    assert!(rows[1]["name"] == "falcon-1a.3" && rows[1]["ratio"].as_f64().unwrap() > 1.0, "{rows:?}");
    for (script, words) in [
        ("exit 1", "PyTorch ended early (exit status: 1); is torch installed"),
        ("echo hello", "PyTorch answered \"hello\""),
        (&format!("{hello}; read line; exit 4"), "PyTorch ended early (exit status: 4)"),
        (&format!("{hello}; read line; echo soon; read line"), "PyTorch answered \"soon\""),
    ] {
        let ran = train_steps_with(script);
        assert_eq!(ran.status.code(), Some(2), "{script}");
        assert!(stderr_of(&ran).contains(words), "{script}: {}", stderr_of(&ran));
    }
    // Without a terminal, only long work prints lines.
    let slow = train_steps_with(&format!("sleep 3; {hello}; while read line; do echo 0.5; done"));
    assert_eq!((stderr_of(&ran), stderr_of(&slow)), (String::new(), "starting PyTorch eager  2 seconds\n".into()));
    let none = train_steps(&["--python", "/nowhere/python"]);
    assert!(
        stderr_of(&none).contains("/nowhere/python: No such file") && stderr_of(&none).contains("--no-peer"),
        "{}",
        stderr_of(&none)
    );
}

/// `falcon bench` with options of `--check` and `--record`, in a folder.
fn ratios(folder: &std::path::Path, args: &[&str]) -> Output {
    let few = ["--repeats", "1", "--rows", "falcon-1a, d 32", "--rows", "generate, int8"];
    Command::new(env!("CARGO_BIN_EXE_falcon"))
        .arg("bench")
        .args(args)
        .args(few)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// A recorded file with every ratio changed.
fn change_ratios(file: &std::path::Path, change: impl Fn(f64) -> f64) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for section in json["sections"].as_object_mut().unwrap().values_mut() {
        for ratio in section["ratios"].as_object_mut().unwrap().values_mut() {
            *ratio = change(ratio.as_f64().unwrap()).into();
        }
    }
    std::fs::write(file, json.to_string()).unwrap();
}

#[test]
fn ratios_are_recorded_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, file) = (folder.path(), folder.path().join("ratios.json"));
    let check = |args: &[&str]| ratios(folder, &[&["--check", "ratios.json"], args].concat());
    assert!(stderr_of(&check(&[])).contains("ratios.json: No such file"));

    let ran = ratios(folder, &["--record", "ratios.json", "--json"]);
    assert!(ran.status.success(), "{}", stderr_of(&ran));
    let recorded: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    let names: Vec<&str> = recorded.iter().map(|row| row["row"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["falcon-1a, d 32, forward", "falcon-1a, d 32, forward and backward", "falcon-1a.3, generate, int8"]
    );
    let text: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let section = recorded[0]["instructions"].as_str().unwrap();
    for row in &recorded {
        let ratio = row["recorded"].as_f64().unwrap();
        assert!(ratio > 0.0 && ratio < 3.0, "{row}");
        assert_eq!(text["sections"][section]["ratios"][row["row"].as_str().unwrap()], ratio);
    }

    // Other programs may disturb a single round, but not by so much in every attempt.
    change_ratios(&file, |ratio| ratio / 30.0);
    let ran = check(&["--json"]);
    assert_eq!((ran.status.code(), stderr_of(&ran)), (Some(0), String::new()));
    let rows: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|row| row["verdict"] == "kept"), "{rows:?}");
    change_ratios(&file, |ratio| ratio * 900.0);
    let ran = check(&[]);
    assert_eq!(ran.status.code(), Some(1), "{}", stderr_of(&ran));
    assert!(
        stderr_of(&ran)
            .contains("3 of 3 ratios fell by more than 15% below ratios.json: \n  falcon-1a, d 32, forward\n"),
        "{}",
        stderr_of(&ran)
    );
    let table = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(table.lines().filter(|line| line.ends_with("fell")).count(), 3, "{table}");
}

/// Rows that cannot be compared are named, and other sections of the file stay.
#[test]
fn what_cannot_be_compared_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, file) = (folder.path(), folder.path().join("ratios.json"));
    let sections = |sections: &str| {
        let text = format!(r#"{{"format": 1, "about": "", "sections": {{{sections}}}}}"#);
        std::fs::write(&file, text).unwrap();
    };
    let check = |args: &[&str]| ratios(folder, &[&["--check", "ratios.json"], args].concat());
    sections(r#""abacus": {"machine": "beads", "version": "1", "ratios": {"falcon-1a, d 32, forward": 0.5}}"#);
    let ran = check(&[]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(
        stderr_of(&ran).contains("it has ratios for abacus, and this machine has ")
            && stderr_of(&ran).contains("record some with falcon bench --record ratios.json"),
        "{}",
        stderr_of(&ran)
    );
    let ran = check(&["--skip-unknown", "--json"]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr_of(&ran));
    assert!(stderr_of(&ran).starts_with("nothing is compared: ratios.json: "), "{}", stderr_of(&ran));
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "[]");

    assert!(ratios(folder, &["--record", "ratios.json"]).status.success());
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["sections"]["abacus"]["ratios"]["falcon-1a, d 32, forward"], 0.5);
    for (name, section) in json["sections"].as_object_mut().unwrap() {
        if name != "abacus" {
            section["machine"] = "another".into();
            let ratios = section["ratios"].as_object_mut().unwrap();
            ratios.remove("falcon-1a, d 32, forward").unwrap();
            ratios.insert("falcon-1a, d 32, backward in time".into(), 0.5.into());
        }
    }
    std::fs::write(&file, json.to_string()).unwrap();
    change_ratios(&file, |ratio| ratio / 30.0);
    let ran = check(&[]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr_of(&ran));
    for note in [
        "note: recorded on another machine (another, and this is ",
        "note: \"falcon-1a, d 32, forward\" is not compared, because the file does not have it",
        "note: \"falcon-1a, d 32, backward in time\" is not compared, because this version does not measure it",
    ] {
        assert!(stderr_of(&ran).contains(note), "{note}: {}", stderr_of(&ran));
    }

    std::fs::write(&file, "not JSON").unwrap();
    for verb in ["--check", "--record"] {
        let ran = ratios(folder, &[verb, "ratios.json"]);
        assert_eq!(ran.status.code(), Some(2));
        assert!(stderr_of(&ran).contains("ratios.json: "), "{}", stderr_of(&ran));
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"not JSON");
}

#[test]
fn options_of_comparisons_are_checked() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_falcon")).arg("bench").args(args).output().unwrap();
    for (args, message) in [
        (&["--check", "a", "--record", "b"][..], "cannot be used with"),
        (&["--record", "b", "--tolerance", "5"], "cannot be used with"),
        (&["--check", "a", "--tolerance", "100"], "100 is not in 1..=99"),
        (&["--json"], "required"),
        (&["--check", "a", "kernels"], "cannot be used with"),
        (
            &["--record", "new.json", "--rows", "sums"],
            "no row has \"sums\" in its name; the rows are\n  falcon-1, d 32",
        ),
        (&["--record", "nowhere/new.json"], "there is no folder nowhere"),
    ] {
        let ran = run(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}");
        assert!(stderr_of(&ran).contains(message), "{args:?}: {}", stderr_of(&ran));
    }
    assert!(stderr_of(&run(&[])).contains("--check <FILE>"), "{}", stderr_of(&run(&[])));
}
