//! The program itself: what it prints, its exit codes, and that bad input leaves nothing behind.

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{File, golden_path};
use serde_json::Value;
use tempfile::TempDir;

fn falcon(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_falcon")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs `bytes` and expects exit code 2, `words` on stderr, and no trace of an output: neither a new file nor a change
/// to one that was there.
fn refused(what: &str, bytes: &[u8], words: &[&str]) {
    let folder = TempDir::new().unwrap();
    let (input, fresh, old) = (folder.path().join("in"), folder.path().join("fresh"), folder.path().join("old"));
    std::fs::write(&input, bytes).unwrap();
    // Results of an earlier scan: nothing else would be replaced anyway.
    let precious = std::fs::read(golden_path("falcon3_continuation")).unwrap();
    std::fs::write(&old, &precious).unwrap();
    for output in [&fresh, &old] {
        let ran = falcon(&["scan", path(&input), "--output", path(output), "--grad"]);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{what}: {said}");
        assert!(ran.stdout.is_empty(), "{what}");
        for word in words {
            assert!(said.contains(word), "{what}: {said:?} lacks {word:?}");
        }
        assert_eq!(said.lines().count(), 1, "{what}: {said}");
    }
    assert_eq!(names(folder.path()), ["in", "old"], "{what}");
    assert!(std::fs::read(&old).unwrap() == precious, "{what}");
}

fn base() -> File {
    File::golden("falcon3_continuation")
}

#[test]
fn success_is_one_line_and_one_file() {
    let folder = TempDir::new().unwrap();
    let (input, output) = (golden_path("falcon3_continuation"), folder.path().join("out.safetensors"));
    let ran = falcon(&["scan", path(&input), "--output", path(&output)]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let said = text(&ran.stdout);
    assert!(said.starts_with("falcon3: T=5 H=1 dx=8 dv=8, chunked 64, f64, "), "{said}");
    assert!(said.trim_end().ends_with(path(&output)) && said.lines().count() == 1, "{said}");
    assert_eq!(names(folder.path()), ["out.safetensors"]);

    let found = File::parse(&std::fs::read(&output).unwrap());
    let golden = File::parse(&std::fs::read(&input).unwrap());
    assert_eq!(found.meta, golden.meta);
    assert!(found.tensors.keys().all(|name| name.starts_with("out.") || name.starts_with("aux.")));
    for (a, b) in found.numbers("out.o").iter().zip(golden.numbers("out.o")) {
        assert!((a - b).abs() < 1e-12);
    }
}

#[test]
fn json_says_the_same() {
    let folder = TempDir::new().unwrap();
    let (input, output) = (golden_path("base_rls_p0"), folder.path().join("out"));
    let args = ["scan", path(&input), "-o", path(&output), "--grad", "--dtype", "f32", "--threads", "1", "--json"];
    let ran = falcon(&args);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let said: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(said["variant"], "rls");
    assert_eq!(said["tokens"], 7);
    assert_eq!(said["dtype"], "f32");
    assert_eq!(said["grad"], true);
    assert_eq!(said["output"], path(&output));
    assert!(said["seconds"].as_f64().unwrap() >= 0.0);
    let found = File::parse(&std::fs::read(&output).unwrap());
    assert_eq!(found.tensors["grad.k"].dtype, safetensors::Dtype::F32);
}

#[test]
fn the_output_replaces_neither_the_input_nor_other_files() {
    let folder = TempDir::new().unwrap();
    let (file, other) = (folder.path().join("case"), folder.path().join("weights"));
    std::fs::write(&file, base().bytes()).unwrap();
    // A safetensors file, but no results of a scan.
    std::fs::copy(&file, &other).unwrap();
    for (output, word) in [(&file, "this is the input"), (&other, "another kind than results of a scan")] {
        let ran = falcon(&["scan", path(&file), "--output", path(output)]);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(
            said.contains(path(output)) && said.contains(word) && said.contains("choose another name"),
            "{said}"
        );
        assert!(std::fs::read(output).unwrap() == base().bytes());
    }
    assert_eq!(names(folder.path()), ["case", "weights"]);
}

#[test]
fn help_teaches() {
    let ran = falcon(&["scan", "--help"]);
    let said = text(&ran.stdout);
    assert_eq!(ran.status.code(), Some(0));
    for word in ["in.gain", "gain_kind", "save_file", "EXAMPLE", "cu_seqlens", "--chunk"] {
        assert!(said.contains(word), "{word}");
    }
    for variant in falcon_cli::scan::variants() {
        assert!(said.split([' ', '\n']).any(|word| word == variant), "{variant}");
    }
    assert_eq!(falcon(&["--help"]).status.code(), Some(0));
    assert_eq!(falcon(&["scan", "-h"]).status.code(), Some(0));
}

#[test]
fn bad_arguments_exit_with_2() {
    let input = golden_path("base_rls_p0");
    let input = path(&input);
    for args in [
        &["scan"][..],
        &["scan", input],
        &["scan", input, "-o", "x", "--form", "fast"],
        &["scan", input, "-o", "x", "--chunk", "0"],
        &["scan", input, "-o", "x", "--threads", "0"],
        &["scan", input, "-o", "x", "--dtype", "f16"],
        &["dance"],
    ] {
        assert_eq!(falcon(args).status.code(), Some(2), "{args:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_closed_stdout_is_no_error() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out");
    let input = golden_path("base_rls_p0");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = Command::new(env!("CARGO_BIN_EXE_falcon"))
        .args(["scan", path(&input), "--output", path(&output)])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert!(ran.stderr.is_empty() && output.exists());
}

#[test]
fn broken_containers_are_refused() {
    let bytes = base().bytes();
    refused("empty", b"", &["safetensors"]);
    refused("garbage", &[0xa5; 100], &["safetensors"]);
    for length in [4, 9, 200, bytes.len() - 1] {
        refused("truncated", &bytes[..length], &["safetensors"]);
    }
    refused("trailing bytes", &[&bytes[..], &[0]].concat(), &["safetensors"]);
    let mut lying = bytes.clone();
    lying[..8].copy_from_slice(&(1u64 << 60).to_le_bytes());
    refused("header length", &lying, &["safetensors", "header too large"]);

    let header =
        |header: &str, data: &[u8]| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    let tensor = r#"{"dtype":"F64","shape":[1],"data_offsets":[0,8]}"#;
    let meta = r#""__metadata__":{"meta":"{}"}"#;
    refused("no meta", &header(&format!(r#"{{"in.q":{tensor}}}"#), &[0; 8]), &["meta", "json.dumps"]);
    refused("overlap", &header(&format!(r#"{{{meta},"a":{tensor},"b":{tensor}}}"#), &[0; 8]), &["offset"]);
    refused("twice", &header(&format!(r#"{{{meta},"a":{tensor},"a":{tensor}}}"#), &[0; 8]), &["\"a\" twice"]);
    let huge = r#"{"dtype":"F64","shape":[4294967296,4294967296,16],"data_offsets":[0,8]}"#;
    refused("huge shape", &header(&format!(r#"{{{meta},"a":{huge}}}"#), &[0; 8]), &["overflow"]);
    let empty = header(&format!("{{{meta}}}"), &[]);
    refused("empty meta", &empty, &["meta has no \"kind\""]);
    let not_json = header(r#"{"__metadata__":{"meta":"{"}}"#, &[]);
    refused("meta is not JSON", &not_json, &["meta", "JSON"]);
    let mut not_utf8 = empty.clone();
    not_utf8[12] = 0xff;
    refused("not UTF-8", &not_utf8, &["safetensors", "UTF-8"]);
}

#[test]
fn bad_meta_is_refused() {
    let base = base();
    refused("window 0", &base.with("B", 0).bytes(), &["\"B\" is 0", "at least 1"]);
    refused("tail longer than the window", &base.with("B", 6).bytes(), &["\"B\" is 6", "6 pairs"]);
    refused("no window", &base.with("B", Value::Null).bytes(), &["no \"B\"", "falcon3"]);
    refused("negative window", &base.with("B", -3).bytes(), &["\"B\" is -3"]);
    refused("variant", &base.with("variant", "falcon9").bytes(), &["\"falcon9\"", "falcon3a"]);
    refused("kind", &base.with("kind", "baseline").bytes(), &["\"falcon3\"", "deltanet"]);
    refused("no align", &base.with("align", Value::Null).bytes(), &["no \"align\"", "\"next\""]);
    refused("no eps", &base.with("eps", Value::Null).bytes(), &["no \"eps\"", "beta"]);
    refused("eps_gamma", &base.with("eps_gamma", 1.0).bytes(), &["\"eps_gamma\" is 1.0", "[0, 1)"]);
    refused("T", &base.with("T", 6).bytes(), &["\"T\" is 6", "in.q has size 5"]);
    refused("H", &base.with("H", "1").bytes(), &["\"H\" is \"1\"", "whole number"]);
    refused(
        "continued",
        &base.with("continued", false).bytes(),
        &["\"continued\" is false", "in.k_last is there"],
    );
    refused("sentinel", &base.with("sentinel", true).bytes(), &["\"sentinel\" is true"]);
    refused("window of falcon1", &File::golden("falcon1_clamp").with("B", 4).bytes(), &["\"B\" is 4", "falcon3"]);
    refused("order", &File::golden("base_ssm_zoh_p0").with("order", "second").bytes(), &["\"second\"", "\"zoh\""]);
}

#[test]
fn bad_tensors_are_refused() {
    let base = base();
    let mut short = base.clone();
    short.set("in.k", &[4, 1, 8], &[0.5; 32]);
    refused("shape", &short.bytes(), &["in.k has shape [4, 1, 8]", "[5, 1, 8]"]);
    let mut flat = base.clone();
    flat.set("in.q", &[5, 8], &[0.5; 40]);
    refused("rank", &flat.bytes(), &["in.q has shape [5, 8]", "3 axes"]);
    let mut hollow = base.clone();
    hollow.set("in.v", &[5, 1, 0], &[]);
    refused("zero width", &hollow.bytes(), &["in.v has shape [5, 1, 0]", "at least 1"]);
    refused("no values", &base.without("in.v").bytes(), &["in.v is missing"]);
    refused("no gain", &base.without("in.gain").bytes(), &["in.gain is missing", "falcon3 needs it"]);
    refused("no upstream", &base.without("up.o").bytes(), &["up.o is missing", "--grad"]);
    refused("half a tail", &base.without("in.tail_v").bytes(), &["in.tail_v is missing", "in.tail_x"]);
    let mut typo = base.clone();
    typo.set("in.lambda", &[5, 1], &[0.0; 5]);
    refused("unknown tensor", &typo.bytes(), &["does not use in.lambda"]);
    refused("ridge off", &base.with("ridge", "off").bytes(), &["does not use in.lam"]);
    refused("last key with same", &base.with("align", "same").bytes(), &["does not use in.k_last"]);
    let mut integers = base.clone();
    integers.tensors.get_mut("in.q").unwrap().dtype = safetensors::Dtype::I64;
    refused("integers", &integers.bytes(), &["in.q is I64", "F32"]);
    let mut heads = File::golden("falcon2_ridge_off");
    heads.set("in.q", &[12, 3, 8], &[0.5; 288]);
    refused("groups", &heads.bytes(), &["in.v has 2 heads and in.q 3"]);
}

/// Only the sliding rules keep pairs. Of a tail that is empty they would have to say so, too.
#[test]
fn tails_of_rules_without_a_window_are_refused() {
    for packed in [false, true] {
        let mut file = File::golden("falcon1_clamp");
        let [tokens, heads, dim_k] = file.tensors["in.q"].shape[..] else { panic!() };
        let dim_v = file.tensors["in.v"].shape[2];
        file.meta.remove("continued");
        file.meta.remove("sentinel");
        file.meta.remove("n_tail");
        let lead = if packed { vec![1] } else { vec![] };
        for (name, shape, needed) in [
            ("in.k_last", [heads, dim_k].to_vec(), true),
            ("in.tail_x", [2, heads, dim_k].to_vec(), true),
            ("in.tail_v", [2, heads, dim_v].to_vec(), true),
            ("in.S0", [heads, dim_k, dim_v].to_vec(), false),
            ("up.S", [heads, dim_k, dim_v].to_vec(), false),
        ] {
            if needed || file.tensors.contains_key(name) {
                let shape = [&lead[..], &shape].concat();
                file.set(name, &shape, &vec![0.5; shape.iter().product()]);
            }
        }
        if packed {
            file.set_integers("in.cu_seqlens", &[0, tokens as i64]);
            file.set_integers("in.tail_len", &[0]);
        }
        refused("a tail of falcon1", &file.bytes(), &["falcon1 does not use in.tail_"]);
        let (file, name) = (file.without("in.tail_x").without("in.tail_v"), "in.tail_len");
        if packed {
            refused("lengths of tails", &file.bytes(), &["falcon1 does not use in.tail_len"]);
            refused("n_tail", &file.without(name).with("n_tail", 2).bytes(), &["\"n_tail\" is 2"]);
        }
    }
}

#[test]
fn bad_numbers_are_refused() {
    let base = base();
    for (value, word) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let said = |place: &str| format!("{place} is {word}: inputs must be finite");
        for (name, at, place) in [
            ("in.q", 9, "in.q[1, 0, 1]"),
            ("in.k", 39, "in.k[4, 0, 7]"),
            ("in.v", 0, "in.v[0, 0, 0]"),
            ("in.S0", 17, "in.S0[0, 2, 1]"),
            ("in.gain", 3, "in.gain[3, 0]"),
            ("in.lam", 2, "in.lam[2, 0]"),
            ("in.k_last", 5, "in.k_last[0, 5]"),
            ("in.tail_x", 8, "in.tail_x[1, 0, 0]"),
            ("in.tail_v", 47, "in.tail_v[5, 0, 7]"),
            ("up.o", 1, "up.o[0, 0, 1]"),
            ("up.S", 63, "up.S[0, 7, 7]"),
        ] {
            refused(name, &base.poke(name, at, value).bytes(), &[&said(place)]);
        }
    }
    refused("beta", &base.poke("in.gain", 3, 2.5).bytes(), &["in.gain[3, 0] is 2.5: beta must be in [0, 2]"]);
    refused("ridge", &base.poke("in.lam", 1, -0.5).bytes(), &["in.lam[1, 0] is -0.5: lambda must be at least 0"]);
    let columns = File::golden("falcon2_clamp").poke("in.gain", 6, -1.0);
    refused("per-column gain", &columns.bytes(), &["in.gain[1, 0, 2] is -1: beta"]);
    let retnet = File::golden("base_retnet_p0").poke("in.decay", 1, 1.5);
    refused("decay", &retnet.bytes(), &["in.decay[1] is 1.5: gamma must be in [0, 1]"]);
    let rls = File::golden("base_rls_p0").poke("in.lam", 1, 0.0);
    refused("lambda", &rls.bytes(), &["in.lam[1] is 0: lambda must be greater than 0"]);
    let ssm = File::golden("base_ssm_zoh_p0").poke("in.dt", 3, -0.25);
    refused("dt", &ssm.bytes(), &["in.dt[1, 1] is -0.25", "at least 0"]);
    let grows = File::golden("base_ssm_zoh_p0").poke("in.A", 0, 1e6);
    refused("overflow", &grows.bytes(), &["the result out.", "scale them down"]);
}

/// Widths multiply: a small file can ask for terabytes.
#[test]
fn allocation_bombs_are_refused() {
    let wide = 1 << 20;
    let mut file = File::golden("base_linattn_same_p0");
    file.tensors.clear();
    for key in ["T", "H", "dx", "dv"] {
        file.meta.remove(key);
    }
    for name in ["in.q", "in.k", "in.v", "up.o"] {
        file.set(name, &[1, 1, wide], &vec![0.0; wide]);
    }
    refused("wide", &file.bytes(), &["GiB", "--max-memory"]);
    for name in ["in.q", "in.k", "in.v", "up.o"] {
        file.set(name, &[0, 1 << 40, 1 << 20], &[]);
    }
    refused("no tokens, many heads", &file.bytes(), &["GiB", "--max-memory"]);

    // A window no tensor bounds costs nothing.
    let folder = TempDir::new().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    std::fs::write(&input, base().with("B", u64::MAX).bytes()).unwrap();
    let ran = falcon(&["scan", path(&input), "--output", path(&output)]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    // 6 pairs of the tail, and 5 new ones.
    assert_eq!(File::parse(&std::fs::read(&output).unwrap()).tensors["out.tail_x"].shape, [11, 1, 8]);
}

#[test]
fn bad_paths_are_refused() {
    let folder = TempDir::new().unwrap();
    let input = golden_path("base_rls_p0");
    let attempt = |input: &Path, output: &Path, words: &[&str]| {
        let ran = falcon(&["scan", path(input), "--output", path(output)]);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{said}");
        for word in words {
            assert!(said.contains(word), "{said:?} lacks {word:?}");
        }
    };
    attempt(&input, folder.path(), &["a folder", "give another name"]);
    attempt(&input, &folder.path().join("missing/out"), &["there is no folder", "missing: make it first"]);
    attempt(&folder.path().join("absent"), &folder.path().join("out"), &["cannot read", "absent"]);
    attempt(folder.path(), &folder.path().join("out"), &["cannot read"]);
    assert!(names(folder.path()).is_empty());
    #[cfg(unix)]
    {
        // Stands for /dev/null, which a test had better not touch: renaming over it would replace it.
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        attempt(&input, &socket, &["device"]);
        assert!(!socket.metadata().unwrap().is_file());
    }
}
