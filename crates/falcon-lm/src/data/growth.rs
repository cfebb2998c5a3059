//! An upper bound on how much longer a tokenizer's normaliser or decoder can make a text.
//!
//! A `tokenizer.json` may contain a rule that replaces a letter by a megabyte. The bound is computed from the rules in
//! the file when the tokenizer is opened, before any text is encoded.

use base64::Engine;
use serde_json::Value;

/// The largest number of bytes that one byte of text may become. A single rule of SentencePiece makes up to 33, and
/// rules are applied one after the other.
pub(super) const MOST_GROWTH: f64 = 256.0;

/// The largest number of bytes that one byte of text can become by a normaliser or decoder, given as its JSON.
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
        // Applied once per text, so that it matters only for short ones.
        "Prepend" => text("prepend").len() as f64 / 64.0 + 1.0,
        "Precompiled" => base64::engine::general_purpose::STANDARD
            .decode(text("precompiled_charsmap"))
            .map_or(1.0, |rules| longest_rule(&rules) as f64),
        // U+FDFA, of 3 bytes, decomposes to 33 bytes under compatibility normalisation.
        "NFD" | "NFC" => 3.0,
        "NFKD" | "NFKC" => 11.0,
        "BertNormalizer" | "ByteLevel" | "Lowercase" => 3.0,
        _ => 1.0,
    }
}

/// The longest replacement of SentencePiece's rules. Their format: the length of a trie, the trie, and replacements
/// that end in zeros.
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
        assert!(growth(&replace(json!({"String": "a"}), &"b".repeat(1 << 20))) > MOST_GROWTH);
        assert!(growth(&json!({"type": "Prepend", "prepend": "b".repeat(1 << 20)})) > MOST_GROWTH);
        assert!(growth(&json!({"type": "Prepend", "prepend": "▁"})) < 2.0);
        let rules = [&4u32.to_le_bytes()[..], b"trie", b"ab\0abcde\0"].concat();
        let coded = base64::engine::general_purpose::STANDARD.encode(rules);
        assert_eq!(growth(&json!({"type": "Precompiled", "precompiled_charsmap": coded})), 5.0);
        assert_eq!(growth(&Value::Null), 1.0);
    }
}
