//! Checks of output files, made before the work begins: that the file can be written, and that it replaces nothing
//! but an older result.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use falcon_base::files::aside_file;
use falcon_lm::data::is_text_name;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The kind of an output file. Only a file of the same kind, or an empty one, is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A `tokenizer.json`.
    Tokenizer,
    /// The saved state of a model.
    State,
    /// The results of a scan, a safetensors file.
    Scan,
    /// An HTML page.
    Html,
    /// Results as JSON.
    Json,
    /// An SVG picture.
    Svg,
    /// A text file that tables are inserted into. It must exist, and the rest of it stays.
    Page,
}

/// The number of bytes at the beginning of a file that are read to recognise its kind.
const BEGINNING: u64 = 1 << 20;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Tokenizer => "a tokenizer (JSON)",
            Self::State => "a saved state (safetensors)",
            Self::Scan => "results of a scan (safetensors)",
            Self::Html => "an HTML page",
            Self::Json => "results (JSON)",
            Self::Svg => "an SVG picture",
            Self::Page => "a page of text",
        }
    }

    /// Whether a file with this beginning may be of this kind.
    fn recognises(self, beginning: &[u8]) -> bool {
        let text = beginning.trim_ascii_start();
        let contains = |word: &str| beginning.windows(word.len()).any(|bytes| bytes == word.as_bytes());
        let begins = |word: &str| text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word.as_bytes()));
        let has_name =
            |is: fn(&str) -> bool| header_names(beginning).is_some_and(|names| names.iter().any(|name| is(name)));
        match self {
            Self::Tokenizer => begins("{") && contains("\"added_tokens\""),
            // States have the metadata `falcon_state`; those of earlier versions have only the tensor `positions`.
            Self::State => has_name(|name| name == "falcon_state" || name == "positions"),
            Self::Scan => has_name(|name| name.starts_with("out.")),
            Self::Html => begins("<!doctype html") || begins("<html"),
            Self::Json => begins("[") || begins("{"),
            Self::Svg => begins("<svg") || begins("<?xml"),
            // Any text: inserting a table fails if the page lacks the marks for it.
            Self::Page => true,
        }
    }
}

/// The names of the metadata and of the tensors in a safetensors file, whose header is a length followed by JSON.
fn header_names(beginning: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__", default)]
        metadata: BTreeMap<String, IgnoredAny>,
        #[serde(flatten)]
        tensors: BTreeMap<String, IgnoredAny>,
    }
    let (length, rest) = beginning.split_first_chunk::<8>()?;
    let header = rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let Header { metadata, tensors } = serde_json::from_slice(header).ok()?;
    Some(metadata.into_keys().chain(tensors.into_keys()).collect())
}

/// The folder that a file is in.
fn folder(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses an output file that cannot be written, that is one of the `inputs`, or that exists and is of another kind.
pub(crate) fn check<'a>(
    file: &Path,
    kind: Kind,
    inputs: impl IntoIterator<Item = &'a (impl AsRef<Path> + ?Sized + 'a)>,
) -> io::Result<()> {
    let refuse = |what: String| Err(io::Error::other(what));
    // Nobody expects a folder, or a device such as /dev/null, to be replaced by a file.
    if file.file_name().is_none() || file.metadata().is_ok_and(|found| !found.is_file()) {
        return refuse(
            "a folder or a device, not a file that can be replaced; choose another name for the output".into(),
        );
    }
    let folder = folder(file);
    if !folder.is_dir() {
        return refuse(format!("there is no folder {}: create it first", folder.display()));
    }
    for input in inputs {
        let input = input.as_ref();
        if is_same(file, input) {
            let input = input.display();
            return refuse(format!(
                "this is the input {input} and would be replaced; choose another name for the output"
            ));
        }
        if is_read_from(file, input) {
            let input = input.display();
            return refuse(format!(
                "this file would become part of the input {input}; choose a name outside that folder"
            ));
        }
    }
    if let Ok(found) = File::open(file) {
        let mut beginning = Vec::new();
        found.take(BEGINNING).read_to_end(&mut beginning)?;
        if !beginning.is_empty() && !kind.recognises(&beginning) {
            let kind = kind.name();
            return refuse(format!("the file exists and is not {kind}; choose another name for the output"));
        }
    }
    // Creating a temporary file shows that the folder can be written; it is deleted at once.
    aside_file(folder).map(drop)
}

/// Whether two paths name the same file, also through links.
fn is_same(file: &Path, input: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let inode = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        if inode(file).is_some_and(|inode_of_file| inode(input) == Some(inode_of_file)) {
            return true;
        }
    }
    canonical(file).is_some_and(|file| fs::canonicalize(input).is_ok_and(|input| input == file))
}

/// Whether `input` is a folder, and `file` is, or would be, one of the texts that are read from it.
fn is_read_from(file: &Path, input: &Path) -> bool {
    input.is_dir()
        && file.file_name().is_some_and(is_text_name)
        && canonical(file).is_some_and(|file| fs::canonicalize(input).is_ok_and(|input| file.starts_with(input)))
}

/// The canonical path of a file that exists or is to be created.
fn canonical(file: &Path) -> Option<PathBuf> {
    fs::canonicalize(file).ok().or_else(|| Some(fs::canonicalize(folder(file)).ok()?.join(file.file_name()?)))
}

/// The result of printing, without the error of a closed stdout: its reader has seen enough, and the rest of the work
/// goes on.
pub(crate) fn ignore_closed_stdout(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of [`check`], or "fine".
    fn outcome(file: &Path, kind: Kind, inputs: &[&Path]) -> String {
        check(file, kind, inputs.iter().copied()).map_or_else(|error| error.to_string(), |()| "fine".into())
    }

    #[test]
    fn an_input_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("books")).unwrap();
        fs::write(at("books/a.txt"), "").unwrap();
        let (a, books) = (at("books/a.txt"), at("books"));
        assert!(outcome(&a, Kind::Tokenizer, &[&a]).contains("this is the input"));
        assert!(outcome(&at("books/../books/a.txt"), Kind::Tokenizer, &[&a]).contains("this is the input"));
        assert!(outcome(&at("books/new.txt"), Kind::Tokenizer, &[&books]).contains("become part of the input"));
        assert!(outcome(&at("books/new.jsonl.gz"), Kind::Tokenizer, &[&books]).contains("outside that folder"));
        assert_eq!(outcome(&at("books/new.json"), Kind::Tokenizer, &[&books]), "fine");
        assert_eq!(outcome(&at("b.txt"), Kind::Tokenizer, &[&books]), "fine");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&a, at("link")).unwrap();
            fs::hard_link(&a, at("hard")).unwrap();
            for name in ["link", "hard"] {
                assert!(outcome(&at(name), Kind::Tokenizer, &[&a]).contains("this is the input"), "{name}");
            }
        }
    }

    #[test]
    fn only_files_of_the_same_kind_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let safetensors = |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        let tensors = |name: &str| safetensors(&format!("{{\"{name}\":{{}}}}"));
        let tokenizer = br#"{"version":"1.0","added_tokens":[]}"#.to_vec();
        let kinds = [
            (Kind::Tokenizer, tokenizer),
            (Kind::State, safetensors(r#"{"__metadata__":{"falcon_state":"{}"}}"#)),
            (Kind::State, tensors("positions")),
            (Kind::Scan, tensors("out.o")),
            (Kind::Html, b"<!DOCTYPE html>".to_vec()),
            (Kind::Json, b" [ ]".to_vec()),
            (Kind::Svg, b"<svg xmlns=".to_vec()),
        ];
        for (kind, bytes) in &kinds {
            for (other, contents) in &kinds {
                fs::write(&path, contents).unwrap();
                let message = outcome(&path, *kind, &[]);
                // A tokenizer is JSON, too.
                let fits = kind == other || (*kind, *other) == (Kind::Json, Kind::Tokenizer);
                assert_eq!(message == "fine", fits, "{kind:?} over {other:?}: {message}");
            }
            for contents in [&b"Once upon a time"[..], &tensors("model.embeddings.weight")] {
                fs::write(&path, contents).unwrap();
                assert!(outcome(&path, *kind, &[]).contains("the file exists and is not"), "{kind:?}");
            }
            fs::write(&path, "").unwrap();
            assert_eq!(outcome(&path, *kind, &[]), "fine", "{kind:?} over {} bytes", bytes.len());
        }
    }
}
