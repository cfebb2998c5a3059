//! Encodes text on all cores into a file of tokens.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use falcon_base::{AtPath, hex};
use sha2::{Digest, Sha256};

use super::aside::{locked_aside, require_room, sweep};
use super::error::CacheError;
use super::piece::Piece;
use super::source::Source;
use super::stamp::{FileStamp, file_sha256, sampled};
use super::tokenizer::{Tokenizer, TokenizerError};
use super::tokens::{FORMAT, Header, MAGIC, SUM, Totals, is_wide};
use crate::monitor::Monitor;

/// Longest time between two checks of the monitor while a run waits for its own threads to encode, or for another run.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The approximate number of bytes that are handed to a thread at once. A piece is not divided.
const BATCH_BYTES: usize = 256 << 10;

/// Bytes that are written between two checks of the free space.
const BYTES_PER_CHECK: u64 = 64 << 20;

/// Encodes `source` into a file of tokens, which is moved to `path` when it is complete.
pub(super) fn encode_to_file(
    source: &Source,
    stamps: Vec<FileStamp>,
    tokenizer: &Tokenizer,
    path: &Path,
    monitor: &mut dyn Monitor,
) -> Result<(), CacheError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    sweep(folder);
    let contents = source.files().iter().map(|file| file_sha256(file, monitor)).collect::<Result<Vec<_>, _>>()?;
    let aside = locked_aside(folder).at(path)?;
    let mut writer = Writer {
        out: BufWriter::new(aside.as_file()),
        hash: Sha256::new(),
        wide: is_wide(tokenizer),
        documents: Vec::new(),
        totals: Totals::default(),
        until_check: BYTES_PER_CHECK,
    };
    let mut write = |pieces: Encoded| -> Result<usize, CacheError> {
        for (piece, tokens) in pieces? {
            writer.piece(&piece, &tokens, tokenizer.end()).at(path)?;
        }
        Ok(writer.totals.bytes)
    };
    let mut encoders = Encoders::start(tokenizer).at(path)?;
    let (mut pieces, mut waiting) = (Vec::new(), 0);
    source.read(|piece| {
        waiting += piece.text.len();
        pieces.push(piece);
        if waiting < BATCH_BYTES {
            return Ok(());
        }
        waiting = 0;
        encoders.push(std::mem::take(&mut pieces), &mut write, monitor)
    })?;
    encoders.push(pieces, &mut write, monitor)?;
    encoders.finish(&mut write, monitor)?;
    let header = Header {
        format: FORMAT,
        source: stamps,
        contents,
        detokenizer: source.detokenizer(),
        tokenizer: tokenizer.fingerprint(),
        ..Header::default()
    };
    writer.finish(header).at(path)?;
    aside.as_file().sync_all().at(path)?;
    aside.persist(path).map_err(|error| error.error).at(path)?;
    Ok(())
}

/// Pieces of text with their tokens.
type Encoded = Result<Vec<(Piece, Vec<u32>)>, TokenizerError>;

/// Threads that encode text. Cancelling does not wait for them: each ends after the text that it is encoding.
struct Encoders {
    todo: Sender<(u64, Vec<Piece>)>,
    done: Receiver<(u64, Encoded)>,
    /// Encoded batches that cannot be written yet, because one with a lower number is still being encoded.
    early: BTreeMap<u64, Encoded>,
    /// The number of batches sent to the threads.
    sent: u64,
    /// The number of batches written.
    written: u64,
    /// The largest number of batches that are sent and not yet written.
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
                    // A panic must not end the thread before it sends a result: `receive` would wait for ever.
                    let encoded = catch_unwind(AssertUnwindSafe(|| pieces.into_iter().map(encode).collect()))
                        .unwrap_or_else(|_| Err(TokenizerError::Encode("the library panicked".into())));
                    if results.send((number, encoded)).is_err() {
                        return;
                    }
                }
            })?;
        }
        let most = 2 * threads as u64 + 2;
        Ok(Self { todo, done, early: BTreeMap::new(), sent: 0, written: 0, most })
    }

    /// Sends pieces to the threads, and passes what these have encoded so far to `write`.
    fn push(
        &mut self,
        pieces: Vec<Piece>,
        write: &mut dyn FnMut(Encoded) -> Result<usize, CacheError>,
        monitor: &mut dyn Monitor,
    ) -> Result<(), CacheError> {
        self.todo.send((self.sent, pieces)).expect("threads receive as long as this sender exists");
        self.sent += 1;
        let most = self.most;
        self.receive(most, write, monitor)
    }

    /// Waits for the threads to encode everything.
    fn finish(
        mut self,
        write: &mut dyn FnMut(Encoded) -> Result<usize, CacheError>,
        monitor: &mut dyn Monitor,
    ) -> Result<(), CacheError> {
        self.receive(0, write, monitor)
    }

    /// Writes encoded batches in order until at most `left` are not written. Checks the monitor at least once, and
    /// while it waits, every [`CHECK_INTERVAL`].
    fn receive(
        &mut self,
        left: u64,
        write: &mut dyn FnMut(Encoded) -> Result<usize, CacheError>,
        monitor: &mut dyn Monitor,
    ) -> Result<(), CacheError> {
        let mut bytes = 0;
        loop {
            let timeout = if self.sent - self.written > left { CHECK_INTERVAL } else { Duration::ZERO };
            match self.done.recv_timeout(timeout) {
                Ok((number, encoded)) => _ = self.early.insert(number, encoded),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("threads send as long as this receiver exists")
                }
            }
            while let Some(encoded) = self.early.remove(&self.written) {
                self.written += 1;
                bytes = write(encoded)?;
            }
            monitor.report(bytes, None)?;
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
    /// Bytes that may be written before the free space is checked.
    until_check: u64,
}

impl Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.until_check.checked_sub(bytes.len() as u64) {
            Some(left) => self.until_check = left,
            None => {
                require_room(self.out.get_ref())?;
                self.until_check = BYTES_PER_CHECK;
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

    /// Writes the documents and the header, whose counts and checksums are known only now.
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
        let json = serde_json::to_vec(&header)?;
        self.out.write_all(&json)?;
        self.out.write_all(&Sha256::digest(&json))?;
        self.out.write_all(&((json.len() + SUM) as u64).to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        self.out.flush()
    }
}
