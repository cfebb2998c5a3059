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
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use falcon_nn::{ASIDE, aside_file};
use memmap2::Mmap;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::detokenize::Detokenizer;
use super::source::{FileStamp, Piece, Source, SourceError};
use super::tokenizer::{Tokenizer, TokenizerError};

const MAGIC: &[u8; 8] = b"FALCTOK1";
/// Bytes of a checksum.
const SUM: usize = 32;
/// How often one that waits for another's tokens looks whether they are there, and whether it should stop.
const TURN: Duration = Duration::from_millis(50);

/// Why there are no tokens.
#[derive(Debug, Error)]
pub enum CacheError {
    /// The text cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The tokenizer does not know its characters.
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
}

/// What a file of tokens is made from, and how much of it there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    source: Vec<FileStamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detokenizer: Option<Detokenizer>,
    tokenizer: String,
    totals: Totals,
    sha256: String,
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

/// Tokens of documents, one after the other.
#[derive(Debug)]
pub struct Tokens {
    map: Mmap,
    wide: bool,
    header: Header,
    fingerprint: String,
    documents: Vec<usize>,
}

/// Where files of tokens are kept: `FALCON_CACHE`, or the user's folder for what can be made again.
pub fn folder() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("FALCON_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|path| path.join("falcon")))
        .or_else(|| of("HOME").map(|path| path.join(".cache/falcon")))
        .unwrap_or_else(|| std::env::temp_dir().join("falcon-cache"))
}

impl Tokens {
    /// The tokens of `source`, from `folder` if they are there and whole, otherwise made. `progress` is told the bytes of text done, and
    /// may say to stop by false; 0 while another process makes the same tokens.
    pub fn open(
        source: &Source,
        tokenizer: &Tokenizer,
        folder: &Path,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, CacheError> {
        let stamps = source.stamps()?;
        let paths = stamps.iter().map(|stamp| stamp.path.clone());
        let name = paths
            .chain([tokenizer.fingerprint()])
            .chain(source.detokenizer().map(|detokenizer| detokenizer.to_string()))
            .fold(Sha256::new(), |hash, part| hash.chain_update(part).chain_update([0]));
        let name = hex(&name.finalize()[..12]);
        let path = folder.join(format!("{name}.tokens"));
        let same =
            |known: &Self| known.header.source == stamps && known.header.detokenizer == source.detokenizer();
        let known = || Self::read(&path, tokenizer).ok().filter(same);
        if let Some(known) = known() {
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
        let made = known().map_or_else(
            || {
                make(source, stamps.clone(), tokenizer, &path, progress)?;
                Self::read(&path, tokenizer).map_err(io)
            },
            Ok,
        );
        // Who comes now does not wait for those that do; at worst, tokens are made twice.
        let _ = fs::remove_file(&turn);
        made
    }

    /// A file of tokens, if it is whole.
    fn read(path: &Path, tokenizer: &Tokenizer) -> io::Result<Self> {
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
        let wide = is_wide(tokenizer);
        let width = if wide { 4 } else { 2 };
        let Totals { tokens, documents, .. } = header.totals;
        let parts = tokens.checked_mul(width).zip(documents.checked_mul(8));
        if parts.is_none_or(|(tokens, documents)| tokens.checked_add(documents) != Some(about)) {
            return Err(bad("its length is not what it says"));
        }
        if header.tokenizer != tokenizer.fingerprint() || header.sha256 != hex(&Sha256::digest(&map[..about])) {
            return Err(bad("not what it says"));
        }
        let starts = map[tokens * width..about].chunks_exact(8);
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

fn is_wide(tokenizer: &Tokenizer) -> bool {
    tokenizer.size() > 1 << 16
}

/// Bytes as people write hashes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is wrong with JSON that is one line of a file, which is known by its number: the place in it is the column.
pub(crate) fn in_line(error: &serde_json::Error) -> String {
    let said = error.to_string();
    said.rsplit_once(" at line ").map_or(said.clone(), |(what, _)| format!("{what}, column {}", error.column()))
}

/// Bytes of text that are encoded side by side, about.
const TOGETHER: usize = 16 << 20;

/// Writes a file of tokens beside its place, and moves it there when it is whole.
fn make(
    source: &Source,
    stamps: Vec<FileStamp>,
    tokenizer: &Tokenizer,
    path: &Path,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<(), CacheError> {
    let io = |error| CacheError::Io { path: path.into(), error };
    let folder = path.parent().unwrap_or(Path::new("."));
    sweep(folder);
    let mut aside = aside_file(folder).map_err(io)?;
    let mut writer = Writer {
        out: BufWriter::new(aside.as_file_mut()),
        hash: Sha256::new(),
        wide: is_wide(tokenizer),
        documents: Vec::new(),
        totals: Totals::default(),
    };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut flush = |pieces: &mut Vec<Piece>| -> Result<(), CacheError> {
        let encoded = pieces.par_iter().map(|piece| tokenizer.try_encode(&piece.text));
        let encoded: Vec<Vec<u32>> = encoded.collect::<Result<_, _>>()?;
        for (piece, tokens) in pieces.drain(..).zip(encoded) {
            writer.piece(&piece, &tokens, tokenizer.end()).map_err(io)?;
        }
        if progress(writer.totals.bytes) { Ok(()) } else { Err(CacheError::Interrupted) }
    };
    let mut waiting = 0;
    source.read(|piece| {
        waiting += piece.text.len();
        pieces.push(piece);
        if waiting < TOGETHER {
            return Ok(());
        }
        waiting = 0;
        flush(&mut pieces)
    })?;
    flush(&mut pieces)?;
    writer.finish(stamps, source.detokenizer(), tokenizer.fingerprint()).map_err(io)?;
    aside.as_file().sync_all().map_err(io)?;
    aside.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// Removes what a kill left behind long ago.
fn sweep(folder: &Path) {
    const LONG: Duration = Duration::from_secs(24 * 3600);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let old = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if entry.file_name().to_string_lossy().starts_with(ASIDE) && old().is_some_and(|age| age > LONG) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

struct Writer<W: Write> {
    out: W,
    hash: Sha256,
    wide: bool,
    documents: Vec<u64>,
    totals: Totals,
}

impl<W: Write> Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    fn piece(&mut self, piece: &Piece, tokens: &[u32], end: u32) -> io::Result<()> {
        let start = piece.first.then_some(end);
        if piece.first {
            self.documents.push(self.totals.tokens as u64);
        }
        let all = start.iter().chain(tokens);
        let bytes: Vec<u8> = match self.wide {
            true => all.flat_map(|token| token.to_le_bytes()).collect(),
            false => all.flat_map(|token| (*token as u16).to_le_bytes()).collect(),
        };
        self.totals.tokens += tokens.len() + usize::from(piece.first);
        self.totals.bytes += piece.bytes;
        self.totals.words += piece.words;
        self.write(&bytes)
    }

    fn finish(
        mut self,
        source: Vec<FileStamp>,
        detokenizer: Option<Detokenizer>,
        tokenizer: String,
    ) -> io::Result<()> {
        self.totals.documents = self.documents.len();
        let documents: Vec<u8> = self.documents.iter().flat_map(|start| start.to_le_bytes()).collect();
        self.write(&documents)?;
        let sha256 = hex(&self.hash.finalize());
        let about = serde_json::to_vec(&Header { source, detokenizer, tokenizer, totals: self.totals, sha256 })?;
        self.out.write_all(&about)?;
        self.out.write_all(&Sha256::digest(&about))?;
        self.out.write_all(&((about.len() + SUM) as u64).to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made {
        folder: tempfile::TempDir,
    }

    impl Made {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("a.txt"), text).unwrap();
            fs::write(folder.path().join("b.txt"), "zwei Wörter").unwrap();
            Self { folder }
        }

        /// The tokens, and whether they had to be made.
        fn open(&self, tokenizer: &Tokenizer) -> (Tokens, bool) {
            let mut made = false;
            let source = Source::open(self.folder.path()).unwrap();
            let cache = self.folder.path().join("cache");
            let tokens = Tokens::open(&source, tokenizer, &cache, &mut |bytes| {
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
            assert!(Tokens::read(&path, &bytes).is_err(), "byte {at}");
        }
        for length in 0..whole.len() {
            fs::remove_file(&path).unwrap();
            fs::write(&path, &whole[..length]).unwrap();
            assert!(Tokens::read(&path, &bytes).is_err(), "cut to {length}");
        }
        let (again, fresh) = made.open(&bytes);
        assert!(fresh && again.get(0..27) == all);
    }

    #[test]
    fn it_can_be_stopped() {
        let made = Made::new("one");
        let source = Source::open(made.folder.path()).unwrap();
        let cache = made.folder.path().join("cache");
        let stopped = Tokens::open(&source, &Tokenizer::bytes(), &cache, &mut |_| false);
        assert!(matches!(stopped, Err(CacheError::Interrupted)));
        assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
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
        let stopped = Tokens::open(&source, &Tokenizer::bytes(), &cache, &mut |bytes| {
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
        assert!(Tokens::open(&source, &Tokenizer::bytes(), &cache, &mut |_| true).is_err());
        assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
    }
}
