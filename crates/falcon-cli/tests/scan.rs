//! `falcon scan` as a program: its output, its exit codes, and that bad input leaves no files behind. `falcon-scan`
//! tests the contents of files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use falcon_scan::{Dtype, Options};
use serde_json::Value;
use tempfile::TempDir;

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../golden/{name}.safetensors"))
}

/// The output that the library makes from a golden case.
fn expected(name: &str, options: &Options) -> Vec<u8> {
    let found = falcon_scan::run(&std::fs::read(golden_path(name)).unwrap(), options).unwrap();
    found.tensors.to_bytes(&found.meta).unwrap()
}

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

/// A file that cannot be run ends with exit code 2, one line on stderr that names the file, and neither a new output
/// file nor a change of an existing one.
#[test]
fn a_refused_file_leaves_no_trace() {
    let whole = std::fs::read(golden_path("falcon3_continuation")).unwrap();
    for (what, bytes) in [("empty", &[][..]), ("garbage", &[0xa5; 100]), ("truncated", &whole[..whole.len() - 1])]
    {
        let folder = TempDir::new().unwrap();
        let [input, fresh, old] = ["in", "fresh", "old"].map(|name| folder.path().join(name));
        std::fs::write(&input, bytes).unwrap();
        // The results of an earlier scan, because no other file would be replaced.
        std::fs::write(&old, &whole).unwrap();
        for output in [&fresh, &old] {
            let ran = falcon(&["scan", path(&input), "--output", path(output), "--grad"]);
            let error = text(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{what}: {error}");
            assert!(ran.stdout.is_empty(), "{what}");
            let start = format!("error: {}: not a valid safetensors file", path(&input));
            assert!(error.starts_with(&start) && error.lines().count() == 1, "{what}: {error}");
        }
        assert_eq!(names(folder.path()), ["in", "old"], "{what}");
        assert!(std::fs::read(&old).unwrap() == whole, "{what}");
    }
}

#[test]
fn success_is_one_line_and_one_file() {
    let folder = TempDir::new().unwrap();
    let (input, output) = (golden_path("falcon3_continuation"), folder.path().join("out.safetensors"));
    let ran = falcon(&["scan", path(&input), "--output", path(&output)]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let line = text(&ran.stdout);
    assert!(line.starts_with("falcon3: T=5 H=1 dx=8 dv=8, chunked 64, f64, "), "{line}");
    assert!(line.trim_end().ends_with(path(&output)) && line.lines().count() == 1, "{line}");
    assert_eq!(names(folder.path()), ["out.safetensors"]);
    assert!(std::fs::read(&output).unwrap() == expected("falcon3_continuation", &Options::default()));
}

#[test]
fn json_describes_the_scan() {
    let folder = TempDir::new().unwrap();
    let (input, output) = (golden_path("base_rls_p0"), folder.path().join("out"));
    let args = ["scan", path(&input), "-o", path(&output), "--grad", "--dtype", "f32", "--threads", "1", "--json"];
    let ran = falcon(&args);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(report["variant"], "rls");
    assert_eq!(report["tokens"], 7);
    assert_eq!(report["dtype"], "f32");
    assert_eq!(report["grad"], true);
    assert_eq!(report["output"], path(&output));
    assert!(report["seconds"].as_f64().unwrap() >= 0.0);
    let options = Options { dtype: Dtype::F32, grad: true, ..Options::default() };
    assert!(std::fs::read(&output).unwrap() == expected("base_rls_p0", &options));
}

#[test]
fn the_output_replaces_neither_the_input_nor_other_files() {
    let folder = TempDir::new().unwrap();
    let [file, other] = ["case", "weights"].map(|name| folder.path().join(name));
    std::fs::copy(golden_path("falcon3_continuation"), &file).unwrap();
    // A safetensors file that is not the result of a scan.
    let header = br#"{"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    std::fs::write(&other, [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat()).unwrap();
    for (output, word) in [(&file, "this is the input"), (&other, "the file exists and is not results of a scan")]
    {
        let before = std::fs::read(output).unwrap();
        let ran = falcon(&["scan", path(&file), "--output", path(output)]);
        let error = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{error}");
        assert!(
            error.contains(path(output)) && error.contains(word) && error.contains("choose another name"),
            "{error}"
        );
        assert!(std::fs::read(output).unwrap() == before);
    }
    assert_eq!(names(folder.path()), ["case", "weights"]);
}

#[test]
fn help_describes_the_files() {
    let ran = falcon(&["scan", "--help"]);
    let help = text(&ran.stdout);
    assert_eq!(ran.status.code(), Some(0));
    for word in ["in.gain", "gain_kind", "save_file", "EXAMPLE", "cu_seqlens", "--chunk"] {
        assert!(help.contains(word), "{word}");
    }
    for variant in falcon_scan::variants() {
        assert!(help.split([' ', '\n']).any(|word| word == variant), "{variant}");
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
fn bad_paths_are_refused() {
    let folder = TempDir::new().unwrap();
    let input = golden_path("base_rls_p0");
    let attempt = |input: &Path, output: &Path, words: &[&str]| {
        let ran = falcon(&["scan", path(input), "--output", path(output)]);
        let error = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{error}");
        for word in words {
            assert!(error.contains(word), "{error:?} lacks {word:?}");
        }
    };
    attempt(&input, folder.path(), &["a folder", "choose another name"]);
    attempt(&input, &folder.path().join("missing/out"), &["there is no folder", "missing: create it first"]);
    attempt(&folder.path().join("absent"), &folder.path().join("out"), &["cannot read", "absent"]);
    attempt(folder.path(), &folder.path().join("out"), &["cannot read"]);
    assert!(names(folder.path()).is_empty());
    #[cfg(unix)]
    {
        // A socket stands for a device: if this test used /dev/null and failed, /dev/null would be replaced.
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        attempt(&input, &socket, &["device"]);
        assert!(!socket.metadata().unwrap().is_file());
    }
}
