//! The tokenizer of the addition task: one token per character.

use serde_json::json;

use super::sum::{BEGIN, END, EQUALS, PLUS};
use crate::data::{BEGIN_TOKEN, END_TOKEN, Tokenizer};

/// The tokenizer of the addition task. Its file is an ordinary `tokenizer.json`. Its vocabulary is closed: encoding
/// fails at a character that no sum has.
pub(in crate::tasks) fn tokenizer() -> Tokenizer {
    let digits = (0..10).map(|digit| (digit.to_string(), digit));
    let others = [("+", PLUS), ("=", EQUALS), (BEGIN_TOKEN, BEGIN), (END_TOKEN, END)];
    let vocabulary: serde_json::Map<_, _> = digits
        .chain(others.map(|(text, id)| (text.to_string(), id)))
        .map(|(text, id)| (text, id.into()))
        .collect();
    let special = |text: &str, id: u32| {
        json!({
            "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    };
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(BEGIN_TOKEN, BEGIN), special(END_TOKEN, END)],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false,
        },
        // With this, programs that add special tokens by themselves begin a sum as training does.
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": BEGIN_TOKEN, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { (BEGIN_TOKEN): { "id": BEGIN_TOKEN, "ids": [BEGIN], "tokens": [BEGIN_TOKEN] } },
        },
        "decoder": { "type": "Fuse" },
        // No token stands for unknown characters: the vocabulary is closed.
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "" },
    });
    Tokenizer::from_json(&file.to_string()).expect("the tokenizer of the addition task is valid")
}

#[cfg(test)]
mod tests {
    use super::super::sum::{DigitOrder, Sum, VOCABULARY};
    use super::*;

    /// A sum that a user types is encoded to the tokens that training uses.
    #[test]
    fn text_is_encoded_as_training_writes_it() {
        let tokenizer = tokenizer();
        assert_eq!((tokenizer.size(), tokenizer.begin(), tokenizer.end()), (VOCABULARY, 12, 13));
        let (written, _) = Sum { a: vec![1, 2], b: vec![3, 4] }.tokens_and_targets(DigitOrder::AllReversed, true);
        let text = tokenizer.try_encode("21+43=64").unwrap();
        assert_eq!([&[tokenizer.begin()], &text[..]].concat(), written);
        assert_eq!(tokenizer.decode(&written), "21+43=64");
        let mut stream = tokenizer.stream(Some(EQUALS));
        assert_eq!([6, 4, 0].map(|digit| stream.push(digit)), ["6", "4", "0"]);
    }

    #[test]
    fn errors_name_characters_that_no_sum_has() {
        let message = |text: &str| tokenizer().try_encode(text).unwrap_err().to_string();
        assert!(
            message("1 + 2 =").contains("' '") && message("1 + 2 =").contains("\"0123456789+=\""),
            "{}",
            message("1 +")
        );
        assert!(message("1−2").contains("'−'"), "{}", message("1−2"));
        // The file that a run writes refuses them too.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        tokenizer().save(&path).unwrap();
        let read = Tokenizer::open(path.to_str().unwrap()).unwrap();
        assert_eq!((&read, read.fingerprint()), (&tokenizer(), tokenizer().fingerprint()));
        assert!(read.try_encode("2x").is_err() && read.try_encode("2+").is_ok());
    }
}
