//! Files of tokens, mapped into memory.
//!
//! ```text
//! tokens       little-endian, 2 bytes each if the vocabulary allows, otherwise 4
//! documents    index of the first token of each, 8 bytes each
//! header       JSON: format version, sources, tokenizer, totals, and checksums of the above
//! checksum     SHA-256 of the header
//! length       of the header and its checksum, 8 bytes
//! magic        8 bytes
//! ```
//!
//! A document begins with the tokenizer's end token, so that its first word has a token to follow.

use std::fs::File;
use std::io::{self, Cursor};
use std::ops::Range;
use std::path::Path;

use falcon_base::hex;
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::detokenize::Detokenizer;
use super::stamp::{FileStamp, sampled};
use super::tokenizer::Tokenizer;

/// Version of the format. A file of another version is encoded again.
pub(super) const FORMAT: u32 = 2;
/// The last bytes of a file.
pub(super) const MAGIC: &[u8; 8] = b"FALCTOK1";

/// Bytes of a checksum.
pub(super) const SUM: usize = 32;

/// How thoroughly text and tokens are compared with what they were when the text was encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Sizes, times and sampled blocks of every file are compared; a text file whose times differ is read completely,
    /// once.
    #[default]
    Sampled,
    /// Every file is read completely.
    Full,
}

/// The header of a file: what the tokens were encoded from, and checksums.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub format: u32,
    pub source: Vec<FileStamp>,
    /// SHA-256 of each file of `source`.
    pub contents: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detokenizer: Option<Detokenizer>,
    pub tokenizer: String,
    pub totals: Totals,
    /// SHA-256 of tokens and documents.
    pub sha256: String,
    /// Checksum of sampled blocks of the tokens.
    pub sampled: String,
    /// SHA-256 of documents.
    pub documents: String,
}

/// Counts of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Tokens, including the one that begins each document.
    pub tokens: usize,
    /// Documents.
    pub documents: usize,
    /// Bytes of text, before it was detokenized.
    pub bytes: usize,
    /// Words, separated by white space, before it was detokenized.
    pub words: usize,
}

impl Totals {
    /// The counts of both texts together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            documents: self.documents + other.documents,
            bytes: self.bytes + other.bytes,
            words: self.words + other.words,
        }
    }
}

/// The tokens of a text, document after document.
#[derive(Debug)]
pub struct Tokens {
    map: Mmap,
    wide: bool,
    pub(super) header: Header,
    fingerprint: String,
    documents: Vec<usize>,
}

impl Tokens {
    /// Opens a file, unless it is damaged, of another version, or of another tokenizer.
    pub(super) fn read(path: &Path, tokenizer: &Tokenizer, check: Check) -> io::Result<Self> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
        let file = File::open(path)?;
        // SAFETY: this program replaces such a file only by renaming another file to its name; it never changes or
        // truncates one. If another program did so while the file is mapped, tokens would change, or the process would
        // end.
        let map = unsafe { Mmap::map(&file)? };
        let length = map.len();
        let end = length.checked_sub(16).ok_or_else(|| bad("too short"))?;
        if &map[end + 8..] != MAGIC {
            return Err(bad("not a file of tokens"));
        }
        let header_length = u64::from_le_bytes(map[end..end + 8].try_into().expect("eight"));
        let header_start = usize::try_from(header_length).ok().and_then(|length| end.checked_sub(length));
        let sum = end.checked_sub(SUM).filter(|sum| header_start.is_some_and(|start| start <= *sum));
        let (header_start, sum) = header_start.zip(sum).ok_or_else(|| bad("its header is cut off"))?;
        if Sha256::digest(&map[header_start..sum])[..] != map[sum..end] {
            return Err(bad("its header is damaged"));
        }
        let header: Header = serde_json::from_slice(&map[header_start..sum])?;
        if header.format != FORMAT {
            return Err(bad("it is of another version"));
        }
        let wide = is_wide(tokenizer);
        let width = if wide { 4 } else { 2 };
        let Totals { tokens, documents, .. } = header.totals;
        let parts = tokens.checked_mul(width).zip(documents.checked_mul(8));
        if parts.is_none_or(|(tokens, documents)| tokens.checked_add(documents) != Some(header_start)) {
            return Err(bad("its length is not the one in its header"));
        }
        let (data, starts) = map[..header_start].split_at(tokens * width);
        let is_intact = || header.sha256 == hex(&Sha256::digest(&map[..header_start]));
        // The documents are read anyway; of the tokens, only a sample is compared, so that a start is quick however
        // many there are.
        if header.tokenizer != tokenizer.fingerprint()
            || header.documents != hex(&Sha256::digest(starts))
            || header.sampled != sampled(&mut Cursor::new(data), data.len() as u64)?
            || (check == Check::Full && !is_intact())
        {
            return Err(bad("its content is not the one in its header"));
        }
        let starts = starts.chunks_exact(8);
        let documents =
            starts.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")) as usize).collect();
        // Text may have the same tokens with and without a detokenizer, but not the same counts.
        let fingerprint = match header.detokenizer {
            None => header.sha256.clone(),
            Some(detokenizer) => format!("{detokenizer}:{}", header.sha256),
        };
        Ok(Self { map, wide, header, fingerprint, documents })
    }

    /// The counts of the text.
    pub fn totals(&self) -> Totals {
        self.header.totals
    }

    /// A hash of all tokens, with the way their text was detokenized.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// A file that both texts include, if there is one.
    pub fn shared_file(&self, other: &Self) -> Option<&str> {
        let includes = |tokens: &Self, path: &str| tokens.header.source.iter().any(|stamp| stamp.path == path);
        self.header.source.iter().map(|stamp| stamp.path.as_str()).find(|path| includes(other, path))
    }

    /// The index of the first token of each document.
    pub fn documents(&self) -> &[usize] {
        &self.documents
    }

    /// The tokens of a range.
    pub fn get(&self, range: Range<usize>) -> Vec<u32> {
        assert!(range.end <= self.header.totals.tokens, "a range of the text");
        match self.wide {
            true => {
                let bytes = self.map[4 * range.start..4 * range.end].chunks_exact(4);
                bytes.map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four"))).collect()
            }
            false => {
                let bytes = self.map[2 * range.start..2 * range.end].chunks_exact(2);
                bytes.map(|bytes| u16::from_le_bytes(bytes.try_into().expect("two")).into()).collect()
            }
        }
    }
}

/// Whether tokens need 4 bytes each.
pub(super) fn is_wide(tokenizer: &Tokenizer) -> bool {
    tokenizer.size() > 1 << 16
}
