//! Text to learn from: files and folders, tokenizers, and tokens made once.

mod cache;
mod compressed;
mod detokenize;
mod source;
mod tokenizer;

pub use self::cache::{CacheError, Tokens, Totals};
pub(crate) use self::cache::{folder as cache_folder, hex, in_line};
pub use self::detokenize::Detokenizer;
pub use self::source::{FileStamp, Piece, Source, SourceError, digest, read_text, sample};
pub(crate) use self::tokenizer::{BEGIN as BEGIN_TOKEN, END as END_TOKEN};
pub use self::tokenizer::{TOKENIZER_FILE, TextStream, Tokenizer, TokenizerError};
