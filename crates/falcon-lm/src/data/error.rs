//! Errors of reading and encoding text.

use std::path::{Path, PathBuf};

use falcon_base::PathError;
use thiserror::Error;

use super::detokenize::Detokenizer;
use super::lines::{LONGEST_LINE, LineError};
use super::not_text::not_text;
use super::tokenizer::TokenizerError;
use crate::monitor::Cancelled;

/// Why text cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A file or folder cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file is not UTF-8.
    #[error("{path}: byte {at} is not UTF-8; convert it, such as by: iconv -f latin1 -t utf8")]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        at: u64,
    },
    /// A line cannot be read.
    #[error("{path}: {source}")]
    Line {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: LineError,
    },
    /// A line is not a JSON object with a document.
    #[error(
        "{path}, line {line}: not a JSON object with the text of a document under \"text\": {}",
        in_line(source)
    )]
    Document {
        /// The file.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: u64,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A text is not of the kind that was to be detokenized.
    #[error(
        "{path} is not raw {detokenizer}: its first line is not a title such as \" = Robert Boulter = \"; read it without \
         --detokenize"
    )]
    Kind {
        /// The file.
        path: PathBuf,
        /// The kind it should be.
        detokenizer: Detokenizer,
    },
    /// A file is of another kind than text.
    #[error("{path}: {what}")]
    NotText {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// A path is neither a regular file nor a folder.
    #[error("{path}: this is {kind}, and only regular files and folders of them can be read; give a file instead")]
    Special {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: &'static str,
    },
    /// A folder has too many entries.
    #[error(
        "{path}: more than {limit} entries in this folder and its subfolders; name a smaller folder, or join files"
    )]
    Many {
        /// The folder.
        path: PathBuf,
        /// The largest number of entries.
        limit: usize,
    },
    /// Folders are nested too deeply.
    #[error("{path}: nested deeper than {limit} folders; name a folder further down")]
    Deep {
        /// The folder.
        path: PathBuf,
        /// The largest depth.
        limit: usize,
    },
    /// Standard input is named where a file is needed.
    #[error(
        "-: standard input can be read by task.train of `falcon train` and by `falcon tokenizer train` only; write it to a \
         file first"
    )]
    Stdin,
    /// The search for files was cancelled.
    #[error("cancelled while files of text were searched for")]
    Cancelled(#[from] Cancelled),
    /// A page is too long to be held in memory.
    #[error(
        "{path}: a page of more than {} MiB without a title after it; divide it by titles such as \" = Title = \", or read it \
         without --detokenize",
        LONGEST_LINE >> 20
    )]
    Page {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder holds no text.
    #[error(
        "{path} has no text; in a folder, files that end in .txt, .md or .jsonl are read, also with .xz, .gz or .zst after that"
    )]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
}

impl SourceError {
    /// The error that a file is not text, if its name or first bytes show that it is not.
    pub(super) fn not_text(path: &Path, name: &Path, beginning: &[u8]) -> Option<Self> {
        not_text(name, beginning).map(|what| Self::NotText { path: path.into(), what })
    }
}

/// What is wrong with JSON that was read from one line of a file. The library counts lines within this JSON, where
/// there is only one, so that only the column of its position is kept.
pub(crate) fn in_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let without_place = message.rsplit_once(" at line ").map(|(what, _)| what);
    without_place.map_or(message.clone(), |what| format!("{what}, column {}", error.column()))
}

/// Why text cannot be encoded, or its tokens cannot be kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The text cannot be read.
    #[error(transparent)]
    Source(SourceError),
    /// The tokenizer cannot encode the text, or does not know its characters.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Encoding was cancelled.
    #[error("cancelled while text was encoded; the next run starts encoding it again")]
    Cancelled(#[from] Cancelled),
    /// The tokens cannot be written to the cache folder, or read from it.
    #[error("{0}; set FALCON_CACHE to a folder that can be written and has room")]
    Path(#[from] PathError),
    /// The user has no folder for caches.
    #[error("there is no home folder to keep tokens in; set FALCON_CACHE to a folder of yours")]
    NoFolder,
}

impl From<SourceError> for CacheError {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Cancelled(cancelled) => Self::Cancelled(cancelled),
            error => Self::Source(error),
        }
    }
}
