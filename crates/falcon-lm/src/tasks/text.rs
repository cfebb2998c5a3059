//! The next token of text.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::texts::TrainTexts;
use super::{Batch, Moment, Split, Task, TaskError, VALIDATION, check, rng};
use crate::data::{Check, STDIN, Source, Tokenizer, Tokens, Totals, cache_folder, keep_text};
use crate::evaluate::TextScore;
use crate::train::Scores;

/// Options of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextConfig {
    /// What to learn from.
    pub train: TrainTexts,
    /// The file or folder to be measured on. Without one, the last twentieth of every text is kept back.
    pub valid: PathBuf,
    /// `bytes`, a `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    pub tokenizer: String,
    /// Tokens of a sequence.
    pub length: usize,
    /// Sequences in a measurement, at most.
    pub eval_sequences: usize,
    /// How much is read to find out whether files are what they were. It does not change what a run does.
    #[serde(skip)]
    pub check: Check,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            train: TrainTexts::default(),
            valid: PathBuf::new(),
            tokenizer: "bytes".into(),
            length: 256,
            eval_sequences: 64,
            check: Check::Sampled,
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
        let mut train = self.train.clone();
        // `-` is standard input.
        let named = train.iter_mut().filter(|text| text.path != Path::new(STDIN));
        named.for_each(|text| text.path = absolute(&text.path));
        Self { train, valid: absolute(&self.valid), tokenizer, ..self.clone() }
    }

    /// Everything that can be wrong but for the files.
    pub fn validate(&self) -> Result<(), TaskError> {
        check("length", (1..=1 << 20).contains(&self.length), "from 1 to 1048576", self.length)?;
        check("eval_sequences", self.eval_sequences > 0, "at least 1", self.eval_sequences)?;
        for text in self.train.iter() {
            let (weight, path) = (text.weight, text.path.display());
            let good = weight > 0.0 && weight <= MOST_WEIGHT;
            check("train", good, "of weights above 0 and up to 1000", format!("{weight} for {path}"))?;
        }
        Ok(())
    }

    /// Reads standard input if it is one of the texts to learn from, and keeps it in a file that takes its place. The
    /// file is named by its contents: the same text given again is the same configuration.
    pub fn keep_stdin(&mut self, input: impl std::io::Read) -> Result<(), TaskError> {
        let wrong = |error| TaskError::Data { name: "train", error: Box::new(error) };
        let mut given = self.train.iter_mut().filter(|text| text.path == Path::new(STDIN));
        if let Some(text) = given.next() {
            text.path = keep_text(input, &cache_folder().map_err(wrong)?).map_err(wrong)?;
        }
        match given.next() {
            Some(_) => check("train", false, "of standard input once", STDIN),
            None => Ok(()),
        }
    }
}

/// A text that is a thousand times as important as another would be nearly all there is to learn.
const MOST_WEIGHT: f64 = 1000.0;

/// Text, as tokens.
#[derive(Debug)]
pub(crate) struct Text {
    config: TextConfig,
    tokenizer: Tokenizer,
    train: Vec<Part>,
    /// None if the ends of the others are kept back.
    valid: Option<Tokens>,
    /// The order of the windows in the pass over the text that was drawn from last: the seed and the pass it is of.
    order: Option<(u64, u64, Vec<u32>)>,
}

/// One of the texts to learn from.
#[derive(Debug)]
struct Part {
    tokens: Tokens,
    /// Tokens to learn from.
    learnt: usize,
    /// Windows of these.
    windows: u64,
    /// Windows that a pass takes.
    drawn: u64,
}

impl Part {
    fn new(tokens: Tokens, learnt: usize, length: usize, weight: f64) -> Self {
        let windows = (learnt.saturating_sub(1) / length) as u64;
        let drawn = ((windows as f64 * weight).round() as u64).max(1);
        Self { tokens, learnt, windows, drawn }
    }

    /// The window that is number `place` of those that a pass takes. Passes that do not take all go on where the one
    /// before ended, by steps that spread each of them over the whole text.
    fn window(&self, pass: u64, place: u64) -> u64 {
        let number = (u128::from(pass) * u128::from(self.drawn) + u128::from(place)) % u128::from(self.windows);
        match self.drawn.is_multiple_of(self.windows) {
            true => number as u64,
            false => (number * u128::from(stride(self.windows)) % u128::from(self.windows)) as u64,
        }
    }
}

/// A step that visits all of `count` places before one of them again, with neighbours in time far apart.
fn stride(count: u64) -> u64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let coprime = |step: &u64| {
        let (mut a, mut b) = (count, *step);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    (((count as f64 * GOLDEN) as u64).max(1)..).find(coprime).expect("a number without a common divisor")
}

impl Text {
    /// Reads the files, or what was made of them before. `progress` is told the bytes of text made into tokens.
    pub fn open(config: &TextConfig, progress: &mut dyn FnMut(usize) -> bool) -> Result<Self, TaskError> {
        let folder = cache_folder().map_err(|error| TaskError::Data { name: "train", error: Box::new(error) })?;
        Self::open_in(config, &folder, progress)
    }

    fn open_in(
        config: &TextConfig,
        cache: &Path,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, TaskError> {
        let nameless = config.train.iter().any(|text| text.path.as_os_str().is_empty());
        if nameless || config.train.iter().len() == 0 {
            return Err(TaskError::NoData { name: "train" });
        }
        let tokenizer = Tokenizer::open(&config.tokenizer).map_err(TaskError::Tokenizer)?;
        let mut open = |name: &'static str, path: &Path| {
            let data = |error| TaskError::Data { name, error: Box::new(error) };
            if path.parent() == Some(cache) && !path.exists() {
                return Err(TaskError::StdinGone { path: path.into() });
            }
            let source = Source::find(path, &mut || progress(0)).map_err(|error| data(error.into()))?;
            Tokens::open(&source, &tokenizer, cache, config.check, progress).map_err(data)
        };
        let all: Vec<Tokens> =
            config.train.iter().map(|text| open("train", &text.path)).collect::<Result<_, _>>()?;
        let valid = match config.valid.as_os_str().is_empty() {
            true => None,
            false => Some(open("valid", &config.valid)?),
        };
        for (index, tokens) in all.iter().enumerate() {
            if let Some(path) = valid.as_ref().and_then(|valid| valid.shared_file(tokens)) {
                return Err(TaskError::Overlap { path: path.to_string() });
            }
            if let Some(path) = all[..index].iter().find_map(|other| other.shared_file(tokens)) {
                return Err(TaskError::Twice { path: path.to_string() });
            }
        }
        let held_out = |tokens: &Tokens| if valid.is_some() { 0 } else { tokens.totals().tokens / 20 };
        let part = |(tokens, weight): (Tokens, f64)| {
            let learnt = tokens.totals().tokens - held_out(&tokens);
            Part::new(tokens, learnt, config.length, weight)
        };
        let train = all.into_iter().zip(config.train.iter().map(|text| text.weight)).map(part).collect();
        let text = Self { config: config.clone(), tokenizer, train, valid, order: None };
        text.check_lengths()?;
        Ok(text)
    }

    /// Refuses texts that have no sequence to learn from or to be measured on.
    fn check_lengths(&self) -> Result<(), TaskError> {
        let (config, needed) = (&self.config, self.config.length + 1);
        let but = if self.valid.is_some() { "" } else { " but for its last twentieth" };
        for (part, text) in self.train.iter().zip(config.train.iter()) {
            if part.learnt < needed {
                let what = format!("{}{but}", text.path.display());
                return Err(TaskError::Short { name: "train", what, got: part.learnt, needed });
            }
        }
        let longest = self.held_out().into_iter().map(|(_, range)| range.len()).max().unwrap_or(0);
        if longest < needed {
            let what = match self.valid {
                Some(_) => config.valid.display().to_string(),
                None => format!("the last twentieth of {}", config.train),
            };
            return Err(TaskError::Short { name: "valid", what, got: longest, needed });
        }
        // Windows are numbered in 32 bits.
        let drawn: u64 = self.train.iter().map(|part| part.drawn).sum();
        check("length", drawn <= u32::MAX.into(), "longer, for as much text", config.length)
    }

    /// The tokens to be measured on.
    fn held_out(&self) -> Vec<(&Tokens, Range<usize>)> {
        match &self.valid {
            Some(valid) => vec![(valid, 0..valid.totals().tokens)],
            None => {
                let end = |part: &Part| part.learnt..part.tokens.totals().tokens;
                self.train.iter().map(|part| (&part.tokens, end(part))).collect()
            }
        }
    }

    /// The text that sequence number `index` of a run is from, and where it begins there: every pass over the texts
    /// takes all windows, as often as their text's weight says, in an order of its own.
    fn window(&mut self, seed: u64, index: u64) -> (usize, usize) {
        let all: u64 = self.train.iter().map(|part| part.drawn).sum();
        let (pass, place) = (index / all, (index % all) as usize);
        let order = match &mut self.order {
            Some((of, at, order)) if (*of, *at) == (seed, pass) => order,
            order => {
                let mut fresh: Vec<u32> = (0..all as u32).collect();
                fresh.shuffle(&mut rng(seed, pass.into()));
                &mut order.insert((seed, pass, fresh)).2
            }
        };
        let mut place = u64::from(order[place]);
        for (index, part) in self.train.iter().enumerate() {
            if place < part.drawn {
                return (index, part.window(pass, place) as usize * self.config.length);
            }
            place -= part.drawn;
        }
        unreachable!("a pass has no more places than its texts")
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
        let (first, length) = (moment.step * count as u64, self.config.length);
        let starts: Vec<_> = (0..count as u64).map(|i| self.window(moment.seed, first + i)).collect();
        Batch::new(starts.into_iter().flat_map(|(part, start)| sequences(&self.train[part].tokens, start, length)))
    }

    fn splits(&self) -> Vec<Split> {
        let (length, held_out) = (self.config.length, self.held_out());
        let windows_of = |range: &Range<usize>| range.len().saturating_sub(1) / length;
        let windows: usize = held_out.iter().map(|(_, range)| windows_of(range)).sum();
        // Spread over all of the text, whatever it is about.
        let count = windows.min(self.config.eval_sequences);
        let sequence = |i: usize| {
            let mut window = i * windows / count;
            for (tokens, range) in &held_out {
                let here = windows_of(range);
                if window < here {
                    return sequences(tokens, range.start + window * length, length);
                }
                window -= here;
            }
            unreachable!("there are no more windows")
        };
        let batch = Batch::new((0..count).flat_map(sequence));
        vec![Split { name: VALIDATION.into(), groups: vec![(String::new(), batch)] }]
    }

    fn score(&self, validation: &Scores) -> f64 {
        -validation.loss
    }

    fn about(&self, scores: &Scores) -> BTreeMap<String, f64> {
        let all = self.held_out().into_iter().map(|(tokens, _)| tokens.totals());
        perplexities(scores.loss, all.fold(Totals::default(), Totals::plus))
    }

    fn epoch(&self) -> Option<usize> {
        Some(self.train.iter().map(|part| part.drawn as usize).sum::<usize>() * self.config.length)
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        Some(&self.tokenizer)
    }

    /// What was read, so that a run does not go on with other text under the same name.
    fn state(&self) -> Value {
        let valid = self.valid.as_ref().map(Tokens::fingerprint);
        let train: Vec<&str> = self.train.iter().map(|part| part.tokens.fingerprint()).collect();
        // A single text is recorded as it was before there could be several.
        let train = if let [one] = train[..] { json!(one) } else { json!(train) };
        let mut state = json!({ "train": train, "valid": valid, "tokenizer": self.tokenizer.fingerprint() });
        let weights: Vec<f64> = self.config.train.iter().map(|text| text.weight).collect();
        if weights.iter().any(|weight| *weight != 1.0) {
            state["weights"] = json!(weights);
        }
        state
    }

    fn restore(&mut self, state: Value) -> Result<(), TaskError> {
        let now = self.state();
        let of = [
            ("tokenizer", PathBuf::from(&self.config.tokenizer)),
            ("train", self.config.train.to_string().into()),
            ("weights", self.config.train.to_string().into()),
            ("valid", self.config.valid.clone()),
        ];
        match of.into_iter().find(|(name, _)| state.get(*name) != now.get(*name)) {
            Some(("weights", _)) => Err(TaskError::Weights),
            Some((name, path)) => Err(TaskError::Changed { name, path }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TrainText;
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
        assert_eq!((text.train[0].learnt, text.held_out()[0].1.clone()), (228, 228..240));
        let mut starts = |pass: u64| -> Vec<usize> { (0..22).map(|i| text.window(3, pass * 22 + i).1).collect() };
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

    /// What runs drew before there could be several texts: a shuffle of all windows for every pass.
    #[test]
    fn a_single_text_is_drawn_as_ever() {
        let mut text = text(&[("a.txt", &letters(239))], 10).unwrap();
        for pass in 0..3 {
            let mut expected: Vec<u32> = (0..22).collect();
            expected.shuffle(&mut rng(3, pass));
            let got: Vec<usize> = (0..22).map(|i| text.window(3, pass as u64 * 22 + i).1).collect();
            assert_eq!(got, expected.iter().map(|window| *window as usize * 10).collect::<Vec<_>>());
        }
    }

    /// Texts of 22 and 10 windows, of which a pass takes so many of each.
    fn weighted(weights: [f64; 2], folder: &Path) -> Result<Text, TaskError> {
        let texts = [("a.txt", 239, weights[0]), ("b.txt", 109, weights[1])].map(|(name, count, weight)| {
            let path = folder.join(name);
            std::fs::write(&path, letters(count)).unwrap();
            TrainText { path, weight }
        });
        let config = TextConfig { train: texts.to_vec().into(), length: 10, ..TextConfig::default() };
        Text::open_in(&config, &folder.join("cache"), &mut |_| true)
    }

    #[test]
    fn weights_say_how_often_a_text_is_drawn() {
        let folder = tempfile::tempdir().unwrap();
        for (weights, drawn, passes) in
            [([1.0, 1.0], [22, 10], 1), ([2.0, 1.0], [44, 10], 1), ([0.5, 3.0], [11, 30], 2)]
        {
            let mut text = weighted(weights, folder.path()).unwrap();
            let all = drawn[0] + drawn[1];
            let mut counts = BTreeMap::new();
            for pass in 0..passes {
                let windows: Vec<_> = (0..all).map(|i| text.window(7, pass * all + i)).collect();
                assert_eq!(windows.iter().filter(|(part, _)| *part == 0).count() as u64, drawn[0], "{weights:?}");
                windows.into_iter().for_each(|window| *counts.entry(window).or_insert(0.0) += 1.0);
            }
            // Every window as often as its text's weight says, over so many passes.
            assert_eq!(counts.len(), 32, "{weights:?}");
            for ((part, start), count) in counts {
                assert_eq!(count, weights[part] * passes as f64, "{weights:?}: window {start} of {part}");
            }
        }
        let text = weighted([1.0, 1.0], folder.path()).unwrap();
        assert!(text.state()["train"].is_array());
        assert_eq!(
            text.splits()[0].groups[0].1.tokens.len(),
            10,
            "the end of the first has one window, of the second none"
        );
    }

    #[test]
    fn a_text_is_not_learnt_twice_by_two_names() {
        let folder = tempfile::tempdir().unwrap();
        drop(weighted([1.0, 1.0], folder.path()));
        let [all, one] = ["", "a.txt"].map(|name| TrainText { path: folder.path().join(name), weight: 1.0 });
        let config = TextConfig { train: vec![all, one].into(), length: 10, ..TextConfig::default() };
        let said = Text::open_in(&config, &folder.path().join("cache"), &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("a.txt is named twice") && said.contains("weight"), "{said}");
    }

    #[test]
    fn weights_have_limits() {
        for weight in [0.0, -1.0, f64::INFINITY, f64::NAN, 1001.0] {
            let train = vec![TrainText { path: "a".into(), weight }];
            let said =
                TextConfig { train: train.into(), ..TextConfig::default() }.validate().unwrap_err().to_string();
            assert!(said.contains("task.train") && said.contains("for a"), "{said}");
        }
    }

    #[test]
    fn text_of_stdin_that_is_gone_says_how_to_give_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let path = keep_text(letters(239).as_bytes(), &cache).unwrap();
        let config = TextConfig { train: path.as_path().into(), length: 10, ..TextConfig::default() };
        assert!(Text::open_in(&config, &cache, &mut |_| true).is_ok());
        std::fs::remove_file(&path).unwrap();
        let said = Text::open_in(&config, &cache, &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("standard input") && said.contains("task.train=-"), "{said}");
    }

    #[test]
    fn documents_are_sequences_of_their_own() {
        let files = [("a.txt", "abc"), ("b.txt", "defghij"), ("c.txt", &letters(200))];
        let text = text(&files, 8).unwrap();
        // | a b c | d e f g h i j |
        assert_eq!(
            sequences(&text.train[0].tokens, 0, 8),
            [(vec![256, 97, 98, 99], vec![97, 98, 99, 256]), (vec![256, 100, 101, 102], vec![100, 101, 102, 103]),]
        );
        assert_eq!(sequences(&text.train[0].tokens, 8, 4), [(vec![103, 104, 105, 106], vec![104, 105, 106, 256])]);
        assert_eq!(
            sequences(&text.train[0].tokens, 12, 1),
            [(vec![256], vec![97])],
            "also where one begins a window"
        );
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
            text.train[0].tokens.get(244..246).iter().map(|t| *t as i32).collect::<Vec<_>>()
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
        let missing = TextConfig { train: Path::new("no/such/file.txt").into(), ..TextConfig::default() };
        let said = Text::open(&missing, &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("no/such/file.txt") && said.contains("task.train"), "{said}");
        let said = Text::open(&TextConfig::default(), &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("--set task.train="), "{said}");
        let other = TextConfig { tokenizer: "no/such/folder".into(), ..missing };
        let said = Text::open(&other, &mut |_| true).unwrap_err().to_string();
        assert!(said.contains("task.tokenizer") && said.contains("no/such/folder"), "{said}");
    }
}
