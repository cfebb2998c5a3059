//! Training of a byte-pair encoding.

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Trainer};

use super::tokenizer::{END, Tokenizer, TokenizerError, byte_level};
use super::vocabulary::MOST_TOKENS;

/// The largest number of bytes in a word: training takes time quadratic in it, and no language has longer words.
const LONGEST_WORD: usize = 256;

/// A stage of training a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Words are counted.
    Words,
    /// The most frequent pairs of tokens are merged.
    Pairs,
}

impl Tokenizer {
    /// Trains a byte-pair encoding: merges the most frequent pair of tokens in `texts` again and again, until there are
    /// `size` tokens, or no pair occurs twice.
    pub fn learn<S: AsRef<str> + Send>(
        size: usize,
        texts: impl Iterator<Item = S> + Send,
    ) -> Result<Self, TokenizerError> {
        Self::learn_watched(size, texts, &mut |_| {})
    }

    /// Like [`Tokenizer::learn`], and calls `watch` when a stage begins.
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
        watch(Stage::Words);
        trainer.feed(texts, words).map_err(TokenizerError::Train)?;
        watch(Stage::Pairs);
        let mut bpe = BPE::default();
        trainer.train(&mut bpe).map_err(TokenizerError::Train)?;
        Ok(Self::with_end(byte_level(bpe)))
    }
}

/// The words of a text, written as [`ByteLevel`] writes them: one letter for each byte. Words longer than
/// [`LONGEST_WORD`] are cut between characters.
fn words(text: &str) -> tokenizers::Result<Vec<String>> {
    let mut split = PreTokenizedString::from(text);
    ByteLevel::new(false, true, true).pre_tokenize(&mut split)?;
    let mut words = Vec::new();
    for (letters, (from, to), _) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
        let mut rest = &text[from..to];
        // There are as many letters as bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Only words longer than the limit are cut, and no text is lost.
    #[test]
    fn long_words_are_cut_between_characters() {
        assert_eq!(words("Ein Öl").unwrap(), ["Ein", "ĠÃĸl"]);
        let text = format!("{} end", "é".repeat(300));
        let words = words(&text).unwrap();
        assert_eq!(words.iter().map(|word| word.chars().count()).collect::<Vec<_>>(), [256, 256, 88, 4]);
        assert_eq!(words[0], "Ã©".repeat(128), "never within a character");
    }

    /// A word of a megabyte takes as long as a megabyte of words; a quadratic cost would exceed the time limit below.
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
}
