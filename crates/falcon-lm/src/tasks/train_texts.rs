//! The training texts of a configuration: one path, or several with weights.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The texts to train on. In TOML a path, or a list of paths, each with an optional weight:
/// `train = [{ path = "books/", weight = 2 }, "web.jsonl"]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct TrainTexts(Vec<TrainText>);

/// A text to train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainText {
    /// The file or folder.
    pub path: PathBuf,
    /// How often each of its windows is drawn in one epoch.
    #[serde(default = "default_weight")]
    pub weight: f64,
}

fn default_weight() -> f64 {
    1.0
}

/// The form in a configuration file: an empty path stands for no text at all.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "this is a path, or a list of paths and of tables such as { path = \"books/\", weight = 2 }"
)]
enum Written {
    One(PathBuf),
    Several(Vec<Entry>),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Path(PathBuf),
    Weighted(TrainText),
}

impl From<Written> for TrainTexts {
    fn from(written: Written) -> Self {
        let entries = match written {
            Written::One(path) if path.as_os_str().is_empty() => Vec::new(),
            Written::One(path) => vec![Entry::Path(path)],
            Written::Several(entries) => entries,
        };
        let text = |entry| match entry {
            Entry::Path(path) => TrainText { path, weight: default_weight() },
            Entry::Weighted(text) => text,
        };
        Self(entries.into_iter().map(text).collect())
    }
}

impl From<TrainTexts> for Written {
    fn from(mut texts: TrainTexts) -> Self {
        if texts.0.is_empty() {
            return Self::One(PathBuf::new());
        }
        let entry = |text: TrainText| match text.weight == default_weight() {
            true => Entry::Path(text.path),
            false => Entry::Weighted(text),
        };
        match texts.0.len() == 1 && texts.0[0].weight == default_weight() {
            true => Self::One(texts.0.remove(0).path),
            false => Self::Several(texts.0.into_iter().map(entry).collect()),
        }
    }
}

impl From<&Path> for TrainTexts {
    fn from(path: &Path) -> Self {
        Written::One(path.into()).into()
    }
}

impl From<Vec<TrainText>> for TrainTexts {
    fn from(texts: Vec<TrainText>) -> Self {
        Self(texts)
    }
}

impl TrainTexts {
    /// The texts, in the order given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &TrainText> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TrainText> {
        self.0.iter_mut()
    }
}

impl fmt::Display for TrainTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, text) in self.0.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, text.path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_they_are_read() {
        let read = |toml: &str| -> Result<TrainTexts, String> {
            let mut table: toml::Table = toml::from_str(toml).unwrap();
            table.remove("train").unwrap().try_into().map_err(|error: toml::de::Error| error.to_string())
        };
        let cases = [
            (r#"train = "books/""#, vec![("books/", 1.0)]),
            (r#"train = ["a.txt", "b.txt"]"#, vec![("a.txt", 1.0), ("b.txt", 1.0)]),
            (r#"train = [{ path = "a", weight = 2 }, "b"]"#, vec![("a", 2.0), ("b", 1.0)]),
            (r#"train = [{ path = "a", weight = 0.5 }]"#, vec![("a", 0.5)]),
            (r#"train = [{ path = "a" }]"#, vec![("a", 1.0)]),
        ];
        for (toml, expected) in cases {
            let texts = read(toml).unwrap();
            let got: Vec<(&str, f64)> = texts.iter().map(|t| (t.path.to_str().unwrap(), t.weight)).collect();
            assert_eq!(got, expected, "{toml}");
            let json = serde_json::to_value(&texts).unwrap();
            assert_eq!(serde_json::from_value::<TrainTexts>(json).unwrap(), texts, "{toml}");
        }
        assert_eq!(
            serde_json::to_value(TrainTexts::from(Path::new("a"))).unwrap(),
            "a",
            "a single path is written as in files of earlier versions"
        );
        for wrong in ["train = 3", r#"train = [{ path = "a", wait = 2 }]"#] {
            let message = read(wrong).unwrap_err();
            assert!(message.contains("weight = 2"), "{message}");
        }
    }
}
