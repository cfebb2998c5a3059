//! Text generation, token by token, in memory that does not grow with the text.

mod sampling;
mod stream;
mod text;

use burn::tensor::Tensor;
use falcon_nn::{Model, ModelState};

pub use self::sampling::{Sampling, SamplingError};
pub use self::stream::{Stream, StreamError};
pub use self::text::{Continuation, EndedBy};

/// Continues several sequences at the same time, by one token each per step. For every generated token, `on_token` is
/// called with the number of its sequence, counted from `first`, and the token. When `on_token` returns false, the
/// sequence ends. Every sequence must have at least one token. Returns the sequences with their new tokens, in the
/// order in which they were given.
pub fn generate(
    model: &Model,
    streams: Vec<Stream>,
    sampling: &Sampling,
    first: usize,
    mut on_token: impl FnMut(usize, u32) -> bool,
) -> Vec<Stream> {
    let mut finished: Vec<Option<Stream>> = streams.iter().map(|_| None).collect();
    let (states, mut active): (Vec<ModelState>, Vec<Active>) = streams
        .into_iter()
        .enumerate()
        .map(|(index, Stream { state, last, seen })| {
            (state, Active { number: first + index, last: last.expect("a token to continue from"), seen })
        })
        .unzip();
    let mut state = model.join(states);
    while !active.is_empty() {
        let last: Vec<u32> = active.iter().map(|sequence| sequence.last).collect();
        let logits: Tensor<2> = model.step(&last, &mut state);
        let logits: Vec<f32> = logits.into_data().try_to_vec().expect("logits are f32");
        let rows = logits.chunks_exact(model.config().vocab_size);
        let mut done = Vec::new();
        for (index, (sequence, logits)) in active.iter_mut().zip(rows).enumerate() {
            let token = sampling.choose(logits, &sequence.seen, sequence.number, state.positions()[index]);
            sequence.seen[token as usize] = true;
            sequence.last = token;
            if !on_token(sequence.number, token) {
                done.push(index);
            }
        }
        if !done.is_empty() {
            for index in &done {
                let Active { number, last, seen } = &active[*index];
                let state = model.select(&state, &[*index]);
                finished[*number - first] = Some(Stream { state, last: Some(*last), seen: seen.clone() });
            }
            let rest: Vec<usize> = (0..active.len()).filter(|index| !done.contains(index)).collect();
            state = model.select(&state, &rest);
            active = rest.into_iter().map(|index| active[index].clone()).collect();
        }
    }
    finished.into_iter().map(|stream| stream.expect("all sequences have ended")).collect()
}

/// A sequence that has not ended yet.
#[derive(Clone)]
struct Active {
    number: usize,
    last: u32,
    seen: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use burn::tensor::Device;
    use falcon_nn::ModelConfig;

    use super::stream::MOST_TOKENS;
    use super::*;
    use crate::monitor::from_fn;

    fn model(preset: &str) -> Model {
        ModelConfig::preset(preset, "micro", 30).unwrap().init(3, &Device::flex()).unwrap()
    }

    fn stream(model: &Model, tokens: &[u32]) -> Stream {
        let mut stream = Stream::new(model);
        stream.read(model, tokens, &mut ()).unwrap();
        stream
    }

    /// Generates `counts` tokens of each sequence. Returns the tokens and the sequences.
    fn continued(
        model: &Model,
        streams: Vec<Stream>,
        sampling: &Sampling,
        counts: &[usize],
    ) -> (Vec<Vec<u32>>, Vec<Stream>) {
        let mut generated = vec![Vec::new(); streams.len()];
        let streams = generate(model, streams, sampling, 0, |sequence, token| {
            generated[sequence].push(token);
            generated[sequence].len() < counts[sequence]
        });
        (generated, streams)
    }

    #[test]
    fn a_restored_sequence_continues_as_an_uninterrupted_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let sampling = Sampling { repetition_penalty: 1.3, top_k: NonZeroUsize::new(20), ..Sampling::default() };
        for &preset in falcon_nn::PRESETS {
            let model = model(preset);
            let begun = stream(&model, &[3, 1, 4, 1, 5]);
            let (whole, _) = continued(&model, vec![begun.clone()], &sampling, &[24]);
            let (first, streams) = continued(&model, vec![begun], &sampling, &[9]);
            assert_eq!(streams[0].position(), 14);
            streams[0].save(&model, "abc", &path).unwrap();
            let restored = Stream::load(&model, "abc", &path).unwrap();
            assert_eq!((restored.position(), &restored.seen), (14, &streams[0].seen));
            let (second, _) = continued(&model, vec![restored], &sampling, &[15]);
            assert_eq!([first[0].clone(), second[0].clone()].concat(), whole[0], "{preset}");
            let other = Stream::load(&model, "abd", &path).unwrap_err().to_string();
            assert!(other.contains("fingerprint abc, but this model's weights have abd"), "{other}");
        }
        model("retnet").save_state(&model("retnet").state(1), &path).unwrap();
        let message = Stream::load(&model("retnet"), "abc", &path).unwrap_err().to_string();
        assert!(message.contains("does not name its model"), "{message}");
    }

    #[test]
    fn sequences_continued_together_equal_those_continued_alone() {
        for preset in ["falcon-3.3", "transformer"] {
            let model = model(preset);
            let prompts: [&[u32]; 3] = [&[1, 2, 3], &[7], &[9, 9, 4, 2, 5, 1]];
            let streams: Vec<Stream> = prompts.iter().map(|prompt| stream(&model, prompt)).collect();
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            let (together, ends) = continued(&model, streams.clone(), &greedy, &[12, 3, 8]);
            assert_eq!(ends.iter().map(Stream::position).collect::<Vec<_>>(), [15, 4, 14]);
            for (index, count) in [12, 3, 8].into_iter().enumerate() {
                let (alone, _) = continued(&model, vec![streams[index].clone()], &greedy, &[count]);
                assert_eq!(alone[0], together[index], "{preset}");
            }
        }
    }

    #[test]
    fn long_texts_are_read_in_pieces() {
        let model = model("falcon-1.3");
        let tokens: Vec<u32> = (0..2 * MOST_TOKENS as u32 + 77).map(|i| i * i % 30).collect();
        let whole = stream(&model, &tokens);
        let mut parts = Stream::new(&model);
        for part in [&tokens[..1], &tokens[1..6000], &tokens[6000..]] {
            parts.read(&model, part, &mut ()).unwrap();
        }
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!((parts.position(), parts.bytes()), (tokens.len(), stream(&model, &[1, 2]).bytes()));
        let generated = |stream: Stream| continued(&model, vec![stream], &greedy, &[5]).0;
        assert_eq!(generated(parts), generated(whole));
        let mut stopped = Stream::new(&model);
        assert!(
            stopped.read(&model, &tokens, &mut from_fn(|_| false)).is_err() && stopped.position() == MOST_TOKENS
        );
    }
}
