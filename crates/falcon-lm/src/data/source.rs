//! Text from files and folders. Files of any length are read piece by piece; only a line of JSON is held in memory as a
//! whole, up to [`LONGEST_LINE`].

use std::fs;
use std::path::{Path, PathBuf};

use falcon_base::files::special_kind;
use falcon_base::{AtPath, hex};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::detokenize::{Detokenizer, Pages};
use super::error::SourceError;
use super::lines::LONGEST_LINE;
use super::piece::Piece;
use super::reading::{read_file, whole_characters};
use super::stamp::FileStamp;
use super::walk::text_files;
use crate::monitor::Monitor;

/// The number of files that are stamped in parallel between two checks of the monitor.
const STAMPED_TOGETHER: usize = 64;

/// Files to read text from, sorted by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    root: PathBuf,
    files: Vec<PathBuf>,
    detokenizer: Option<Detokenizer>,
}

/// Stands for standard input where a path is given.
pub const STDIN: &str = "-";

impl Source {
    /// A file of any name, or all text files of a folder and its subfolders: those whose names end in `.txt`, `.md` or
    /// `.jsonl`, also followed by `.xz`, `.gz` or `.zst`.
    pub fn open(root: &Path) -> Result<Self, SourceError> {
        Self::find(root, &mut ())
    }

    /// Like [`Source::open`], with a monitor that can cancel the search.
    pub fn find(root: &Path, monitor: &mut dyn Monitor) -> Result<Self, SourceError> {
        if root == Path::new(STDIN) {
            return Err(SourceError::Stdin);
        }
        let found = fs::metadata(root).at(root)?;
        let files = match found.is_dir() {
            true => text_files(root, monitor)?,
            false => match special_kind(found.file_type()) {
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

    /// The same source, divided into pages and detokenized; each page is a document. Every file must begin as text of
    /// this kind does.
    pub fn detokenized(mut self, detokenizer: Detokenizer) -> Result<Self, SourceError> {
        for path in &self.files {
            let beginning = beginning(path, RECOGNISED)?.concat();
            if detokenizer.recognises(&beginning) == Some(false) {
                return Err(SourceError::Kind { path: path.clone(), detokenizer });
            }
        }
        self.detokenizer = Some(detokenizer);
        Ok(self)
    }

    /// How the text is detokenized, if it is.
    pub fn detokenizer(&self) -> Option<Detokenizer> {
        self.detokenizer
    }

    /// The stamps of its files, in order.
    pub fn stamps(&self, monitor: &mut dyn Monitor) -> Result<Vec<FileStamp>, SourceError> {
        let mut stamps = Vec::with_capacity(self.files.len());
        for files in self.files.chunks(STAMPED_TOGETHER) {
            stamps.extend(files.par_iter().map(|path| FileStamp::of(path)).collect::<Result<Vec<_>, _>>()?);
            monitor.check()?;
        }
        Ok(stamps)
    }

    /// Passes all text to `take`, which may stop with an error of its own.
    pub fn read<E: From<SourceError>>(&self, mut take: impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        let mut any = false;
        for path in &self.files {
            let mut take = |piece: Piece| {
                any = true;
                take(piece)
            };
            match self.detokenizer {
                None => read_file(path, &mut take)?,
                Some(detokenizer) => read_pages(path, detokenizer, LONGEST_LINE, &mut take)?,
            }
        }
        if any { Ok(()) } else { Err(SourceError::Empty { path: self.root.clone() }.into()) }
    }
}

/// Passes the pages of a file to `take`, detokenized. A page of more than `longest` bytes is refused before all of it
/// is in memory.
fn read_pages<E: From<SourceError>>(
    path: &Path,
    detokenizer: Detokenizer,
    longest: usize,
    take: &mut impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    let mut pages = Pages::new(detokenizer);
    read_file(path, &mut |piece| -> Result<(), E> {
        pages.add(&piece, take)?;
        match pages.held() > longest {
            true => Err(SourceError::Page { path: path.into() }.into()),
            false => Ok(()),
        }
    })?;
    pages.finish(take)
}

/// The SHA-256 of a list of texts.
pub fn digest(texts: &[String]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// Bytes at the beginning of a file by which its kind is recognised.
const RECOGNISED: usize = 1 << 16;

/// About `most` bytes of text, an equal share from the beginning of every file.
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
    /// Why reading ends before the file does.
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::reading::{LONGEST, PIECE};
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
    fn compressed_files_are_decompressed() {
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
        // Several frames, with skippable frames between and around them.
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
                let error = read(&path).unwrap_err().to_string();
                assert!(error.contains(name), "half of {name}: {error}");
            }
        }
    }

    /// Twenty pages together are longer than the limit, and none of them is.
    #[test]
    fn a_page_longer_than_the_limit_is_refused() {
        let page = format!(" = A = \n{}\n", "word ".repeat(PIECE / 10));
        let (_folder, path) = file("a.txt", page.repeat(20).as_bytes());
        let pages = |longest| {
            let mut count = 0;
            let read = read_pages(&path, Detokenizer::WikiText, longest, &mut |_| {
                count += 1;
                Ok::<_, SourceError>(())
            });
            read.map(|()| count)
        };
        // A page is held until the next one begins, with what was read of that.
        assert_eq!(pages(2 * PIECE).unwrap(), 20);
        let error = pages(PIECE / 4).unwrap_err();
        assert!(matches!(&error, SourceError::Page { path: found } if *found == path), "{error}");
    }

    /// In an uncompressed frame, a changed byte is found only by the checksum.
    #[test]
    fn damage_in_a_frame_is_noticed() {
        let text = "Öl und Wasser.\n";
        let good =
            ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Uncompressed);
        let at = good
            .windows(text.len())
            .position(|bytes| bytes == text.as_bytes())
            .expect("an uncompressed frame has the bytes of the text");
        let (_folder, path) = file("a.zst", &good);
        assert_eq!(read(&path).unwrap()[0].text, text);
        let mut bad = good;
        bad[at + 4] ^= 1;
        let (_folder, path) = file("a.zst", &bad);
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("a.zst") && error.contains("checksum"), "{error}");
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
        // Text without line ends is cut between words, and without words anywhere, in plain files and in JSON.
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
    fn a_line_of_jsonl_is_a_document() {
        let long = "a line\nof two. ".repeat(PIECE / 10);
        let lines = format!("{{\"text\": \"one\", \"id\": 3}}\n\n{}\n", serde_json::json!({ "text": long }));
        let (_folder, path) = file("a.jsonl", lines.as_bytes());
        let pieces = read(&path).unwrap();
        assert_eq!(pieces[0], Piece::new("one".into(), true));
        assert_eq!(pieces.iter().map(|piece| piece.first).take(3).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(pieces[1..].iter().map(|piece| piece.text.as_str()).collect::<String>(), long);
        let (_folder, path) = file("a.jsonl", b"{\"text\": \"one\"}\n{\"body\": \"two\"}\n");
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("a.jsonl, line 2: ") && error.ends_with("missing field `text`, column 15"),
            "{error}"
        );
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
    fn devices_and_standard_input_are_refused() {
        let error = |path: &str| read(Path::new(path)).unwrap_err().to_string();
        assert!(error("/dev/zero").contains("/dev/zero: this is a character device"), "{}", error("/dev/zero"));
        assert!(error("-").contains("standard input"), "{}", error("-"));
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
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(word), "{error}");
        }
    }

    #[test]
    fn errors_name_the_first_byte_that_is_not_utf8() {
        let mut bytes = vec![b'a'; 3 * PIECE];
        bytes[2 * PIECE + 5] = 0xff;
        let (_folder, path) = file("a.txt", &bytes);
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("byte {}", 2 * PIECE + 5)), "{error}");
        let (_folder, path) = file("a.txt", "cut off in a character é".as_bytes().split_last().unwrap().1);
        assert!(read(&path).unwrap_err().to_string().contains("byte 23"));
        // A file without text, and no file at all.
        let (folder, path) = file("a.txt", b"");
        assert!(read(&path).unwrap_err().to_string().contains("has no text"));
        assert!(read(&folder.path().join("none")).is_err());
    }
}
