//! Text from files and folders: plain or one JSON object per line, compressed or not, read piece by piece so that no
//! file is too large (a line of JSON is held whole, up to [`LONGEST_LINE`](super::LONGEST_LINE)).

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::cache::in_line;
use super::compressed::decompressed;
use super::detokenize::{Detokenizer, Pages};
use super::lines::{LONGEST_LINE, LineError, Lines};
use super::regular::{not_text, refused};
use super::stamp::{FileStamp, hex};
use super::walk::text_files;

/// Why text cannot be read.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What is there is not text.
    #[error("{path}: byte {at} is no UTF-8; convert it, such as by: iconv -f latin1 -t utf8")]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// Bytes of text before.
        at: u64,
    },
    /// A line that is no document.
    #[error("{path}, line {line}: {error}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        error: String,
    },
    /// Text of another kind.
    #[error(
        "{path} is no raw {detokenizer}: its first line is no title such as \" = Robert Boulter = \"; measure it without \
         --detokenize"
    )]
    Kind {
        /// The file.
        path: PathBuf,
        /// The kind it should be.
        detokenizer: Detokenizer,
    },
    /// A file of another kind than text.
    #[error("{path}: {what}")]
    NotText {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// Something that is no regular file.
    #[error("{path}: this is {kind}, and only regular files and folders of them can be read; give a file instead")]
    Special {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A folder with too much in it.
    #[error(
        "{path}: more than {limit} entries in this folder and those in it; name a smaller folder, or join files"
    )]
    Many {
        /// The folder.
        path: PathBuf,
        /// How many may be in it.
        limit: usize,
    },
    /// A folder too far down.
    #[error("{path}: deeper than {limit} folders within folders; name a folder further down")]
    Deep {
        /// The folder.
        path: PathBuf,
        /// How deep it may be.
        limit: usize,
    },
    /// Standard input where a file is needed.
    #[error(
        "-: standard input can be read by task.train of `falcon train` and by `falcon tokenizer train` only; write it to a \
         file first"
    )]
    Stdin,
    /// It was asked to stop.
    #[error("interrupted while text was looked for")]
    Interrupted,
    /// A page that is too long to be held.
    #[error(
        "{path}: a page of more than {} MiB without a title after it; divide it by titles such as \" = Title = \", or read it \
         without --detokenize",
        LONGEST_LINE >> 20
    )]
    Page {
        /// The file.
        path: PathBuf,
    },
    /// There is none.
    #[error(
        "{path} has no text; of a folder, files that end in .txt, .md or .jsonl are read, and those with .xz, .gz or .zst after that"
    )]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
}

/// A stretch of text. Cuts inside a document are where byte-level tokenizers do not join what is on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// Whether a document begins with it.
    pub first: bool,
    /// Its bytes, before it was detokenized.
    pub bytes: usize,
    /// Its words: what white space divides. Of text that is detokenized, as its [`Detokenizer`] counts them,
    /// before.
    pub words: usize,
}

impl Piece {
    /// Text as it was found.
    pub fn new(text: String, first: bool) -> Self {
        let (bytes, words) = (text.len(), text.split_whitespace().count());
        Self { text, first, bytes, words }
    }
}

/// Files whose stamps are taken side by side, between two questions whether to stop.
const STAMPED_TOGETHER: usize = 64;
/// How much text a piece has, about.
const PIECE: usize = 1 << 20;
/// A document without lines is cut between words after this much.
const LONGEST: usize = 4 * PIECE;

/// Files to read text from, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    root: PathBuf,
    files: Vec<PathBuf>,
    detokenizer: Option<Detokenizer>,
}

/// What stands for standard input where a path is given.
pub const STDIN: &str = "-";

impl SourceError {
    /// That a file is not text, if its name or beginning says so.
    pub(super) fn not_text(path: &Path, beginning: &[u8]) -> Option<Self> {
        not_text(path, beginning).map(|what| Self::NotText { path: path.into(), what })
    }
}

impl Source {
    /// A file, or all text files in a folder and the folders in it: names that end in `.txt`, `.md` or `.jsonl`, also followed by `.xz`,
    /// `.gz` or `.zst`. A single file may have any name.
    pub fn open(root: &Path) -> Result<Self, SourceError> {
        Self::find(root, &mut || true)
    }

    /// The same, which asks now and then whether to go on.
    pub fn find(root: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<Self, SourceError> {
        if root == Path::new(STDIN) {
            return Err(SourceError::Stdin);
        }
        let found = fs::metadata(root).map_err(|error| at(root, error))?;
        let files = match found.is_dir() {
            true => text_files(root, go_on)?,
            false => match refused(found.file_type()) {
                Some(kind) => return Err(SourceError::Special { path: root.into(), kind }),
                None => vec![root.to_path_buf()],
            },
        };
        Ok(Self { root: root.into(), files, detokenizer: None })
    }

    /// The files, in the order in which they are read.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The same, to be divided into pages and detokenized, each page a document. All files must begin as such text
    /// does.
    pub fn detokenized(mut self, detokenizer: Detokenizer) -> Result<Self, SourceError> {
        for path in &self.files {
            let beginning = beginning(path, BEGINNING)?.concat();
            if detokenizer.recognises(&beginning) == Some(false) {
                return Err(SourceError::Kind { path: path.clone(), detokenizer });
            }
        }
        self.detokenizer = Some(detokenizer);
        Ok(self)
    }

    /// How it is detokenized, if it is.
    pub fn detokenizer(&self) -> Option<Detokenizer> {
        self.detokenizer
    }

    /// What tells it from what it was. Asks now and then whether to go on.
    pub fn stamps(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<FileStamp>, SourceError> {
        let mut stamps = Vec::with_capacity(self.files.len());
        for files in self.files.chunks(STAMPED_TOGETHER) {
            stamps.extend(files.par_iter().map(|path| FileStamp::of(path)).collect::<Result<Vec<_>, _>>()?);
            if !go_on() {
                return Err(SourceError::Interrupted);
            }
        }
        Ok(stamps)
    }

    /// Hands all of it to `take`, which may stop with an error of its own.
    pub fn read<E: From<SourceError>>(&self, mut take: impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let mut any = false;
        for path in &self.files {
            let mut take = |piece: Piece| {
                any = true;
                take(piece)
            };
            match self.detokenizer {
                None => read_file(path, &mut take)?,
                Some(detokenizer) => {
                    let mut pages = Pages::new(detokenizer);
                    read_file(path, &mut |piece| -> Result<(), E> {
                        pages.add(&piece, &mut take)?;
                        match pages.held() > LONGEST_LINE {
                            true => Err(SourceError::Page { path: path.clone() }.into()),
                            false => Ok(()),
                        }
                    })?;
                    pages.finish(&mut take)?;
                }
            }
        }
        if any { Ok(()) } else { Err(SourceError::Empty { path: self.root.clone() }.into()) }
    }
}

/// Hands one document from `reader` to `take`, piece by piece, so that no text is too long. `name` stands for it in
/// messages.
pub fn read_text<E: From<SourceError>>(
    name: &Path,
    reader: impl BufRead + 'static,
    mut take: impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    pieces(name, Box::new(reader), &mut take)
}

/// What tells texts from others: their hash.
pub fn digest(texts: &[String]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// Bytes by which a file is told to be of some kind.
const BEGINNING: usize = 1 << 16;

/// About `most` bytes of text: of every file a part, from its beginning.
pub fn sample(sources: &[Source], most: usize) -> Result<Vec<String>, SourceError> {
    let files: Vec<&PathBuf> = sources.iter().flat_map(|source| &source.files).collect();
    let mut texts = Vec::new();
    for path in &files {
        texts.extend(beginning(path, most / files.len())?);
    }
    texts.retain(|text| !text.is_empty());
    match sources.first() {
        Some(source) if texts.is_empty() => Err(SourceError::Empty { path: source.root.clone() }),
        _ => Ok(texts),
    }
}

/// About `most` bytes of text from the beginning of a file.
fn beginning(path: &Path, most: usize) -> Result<Vec<String>, SourceError> {
    /// Why a file is read no further.
    enum Stop {
        Enough,
        Wrong(SourceError),
    }
    impl From<SourceError> for Stop {
        fn from(error: SourceError) -> Self {
            Self::Wrong(error)
        }
    }
    let (mut texts, mut left) = (Vec::new(), most);
    let read = read_file(path, &mut |piece: Piece| {
        let text = &piece.text[..whole_characters(&piece.text, left)];
        left -= text.len();
        texts.push(text.to_string());
        if left == 0 || text.len() < piece.text.len() { Err(Stop::Enough) } else { Ok(()) }
    });
    match read {
        Err(Stop::Wrong(error)) => Err(error),
        Ok(()) | Err(Stop::Enough) => Ok(texts),
    }
}

fn read_file<E: From<SourceError>>(path: &Path, take: &mut impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
    let (mut reader, name) = decompressed(path).map_err(|error| at(path, error))?;
    let beginning = reader.fill_buf().map_err(|error| at(path, error))?;
    if let Some(what) = not_text(Path::new(name), beginning) {
        return Err(SourceError::NotText { path: path.into(), what }.into());
    }
    match Path::new(name).extension() == Some(OsStr::new("jsonl")) {
        true => documents(path, reader, take),
        false => pieces(path, reader, take),
    }
}

pub(super) fn at(path: &Path, error: io::Error) -> SourceError {
    SourceError::Io { path: path.into(), error }
}

/// One document per line: an object with a `text`.
fn documents<E: From<SourceError>>(
    path: &Path,
    reader: Box<dyn BufRead>,
    take: &mut impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    #[derive(Deserialize)]
    struct Document {
        text: String,
    }
    let mut lines = Lines::new(reader);
    let unread = |error: LineError| match error {
        LineError::Io(error) => at(path, error),
        error @ LineError::TooLong { .. } => at(path, io::Error::other(error)),
    };
    while let Some((line, bytes)) = lines.next_line().map_err(unread)? {
        let json = bytes.trim_ascii_end();
        if json.is_empty() {
            continue;
        }
        let wrong = |error: serde_json::Error| SourceError::Line {
            path: path.into(),
            line,
            error: format!("not a JSON object with the text of a document under \"text\": {}", in_line(&error)),
        };
        let Document { text } = serde_json::from_slice(json).map_err(wrong)?;
        let mut rest = text.as_str();
        let mut first = true;
        while !rest.is_empty() {
            let cut = match rest.len() <= PIECE {
                true => rest.len(),
                false => {
                    let [near, far] = [PIECE, LONGEST].map(|most| &rest[..whole_characters(rest, most)]);
                    let line = last_line(near).or_else(|| last_line(far));
                    line.unwrap_or_else(|| if far.len() < rest.len() { last_word(far) } else { far.len() })
                }
            };
            let (piece, after) = rest.split_at(cut);
            take(Piece::new(piece.into(), first))?;
            (rest, first) = (after, false);
        }
    }
    Ok(())
}

/// A file that is one document.
fn pieces<E: From<SourceError>>(
    path: &Path,
    mut reader: Box<dyn BufRead>,
    take: &mut impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    let (mut bytes, mut first, mut read) = (Vec::new(), true, 0u64);
    loop {
        let got = reader.by_ref().take(PIECE as u64).read_to_end(&mut bytes).map_err(|error| at(path, error))?;
        let (text, whole) = match std::str::from_utf8(&bytes) {
            Ok(text) => (text, true),
            // A character that goes on in what is not yet read.
            Err(error) if error.error_len().is_none() && got > 0 => {
                let text = std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("valid up to here");
                (text, false)
            }
            Err(error) => {
                return Err(SourceError::Utf8 { path: path.into(), at: read + error.valid_up_to() as u64 }.into());
            }
        };
        let ended = got == 0 && whole;
        let cut = match ended {
            true => text.len(),
            false => match last_line(text) {
                Some(cut) => cut,
                None if text.len() < LONGEST => continue,
                None => last_word(text),
            },
        };
        if cut > 0 {
            take(Piece::new(text[..cut].into(), first))?;
            first = false;
        }
        read += cut as u64;
        bytes.drain(..cut);
        if ended {
            return Ok(());
        }
    }
}

/// The last place where a line begins with something: tokenizers do not join a line's end with a letter after it.
fn last_line(text: &str) -> Option<usize> {
    let begins = |at: usize| text[at..].starts_with(|c: char| !c.is_whitespace());
    let mut lines = text.rmatch_indices('\n').map(|(newline, _)| newline + 1);
    lines.find(|at| *at > 1 && begins(*at))
}

/// The last place between a word and the space before the next, which belongs to that; the end if there is none.
fn last_word(text: &str) -> usize {
    let between = |at: usize| {
        let mut around = (text[..at].chars().next_back(), text[at + 1..].chars().next());
        let letter = |c: &mut Option<char>| c.take().is_some_and(|c| !c.is_whitespace());
        letter(&mut around.0) && letter(&mut around.1)
    };
    text.rmatch_indices(' ').map(|(space, _)| space).find(|at| between(*at)).unwrap_or(text.len())
}

/// The most bytes up to `most` that are whole characters.
fn whole_characters(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(root: &Path) -> Result<Vec<Piece>, SourceError> {
        let mut pieces = Vec::new();
        Source::open(root)?.read(|piece| {
            pieces.push(piece);
            Ok::<_, SourceError>(())
        })?;
        Ok(pieces)
    }

    fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn compressed_files_read_as_what_they_hold() {
        let text = "Öl und Wasser.\n".repeat(5000);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
        xz.write_all(text.as_bytes()).unwrap();
        let zst = ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        let cases = [
            ("a.txt", text.clone().into_bytes()),
            ("a.txt.gz", gz.finish().unwrap()),
            ("a.xz", xz.finish().unwrap()),
            ("a.zst", zst.clone()),
        ];
        // One frame after another, and between and around them frames that say how long they are and nothing else.
        let skip = [&0x184D_2A53u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"index"].concat();
        let (_folder, path) = file("two.zst", &[&skip[..], &zst, &skip, &zst, &skip].concat());
        let twice: String = read(&path).unwrap().into_iter().map(|piece| piece.text).collect();
        assert_eq!(twice, text.repeat(2));
        let (_folder, path) = file("cut.zst", &skip[..skip.len() - 1]);
        assert!(read(&path).unwrap_err().to_string().contains("cut.zst"));
        for (name, bytes) in cases {
            let (_folder, path) = file(name, &bytes);
            let pieces = read(&path).unwrap();
            assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text, "{name}");
            if name != "a.txt" {
                let (_folder, path) = file(name, &bytes[..bytes.len() / 2]);
                let said = read(&path).unwrap_err().to_string();
                assert!(said.contains(name), "half of {name}: {said}");
            }
        }
    }

    /// A frame of bytes as they are, in which a changed one is found by the checksum alone.
    #[test]
    fn damage_in_a_frame_is_noticed() {
        let text = "Öl und Wasser.\n";
        let good =
            ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Uncompressed);
        let at = good.windows(text.len()).position(|bytes| bytes == text.as_bytes()).expect("as they are");
        let (_folder, path) = file("a.zst", &good);
        assert_eq!(read(&path).unwrap()[0].text, text);
        let mut bad = good;
        bad[at + 4] ^= 1;
        let (_folder, path) = file("a.zst", &bad);
        let said = read(&path).unwrap_err().to_string();
        assert!(said.contains("a.zst") && said.contains("checksum"), "{said}");
    }

    #[test]
    fn long_files_come_in_pieces_that_begin_lines() {
        // Lines of all lengths, with empty ones between, and characters of two bytes that fall on every cut.
        let text: String =
            (0..90_000).map(|i| format!("{}é\n{}", "x".repeat(i % 60), "\n".repeat(i % 3))).collect();
        let (_folder, path) = file("a.txt", text.as_bytes());
        let pieces = read(&path).unwrap();
        assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
        assert!(pieces.len() > 2, "{}", pieces.len());
        assert_eq!(pieces.iter().filter(|piece| piece.first).count(), 1);
        assert!(pieces[1..].iter().all(|piece| !piece.text.starts_with(char::is_whitespace)));
        assert!(pieces[..pieces.len() - 1].iter().all(|piece| piece.text.ends_with('\n')));
        // Without lines it is cut between words, and without those anyway; as a file and as a line of JSON.
        for (word, separate) in [("zwölf", " "), ("é", "")] {
            let text = [word].repeat(3 * LONGEST / word.len()).join(separate);
            let json = serde_json::json!({ "text": text }).to_string();
            for (name, bytes) in [("a.txt", &text), ("a.jsonl", &json)] {
                let (_folder, path) = file(name, bytes.as_bytes());
                let pieces = read(&path).unwrap();
                assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
                assert!(pieces.len() >= 3, "{} of {name}", pieces.len());
                let good = |piece: &Piece| separate.is_empty() || piece.text.starts_with(" zwölf");
                assert!(pieces[1..].iter().all(good));
            }
        }
    }

    #[test]
    fn a_line_is_a_document() {
        let long = "a line\nof two. ".repeat(PIECE / 10);
        let lines = format!("{{\"text\": \"one\", \"id\": 3}}\n\n{}\n", serde_json::json!({ "text": long }));
        let (_folder, path) = file("a.jsonl", lines.as_bytes());
        let pieces = read(&path).unwrap();
        assert_eq!(pieces[0], Piece::new("one".into(), true));
        assert_eq!(pieces.iter().map(|piece| piece.first).take(3).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(pieces[1..].iter().map(|piece| piece.text.as_str()).collect::<String>(), long);
        let (_folder, path) = file("a.jsonl", b"{\"text\": \"one\"}\n{\"body\": \"two\"}\n");
        let said = read(&path).unwrap_err().to_string();
        assert!(said.contains("a.jsonl, line 2: ") && said.ends_with("missing field `text`, column 15"), "{said}");
    }

    #[test]
    fn a_sample_has_a_part_of_every_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "ä".repeat(100)).unwrap();
        fs::write(folder.path().join("b.txt"), "short").unwrap();
        let source = Source::open(folder.path()).unwrap();
        let texts = sample(std::slice::from_ref(&source), 30).unwrap();
        assert_eq!(texts, ["ä".repeat(7), "short".into()], "15 bytes of each, in whole characters");
        assert_eq!(sample(&[source], 1 << 20).unwrap().concat().len(), 205);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_refused() {
        let said = |path: &str| read(Path::new(path)).unwrap_err().to_string();
        assert!(said("/dev/zero").contains("/dev/zero: this is a character device"), "{}", said("/dev/zero"));
        assert!(said("-").contains("standard input"), "{}", said("-"));
    }

    #[test]
    fn files_of_other_kinds_say_what_to_do() {
        for (name, bytes, word) in [
            ("a.txt", &b"PAR1\x15\x04\x15"[..], "Parquet"),
            ("a.parquet", b"text", ".jsonl"),
            ("a.txt", b"PK\x03\x04\xff", "zip"),
            ("a.txt", b"\xff\xfea\0", "utf-16"),
        ] {
            let (_folder, path) = file(name, bytes);
            let said = read(&path).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains(word), "{said}");
        }
    }

    #[test]
    fn what_is_no_text_says_where() {
        let mut bytes = vec![b'a'; 3 * PIECE];
        bytes[2 * PIECE + 5] = 0xff;
        let (_folder, path) = file("a.txt", &bytes);
        let said = read(&path).unwrap_err().to_string();
        assert!(said.contains(&format!("byte {}", 2 * PIECE + 5)), "{said}");
        let (_folder, path) = file("a.txt", "cut off in a character é".as_bytes().split_last().unwrap().1);
        assert!(read(&path).unwrap_err().to_string().contains("byte 23"));
        let (folder, path) = file("a.txt", b"");
        assert!(read(&path).unwrap_err().to_string().contains("has no text"));
        assert!(read(&folder.path().join("none")).is_err());
    }
}
