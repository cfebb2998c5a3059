//! How well a model foretells text.

use std::ops::Range;

use falcon_nn::{Model, ModelState, Sequences};
use serde::{Deserialize, Serialize};

use super::{ids, predict};
use crate::data::{Tokens, Totals};

/// How text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Every document from beginning to end, with the state carried all the way.
    Whole,
    /// In windows of so many tokens, each as if nothing came before.
    Windows(usize),
}

/// What text costs a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextScore {
    /// The negative log-likelihood of all tokens foretold.
    pub nats: f64,
    /// Tokens foretold: all of the text.
    pub tokens: usize,
    /// Bytes of the text.
    pub bytes: usize,
    /// Its words: what white space divides.
    pub words: usize,
}

impl TextScore {
    /// `e^(nats / token)`.
    pub fn token_perplexity(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }

    /// `e^(nats / byte)`.
    pub fn byte_perplexity(&self) -> f64 {
        (self.nats / self.bytes as f64).exp()
    }

    /// `e^(nats / word)`.
    pub fn word_perplexity(&self) -> f64 {
        (self.nats / self.words as f64).exp()
    }

    /// `log₂` of the byte perplexity.
    pub fn bits_per_byte(&self) -> f64 {
        self.nats / self.bytes as f64 / 2f64.ln()
    }
}

/// Tokens that are read in one call.
const TOKENS: usize = 8192;

/// The score of a text. None if `progress`, told the tokens done and all, says to stop by false.
pub(super) fn text_score(
    model: &Model,
    text: &Tokens,
    reading: Reading,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Option<TextScore> {
    let Totals { tokens, documents, bytes, words } = text.totals();
    let all = tokens - documents;
    let (mut nats, mut done) = (0.0, 0);
    let mut stretches = stretches(text, reading).into_iter().peekable();
    while let Some(first) = stretches.next() {
        // As many as fit into one call; a longer one by itself, piece by piece.
        let mut together = vec![first];
        let mut size = together[0].len();
        while let Some(next) = stretches.next_if(|next| size + next.len() <= TOKENS) {
            size += next.len();
            together.push(next);
        }
        let mut state = model.state(together.len());
        if size <= TOKENS {
            let lengths: Vec<usize> = together.iter().map(Range::len).collect();
            nats += cost(model, text, &together, &Sequences::packed(&lengths), &mut state);
            done += size;
            if !progress(done, all) {
                return None;
            }
            continue;
        }
        let range = together.remove(0);
        for start in range.clone().step_by(TOKENS) {
            let piece = start..range.end.min(start + TOKENS);
            let sequences = Sequences::uniform(1, piece.len());
            done += piece.len();
            nats += cost(model, text, &[piece], &sequences, &mut state);
            if !progress(done, all) {
                return None;
            }
        }
    }
    Some(TextScore { nats, tokens: all, bytes, words })
}

/// Tokens to read, each to foretell the next: all but the last of every document.
fn stretches(text: &Tokens, reading: Reading) -> Vec<Range<usize>> {
    let starts = text.documents();
    let ends = starts[1..].iter().copied().chain([text.totals().tokens]);
    let documents = starts.iter().zip(ends).map(|(start, end)| *start..end - 1);
    let longest = match reading {
        Reading::Whole => usize::MAX,
        Reading::Windows(length) => length.max(1),
    };
    let cut = |document: Range<usize>| {
        let end = document.end;
        document.step_by(longest).map(move |start| start..end.min(start.saturating_add(longest)))
    };
    documents.flat_map(cut).filter(|range| !range.is_empty()).collect()
}

fn cost(
    model: &Model,
    text: &Tokens,
    ranges: &[Range<usize>],
    sequences: &Sequences,
    state: &mut ModelState,
) -> f64 {
    let read: Vec<u32> = ranges.iter().flat_map(|range| text.get(range.clone())).collect();
    let targets: Vec<i64> =
        ranges.iter().flat_map(|range| text.get(range.start + 1..range.end + 1)).map(i64::from).collect();
    let hidden = model.hidden(ids(&read, &model.device()), sequences, state);
    predict(model, hidden, &targets).iter().flatten().map(|prediction| prediction.loss).sum()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::*;
    use crate::data::{Source, Tokenizer};

    fn tokens(texts: &[String]) -> Tokens {
        let folder = tempfile::tempdir().unwrap();
        let lines = texts.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n");
        std::fs::write(folder.path().join("a.jsonl"), lines.collect::<String>()).unwrap();
        let source = Source::open(folder.path()).unwrap();
        Tokens::open(&source, &Tokenizer::bytes(), &folder.path().join("cache"), &mut |_| true).unwrap()
    }

    fn letters(count: usize) -> String {
        (0..count).map(|i| char::from(b'a' + (i * i % 23) as u8)).collect()
    }

    #[test]
    fn every_token_is_foretold_once() {
        let text = tokens(&[letters(5), letters(12), letters(1)]);
        let whole = stretches(&text, Reading::Whole);
        assert_eq!(whole, [0..5, 6..18, 19..20]);
        let windows = stretches(&text, Reading::Windows(4));
        assert_eq!(windows, [0..4, 4..5, 6..10, 10..14, 14..18, 19..20]);
    }

    /// Long documents in pieces and short ones side by side cost what each costs in one call.
    #[test]
    fn pieces_cost_what_the_whole_costs() {
        let model = ModelConfig::preset("falcon-3a.3", "micro", 257).unwrap().init(3, &Device::flex()).unwrap();
        let text = tokens(&[letters(70), letters(TOKENS + 300), letters(9), letters(2)]);
        let mut seen = (0, 0);
        let score = text_score(&model, &text, Reading::Whole, &mut |done, all| {
            seen = (done, all);
            true
        })
        .unwrap();
        assert_eq!(seen, (score.tokens, score.tokens));
        assert_eq!(score.tokens, score.bytes);
        let one_by_one: f64 = stretches(&text, Reading::Whole)
            .into_iter()
            .map(|range| {
                let sequences = Sequences::uniform(1, range.len());
                cost(&model, &text, &[range], &sequences, &mut model.state(1))
            })
            .sum();
        assert!((score.nats - one_by_one).abs() < 1e-5 * one_by_one, "{} {one_by_one}", score.nats);
        // The last document by hand: what comes after its beginning and after its first letter.
        let last = text.get(text.documents()[3]..text.totals().tokens);
        let logits = model.forward(ids(&last[..2], &model.device()).unsqueeze()).squeeze_dim(0);
        let by_hand: f64 = falcon_nn::predictions(logits, &[last[1].into(), last[2].into()])
            .iter()
            .flatten()
            .map(|prediction| prediction.loss)
            .sum();
        let range = text.documents()[3]..text.totals().tokens - 1;
        let one = cost(&model, &text, &[range], &Sequences::uniform(1, 2), &mut model.state(1));
        assert!((one - by_hand).abs() < 1e-5 * by_hand, "{one} {by_hand}");
        let windows = text_score(&model, &text, Reading::Windows(16), &mut |_, _| true).unwrap();
        assert_eq!(windows.tokens, score.tokens);
        assert!(text_score(&model, &text, Reading::Whole, &mut |_, _| false).is_none());
    }

    #[test]
    fn perplexities_are_counted() {
        let score = TextScore { nats: 8.0 * 2f64.ln(), tokens: 4, bytes: 8, words: 2 };
        let got =
            [score.token_perplexity(), score.byte_perplexity(), score.word_perplexity(), score.bits_per_byte()];
        assert!(
            got.iter().zip([4.0, 2.0, 16.0, 1.0]).all(|(got, expected)| (got - expected).abs() < 1e-12),
            "{got:?}"
        );
    }
}
