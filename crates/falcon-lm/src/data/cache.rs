//! Text as tokens, made once: a file that is mapped into memory, checked, and made again when its text or tokenizer has changed.
//!
//! ```text
//! tokens       little-endian, 2 bytes each if the vocabulary allows, otherwise 4
//! documents    where each begins, 8 bytes each
//! about        JSON: Header, with the checksum of the above
//! checksum     SHA-256 of about
//! its length   8 bytes
//! magic        8 bytes
//! ```
//!
//! A document begins with the tokenizer's end token, so that its first word has something to follow.

use std::fs::{self, File, TryLockError};
use std::io::{self, Cursor};
use std::ops::Range;
use std::path::{Path, PathBuf};

use falcon_nn::ASIDE;
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::detokenize::Detokenizer;
use super::make::{FORMAT, MAGIC, TURN, make};
use super::source::{Source, SourceError};
use super::stamp::{FileStamp, hex, sampled, whole};
use super::tokenizer::{Tokenizer, TokenizerError};

/// Bytes of a checksum.
pub(super) const SUM: usize = 32;

/// Why there are no tokens.
#[derive(Debug, Error)]
pub enum CacheError {
    /// The text cannot be read.
    #[error(transparent)]
    Source(SourceError),
    /// The tokenizer cannot encode the text, or does not know its characters.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// It was asked to stop.
    #[error("interrupted while text was made into tokens; it begins anew the next time")]
    Interrupted,
    /// The tokens cannot be kept.
    #[error("{path}: {error}; set FALCON_CACHE to a folder that can be written and has room")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// There is no place for tokens that is the user's own.
    #[error("there is no home folder to keep tokens in; set FALCON_CACHE to a folder of yours")]
    NoFolder,
}

impl From<SourceError> for CacheError {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Interrupted => Self::Interrupted,
            error => Self::Source(error),
        }
    }
}

/// How much is read to find out whether text and tokens are what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Sizes, times and some blocks of every file; all of a text file whose times are others.
    #[default]
    Sampled,
    /// All of every file.
    Full,
}

/// What a file of tokens is made from, and how much of it there is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub format: u32,
    pub source: Vec<FileStamp>,
    /// Checksums of all of each file of `source`.
    pub contents: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detokenizer: Option<Detokenizer>,
    pub tokenizer: String,
    pub totals: Totals,
    /// Checksum of tokens and documents.
    pub sha256: String,
    /// Checksum of some blocks of the tokens.
    pub sampled: String,
    /// Checksum of where documents begin.
    pub documents: String,
}

/// How much text there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Tokens, the beginnings of documents among them.
    pub tokens: usize,
    /// Documents.
    pub documents: usize,
    /// Bytes of text, before it was detokenized.
    pub bytes: usize,
    /// Words: what white space divides, before it was detokenized.
    pub words: usize,
}

impl Totals {
    /// Of this text and another.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            documents: self.documents + other.documents,
            bytes: self.bytes + other.bytes,
            words: self.words + other.words,
        }
    }
}

/// Tokens of documents, one after the other.
#[derive(Debug)]
pub struct Tokens {
    map: Mmap,
    wide: bool,
    header: Header,
    fingerprint: String,
    documents: Vec<usize>,
}

impl Tokens {
    /// The tokens of `source`, from `folder` if they are there and whole, otherwise made. `progress` is told the
    /// bytes of text done, and may say to stop by false; 0 before the first, as while files are checked or another
    /// process makes the same tokens.
    pub fn open(
        source: &Source,
        tokenizer: &Tokenizer,
        folder: &Path,
        check: Check,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, CacheError> {
        let stamps = source.stamps(&mut || progress(0))?;
        let paths = stamps.iter().map(|stamp| stamp.path.clone());
        let name = paths
            .chain([tokenizer.fingerprint()])
            .chain(source.detokenizer().map(|detokenizer| detokenizer.to_string()))
            .fold(Sha256::new(), |hash, part| hash.chain_update(part).chain_update([0]));
        let name = hex(&name.finalize()[..12]);
        let path = folder.join(format!("{name}.tokens"));
        let known = |progress: &mut dyn FnMut(usize) -> bool| -> Result<Option<Self>, CacheError> {
            let Ok(known) = Self::read(&path, tokenizer, check) else { return Ok(None) };
            Ok(known.header.is_of(source, &stamps, check, &mut || progress(0))?.then_some(known))
        };
        if let Some(known) = known(progress)? {
            return Ok(known);
        }
        let io = |error| CacheError::Io { path: path.clone(), error };
        fs::create_dir_all(folder).map_err(io)?;
        // Runs that begin side by side want the same tokens: one makes them, the others wait.
        let turn = folder.join(format!("{ASIDE}{name}.lock"));
        let lock = File::create(&turn).map_err(io)?;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if progress(0) => std::thread::sleep(TURN),
                Err(TryLockError::WouldBlock) => return Err(CacheError::Interrupted),
                Err(TryLockError::Error(error)) => return Err(io(error)),
            }
        }
        let made = match known(progress) {
            Ok(Some(known)) => Ok(known),
            Ok(None) => make(source, stamps.clone(), tokenizer, &path, progress)
                .and_then(|()| Self::read(&path, tokenizer, check).map_err(io)),
            Err(error) => Err(error),
        };
        // Who comes now does not wait for those that do; at worst, tokens are made twice.
        let _ = fs::remove_file(&turn);
        made
    }

    /// A file of tokens, if it is whole.
    fn read(path: &Path, tokenizer: &Tokenizer, check: Check) -> io::Result<Self> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
        let file = File::open(path)?;
        // SAFETY: files of tokens are only ever replaced by renaming, never changed or cut. Who does so from outside while one is mapped
        // changes the numbers under us, or ends the process.
        let map = unsafe { Mmap::map(&file)? };
        let length = map.len();
        let end = length.checked_sub(16).ok_or_else(|| bad("too short"))?;
        if &map[end + 8..] != MAGIC {
            return Err(bad("not a file of tokens"));
        }
        let about = u64::from_le_bytes(map[end..end + 8].try_into().expect("eight"));
        let about = usize::try_from(about).ok().and_then(|about| end.checked_sub(about));
        let sum = end.checked_sub(SUM).filter(|sum| about.is_some_and(|about| about <= *sum));
        let (about, sum) = about.zip(sum).ok_or_else(|| bad("its header is cut off"))?;
        if Sha256::digest(&map[about..sum])[..] != map[sum..end] {
            return Err(bad("its header is not what it was"));
        }
        let header: Header = serde_json::from_slice(&map[about..sum])?;
        if header.format != FORMAT {
            return Err(bad("a file of another version"));
        }
        let wide = is_wide(tokenizer);
        let width = if wide { 4 } else { 2 };
        let Totals { tokens, documents, .. } = header.totals;
        let parts = tokens.checked_mul(width).zip(documents.checked_mul(8));
        if parts.is_none_or(|(tokens, documents)| tokens.checked_add(documents) != Some(about)) {
            return Err(bad("its length is not what it says"));
        }
        let (data, starts) = map[..about].split_at(tokens * width);
        let whole = || header.sha256 == hex(&Sha256::digest(&map[..about]));
        // Where documents begin is read anyway; of the tokens, a sample, so that a start is quick however many there
        // are.
        if header.tokenizer != tokenizer.fingerprint()
            || header.documents != hex(&Sha256::digest(starts))
            || header.sampled != sampled(&mut Cursor::new(data), data.len() as u64)?
            || (check == Check::Full && !whole())
        {
            return Err(bad("not what it says"));
        }
        let starts = starts.chunks_exact(8);
        let documents =
            starts.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")) as usize).collect();
        // Text may be the same detokenized or not; what is counted of it is not.
        let fingerprint = match header.detokenizer {
            None => header.sha256.clone(),
            Some(detokenizer) => format!("{detokenizer}:{}", header.sha256),
        };
        Ok(Self { map, wide, header, fingerprint, documents })
    }

    /// How much text there is.
    pub fn totals(&self) -> Totals {
        self.header.totals
    }

    /// What tells these tokens from others: a hash of them all, and how their text was detokenized.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// A file that both are made from, if there is one.
    pub fn shared_file(&self, other: &Self) -> Option<&str> {
        let of = |tokens: &Self, path: &str| tokens.header.source.iter().any(|stamp| stamp.path == path);
        self.header.source.iter().map(|stamp| stamp.path.as_str()).find(|path| of(other, path))
    }

    /// Where documents begin.
    pub fn documents(&self) -> &[usize] {
        &self.documents
    }

    /// Some of the tokens.
    pub fn get(&self, range: Range<usize>) -> Vec<u32> {
        assert!(range.end <= self.header.totals.tokens, "tokens there are");
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

impl Header {
    /// Whether tokens are those of `source` as it is now, with these stamps.
    fn is_of(
        &self,
        source: &Source,
        stamps: &[FileStamp],
        check: Check,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, SourceError> {
        if self.detokenizer != source.detokenizer()
            || [self.source.len(), self.contents.len()] != [stamps.len(); 2]
        {
            return Ok(false);
        }
        if self.source.iter().zip(stamps).any(|(old, new)| !old.same_looks(new)) {
            return Ok(false);
        }
        for (index, (old, new)) in self.source.iter().zip(stamps).enumerate() {
            let sure = check == Check::Sampled && old.same_times(new);
            if !sure && whole(&source.files()[index], go_on)? != self.contents[index] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(super) fn is_wide(tokenizer: &Tokenizer) -> bool {
    tokenizer.size() > 1 << 16
}

/// What is wrong with JSON that is one line of a file, which is known by its number: the place in it is the column.
pub(crate) fn in_line(error: &serde_json::Error) -> String {
    let said = error.to_string();
    said.rsplit_once(" at line ").map_or(said.clone(), |(what, _)| format!("{what}, column {}", error.column()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Made {
        folder: tempfile::TempDir,
        check: Check,
    }

    impl Made {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("a.txt"), text).unwrap();
            fs::write(folder.path().join("b.txt"), "zwei Wörter").unwrap();
            Self { folder, check: Check::Sampled }
        }

        /// The tokens, and whether they had to be made.
        fn open(&self, tokenizer: &Tokenizer) -> (Tokens, bool) {
            let mut made = false;
            let source = Source::open(self.folder.path()).unwrap();
            let cache = self.folder.path().join("cache");
            let tokens = Tokens::open(&source, tokenizer, &cache, self.check, &mut |bytes| {
                made |= bytes > 0;
                true
            })
            .unwrap();
            (tokens, made)
        }

        fn file(&self) -> PathBuf {
            let mut files = fs::read_dir(self.folder.path().join("cache")).unwrap();
            files.next().unwrap().unwrap().path()
        }
    }

    #[test]
    fn tokens_are_made_once() {
        let made = Made::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        let (tokens, fresh) = made.open(&bytes);
        assert!(fresh);
        assert_eq!(tokens.totals(), Totals { tokens: 27, documents: 2, bytes: 25, words: 5 });
        assert_eq!(tokens.documents(), [0, 14]);
        assert_eq!(tokens.get(0..4), [256, 111, 110, 101]);
        assert_eq!(tokens.get(13..16), [101, 256, 122]);
        let (again, fresh) = made.open(&bytes);
        assert!(!fresh && again.get(0..27) == tokens.get(0..27) && again.fingerprint() == tokens.fingerprint());
    }

    #[test]
    fn those_that_come_together_make_them_once() {
        let made = Made::new(&"one two\nthree ".repeat(100_000));
        let fresh = std::thread::scope(|scope| {
            let all = [(); 4].map(|()| scope.spawn(|| made.open(&Tokenizer::bytes()).1));
            all.map(|one| one.join().unwrap())
        });
        assert_eq!(fresh.iter().filter(|fresh| **fresh).count(), 1, "{fresh:?}");
        assert_eq!(fs::read_dir(made.folder.path().join("cache")).unwrap().count(), 1);
    }

    #[test]
    fn a_change_is_noticed() {
        let made = Made::new("one two\nthree");
        let (before, _) = made.open(&Tokenizer::bytes());
        fs::write(made.folder.path().join("a.txt"), "one two\nfour, five").unwrap();
        let (after, fresh) = made.open(&Tokenizer::bytes());
        assert!(fresh && after.fingerprint() != before.fingerprint());
        let learnt = Tokenizer::learn(260, ["one two ".repeat(9)].into_iter()).unwrap();
        assert!(made.open(&learnt).1, "another tokenizer");
        assert!(!made.open(&Tokenizer::bytes()).1, "has a file of its own");
    }

    /// A text that is changed in place, with its length and the time it was written as they were.
    #[test]
    fn a_change_behind_the_back_is_noticed() {
        let long = "one two three four\n".repeat(1 << 16);
        let mut made = Made::new(&long);
        let (before, _) = made.open(&Tokenizer::bytes());
        let path = made.folder.path().join("a.txt");
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        let replace = |text: &str| {
            fs::write(&path, text).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        };
        // Between two blocks of a sample: found by the time that cannot be set or, where there is none, by a full
        // check.
        let mut other = long.clone().into_bytes();
        let at = (8 << 10) + 3;
        other[at] ^= 1;
        replace(std::str::from_utf8(&other).unwrap());
        if cfg!(not(unix)) {
            made.check = Check::Full;
        }
        let (after, fresh) = made.open(&Tokenizer::bytes());
        assert!(fresh && after.fingerprint() != before.fingerprint());
        // The same text written once more is the same text.
        replace(std::str::from_utf8(&other).unwrap());
        for check in [Check::Sampled, Check::Full] {
            made.check = check;
            assert!(!made.open(&Tokenizer::bytes()).1, "{check:?}");
        }
    }

    /// What lies between the blocks of a sample is found by a full check alone.
    #[test]
    fn a_full_check_reads_everything() {
        let made = Made::new(&"one two three four\n".repeat(1 << 16));
        let bytes = Tokenizer::bytes();
        drop(made.open(&bytes));
        let path = made.file();
        let mut damaged = fs::read(&path).unwrap();
        damaged[(8 << 10) + 3] ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, &damaged).unwrap();
        assert!(Tokens::read(&path, &bytes, Check::Sampled).is_ok());
        assert!(Tokens::read(&path, &bytes, Check::Full).is_err());
        let made = Made { check: Check::Full, ..made };
        assert!(made.open(&bytes).1, "made anew");
    }

    /// A file of an older version has no number, or another one.
    #[test]
    fn an_older_format_is_made_anew() {
        let made = Made::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        drop(made.open(&bytes));
        let path = made.file();
        let whole = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&whole).into_owned();
        let about = whole.windows(10).position(|bytes| bytes == b"{\"format\":").unwrap();
        for older in ["{", "{\"format\":1,"] {
            let json = &whole[about..whole.len() - 16 - SUM];
            let json = String::from_utf8(json.to_vec()).unwrap().replacen("{\"format\":2,", older, 1);
            assert_ne!(json.as_bytes(), &whole[about..whole.len() - 16 - SUM], "{text}");
            let length = ((json.len() + SUM) as u64).to_le_bytes();
            let sum = Sha256::digest(json.as_bytes());
            let old = [&whole[..about], json.as_bytes(), &sum, &length, MAGIC].concat();
            fs::remove_file(&path).unwrap();
            fs::write(&path, old).unwrap();
            assert!(Tokens::read(&path, &bytes, Check::Sampled).is_err());
            assert!(made.open(&bytes).1, "made anew");
        }
    }

    /// Any byte changed and any end cut off: never wrong tokens, always made again.
    #[test]
    fn damage_is_noticed() {
        let made = Made::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        let (good, _) = made.open(&bytes);
        let all = good.get(0..27);
        drop(good);
        let path = made.file();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::remove_file(&path).unwrap();
            fs::write(&path, &damaged).unwrap();
            assert!(Tokens::read(&path, &bytes, Check::Sampled).is_err(), "byte {at}");
        }
        for length in 0..whole.len() {
            fs::remove_file(&path).unwrap();
            fs::write(&path, &whole[..length]).unwrap();
            assert!(Tokens::read(&path, &bytes, Check::Sampled).is_err(), "cut to {length}");
        }
        let (again, fresh) = made.open(&bytes);
        assert!(fresh && again.get(0..27) == all);
    }

    /// Whenever it is asked to stop, it leaves nothing behind.
    #[test]
    fn it_can_be_stopped() {
        let made = Made::new("one");
        let source = Source::open(made.folder.path()).unwrap();
        let cache = made.folder.path().join("cache");
        let mut asks = 0;
        loop {
            let mut left = asks;
            let stopped = Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut |_| {
                left -= 1;
                left >= 0
            });
            if stopped.is_ok() {
                break;
            }
            assert!(matches!(stopped, Err(CacheError::Interrupted)));
            assert_eq!(fs::read_dir(&cache).map_or(0, |entries| entries.count()), 0, "after {asks}");
            asks += 1;
        }
        assert!(asks > 2, "{asks}");
    }

    /// A piece of text that takes a second to encode is not waited for.
    #[test]
    fn it_is_asked_often_whether_to_stop() {
        let words: Vec<String> = (0..200_000u64).map(|i| format!("{:x}", i.wrapping_mul(0x9e37_79b9))).collect();
        let learnt = Tokenizer::learn(400, words[..2000].iter()).unwrap();
        let made = Made::new(&words.join(" "));
        let mut asked = 0;
        let source = Source::open(made.folder.path()).unwrap();
        let cache = made.folder.path().join("cache");
        let tokens = Tokens::open(&source, &learnt, &cache, Check::Sampled, &mut |_| {
            asked += 1;
            true
        });
        let pieces = tokens.unwrap().totals().bytes / (1 << 20) + 2;
        assert!(asked > pieces, "{asked} times for {pieces} pieces");
    }

    #[test]
    fn one_that_waits_can_be_stopped() {
        let made = Made::new("one");
        made.open(&Tokenizer::bytes());
        let (path, cache) = (made.file(), made.folder.path().join("cache"));
        fs::remove_file(&path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let other = File::create(cache.join(format!("{ASIDE}{name}.lock"))).unwrap();
        other.lock().unwrap();
        // Not for ever, if it cannot.
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(5));
            drop(other);
        });
        let source = Source::open(made.folder.path()).unwrap();
        let mut told = Vec::new();
        let stopped = Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut |bytes| {
            told.push(bytes);
            told.len() < 3
        });
        assert!(matches!(stopped, Err(CacheError::Interrupted)), "{stopped:?}");
        assert_eq!(told, [0; 3]);
    }

    #[test]
    fn a_text_that_cannot_be_read_leaves_nothing() {
        let made = Made::new("one");
        fs::write(made.folder.path().join("c.txt"), [0xff]).unwrap();
        let source = Source::open(made.folder.path()).unwrap();
        let cache = made.folder.path().join("cache");
        assert!(Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut |_| true).is_err());
        assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
    }
}
