//! The cache of encoded text: a text is encoded once, and again when it or its tokenizer has changed.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use falcon_base::files::{ASIDE, read_file, write_file};
use falcon_base::{AtPath, PathError, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{CacheError, SourceError};
use super::make::{CHECK_INTERVAL, make};
use super::source::Source;
use super::stamp::{FileStamp, whole};
use super::tokenizer::Tokenizer;
use super::tokens::{Check, Header, Tokens};
use crate::monitor::Monitor;

impl Tokens {
    /// The tokens of `source`, from `folder` if an intact file of them is there, otherwise encoded and written to it.
    /// `monitor` is told the bytes of text that are encoded.
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
        let known = |monitor: &mut dyn Monitor| -> Result<Option<Self>, CacheError> {
            let Ok(known) = Self::read(&path, tokenizer, check) else { return Ok(None) };
            Ok(is_current(&known.header, &path, source, &stamps, check, monitor)?.then_some(known))
        };
        if let Some(known) = known(monitor)? {
            return Ok(known);
        }
        fs::create_dir_all(folder).at(&path)?;
        // Of runs that start at the same time and need the same tokens, one encodes them and the others wait.
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
        let opened = known(monitor).and_then(|known| match known {
            Some(known) => Ok(known),
            None => {
                make(source, stamps.clone(), tokenizer, &path, monitor)?;
                Ok(Self::read(&path, tokenizer, check).at(&path)?)
            }
        });
        // A run that starts now does not wait for those that wait already; at worst, the text is encoded twice.
        let _ = fs::remove_file(&lock_path);
        opened
    }
}

/// Whether tokens are those of `source` as it is now, with these stamps. `path` is the file of the tokens.
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
        || header.source.iter().zip(stamps).any(|(old, new)| !old.same_looks(new))
    {
        return Ok(false);
    }
    let verified = Verified::read(path, header);
    for (index, new) in stamps.iter().enumerate() {
        let mut known = [header.source.get(index), verified.get(index)].into_iter().flatten();
        let unchanged = check == Check::Sampled && known.any(|old| old == new);
        if !unchanged && whole(&source.files()[index], monitor)? != header.contents[index] {
            return Ok(false);
        }
    }
    if header.source != stamps && verified != stamps {
        Verified::write(path, header, stamps);
    }
    Ok(true)
}

/// Stamps of files that were read completely and found unchanged, although their times are not those in the header of
/// the tokens: after a file was copied or touched, it is read once and not at every start. They are kept beside the
/// tokens.
#[derive(Serialize, Deserialize)]
struct Verified {
    format: u32,
    /// SHA-256 of the tokens that the stamps belong to.
    tokens: String,
    source: Vec<FileStamp>,
}

impl Verified {
    const FORMAT: u32 = 1;
    const LARGEST_FILE: u64 = 1 << 30;

    /// The stamps beside a file of tokens; none if there are none for these tokens in this version of the format.
    fn read(tokens: &Path, header: &Header) -> Vec<FileStamp> {
        let bytes = read_file(&tokens.with_extension("stamps"), Self::LARGEST_FILE).unwrap_or_default();
        let verified: Option<Self> = serde_json::from_slice(&bytes).ok();
        let verified = verified.filter(|known| known.format == Self::FORMAT && known.tokens == header.sha256);
        verified.map_or_else(Vec::new, |known| known.source)
    }

    /// Where they cannot be written, the files are read again at the next start.
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
            let mut monitor = from_fn(|bytes| {
                made |= bytes > 0;
                true
            });
            let tokens = Tokens::open(&source, tokenizer, &cache, self.check, &mut monitor).unwrap();
            drop(monitor);
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
        // Between two sampled blocks, a change is found by the time that programs cannot set or, on systems without it,
        // by a full check.
        let mut other = long.clone().into_bytes();
        let at = (8 << 10) + 3;
        other[at] ^= 1;
        replace(std::str::from_utf8(&other).unwrap());
        if cfg!(not(unix)) {
            made.check = Check::Full;
        }
        let (after, fresh) = made.open(&Tokenizer::bytes());
        assert!(fresh && after.fingerprint() != before.fingerprint());
        // Writing the same text again changes nothing but the times.
        replace(std::str::from_utf8(&other).unwrap());
        for check in [Check::Sampled, Check::Full] {
            made.check = check;
            assert!(!made.open(&Tokenizer::bytes()).1, "{check:?}");
        }
    }

    /// A text whose times have changed is read completely once, and not again at the next start.
    #[test]
    fn a_touched_text_is_read_once() {
        let made = Made::new("one two\nthree");
        let bytes = Tokenizer::bytes();
        made.open(&bytes);
        let checks = || {
            let mut checks = 0;
            let source = Source::open(made.folder.path()).unwrap();
            let mut monitor = from_fn(|_| {
                checks += 1;
                true
            });
            let cache = made.folder.path().join("cache");
            Tokens::open(&source, &bytes, &cache, Check::Sampled, &mut monitor).unwrap();
            drop(monitor);
            checks
        };
        let unchanged = checks();
        let file = File::options().write(true).open(made.folder.path().join("a.txt")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        assert!(checks() > unchanged, "read");
        assert_eq!(checks(), unchanged, "known");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(2)).unwrap();
        assert!(checks() > unchanged, "read again");
    }

    /// Damage between the sampled blocks is found only by a full check.
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

    /// Files of older versions have no format version, or a lower one.
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

    /// A file with any byte changed or any end cut off is refused, and the text is encoded again.
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

    /// Wherever it is cancelled, it leaves no file behind.
    #[test]
    fn it_can_be_stopped() {
        let made = Made::new("one");
        let source = Source::open(made.folder.path()).unwrap();
        let cache = made.folder.path().join("cache");
        let mut asks = 0;
        loop {
            let mut left = asks;
            let mut monitor = from_fn(|_| {
                left -= 1;
                left >= 0
            });
            let stopped = Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut monitor);
            if stopped.is_ok() {
                break;
            }
            assert!(matches!(stopped, Err(CacheError::Cancelled(_))));
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
        let mut monitor = from_fn(|_| {
            asked += 1;
            true
        });
        let tokens = Tokens::open(&source, &learnt, &cache, Check::Sampled, &mut monitor);
        drop(monitor);
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
        // If it cannot be cancelled, it gets the lock in the end, and the test fails.
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(5));
            drop(other);
        });
        let source = Source::open(made.folder.path()).unwrap();
        let mut told = Vec::new();
        let mut monitor = from_fn(|bytes| {
            told.push(bytes);
            told.len() < 3
        });
        let stopped = Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut monitor);
        drop(monitor);
        assert!(matches!(stopped, Err(CacheError::Cancelled(_))), "{stopped:?}");
        assert_eq!(told, [0; 3]);
    }

    #[test]
    fn a_text_that_cannot_be_read_leaves_nothing() {
        let made = Made::new("one");
        fs::write(made.folder.path().join("c.txt"), [0xff]).unwrap();
        let source = Source::open(made.folder.path()).unwrap();
        let cache = made.folder.path().join("cache");
        assert!(Tokens::open(&source, &Tokenizer::bytes(), &cache, Check::Sampled, &mut ()).is_err());
        assert_eq!(fs::read_dir(cache).unwrap().count(), 0);
    }
}
