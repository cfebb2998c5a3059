//! Where prompts come from: an argument, a file, stdin, or a file with one per line. None is held whole but for an
//! argument.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use falcon_lm::data::{Source, SourceError, read_text};

use super::{GenerateArgs, GenerateError};

/// A prompt.
pub(super) enum Prompt {
    Text(String),
    /// A regular file, read piece by piece however long it is.
    File(PathBuf),
    /// Read piece by piece, too.
    Stdin,
}

impl Prompt {
    /// The only prompt there is, unless there are many.
    pub fn of(args: &GenerateArgs) -> Result<Self, GenerateError> {
        match (&args.prompt, &args.file) {
            (Some(text), _) => Ok(Self::Text(text.clone())),
            (None, Some(path)) if is_stdin(path) => Ok(Self::Stdin),
            (None, Some(path)) => {
                check_regular(path)?;
                Ok(Self::File(path.clone()))
            }
            (None, None) if io::stdin().is_terminal() => Ok(Self::Text(String::new())),
            (None, None) => Ok(Self::Stdin),
        }
    }

    /// The text, or the name of the file it is in.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "-".into(),
        }
    }

    /// Hands it to `take` piece by piece, until that says to stop by false. Says whether it went to the end.
    pub fn read(&self, mut take: impl FnMut(&str) -> Result<bool, GenerateError>) -> Result<bool, GenerateError> {
        let going = |going: bool| if going { Ok(()) } else { Err(Stop::Asked) };
        let read = match self {
            Self::Text(text) => return take(text),
            Self::File(path) => {
                Source::open(path)?.read(|piece| take(&piece.text).map_err(Stop::Wrong).and_then(going))
            }
            Self::Stdin => {
                // One piece is held back: of the last, the newline that `echo` adds is not meant.
                let mut held: Option<String> = None;
                let stdin = BufReader::new(io::stdin());
                let read = read_text(Path::new("stdin"), stdin, |piece| match held.replace(piece.text) {
                    Some(before) => take(&before).map_err(Stop::Wrong).and_then(going),
                    None => Ok(()),
                });
                let last = held.unwrap_or_default();
                read.and_then(|()| {
                    take(last.strip_suffix('\n').unwrap_or(&last)).map_err(Stop::Wrong).and_then(going)
                })
            }
        };
        match read {
            Ok(()) => Ok(true),
            Err(Stop::Asked) => Ok(false),
            Err(Stop::Wrong(error)) => Err(error),
        }
    }
}

/// Why a text is read no further.
enum Stop {
    Asked,
    Wrong(GenerateError),
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Self {
        Self::Wrong(error.into())
    }
}

/// Bytes of a line, at most. A longer prompt belongs into a file of its own.
const LONGEST_LINE: usize = 1 << 20;

/// The prompts of a file, one per line; empty lines are passed over.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    name: PathBuf,
    line: usize,
}

impl Lines {
    /// Opens a regular file, or stdin.
    pub fn open(path: &Path) -> Result<Self, GenerateError> {
        let (name, line) = (path.to_path_buf(), 0);
        if is_stdin(path) {
            return Ok(Self { reader: Box::new(BufReader::new(io::stdin())), name: "stdin".into(), line });
        }
        check_regular(path)?;
        let file =
            File::open(path).map_err(|error| GenerateError::Prompt { name: path.display().to_string(), error })?;
        Ok(Self { reader: Box::new(BufReader::new(file)), name, line })
    }

    /// The next prompt; none at the end.
    fn next(&mut self) -> Result<Option<Prompt>, GenerateError> {
        loop {
            self.line += 1;
            let mut bytes = Vec::new();
            let wrong = |what: String| GenerateError::Line { path: self.name.clone(), line: self.line, what };
            let mut limited = self.reader.by_ref().take(LONGEST_LINE as u64 + 2);
            limited.read_until(b'\n', &mut bytes).map_err(|error| wrong(error.to_string()))?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.len() > LONGEST_LINE {
                let what = format!("longer than {LONGEST_LINE} bytes; give a long prompt by --file");
                return Err(wrong(what));
            }
            if !line.is_empty() {
                let text = std::str::from_utf8(line).map_err(|error| wrong(error.to_string()))?;
                return Ok(Some(Prompt::Text(text.into())));
            }
        }
    }

    /// The next prompts, as many as are continued side by side; none at the end.
    pub fn take(&mut self, count: usize) -> Result<Vec<Prompt>, GenerateError> {
        let mut prompts = Vec::new();
        while prompts.len() < count
            && let Some(prompt) = self.next()?
        {
            prompts.push(prompt);
        }
        Ok(prompts)
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// A pipe or a device could keep the program waiting for ever; stdin has a name of its own.
fn check_regular(path: &Path) -> Result<(), GenerateError> {
    let name = || path.display().to_string();
    let about = fs::metadata(path).map_err(|error| GenerateError::Prompt { name: name(), error })?;
    if about.is_file() { Ok(()) } else { Err(GenerateError::NotRegular { path: path.into() }) }
}

/// What `--stop` says, with `\n`, `\t` and `\\` as what they stand for.
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
            Some(other) => return Err(format!("\\{other} stands for nothing; known are \\n, \\t and \\\\")),
            None => return Err("it ends with a single \\; write \\\\ for one".into()),
        }
    }
    Ok(out)
}

/// Text as a terminal may show it: control characters but for newlines and tabs could move the cursor, or worse.
pub(super) fn visible(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            control if control.is_control() => out += &format!("\\x{:02x}", control as u32),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_what_they_stand_for() {
        assert_eq!(unescape(r"a\n\tb\\n"), Ok("a\n\tb\\n".into()));
        assert!(unescape(r"a\q").unwrap_err().contains(r"\q stands for nothing"));
        assert!(unescape(r"a\").unwrap_err().contains("single"));
    }

    #[test]
    fn control_characters_are_shown_by_their_numbers() {
        let text = "a\u{1b}[2J\r\n\tb\u{7f}\u{9b}é";
        assert_eq!(visible(text), "a\\x1b[2J\\x0d\n\tb\\x7f\\x9bé");
    }

    #[test]
    fn lines_are_taken_by_so_many_and_have_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts.txt");
        fs::write(&path, "one\n\ntwo\r\nthree").unwrap();
        let mut lines = Lines::open(&path).unwrap();
        let mut take = || lines.take(2).unwrap().iter().map(Prompt::shown).collect::<Vec<_>>();
        assert_eq!(
            [take(), take(), take()],
            [vec!["one".to_string(), "two".into()], vec!["three".into()], vec![]]
        );
        for (length, good) in [(LONGEST_LINE, true), (LONGEST_LINE + 1, false), (3 * LONGEST_LINE, false)] {
            fs::write(&path, format!("a\n{}\n", "x".repeat(length))).unwrap();
            let taken = Lines::open(&path).unwrap().take(9);
            assert_eq!(taken.is_ok(), good, "{length}");
            if let Err(error) = taken {
                assert!(error.to_string().contains("prompts.txt, line 2: longer than"), "{error}");
            }
        }
        fs::write(&path, b"a\n\xff\n").unwrap();
        assert!(Lines::open(&path).unwrap().take(9).is_err());
    }
}
