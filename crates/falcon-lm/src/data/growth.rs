//! How much longer than its text the input of a tokenizer's model can become.
//!
//! A normaliser replaces parts of a text, and a `tokenizer.json` may name any replacement: a letter by a megabyte.
//! The most that it can do is computed from its description when it is opened, before it is given any text.

use base64::Engine;
use serde_json::Value;

/// Bytes that a byte of text may become, at most. SentencePiece's own rules have 33 at one sign, and rules follow one
/// another.
pub(super) const MOST: f64 = 256.0;

/// Bytes that a byte of text can become by a normaliser or decoder, at most.
pub(super) fn growth(described: &Value) -> f64 {
    let text = |key: &str| described.get(key).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "Sequence" => {
            let parts = ["normalizers", "decoders"].iter().filter_map(|key| described.get(key)?.as_array());
            parts.flatten().map(growth).product()
        }
        "Replace" => {
            let content = text("content").len() as f64;
            match described.get("pattern").and_then(|pattern| pattern.get("String")?.as_str()) {
                Some(pattern) if !pattern.is_empty() => (content / pattern.len() as f64).max(1.0),
                // A regular expression may match between any two bytes.
                _ => content + 1.0,
            }
        }
        // Once for every text, which may have a single byte.
        "Prepend" => text("prepend").len() as f64 / 64.0 + 1.0,
        "Precompiled" => base64::engine::general_purpose::STANDARD
            .decode(text("precompiled_charsmap"))
            .map_or(1.0, |rules| longest_rule(&rules) as f64),
        // A sign such as U+FDFA is 3 bytes, and 33 in its parts.
        "NFD" | "NFC" => 3.0,
        "NFKD" | "NFKC" => 11.0,
        "BertNormalizer" | "ByteLevel" | "Lowercase" => 3.0,
        _ => 1.0,
    }
}

/// The longest replacement of SentencePiece's rules: a length, as many bytes, and then replacements that end in zeros.
fn longest_rule(rules: &[u8]) -> usize {
    let Some((length, rest)) = rules.split_first_chunk::<4>() else { return 1 };
    let replacements = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    replacements.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn growth_is_that_of_the_worst_text() {
        let replace =
            |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let space = replace(json!({"String": " "}), "▁");
        assert_eq!(growth(&space), 3.0);
        assert_eq!(growth(&replace(json!({"String": "long"}), "s")), 1.0);
        assert_eq!(growth(&replace(json!({"Regex": "a*"}), "abc")), 4.0);
        assert_eq!(growth(&json!({"type": "Sequence", "normalizers": [space, space, {"type": "NFKC"}]})), 99.0);
        assert!(growth(&replace(json!({"String": "a"}), &"b".repeat(1 << 20))) > MOST);
        assert!(growth(&json!({"type": "Prepend", "prepend": "b".repeat(1 << 20)})) > MOST);
        assert!(growth(&json!({"type": "Prepend", "prepend": "▁"})) < 2.0);
        let rules = [&4u32.to_le_bytes()[..], b"trie", b"ab\0abcde\0"].concat();
        let coded = base64::engine::general_purpose::STANDARD.encode(rules);
        assert_eq!(growth(&json!({"type": "Precompiled", "precompiled_charsmap": coded})), 5.0);
        assert_eq!(growth(&Value::Null), 1.0);
    }
}
