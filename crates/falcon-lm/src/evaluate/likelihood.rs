//! How likely a text is after another.

use burn::tensor::Tensor;
use falcon_nn::{Model, Sequences};

use super::{ids, predict, tokens_per_call, whole_numbers};
use crate::data::{Tokenizer, TokenizerError};

/// What is asked: the likelihood of a continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What comes before; not empty.
    pub context: Vec<u32>,
    /// What is scored; not empty.
    pub continuation: Vec<u32>,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    /// The logarithm of the continuation's probability, in nats.
    pub log: f64,
    /// Whether each of its tokens is the likeliest.
    pub greedy: bool,
}

impl Request {
    /// Of texts, as lm-evaluation-harness divides them: spaces at the end of a context belong to what comes after, both are made into tokens
    /// together, and an empty context is the beginning of a document.
    pub fn new(tokenizer: &Tokenizer, context: &str, continuation: &str) -> Result<Self, TokenizerError> {
        let trimmed = context.trim_end();
        let continuation = format!("{}{continuation}", &context[trimmed.len()..]);
        if trimmed.is_empty() {
            return Ok(Self::of(tokenizer, Vec::new(), tokenizer.try_encode(&continuation)?));
        }
        let (context, mut whole) =
            (tokenizer.try_encode(trimmed)?, tokenizer.try_encode(&format!("{trimmed}{continuation}"))?);
        // A tokenizer may join the two; what is scored is never nothing.
        let cut = context.len().min(whole.len().saturating_sub(1));
        let continuation = whole.split_off(cut);
        Ok(Self::of(tokenizer, context, continuation))
    }

    /// A tokenizer may make nothing of a text, such as of control characters; for the model it is then the end of a document.
    fn of(tokenizer: &Tokenizer, context: Vec<u32>, continuation: Vec<u32>) -> Self {
        let [context, continuation] =
            [context, continuation].map(|tokens| if tokens.is_empty() { vec![tokenizer.begin()] } else { tokens });
        Self { context, continuation }
    }
}

/// Sequences side by side, at most; more if one context alone has more requests.
const SEQUENCES: usize = 256;

/// The likelihoods of `requests`. A context that several have is read once. `progress` is told how many are done,
/// and may say to stop by false. It is asked again and again while a long context is read.
pub(super) fn likelihoods(
    model: &Model,
    requests: &[Request],
    progress: &mut dyn FnMut(usize) -> bool,
) -> Option<Vec<Likelihood>> {
    let mut answers = vec![Likelihood { log: 0.0, greedy: true }; requests.len()];
    // Requests of one context come together.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by(|a, b| requests[*a].context.cmp(&requests[*b].context));
    let mut groups: Vec<&[usize]> = order.chunk_by(|a, b| requests[*a].context == requests[*b].context).collect();
    // By length, so that those of one call have about the same.
    groups.sort_by_key(|group| requests[group[0]].context.len());
    let most = tokens_per_call(model);
    let mut done = 0;
    while !groups.is_empty() {
        let (mut tokens, mut sequences, mut count) = (0, 0, 0);
        for group in &groups {
            let asked: usize = group.iter().map(|i| requests[*i].continuation.len()).sum();
            tokens += requests[group[0]].context.len() + asked;
            sequences += group.len();
            if count > 0 && (tokens > most || sequences > SEQUENCES) {
                break;
            }
            count += 1;
        }
        let batch: Vec<&[usize]> = groups.drain(..count).collect();
        if !score(model, requests, &batch, &mut answers, &mut || progress(done)) {
            return None;
        }
        done += batch.iter().map(|group| group.len()).sum::<usize>();
        if !progress(done) {
            return None;
        }
    }
    Some(answers)
}

/// False if `going` said to stop by false, which is asked after every piece of a context that is too long for one call.
fn score(
    model: &Model,
    requests: &[Request],
    groups: &[&[usize]],
    answers: &mut [Likelihood],
    going: &mut dyn FnMut() -> bool,
) -> bool {
    let device = model.device();
    let mut contexts: Vec<&[u32]> = groups.iter().map(|group| requests[group[0]].context.as_slice()).collect();
    let mut state = model.state(groups.len());
    let most = tokens_per_call(model);
    if let [context] = &mut contexts[..] {
        while context.len() > most {
            let (piece, rest) = context.split_at(most);
            model.hidden(ids(piece, &device), &Sequences::uniform(1, most), &mut state);
            *context = rest;
            if !going() {
                return false;
            }
        }
    }
    let lengths: Vec<usize> = contexts.iter().map(|context| context.len()).collect();
    let sequences = Sequences::packed(&lengths);
    let read = model.hidden(ids(&contexts.concat(), &device), &sequences, &mut state);
    // The first token of a continuation follows its context, the others each other.
    let ends: Vec<i32> = sequences.offsets()[1..].iter().map(|end| *end as i32 - 1).collect();
    let flat: Vec<(usize, usize)> =
        groups.iter().enumerate().flat_map(|(group, members)| members.iter().map(move |i| (group, *i))).collect();
    let first: Vec<i32> = flat.iter().map(|(group, _)| ends[*group]).collect();
    let mut hidden = vec![read.select(0, whole_numbers(first, &device))];
    let mut targets: Vec<i64> = flat.iter().map(|(_, i)| i64::from(requests[*i].continuation[0])).collect();
    let mut owners: Vec<usize> = flat.iter().map(|(_, i)| *i).collect();
    let long: Vec<&(usize, usize)> = flat.iter().filter(|(_, i)| requests[*i].continuation.len() > 1).collect();
    if !long.is_empty() {
        let picks: Vec<usize> = long.iter().map(|(group, _)| *group).collect();
        let mut state = model.select(&state, &picks);
        let of = |i: usize| &requests[i].continuation;
        let tokens: Vec<u32> = long.iter().flat_map(|(_, i)| &of(*i)[..of(*i).len() - 1]).copied().collect();
        let lengths: Vec<usize> = long.iter().map(|(_, i)| of(*i).len() - 1).collect();
        hidden.push(model.hidden(ids(&tokens, &device), &Sequences::packed(&lengths), &mut state));
        for (_, i) in long {
            targets.extend(of(*i)[1..].iter().map(|token| i64::from(*token)));
            owners.extend(vec![*i; of(*i).len() - 1]);
        }
    }
    let said = predict(model, Tensor::cat(hidden, 0), &targets);
    for (owner, prediction) in owners.into_iter().zip(said) {
        let prediction = prediction.expect("every row has a target");
        answers[owner].log -= prediction.loss;
        answers[owner].greedy &= prediction.right;
    }
    true
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use falcon_nn::{IGNORED, ModelConfig, predictions};

    use super::*;

    #[test]
    fn texts_are_divided_as_the_harness_does() {
        let bytes = Tokenizer::bytes();
        let of = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let request = Request::new(&bytes, "A: ", "yes").unwrap();
        assert_eq!((request.context, request.continuation), (of("A:"), of(" yes")));
        let request = Request::new(&bytes, "", " yes").unwrap();
        assert_eq!((request.context, request.continuation), (vec![256], of(" yes")));
    }

    /// Shared contexts and batches change nothing: each request by itself, in one piece.
    #[test]
    fn sharing_changes_nothing() {
        for preset in ["falcon-3a.3", "transformer", "mamba2"] {
            let model = ModelConfig::preset(preset, "micro", 20).unwrap().init(3, &Device::flex()).unwrap();
            let tokens =
                |seed: u32, count: u32| (0..count).map(|i| (seed * 7 + i * i * 3 + i) % 20).collect::<Vec<u32>>();
            let mut requests = Vec::new();
            for context in 0..40 {
                for choice in 0..3 {
                    let context = tokens(context / 2, 1 + context % 5);
                    requests.push(Request { context, continuation: tokens(choice + 30, 1 + (choice * 2) % 3) });
                }
            }
            let mut seen = 0;
            let got = likelihoods(&model, &requests, &mut |done| {
                seen = done;
                true
            });
            assert_eq!(seen, requests.len());
            for (request, got) in requests.iter().zip(got.unwrap()) {
                let all = [request.context.clone(), request.continuation.clone()].concat();
                let logits = model.forward(ids(&all[..all.len() - 1], &model.device()).unsqueeze());
                let asked = request.context.len() - 1;
                let targets: Vec<i64> = all[1..]
                    .iter()
                    .enumerate()
                    .map(|(i, token)| if i < asked { IGNORED } else { i64::from(*token) })
                    .collect();
                let said = predictions(logits.squeeze_dim(0), &targets);
                let (log, greedy) =
                    said.iter().flatten().fold((0.0, true), |(log, greedy), p| (log - p.loss, greedy && p.right));
                assert!((got.log - log).abs() < 1e-4 * log.abs().max(1.0), "{preset}: {} and {log}", got.log);
                assert_eq!(got.greedy, greedy);
            }
            assert!(likelihoods(&model, &requests, &mut |_| false).is_none());
        }
    }

    /// A context that is too long for one call is read piece by piece, which changes nothing, and can be stopped
    /// within.
    #[test]
    fn long_contexts_are_read_in_pieces() {
        let model = ModelConfig::preset("falcon-3a.3", "micro", 20).unwrap().init(3, &Device::flex()).unwrap();
        let most = tokens_per_call(&model);
        let context: Vec<u32> = (0..2 * most as u32 + 5).map(|i| (i * i + 3) % 20).collect();
        let requests =
            [[1, 2], [3, 4]].map(|end| Request { context: context.clone(), continuation: end.to_vec() });
        let mut asked = 0;
        let got = likelihoods(&model, &requests, &mut |_| {
            asked += 1;
            true
        });
        assert_eq!(asked, 3, "after two pieces and at the end");
        let mut state = model.state(1);
        let read = model.run(ids(&context, &model.device()), &Sequences::uniform(1, context.len()), &mut state);
        let last = read.slice_dim(0, context.len() - 1..context.len());
        let first = predictions(last, &[1])[0].as_ref().unwrap().loss;
        let second = model.run(ids(&[1], &model.device()), &Sequences::uniform(1, 1), &mut state);
        let log = -first - predictions(second, &[2])[0].as_ref().unwrap().loss;
        let got = got.unwrap()[0].log;
        assert!((got - log).abs() < 1e-4 * log.abs(), "{got} {log}");
        assert!(likelihoods(&model, &requests, &mut |_| false).is_none());
    }
}
