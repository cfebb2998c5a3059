//! Files as they are without compression.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// A file's name without what says how it is compressed.
pub(super) fn plain_name(name: &OsStr) -> &OsStr {
    let path = Path::new(name);
    match path.extension().and_then(OsStr::to_str) {
        Some("xz" | "gz" | "zst") => path.file_stem().unwrap_or(name),
        _ => name,
    }
}

/// What is in a file, and the name of that.
pub(super) fn decompressed(path: &Path) -> io::Result<(Box<dyn BufRead>, &OsStr)> {
    let file = BufReader::new(File::open(path)?);
    let reader: Box<dyn BufRead> = match path.extension().and_then(OsStr::to_str) {
        Some("xz") => Box::new(BufReader::new(lzma_rust2::XzReader::new(file, true))),
        Some("gz") => Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(file))),
        Some("zst") => Box::new(BufReader::new(Frames { file, frame: None })),
        _ => Box::new(file),
    };
    Ok((reader, plain_name(path.file_name().unwrap_or_default())))
}

/// What zstd wrote, which may be many frames one after the other, some of them to be passed over; the library
/// reads one.
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
            // The library computes the checksum, and leaves it to its caller to compare.
            let sums = frame.get_checksum_from_data().zip(frame.get_calculated_checksum());
            if sums.is_some_and(|(written, found)| written != found) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "damaged: its checksum is another"));
            }
            self.frame = None;
        }
    }
}
