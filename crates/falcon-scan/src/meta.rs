//! The `meta` JSON object of a file, read key by key so that errors can name the key.

use serde_json::{Map, Value};

use crate::error::ScanError;

/// The parsed object, and the text it came from.
pub(crate) struct Meta {
    pub text: String,
    map: Map<String, Value>,
}

impl Meta {
    pub fn parse(text: &str) -> Result<Self, ScanError> {
        match serde_json::from_str(text)? {
            Value::Object(map) => Ok(Self { text: text.into(), map }),
            value => Err(ScanError::MetaNoObject { value: short(&value) }),
        }
    }

    /// The value of a key. `null` counts as absent, because many writers use it for that.
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The value of a key, which must be one of the names in `choices`; returns what `choices` pairs with that name.
    /// None if the key is absent.
    pub fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Result<Option<T>, ScanError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = value.as_str().and_then(|text| choices.iter().find(|(name, _)| *name == text));
        match found {
            Some((_, choice)) => Ok(Some(*choice)),
            None => Err(wrong(key, value, one_of(choices))),
        }
    }

    /// The same as [`Meta::choice`] for a key that `needed_by` requires.
    pub fn need_choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[(&str, T)],
        needed_by: &str,
    ) -> Result<T, ScanError> {
        self.choice(key, choices)?.ok_or_else(|| missing(key, needed_by, one_of(choices)))
    }

    /// A whole number.
    pub fn count(&self, key: &'static str) -> Result<Option<u64>, ScanError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(count) => Ok(Some(count)),
            None => Err(wrong(key, value, "a whole number, at least 0")),
        }
    }

    /// `true` or `false`.
    pub fn flag(&self, key: &'static str) -> Result<Option<bool>, ScanError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(key, value, "true or false"))
    }

    /// A number that `needed_by` requires. The kernels check its range.
    pub fn need_number(&self, key: &'static str, needed_by: &str) -> Result<f64, ScanError> {
        let expected = "a number, at least 0";
        let Some(value) = self.get(key) else { return Err(missing(key, needed_by, expected)) };
        value.as_f64().ok_or_else(|| wrong(key, value, expected))
    }

    /// Refuses a size in `meta` that differs from `size`, that of the tensors. The key may be absent. `fact` begins the
    /// part of the error that states `size`.
    pub fn agree(&self, key: &'static str, size: usize, fact: &str) -> Result<(), ScanError> {
        match self.count(key)? {
            Some(given) if given != size as u64 => {
                let fact = format!("{fact} {size}");
                Err(ScanError::MetaConflict { key, value: given.to_string(), fact })
            }
            _ => Ok(()),
        }
    }

    /// The same as [`Meta::agree`] for flags.
    pub fn agree_flag(&self, key: &'static str, actual: bool, fact: &str) -> Result<(), ScanError> {
        match self.flag(key)? {
            Some(given) if given != actual => {
                Err(ScanError::MetaConflict { key, value: given.to_string(), fact: fact.into() })
            }
            _ => Ok(()),
        }
    }
}

fn one_of<T>(choices: &[(&str, T)]) -> String {
    let names: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
    match &names[..] {
        [name] => name.clone(),
        names => format!("one of {}", names.join(", ")),
    }
}

fn missing(key: &'static str, needed_by: &str, expected: impl Into<String>) -> ScanError {
    ScanError::MetaMissing { key, needed_by: needed_by.into(), expected: expected.into() }
}

pub(crate) fn wrong(key: &'static str, value: &Value, expected: impl Into<String>) -> ScanError {
    ScanError::MetaValue { key, value: short(value), expected: expected.into() }
}

/// A value as JSON, shortened so that a hostile file cannot fill the terminal.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_key() {
        let meta = Meta::parse(r#"{"a": "x", "n": -1, "e": 2.0, "none": null, "flag": 1}"#).unwrap();
        let choices = [("x", 1), ("y", 2)];
        assert_eq!(meta.choice("a", &choices).unwrap(), Some(1));
        assert_eq!(meta.choice("none", &choices).unwrap(), None);
        let message = meta.need_choice("none", &choices, "falcon1").unwrap_err().to_string();
        assert_eq!(message, r#"meta has no "none", which falcon1 needs: add it, one of "x", "y""#);
        let message = meta.count("n").unwrap_err().to_string();
        assert_eq!(message, r#"meta key "n" is -1: expected a whole number, at least 0"#);
        assert_eq!(meta.need_number("e", "falcon1").unwrap(), 2.0);
        let text = meta.need_number("a", "falcon1").unwrap_err().to_string();
        assert_eq!(text, r#"meta key "a" is "x": expected a number, at least 0"#);
        assert!(meta.flag("flag").is_err());
        assert!(Meta::parse("[1]").is_err());
        assert!(Meta::parse("{").is_err());
    }
}
