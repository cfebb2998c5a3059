//! The configuration of a run. Keys from TOML files and from the command line override those of presets, so that every
//! key has a value.

mod error;
mod layer;

use std::path::Path;

use falcon_base::nearest;
use falcon_nn::{MixerConfig, ModelConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::error::RunConfigError;
pub use self::layer::Layer;
use self::layer::{last_name, last_value};
use crate::data::{TOKENIZER_FILE, Tokenizer};
use crate::recipe::TrainConfig;
use crate::tasks::{TASKS, TaskConfig};

/// Name of the configuration file in a run's folder.
pub const RUN_FILE: &str = "config.toml";

/// The configuration of a run, with a value for every key.
#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    /// The preset that the model was derived from.
    pub preset: String,
    /// The size that the model was derived from.
    pub size: String,
    /// The model.
    pub model: ModelConfig,
    /// The task that the model is trained on.
    pub task: TaskConfig,
    /// The training recipe.
    pub train: TrainConfig,
}

/// A configuration that still lacks the model, because the size of the model's vocabulary is that of the task's
/// tokenizer. [`Draft::with_vocabulary`] adds the model once the tokenizer is open. To make a draft, only configuration
/// files are opened.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The preset that the model is derived from.
    pub preset: String,
    /// The size that the model is derived from.
    pub size: String,
    /// The task.
    pub task: TaskConfig,
    /// The training recipe.
    pub train: TrainConfig,
    layers: Vec<Layer>,
}

/// The sections of a configuration file.
const SECTIONS: [&str; 3] = ["model", "task", "train"];
/// The value that switches an option off, because TOML has no null.
const NONE: &str = "none";

impl Draft {
    /// Merges layers, later ones over earlier ones and all over the presets that they name.
    pub fn resolve(layers: &[Layer]) -> Result<Self, RunConfigError> {
        for layer in layers {
            for (section, values) in &layer.values {
                let from = layer.from.clone();
                if !SECTIONS.contains(&section.as_str()) {
                    let hint = nearest(section, SECTIONS);
                    return Err(RunConfigError::Unknown { from, key: section.clone(), hint });
                }
                if !values.is_object() {
                    let (key, value) = (section.clone(), values.to_string());
                    let what = "must be a section, as in [train]".into();
                    return Err(RunConfigError::Refused { from, key, value, what });
                }
            }
        }
        let task_name = last_name(layers, "task", "name", TASKS[0])?;
        let Some(task) = TaskConfig::preset(task_name) else {
            let hint = nearest(task_name, TASKS.iter().copied());
            return Err(RunConfigError::Name { what: "task", got: task_name.into(), hint });
        };
        let task = overlay("task", task, &["name"], layers)?;
        task.validate()?;
        let train: TrainConfig = overlay("train", task_recipe(&task, layers), &[], layers)?;
        train.validate()?;
        let preset = last_name(layers, "model", "preset", "falcon-3a.3")?.to_string();
        let size = last_name(layers, "model", "size", "tiny")?.to_string();
        Ok(Self { preset, size, task, train, layers: layers.to_vec() })
    }

    /// The configuration that resumes the run in a folder: its own, with the given keys over it. It uses the run's copy
    /// of the tokenizer unless another one is given.
    pub fn resumed(run: &Path, given: &[Layer]) -> Result<Self, RunConfigError> {
        let mut layers = vec![Layer::file(&run.join(RUN_FILE))?];
        for (section, key) in [("model", "preset"), ("model", "size"), ("task", "name")] {
            let (there, here) = (last_value(&layers, section, key), last_value(given, section, key));
            if let (Some(there), Some(here)) = (there, here)
                && there != here
            {
                let (there, here) = (there.to_string(), here.to_string());
                return Err(RunConfigError::OtherRun {
                    run: run.into(),
                    key: format!("{section}.{key}"),
                    there,
                    here,
                });
            }
        }
        let copy = run.join(TOKENIZER_FILE);
        if last_value(&layers, "task", "tokenizer").is_some() && copy.is_file() {
            layers.push(Layer::of("task", "tokenizer", copy.to_string_lossy().into_owned()));
        }
        layers.extend_from_slice(given);
        Self::resolve(&layers)
    }

    /// Completes the configuration with a model for a vocabulary of `tokens` tokens.
    pub fn with_vocabulary(self, tokens: usize) -> Result<RunConfig, RunConfigError> {
        let Self { preset, size, task, train, layers } = self;
        let model = preset_model(&preset, &size, tokens, &layers)?;
        let model = overlay("model", model, &["preset", "size"], &layers)?;
        model.validate()?;
        let config = RunConfig { preset, size, model, task, train };
        config.check_tokens(tokens)?;
        Ok(config)
    }

    /// Opens the tokenizer of the task and completes the configuration with its vocabulary.
    pub fn open(self) -> Result<(RunConfig, Tokenizer), RunConfigError> {
        let tokenizer = self.task.open_tokenizer()?;
        let config = self.with_vocabulary(tokenizer.size())?;
        Ok((config, tokenizer))
    }
}

impl RunConfig {
    /// Merges layers, later ones over earlier ones and all over the presets that they name. No file is opened. If the
    /// tokenizer is a file, the keys must therefore include `model.vocab_size`, as the configuration file of every run
    /// does; for a new run, [`Draft`] takes it from the tokenizer.
    pub fn resolve(layers: &[Layer]) -> Result<Self, RunConfigError> {
        let draft = Draft::resolve(layers)?;
        let given = || last_value(layers, "model", "vocab_size")?.as_u64().map(|tokens| tokens as usize);
        let tokens = draft.task.vocab_size().or_else(given).ok_or(RunConfigError::NoVocabulary)?;
        draft.with_vocabulary(tokens)
    }

    /// Refuses a tokenizer whose vocabulary is not that of the model.
    pub fn check_vocabulary(&self, tokenizer: &Tokenizer) -> Result<(), RunConfigError> {
        self.check_tokens(tokenizer.size())
    }

    fn check_tokens(&self, task: usize) -> Result<(), RunConfigError> {
        let got = self.model.vocab_size;
        if got == task { Ok(()) } else { Err(RunConfigError::Vocabulary { task, got }) }
    }

    /// Reads the file of a run.
    pub fn read(path: &Path) -> Result<Self, RunConfigError> {
        Self::resolve(&[Layer::file(path)?])
    }

    /// The configuration as a file, with every key.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "[model]\npreset = {:?}\nsize = {:?}\n{}",
            self.preset,
            self.size,
            section_to_toml(&self.model)
        );
        text += &format!("\n[task]\n{}\n[train]\n{}", section_to_toml(&self.task), section_to_toml(&self.train));
        text
    }

    /// The keys in which two configurations differ, with the values of both.
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        differences(&self.to_toml(), &other.to_toml()).expect("a written configuration can be read")
    }

    /// The same configuration with absolute paths, so that it does not depend on the working directory.
    pub fn with_absolute_paths(&self) -> Self {
        Self { task: self.task.with_absolute_paths(), train: self.train.with_absolute_paths(), ..self.clone() }
    }
}

/// The keys in which two configuration files differ: `section.key`, the value of the first, the value of the second. A
/// key that the first does not have is not compared: files of earlier versions have fewer keys.
pub(crate) fn differences(first: &str, second: &str) -> Result<Vec<(String, String, String)>, toml::de::Error> {
    let [first, second]: [toml::Table; 2] = [toml::from_str(first)?, toml::from_str(second)?];
    let mut differences = Vec::new();
    for (section, values) in first.iter().filter_map(|(section, values)| Some((section, values.as_table()?))) {
        for (key, value) in values {
            let now = second.get(section).and_then(|values| values.get(key));
            if now != Some(value) {
                let now = now.map_or_else(|| "unset".to_string(), toml::Value::to_string);
                differences.push((format!("{section}.{key}"), value.to_string(), now));
            }
        }
    }
    Ok(differences)
}

/// The default recipe of the task, before the keys of `[train]` are applied. A short run has a short warm-up.
fn task_recipe(task: &TaskConfig, layers: &[Layer]) -> TrainConfig {
    let mut train = task.recipe();
    if let Some(steps) = last_value(layers, "train", "steps").and_then(Value::as_u64) {
        train.schedule.warmup = train.schedule.warmup.min(steps / 10);
    }
    train
}

/// The model of a preset and size, before the keys of `[model]` are applied. If keys change the width or the number of
/// heads, the dimensions of the heads keep the preset's proportions.
fn preset_model(preset: &str, size: &str, tokens: usize, layers: &[Layer]) -> Result<ModelConfig, RunConfigError> {
    let mut model = ModelConfig::preset(preset, size, tokens)?;
    let number = |key| last_value(layers, "model", key).and_then(Value::as_u64).map(|value| value as usize);
    let (hidden, heads) = (number("hidden_size"), number("num_heads"));
    if (hidden.is_some() || heads.is_some()) && number("head_dim").is_none() {
        let (hidden, heads) = (hidden.unwrap_or(model.hidden_size), heads.unwrap_or(model.mixer.num_heads));
        model.mixer = MixerConfig::preset(preset, hidden, heads)?;
        model.hidden_size = hidden;
    }
    Ok(model)
}

/// Sets the keys of all layers one after the other, so that an error names the key. Keys in `names`, which have already
/// chosen the preset, are skipped.
fn overlay<T: Serialize + DeserializeOwned>(
    section: &str,
    config: T,
    names: &[&str],
    layers: &[Layer],
) -> Result<T, RunConfigError> {
    let mut config = config;
    for layer in layers {
        let Some(Value::Object(given)) = layer.values.get(section) else { continue };
        for (key, value) in given.iter().filter(|(key, _)| !names.contains(&key.as_str())) {
            let Ok(Value::Object(all)) = serde_json::to_value(&config) else {
                unreachable!("a configuration is a table")
            };
            let from = layer.from.clone();
            if !all.contains_key(key) {
                let names = names.iter().copied().filter(|name| !all.contains_key(*name));
                let known = all.keys().map(String::as_str).chain(names);
                let hint = nearest(key, known);
                return Err(RunConfigError::Unknown { from, key: format!("{section}.{key}"), hint });
            }
            let with_value = |value: Value| {
                let mut all = all.clone();
                all.insert(key.clone(), value);
                serde_json::from_value(Value::Object(all))
            };
            let off = (value.as_str() == Some(NONE)).then(|| with_value(Value::Null).ok()).flatten();
            config = match off.map_or_else(|| with_value(value.clone()), Ok) {
                Ok(config) => config,
                Err(source) => {
                    let (key, value) = (format!("{section}.{key}"), value.to_string());
                    return Err(RunConfigError::Value { from, key, value, source });
                }
            };
        }
    }
    Ok(config)
}

/// The keys of a section as TOML, in the order in which its type declares them.
fn section_to_toml<T: Serialize>(section: &T) -> String {
    let mut text = toml::to_string(section).expect("a configuration is plain data");
    // `toml` would begin a new section for every table in a list, so lists of tables are written as one line instead.
    if let Some(at) = text.find("[[") {
        text.truncate(at);
        let all = toml::Table::try_from(section).expect("a configuration is plain data");
        let in_lists =
            |value: &toml::Value| value.as_array().is_some_and(|list| list.iter().all(toml::Value::is_table));
        for (key, value) in all.iter().filter(|(_, value)| in_lists(value)) {
            text += &format!("{key} = {value}\n");
        }
    }
    if let Ok(Value::Object(all)) = serde_json::to_value(section) {
        for (key, _) in all.iter().filter(|(_, value)| value.is_null()) {
            text += &format!("{key} = {NONE:?}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use falcon_nn::PRESETS;

    use super::*;

    fn resolved(text: &str, sets: &[&str]) -> Result<RunConfig, RunConfigError> {
        let mut layers = vec![Layer::text("run.toml", text)?];
        for set in sets {
            layers.push(Layer::set(set)?);
        }
        RunConfig::resolve(&layers)
    }

    fn error_of(text: &str, sets: &[&str]) -> String {
        resolved(text, sets).unwrap_err().to_string()
    }

    #[test]
    fn a_written_configuration_resolves_to_itself() {
        for &preset in PRESETS {
            let config = resolved("", &[&format!("model.preset={preset}"), "train.lr=0.01"]).unwrap();
            let again = resolved(&config.to_toml(), &[]).unwrap();
            assert_eq!(config, again, "{preset}");
            assert!(config.differences(&again).is_empty());
        }
        let text = resolved("[task]\nname = \"text\"\ntrain = \"a b.txt\"", &["model.rope_theta=none"]).unwrap();
        assert_eq!(resolved(&text.to_toml(), &[]).unwrap(), text);
        for train in
            [r#"["a","b"]"#, r#"[{path="a",weight=2},"b"]"#, r#"[{path="a",weight=2},{path="b",weight=0.5}]"#]
        {
            let text = resolved("", &["task.name=text", &format!("task.train={train}")]).unwrap();
            assert_eq!(resolved(&text.to_toml(), &[]).unwrap(), text, "{}", text.to_toml());
        }
    }

    #[test]
    fn later_layers_override_earlier_ones_and_proportions_are_kept() {
        let file = "[model]\npreset = \"transformer\"\n[train]\nlr = 1e-4\nsteps = 50\nwarmup = 5";
        let config = resolved(file, &["train.lr=3e-4", "model.hidden_size=64", "task.mixture=uniform"]).unwrap();
        assert_eq!((config.train.schedule.lr, config.train.schedule.steps), (3e-4, 50));
        assert_eq!((config.model.hidden_size, config.model.mixer.head_dim), (64, 16));
        assert_eq!(config.model.vocab_size, 14);
        let off = resolved(file, &["model.rope_theta=none"]).unwrap();
        assert_eq!(off.model.mixer.rope_theta, None);
        let differences = config.differences(&off);
        let rope = differences.iter().find(|(key, ..)| key == "model.rope_theta").unwrap();
        assert_eq!((rope.1.as_str(), rope.2.as_str()), ("10000.0", "\"none\""));
        // A short run has a short warm-up, unless a key sets another.
        assert_eq!(resolved("", &["train.steps=50"]).unwrap().train.schedule.warmup, 5);
        let long = error_of("", &["train.steps=50", "train.warmup=60"]);
        assert_eq!(long, "train.warmup = 60 is longer than train.steps = 50; set it lower");
        // An integer is accepted where a number is expected.
        assert_eq!(resolved("[train]\nlr = 1", &[]).unwrap().train.schedule.lr, 1.0);
    }

    #[test]
    fn errors_name_wrong_keys_and_values() {
        assert_eq!(
            error_of("[train]\nlearning = 1", &[]),
            "run.toml: unknown key train.learning; known are accumulate, batch, beta1, beta2, clip, eps, eval_every, final_fraction, init_from, keep, lr, save_every, seed, spike, steps, warmup, weight_decay"
        );
        assert!(
            error_of("", &["train.warmupp=3"])
                .contains("--set train.warmupp=3: unknown key train.warmupp; did you mean \"warmup\"?")
        );
        assert!(error_of("[trian]\nlr = 1", &[]).contains("did you mean \"train\"?"));
        assert!(error_of("train = 3", &[]).contains("must be a section"));
        assert!(error_of("", &["train.steps=many"]).contains("train.steps = \"many\": invalid type: string"));
        assert!(error_of("", &["train.steps=-5"]).contains("train.steps = -5"));
        assert!(error_of("", &["train.lr=-5"]).contains("train.lr must be above 0, got -5"));
        assert!(error_of("", &["train.lr=nan"]).contains("train.lr = NaN is not a finite number"));
        assert!(error_of("[train]\nlr = inf", &[]).contains("train.lr = inf is not a finite number"));
        assert!(error_of("", &["model.size=340"]).contains("this is a name"));
        assert!(error_of("", &["train.steps=9223372036854775808"]).contains("train.steps"));
        assert!(error_of("", &["train.batch=9000000000"]).contains("train.batch must be from 1 to"));
        assert!(error_of("", &["lr=-5"]).contains("section.key=value"));
        assert!(error_of("", &["model.preset=falcon-4"]).contains("did you mean"));
        assert!(error_of("", &["model.size=huge"]).contains("tiny"));
        assert!(error_of("", &["task.name=adition"]).contains("did you mean \"addition\"?"));
        assert!(error_of("", &["model.decay=lambada"]).contains("`lambda`"));
        assert!(error_of("", &["model.vocab_size=99"]).contains("must be 14"));
        assert!(error_of("", &["task.order=forward"]).contains("expected `all-reversed` or `sum-reversed`"));
        assert!(error_of("", &["model.hidden_size=30"]).contains("multiple of num_heads = 4"));
        assert!(error_of("[train\nlr = 1", &[]).contains("run.toml"));
        assert!(error_of("", &["train.batch=0"]).contains("train.batch must be from 1 to"));
    }
}
