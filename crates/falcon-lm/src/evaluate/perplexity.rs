//! How well a model predicts text.

use std::ops::Range;

use falcon_nn::{Model, ModelState, Sequences};

use crate::data::{Tokens, Totals};
use crate::monitor::{Cancelled, Monitor};
use crate::predict::{predict, tokens_per_call};
use crate::scores::TextScore;

/// How text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Every document from beginning to end, with the state carried all the way.
    Whole,
    /// In windows of this many tokens, each from a fresh state.
    Windows(usize),
    /// The same, but the last window of a document starts early enough to be as long as the others, as
    /// lm-evaluation-harness has it. The tokens that it shares with the window before are read again, but not counted
    /// again.
    FullWindows(usize),
}

/// Consecutive tokens that are read from a fresh state, each to predict the next.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    /// The tokens that are read.
    read: Range<usize>,
    /// The first of them whose prediction counts.
    counted: usize,
}

impl Stretch {
    fn len(&self) -> usize {
        self.read.len()
    }

    /// The number of tokens whose predictions count.
    fn counts(&self) -> usize {
        self.read.end - self.counted.clamp(self.read.start, self.read.end)
    }
}

/// The score of a text. The progress that `monitor` receives is the number of tokens predicted so far.
pub(super) fn text_score(
    model: &Model,
    text: &Tokens,
    reading: Reading,
    monitor: &mut dyn Monitor,
) -> Result<TextScore, Cancelled> {
    let Totals { tokens, documents, bytes, words } = text.totals();
    let all = tokens - documents;
    let most = tokens_per_call(model);
    let (mut nats, mut done) = (0.0, 0);
    let mut stretches = stretches(text, reading).into_iter().peekable();
    while let Some(first) = stretches.next() {
        // As many stretches as fit into one call; a longer one alone, in pieces.
        let mut together = vec![first];
        let mut size = together[0].len();
        while let Some(next) = stretches.next_if(|next| size + next.len() <= most) {
            size += next.len();
            together.push(next);
        }
        let mut state = model.state(together.len());
        if size <= most {
            nats += cost(model, text, &together, &mut state);
            done += together.iter().map(Stretch::counts).sum::<usize>();
            monitor.report(done, Some(all))?;
            continue;
        }
        let Stretch { read, counted } = together.remove(0);
        for start in read.clone().step_by(most) {
            let piece = Stretch { read: start..read.end.min(start + most), counted };
            done += piece.counts();
            nats += cost(model, text, &[piece], &mut state);
            monitor.report(done, Some(all))?;
        }
    }
    Ok(TextScore { nats, tokens: all, bytes, words })
}

/// The stretches of a text. The last token of a document is not read, because it predicts nothing.
fn stretches(text: &Tokens, reading: Reading) -> Vec<Stretch> {
    let starts = text.documents();
    let ends = starts[1..].iter().copied().chain([text.totals().tokens]);
    let documents = starts.iter().zip(ends).map(|(start, end)| *start..end - 1);
    let (longest, full) = match reading {
        Reading::Whole => (usize::MAX, false),
        Reading::Windows(length) => (length.max(1), false),
        Reading::FullWindows(length) => (length.max(1), true),
    };
    let cut = |document: Range<usize>| {
        document.clone().step_by(longest).map(move |counted| {
            let end = document.end.min(counted.saturating_add(longest));
            let start = if full { document.start.max(end.saturating_sub(longest)) } else { counted };
            Stretch { read: start..end, counted }
        })
    };
    documents.flat_map(cut).collect()
}

/// The negative log-likelihood of stretches that are read side by side, each from its part of `state`.
fn cost(model: &Model, text: &Tokens, stretches: &[Stretch], state: &mut ModelState) -> f64 {
    let read: Vec<u32> = stretches.iter().flat_map(|stretch| text.get(stretch.read.clone())).collect();
    let targets = stretches.iter().flat_map(|Stretch { read, counted }| {
        let next = text.get(read.start + 1..read.end + 1);
        read.clone().zip(next).map(|(at, next)| (at >= *counted).then_some(next))
    });
    let targets: Vec<Option<u32>> = targets.collect();
    let sequences = Sequences::packed(&stretches.iter().map(Stretch::len).collect::<Vec<_>>());
    let hidden = model.hidden(&read, &sequences, state);
    predict(model, hidden, &targets).iter().flatten().map(|prediction| prediction.loss).sum()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::*;
    use crate::data::{Check, Source, Tokenizer};
    use crate::monitor::from_fn;
    use crate::predict::TOKENS;

    fn tokens(texts: &[String]) -> Tokens {
        let folder = tempfile::tempdir().unwrap();
        let lines = texts.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n");
        std::fs::write(folder.path().join("a.jsonl"), lines.collect::<String>()).unwrap();
        let source = Source::open(folder.path()).unwrap();
        Tokens::open(&source, &Tokenizer::bytes(), &folder.path().join("cache"), Check::Sampled, &mut ()).unwrap()
    }

    fn letters(count: usize) -> String {
        (0..count).map(|i| char::from(b'a' + (i * i % 23) as u8)).collect()
    }

    #[test]
    fn every_token_is_predicted_once() {
        let text = tokens(&[letters(5), letters(12), letters(1)]);
        let ranges = |reading| -> Vec<(Range<usize>, usize)> {
            stretches(&text, reading).into_iter().map(|Stretch { read, counted }| (read, counted)).collect()
        };
        assert_eq!(ranges(Reading::Whole), [(0..5, 0), (6..18, 6), (19..20, 19)]);
        let windows = [(0..4, 0), (4..5, 4), (6..10, 6), (10..14, 10), (14..18, 14), (19..20, 19)];
        assert_eq!(ranges(Reading::Windows(4)), windows);
        // The last window of the first document is as long as the one before; the last document is shorter than a
        // window.
        let full = [(0..4, 0), (1..5, 4), (6..10, 6), (10..14, 10), (14..18, 14), (19..20, 19)];
        assert_eq!(ranges(Reading::FullWindows(4)), full);
    }

    /// Long documents in pieces and short ones side by side cost what each costs in one call.
    #[test]
    fn pieces_cost_what_the_whole_costs() {
        let model = ModelConfig::preset("falcon-3a.3", "micro", 257).unwrap().init(3, &Device::flex()).unwrap();
        let text = tokens(&[letters(70), letters(TOKENS + 300), letters(9), letters(2)]);
        let mut seen = 0;
        let mut watch = from_fn(|done| {
            seen = done;
            true
        });
        let score = text_score(&model, &text, Reading::Whole, &mut watch).unwrap();
        drop(watch);
        assert_eq!(seen, score.tokens);
        assert_eq!(score.tokens, score.bytes);
        let one_by_one: f64 = stretches(&text, Reading::Whole)
            .into_iter()
            .map(|stretch| cost(&model, &text, &[stretch], &mut model.state(1)))
            .sum();
        assert!((score.nats - one_by_one).abs() < 1e-5 * one_by_one, "{} {one_by_one}", score.nats);
        // The last document, of two letters, by hand: each letter is predicted from what is before it.
        let last = text.get(text.documents()[3]..text.totals().tokens);
        let logits = model.run(&last[..2], &Sequences::uniform(1, 2), &mut model.state(1));
        let predicted = falcon_nn::predictions(logits, &[Some(last[1]), Some(last[2])]);
        let by_hand: f64 = predicted.iter().flatten().map(|prediction| prediction.loss).sum();
        let read = text.documents()[3]..text.totals().tokens - 1;
        let counted = read.start;
        let one = cost(&model, &text, &[Stretch { read: read.clone(), counted }], &mut model.state(1));
        assert!((one - by_hand).abs() < 1e-5 * by_hand, "{one} {by_hand}");
        // The same, without the prediction of the first letter.
        let rest = cost(&model, &text, &[Stretch { read, counted: counted + 1 }], &mut model.state(1));
        let expected = predicted[1].as_ref().unwrap().loss;
        assert!((rest - expected).abs() < 1e-5 * expected, "{rest} {expected}");
        let windows = text_score(&model, &text, Reading::Windows(16), &mut ()).unwrap();
        assert_eq!(windows.tokens, score.tokens);
        // A last window of more than one call: the tokens that it shares with the window before are not counted again.
        let mut seen = 0;
        let mut watch = from_fn(|done| {
            seen = done;
            true
        });
        let full = text_score(&model, &text, Reading::FullWindows(TOKENS + 100), &mut watch);
        drop(watch);
        assert_eq!(seen, score.tokens);
        let [long, last] = [TOKENS + 100, 200].map(|count| count as f64);
        let difference = score.nats - full.unwrap().nats;
        assert!(difference.abs() < 0.01 * score.nats * last / (long + last), "{difference} of {}", score.nats);
        assert!(text_score(&model, &text, Reading::Whole, &mut from_fn(|_| false)).is_err());
    }

    #[test]
    fn perplexities_are_per_token_byte_and_word() {
        let score = TextScore { nats: 8.0 * 2f64.ln(), tokens: 4, bytes: 8, words: 2 };
        let got =
            [score.token_perplexity(), score.byte_perplexity(), score.word_perplexity(), score.bits_per_byte()];
        assert!(
            got.iter().zip([4.0, 2.0, 16.0, 1.0]).all(|(got, expected)| (got - expected).abs() < 1e-12),
            "{got:?}"
        );
    }
}
