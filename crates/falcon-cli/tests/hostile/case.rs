//! A case of the tables, and how it is run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A command with bad input, and what it must do.
pub struct Case {
    /// What is wrong with the input.
    pub name: &'static str,
    /// Writes the input into the folder that the command runs in.
    pub files: fn(&Path),
    /// The arguments of `falcon`, separated by spaces.
    pub command: &'static str,
    /// The file in the folder that is stdin; by default `/dev/null`.
    pub stdin: Option<&'static str>,
    /// The expected outcome.
    pub expect: Expect,
    /// The limit of the program's address space, in MiB.
    pub memory: u64,
    /// Seconds after which the command counts as hanging: far more than it needs, so that slow machines pass.
    pub seconds: u64,
}

/// The expected outcome of a command.
pub enum Expect {
    /// Exit code 2, with all of these words in the error.
    Refused(&'static [&'static str]),
    /// Exit code 0, with all of these words on stdout or stderr.
    Works(&'static [&'static str]),
}

impl Case {
    /// A case that is refused with an error that has all of `words`.
    pub const fn refused(
        name: &'static str,
        files: fn(&Path),
        command: &'static str,
        words: &'static [&'static str],
    ) -> Self {
        Self { name, files, command, stdin: None, expect: Expect::Refused(words), memory: 2048, seconds: 120 }
    }

    /// A case that succeeds with all of `words` in the output.
    pub const fn works(
        name: &'static str,
        files: fn(&Path),
        command: &'static str,
        words: &'static [&'static str],
    ) -> Self {
        Self { expect: Expect::Works(words), ..Self::refused(name, files, command, words) }
    }

    /// The same case with another limit of the address space, in MiB.
    pub const fn memory(self, mib: u64) -> Self {
        Self { memory: mib, ..self }
    }

    /// The same case with another deadline.
    pub const fn seconds(self, seconds: u64) -> Self {
        Self { seconds, ..self }
    }

    /// The same case with a file as stdin.
    pub const fn stdin(self, file: &'static str) -> Self {
        Self { stdin: Some(file), ..self }
    }

    /// Runs the case. Returns what the program did wrong, if anything.
    fn run(&self) -> Result<(), String> {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("input");
        fs::create_dir(&folder).unwrap();
        (self.files)(&folder);
        let before = contents(&folder);
        let [out, err] = ["stdout", "stderr"].map(|name| root.path().join(name));
        let stdin = match self.stdin {
            Some(name) => Stdio::from(File::open(folder.join(name)).unwrap()),
            None => Stdio::null(),
        };
        // The shell sets the limit for itself and then becomes the program.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -v {}; exec \"$0\" \"$@\"", self.memory << 10))
            .arg(env!("CARGO_BIN_EXE_falcon"))
            .args(self.command.split(' '))
            .current_dir(&folder)
            .env("FALCON_CACHE", root.path().join("cache"))
            .stdin(stdin)
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > Duration::from_secs(self.seconds) {
                child.kill().unwrap();
                child.wait().unwrap();
                return Err(format!("still running after {} s", self.seconds));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let [out, err] = [out, err].map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned());
        let (code, words, text) = match self.expect {
            Expect::Refused(words) => (2, words, err.clone()),
            Expect::Works(words) => (0, words, out.clone() + &err),
        };
        if status.code() != Some(code) || err.contains("panicked") {
            return Err(format!("{status}, where {code} was expected\n{out}{err}"));
        }
        if let Some(missing) = words.iter().find(|word| !text.contains(**word)) {
            return Err(format!("the output lacks {missing:?}\n{out}{err}"));
        }
        let after = contents(&folder);
        match before.iter().find(|(path, bytes)| after.get(*path) != Some(bytes)) {
            Some((path, _)) => Err(format!("{} was changed or removed\n{out}{err}", path.display())),
            None => Ok(()),
        }
    }
}

/// Runs all cases of a table, and fails with a list of all that went wrong.
pub fn run_all(cases: &[Case]) {
    let failed: Vec<String> = cases
        .iter()
        .filter_map(|case| Some(format!("{}\n  falcon {}\n  {}", case.name, case.command, case.run().err()?)))
        .collect();
    assert!(failed.is_empty(), "{} of {} cases failed:\n\n{}", failed.len(), cases.len(), failed.join("\n\n"));
}

/// All regular files below a folder, with their bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files.extend(contents(&entry.path()));
        } else if kind.is_file() {
            files.insert(entry.path(), fs::read(entry.path()).unwrap());
        }
    }
    files
}
