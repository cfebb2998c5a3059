//! Checks a `tokenizer.json` or `vocab.json` before the library reads it: a single large number in it could make the
//! library allocate any amount of memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::growth::{MOST_GROWTH, growth};

/// The largest number of tokens in a vocabulary.
pub(super) const MOST_TOKENS: usize = 1 << 24;
/// The largest number of bytes in a token.
const LONGEST_TOKEN: usize = 64 << 10;

/// The parts of a `tokenizer.json` that are checked.
#[derive(Deserialize)]
struct TokenizerJson {
    added_tokens: Option<Vec<AddedToken>>,
    model: Option<Model>,
    normalizer: Option<Value>,
    decoder: Option<Value>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: Option<Value>,
    content: Option<String>,
}

#[derive(Deserialize)]
struct Model {
    vocab: Option<Vocabulary>,
}

/// Refuses a `tokenizer.json` that exceeds the limits.
pub(super) fn check_tokenizer(json: &[u8]) -> Result<(), String> {
    let parsed: TokenizerJson = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let mut all = parsed.model.and_then(|model| model.vocab).unwrap_or_default();
    for AddedToken { id, content } in parsed.added_tokens.into_iter().flatten() {
        all.add(&content.unwrap_or_default(), &id.unwrap_or_default());
    }
    all.check()?;
    for (name, part) in [("normalizer", parsed.normalizer), ("decoder", parsed.decoder)] {
        let times = part.as_ref().map_or(1.0, growth);
        if times > MOST_GROWTH {
            return Err(format!(
                "its {name} can make text {times:.0} times as long, and at most {MOST_GROWTH} times is allowed; remove \
                 the long replacement from it"
            ));
        }
    }
    Ok(())
}

/// Refuses a `vocab.json` that exceeds the limits.
pub(super) fn check_vocabulary(json: &[u8]) -> Result<(), String> {
    serde_json::from_slice::<Vocabulary>(json).map_err(|error| error.to_string())?.check()
}

/// The largest token number and the longest token of a vocabulary.
#[derive(Default)]
struct Vocabulary {
    largest: u64,
    longest: usize,
}

impl Vocabulary {
    /// An `id` that is not a number is left for the library to refuse.
    fn add(&mut self, token: &str, id: &Value) {
        self.largest = self.largest.max(id.as_u64().unwrap_or(0));
        self.longest = self.longest.max(token.len());
    }

    fn check(&self) -> Result<(), String> {
        let Self { largest, longest } = self;
        if *largest >= MOST_TOKENS as u64 {
            return Err(format!(
                "it has a token with the number {largest}, and numbers up to {} are allowed; number its tokens from 0",
                MOST_TOKENS - 1
            ));
        }
        if *longest > LONGEST_TOKEN {
            return Err(format!("it has a token of {longest} bytes, and at most {LONGEST_TOKEN} are allowed"));
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens with their numbers, or in the order of their numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vocabulary::default();
                while let Some((token, id)) = map.next_entry::<String, Value>()? {
                    all.add(&token, &id);
                }
                Ok(all)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut all = Vocabulary::default();
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    all.largest += 1;
                }
                Ok(all)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_numbers_and_lengths_have_limits() {
        let error = |json: &str| check_tokenizer(json.as_bytes()).unwrap_err();
        let largest = r#"{"model": {"vocab": {"a": 0, "b": 1000000000}}}"#;
        assert!(
            error(largest).contains("1000000000") && error(largest).contains("16777215"),
            "{}",
            error(largest)
        );
        let added = r#"{"added_tokens": [{"id": 16777216, "content": "x"}]}"#;
        assert!(error(added).contains("16777216"), "{}", error(added));
        let long = format!(r#"{{"a": 0, "{}": 1}}"#, "b".repeat(LONGEST_TOKEN + 1));
        assert!(check_vocabulary(long.as_bytes()).unwrap_err().contains("65537 bytes"));
        let unigram = r#"{"model": {"vocab": [["a", -1.5], ["b", -2.0]]}, "normalizer": null}"#;
        assert_eq!(check_tokenizer(unigram.as_bytes()), Ok(()));
        assert_eq!(check_vocabulary(br#"{"a": 0, "b": 16777215}"#), Ok(()));
    }
}
