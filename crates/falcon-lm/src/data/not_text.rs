//! Recognises files that are given as text by mistake.

use std::path::Path;

/// First bytes of formats that are not text, with what they are and what to do.
const FORMATS: &[(&[u8], &str)] = &[
    (b"PAR1", PARQUET),
    (b"PK\x03\x04", "this is a zip archive; unpack it first"),
    (b"SQLite format 3\0", "this is an SQLite database; write its text to a .jsonl file first"),
    (b"\x1f\x8b", "this is compressed by gzip; its name must end in .gz"),
    (b"\xfd7zXZ\0", "this is compressed by xz; its name must end in .xz"),
    (b"\x28\xb5\x2f\xfd", ZSTD),
    (b"BZh", "this is compressed by bzip2, which cannot be read; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "this is a 7z archive; unpack it first"),
    (b"%PDF-", "this is a PDF; write its text to a .txt file first"),
    (b"\x89PNG", "this is a picture (PNG)"),
    (b"\xff\xd8\xff", "this is a picture (JPEG)"),
    (b"\x7fELF", "this is a program (ELF)"),
    (b"\xff\xfe", "this is UTF-16; convert it by: iconv -f utf-16 -t utf-8"),
    (b"\xfe\xff", "this is UTF-16; convert it by: iconv -f utf-16 -t utf-8"),
];

const PARQUET: &str = "this is a Parquet file, which cannot be read; convert it to a .jsonl file with one JSON object \
                       per line, the document under \"text\"";

const ZSTD: &str = "this is compressed by zstd; its name must end in .zst";

/// What a file is and what to do, if its name or first bytes show that it is not text.
pub(super) fn not_text(path: &Path, beginning: &[u8]) -> Option<&'static str> {
    if is_parquet(path) {
        return Some(PARQUET);
    }
    // A file of zstd may begin with a frame of other data, to be skipped, whose first byte is any of sixteen.
    if let [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] = beginning {
        return Some(ZSTD);
    }
    FORMATS.iter().find(|(magic, _)| beginning.starts_with(magic)).map(|(_, what)| *what)
}

/// Whether a file is named as Parquet files are.
pub(super) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("parquet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_text_are_recognised() {
        let what = |name: &str, bytes: &[u8]| not_text(Path::new(name), bytes);
        assert!(what("a.txt", b"PAR1\x15\x04").unwrap().contains("Parquet"));
        assert!(what("a.PARQUET", b"").unwrap().contains(".jsonl"));
        assert!(what("a.txt", b"PK\x03\x04...").unwrap().contains("zip"));
        assert!(what("a.txt", b"\x1f\x8b\x08").unwrap().contains(".gz"));
        for zstd in [b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18", b"\x5f\x2a\x4d\x18"] {
            assert!(what("a.txt", zstd).unwrap().contains(".zst"));
        }
        assert_eq!(what("a.txt", b"P*M of text"), None);
        assert_eq!(what("a.txt", b"PARTS of speech"), None);
        assert_eq!(what("a.txt", b""), None);
    }
}
