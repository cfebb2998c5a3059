//! Text from a model, token by token, in memory that does not grow.

use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use falcon_nn::{FileError, Metadata, Model, ModelState, Sequences, read_sealed, write_sealed};
use rand::RngExt;
use thiserror::Error;

use crate::evaluate::{ids, tokens_per_call};
use crate::tasks::rng;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; 0 takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest; 0 for all.
    pub top_k: usize,
    /// Only the likeliest that have this much probability together; 1 for all.
    pub top_p: f64,
    /// Tokens that were read or said before are this much less likely: positive logits are divided by it, negative ones multiplied. 1 for none.
    pub repetition_penalty: f64,
    /// Of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 0, top_p: 0.95, repetition_penalty: 1.0, seed: 0 }
    }
}

/// A number outside its range.
#[derive(Debug, Error, PartialEq)]
#[error("{name} must be {range}, got {got}")]
pub struct SamplingError {
    /// Which.
    pub name: &'static str,
    /// What it may be.
    pub range: &'static str,
    /// What it is.
    pub got: f64,
}

impl Sampling {
    /// Everything that can be wrong.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let Self { temperature, top_p, repetition_penalty, .. } = *self;
        let check = |name, good, range, got| if good { Ok(()) } else { Err(SamplingError { name, range, got }) };
        check("temperature", (0.0..=100.0).contains(&temperature), "from 0 to 100", temperature)?;
        check("top-p", top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1", top_p)?;
        let good = (0.01..=100.0).contains(&repetition_penalty);
        check("repetition-penalty", good, "from 0.01 to 100", repetition_penalty)
    }

    /// The next token. Draws follow from the seed, the sequence and its position alone, so that one that goes on another day goes on as it
    /// would have.
    fn choose(&self, logits: &[f32], seen: &[bool], sequence: usize, position: usize) -> u32 {
        let penalty = self.repetition_penalty;
        let penalised = |(logit, seen): (&f32, &bool)| {
            let logit = f64::from(*logit);
            match *seen && penalty != 1.0 {
                true if logit > 0.0 => logit / penalty,
                true => logit * penalty,
                false => logit,
            }
        };
        let logits: Vec<f64> = logits.iter().zip(seen).map(penalised).collect();
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |token: &u32| logits[*token as usize];
        let likeliest = |a: &u32, b: &u32| logit(b).total_cmp(&logit(a)).then(a.cmp(b));
        if self.temperature == 0.0 {
            return order.into_iter().min_by(likeliest).unwrap_or(0);
        }
        if self.top_k > 0 && self.top_k < order.len() {
            order.select_nth_unstable_by(self.top_k - 1, likeliest);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(likeliest);
        let most = logit(&order[0]);
        let mut weights: Vec<f64> = order.iter().map(|t| ((logit(t) - most) / self.temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let kept = weights.iter().position(|weight| {
            sum += weight / total;
            sum >= self.top_p
        });
        weights.truncate(kept.map_or(weights.len(), |last| last + 1));
        let mut draw = rng(self.seed, (sequence as u128) << 48 | position as u128).random::<f64>()
            * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            draw -= weight;
            draw < 0.0
        });
        order[chosen.unwrap_or(weights.len() - 1)]
    }
}

/// A sequence that is gone on with: what a model keeps of it, and the last token, which it has not read yet.
#[derive(Clone, Debug)]
pub struct Stream {
    state: ModelState,
    /// The last token, if there is one.
    last: Option<u32>,
    /// Which tokens were read or said: as large as the vocabulary, whatever the length.
    seen: Vec<bool>,
}

/// Tokens that are read in one call, at most.
const TOKENS: usize = 4096;
/// What the metadata of a file has beside the state of the model: the fingerprint of the model's weights, the last
/// token if there is one, and a bit for every token of the vocabulary, set if it was read or generated, in
/// hexadecimal.
const MODEL: &str = "model";
const LAST: &str = "last_token";
const SEEN: &str = "seen_tokens";

impl Stream {
    /// Of which nothing is read.
    pub fn new(model: &Model) -> Self {
        Self { state: model.state(1), last: None, seen: vec![false; model.config().vocab_size] }
    }

    /// Tokens so far.
    pub fn position(&self) -> usize {
        self.state.positions()[0] + usize::from(self.last.is_some())
    }

    /// The last token, if there is one.
    pub fn last(&self) -> Option<u32> {
        self.last
    }

    /// What the model keeps of it, in bytes.
    pub fn bytes(&self) -> usize {
        self.state.bytes()
    }

    /// Goes on with these tokens. `progress` is told how many are read, and may say to stop by false; what was read stays read.
    pub fn read(&mut self, model: &Model, tokens: &[u32], progress: &mut dyn FnMut(usize) -> bool) -> bool {
        let mut done = 0;
        for piece in tokens.chunks(TOKENS.min(tokens_per_call(model))) {
            piece.iter().for_each(|token| self.seen[*token as usize] = true);
            let (last, before) = piece.split_last().expect("pieces are not empty");
            let read: Vec<u32> = self.last.replace(*last).into_iter().chain(before.iter().copied()).collect();
            if !read.is_empty() {
                model.hidden(ids(&read, &model.device()), &Sequences::uniform(1, read.len()), &mut self.state);
            }
            done += piece.len();
            if !progress(done) {
                return false;
            }
        }
        true
    }

    /// Keeps it in a file, to be continued another day. `weights` is the fingerprint of the model's weights.
    pub fn save(&self, model: &Model, weights: &str, path: &Path) -> Result<(), FileError> {
        let mut texts = Metadata::from([(MODEL.into(), weights.into()), (SEEN.into(), to_hex(&self.seen))]);
        if let Some(token) = self.last {
            texts.insert(LAST.into(), token.to_string());
        }
        write_sealed(path, &model.state_arrays(&self.state), &texts)
    }

    /// What [`Stream::save`] wrote, of the same model.
    pub fn load(model: &Model, weights: &str, path: &Path) -> Result<Self, StreamError> {
        let (arrays, mut texts) = read_sealed(path)?;
        let bad = |what: &str| StreamError::NoStream { path: path.into(), what: what.into() };
        let of = texts.remove(MODEL).ok_or_else(|| bad("it does not say of which model it is"))?;
        if of != weights {
            return Err(StreamError::Other { path: path.into(), of, weights: weights.into() });
        }
        let vocabulary = model.config().vocab_size;
        let last = match texts.remove(LAST) {
            None => None,
            Some(text) => match text.parse::<u32>() {
                Ok(token) if (token as usize) < vocabulary => Some(token),
                _ => return Err(bad(&format!("its last token is {text:?}, of {vocabulary} that there are"))),
            },
        };
        let seen = texts.remove(SEEN).and_then(|text| from_hex(&text, vocabulary));
        let seen = seen.ok_or_else(|| bad("it does not say which tokens of the vocabulary were read"))?;
        let state = model.restore_state(arrays, path)?;
        if state.positions().len() != 1 {
            return Err(bad(&format!("it has {} sequences, where 1 is expected", state.positions().len())));
        }
        Ok(Self { state, last, seen })
    }
}

/// Bits as hexadecimal digits, four to a digit.
fn to_hex(bits: &[bool]) -> String {
    let digit =
        |bits: &[bool]| -> u32 { bits.iter().enumerate().map(|(place, bit)| u32::from(*bit) << place).sum() };
    bits.chunks(4).filter_map(|bits| char::from_digit(digit(bits), 16)).collect()
}

/// Undoes [`to_hex`] of `count` bits.
fn from_hex(text: &str, count: usize) -> Option<Vec<bool>> {
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let bits = || digits.iter().flat_map(|digit| (0..4).map(move |place| (digit >> place) & 1 == 1));
    (digits.len() == count.div_ceil(4) && bits().skip(count).all(|bit| !bit)).then(|| bits().take(count).collect())
}

/// Why a sequence cannot be gone on with.
#[derive(Debug, Error)]
pub enum StreamError {
    /// The file cannot be read, or holds the state of a model of another shape.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds something else.
    #[error("{path}: not the state of a text: {what}; `falcon generate --state-out` writes such files")]
    NoStream {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It is of a model with other weights.
    #[error(
        "{path}: the state of a model whose weights have the fingerprint {of}, and this model's have {weights}: open that model, or read the text again with this one"
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// The fingerprint in the file.
        of: String,
        /// That of the model.
        weights: String,
    },
}

/// Goes on with sequences side by side, until `told` says of each that it is done, by false: it is called with the sequence's number, from
/// `first` on, and its next token. Every sequence must have a token to go on from.
pub fn generate(
    model: &Model,
    streams: Vec<Stream>,
    sampling: &Sampling,
    first: usize,
    mut told: impl FnMut(usize, u32) -> bool,
) -> Vec<Stream> {
    let mut finished: Vec<Option<Stream>> = streams.iter().map(|_| None).collect();
    let (states, mut going): (Vec<ModelState>, Vec<Going>) = streams
        .into_iter()
        .enumerate()
        .map(|(number, Stream { state, last, seen })| {
            (state, Going { number: first + number, last: last.expect("something to go on from"), seen })
        })
        .unzip();
    let mut state = model.join(states);
    while !going.is_empty() {
        let last: Vec<u32> = going.iter().map(|going| going.last).collect();
        let logits: Tensor<2> = model.step(ids(&last, &model.device()), &mut state);
        let logits: Vec<f32> = logits.into_data().try_to_vec().expect("logits are f32");
        let rows = logits.chunks_exact(model.config().vocab_size);
        let mut done = Vec::new();
        for (index, (going, logits)) in going.iter_mut().zip(rows).enumerate() {
            let token = sampling.choose(logits, &going.seen, going.number, state.positions()[index]);
            going.seen[token as usize] = true;
            going.last = token;
            if !told(going.number, token) {
                done.push(index);
            }
        }
        if !done.is_empty() {
            for index in &done {
                let Going { number, last, seen } = &going[*index];
                let state = model.select(&state, &[*index]);
                finished[*number - first] = Some(Stream { state, last: Some(*last), seen: seen.clone() });
            }
            let rest: Vec<usize> = (0..going.len()).filter(|index| !done.contains(index)).collect();
            state = model.select(&state, &rest);
            going = rest.into_iter().map(|index| going[index].clone()).collect();
        }
    }
    finished.into_iter().map(|stream| stream.expect("all are done")).collect()
}

/// A sequence on its way.
#[derive(Clone)]
struct Going {
    number: usize,
    last: u32,
    seen: Vec<bool>,
}

/// Text up to the first of some strings. What may be the beginning of one is held back.
#[derive(Clone, Debug)]
pub struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    /// Empty strings stop nothing.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// What may be shown of the text so far, and whether a stop has come.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let starts = |at: &usize| {
            let end = &self.held[*at..];
            self.stops.iter().any(|stop| stop.starts_with(end))
        };
        let keep = self.held.char_indices().map(|(at, _)| at).find(starts).unwrap_or(self.held.len());
        let held = self.held.split_off(keep);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// What is held back at the end.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::*;

    fn model(preset: &str) -> Model {
        ModelConfig::preset(preset, "micro", 30).unwrap().init(3, &Device::flex()).unwrap()
    }

    fn stream(model: &Model, tokens: &[u32]) -> Stream {
        let mut stream = Stream::new(model);
        assert!(stream.read(model, tokens, &mut |_| true));
        stream
    }

    /// So many tokens of each sequence, and where they are then.
    fn go_on(
        model: &Model,
        streams: Vec<Stream>,
        sampling: &Sampling,
        counts: &[usize],
    ) -> (Vec<Vec<u32>>, Vec<Stream>) {
        let mut said = vec![Vec::new(); streams.len()];
        let streams = generate(model, streams, sampling, 0, |sequence, token| {
            said[sequence].push(token);
            said[sequence].len() < counts[sequence]
        });
        (said, streams)
    }

    #[test]
    fn saved_and_restored_is_as_if_uninterrupted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let sampling = Sampling { repetition_penalty: 1.3, top_k: 20, ..Sampling::default() };
        for preset in falcon_nn::PRESETS {
            let model = model(preset);
            let begun = stream(&model, &[3, 1, 4, 1, 5]);
            let (whole, _) = go_on(&model, vec![begun.clone()], &sampling, &[24]);
            let (first, streams) = go_on(&model, vec![begun], &sampling, &[9]);
            assert_eq!(streams[0].position(), 14);
            streams[0].save(&model, "abc", &path).unwrap();
            let restored = Stream::load(&model, "abc", &path).unwrap();
            assert_eq!((restored.position(), &restored.seen), (14, &streams[0].seen));
            let (second, _) = go_on(&model, vec![restored], &sampling, &[15]);
            assert_eq!([first[0].clone(), second[0].clone()].concat(), whole[0], "{preset}");
            let other = Stream::load(&model, "abd", &path).unwrap_err().to_string();
            assert!(other.contains("fingerprint abc, and this model's have abd"), "{other}");
        }
        model("retnet").save_state(&model("retnet").state(1), &path).unwrap();
        let said = Stream::load(&model("retnet"), "abc", &path).unwrap_err().to_string();
        assert!(said.contains("does not say of which model it is"), "{said}");
    }

    #[test]
    fn bits_are_written_as_hexadecimal_digits() {
        let bits = [true, false, false, true, false, true];
        assert_eq!(to_hex(&bits), "92");
        assert_eq!(from_hex("92", 6).as_deref(), Some(&bits[..]));
        assert_eq!(
            [from_hex("92", 9), from_hex("9x", 6), from_hex("9f", 6), from_hex("", 6)],
            [None, None, None, None]
        );
    }

    #[test]
    fn side_by_side_is_one_by_one() {
        for preset in ["falcon-3.3", "transformer"] {
            let model = model(preset);
            let prompts: [&[u32]; 3] = [&[1, 2, 3], &[7], &[9, 9, 4, 2, 5, 1]];
            let streams: Vec<Stream> = prompts.iter().map(|prompt| stream(&model, prompt)).collect();
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            let (together, ends) = go_on(&model, streams.clone(), &greedy, &[12, 3, 8]);
            assert_eq!(ends.iter().map(Stream::position).collect::<Vec<_>>(), [15, 4, 14]);
            for (index, count) in [12, 3, 8].into_iter().enumerate() {
                let (alone, _) = go_on(&model, vec![streams[index].clone()], &greedy, &[count]);
                assert_eq!(alone[0], together[index], "{preset}");
            }
        }
    }

    #[test]
    fn long_texts_are_read_in_pieces() {
        let model = model("falcon-1.3");
        let tokens: Vec<u32> = (0..2 * TOKENS as u32 + 77).map(|i| i * i % 30).collect();
        let whole = stream(&model, &tokens);
        let mut parts = Stream::new(&model);
        for part in [&tokens[..1], &tokens[1..6000], &tokens[6000..]] {
            parts.read(&model, part, &mut |_| true);
        }
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!((parts.position(), parts.bytes()), (tokens.len(), stream(&model, &[1, 2]).bytes()));
        let said = |stream: Stream| go_on(&model, vec![stream], &greedy, &[5]).0;
        assert_eq!(said(parts), said(whole));
        let mut stopped = Stream::new(&model);
        assert!(!stopped.read(&model, &tokens, &mut |_| false) && stopped.position() == TOKENS);
    }

    #[test]
    fn draws_keep_to_their_bounds() {
        let logits = [1.0, 3.0, 2.0, -1.0, 2.5];
        let nothing = [false; 5];
        let drawn = |sampling: &Sampling| -> Vec<usize> {
            let mut counts = vec![0; 5];
            (0..4000).for_each(|position| counts[sampling.choose(&logits, &nothing, 0, position) as usize] += 1);
            counts
        };
        let all = Sampling { temperature: 1.0, top_p: 1.0, ..Sampling::default() };
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        for (count, logit) in drawn(&all).into_iter().zip(logits) {
            let expected = 4000.0 * f64::from(logit).exp() / total;
            assert!((count as f64 - expected).abs() < 4.0 * expected.sqrt(), "{count} for {expected}");
        }
        let two = drawn(&Sampling { top_k: 2, ..all.clone() });
        assert!(two[1] > 0 && two[4] > 0 && two[0] + two[2] + two[3] == 0, "{two:?}");
        // e³ alone is 0.47 of the whole, e³ + e^2.5 0.76.
        let nucleus = drawn(&Sampling { top_p: 0.6, ..all.clone() });
        assert!(nucleus[1] > 0 && nucleus[4] > 0 && nucleus[0] + nucleus[2] + nucleus[3] == 0, "{nucleus:?}");
        assert_eq!(drawn(&Sampling { top_p: 0.1, ..all.clone() })[1], 4000);
        assert_eq!(drawn(&Sampling { temperature: 0.0, ..all.clone() })[1], 4000);
        let mut seen = nothing;
        (seen[1], seen[4]) = (true, true);
        let greedy = Sampling { temperature: 0.0, repetition_penalty: 2.0, ..all.clone() };
        assert_eq!(greedy.choose(&logits, &seen, 0, 0), 2, "what was said is less likely");
        assert_ne!(drawn(&all), drawn(&Sampling { seed: 1, ..all.clone() }));
        assert_eq!(drawn(&all), drawn(&all));
        for bad in [
            Sampling { temperature: -1.0, ..all.clone() },
            Sampling { top_p: 0.0, ..all.clone() },
            Sampling { repetition_penalty: f64::NAN, ..all },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }

    /// However many there are; and the first draw what they always drew.
    #[test]
    fn every_sequence_has_draws_of_its_own() {
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed: 5, ..Sampling::default() };
        let drawn = |sequence: usize| -> Vec<u32> {
            (0..20).map(|position| sampling.choose(&[0.0; 1000], &[false; 1000], sequence, position)).collect()
        };
        assert_eq!(drawn(3)[..5], [756, 566, 178, 290, 601]);
        let all = [0, 1, 65_535, 65_536, 65_537, 1 << 32].map(drawn);
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one), "{index}: {one:?}");
        }
    }

    #[test]
    fn text_ends_at_a_stop() {
        let run = |stops: &[&str], pieces: &[&str]| {
            let mut text = Stops::new(&stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>());
            let mut shown = String::new();
            for piece in pieces {
                let (more, stopped) = text.push(piece);
                shown += &more;
                if stopped {
                    return (shown, true);
                }
            }
            (shown + &text.finish(), false)
        };
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".into(), true));
        assert_eq!(run(&["END"], &["one E", "N", "O two"]), ("one ENO two".into(), false));
        assert_eq!(run(&["aab"], &["aa", "a", "b"]), ("a".into(), true));
        assert_eq!(run(&["x", "é!"], &["caf", "é", "? no"]), ("café? no".into(), false));
        assert_eq!(run(&[""], &["all"]), ("all".into(), false));
        assert_eq!(run(&["two", "on"], &["one two"]), (String::new(), true), "the first to come");
    }
}
