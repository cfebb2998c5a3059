//! Decoding of tokens one by one, as they are generated.

use super::tokenizer::Tokenizer;

impl Tokenizer {
    /// Decodes a stream of tokens. `before` is the token before the stream, if there is one: some decoders treat the
    /// first token of a text differently from all others.
    pub fn stream(&self, before: Option<u32>) -> TextStream<'_> {
        let tokens: Vec<u32> = before.into_iter().collect();
        TextStream { tokenizer: self, returned: self.decode(&tokens), tokens, waiting: 0 }
    }
}

/// Decodes tokens one by one. A character of several tokens is returned with the last of them.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The last token whose text was returned, so that no later token is decoded as the first of a text, and the tokens
    /// that wait for the rest of a character.
    tokens: Vec<u32>,
    /// The part of the text of `tokens` that was returned.
    returned: String,
    /// How many of `tokens` wait. A token that ends a character and begins the next one counts as waiting.
    waiting: usize,
}

/// The largest number of tokens of a character, which has at most four bytes; bytes that wait longer are not UTF-8.
const WAIT: usize = 4;

impl TextStream<'_> {
    /// The text that the next token completes.
    pub fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        self.waiting += 1;
        let all = self.tokenizer.decode(&self.tokens);
        if all.ends_with('\u{fffd}') {
            let whole = all.trim_end_matches('\u{fffd}');
            let new = whole.strip_prefix(&self.returned).unwrap_or_default().to_string();
            if !new.is_empty() {
                (self.returned, self.waiting) = (whole.into(), 1);
            }
            if !new.is_empty() || self.waiting < WAIT {
                return new;
            }
        }
        let new = all.strip_prefix(&self.returned).unwrap_or(&all).to_string();
        // The last token stays, so that the next one is not decoded as the first of a text.
        self.tokens.drain(..self.tokens.len() - 1);
        (self.returned, self.waiting) = (self.tokenizer.decode(&self.tokens), 0);
        new
    }

    /// The text of the tokens that still wait.
    pub fn finish(&mut self) -> String {
        let (returned, all) =
            (std::mem::take(&mut self.returned), self.tokenizer.decode(&std::mem::take(&mut self.tokens)));
        self.waiting = 0;
        all.strip_prefix(&returned).unwrap_or(&all).to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokenizers::models::bpe::BPE;

    use super::super::tokenizer::byte_level;
    use super::*;

    const TEXT: &str = "Ein Öltank: 12 Fässer.\n\n\tThe end, the end — the <|endoftext|> 🙂🙂";

    fn learnt() -> Tokenizer {
        Tokenizer::learn(300, std::iter::repeat_n(TEXT.to_string(), 3)).unwrap()
    }

    #[test]
    fn a_stream_returns_whole_characters() {
        for tokenizer in [Tokenizer::bytes(), learnt()] {
            let mut stream = tokenizer.stream(None);
            let mut text = String::new();
            for token in tokenizer.encode(TEXT) {
                let new = stream.push(token);
                assert!(!new.contains('\u{fffd}'), "{new:?} after {text:?}");
                text += &new;
            }
            assert_eq!(text + &stream.finish(), TEXT);
        }
        // Bytes that never become a character do not wait for ever.
        let bytes = Tokenizer::bytes();
        let mut stream = bytes.stream(Some(bytes.end()));
        let text: String =
            [0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 65].map(|byte| stream.push(byte)).concat();
        assert!(text.ends_with('A') && text.contains('\u{fffd}'), "{text}");
    }

    /// A token may end one character and begin the next: the first is returned, the second waits.
    #[test]
    fn a_token_of_two_characters_completes_the_first() {
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
        let text = [0xf0, 0x9f, 0x99, 257, 0x9f, 0x99, 257, 0x9f, 0x99, 0x82, 65].map(|token| stream.push(token));
        assert_eq!(text, ["", "", "", "🙂", "", "", "🙂", "", "", "🙂", "A"]);
        let mut stream = tokenizer.stream(None);
        let text = [65, 0xf0, 0x9f, 0x99, 257, 65].map(|token| stream.push(token));
        assert_eq!(
            text,
            ["A", "", "", "", "🙂", "\u{fffd}A"],
            "bytes that never become a character are returned as U+FFFD"
        );
        let mut stream = tokenizer.stream(None);
        let text = [0xf0, 0x9f, 0x99, 257].map(|token| stream.push(token)).concat();
        assert_eq!((text.as_str(), stream.finish().as_str()), ("🙂", "\u{fffd}"));
    }
}
