//! The likelihood of a text as the continuation of another.

use burn::tensor::Tensor;
use falcon_nn::{Model, Sequences};

use crate::data::{Tokenizer, TokenizerError};
use crate::monitor::{Cancelled, Monitor};
use crate::predict::{predict, select_rows, tokens_per_call};

/// A request for the likelihood of a continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The tokens before it; not empty.
    pub context: Vec<u32>,
    /// The tokens that are scored; not empty.
    pub continuation: Vec<u32>,
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    /// The logarithm of the continuation's probability, in nats.
    pub log: f64,
    /// Whether each of its tokens is the most likely one.
    pub greedy: bool,
}

impl Request {
    /// Encodes texts as lm-evaluation-harness does: spaces at the end of the context belong to the continuation, both
    /// are encoded together, and an empty context is the beginning of a document.
    pub fn new(tokenizer: &Tokenizer, context: &str, continuation: &str) -> Result<Self, TokenizerError> {
        let trimmed = context.trim_end();
        let continuation = format!("{}{continuation}", &context[trimmed.len()..]);
        if trimmed.is_empty() {
            return Ok(Self::non_empty(tokenizer, Vec::new(), tokenizer.try_encode(&continuation)?));
        }
        let (context, mut whole) =
            (tokenizer.try_encode(trimmed)?, tokenizer.try_encode(&format!("{trimmed}{continuation}"))?);
        // A tokenizer may join the end of the context with the continuation, of which at least one token must be left.
        let cut = context.len().min(whole.len().saturating_sub(1));
        let continuation = whole.split_off(cut);
        Ok(Self::non_empty(tokenizer, context, continuation))
    }

    /// Replaces an empty list of tokens by the token that begins a document: a tokenizer may encode some text, such as
    /// control characters, to no tokens.
    fn non_empty(tokenizer: &Tokenizer, context: Vec<u32>, continuation: Vec<u32>) -> Self {
        let [context, continuation] =
            [context, continuation].map(|tokens| if tokens.is_empty() { vec![tokenizer.begin()] } else { tokens });
        Self { context, continuation }
    }
}

/// The most sequences in one call, unless a single context has more requests.
const SEQUENCES: usize = 256;

/// The likelihoods of `requests`. A context that several requests share is read once. `monitor` receives the number of
/// requests done, also while a long context is read, so that reading can be cancelled.
pub(super) fn likelihoods(
    model: &Model,
    requests: &[Request],
    monitor: &mut dyn Monitor,
) -> Result<Vec<Likelihood>, Cancelled> {
    let mut answers = vec![Likelihood { log: 0.0, greedy: true }; requests.len()];
    // Group requests by context.
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by(|a, b| requests[*a].context.cmp(&requests[*b].context));
    let mut groups: Vec<&[usize]> = order.chunk_by(|a, b| requests[*a].context == requests[*b].context).collect();
    // Sort groups by length, so that the contexts of one call have similar lengths.
    groups.sort_by_key(|group| requests[group[0]].context.len());
    let most = tokens_per_call(model);
    let mut done = 0;
    while !groups.is_empty() {
        let (mut tokens, mut sequences, mut count) = (0, 0, 0);
        for group in &groups {
            let continuations: usize = group.iter().map(|i| requests[*i].continuation.len()).sum();
            tokens += requests[group[0]].context.len() + continuations;
            sequences += group.len();
            if count > 0 && (tokens > most || sequences > SEQUENCES) {
                break;
            }
            count += 1;
        }
        let batch: Vec<&[usize]> = groups.drain(..count).collect();
        score(model, requests, &batch, &mut answers, &mut || monitor.report(done, Some(requests.len())))?;
        done += batch.iter().map(|group| group.len()).sum::<usize>();
        monitor.report(done, Some(requests.len()))?;
    }
    Ok(answers)
}

/// Scores the requests of some groups in one call. `check` is called after every piece of a context that is too long
/// for one call, and may cancel.
fn score(
    model: &Model,
    requests: &[Request],
    groups: &[&[usize]],
    answers: &mut [Likelihood],
    check: &mut dyn FnMut() -> Result<(), Cancelled>,
) -> Result<(), Cancelled> {
    let mut contexts: Vec<&[u32]> = groups.iter().map(|group| requests[group[0]].context.as_slice()).collect();
    let mut state = model.state(groups.len());
    let most = tokens_per_call(model);
    if let [context] = &mut contexts[..] {
        while context.len() > most {
            let (piece, rest) = context.split_at(most);
            model.hidden(piece, &Sequences::uniform(1, most), &mut state);
            *context = rest;
            check()?;
        }
    }
    let lengths: Vec<usize> = contexts.iter().map(|context| context.len()).collect();
    let sequences = Sequences::packed(&lengths);
    let read = model.hidden(&contexts.concat(), &sequences, &mut state);
    // The first token of a continuation is predicted from the end of its context, the others from the token before.
    let ends: Vec<usize> = sequences.offsets()[1..].iter().map(|end| end - 1).collect();
    let flat: Vec<(usize, usize)> =
        groups.iter().enumerate().flat_map(|(group, members)| members.iter().map(move |i| (group, *i))).collect();
    let first: Vec<usize> = flat.iter().map(|(group, _)| ends[*group]).collect();
    let mut hidden = vec![select_rows(read, &first)];
    let mut targets: Vec<Option<u32>> = flat.iter().map(|(_, i)| Some(requests[*i].continuation[0])).collect();
    let mut owners: Vec<usize> = flat.iter().map(|(_, i)| *i).collect();
    let long: Vec<&(usize, usize)> = flat.iter().filter(|(_, i)| requests[*i].continuation.len() > 1).collect();
    if !long.is_empty() {
        let picks: Vec<usize> = long.iter().map(|(group, _)| *group).collect();
        let mut state = model.select(&state, &picks);
        let continuation = |i: usize| &requests[i].continuation;
        let read = |i: usize| &continuation(i)[..continuation(i).len() - 1];
        let tokens: Vec<u32> = long.iter().flat_map(|(_, i)| read(*i)).copied().collect();
        let lengths: Vec<usize> = long.iter().map(|(_, i)| read(*i).len()).collect();
        hidden.push(model.hidden(&tokens, &Sequences::packed(&lengths), &mut state));
        for (_, i) in long {
            targets.extend(continuation(*i)[1..].iter().copied().map(Some));
            owners.extend(vec![*i; read(*i).len()]);
        }
    }
    let predictions = predict(model, Tensor::cat(hidden, 0), &targets);
    for (owner, prediction) in owners.into_iter().zip(predictions) {
        let prediction = prediction.expect("every row has a target");
        answers[owner].log -= prediction.loss;
        answers[owner].greedy &= prediction.right;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use falcon_nn::{ModelConfig, predictions};

    use super::*;
    use crate::monitor::from_fn;

    #[test]
    fn texts_are_divided_as_the_harness_does() {
        let bytes = Tokenizer::bytes();
        let tokens = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let request = Request::new(&bytes, "A: ", "yes").unwrap();
        assert_eq!((request.context, request.continuation), (tokens("A:"), tokens(" yes")));
        let request = Request::new(&bytes, "", " yes").unwrap();
        assert_eq!((request.context, request.continuation), (vec![256], tokens(" yes")));
    }

    /// Every likelihood is the same as that of the request by itself, computed in one piece.
    #[test]
    fn shared_contexts_and_batches_change_no_likelihood() {
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
            let mut watch = from_fn(|done| {
                seen = done;
                true
            });
            let got = likelihoods(&model, &requests, &mut watch);
            drop(watch);
            assert_eq!(seen, requests.len());
            for (request, got) in requests.iter().zip(got.unwrap()) {
                let all = [request.context.clone(), request.continuation.clone()].concat();
                let read = &all[..all.len() - 1];
                let logits = model.run(read, &Sequences::uniform(1, read.len()), &mut model.state(1));
                let first = request.context.len() - 1;
                let targets = all[1..].iter().enumerate().map(|(i, token)| (i >= first).then_some(*token));
                let predicted = predictions(logits, &targets.collect::<Vec<_>>());
                let (log, greedy) = predicted
                    .iter()
                    .flatten()
                    .fold((0.0, true), |(log, greedy), p| (log - p.loss, greedy && p.right));
                assert!((got.log - log).abs() < 1e-4 * log.abs().max(1.0), "{preset}: {} and {log}", got.log);
                assert_eq!(got.greedy, greedy);
            }
            assert!(likelihoods(&model, &requests, &mut from_fn(|_| false)).is_err());
        }
    }

    /// A context that is too long for one call is read in pieces, which gives the same result and can be cancelled in
    /// between.
    #[test]
    fn long_contexts_are_read_in_pieces() {
        let model = ModelConfig::preset("falcon-3a.3", "micro", 20).unwrap().init(3, &Device::flex()).unwrap();
        let most = tokens_per_call(&model);
        let context: Vec<u32> = (0..2 * most as u32 + 5).map(|i| (i * i + 3) % 20).collect();
        let requests =
            [[1, 2], [3, 4]].map(|end| Request { context: context.clone(), continuation: end.to_vec() });
        let mut checks = 0;
        let mut watch = from_fn(|_| {
            checks += 1;
            true
        });
        let got = likelihoods(&model, &requests, &mut watch);
        drop(watch);
        assert_eq!(checks, 3, "one after each of two pieces, and one at the end");
        let mut state = model.state(1);
        let read = model.run(&context, &Sequences::uniform(1, context.len()), &mut state);
        let last = read.slice_dim(0, context.len() - 1..context.len());
        let first = predictions(last, &[Some(1)])[0].as_ref().unwrap().loss;
        let second = model.run(&[1], &Sequences::uniform(1, 1), &mut state);
        let log = -first - predictions(second, &[Some(2)])[0].as_ref().unwrap().loss;
        let got = got.unwrap()[0].log;
        assert!((got - log).abs() < 1e-4 * log.abs(), "{got} {log}");
        assert!(likelihoods(&model, &requests, &mut from_fn(|_| false)).is_err());
    }
}
