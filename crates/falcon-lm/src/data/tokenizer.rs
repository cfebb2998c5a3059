//! Text to numbers and back, by the `tokenizers` library: bytes, a BPE learnt here, GPT-2's, or any `tokenizer.json`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use falcon_nn::write_file;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Inner, Trainer,
};

use super::hex;
use super::regular::read_regular;
use super::vocabulary::{MOST_TOKENS, check_tokenizer, check_vocabulary};

/// What a folder's tokenizer is called.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// What stands between documents, in tokenizers made here.
pub(crate) const END: &str = "<|endoftext|>";
/// What may stand between documents in those of others, likeliest first.
const ENDS: [&str; 8] =
    [END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|end|>", "[SEP]", "<|begin_of_text|>"];

/// What begins a document in tokenizers of which another token ends it.
pub(crate) const BEGIN: &str = "<|begin_of_sum|>";
/// Bytes of a file of a tokenizer, at most. The largest that are known have half of it.
const LARGEST_FILE: u64 = 64 << 20;
/// Bytes of a word that is learnt from, at most. Learning takes time by the square of a word's length, and no
/// language has such words.
const LONGEST_WORD: usize = 256;

/// Characters that a vocabulary is unlikely to have, of every length in bytes.
const STRANGE: &str = "\u{1}\u{ad}語🙂\u{10fffd}";

/// Why there is no tokenizer.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Nothing there is one.
    #[error(
        "{path}: a tokenizer is `bytes`, a tokenizer.json, or a folder with one or with vocab.json and merges.txt"
    )]
    None {
        /// Where.
        path: PathBuf,
    },
    /// A file that is none.
    #[error("{path}: not a tokenizer: {error}")]
    Bad {
        /// The file.
        path: PathBuf,
        /// What the library said.
        error: String,
    },
    /// No token that ends a document.
    #[error("{path}: no token ends a document: one of {ENDS:?} must be in the vocabulary")]
    NoEnd {
        /// The file.
        path: PathBuf,
    },
    /// A vocabulary that cannot be learnt.
    #[error(
        "a vocabulary of {got} tokens cannot be: it has the 256 bytes and the end of a document at least, 2^24 tokens at most"
    )]
    Size {
        /// What was asked for.
        got: usize,
    },
    /// A text has a character that a closed vocabulary does not have.
    #[error(
        "the text has the character {got:?}, which the tokenizer does not know; it knows only the characters {known:?}"
    )]
    Unknown {
        /// The character.
        got: char,
        /// All that it knows.
        known: String,
    },
    /// It was not learnt.
    #[error("no tokenizer could be learnt from this text: {0}")]
    Train(String),
    /// A text that it cannot encode.
    #[error("the tokenizer cannot encode this text: {0}")]
    Encode(String),
}

/// What is being done while a tokenizer is learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Words are counted.
    Words,
    /// The most frequent pairs of tokens are joined.
    Pairs,
}

/// Text to numbers and back.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    begin: u32,
    end: u32,
    /// The characters of a vocabulary that has no others; none if any text can be encoded.
    characters: Option<Vec<char>>,
    size: usize,
    /// Whether a token is a byte, for which no library is needed: a hundred times as fast.
    plain: bool,
    /// The file that makes it again.
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

/// Text as bytes, each a letter of its own.
fn byte_level(bpe: BPE) -> Inner {
    let mut inner = Inner::new(bpe);
    let level = ByteLevel::new(false, true, true);
    inner.with_pre_tokenizer(Some(level));
    inner.with_decoder(Some(level));
    inner
}

/// The words of a text in letters that stand for bytes. A longer one than [`LONGEST_WORD`] is cut between characters.
fn words(text: &str) -> tokenizers::Result<Vec<String>> {
    let mut split = PreTokenizedString::from(text);
    ByteLevel::new(false, true, true).pre_tokenize(&mut split)?;
    let mut words = Vec::new();
    for (letters, (from, to), _) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
        let mut rest = &text[from..to];
        // A letter stands for a byte.
        let mut letters = letters.chars();
        while rest.len() > LONGEST_WORD {
            let cut = rest.floor_char_boundary(LONGEST_WORD);
            words.push(letters.by_ref().take(cut).collect());
            rest = &rest[cut..];
        }
        words.push(letters.collect());
    }
    Ok(words)
}

impl Tokenizer {
    /// By what the command line calls it: `bytes`, or a file or folder.
    pub fn open(name: &str) -> Result<Self, TokenizerError> {
        if name == "bytes" { Ok(Self::bytes()) } else { Self::read(Path::new(name)) }
    }

    /// From a file or folder.
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

    /// The 256 bytes, and the end of a document.
    pub fn bytes() -> Self {
        // A byte that prints stands for itself, the others for the letters from 256 on: GPT-2's table, and the library's.
        let mut beyond = (256..).filter_map(char::from_u32);
        let vocabulary: [(String, u32); 256] = std::array::from_fn(|byte| {
            let letter = match byte as u8 {
                byte @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(byte),
                _ => beyond.next().expect("there are more"),
            };
            (letter.into(), byte as u32)
        });
        let bpe = BPE::builder().vocab_and_merges(vocabulary, vec![]).build();
        let inner = byte_level(bpe.expect("256 letters are a vocabulary"));
        Self { plain: true, ..Self::with_end(inner) }
    }

    /// Learns a byte-pair encoding: joins the most frequent pair of tokens in `texts` again and again, until there
    /// are `size` tokens, or no pair is there twice.
    pub fn learn<S: AsRef<str> + Send>(
        size: usize,
        texts: impl Iterator<Item = S> + Send,
    ) -> Result<Self, TokenizerError> {
        Self::learn_watched(size, texts, &mut |_| {})
    }

    /// The same, which says what is being done.
    pub fn learn_watched<S: AsRef<str> + Send>(
        size: usize,
        texts: impl Iterator<Item = S> + Send,
        watch: &mut dyn FnMut(Stage),
    ) -> Result<Self, TokenizerError> {
        if !(257..=MOST_TOKENS).contains(&size) {
            return Err(TokenizerError::Size { got: size });
        }
        let mut trainer = BpeTrainer::builder()
            .vocab_size(size)
            .min_frequency(2)
            .show_progress(false)
            .special_tokens(vec![AddedToken::from(END, true)])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let wrong = |error: tokenizers::Error| TokenizerError::Train(error.to_string());
        watch(Stage::Words);
        trainer.feed(texts, words).map_err(wrong)?;
        watch(Stage::Pairs);
        let mut bpe = BPE::default();
        trainer.train(&mut bpe).map_err(wrong)?;
        Ok(Self::with_end(byte_level(bpe)))
    }

    fn with_end(mut inner: Inner) -> Self {
        inner.add_special_tokens([AddedToken::from(END, true)]).expect("one token more");
        Self::new(inner, Path::new(TOKENIZER_FILE)).expect("it has an end")
    }

    fn gpt2(vocabulary: &Path, merges: &Path) -> Result<Self, TokenizerError> {
        let bad = |error: String| TokenizerError::Bad { path: vocabulary.into(), error };
        let read = |path: &Path| {
            read_regular(path, LARGEST_FILE).map_err(|error| TokenizerError::Io { path: path.into(), error })
        };
        check_vocabulary(&read(vocabulary)?).map_err(bad)?;
        read(merges)?;
        let (Some(v), Some(m)) = (vocabulary.to_str(), merges.to_str()) else {
            return Err(bad("its path is no UTF-8, as the library needs it; rename the folder".into()));
        };
        let bpe = BPE::from_file(v, m).build().map_err(|error| bad(error.to_string()))?;
        Self::new(byte_level(bpe), vocabulary)
    }

    fn file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes =
            read_regular(path, LARGEST_FILE).map_err(|error| TokenizerError::Io { path: path.into(), error })?;
        let bad = |error: String| TokenizerError::Bad { path: path.into(), error };
        check_tokenizer(&bytes).map_err(bad)?;
        let read = Self::new(Inner::from_bytes(bytes).map_err(|error| bad(error.to_string()))?, path)?;
        let bytes = Self::bytes();
        Ok(if read == bytes { bytes } else { read })
    }

    /// From the text of a `tokenizer.json`.
    pub(crate) fn from_json(json: &str) -> Result<Self, TokenizerError> {
        let path = Path::new(TOKENIZER_FILE);
        let inner = json.parse::<Inner>();
        Self::new(
            inner.map_err(|error| TokenizerError::Bad { path: path.into(), error: error.to_string() })?,
            path,
        )
    }

    fn new(mut inner: Inner, path: &Path) -> Result<Self, TokenizerError> {
        let bad = |error: String| TokenizerError::Bad { path: path.into(), error };
        let Some(end) = ENDS.iter().find_map(|token| inner.token_to_id(token)) else {
            return Err(TokenizerError::NoEnd { path: path.into() });
        };
        // What a text says is text, also where it spells a special token; lengths are ours to choose.
        inner.set_encode_special_tokens(true);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        let begin = inner.token_to_id(BEGIN).unwrap_or(end);
        // One that does not know a character must have a token for that, or be a closed vocabulary of characters.
        let characters = characters(&inner, [begin, end]);
        if characters.is_none() {
            let strange = inner.encode_fast(STRANGE, false);
            let strange = strange.map_err(|error| bad(format!("it cannot take any text: {error}")))?;
            if strange.get_ids().is_empty() {
                return Err(bad("it leaves out what it does not know".into()));
            }
        }
        // Numbers may have gaps: the largest decides.
        let size = inner.get_vocab(true).into_values().max().map_or(0, |most| most as usize + 1);
        let json = inner.to_string(false).map_err(|error| bad(error.to_string()))?;
        Ok(Self { inner: Arc::new(inner), begin, end, characters, size, plain: false, json })
    }

    /// The token that begins a document: the one that ends it, unless the vocabulary has another for this.
    pub fn begin(&self) -> u32 {
        self.begin
    }

    /// The same as it is spelt in the vocabulary.
    pub fn begin_text(&self) -> String {
        self.inner.id_to_token(self.begin).expect("it is in the vocabulary")
    }

    /// What tells its tokens from those of others: a hash of the vocabulary and of how tokens are joined. Another
    /// program that saves a tokenizer again may write the rest of its file otherwise.
    pub fn vocabulary_fingerprint(&self) -> String {
        let file: serde_json::Value = serde_json::from_str(&self.json).expect("the library wrote it");
        let mut tokens: Vec<(u32, String)> =
            self.inner.get_vocab(true).into_iter().map(|(text, id)| (id, text)).collect();
        tokens.sort_unstable();
        let all = serde_json::json!([file["model"], tokens]).to_string();
        hex(&Sha256::digest(all)[..8])
    }

    /// Tokens there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The token that begins and ends a document.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// The same as it is spelt in the vocabulary.
    pub fn end_text(&self) -> String {
        self.inner.id_to_token(self.end).expect("it is in the vocabulary")
    }

    /// A token as it is spelt in the vocabulary; none where numbers have a gap.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// What tells it from others.
    pub fn fingerprint(&self) -> String {
        hex(&Sha256::digest(&self.json)[..8])
    }

    /// Text to numbers, without a beginning or an end. For short text: a tokenizer that was opened can encode any that
    /// does not exceed the limits of its regular expressions.
    ///
    /// # Panics
    ///
    /// If the vocabulary is closed and lacks a character: [`Tokenizer::try_encode`] says which.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.try_encode(text).expect("it was tried with strange text")
    }

    /// The same for text of any length. A character that a closed vocabulary lacks is refused by name.
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
        Ok(encoding.map_err(|error| TokenizerError::Encode(error.to_string()))?.get_ids().to_vec())
    }

    /// Numbers to text. Bytes that are no characters become `�`.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.inner.decode(tokens, true).unwrap_or_default()
    }

    /// Writes a `tokenizer.json`.
    pub fn save(&self, path: &Path) -> Result<(), TokenizerError> {
        write_file(path, self.json.as_bytes()).map_err(|error| TokenizerError::Io { path: path.into(), error })
    }

    /// Text as its tokens come, after the one before: decoders treat a beginning in a way of its own.
    pub fn stream(&self, before: Option<u32>) -> TextStream<'_> {
        let tokens: Vec<u32> = before.into_iter().collect();
        TextStream { tokenizer: self, said: self.decode(&tokens), tokens, waiting: 0 }
    }
}

/// The characters of a vocabulary that has a token for each of them, and besides only `special` tokens, none of which
/// stands for what is unknown. None of any other vocabulary.
fn characters(inner: &Inner, special: [u32; 2]) -> Option<Vec<char>> {
    let mut tokens: Vec<(u32, String)> = inner.get_vocab(true).into_iter().map(|(text, id)| (id, text)).collect();
    tokens.retain(|(id, _)| !special.contains(id));
    tokens.sort_unstable();
    let single = |text: &String| {
        let mut characters = text.chars();
        characters.next().filter(|_| characters.next().is_none())
    };
    let characters: Vec<char> = tokens.iter().map(|(_, text)| single(text)).collect::<Option<_>>()?;
    if inner.encode_fast(STRANGE, false).is_ok_and(|known| !known.get_ids().is_empty()) {
        return None;
    }
    // Every character must be encoded by itself, also beside its like.
    let (text, ids): (String, Vec<u32>) =
        characters.iter().zip(&tokens).flat_map(|(c, (id, _))| [(*c, *id); 2]).unzip();
    let encoded = inner.encode_fast(text, false).ok()?;
    (!characters.is_empty() && encoded.get_ids() == ids).then_some(characters)
}

/// Text as its tokens come: characters of several tokens wait for the last of them.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The last ones: some that are said, for what decoders do at a beginning, and those that wait.
    tokens: Vec<u32>,
    /// What is said of their text.
    said: String,
    /// How many of them wait; one that ends a character and begins another is said and waits.
    waiting: usize,
}

/// Tokens that a character may wait for: as many as it has bytes, so what waits longer is none.
const WAIT: usize = 4;

impl TextStream<'_> {
    /// What the next token adds.
    pub fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        self.waiting += 1;
        let all = self.tokenizer.decode(&self.tokens);
        if all.ends_with('\u{fffd}') {
            let whole = all.trim_end_matches('\u{fffd}');
            let new = whole.strip_prefix(&self.said).unwrap_or_default().to_string();
            if !new.is_empty() {
                (self.said, self.waiting) = (whole.into(), 1);
            }
            if !new.is_empty() || self.waiting < WAIT {
                return new;
            }
        }
        let new = all.strip_prefix(&self.said).unwrap_or(&all).to_string();
        // The last one said stays as the beginning of what is decoded next.
        self.tokens.drain(..self.tokens.len() - 1);
        (self.said, self.waiting) = (self.tokenizer.decode(&self.tokens), 0);
        new
    }

    /// What still waits.
    pub fn finish(&mut self) -> String {
        let (said, all) =
            (std::mem::take(&mut self.said), self.tokenizer.decode(&std::mem::take(&mut self.tokens)));
        self.waiting = 0;
        all.strip_prefix(&said).unwrap_or(&all).to_string()
    }
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
    fn bytes_are_bytes() {
        let bytes = Tokenizer::bytes();
        let expected: Vec<u32> = TEXT.bytes().map(u32::from).collect();
        assert_eq!(bytes.encode(TEXT), expected, "also where the text spells the end of one");
        assert_eq!(bytes.decode(&expected), TEXT);
        assert_eq!(bytes.begin(), bytes.end());
        let library = bytes.inner.encode_fast(TEXT, false).unwrap();
        assert_eq!(library.get_ids(), expected, "the shortcut is what its file says");
        let folder = tempfile::tempdir().unwrap();
        bytes.save(&folder.path().join(TOKENIZER_FILE)).unwrap();
        assert!(Tokenizer::open(folder.path().to_str().unwrap()).unwrap().plain, "also from its file");
        assert_eq!((bytes.size(), bytes.end()), (257, 256));
        let all: Vec<u32> = (0..256).collect();
        assert_eq!(bytes.decode(&all[..128]).len(), 128);
    }

    #[test]
    fn what_is_learnt_is_shorter_and_comes_back() {
        let tokenizer = learnt();
        let tokens = tokenizer.encode(TEXT);
        assert!(tokens.len() < TEXT.len() / 2, "{} tokens", tokens.len());
        assert_eq!(tokenizer.decode(&tokens), TEXT);
        assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.size() && *token != tokenizer.end()));
        // Text it has not seen, too.
        assert_eq!(tokenizer.decode(&tokenizer.encode("Жук \u{0}")), "Жук \u{0}");
        assert!(Tokenizer::learn(256, std::iter::empty::<String>()).unwrap_err().to_string().contains("256"));
        let folder = tempfile::tempdir().unwrap();
        tokenizer.save(&folder.path().join(TOKENIZER_FILE)).unwrap();
        let again = Tokenizer::open(folder.path().to_str().unwrap()).unwrap();
        assert_eq!((&again, again.fingerprint()), (&tokenizer, tokenizer.fingerprint()));
        assert_ne!(again.fingerprint(), Tokenizer::bytes().fingerprint());
    }

    /// Ordinary words are learnt from as they are; only what is longer than any word is cut, and nothing is lost.
    #[test]
    fn long_words_are_cut_between_characters() {
        assert_eq!(words("Ein Öl").unwrap(), ["Ein", "ĠÃĸl"]);
        let text = format!("{} end", "é".repeat(300));
        let words = words(&text).unwrap();
        assert_eq!(words.iter().map(|word| word.chars().count()).collect::<Vec<_>>(), [256, 256, 88, 4]);
        assert_eq!(words[0], "Ã©".repeat(128), "never within a character");
    }

    /// A word of a megabyte takes as long as a megabyte of words: a quadratic cost would exceed any deadline.
    #[test]
    fn text_without_spaces_is_learnt_and_encoded() {
        let mut state = 1u64;
        let mut letter = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            char::from(b'a' + (state >> 33) as u8 % 26)
        };
        let text: String = (0..1 << 20).map(|_| letter()).collect();
        let begin = std::time::Instant::now();
        let tokenizer = Tokenizer::learn(2000, [&text].into_iter()).unwrap();
        assert_eq!(tokenizer.size(), 2000);
        let tokens = tokenizer.encode(&text);
        assert_eq!(tokenizer.decode(&tokens), text);
        assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    }

    #[test]
    fn vocabulary_and_merges_make_one() {
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
            let said = Tokenizer::read(&elsewhere).unwrap_err().to_string();
            assert!(said.contains("vocab.json") && said.contains("rename the folder"), "{said}");
        }
        write("vocab.json", r#"{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<|endoftext|>": 5}"#);
        let said = open().unwrap_err().to_string();
        assert!(said.contains("leaves out what it does not know"), "{said}");
    }

    #[test]
    fn text_streams_by_characters() {
        for tokenizer in [Tokenizer::bytes(), learnt()] {
            let mut stream = tokenizer.stream(None);
            let mut said = String::new();
            for token in tokenizer.encode(TEXT) {
                let new = stream.push(token);
                assert!(!new.contains('\u{fffd}'), "{new:?} after {said:?}");
                said += &new;
            }
            assert_eq!(said + &stream.finish(), TEXT);
        }
        // What never becomes a character does not wait for ever.
        let bytes = Tokenizer::bytes();
        let mut stream = bytes.stream(Some(bytes.end()));
        let said: String =
            [0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 65].map(|byte| stream.push(byte)).concat();
        assert!(said.ends_with('A') && said.contains('\u{fffd}'), "{said}");
    }

    /// A token that ends one character and begins the next: the one is said, the other waits.
    #[test]
    fn a_token_of_two_characters_streams() {
        // The bytes f0 9f 99 82 are one character; 257 is 82 f0.
        let mut vocabulary: Vec<(String, u32)> = Tokenizer::bytes().inner.get_vocab(true).into_iter().collect();
        let letter = |byte: u32| vocabulary.iter().find(|(_, id)| *id == byte).unwrap().0.clone();
        let (first, second) = (letter(0x82), letter(0xf0));
        vocabulary.push((format!("{first}{second}"), 257));
        let merges = vec![(first, second)];
        let vocabulary: [(String, u32); 258] = vocabulary.try_into().unwrap();
        let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).build().unwrap();
        let tokenizer = Tokenizer::new(byte_level(bpe), Path::new("test")).unwrap();
        let mut stream = tokenizer.stream(None);
        let said = [0xf0, 0x9f, 0x99, 257, 0x9f, 0x99, 257, 0x9f, 0x99, 0x82, 65].map(|token| stream.push(token));
        assert_eq!(said, ["", "", "", "🙂", "", "", "🙂", "", "", "🙂", "A"]);
        let mut stream = tokenizer.stream(None);
        let said = [65, 0xf0, 0x9f, 0x99, 257, 65].map(|token| stream.push(token));
        assert_eq!(said, ["A", "", "", "", "🙂", "\u{fffd}A"], "what never becomes a character is said as such");
        let mut stream = tokenizer.stream(None);
        let said = [0xf0, 0x9f, 0x99, 257].map(|token| stream.push(token)).concat();
        assert_eq!((said.as_str(), stream.finish().as_str()), ("🙂", "\u{fffd}"));
    }

    #[test]
    fn what_is_none_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let said =
            |name: &str| Tokenizer::open(folder.path().join(name).to_str().unwrap()).unwrap_err().to_string();
        assert!(said("none").contains("vocab.json and merges.txt"), "{}", said("none"));
        fs::write(folder.path().join("a.json"), "{\"version\": 1}").unwrap();
        assert!(said("a.json").contains("not a tokenizer"), "{}", said("a.json"));
        let words = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": null, "truncation": null, "padding": null,
            "model": {"type": "WordLevel", "vocab": {"</s>": 0, "a": 1}, "unk_token": "[UNK]"}}"#;
        fs::write(folder.path().join("c.json"), words).unwrap();
        assert!(said("c.json").contains("cannot take any text"), "{}", said("c.json"));
        let without = Tokenizer::bytes().json.replace(END, "<|nothing|>");
        fs::write(folder.path().join("b.json"), without).unwrap();
        assert!(said("b.json").contains("no token ends a document"), "{}", said("b.json"));
    }
}
