//! The cache of encoded text: a text is encoded once, and again when it or its tokenizer has changed.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use falcon_base::files::{ASIDE, read_file, write_file};
use falcon_base::{AtPath, PathError, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{CacheError, SourceError};
use super::make::{CHECK_INTERVAL, encode_to_file};
use super::source::Source;
use super::stamp::{FileStamp, file_sha256};
use super::tokenizer::Tokenizer;
use super::tokens::{Check, Header, Tokens};
use crate::monitor::Monitor;

impl Tokens {
    /// The tokens of `source`. They are cached in `folder`, in one file for every combination of text files, tokenizer
    /// and detokenizer. If this file is intact and the text has not changed, it is opened; otherwise the text is
    /// encoded and the file is written. The progress that `monitor` receives is in bytes of text.
    pub fn open(
        source: &Source,
        tokenizer: &Tokenizer,
        folder: &Path,
        check: Check,
        monitor: &mut dyn Monitor,
    ) -> Result<Self, CacheError> {
        let stamps = source.stamps(monitor)?;
        let paths = stamps.iter().map(|stamp| stamp.path.clone());
        let name = paths
            .chain([tokenizer.fingerprint()])
            .chain(source.detokenizer().map(|detokenizer| detokenizer.to_string()))
            .fold(Sha256::new(), |hash, part| hash.chain_update(part).chain_update([0]));
        let name = hex(&name.finalize()[..12]);
        let path = folder.join(format!("{name}.tokens"));
        let open_cached = |monitor: &mut dyn Monitor| -> Result<Option<Self>, CacheError> {
            let Ok(cached) = Self::read(&path, tokenizer, check) else { return Ok(None) };
            Ok(is_current(&cached.header, &path, source, &stamps, check, monitor)?.then_some(cached))
        };
        if let Some(cached) = open_cached(monitor)? {
            return Ok(cached);
        }
        fs::create_dir_all(folder).at(&path)?;
        // Of runs that start at the same time and need the same tokens, one encodes the text and the others wait.
        let lock_path = folder.join(format!("{ASIDE}{name}.lock"));
        let lock = File::create(&lock_path).at(&path)?;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    monitor.check()?;
                    std::thread::sleep(CHECK_INTERVAL);
                }
                Err(TryLockError::Error(error)) => return Err(PathError::new(path, error).into()),
            }
        }
        let opened = open_cached(monitor).and_then(|cached| match cached {
            Some(cached) => Ok(cached),
            None => {
                encode_to_file(source, stamps.clone(), tokenizer, &path, monitor)?;
                Ok(Self::read(&path, tokenizer, check).at(&path)?)
            }
        });
        // Runs that already wait keep the removed file open. A run that starts now creates a new one and does not wait
        // for them; at worst, the text is encoded twice.
        let _ = fs::remove_file(&lock_path);
        opened
    }
}

/// Whether the tokens in the file `path`, with this header, are still those of `source`, whose files have these stamps
/// now. A text file is read completely and compared by its SHA-256 if only its times have changed, or if the check is a
/// full one.
fn is_current(
    header: &Header,
    path: &Path,
    source: &Source,
    stamps: &[FileStamp],
    check: Check,
    monitor: &mut dyn Monitor,
) -> Result<bool, SourceError> {
    if header.detokenizer != source.detokenizer()
        || [header.source.len(), header.contents.len()] != [stamps.len(); 2]
        || header.source.iter().zip(stamps).any(|(old, new)| !old.equal_except_times(new))
    {
        return Ok(false);
    }
    let verified = Verified::read(path, header);
    for (index, new) in stamps.iter().enumerate() {
        let mut earlier = [header.source.get(index), verified.get(index)].into_iter().flatten();
        let unchanged = check == Check::Sampled && earlier.any(|old| old == new);
        if !unchanged && file_sha256(&source.files()[index], monitor)? != header.contents[index] {
            return Ok(false);
        }
    }
    if header.source != stamps && verified != stamps {
        Verified::write(path, header, stamps);
    }
    Ok(true)
}

/// Remembers that text files have not changed although their times have, so that a text that was copied or touched is
/// read completely once and not at every start. The stamps of these files are kept in a file beside the tokens.
#[derive(Serialize, Deserialize)]
struct Verified {
    format: u32,
    /// The SHA-256 in the header of the tokens that the stamps belong to.
    tokens: String,
    source: Vec<FileStamp>,
}

impl Verified {
    const FORMAT: u32 = 1;
    const LARGEST_FILE: u64 = 1 << 30;

    /// The stamps beside a file of tokens. The list is empty if their file is missing or damaged, has another version
    /// of the format, or belongs to other tokens.
    fn read(tokens: &Path, header: &Header) -> Vec<FileStamp> {
        let bytes = read_file(&tokens.with_extension("stamps"), Self::LARGEST_FILE).unwrap_or_default();
        let verified: Option<Self> = serde_json::from_slice(&bytes).ok();
        let verified = verified.filter(|stored| stored.format == Self::FORMAT && stored.tokens == header.sha256);
        verified.map_or_else(Vec::new, |stored| stored.source)
    }

    /// Writes the stamps. If that fails, the next start only has to read the files completely once more.
    fn write(tokens: &Path, header: &Header, stamps: &[FileStamp]) {
        let verified = Self { format: Self::FORMAT, tokens: header.sha256.clone(), source: stamps.to_vec() };
        let json = serde_json::to_vec(&verified).expect("stamps are plain data");
        let _ = write_file(&tokens.with_extension("stamps"), &json);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::tokens::{MAGIC, SUM, Totals};
    use super::*;
    use crate::monitor::from_fn;

    /// A folder with two texts and a cache.
    struct TestFolder {
        root: tempfile::TempDir,
        check: Check,
    }

    impl TestFolder {
        fn new(text: &str) -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join("a.txt"), text).unwrap();
            fs::write(root.path().join("b.txt"), "zwei Wörter").unwrap();
            Self { root, check: Check::Sampled }
        }

        /// The tokens, and whether the text had to be encoded.
        fn open(&self, tokenizer: &Tokenizer) -> (Tokens, bool) {
            let mut encoded = false;
            let source = Source::open(self.root.path()).unwrap();
            let cache = self.root.path().join("cache");
            let mut monitor = from_fn(|bytes| {
                encoded |= bytes > 0;
                true
            });
            let tokens = Tokens::open(&source, tokenizer, &cache, self.check, &mut monitor).unwrap();
            drop(monitor);
            (tokens, encoded)
        }

        /// The only file in the cache.
        fn cached_file(&self) -> PathBuf {
            let mut files = fs::read_dir(self.root.path().join("cache")).unwrap();
            files.next().unwrap().unwrap().path()
        }
    }

    #[test]
    fn a_text_is_encoded_once() {
        let folder = TestFolder::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        let (tokens, encoded) = folder.open(&bytes);
        assert!(encoded);
        assert_eq!(tokens.totals(), Totals { tokens: 27, documents: 2, bytes: 25, words: 5 });
        assert_eq!(tokens.documents(), [0, 14]);
        assert_eq!(tokens.get(0..4), [256, 111, 110, 101]);
        assert_eq!(tokens.get(13..16), [101, 256, 122]);
        let (again, encoded) = folder.open(&bytes);
        assert!(!encoded && again.get(0..27) == tokens.get(0..27) && again.fingerprint() == tokens.fingerprint());
    }

    #[test]
    fn simultaneous_runs_encode_a_text_once() {
        let folder = TestFolder::new(&"one two\nthree ".repeat(100_000));
        let encoded = std::thread::scope(|scope| {
            let runs = [(); 4].map(|()| scope.spawn(|| folder.open(&Tokenizer::bytes()).1));
            runs.map(|run| run.join().unwrap())
        });
        assert_eq!(encoded.iter().filter(|encoded| **encoded).count(), 1, "{encoded:?}");
        assert_eq!(fs::read_dir(folder.root.path().join("cache")).unwrap().count(), 1);
    }

    #[test]
    fn a_change_is_noticed() {
        let folder = TestFolder::new("one two\nthree");
        let (before, _) = folder.open(&Tokenizer::bytes());
        fs::write(folder.root.path().join("a.txt"), "one two\nfour, five").unwrap();
        let (after, encoded) = folder.open(&Tokenizer::bytes());
        assert!(encoded && after.fingerprint() != before.fingerprint());
        let learnt = Tokenizer::learn(260, ["one two ".repeat(9)].into_iter()).unwrap();
        assert!(folder.open(&learnt).1, "another tokenizer has a file of its own");
        assert!(!folder.open(&Tokenizer::bytes()).1, "the file of the first tokenizer is kept");
    }

    /// The text is changed in place, and its modification time is set back to what it was.
    #[test]
    fn a_change_with_the_same_length_and_time_is_noticed() {
        let long = "one two three four\n".repeat(1 << 16);
        let mut folder = TestFolder::new(&long);
        let (before, _) = folder.open(&Tokenizer::bytes());
        let path = folder.root.path().join("a.txt");
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        let replace = |text: &str| {
            fs::write(&path, text).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        };
        // A change between two sampled blocks is found by the time of the last change (ctime), which programs cannot
        // set. Systems without it need a full check.
        let mut other = long.clone().into_bytes();
        let between_blocks = (8 << 10) + 3;
        other[between_blocks] ^= 1;
        replace(std::str::from_utf8(&other).unwrap());
        if cfg!(not(unix)) {
            folder.check = Check::Full;
        }
        let (after, encoded) = folder.open(&Tokenizer::bytes());
        assert!(encoded && after.fingerprint() != before.fingerprint());
        // Writing the same text again changes nothing but the times.
        replace(std::str::from_utf8(&other).unwrap());
        for check in [Check::Sampled, Check::Full] {
            folder.check = check;
            assert!(!folder.open(&Tokenizer::bytes()).1, "{check:?}");
        }
    }

    /// A text whose times have changed is read completely once, and not again at the next start.
    #[test]
    fn a_touched_text_is_read_once() {
        let folder = TestFolder::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        folder.open(&bytes);
        // How often the monitor is checked while the tokens are opened: every text that is read completely adds to it.
        let checks = || {
            let mut count = 0;
            let source = Source::open(folder.root.path()).unwrap();
            let mut monitor = from_fn(|_| {
                count += 1;
                true
            });
            let cache = folder.root.path().join("cache");
            Tokens::open(&source, &bytes, &cache, Check::Sampled, &mut monitor).unwrap();
            drop(monitor);
            count
        };
        let unchanged = checks();
        let file = File::options().write(true).open(folder.root.path().join("a.txt")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        assert!(checks() > unchanged, "the touched text is read completely");
        assert_eq!(checks(), unchanged, "its new time is remembered");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(2)).unwrap();
        assert!(checks() > unchanged, "after another change of its time, the text is read completely again");
    }

    /// Damage between the sampled blocks is found only by a full check.
    #[test]
    fn a_full_check_reads_everything() {
        let folder = TestFolder::new(&"one two three four\n".repeat(1 << 16));
        let bytes = Tokenizer::bytes();
        drop(folder.open(&bytes));
        let path = folder.cached_file();
        let mut damaged = fs::read(&path).unwrap();
        damaged[(8 << 10) + 3] ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, &damaged).unwrap();
        assert!(Tokens::read(&path, &bytes, Check::Sampled).is_ok());
        assert!(Tokens::read(&path, &bytes, Check::Full).is_err());
        let folder = TestFolder { check: Check::Full, ..folder };
        assert!(folder.open(&bytes).1, "the text is encoded again");
    }

    /// Files of older versions have no format version, or a lower one.
    #[test]
    fn text_in_an_older_format_is_encoded_again() {
        let folder = TestFolder::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        drop(folder.open(&bytes));
        let path = folder.cached_file();
        let whole = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&whole).into_owned();
        let header_start = whole.windows(10).position(|bytes| bytes == b"{\"format\":").unwrap();
        for older in ["{", "{\"format\":1,"] {
            let json = &whole[header_start..whole.len() - 16 - SUM];
            let json = String::from_utf8(json.to_vec()).unwrap().replacen("{\"format\":2,", older, 1);
            assert_ne!(json.as_bytes(), &whole[header_start..whole.len() - 16 - SUM], "{text}");
            let length = ((json.len() + SUM) as u64).to_le_bytes();
            let sum = Sha256::digest(json.as_bytes());
            let old = [&whole[..header_start], json.as_bytes(), &sum, &length, MAGIC].concat();
            fs::remove_file(&path).unwrap();
            fs::write(&path, old).unwrap();
            assert!(Tokens::read(&path, &bytes, Check::Sampled).is_err());
            assert!(folder.open(&bytes).1, "the text is encoded again");
        }
    }

    /// A file with any byte changed or any end cut off is refused, and the text is encoded again.
    #[test]
    fn damage_is_noticed() {
        let folder = TestFolder::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        let (good, _) = folder.open(&bytes);
        let all = good.get(0..27);
        drop(good);
        let path = folder.cached_file();
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
        let (again, encoded) = folder.open(&bytes);
        assert!(encoded && again.get(0..27) == all);
    }

    /// Encoding is cancelled at the first check of the monitor, at the second, and so on until it is complete.
    #[test]
    fn cancelled_encoding_leaves_no_file() {
        let folder = TestFolder::new("one");
        let source = Source::open(folder.root.path()).unwrap();
        let cache = folder.root.path().join("cache");
        let mut checks = 0;
        loop {
            let mut left = checks;
            let mut monitor = from_fn(|_| {
                left -= 1;
                left >= 0
            });
            let opened = Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut monitor);
            if opened.is_ok() {
                break;
            }
            assert!(matches!(opened, Err(CacheError::Cancelled(_))));
            assert_eq!(fs::read_dir(&cache).map_or(0, |entries| entries.count()), 0, "after {checks} checks");
            checks += 1;
        }
        assert!(checks > 2, "{checks}");
    }

    /// While a piece of text is encoded, which can take a second, the monitor is checked again and again.
    #[test]
    fn the_monitor_is_checked_while_a_piece_is_encoded() {
        let words: Vec<String> = (0..200_000u64).map(|i| format!("{:x}", i.wrapping_mul(0x9e37_79b9))).collect();
        let learnt = Tokenizer::learn(400, words[..2000].iter()).unwrap();
        let folder = TestFolder::new(&words.join(" "));
        let mut checks = 0;
        let source = Source::open(folder.root.path()).unwrap();
        let cache = folder.root.path().join("cache");
        let mut monitor = from_fn(|_| {
            checks += 1;
            true
        });
        let tokens = Tokens::open(&source, &learnt, &cache, Check::Sampled, &mut monitor);
        drop(monitor);
        let pieces = tokens.unwrap().totals().bytes / (1 << 20) + 2;
        assert!(checks > pieces, "{checks} checks for {pieces} pieces");
    }

    #[test]
    fn a_run_that_waits_for_another_can_be_cancelled() {
        let folder = TestFolder::new("one");
        folder.open(&Tokenizer::bytes());
        let (path, cache) = (folder.cached_file(), folder.root.path().join("cache"));
        fs::remove_file(&path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let other = File::create(cache.join(format!("{ASIDE}{name}.lock"))).unwrap();
        other.lock().unwrap();
        // If the waiting run cannot be cancelled, it gets the lock after five seconds, and the test fails.
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(5));
            drop(other);
        });
        let source = Source::open(folder.root.path()).unwrap();
        let mut reported = Vec::new();
        let mut monitor = from_fn(|bytes| {
            reported.push(bytes);
            reported.len() < 3
        });
        let opened = Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut monitor);
        drop(monitor);
        assert!(matches!(opened, Err(CacheError::Cancelled(_))), "{opened:?}");
        assert_eq!(reported, [0; 3]);
    }

    #[test]
    fn an_unreadable_text_leaves_no_file_in_the_cache() {
        let folder = TestFolder::new("one");
        fs::write(folder.root.path().join("c.txt"), [0xff]).unwrap();
        let source = Source::open(folder.root.path()).unwrap();
        let cache = folder.root.path().join("cache");
        assert!(Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut ()).is_err());
        assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
    }
}
