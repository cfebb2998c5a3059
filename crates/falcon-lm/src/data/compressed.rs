//! Reads files that may be compressed, within limits.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use falcon_base::files::open_regular;
use falcon_base::{AtPath, PathError};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The most memory that decompressing a file of xz may need, in KiB: eight times what its highest preset needs.
const XZ_MEMORY: u32 = 512 << 10;
/// The largest ratio of decompressed to compressed bytes. Books have 3 or 4, logs 20 to 50.
const EXPANSION: u64 = 200;
/// Bytes that any file may decompress to, however small it is.
const ALWAYS: u64 = 64 << 20;
/// The environment variable that replaces [`EXPANSION`].
const VARIABLE: &str = "FALCON_MAX_EXPANSION";

/// The name of a file without the extension of its compression.
pub(super) fn plain_name(name: &OsStr) -> &OsStr {
    let path = Path::new(name);
    match path.extension().and_then(OsStr::to_str) {
        Some("xz" | "gz" | "zst") => path.file_stem().unwrap_or(name),
        _ => name,
    }
}

/// The decompressed content of a file, and the name of the file without the extension of its compression.
pub(super) fn decompressed(path: &Path) -> Result<(Box<dyn BufRead>, &OsStr), PathError> {
    let file = open_regular(path)?;
    let compressed = file.metadata().at(path)?.len();
    let file = BufReader::new(file);
    let bounded = |reader: Box<dyn Read>| -> Result<Box<dyn BufRead>, PathError> {
        Ok(Box::new(BufReader::new(Bounded::new(reader, compressed, expansion().at(path)?))))
    };
    let reader: Box<dyn BufRead> = match path.extension().and_then(OsStr::to_str) {
        Some("xz") => bounded(Box::new(lzma_rust2::XzReader::new_mem_limit(file, true, XZ_MEMORY)))?,
        Some("gz") => bounded(Box::new(flate2::bufread::MultiGzDecoder::new(file)))?,
        Some("zst") => bounded(Box::new(Frames { file, frame: None }))?,
        _ => Box::new(file),
    };
    Ok((reader, plain_name(path.file_name().unwrap_or_default())))
}

/// The largest ratio of decompressed to compressed bytes, from the environment or by default.
fn expansion() -> io::Result<u64> {
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(EXPANSION) };
    let number = value.to_str().and_then(|value| value.parse().ok()).filter(|number| *number > 0);
    number.ok_or_else(|| io::Error::other(format!("{VARIABLE} must be a whole number above 0, got {value:?}")))
}

/// Stops decompression at the allowed ratio: a file of a few bytes could be made to fill any disk.
struct Bounded<R> {
    reader: R,
    compressed: u64,
    times: u64,
    left: u64,
}

impl<R> Bounded<R> {
    fn new(reader: R, compressed: u64, times: u64) -> Self {
        Self { reader, compressed, times, left: compressed.saturating_mul(times).max(ALWAYS) }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(out)?;
        let Some(left) = self.left.checked_sub(read as u64) else {
            let Self { compressed, times, .. } = self;
            return Err(io::Error::other(format!(
                "its {compressed} bytes decompress to more than {times} times as much (and more than {} MiB); if that \
                 is meant, set {VARIABLE} to a larger number",
                ALWAYS >> 20
            )));
        };
        self.left = left;
        Ok(read)
    }
}

/// Reads all frames of a file of zstd, passing over skippable ones; the library reads a single frame.
struct Frames<R> {
    file: R,
    frame: Option<Box<FrameDecoder>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wrong = |error: FrameDecoderError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        loop {
            let Some(frame) = &mut self.frame else {
                if self.file.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                let mut frame = FrameDecoder::new();
                match frame.init(&mut self.file) {
                    Ok(()) => self.frame = Some(Box::new(frame)),
                    Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                        length,
                        ..
                    })) => {
                        let skipped = io::copy(&mut (&mut self.file).take(length.into()), &mut io::sink())?;
                        if skipped < length.into() {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                    }
                    Err(error) => return Err(wrong(error)),
                }
                continue;
            };
            while frame.can_collect() == 0 && !frame.is_finished() {
                frame.decode_blocks(&mut self.file, BlockDecodingStrategy::UptoBlocks(1)).map_err(wrong)?;
            }
            let read = frame.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            // The library computes the checksum and leaves the comparison to its caller.
            let sums = frame.get_checksum_from_data().zip(frame.get_calculated_checksum());
            if sums.is_some_and(|(written, found)| written != found) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "damaged: its checksum does not match"));
            }
            self.frame = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file of a few bytes may ask for a dictionary of any size.
    #[test]
    fn a_dictionary_larger_than_the_limit_is_refused() {
        let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
        xz.write_all(b"rain").unwrap();
        let whole = xz.finish().unwrap();
        // The header of the first block follows the header of the file: its length in words of four bytes less one, flags,
        // the number of a filter, the length of its properties, the size of the dictionary, padding and a checksum.
        let block = 12;
        assert_eq!(whole[block..block + 4], [2, 0, 0x21, 1]);
        let read = |size: u8| {
            let mut bytes = whole.clone();
            bytes[block + 4] = size;
            let mut sum = flate2::Crc::new();
            sum.update(&bytes[block..block + 8]);
            bytes[block + 8..block + 12].copy_from_slice(&sum.sum().to_le_bytes());
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.xz");
            std::fs::write(&path, bytes).unwrap();
            let mut text = String::new();
            decompressed(&path).unwrap().0.read_to_string(&mut text).map(|_| text)
        };
        // 64 MiB, as the highest preset has it, and 1 GiB.
        assert_eq!(read(28).unwrap(), "rain");
        assert!(read(36).is_err());
    }

    #[test]
    fn a_small_file_does_not_become_a_large_text() {
        let read = |length, compressed, times| {
            io::copy(&mut Bounded::new(io::repeat(b'a').take(length), compressed, times), &mut io::sink())
        };
        assert_eq!(read(ALWAYS, 1, 200).unwrap(), ALWAYS);
        assert_eq!(read(ALWAYS + 1, ALWAYS, 2).unwrap(), ALWAYS + 1);
        let error = read(ALWAYS + 1, 1000, 200).unwrap_err().to_string();
        assert!(
            error.contains("1000 bytes") && error.contains("200 times") && error.contains(VARIABLE),
            "{error}"
        );
    }
}
