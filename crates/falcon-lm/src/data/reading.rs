//! Reads text piece by piece: plain files as one document, `.jsonl` files as one document per line, compressed or not.

use std::ffi::OsStr;
use std::io::{BufRead, Read};
use std::path::Path;

use falcon_base::AtPath;
use serde::Deserialize;

use super::compressed::decompressed;
use super::error::SourceError;
use super::lines::Lines;
use super::piece::Piece;

/// The approximate length of a piece in bytes.
pub(super) const PIECE: usize = 1 << 20;
/// A document without line ends is cut between words when it is longer than this.
pub(super) const LONGEST: usize = 4 * PIECE;

/// Passes the text of `reader`, one document of any length, to `take` piece by piece. Errors report `name` as its path.
pub fn read_text<E: From<SourceError>>(
    name: &Path,
    reader: impl BufRead + 'static,
    mut take: impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    pieces(name, Box::new(reader), &mut take)
}

/// Passes the documents of a file to `take`, piece by piece.
pub(super) fn read_file<E: From<SourceError>>(
    path: &Path,
    take: &mut impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    let (mut reader, name) = decompressed(path).map_err(SourceError::from)?;
    let beginning = reader.fill_buf().at(path).map_err(SourceError::from)?;
    if let Some(error) = SourceError::not_text(path, Path::new(name), beginning) {
        return Err(error.into());
    }
    match Path::new(name).extension() == Some(OsStr::new("jsonl")) {
        true => documents(path, reader, take),
        false => pieces(path, reader, take),
    }
}

/// Reads one document per line: a JSON object with a `text`.
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
    let unread = |source| SourceError::Line { path: path.into(), source };
    while let Some((line, bytes)) = lines.next_line().map_err(unread)? {
        let json = bytes.trim_ascii_end();
        if json.is_empty() {
            continue;
        }
        let wrong = |source| SourceError::Document { path: path.into(), line, source };
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

/// Reads a file that is one document.
fn pieces<E: From<SourceError>>(
    path: &Path,
    mut reader: Box<dyn BufRead>,
    take: &mut impl FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    let (mut bytes, mut first, mut read) = (Vec::new(), true, 0u64);
    loop {
        let got =
            reader.by_ref().take(PIECE as u64).read_to_end(&mut bytes).at(path).map_err(SourceError::from)?;
        let (text, whole) = match std::str::from_utf8(&bytes) {
            Ok(text) => (text, true),
            // The last character is not read completely yet.
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

/// The last place where a line begins with a visible character, which tokenizers do not join with the line end before.
fn last_line(text: &str) -> Option<usize> {
    let begins = |at: usize| text[at..].starts_with(|c: char| !c.is_whitespace());
    let mut lines = text.rmatch_indices('\n').map(|(newline, _)| newline + 1);
    lines.find(|at| *at > 1 && begins(*at))
}

/// The last place before a single space between two words, which tokenizers join with the word after it; the end of the
/// text if there is none.
fn last_word(text: &str) -> usize {
    let between = |at: usize| {
        let mut around = (text[..at].chars().next_back(), text[at + 1..].chars().next());
        let letter = |c: &mut Option<char>| c.take().is_some_and(|c| !c.is_whitespace());
        letter(&mut around.0) && letter(&mut around.1)
    };
    text.rmatch_indices(' ').map(|(space, _)| space).find(|at| between(*at)).unwrap_or(text.len())
}

/// The length of the longest prefix of at most `most` bytes that does not cut a character.
pub(super) fn whole_characters(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
