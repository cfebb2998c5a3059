//! Text to learn from: files and folders, tokenizers, and tokens made once.

mod cache;
mod compressed;
mod detokenize;
mod growth;
mod lines;
mod make;
mod place;
mod regular;
mod source;
mod stamp;
mod tokenizer;
mod vocabulary;
mod walk;

pub(crate) use self::cache::in_line;
pub use self::cache::{CacheError, Check, Tokens, Totals};
pub use self::detokenize::Detokenizer;
pub use self::lines::{LONGEST_LINE, LineError, Lines};
pub use self::make::keep_text;
pub use self::place::cache_folder;
pub use self::regular::{open_regular, read_regular};
pub use self::source::{Piece, STDIN, Source, SourceError, digest, read_text, sample};
pub use self::stamp::FileStamp;
pub(crate) use self::stamp::hex;
pub(crate) use self::tokenizer::{BEGIN as BEGIN_TOKEN, END as END_TOKEN};
pub use self::tokenizer::{Stage, TOKENIZER_FILE, TextStream, Tokenizer, TokenizerError};
pub use self::walk::is_text_name;
