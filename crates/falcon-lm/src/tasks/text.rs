//! The next token of text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Batch, Moment, Split, Task, TaskError, VALIDATION, check, rng};
use crate::data::{Source, Tokenizer, Tokens, Totals, cache_folder};
use crate::evaluate::TextScore;
use crate::train::Scores;

/// Options of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextConfig {
    /// The file or folder to learn from.
    pub train: PathBuf,
    /// The one to be measured on. Without one, the last twentieth of the other is kept back.
    pub valid: PathBuf,
    /// `bytes`, a `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    pub tokenizer: String,
    /// Tokens of a sequence.
    pub length: usize,
    /// Sequences in a measurement, at most.
    pub eval_sequences: usize,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            train: PathBuf::new(),
            valid: PathBuf::new(),
            tokenizer: "bytes".into(),
            length: 256,
            eval_sequences: 64,
        }
    }
}

impl TextConfig {
    /// The same with absolute paths. `bytes` names no file.
    pub fn with_absolute_paths(&self) -> Self {
        let absolute = |path: &Path| match path.as_os_str().is_empty() {
            true => path.to_path_buf(),
            false => std::path::absolute(path).unwrap_or_else(|_| path.into()),
        };
        let tokenizer = match self.tokenizer.as_str() {
            "bytes" => self.tokenizer.clone(),
            name => absolute(Path::new(name)).to_string_lossy().into_owned(),
        };
        Self { train: absolute(&self.train), valid: absolute(&self.valid), tokenizer, ..self.clone() }
    }

    /// Everything that can be wrong but for the files.
    pub fn validate(&self) -> Result<(), TaskError> {
        check("length", (1..=1 << 20).contains(&self.length), "from 1 to 1048576", self.length)?;
        check("eval_sequences", self.eval_sequences > 0, "at least 1", self.eval_sequences)
    }
}

/// Text, as tokens.
#[derive(Debug)]
pub(crate) struct Text {
    config: TextConfig,
    tokenizer: Tokenizer,
    train: Tokens,
    /// None if the end of the other is kept back.
    valid: Option<Tokens>,
    /// Tokens of `train` to learn from.
    learnt: usize,
    /// The order of the windows in the pass over the text that was drawn from last: the seed and the pass it is of.
    order: Option<(u64, u64, Vec<u32>)>,
}

impl Text {
    /// Reads the files, or what was made of them before. `progress` is told the bytes of text made into tokens.
    pub fn open(config: &TextConfig, progress: &mut dyn FnMut(usize) -> bool) -> Result<Self, TaskError> {
        Self::open_in(config, &cache_folder(), progress)
    }

    fn open_in(
        config: &TextConfig,
        cache: &Path,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, TaskError> {
        if config.train.as_os_str().is_empty() {
            return Err(TaskError::NoData { name: "train" });
        }
        let tokenizer = Tokenizer::open(&config.tokenizer).map_err(TaskError::Tokenizer)?;
        let mut open = |name: &'static str, path: &Path| {
            let data = |error| TaskError::Data { name, error: Box::new(error) };
            let source = Source::open(path).map_err(|error| data(error.into()))?;
            Tokens::open(&source, &tokenizer, cache, progress).map_err(data)
        };
        let train = open("train", &config.train)?;
        let valid = match config.valid.as_os_str().is_empty() {
            true => None,
            false => Some(open("valid", &config.valid)?),
        };
        if let Some(path) = valid.as_ref().and_then(|valid| valid.shared_file(&train)) {
            return Err(TaskError::Overlap { path: path.to_string() });
        }
        let all = train.totals().tokens;
        let learnt = if valid.is_some() { all } else { all - all / 20 };
        let text = Self { config: config.clone(), tokenizer, train, valid, learnt, order: None };
        let needed = config.length + 1;
        let of = |path: &Path| path.display().to_string();
        let (from, to) = text.held_out();
        let (train, valid) = (of(&config.train), of(&config.valid));
        let (train, valid) = match text.valid {
            Some(_) => (train, valid),
            None => (format!("{train} but for its last twentieth"), format!("the last twentieth of {train}")),
        };
        for (name, what, got) in [("train", train, learnt), ("valid", valid, to - from)] {
            if got < needed {
                return Err(TaskError::Short { name, what, got, needed });
            }
        }
        // Windows are numbered in 32 bits.
        check("length", learnt / config.length <= u32::MAX as usize, "longer, for as much text", config.length)?;
        Ok(text)
    }

    /// The tokens to be measured on: from and to, of [`Text::measured`].
    fn held_out(&self) -> (usize, usize) {
        match &self.valid {
            Some(valid) => (0, valid.totals().tokens),
            None => (self.learnt, self.train.totals().tokens),
        }
    }

    fn measured(&self) -> &Tokens {
        self.valid.as_ref().unwrap_or(&self.train)
    }

    /// The window at which sequence number `index` of a run begins: every pass over the text takes all windows once, in an order of its own.
    fn window(&mut self, seed: u64, index: u64) -> usize {
        let windows = (self.learnt - 1) / self.config.length;
        let (pass, place) = (index / windows as u64, (index % windows as u64) as usize);
        let order = match &mut self.order {
            Some((of, at, order)) if (*of, *at) == (seed, pass) => order,
            order => {
                let mut fresh: Vec<u32> = (0..windows as u32).collect();
                fresh.shuffle(&mut rng(seed, pass.into()));
                &mut order.insert((seed, pass, fresh)).2
            }
        };
        order[place] as usize * self.config.length
    }
}

/// A window of text as sequences: a document that begins in it is one of its own, so that no state reaches over from the one before.
fn sequences(tokens: &Tokens, start: usize, length: usize) -> Vec<(Vec<i32>, Vec<i64>)> {
    let window = tokens.get(start..start + length + 1);
    let documents = tokens.documents();
    let first = documents.partition_point(|document| *document <= start);
    let inside = documents[first..].iter().map(|document| document - start).take_while(|at| *at < length);
    let cuts: Vec<usize> = std::iter::once(0).chain(inside).chain([length]).collect();
    let part = |cut: &[usize]| {
        let read = window[cut[0]..cut[1]].iter().map(|token| *token as i32).collect();
        (read, window[cut[0] + 1..=cut[1]].iter().map(|token| i64::from(*token)).collect())
    };
    cuts.windows(2).map(part).collect()
}

/// Name of the measure that does not depend on the tokenizer.
pub(crate) const BITS_PER_BYTE: &str = "bits per byte";

/// Perplexities by what text is counted in, of a loss by token: a tokenizer of fewer, longer tokens has a larger one by token alone. How many
/// tokens a byte and a word have is that of the whole text, of which a measurement may take a part.
fn perplexities(loss: f64, totals: Totals) -> BTreeMap<String, f64> {
    let Totals { tokens, documents, bytes, words } = totals;
    let tokens = tokens - documents;
    let score = TextScore { nats: loss * tokens as f64, tokens, bytes, words };
    let of = [
        ("token", score.token_perplexity()),
        ("byte", score.byte_perplexity()),
        ("word", score.word_perplexity()),
    ];
    // A "word" of many bytes, as in Chinese, can be too unlikely for a number; and JSON has no infinity.
    let of = of.into_iter().map(|(unit, perplexity)| (format!("{unit} perplexity"), perplexity));
    let all = of.chain([(BITS_PER_BYTE.to_string(), score.bits_per_byte())]);
    all.filter(|(_, value)| value.is_finite()).collect()
}

impl Task for Text {
    fn batch(&mut self, moment: Moment, count: usize) -> Batch {
        let first = moment.step * count as u64;
        let starts: Vec<usize> = (0..count as u64).map(|i| self.window(moment.seed, first + i)).collect();
        Batch::new(starts.into_iter().flat_map(|start| sequences(&self.train, start, self.config.length)))
    }

    fn splits(&self) -> Vec<Split> {
        let (length, (from, to)) = (self.config.length, self.held_out());
        let windows = (to - from - 1) / length;
        // Spread over the whole text, whatever it is about.
        let count = windows.min(self.config.eval_sequences);
        let starts = (0..count).map(|i| from + i * windows / count * length);
        let batch = Batch::new(starts.flat_map(|start| sequences(self.measured(), start, length)));
        vec![Split { name: VALIDATION.into(), groups: vec![(String::new(), batch)] }]
    }

    fn score(&self, validation: &Scores) -> f64 {
        -validation.loss
    }

    fn about(&self, scores: &Scores) -> BTreeMap<String, f64> {
        perplexities(scores.loss, self.measured().totals())
    }

    fn epoch(&self) -> Option<usize> {
        Some(self.learnt)
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        Some(&self.tokenizer)
    }

    /// What was read, so that a run does not go on with other text under the same name.
    fn state(&self) -> Value {
        let valid = self.valid.as_ref().map(Tokens::fingerprint);
        json!({ "train": self.train.fingerprint(), "valid": valid, "tokenizer": self.tokenizer.fingerprint() })
    }

    fn restore(&mut self, state: Value) -> Result<(), TaskError> {
        let now = self.state();
        let of = [
            ("tokenizer", PathBuf::from(&self.config.tokenizer)),
            ("train", self.config.train.clone()),
            ("valid", self.config.valid.clone()),
        ];
        match of.into_iter().find(|(name, _)| state[*name] != now[*name]) {
            Some((name, path)) => Err(TaskError::Changed { name, path }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens are kept in a folder of the test, not of the user.
    fn text(files: &[(&str, &str)], length: usize) -> Result<Text, TaskError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let config = TextConfig { train: folder.path().into(), length, ..TextConfig::default() };
        Text::open_in(&config, &folder.path().join("cache"), &mut |_| true)
    }

    fn letters(count: usize) -> String {
        (0..count).map(|i| char::from(b'a' + (i % 26) as u8)).collect()
    }

    #[test]
    fn a_pass_takes_every_window_once() {
        let mut text = text(&[("a.txt", &letters(239))], 10).unwrap();
        assert_eq!((text.learnt, text.held_out()), (228, (228, 240)));
        let mut starts = |pass: u64| -> Vec<usize> { (0..22).map(|i| text.window(3, pass * 22 + i)).collect() };
        let (first, second) = (starts(0), starts(1));
        let sorted = |mut starts: Vec<usize>| {
            starts.sort_unstable();
            starts
        };
        assert_ne!(first, second, "in an order of its own");
        assert_eq!(sorted(first), (0..22).map(|i| 10 * i).collect::<Vec<_>>());
        assert_eq!(sorted(second), (0..22).map(|i| 10 * i).collect::<Vec<_>>());
    }

    /// What a run that goes on depends on: also within a pass, and after one.
    #[test]
    fn a_batch_depends_on_the_moment_alone() {
        let fresh = || text(&[("a.txt", &letters(239))], 10).unwrap();
        let at = |text: &mut Text, step| text.batch(Moment { seed: 3, step, steps: 30 }, 4);
        let mut through = fresh();
        for step in 0..18 {
            assert_eq!(at(&mut through, step), at(&mut fresh(), step), "step {step}");
        }
        assert_eq!(at(&mut through, 2), at(&mut fresh(), 2), "back again");
    }

    #[test]
    fn documents_are_sequences_of_their_own() {
        let files = [("a.txt", "abc"), ("b.txt", "defghij"), ("c.txt", &letters(200))];
        let text = text(&files, 8).unwrap();
        // | a b c | d e f g h i j |
        assert_eq!(
            sequences(&text.train, 0, 8),
            [(vec![256, 97, 98, 99], vec![97, 98, 99, 256]), (vec![256, 100, 101, 102], vec![100, 101, 102, 103]),]
        );
        assert_eq!(sequences(&text.train, 8, 4), [(vec![103, 104, 105, 106], vec![104, 105, 106, 256])]);
        assert_eq!(sequences(&text.train, 12, 1), [(vec![256], vec![97])], "also where one begins a window");
    }

    #[test]
    fn targets_are_the_next_tokens() {
        let mut text = text(&[("a.txt", &letters(255))], 4).unwrap();
        let batch = text.batch(Moment { seed: 1, step: 5, steps: 9 }, 3);
        assert_eq!(batch.sequences.lengths().collect::<Vec<_>>(), [4, 4, 4]);
        let next = |token: i32| if token == 122 { 97 } else { i64::from(token) + 1 };
        let follows = |(token, target): (&i32, &i64)| *token == 256 || next(*token) == *target;
        assert!(batch.tokens.iter().zip(&batch.targets).all(follows));
        let splits = text.splits();
        assert_eq!(
            splits[0].groups[0].1.tokens[..2],
            text.train.get(244..246).iter().map(|t| *t as i32).collect::<Vec<_>>()
        );
    }

    #[test]
    fn perplexity_is_counted_in_tokens_bytes_and_words() {
        let totals = Totals { tokens: 11, documents: 1, bytes: 40, words: 5 };
        let of = perplexities(2f64.ln(), totals);
        let values = ["token", "byte", "word"].map(|unit| of[&format!("{unit} perplexity")]);
        let expected = [2.0, 2f64.powf(0.25), 4.0];
        assert!(values.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-12), "{of:?}");
        let long = perplexities(5.0, Totals { tokens: 2001, documents: 1, bytes: 2000, words: 1 });
        assert_eq!(long.into_keys().collect::<Vec<_>>(), ["bits per byte", "byte perplexity", "token perplexity"]);
    }

    #[test]
    fn what_is_measured_is_not_learnt() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.txt", "valid.txt"] {
            std::fs::write(folder.path().join(name), letters(100)).unwrap();
        }
        let valid = folder.path().join("valid.txt");
        let config = TextConfig { train: folder.path().into(), valid, length: 4, ..TextConfig::default() };
        let said = Text::open_in(&config, &folder.path().join("cache"), &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("valid.txt is in task.train too"), "{said}");
    }

    #[test]
    fn another_text_under_the_same_name_is_noticed() {
        let mut one = text(&[("a.txt", &letters(256))], 4).unwrap();
        let state = one.state();
        assert!(one.restore(state.clone()).is_ok());
        let said = text(&[("a.txt", &letters(250))], 4).unwrap().restore(state).unwrap_err().to_string();
        assert!(said.contains("task.train") && said.contains("has changed since the run began"), "{said}");
    }

    #[test]
    fn files_that_do_not_do_say_why() {
        let said = text(&[("a.txt", &letters(29))], 64).unwrap_err().to_string();
        assert!(
            said.contains("task.train") && said.contains("but for its last twentieth has 29 tokens"),
            "{said}"
        );
        let missing = TextConfig { train: "no/such/file.txt".into(), ..TextConfig::default() };
        let said = Text::open(&missing, &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("no/such/file.txt") && said.contains("task.train"), "{said}");
        let said = Text::open(&TextConfig::default(), &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("--set task.train="), "{said}");
        let other = TextConfig { tokenizer: "no/such/folder".into(), ..missing };
        let said = Text::open(&other, &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("task.tokenizer") && said.contains("no/such/folder"), "{said}");
    }
}
