//! Tokenizers, by the `tokenizers` library: bytes, a BPE trained here, GPT-2's, or any `tokenizer.json`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use falcon_base::files::{read_file, write_file};
use falcon_base::{PathError, hex};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::vocabulary::{check_tokenizer, check_vocabulary};

/// Name of the tokenizer's file in a folder.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The name of the tokenizer whose tokens are bytes.
pub const BYTES: &str = "bytes";
/// The token between documents, in tokenizers that this crate creates.
pub(crate) const END: &str = "<|endoftext|>";
/// Tokens between documents in other tokenizers, likeliest first.
const ENDS: [&str; 8] =
    [END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|end|>", "[SEP]", "<|begin_of_text|>"];

/// The token that begins a document, in tokenizers where it differs from the one that ends it.
pub(crate) const BEGIN: &str = "<|begin_of_sum|>";
/// The largest file of a tokenizer that is read, in bytes: twice that of the largest one known.
const LARGEST_FILE: u64 = 64 << 20;
/// Characters of one to four bytes that few vocabularies have.
const STRANGE: &str = "\u{1}\u{ad}語🙂\u{10fffd}";

/// Why a tokenizer cannot be opened, trained or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No tokenizer is there.
    #[error(
        "{path}: a tokenizer is `bytes`, a tokenizer.json, or a folder with one or with vocab.json and merges.txt"
    )]
    None {
        /// The file or folder.
        path: PathBuf,
    },
    /// A file is not a tokenizer that can be used.
    #[error("{path}: not a tokenizer: {source}")]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: tokenizers::Error,
    },
    /// No token ends a document.
    #[error("{path}: no token ends a document: one of {ENDS:?} must be in the vocabulary")]
    NoEnd {
        /// The file.
        path: PathBuf,
    },
    /// A vocabulary of the requested size is impossible.
    #[error(
        "a vocabulary of {got} tokens is impossible: it needs the 256 bytes and the end of a document, and has at most 2^24 \
         tokens"
    )]
    Size {
        /// The requested number of tokens.
        got: usize,
    },
    /// A text has a character that a closed vocabulary does not have.
    #[error(
        "the text has the character {got:?}, which the tokenizer does not know; it knows only the characters {known:?}"
    )]
    Unknown {
        /// The character.
        got: char,
        /// All characters of the vocabulary.
        known: String,
    },
    /// No tokenizer could be trained.
    #[error("no tokenizer could be trained on this text: {0}")]
    Train(#[source] tokenizers::Error),
    /// A text cannot be encoded.
    #[error("the tokenizer cannot encode this text: {0}")]
    Encode(#[source] tokenizers::Error),
}

/// Converts text to tokens and back.
#[derive(Clone)]
pub struct Tokenizer {
    pub(super) inner: Arc<Inner>,
    begin: u32,
    end: u32,
    /// The characters of a closed vocabulary; none if any text can be encoded.
    characters: Option<Vec<char>>,
    size: usize,
    /// Whether tokens are bytes: text is then encoded without the library, a hundred times as fast.
    plain: bool,
    /// The content of its `tokenizer.json`.
    json: String,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("size", &self.size).field("end", &self.end).finish_non_exhaustive()
    }
}

impl PartialEq for Tokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

/// A BPE over bytes, each of which the library writes as a letter.
pub(super) fn byte_level(bpe: BPE) -> Inner {
    let mut inner = Inner::new(bpe);
    let level = ByteLevel::new(false, true, true);
    inner.with_pre_tokenizer(Some(level));
    inner.with_decoder(Some(level));
    inner
}

impl Tokenizer {
    /// Opens the tokenizer that the command line calls `name`: `bytes`, or a file or folder.
    pub fn open(name: &str) -> Result<Self, TokenizerError> {
        if name == BYTES { Ok(Self::bytes()) } else { Self::read(Path::new(name)) }
    }

    /// Reads a file or folder.
    pub(crate) fn read(path: &Path) -> Result<Self, TokenizerError> {
        let [json, vocabulary, merges] = [TOKENIZER_FILE, "vocab.json", "merges.txt"].map(|file| path.join(file));
        if path.is_file() {
            Self::file(path)
        } else if json.is_file() {
            Self::file(&json)
        } else if vocabulary.is_file() && merges.is_file() {
            Self::gpt2(&vocabulary, &merges)
        } else {
            Err(TokenizerError::None { path: path.into() })
        }
    }

    /// The tokenizer whose vocabulary is the 256 bytes and the end of a document.
    pub fn bytes() -> Self {
        // The table of GPT-2 and of the library: printable bytes are written as themselves, the others as the letters
        // from U+0100 on.
        let mut beyond = (256..).filter_map(char::from_u32);
        let vocabulary: [(String, u32); 256] = std::array::from_fn(|byte| {
            let letter = match byte as u8 {
                byte @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(byte),
                _ => beyond.next().expect("there are more than 256 letters"),
            };
            (letter.into(), byte as u32)
        });
        let bpe = BPE::builder().vocab_and_merges(vocabulary, vec![]).build();
        let inner = byte_level(bpe.expect("256 letters are a vocabulary"));
        Self { plain: true, ..Self::with_end(inner) }
    }

    pub(super) fn with_end(mut inner: Inner) -> Self {
        inner.add_special_tokens([AddedToken::from(END, true)]).expect("a token can be added");
        Self::new(inner, Path::new(TOKENIZER_FILE)).expect("it has a token that ends documents")
    }

    fn gpt2(vocabulary: &Path, merges: &Path) -> Result<Self, TokenizerError> {
        let bad = |source| TokenizerError::Bad { path: vocabulary.into(), source };
        check_vocabulary(&read_file(vocabulary, LARGEST_FILE)?).map_err(|what| bad(what.into()))?;
        // The library reads both files again, by their paths; this refuses what is too large or not a file.
        read_file(merges, LARGEST_FILE)?;
        let (Some(v), Some(m)) = (vocabulary.to_str(), merges.to_str()) else {
            return Err(bad("its path is not UTF-8, which the library needs; rename the folder".into()));
        };
        let bpe = BPE::from_file(v, m).build().map_err(bad)?;
        Self::new(byte_level(bpe), vocabulary)
    }

    fn file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes = read_file(path, LARGEST_FILE)?;
        let bad = |source| TokenizerError::Bad { path: path.into(), source };
        check_tokenizer(&bytes).map_err(|what| bad(what.into()))?;
        let read = Self::new(Inner::from_bytes(bytes).map_err(bad)?, path)?;
        let bytes = Self::bytes();
        Ok(if read == bytes { bytes } else { read })
    }

    /// Parses the text of a `tokenizer.json`.
    pub(crate) fn from_json(json: &str) -> Result<Self, TokenizerError> {
        let path = Path::new(TOKENIZER_FILE);
        let inner = json.parse().map_err(|source| TokenizerError::Bad { path: path.into(), source })?;
        Self::new(inner, path)
    }

    pub(super) fn new(mut inner: Inner, path: &Path) -> Result<Self, TokenizerError> {
        let bad = |source| TokenizerError::Bad { path: path.into(), source };
        let Some(end) = ENDS.iter().find_map(|token| inner.token_to_id(token)) else {
            return Err(TokenizerError::NoEnd { path: path.into() });
        };
        // A text that spells out a special token is encoded as text; lengths are chosen by the caller.
        inner.set_encode_special_tokens(true);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(bad)?;
        let begin = inner.token_to_id(BEGIN).unwrap_or(end);
        // A tokenizer whose vocabulary is not closed must be able to encode any character.
        let characters = characters(&inner, [begin, end]);
        if characters.is_none() {
            let strange = inner.encode_fast(STRANGE, false);
            let strange =
                strange.map_err(|error| bad(format!("it cannot encode arbitrary text: {error}").into()))?;
            if strange.get_ids().is_empty() {
                return Err(bad("it leaves out characters that it does not know".into()));
            }
        }
        // The numbers of tokens may have gaps, so that the size follows from the largest.
        let size = inner.get_vocab(true).into_values().max().map_or(0, |most| most as usize + 1);
        let json = inner.to_string(false).map_err(bad)?;
        Ok(Self { inner: Arc::new(inner), begin, end, characters, size, plain: false, json })
    }

    /// The token that begins a document. In most vocabularies it is the one that ends it.
    pub fn begin(&self) -> u32 {
        self.begin
    }

    /// The token that begins a document, as it is spelt in the vocabulary.
    pub fn begin_text(&self) -> String {
        self.inner.id_to_token(self.begin).expect("it is in the vocabulary")
    }

    /// A hash of the vocabulary and of the merges. Unlike [`Tokenizer::fingerprint`], it stays the same when another
    /// program saves the tokenizer and writes the rest of its file differently.
    pub fn vocabulary_fingerprint(&self) -> String {
        let file: serde_json::Value = serde_json::from_str(&self.json).expect("the library wrote it");
        let mut tokens: Vec<(u32, String)> =
            self.inner.get_vocab(true).into_iter().map(|(text, id)| (id, text)).collect();
        tokens.sort_unstable();
        let all = serde_json::json!([file["model"], tokens]).to_string();
        hex(&Sha256::digest(all)[..8])
    }

    /// The number of tokens in the vocabulary.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The token that ends a document.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// The token that ends a document, as it is spelt in the vocabulary.
    pub fn end_text(&self) -> String {
        self.inner.id_to_token(self.end).expect("it is in the vocabulary")
    }

    /// A token as it is spelt in the vocabulary; none if no token has this number.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// A hash of the tokenizer's file.
    pub fn fingerprint(&self) -> String {
        hex(&Sha256::digest(&self.json)[..8])
    }

    /// Encodes short text, without tokens for its beginning and end.
    ///
    /// # Panics
    ///
    /// If the vocabulary is closed and lacks a character, or the text exceeds the limits of the tokenizer's regular
    /// expressions: [`Tokenizer::try_encode`] returns an error instead.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.try_encode(text).expect("the vocabulary has all characters of the text")
    }

    /// Encodes text, without tokens for its beginning and end.
    pub fn try_encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if self.plain {
            return Ok(text.bytes().map(u32::from).collect());
        }
        if let Some(characters) = &self.characters
            && let Some(got) = text.chars().find(|c| !characters.contains(c))
        {
            return Err(TokenizerError::Unknown { got, known: characters.iter().collect() });
        }
        let encoding = self.inner.encode_fast(text, false);
        Ok(encoding.map_err(TokenizerError::Encode)?.get_ids().to_vec())
    }

    /// Decodes tokens. Bytes that are not UTF-8 become `�`.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.inner.decode(tokens, true).unwrap_or_default()
    }

    /// Writes a `tokenizer.json`.
    pub fn save(&self, path: &Path) -> Result<(), TokenizerError> {
        Ok(write_file(path, self.json.as_bytes())?)
    }
}

/// The characters of a closed vocabulary: one whose tokens, apart from the `special` ones, are single characters, and
/// that has no token for unknown characters. None for any other vocabulary.
fn characters(inner: &Inner, special: [u32; 2]) -> Option<Vec<char>> {
    let mut tokens: Vec<(u32, String)> = inner.get_vocab(true).into_iter().map(|(text, id)| (id, text)).collect();
    tokens.retain(|(id, _)| !special.contains(id));
    tokens.sort_unstable();
    let single = |text: &String| {
        let mut characters = text.chars();
        characters.next().filter(|_| characters.next().is_none())
    };
    let characters: Vec<char> = tokens.iter().map(|(_, text)| single(text)).collect::<Option<_>>()?;
    if inner.encode_fast(STRANGE, false).is_ok_and(|encoded| !encoded.get_ids().is_empty()) {
        return None;
    }
    // Every character must be encoded by itself, also when it is repeated.
    let (text, ids): (String, Vec<u32>) =
        characters.iter().zip(&tokens).flat_map(|(c, (id, _))| [(*c, *id); 2]).unzip();
    let encoded = inner.encode_fast(text, false).ok()?;
    (!characters.is_empty() && encoded.get_ids() == ids).then_some(characters)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TEXT: &str = "Ein Öltank: 12 Fässer.\n\n\tThe end, the end — the <|endoftext|> 🙂🙂";

    fn learnt() -> Tokenizer {
        Tokenizer::learn(300, std::iter::repeat_n(TEXT.to_string(), 3)).unwrap()
    }

    #[test]
    fn tokens_of_bytes_are_the_bytes_of_a_text() {
        let bytes = Tokenizer::bytes();
        let expected: Vec<u32> = TEXT.bytes().map(u32::from).collect();
        assert_eq!(bytes.encode(TEXT), expected, "also where the text spells the end token");
        assert_eq!(bytes.decode(&expected), TEXT);
        assert_eq!(bytes.begin(), bytes.end());
        let library = bytes.inner.encode_fast(TEXT, false).unwrap();
        assert_eq!(library.get_ids(), expected, "encoding without the library gives the same tokens");
        let folder = tempfile::tempdir().unwrap();
        bytes.save(&folder.path().join(TOKENIZER_FILE)).unwrap();
        assert!(
            Tokenizer::open(folder.path().to_str().unwrap()).unwrap().plain,
            "the saved file is recognised as the tokenizer of bytes"
        );
        assert_eq!((bytes.size(), bytes.end()), (257, 256));
        let all: Vec<u32> = (0..256).collect();
        assert_eq!(bytes.decode(&all[..128]).len(), 128);
    }

    #[test]
    fn a_learnt_tokenizer_shortens_and_restores_text() {
        let tokenizer = learnt();
        let tokens = tokenizer.encode(TEXT);
        assert!(tokens.len() < TEXT.len() / 2, "{} tokens", tokens.len());
        assert_eq!(tokenizer.decode(&tokens), TEXT);
        assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.size() && *token != tokenizer.end()));
        // Text that it was not trained on, too.
        assert_eq!(tokenizer.decode(&tokenizer.encode("Жук \u{0}")), "Жук \u{0}");
        assert!(Tokenizer::learn(256, std::iter::empty::<String>()).unwrap_err().to_string().contains("256"));
        let folder = tempfile::tempdir().unwrap();
        tokenizer.save(&folder.path().join(TOKENIZER_FILE)).unwrap();
        let again = Tokenizer::open(folder.path().to_str().unwrap()).unwrap();
        assert_eq!((&again, again.fingerprint()), (&tokenizer, tokenizer.fingerprint()));
        assert_ne!(again.fingerprint(), Tokenizer::bytes().fingerprint());
    }

    #[test]
    fn vocab_json_and_merges_txt_are_read_as_a_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let mut vocabulary = serde_json::Map::new();
        let letters = Tokenizer::bytes().inner.get_vocab(true);
        letters.into_iter().for_each(|(letter, id)| _ = vocabulary.insert(letter, id.into()));
        [("ab", 257), ("Ġab", 258)]
            .into_iter()
            .for_each(|(token, id)| _ = vocabulary.insert(token.into(), id.into()));
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("vocab.json", &serde_json::Value::from(vocabulary).to_string());
        write("merges.txt", "#version: 0.2\na b\nĠ ab\n");
        let open = || Tokenizer::open(folder.path().to_str().unwrap());
        let tokenizer = open().unwrap();
        assert_eq!(tokenizer.encode("abab ab"), [257, 257, 258]);
        assert_eq!((tokenizer.end(), tokenizer.size()), (256, 259));
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let elsewhere = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
            fs::create_dir(&elsewhere).unwrap();
            for name in ["vocab.json", "merges.txt"] {
                fs::copy(folder.path().join(name), elsewhere.join(name)).unwrap();
            }
            let error = Tokenizer::read(&elsewhere).unwrap_err().to_string();
            assert!(error.contains("vocab.json") && error.contains("rename the folder"), "{error}");
        }
        write("vocab.json", r#"{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<|endoftext|>": 5}"#);
        let error = open().unwrap_err().to_string();
        assert!(error.contains("leaves out characters that it does not know"), "{error}");
    }

    #[test]
    fn files_that_are_no_tokenizer_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            |name: &str| Tokenizer::open(folder.path().join(name).to_str().unwrap()).unwrap_err().to_string();
        assert!(error("none").contains("vocab.json and merges.txt"), "{}", error("none"));
        fs::write(folder.path().join("a.json"), "{\"version\": 1}").unwrap();
        assert!(error("a.json").contains("not a tokenizer"), "{}", error("a.json"));
        let words = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": null, "truncation": null, "padding": null,
            "model": {"type": "WordLevel", "vocab": {"</s>": 0, "a": 1}, "unk_token": "[UNK]"}}"#;
        fs::write(folder.path().join("c.json"), words).unwrap();
        assert!(error("c.json").contains("cannot encode arbitrary text"), "{}", error("c.json"));
        let without = Tokenizer::bytes().json.replace(END, "<|nothing|>");
        fs::write(folder.path().join("b.json"), without).unwrap();
        assert!(error("b.json").contains("no token ends a document"), "{}", error("b.json"));
    }
}
