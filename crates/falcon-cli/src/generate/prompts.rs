//! Where prompts come from: an argument, a file, stdin, or a file with one prompt per line. Files are read in pieces,
//! so that a prompt may be longer than memory.

use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use falcon_base::PathError;
use falcon_base::files::open_regular;
use falcon_lm::data::{LineError, Lines, Source, SourceError, read_text};
use thiserror::Error;

/// Why a prompt cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The file cannot be opened.
    #[error("{0}; give a regular file, or - for stdin")]
    Path(#[from] PathError),
    /// The file is not text, or cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A line of `--prompts` is too long.
    #[error("{}, line {line}: longer than {limit} bytes; give a long prompt by --file", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The most bytes that a line may have.
        limit: usize,
    },
    /// A line of `--prompts` is not text.
    #[error("{}, line {line}: {source}", path.display())]
    Encoding {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The error of decoding.
        source: std::str::Utf8Error,
    },
    /// A file of `--prompts` without a prompt.
    #[error("{}: no prompt in it; all of its lines are empty", .0.display())]
    NoPrompts(PathBuf),
}

/// One prompt.
pub(super) enum Prompt {
    Text(String),
    File(PathBuf),
    Stdin,
}

impl Prompt {
    /// The prompt given as an argument or by `--file`. Without either, it is stdin, or empty if stdin is a terminal.
    pub fn new(text: Option<&str>, file: Option<&Path>) -> Result<Self, PromptError> {
        match (text, file) {
            (Some(text), _) => Ok(Self::Text(text.into())),
            (None, Some(path)) if is_stdin(path) => Ok(Self::Stdin),
            (None, Some(path)) => {
                open_regular(path)?;
                Ok(Self::File(path.into()))
            }
            (None, None) if io::stdin().is_terminal() => Ok(Self::Text(String::new())),
            (None, None) => Ok(Self::Stdin),
        }
    }

    /// The text of the prompt, or the name of its file.
    pub fn name(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "-".into(),
        }
    }

    /// Passes the text to `take`, piece by piece.
    pub fn read<E: From<PromptError>>(&self, mut take: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let mut take = |text: &str| take(text).map_err(Stop::Caller);
        let read = match self {
            Self::Text(text) => take(text),
            Self::File(path) => {
                Source::open(path).map_err(Stop::from).and_then(|source| source.read(|piece| take(&piece.text)))
            }
            Self::Stdin => {
                // One piece is held back: a newline at the end of the last piece is removed, because `echo` appends it.
                let mut held: Option<String> = None;
                let stdin = BufReader::new(io::stdin());
                let read = read_text(Path::new("stdin"), stdin, |piece| match held.replace(piece.text) {
                    Some(before) => take(&before),
                    None => Ok(()),
                });
                let last = held.unwrap_or_default();
                read.and_then(|()| take(last.strip_suffix('\n').unwrap_or(&last)))
            }
        };
        read.map_err(|stop| match stop {
            Stop::Source(error) => PromptError::from(error).into(),
            Stop::Caller(error) => error,
        })
    }
}

/// Why reading ends early: the text cannot be read, or the caller's function failed.
enum Stop<E> {
    Source(SourceError),
    Caller(E),
}

impl<E> From<SourceError> for Stop<E> {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

/// The most bytes of a line of `--prompts`.
const LONGEST_PROMPT: usize = 1 << 20;

/// The prompts of `--prompts`, one per line. Empty lines are skipped.
pub(super) struct PromptLines {
    lines: Lines<Box<dyn BufRead>>,
    path: PathBuf,
}

impl PromptLines {
    /// Opens a regular file, or stdin.
    pub fn open(path: &Path) -> Result<Self, PromptError> {
        let (reader, path): (Box<dyn BufRead>, _) = match is_stdin(path) {
            true => (Box::new(BufReader::new(io::stdin())), "stdin".into()),
            false => (Box::new(BufReader::new(open_regular(path)?)), path.into()),
        };
        Ok(Self { lines: Lines::with_limit(reader, LONGEST_PROMPT), path })
    }

    /// The first prompts, at most `count`. It is an error if there is none.
    pub fn first(&mut self, count: usize) -> Result<Vec<Prompt>, PromptError> {
        let prompts = self.take(count)?;
        if prompts.is_empty() { Err(PromptError::NoPrompts(self.path.clone())) } else { Ok(prompts) }
    }

    /// The next prompts, at most `count`; none at the end.
    pub fn take(&mut self, count: usize) -> Result<Vec<Prompt>, PromptError> {
        let Self { lines, path } = self;
        let mut prompts = Vec::new();
        while prompts.len() < count {
            let next = lines.next_line().map_err(|error| match error {
                LineError::Io(error) => PathError::new(&*path, error).into(),
                LineError::TooLong { line, limit } => PromptError::TooLong { path: path.clone(), line, limit },
            });
            let Some((line, bytes)) = next? else { break };
            if !bytes.is_empty() {
                let text = std::str::from_utf8(bytes);
                let text = text.map_err(|source| PromptError::Encoding { path: path.clone(), line, source })?;
                prompts.push(Prompt::Text(text.into()));
            }
        }
        Ok(prompts)
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Replaces `\n`, `\t` and `\\` in the text of `--stop`.
pub(super) fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('\\') => out.push('\\'),
            Some(unknown) => return Err(format!("unknown escape \\{unknown}; known are \\n, \\t and \\\\")),
            None => return Err("it ends with a single backslash; write \\\\ for a backslash".into()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn escapes_are_replaced() {
        assert_eq!(unescape(r"a\n\tb\\n"), Ok("a\n\tb\\n".into()));
        assert!(unescape(r"a\q").unwrap_err().contains(r"unknown escape \q"));
        assert!(unescape(r"a\").unwrap_err().contains("single"));
    }

    #[test]
    fn prompts_are_taken_in_batches_and_errors_name_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts.txt");
        fs::write(&path, "one\n\ntwo\r\nthree").unwrap();
        let mut lines = PromptLines::open(&path).unwrap();
        let mut take = || lines.take(2).unwrap().iter().map(Prompt::name).collect::<Vec<_>>();
        assert_eq!(
            [take(), take(), take()],
            [vec!["one".to_string(), "two".into()], vec!["three".into()], vec![]]
        );
        fs::write(&path, format!("a\n{}\n", "x".repeat(LONGEST_PROMPT + 1))).unwrap();
        let error = PromptLines::open(&path).unwrap().take(9).err().unwrap().to_string();
        assert!(error.contains("prompts.txt, line 2: longer than 1048576 bytes"), "{error}");
        fs::write(&path, b"a\n\xff\n").unwrap();
        let error = PromptLines::open(&path).unwrap().take(9).err().unwrap().to_string();
        assert!(error.contains("prompts.txt, line 2: invalid utf-8"), "{error}");
        fs::write(&path, "\n\n").unwrap();
        let error = PromptLines::open(&path).unwrap().first(9).err().unwrap().to_string();
        assert!(error.contains("no prompt in it"), "{error}");
        assert!(PromptLines::open(folder.path()).is_err());
    }
}
