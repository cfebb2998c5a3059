//! Regular files: what is given as a file must be one, and what is no text says what it is.

use std::fs::{self, File, FileType};
use std::io;
use std::path::Path;

/// Opens a regular file. A named pipe would be waited for without end, and a device may have no end.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let found = fs::metadata(path)?.file_type();
    match refused(found) {
        Some(kind) => Err(io::Error::other(format!("this is {kind}, and only a regular file can be read"))),
        None => File::open(path),
    }
}

/// Reads a whole regular file of at most `most` bytes.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    if length > most {
        let (mib, most) = (length >> 20, most >> 20);
        return Err(io::Error::other(format!("the file has {mib} MiB, and at most {most} MiB are read")));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    io::Read::read_to_end(&mut io::Read::take(file, most), &mut bytes)?;
    Ok(bytes)
}

/// What something is, if it is no regular file.
pub(super) fn refused(found: FileType) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let special = [
            (found.is_fifo(), "a named pipe (FIFO)"),
            (found.is_char_device(), "a character device"),
            (found.is_block_device(), "a block device"),
            (found.is_socket(), "a socket"),
        ];
        if let Some((_, kind)) = special.into_iter().find(|(is, _)| *is) {
            return Some(kind);
        }
    }
    match (found.is_file(), found.is_dir()) {
        (true, _) => None,
        (false, true) => Some("a folder"),
        (false, false) => Some("neither a file nor a folder"),
    }
}

/// Files that are taken for text by mistake: how they begin, what they are, and what can be done.
const BEGINNINGS: [(&[u8], &str); 14] = [
    (b"PAR1", PARQUET),
    (b"PK\x03\x04", "this is a zip archive; unpack it first"),
    (b"SQLite format 3\0", "this is an SQLite database; write its text to a .jsonl file first"),
    (b"\x1f\x8b", "this is compressed by gzip; its name must end in .gz"),
    (b"\xfd7zXZ\0", "this is compressed by xz; its name must end in .xz"),
    (b"\x28\xb5\x2f\xfd", "this is compressed by zstd; its name must end in .zst"),
    (b"BZh", "this is compressed by bzip2, which is not read; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "this is a 7z archive; unpack it first"),
    (b"%PDF-", "this is a PDF; write its text to a .txt file first"),
    (b"\x89PNG", "this is a picture (PNG)"),
    (b"\xff\xd8\xff", "this is a picture (JPEG)"),
    (b"\x7fELF", "this is a program (ELF)"),
    (b"\xff\xfe", "this is UTF-16; convert it by: iconv -f utf-16 -t utf-8"),
    (b"\xfe\xff", "this is UTF-16; convert it by: iconv -f utf-16 -t utf-8"),
];

const PARQUET: &str = "this is a Parquet file, which is not read; convert it to a .jsonl file with one JSON object \
                       per line, the document under \"text\"";

/// What a file is that is no text, with what to do, by its name or the bytes it begins with.
pub(super) fn not_text(path: &Path, beginning: &[u8]) -> Option<&'static str> {
    if is_parquet(path) {
        return Some(PARQUET);
    }
    BEGINNINGS.iter().find(|(magic, _)| beginning.starts_with(magic)).map(|(_, what)| *what)
}

/// Whether a file's name says that it is Parquet.
pub(super) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("parquet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_text_are_named() {
        let of = |name: &str, bytes: &[u8]| not_text(Path::new(name), bytes);
        assert!(of("a.txt", b"PAR1\x15\x04").unwrap().contains("Parquet"));
        assert!(of("a.PARQUET", b"").unwrap().contains(".jsonl"));
        assert!(of("a.txt", b"PK\x03\x04...").unwrap().contains("zip"));
        assert!(of("a.txt", b"\x1f\x8b\x08").unwrap().contains(".gz"));
        assert_eq!(of("a.txt", b"PARTS of speech"), None);
        assert_eq!(of("a.txt", b""), None);
    }

    #[test]
    fn a_file_larger_than_allowed_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, vec![0; 3 << 20]).unwrap();
        assert_eq!(read_regular(&path, 3 << 20).unwrap().len(), 3 << 20);
        let said = read_regular(&path, 2 << 20).unwrap_err().to_string();
        assert!(said.contains("3 MiB") && said.contains("2 MiB"), "{said}");
        assert!(open_regular(folder.path()).unwrap_err().to_string().contains("a folder"));
    }
}
