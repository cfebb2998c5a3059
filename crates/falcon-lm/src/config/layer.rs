//! Layers of a configuration: keys and values from one file or argument, to be merged over those of presets.

use std::path::Path;

use falcon_base::AtPath;
use falcon_nn::ModelConfig;
use serde_json::{Map, Value};

use super::error::RunConfigError;

/// Keys and values from one file or argument.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(super) from: String,
    pub(super) values: Map<String, Value>,
}

impl Layer {
    /// Reads a TOML file.
    pub fn file(path: &Path) -> Result<Self, RunConfigError> {
        let text = std::fs::read_to_string(path).at(path)?;
        Self::text(&path.display().to_string(), &text)
    }

    /// Parses TOML; errors call it `from`.
    pub fn text(from: &str, text: &str) -> Result<Self, RunConfigError> {
        let toml = |source| RunConfigError::Toml { from: from.into(), source };
        let table: toml::Table = toml::from_str(text).map_err(toml)?;
        let table = toml::Value::Table(table);
        refuse_non_finite(&table, "", from)?;
        match serde_json::to_value(table) {
            Ok(Value::Object(values)) => Ok(Self { from: from.into(), values }),
            _ => unreachable!("a table of finite values is a JSON object"),
        }
    }

    /// Parses `section.key=value`, the argument of `--set`. A value that is not TOML is taken as text.
    pub fn set(argument: &str) -> Result<Self, RunConfigError> {
        let from = format!("--set {argument}");
        let parts = argument.split_once('=').and_then(|(path, value)| Some((path.trim().split_once('.')?, value)));
        let Some(((section, key), value)) = parts else {
            return Err(RunConfigError::Argument { from });
        };
        let parsed = toml::from_str::<toml::Table>(&format!("value = {value}")).ok();
        let value = match parsed.and_then(|mut table| table.remove("value")) {
            // No key takes a date, so a value that looks like a date is a name.
            None | Some(toml::Value::Datetime(_)) => Value::from(value.trim()),
            Some(parsed) => {
                refuse_non_finite(&parsed, &format!("{section}.{key}"), &from)?;
                serde_json::to_value(parsed).expect("a TOML value is plain data")
            }
        };
        Ok(Self { from, ..Self::of(section, key, value) })
    }

    /// Whether this layer sets a key.
    pub fn has(&self, section: &str, key: &str) -> bool {
        self.values.get(section).is_some_and(|values| values.get(key).is_some())
    }

    /// The error that a key of this layer cannot be used. Its text ends with "this is `what`".
    pub fn refused(&self, section: &str, key: &str, what: &str) -> RunConfigError {
        let value = self.values.get(section).and_then(|values| values.get(key));
        RunConfigError::Refused {
            from: self.from.clone(),
            key: format!("{section}.{key}"),
            value: value.map_or_else(String::new, Value::to_string),
            what: format!("this is {what}"),
        }
    }

    /// A layer with one key of this one.
    pub fn only(&self, section: &str, key: &str) -> Option<Self> {
        let value = self.values.get(section)?.get(key)?.clone();
        Some(Self { from: self.from.clone(), ..Self::of(section, key, value) })
    }

    /// All keys of a model except for the size of its vocabulary, which follows from the task. Errors call it `from`.
    pub fn model(from: &str, model: &ModelConfig) -> Self {
        let Ok(Value::Object(mut keys)) = serde_json::to_value(model) else {
            unreachable!("a configuration is a table")
        };
        keys.remove("vocab_size");
        Self { from: from.into(), values: Map::from_iter([("model".to_string(), Value::Object(keys))]) }
    }

    /// A layer with a single key.
    pub fn of(section: &str, key: &str, value: impl Into<Value>) -> Self {
        let section_values = Map::from_iter([(key.to_string(), value.into())]);
        let values = Map::from_iter([(section.to_string(), Value::Object(section_values))]);
        Self { from: format!("{section}.{key}"), values }
    }
}

/// The value of a key in the last layer that sets it.
pub(super) fn last_value<'a>(layers: &'a [Layer], section: &str, key: &str) -> Option<&'a Value> {
    layers.iter().rev().find_map(|layer| layer.values.get(section)?.get(key))
}

/// The value of a key that takes a name.
pub(super) fn last_name<'a>(
    layers: &'a [Layer],
    section: &str,
    key: &str,
    default: &'a str,
) -> Result<&'a str, RunConfigError> {
    match last_value(layers, section, key) {
        None => Ok(default),
        Some(Value::String(name)) => Ok(name),
        Some(_) => {
            let layer = layers.iter().rev().find(|layer| layer.has(section, key)).expect("a layer sets the key");
            Err(layer.refused(section, key, "a name: put it in quotes"))
        }
    }
}

/// Refuses infinities and NaN, which would become null in JSON, the form in which layers are merged.
fn refuse_non_finite(value: &toml::Value, key: &str, from: &str) -> Result<(), RunConfigError> {
    match value {
        toml::Value::Float(got) if !got.is_finite() => {
            Err(RunConfigError::NotFinite { from: from.into(), key: key.into(), got: *got })
        }
        toml::Value::Table(table) => table.iter().try_for_each(|(name, value)| {
            let separator = if key.is_empty() { "" } else { "." };
            refuse_non_finite(value, &format!("{key}{separator}{name}"), from)
        }),
        toml::Value::Array(values) => values.iter().try_for_each(|value| refuse_non_finite(value, key, from)),
        _ => Ok(()),
    }
}
