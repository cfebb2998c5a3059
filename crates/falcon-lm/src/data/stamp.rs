//! File stamps: path, size, times and a checksum of sampled blocks, enough to notice a change without reading a whole
//! file.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::UNIX_EPOCH;

use falcon_base::files::open_regular;
use falcon_base::{AtPath, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::SourceError;
use crate::monitor::Monitor;

/// The state of a file at some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// The canonical path; bytes that are not UTF-8 are written as `%FF`.
    pub path: String,
    /// The length in bytes.
    pub bytes: u64,
    /// Modification time in nanoseconds since 1970. Programs can set it to any time.
    pub modified: u128,
    /// Time of the last change of any kind in nanoseconds since 1970, where the system keeps it. Programs cannot set
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<u128>,
    /// Checksum of sampled blocks, or of all bytes of a small file.
    pub sampled: String,
}

impl FileStamp {
    /// The stamp of a file as it is now.
    pub(super) fn of(path: &Path) -> Result<Self, SourceError> {
        let mut file = open_regular(path)?;
        let metadata = file.metadata().at(path)?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            path: as_text(&fs::canonicalize(path).at(path)?),
            bytes: metadata.len(),
            modified: modified.map_or(0, |time| time.as_nanos()),
            changed: changed(&metadata),
            sampled: sampled(&mut file, metadata.len()).at(path)?,
        })
    }

    /// Whether two stamps have the same path, length and sampled checksum.
    pub(super) fn equal_except_times(&self, other: &Self) -> bool {
        (&self.path, self.bytes, &self.sampled) == (&other.path, other.bytes, &other.sampled)
    }
}

#[cfg(unix)]
fn changed(metadata: &fs::Metadata) -> Option<u128> {
    use std::os::unix::fs::MetadataExt;
    let seconds = u128::try_from(metadata.ctime()).ok()?;
    Some(seconds * 1_000_000_000 + u128::try_from(metadata.ctime_nsec()).ok()?)
}

#[cfg(not(unix))]
fn changed(_metadata: &fs::Metadata) -> Option<u128> {
    None
}

/// Number of blocks sampled from a large file; the first and the last one of the file are among them.
const BLOCKS: u64 = 32;
/// Bytes of a block. A file no longer than all blocks together is read completely.
const BLOCK: u64 = 8 << 10;

/// Checksum of the length and of blocks spread over `length` bytes.
pub(super) fn sampled(from: &mut (impl Read + Seek), length: u64) -> io::Result<String> {
    let mut hash = Sha256::new_with_prefix(length.to_le_bytes());
    if length <= BLOCKS * BLOCK {
        let mut bytes = Vec::with_capacity(length as usize);
        from.seek(SeekFrom::Start(0))?;
        from.take(length).read_to_end(&mut bytes)?;
        hash.update(&bytes);
    } else {
        let mut block = vec![0; BLOCK as usize];
        for index in 0..BLOCKS {
            // In 128 bits, as a product of lengths may overflow 64.
            let start = u128::from(length - BLOCK) * u128::from(index) / u128::from(BLOCKS - 1);
            from.seek(SeekFrom::Start(start as u64))?;
            from.read_exact(&mut block)?;
            hash.update(&block);
        }
    }
    Ok(hex(&hash.finalize()[..16]))
}

/// The SHA-256 of a whole file, in hexadecimal.
pub(super) fn file_sha256(path: &Path, monitor: &mut dyn Monitor) -> Result<String, SourceError> {
    let mut file = open_regular(path)?;
    let (mut hash, mut block) = (Sha256::new(), vec![0; 4 << 20]);
    loop {
        let read = file.read(&mut block).at(path)?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&block[..read]);
        monitor.check()?;
    }
}

/// A path as text; different paths have different texts.
fn as_text(path: &Path) -> String {
    let text = |chunk: std::str::Utf8Chunk<'_>| {
        let bytes: String = chunk.invalid().iter().map(|byte| format!("%{byte:02X}")).collect();
        chunk.valid().replace('%', "%25") + &bytes
    };
    path.as_os_str().as_encoded_bytes().utf8_chunks().map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn sum(bytes: &[u8]) -> String {
        sampled(&mut Cursor::new(bytes), bytes.len() as u64).unwrap()
    }

    /// A small file is covered completely, a large one at its beginning, its end and places in between.
    #[test]
    fn sampled_checksums_detect_changes() {
        let small: Vec<u8> = (0..255).collect();
        for at in 0..small.len() {
            let mut other = small.clone();
            other[at] ^= 1;
            assert_ne!(sum(&other), sum(&small), "byte {at}");
        }
        let large = vec![b'a'; 3 << 20];
        let middle = (large.len() as u64 - BLOCK) * 16 / (BLOCKS - 1);
        for at in [0, BLOCK as usize - 1, middle as usize, large.len() - 1] {
            let mut other = large.clone();
            other[at] = b'b';
            assert_ne!(sum(&other), sum(&large), "byte {at}");
        }
        assert_ne!(sum(&large), sum(&large[1..]), "another length");
    }

    #[cfg(unix)]
    #[test]
    fn paths_need_not_be_utf8() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9 100%.txt"));
        fs::write(&path, "x").unwrap();
        let stamp = FileStamp::of(&path).unwrap();
        assert!(stamp.path.ends_with("caf%E9 100%25.txt"), "{}", stamp.path);
    }
}
