//! The text task: windows of encoded text, each token with the next one as its target.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use rand::seq::SliceRandom;
use serde_json::{Value, json};

use super::error::{TaskError, check};
use super::task::Task;
use super::text_config::TextConfig;
use crate::batch::{Batch, Split, VALIDATION};
use crate::data::{Source, Tokenizer, Tokens, Totals, cache_folder};
use crate::monitor::Monitor;
use crate::random::{Moment, rng};
use crate::scores::{Scores, TextScore};

/// The text task with its tokens.
#[derive(Debug)]
pub(crate) struct Text {
    config: TextConfig,
    tokenizer: Tokenizer,
    train: Vec<TextPart>,
    /// The text to validate on; `None` if the ends of the training texts are held out instead.
    valid: Option<Tokens>,
    /// The shuffled windows of the epoch that was drawn from last.
    order: Option<EpochOrder>,
}

/// The order of the windows in one epoch of a run.
#[derive(Debug)]
struct EpochOrder {
    seed: u64,
    epoch: u64,
    windows: Vec<u32>,
}

/// One of the training texts.
#[derive(Debug)]
struct TextPart {
    tokens: Tokens,
    /// Tokens to train on: all but the held-out ones, which follow them.
    trained: usize,
    /// Windows that these tokens hold.
    windows: u64,
    /// Windows drawn in an epoch: [`TextPart::windows`] times the weight of the text.
    drawn: u64,
}

impl TextPart {
    fn new(tokens: Tokens, trained: usize, length: usize, weight: f64) -> Self {
        let windows = (trained.saturating_sub(1) / length) as u64;
        let drawn = ((windows as f64 * weight).round() as u64).max(1);
        Self { tokens, trained, windows, drawn }
    }

    /// The window that is drawn at `place` among the draws of this text in an epoch. If an epoch does not draw all
    /// windows equally often, it continues where the previous epoch ended, with a stride that spreads its windows over
    /// the whole text.
    fn window(&self, epoch: u64, place: u64) -> u64 {
        let number = (u128::from(epoch) * u128::from(self.drawn) + u128::from(place)) % u128::from(self.windows);
        match self.drawn.is_multiple_of(self.windows) {
            true => number as u64,
            false => (number * u128::from(stride(self.windows)) % u128::from(self.windows)) as u64,
        }
    }
}

/// A stride that visits each of `count` places once before it visits any of them again. Places visited one after the
/// other are far apart.
fn stride(count: u64) -> u64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let coprime = |step: &u64| {
        let (mut a, mut b) = (count, *step);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    (((count as f64 * GOLDEN) as u64).max(1)..)
        .find(coprime)
        .expect("some number has no common divisor with count")
}

impl Text {
    /// Opens the tokens of the configured files. The number of bytes encoded is reported to `monitor`.
    pub fn open(config: &TextConfig, tokenizer: Tokenizer, monitor: &mut dyn Monitor) -> Result<Self, TaskError> {
        let folder = cache_folder().map_err(|error| TaskError::Data { name: "train", source: Box::new(error) })?;
        Self::open_in(config, tokenizer, &folder, monitor)
    }

    fn open_in(
        config: &TextConfig,
        tokenizer: Tokenizer,
        cache: &Path,
        monitor: &mut dyn Monitor,
    ) -> Result<Self, TaskError> {
        let empty_path = config.train.iter().any(|text| text.path.as_os_str().is_empty());
        if empty_path || config.train.iter().len() == 0 {
            return Err(TaskError::NoData { name: "train" });
        }
        let mut open = |name: &'static str, path: &Path| {
            let data_error = |error| TaskError::Data { name, source: Box::new(error) };
            if path.parent() == Some(cache) && !path.exists() {
                return Err(TaskError::StdinGone { path: path.into() });
            }
            let source = Source::find(path, monitor).map_err(|error| data_error(error.into()))?;
            Tokens::open(&source, &tokenizer, cache, config.check, monitor).map_err(data_error)
        };
        let all: Vec<Tokens> =
            config.train.iter().map(|text| open("train", &text.path)).collect::<Result<_, _>>()?;
        let valid = config.valid.as_deref().map(|path| open("valid", path)).transpose()?;
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
            let trained = tokens.totals().tokens - held_out(&tokens);
            TextPart::new(tokens, trained, config.length, weight)
        };
        let train = all.into_iter().zip(config.train.iter().map(|text| text.weight)).map(part).collect();
        let text = Self { config: config.clone(), tokenizer, train, valid, order: None };
        text.check_lengths()?;
        Ok(text)
    }

    /// Refuses texts without a single sequence to train on or to validate on.
    fn check_lengths(&self) -> Result<(), TaskError> {
        let (config, needed) = (&self.config, self.config.length + 1);
        let except = if self.valid.is_some() { "" } else { " except for its last twentieth" };
        for (part, text) in self.train.iter().zip(config.train.iter()) {
            if part.trained < needed {
                let what = format!("{}{except}", text.path.display());
                return Err(TaskError::Short { name: "train", what, got: part.trained, needed });
            }
        }
        let longest = self.held_out().into_iter().map(|(_, range)| range.len()).max().unwrap_or(0);
        if longest < needed {
            let what = match &config.valid {
                Some(path) => path.display().to_string(),
                None => format!("the last twentieth of {}", config.train),
            };
            return Err(TaskError::Short { name: "valid", what, got: longest, needed });
        }
        // Windows are numbered in 32 bits.
        let drawn: u64 = self.train.iter().map(|part| part.drawn).sum();
        check("length", drawn <= u32::MAX.into(), "longer, for as much text", config.length)
    }

    /// The tokens to validate on.
    fn held_out(&self) -> Vec<(&Tokens, Range<usize>)> {
        match &self.valid {
            Some(valid) => vec![(valid, 0..valid.totals().tokens)],
            None => {
                let end = |part: &TextPart| part.trained..part.tokens.totals().tokens;
                self.train.iter().map(|part| (&part.tokens, end(part))).collect()
            }
        }
    }

    /// The index of the text and the position of the first token, for sequence number `index` of a run. Every epoch
    /// draws the windows of each text as often as the weight of the text says, in a new random order.
    fn window(&mut self, seed: u64, index: u64) -> (usize, usize) {
        let all: u64 = self.train.iter().map(|part| part.drawn).sum();
        let (epoch, place) = (index / all, (index % all) as usize);
        let order = match &mut self.order {
            Some(order) if (order.seed, order.epoch) == (seed, epoch) => order,
            order => {
                let mut windows: Vec<u32> = (0..all as u32).collect();
                windows.shuffle(&mut rng(seed, epoch.into()));
                order.insert(EpochOrder { seed, epoch, windows })
            }
        };
        let mut place = u64::from(order.windows[place]);
        for (index, part) in self.train.iter().enumerate() {
            if place < part.drawn {
                return (index, part.window(epoch, place) as usize * self.config.length);
            }
            place -= part.drawn;
        }
        unreachable!("an epoch has as many places as its texts together")
    }
}

/// A window of text as sequences with their targets. A document that begins in the window starts a sequence of its own,
/// so that no state carries over from the document before.
fn sequences(tokens: &Tokens, start: usize, length: usize) -> Vec<(Vec<u32>, Vec<Option<u32>>)> {
    let window = tokens.get(start..start + length + 1);
    let documents = tokens.documents();
    let first = documents.partition_point(|document| *document <= start);
    let inside = documents[first..].iter().map(|document| document - start).take_while(|at| *at < length);
    let cuts: Vec<usize> = std::iter::once(0).chain(inside).chain([length]).collect();
    let part = |cut: &[usize]| {
        let targets = window[cut[0] + 1..=cut[1]].iter().copied().map(Some).collect();
        (window[cut[0]..cut[1]].to_vec(), targets)
    };
    cuts.windows(2).map(part).collect()
}

/// Name of the recorded bits per byte, which can be compared between tokenizers.
pub(crate) const BITS_PER_BYTE: &str = "bits per byte";

/// Perplexities per token, byte and word, from the loss per token. Only those per byte and word can be compared between
/// tokenizers. The numbers of tokens per byte and per word are those of the whole text, even if an evaluation reads
/// only a part of it.
fn perplexities(loss: f64, totals: Totals) -> BTreeMap<String, f64> {
    let Totals { tokens, documents, bytes, words } = totals;
    let tokens = tokens - documents;
    let score = TextScore { nats: loss * tokens as f64, tokens, bytes, words };
    let perplexities = [
        ("token", score.token_perplexity()),
        ("byte", score.byte_perplexity()),
        ("word", score.word_perplexity()),
    ];
    // The perplexity of long words, as in Chinese, can overflow to infinity, which JSON does not have.
    let perplexities =
        perplexities.into_iter().map(|(unit, perplexity)| (format!("{unit} perplexity"), perplexity));
    let all = perplexities.chain([(BITS_PER_BYTE.to_string(), score.bits_per_byte())]);
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
        // The sequences are spread evenly over the whole text.
        let count = windows.min(self.config.eval_sequences);
        let sequence = |i: usize| {
            let mut window = i * windows / count;
            for (tokens, range) in &held_out {
                let in_range = windows_of(range);
                if window < in_range {
                    return sequences(tokens, range.start + window * length, length);
                }
                window -= in_range;
            }
            unreachable!("the windows of all texts are counted")
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

    /// Fingerprints of the data, so that a run is not resumed with files whose content has changed.
    fn state(&self) -> Value {
        let valid = self.valid.as_ref().map(Tokens::fingerprint);
        let train: Vec<&str> = self.train.iter().map(|part| part.tokens.fingerprint()).collect();
        // A single text is recorded as in versions that could read only one.
        let train = if let [single] = train[..] { json!(single) } else { json!(train) };
        let mut state = json!({ "train": train, "valid": valid, "tokenizer": self.tokenizer.fingerprint() });
        let weights: Vec<f64> = self.config.train.iter().map(|text| text.weight).collect();
        if weights.iter().any(|weight| *weight != 1.0) {
            state["weights"] = json!(weights);
        }
        state
    }

    fn restore(&mut self, state: Value) -> Result<(), TaskError> {
        let now = self.state();
        let paths = [
            ("tokenizer", self.config.tokenizer.clone().into()),
            ("train", self.config.train.to_string().into()),
            ("weights", self.config.train.to_string().into()),
            ("valid", self.config.valid.clone().unwrap_or_default()),
        ];
        match paths.into_iter().find(|(name, _)| state.get(*name) != now.get(*name)) {
            Some(("weights", _)) => Err(TaskError::Weights),
            Some((name, path)) => Err(TaskError::Changed { name, path }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::keep_text;
    use crate::tasks::{TaskConfig, TrainText};

    /// Opens a configuration with the given cache folder instead of the user's.
    fn open(config: &TextConfig, cache: &Path) -> Result<Text, TaskError> {
        Text::open_in(config, Tokenizer::open(&config.tokenizer).unwrap(), cache, &mut ())
    }

    fn text(files: &[(&str, &str)], length: usize) -> Result<Text, TaskError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let config = TextConfig { train: folder.path().into(), length, ..TextConfig::default() };
        open(&config, &folder.path().join("cache"))
    }

    fn letters(count: usize) -> String {
        (0..count).map(|i| char::from(b'a' + (i % 26) as u8)).collect()
    }

    #[test]
    fn an_epoch_draws_every_window_once() {
        let mut text = text(&[("a.txt", &letters(239))], 10).unwrap();
        assert_eq!((text.train[0].trained, text.held_out()[0].1.clone()), (228, 228..240));
        let mut starts =
            |epoch: u64| -> Vec<usize> { (0..22).map(|i| text.window(3, epoch * 22 + i).1).collect() };
        let (first, second) = (starts(0), starts(1));
        let sorted = |mut starts: Vec<usize>| {
            starts.sort_unstable();
            starts
        };
        assert_ne!(first, second, "every epoch has a different order");
        assert_eq!(sorted(first), (0..22).map(|i| 10 * i).collect::<Vec<_>>());
        assert_eq!(sorted(second), (0..22).map(|i| 10 * i).collect::<Vec<_>>());
    }

    /// A resumed run depends on this, within an epoch and after one.
    #[test]
    fn a_batch_depends_on_the_moment_alone() {
        let fresh = || text(&[("a.txt", &letters(239))], 10).unwrap();
        let at = |text: &mut Text, step| text.batch(Moment { seed: 3, step, steps: 30 }, 4);
        let mut through = fresh();
        for step in 0..18 {
            assert_eq!(at(&mut through, step), at(&mut fresh(), step), "step {step}");
        }
        assert_eq!(at(&mut through, 2), at(&mut fresh(), 2), "an earlier step, drawn again");
    }

    /// Versions that could read only one text drew a shuffle of all windows in every epoch.
    #[test]
    fn a_single_text_is_drawn_as_in_earlier_versions() {
        let mut text = text(&[("a.txt", &letters(239))], 10).unwrap();
        for epoch in 0..3 {
            let mut expected: Vec<u32> = (0..22).collect();
            expected.shuffle(&mut rng(3, epoch));
            let got: Vec<usize> = (0..22).map(|i| text.window(3, epoch as u64 * 22 + i).1).collect();
            assert_eq!(got, expected.iter().map(|window| *window as usize * 10).collect::<Vec<_>>());
        }
    }

    /// Texts of 22 and 10 windows with these weights.
    fn weighted(weights: [f64; 2], folder: &Path) -> Result<Text, TaskError> {
        let texts = [("a.txt", 239, weights[0]), ("b.txt", 109, weights[1])].map(|(name, count, weight)| {
            let path = folder.join(name);
            std::fs::write(&path, letters(count)).unwrap();
            TrainText { path, weight }
        });
        let config = TextConfig { train: texts.to_vec().into(), length: 10, ..TextConfig::default() };
        open(&config, &folder.join("cache"))
    }

    #[test]
    fn weights_say_how_often_a_text_is_drawn() {
        let folder = tempfile::tempdir().unwrap();
        for (weights, drawn, epochs) in
            [([1.0, 1.0], [22, 10], 1), ([2.0, 1.0], [44, 10], 1), ([0.5, 3.0], [11, 30], 2)]
        {
            let mut text = weighted(weights, folder.path()).unwrap();
            let all = drawn[0] + drawn[1];
            let mut counts = BTreeMap::new();
            for epoch in 0..epochs {
                let windows: Vec<_> = (0..all).map(|i| text.window(7, epoch * all + i)).collect();
                assert_eq!(windows.iter().filter(|(part, _)| *part == 0).count() as u64, drawn[0], "{weights:?}");
                windows.into_iter().for_each(|window| *counts.entry(window).or_insert(0.0) += 1.0);
            }
            // Over all epochs, every window is drawn as often as the weight of its text says.
            assert_eq!(counts.len(), 32, "{weights:?}");
            for ((part, start), count) in counts {
                assert_eq!(count, weights[part] * epochs as f64, "{weights:?}: window {start} of {part}");
            }
        }
        let text = weighted([1.0, 1.0], folder.path()).unwrap();
        assert!(text.state()["train"].is_array());
        assert_eq!(
            text.splits()[0].groups[0].1.tokens.len(),
            10,
            "the held-out end of the first text has one window, that of the second has none"
        );
    }

    #[test]
    fn a_file_under_two_paths_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(weighted([1.0, 1.0], folder.path()));
        let [all, one] = ["", "a.txt"].map(|name| TrainText { path: folder.path().join(name), weight: 1.0 });
        let config = TextConfig { train: vec![all, one].into(), length: 10, ..TextConfig::default() };
        let message = open(&config, &folder.path().join("cache")).unwrap_err().to_string();
        assert!(message.contains("a.txt is named twice") && message.contains("weight"), "{message}");
    }

    #[test]
    fn weights_have_limits() {
        for weight in [0.0, -1.0, f64::INFINITY, f64::NAN, 1001.0] {
            let train = vec![TrainText { path: "a".into(), weight }];
            let message =
                TextConfig { train: train.into(), ..TextConfig::default() }.validate().unwrap_err().to_string();
            assert!(message.contains("task.train") && message.contains("for a"), "{message}");
        }
    }

    #[test]
    fn a_missing_copy_of_stdin_says_how_to_give_the_text_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let path = keep_text(letters(239).as_bytes(), &cache).unwrap();
        let config = TextConfig { train: path.as_path().into(), length: 10, ..TextConfig::default() };
        assert!(open(&config, &cache).is_ok());
        std::fs::remove_file(&path).unwrap();
        let message = open(&config, &cache).unwrap_err().to_string();
        assert!(message.contains("standard input") && message.contains("task.train=-"), "{message}");
    }

    #[test]
    fn documents_are_sequences_of_their_own() {
        let files = [("a.txt", "abc"), ("b.txt", "defghij"), ("c.txt", &letters(200))];
        let text = text(&files, 8).unwrap();
        // | a b c | d e f g h i j |
        assert_eq!(
            sequences(&text.train[0].tokens, 0, 8),
            [
                (vec![256, 97, 98, 99], [97, 98, 99, 256].map(Some).to_vec()),
                (vec![256, 100, 101, 102], [100, 101, 102, 103].map(Some).to_vec()),
            ]
        );
        assert_eq!(
            sequences(&text.train[0].tokens, 8, 4),
            [(vec![103, 104, 105, 106], [104, 105, 106, 256].map(Some).to_vec())]
        );
        assert_eq!(
            sequences(&text.train[0].tokens, 12, 1),
            [(vec![256], vec![Some(97)])],
            "a document that begins at the start of a window"
        );
    }

    #[test]
    fn targets_are_the_next_tokens() {
        let mut text = text(&[("a.txt", &letters(255))], 4).unwrap();
        let batch = text.batch(Moment { seed: 1, step: 5, steps: 9 }, 3);
        assert_eq!(batch.sequences.lengths().collect::<Vec<_>>(), [4, 4, 4]);
        let next = |token: u32| if token == 122 { 97 } else { token + 1 };
        let follows = |(token, target): (&u32, &Option<u32>)| *token == 256 || Some(next(*token)) == *target;
        assert!(batch.tokens.iter().zip(&batch.targets).all(follows));
        let splits = text.splits();
        assert_eq!(splits[0].groups[0].1.tokens[..2], text.train[0].tokens.get(244..246));
    }

    #[test]
    fn perplexities_are_per_token_byte_and_word() {
        let totals = Totals { tokens: 11, documents: 1, bytes: 40, words: 5 };
        let recorded = perplexities(2f64.ln(), totals);
        let values = ["token", "byte", "word"].map(|unit| recorded[&format!("{unit} perplexity")]);
        let expected = [2.0, 2f64.powf(0.25), 4.0];
        assert!(values.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-12), "{recorded:?}");
        let long = perplexities(5.0, Totals { tokens: 2001, documents: 1, bytes: 2000, words: 1 });
        assert_eq!(long.into_keys().collect::<Vec<_>>(), ["bits per byte", "byte perplexity", "token perplexity"]);
    }

    #[test]
    fn a_file_is_not_used_for_training_and_validation() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.txt", "valid.txt"] {
            std::fs::write(folder.path().join(name), letters(100)).unwrap();
        }
        let valid = folder.path().join("valid.txt");
        let config =
            TextConfig { train: folder.path().into(), valid: Some(valid), length: 4, ..TextConfig::default() };
        let message = open(&config, &folder.path().join("cache")).unwrap_err().to_string();
        assert!(message.contains("valid.txt is in task.train too"), "{message}");
    }

    #[test]
    fn another_text_under_the_same_name_is_noticed() {
        let mut one = text(&[("a.txt", &letters(256))], 4).unwrap();
        let state = one.state();
        assert!(one.restore(state.clone()).is_ok());
        let message = text(&[("a.txt", &letters(250))], 4).unwrap().restore(state).unwrap_err().to_string();
        assert!(
            message.contains("task.train") && message.contains("has changed since the run began"),
            "{message}"
        );
    }

    #[test]
    fn unusable_files_are_refused_with_the_reason() {
        let message = text(&[("a.txt", &letters(29))], 64).unwrap_err().to_string();
        assert!(
            message.contains("task.train") && message.contains("except for its last twentieth has 29 tokens"),
            "{message}"
        );
        let missing = TextConfig { train: Path::new("no/such/file.txt").into(), ..TextConfig::default() };
        let open = |config: &TextConfig| Text::open(config, Tokenizer::bytes(), &mut ());
        let message = open(&missing).unwrap_err().to_string();
        assert!(message.contains("no/such/file.txt") && message.contains("task.train"), "{message}");
        let message = open(&TextConfig::default()).unwrap_err().to_string();
        assert!(message.contains("--set task.train="), "{message}");
        let other = TextConfig { tokenizer: "no/such/folder".into(), ..missing };
        let message = TaskConfig::Text(other).open_tokenizer().unwrap_err().to_string();
        assert!(message.contains("task.tokenizer") && message.contains("no/such/folder"), "{message}");
    }
}
