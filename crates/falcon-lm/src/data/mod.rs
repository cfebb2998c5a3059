//! Text to train and evaluate on: files and folders, tokenizers, and the cache of encoded text.

mod aside;
mod cache;
mod compressed;
mod detokenize;
mod error;
mod growth;
mod learn;
mod lines;
mod make;
mod not_text;
mod piece;
mod place;
mod reading;
mod source;
mod stamp;
mod text_stream;
mod tokenizer;
mod tokens;
mod vocabulary;
mod walk;

pub use self::aside::keep_text;
pub use self::detokenize::Detokenizer;
pub(crate) use self::error::in_line;
pub use self::error::{CacheError, SourceError};
pub use self::learn::Stage;
pub use self::lines::{LONGEST_LINE, LineError, Lines};
pub use self::piece::Piece;
pub use self::place::cache_folder;
pub use self::reading::read_text;
pub use self::source::{STDIN, Source, digest, sample};
pub use self::stamp::FileStamp;
pub use self::text_stream::TextStream;
pub(crate) use self::tokenizer::{BEGIN as BEGIN_TOKEN, END as END_TOKEN};
pub use self::tokenizer::{BYTES, TOKENIZER_FILE, Tokenizer, TokenizerError};
pub use self::tokens::{Check, Tokens, Totals};
pub use self::walk::is_text_name;
