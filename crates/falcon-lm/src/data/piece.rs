//! Pieces of text, as sources yield them.

/// A piece of a document. Documents are cut at places where byte-level tokenizers do not join both sides into one
/// token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// Whether a document begins with this piece.
    pub first: bool,
    /// Bytes of the text, before it was detokenized.
    pub bytes: usize,
    /// Words of the text, separated by white space. For detokenized text, these are the words before it was
    /// detokenized, as its [`Detokenizer`](super::Detokenizer) counts them.
    pub words: usize,
}

impl Piece {
    /// A piece of text that is not detokenized.
    pub fn new(text: String, first: bool) -> Self {
        let (bytes, words) = (text.len(), text.split_whitespace().count());
        Self { text, first, bytes, words }
    }
}
