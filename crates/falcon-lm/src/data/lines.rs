//! Reads lines of limited length, so that reading a file with a very long line does not take up all memory.

use std::io::{self, BufRead, Read};

use thiserror::Error;

/// The longest line that is read, in bytes.
pub const LONGEST_LINE: usize = 256 << 20;

/// Why a line cannot be read.
#[derive(Debug, Error)]
pub enum LineError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The line is longer than the limit.
    #[error(
        "line {line} is longer than {} MiB, the most that is read as one line; divide it into several lines, or put its \
         text into a .txt file, which may have any length",
        limit >> 20
    )]
    TooLong {
        /// The number of the line, counted from 1.
        line: u64,
        /// The limit in bytes.
        limit: usize,
    },
}

/// Reads lines of bytes into one buffer.
///
/// ```
/// use falcon_lm::data::Lines;
///
/// let mut lines = Lines::new("one\r\n\ntwo".as_bytes());
/// let mut read = Vec::new();
/// while let Some((number, line)) = lines.next_line()? {
///     read.push((number, String::from_utf8_lossy(line).into_owned()));
/// }
/// assert_eq!(read, [(1, "one".into()), (2, "".into()), (3, "two".into())]);
/// # Ok::<_, falcon_lm::data::LineError>(())
/// ```
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
    limit: usize,
}

impl<R: BufRead> Lines<R> {
    /// Lines of at most [`LONGEST_LINE`] bytes.
    pub fn new(reader: R) -> Self {
        Self::with_limit(reader, LONGEST_LINE)
    }

    /// Lines of at most `limit` bytes.
    pub fn with_limit(reader: R, limit: usize) -> Self {
        Self { reader, line: Vec::new(), number: 0, limit }
    }

    /// The next line with its number, counted from 1, without the line end of Unix or Windows. None at the end of the
    /// file.
    pub fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, LineError> {
        self.line.clear();
        // One byte more than a line may have, for its end.
        let most = self.limit as u64 + 1;
        if self.reader.by_ref().take(most).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        match self.line.strip_suffix(b"\n") {
            Some(line) => Ok(Some((self.number, line.strip_suffix(b"\r").unwrap_or(line)))),
            None if self.line.len() > self.limit => {
                Err(LineError::TooLong { line: self.number, limit: self.limit })
            }
            None => Ok(Some((self.number, &self.line))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_longer_than_the_limit_is_refused_before_it_is_in_memory() {
        let lines = |text: &'static str| Lines { limit: 4, ..Lines::new(text.as_bytes()) };
        let mut fits = lines("1234\n1234");
        for number in [1, 2] {
            assert_eq!(fits.next_line().unwrap(), Some((number, &b"1234"[..])));
        }
        assert_eq!(fits.next_line().unwrap(), None);
        let mut long = lines("1\n12345\n");
        long.next_line().unwrap();
        let error = long.next_line().unwrap_err().to_string();
        assert!(error.contains("line 2 is longer than") && error.contains(".txt"), "{error}");
        // Of a line without an end, hardly more than the limit is read into memory.
        let mut endless = Lines { limit: 4, ..Lines::new(io::BufReader::new(io::repeat(b'a'))) };
        assert!(endless.next_line().is_err());
        assert!(endless.line.capacity() <= 64, "{}", endless.line.capacity());
    }
}
