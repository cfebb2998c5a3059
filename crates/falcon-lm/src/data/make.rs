//! How a file of tokens is made: text is read, encoded by all cores side by side, and written beside its place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use falcon_nn::{ASIDE, aside_file};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::cache::{CacheError, Header, SUM, Totals, is_wide};
use super::source::{Piece, Source};
use super::stamp::{FileStamp, hex, sampled, whole};
use super::tokenizer::{Tokenizer, TokenizerError};

/// The layout of a file and of its header. A file with another number is made anew.
pub(super) const FORMAT: u32 = 2;
/// The last bytes of a file of tokens.
pub(super) const MAGIC: &[u8; 8] = b"FALCTOK1";

/// How often whoever waits for tokens asks whether to stop.
pub(super) const TURN: Duration = Duration::from_millis(50);

/// Bytes of text that are handed to a core at once, about. A piece is not divided.
const TOGETHER: usize = 256 << 10;

/// Bytes of a disk that are left free.
const LEFT_FREE: u64 = 1 << 30;
/// Bytes that are written between two looks at how much is free.
const LOOK: u64 = 64 << 20;

/// Writes a file of tokens beside its place, and moves it there when it is whole.
pub(super) fn make(
    source: &Source,
    stamps: Vec<FileStamp>,
    tokenizer: &Tokenizer,
    path: &Path,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<(), CacheError> {
    let io = |error| CacheError::Io { path: path.into(), error };
    let folder = path.parent().unwrap_or(Path::new("."));
    sweep(folder);
    let contents =
        source.files().iter().map(|file| whole(file, &mut || progress(0))).collect::<Result<Vec<_>, _>>()?;
    let aside = locked_aside(folder).map_err(io)?;
    let mut writer = Writer {
        out: BufWriter::new(aside.as_file()),
        hash: Sha256::new(),
        wide: is_wide(tokenizer),
        documents: Vec::new(),
        totals: Totals::default(),
        until_look: LOOK,
    };
    let mut write = |pieces: Encoded| -> Result<usize, CacheError> {
        for (piece, tokens) in pieces? {
            writer.piece(&piece, &tokens, tokenizer.end()).map_err(io)?;
        }
        Ok(writer.totals.bytes)
    };
    let mut encoders = Encoders::start(tokenizer).map_err(io)?;
    let (mut pieces, mut waiting) = (Vec::new(), 0);
    source.read(|piece| {
        waiting += piece.text.len();
        pieces.push(piece);
        if waiting < TOGETHER {
            return Ok(());
        }
        waiting = 0;
        encoders.push(std::mem::take(&mut pieces), &mut write, progress)
    })?;
    encoders.push(pieces, &mut write, progress)?;
    encoders.finish(&mut write, progress)?;
    let about = Header {
        format: FORMAT,
        source: stamps,
        contents,
        detokenizer: source.detokenizer(),
        tokenizer: tokenizer.fingerprint(),
        ..Header::default()
    };
    writer.finish(about).map_err(io)?;
    aside.as_file().sync_all().map_err(io)?;
    aside.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// Keeps text that can be read only once, such as that of stdin, as a file named by its contents.
pub fn keep_text(mut input: impl io::Read, folder: &Path) -> Result<PathBuf, CacheError> {
    let io = |error| CacheError::Io { path: folder.into(), error };
    fs::create_dir_all(folder).map_err(io)?;
    sweep(folder);
    let aside = locked_aside(folder).map_err(io)?;
    let (mut out, mut hash, mut block) = (aside.as_file(), Sha256::new(), vec![0; 4 << 20]);
    loop {
        let read = input.read(&mut block).map_err(io)?;
        if read == 0 {
            break;
        }
        room(aside.as_file()).map_err(io)?;
        hash.update(&block[..read]);
        out.write_all(&block[..read]).map_err(io)?;
    }
    aside.as_file().sync_all().map_err(io)?;
    let path = folder.join(format!("stdin-{}.txt", hex(&hash.finalize()[..12])));
    // The same text as before keeps its file, whose times tell that nothing has changed.
    if !path.exists() {
        aside.persist(&path).map_err(|error| io(error.error))?;
    }
    Ok(path)
}

/// A file beside its place that is locked as long as it is written.
fn locked_aside(folder: &Path) -> io::Result<NamedTempFile> {
    loop {
        let aside = aside_file(folder)?;
        aside.as_file().lock()?;
        // Another process may have swept it away before it was locked.
        if aside.path().exists() {
            return Ok(aside);
        }
    }
}

/// Removes what a killed process left behind: files beside their place that nobody holds a lock on.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(ASIDE)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Refuses to write more to a disk that is nearly full.
fn room(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::fstatvfs(file)?;
        enough(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        Ok(())
    }
}

fn enough(free: u64) -> io::Result<()> {
    if free >= LEFT_FREE {
        return Ok(());
    }
    let (free, left) = (free >> 20, LEFT_FREE >> 20);
    Err(io::Error::other(format!("the disk has {free} MiB free, and {left} MiB are left for others")))
}

/// Pieces of text with their tokens.
type Encoded = Result<Vec<(Piece, Vec<u32>)>, TokenizerError>;

/// Threads that encode text. Whoever stops early does not wait for them: each ends after the text it has in hand.
struct Encoders {
    todo: Sender<(u64, Vec<Piece>)>,
    done: Receiver<(u64, Encoded)>,
    /// Encoded before what comes before it.
    early: BTreeMap<u64, Encoded>,
    sent: u64,
    written: u64,
    /// How much may be under way.
    most: u64,
}

impl Encoders {
    fn start(tokenizer: &Tokenizer) -> io::Result<Self> {
        let threads = rayon::current_num_threads();
        let (todo, jobs) = mpsc::channel::<(u64, Vec<Piece>)>();
        let (results, done) = mpsc::channel();
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..threads {
            let (tokenizer, jobs, results) = (tokenizer.clone(), jobs.clone(), results.clone());
            std::thread::Builder::new().spawn(move || {
                loop {
                    let Ok(Ok((number, pieces))) = jobs.lock().map(|jobs| jobs.recv()) else { return };
                    let encode = |piece: Piece| {
                        let tokens = tokenizer.try_encode(&piece.text)?;
                        Ok((piece, tokens))
                    };
                    // Without an answer, it would be waited for without end.
                    let encoded = catch_unwind(AssertUnwindSafe(|| pieces.into_iter().map(encode).collect()))
                        .unwrap_or_else(|_| Err(TokenizerError::Encode("the library failed".into())));
                    if results.send((number, encoded)).is_err() {
                        return;
                    }
                }
            })?;
        }
        let most = 2 * threads as u64 + 2;
        Ok(Self { todo, done, early: BTreeMap::new(), sent: 0, written: 0, most })
    }

    /// Hands over text, and to `write` all that is encoded by now.
    fn push(
        &mut self,
        pieces: Vec<Piece>,
        write: &mut dyn FnMut(Encoded) -> Result<usize, CacheError>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), CacheError> {
        self.todo.send((self.sent, pieces)).expect("threads wait for work as long as this is there");
        self.sent += 1;
        let most = self.most;
        self.receive(most, write, progress)
    }

    /// Waits for all that is under way.
    fn finish(
        mut self,
        write: &mut dyn FnMut(Encoded) -> Result<usize, CacheError>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), CacheError> {
        self.receive(0, write, progress)
    }

    /// Writes in order, until at most `left` are under way. Asks at least once whether to stop, and again every
    /// [`TURN`].
    fn receive(
        &mut self,
        left: u64,
        write: &mut dyn FnMut(Encoded) -> Result<usize, CacheError>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), CacheError> {
        let mut bytes = 0;
        loop {
            let patience = if self.sent - self.written > left { TURN } else { Duration::ZERO };
            match self.done.recv_timeout(patience) {
                Ok((number, encoded)) => _ = self.early.insert(number, encoded),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("threads end after this does"),
            }
            while let Some(encoded) = self.early.remove(&self.written) {
                self.written += 1;
                bytes = write(encoded)?;
            }
            if !progress(bytes) {
                return Err(CacheError::Interrupted);
            }
            if self.sent - self.written <= left {
                return Ok(());
            }
        }
    }
}

struct Writer<'a> {
    out: BufWriter<&'a File>,
    hash: Sha256,
    wide: bool,
    documents: Vec<u64>,
    totals: Totals,
    /// Bytes that may be written before a look at the disk.
    until_look: u64,
}

impl Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.until_look.checked_sub(bytes.len() as u64) {
            Some(left) => self.until_look = left,
            None => {
                room(self.out.get_ref())?;
                self.until_look = LOOK;
            }
        }
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

    /// Writes where documents begin and the header, which is complete but for what is known only now.
    fn finish(mut self, header: Header) -> io::Result<()> {
        self.totals.documents = self.documents.len();
        let documents: Vec<u8> = self.documents.iter().flat_map(|start| start.to_le_bytes()).collect();
        self.out.flush()?;
        let mut file = *self.out.get_ref();
        let length = file.stream_position()?;
        let sampled = sampled(&mut file, length)?;
        file.seek(SeekFrom::End(0))?;
        self.write(&documents)?;
        let header = Header {
            totals: self.totals,
            sha256: hex(&self.hash.finalize()),
            sampled,
            documents: hex(&Sha256::digest(&documents)),
            ..header
        };
        let about = serde_json::to_vec(&header)?;
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

    #[test]
    fn what_nobody_holds_is_swept_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(format!("{ASIDE}left"));
        fs::write(&left, "half").unwrap();
        fs::write(folder.path().join("other"), "whole").unwrap();
        let held = locked_aside(folder.path()).unwrap();
        sweep(folder.path());
        assert!(!left.exists() && held.path().exists());
        drop(held);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_disk_is_not_filled() {
        assert!(enough(LEFT_FREE).is_ok());
        let said = enough(5 << 20).unwrap_err().to_string();
        assert!(said.contains("5 MiB free") && said.contains("1024 MiB"), "{said}");
    }

    /// The same text has the same file, untouched: a run that is given it again goes on.
    #[test]
    fn text_of_stdin_is_known_by_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let keep = |text: &str| keep_text(text.as_bytes(), folder.path()).unwrap();
        let first = keep("one two");
        assert_eq!(fs::read_to_string(&first).unwrap(), "one two");
        let stamp = FileStamp::of(&first).unwrap();
        assert_eq!((keep("one two"), FileStamp::of(&first).unwrap()), (first.clone(), stamp));
        assert_ne!(keep("one three"), first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
