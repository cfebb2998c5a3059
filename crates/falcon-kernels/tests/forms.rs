//! The three forms and the decoder compute the same function, for every rule.

use falcon_kernels::rule::{Align, Columns, Decay, Gain, Normaliser, Objective, Read};
use falcon_kernels::{Call, Form, Inputs, Rule, View};
use falcon_testkit::{Case, Spec, assert_close};
use proptest::prelude::*;

/// Any valid rule.
fn rules() -> impl Strategy<Value = Rule> {
    let objectives = prop::sample::select(&Objective::ALL);
    let gains = prop::sample::select(&Gain::ALL);
    let decays = prop::sample::select(&Decay::ALL);
    let clamp = prop::sample::select(vec![None, Some(1e-3), Some(0.3)]);
    let flags = prop::array::uniform4(any::<bool>());
    let any_rule = (objectives, gains, decays, 1..6usize, clamp, flags).prop_map(
        |(objective, gain, decay, window, clamp, [each, next, after, normalised])| Rule {
            objective,
            columns: if each { Columns::Each } else { Columns::Shared },
            window: if each { 1 } else { window },
            align: if next { Align::Next } else { Align::Same },
            read: if after { Read::After } else { Read::Before },
            gain,
            decay,
            eps: 1e-6,
            clamp,
            normaliser: normalised.then_some(Normaliser { eps: 1e-6 }),
        },
    );
    any_rule.prop_filter("a valid rule", |rule| rule.validate().is_ok())
}

/// Any rule on any small batch.
fn specs() -> impl Strategy<Value = Spec> {
    let lengths = prop::collection::vec(0..24usize, 0..4);
    let sizes = (1..3usize, 1..3usize, 1..6usize, 1..6usize);
    let gates = prop::sample::select(vec![(0.5, 1.0), (0.0, 1.0), (0.0, 0.0)]);
    (rules(), lengths, sizes, gates, any::<bool>(), any::<u64>()).prop_map(
        |(rule, lengths, (key_heads, group, dim_k, dim_v), gate, continued, seed)| Spec {
            // With gates of 0, a normalised read would see a single pair. It would not depend on the key of that pair,
            // so the gradient of the key would be rounding errors only.
            gate: if rule.normaliser.is_some() { (0.5, 1.0) } else { gate },
            lengths,
            heads: key_heads * group,
            key_heads,
            // A normalised read with keys of width 1 does not depend on the query, so its gradient would be rounding
            // errors only.
            dim_k: dim_k + usize::from(rule.normaliser.is_some()),
            dim_v,
            continued,
            // A unit step on keys of this norm neither explodes nor vanishes within a few dozen tokens.
            key_norm: if rule.gain == Gain::Unit { 0.7 } else { 1.0 },
            ..Spec::new(rule, 0, seed)
        },
    )
}

const TOLERANCE: f64 = 1e-9;

/// A few hundred cases of each property; `PROPTEST_CASES` sets another number.
fn config() -> ProptestConfig {
    falcon_kernels::poison_scratch();
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn forms_agree(spec in specs(), chunk in 1..12usize) {
        let case = Case::new(&spec);
        let expected = case.run(Form::Recurrent).all();
        for form in [Form::Masked, Form::Chunked { chunk }, Form::CHUNKED] {
            assert_close(&format!("{form:?}"), &case.run(form).all(), &expected, TOLERANCE);
        }
    }

    #[test]
    fn the_decoder_agrees(spec in specs(), tokens in 0..12usize) {
        let case = Case::new(&Spec { lengths: vec![tokens; spec.lengths.len()], ..spec });
        let expected = case.forward(Form::Recurrent).forward();
        assert_close("decoder", &case.decode().forward(), &expected, TOLERANCE);
    }

    /// A sequence that is cut anywhere gives the outputs, the state and the gradients of the whole.
    #[test]
    fn pieces_equal_the_whole(spec in specs(), cuts in prop::collection::vec(0..24usize, 1..4), chunk in 1..9usize) {
        let tokens = spec.lengths.first().copied().unwrap_or(0);
        let whole = Case::new(&Spec { lengths: vec![tokens], ..spec });
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(tokens)).collect();
        cuts.extend([0, tokens]);
        cuts.sort_unstable();
        for form in [Form::Recurrent, Form::Masked, Form::Chunked { chunk }] {
            let expected = whole.run(form);
            let mut pieces = Vec::new();
            let mut state = whole.state.clone();
            for cut in cuts.windows(2) {
                let piece = whole.take(&(cut[0]..cut[1]).collect::<Vec<_>>(), vec![0, cut[1] - cut[0]]);
                let piece = Case { state: state.clone(), ..piece };
                state = piece.forward(form).state;
                pieces.push(piece);
            }
            let out: Vec<f64> = pieces.iter().flat_map(|piece| piece.forward(form).out).collect();
            if form == Form::Recurrent {
                prop_assert_eq!(&out, &expected.out);
                prop_assert_eq!(&state.memory, &expected.state.memory);
            }
            assert_close("out", &vec![("out", out)], &vec![("out", expected.out.clone())], TOLERANCE);
            assert_close("state", &Case { state, ..whole.clone() }.state_named(), &expected.forward()[1..].to_vec(), TOLERANCE);

            // Gradients, last piece first: each passes the gradient of its incoming state to the piece before.
            let mut upstream = whole.grad_state.clone();
            let mut grads = vec![Vec::new(); 5];
            for piece in pieces.iter().rev() {
                let piece = Case { grad_state: upstream.clone(), ..piece.clone() };
                let found = piece.run(form).grads;
                for (all, (_, part)) in grads.iter_mut().zip(&found) {
                    all.splice(0..0, part.iter().copied());
                }
                let arrays: [&mut [f64]; 4] =
                    [&mut upstream.memory, &mut upstream.last_key, &mut upstream.tail_x, &mut upstream.tail_v];
                for (array, (_, values)) in arrays.into_iter().zip(&found[5..]) {
                    array.copy_from_slice(values);
                }
                upstream.tail_len.clone_from(&piece.state.tail_len);
                upstream.started.clone_from(&piece.state.started);
            }
            let mut all: Vec<_> = expected.grads.iter().map(|(name, _)| *name).zip(grads).collect();
            all.extend(Case { state: upstream, ..whole.clone() }.state_named().into_iter()
                .zip(&expected.grads[5..]).map(|((_, values), (name, _))| (*name, values)));
            assert_close("grads", &all, &expected.grads, TOLERANCE);
        }
    }

    /// If later tokens are changed, earlier outputs keep every bit.
    #[test]
    fn earlier_outputs_do_not_depend_on_later_tokens(spec in specs(), at in 0..24usize, chunk in 1..12usize) {
        let case = Case::new(&Spec { lengths: vec![spec.lengths.iter().sum()], ..spec });
        let at = at.min(case.sizes.tokens);
        let mut other = case.clone();
        for data in [&mut other.q, &mut other.k, &mut other.v] {
            let width = data.len() / case.sizes.tokens.max(1);
            data[at * width..].iter_mut().for_each(|x| *x = 3.0 - 2.0 * *x);
        }
        for data in [&mut other.gain, &mut other.decay] {
            let width = data.len() / case.sizes.tokens.max(1);
            data[at * width..].iter_mut().for_each(|x| *x *= 0.5);
        }
        let past = at * case.sizes.heads * case.sizes.dim_v;
        for form in [Form::Recurrent, Form::Masked, Form::Chunked { chunk }] {
            let (one, two) = (case.forward(form).out, other.forward(form).out);
            prop_assert_eq!(&one[..past], &two[..past], "{:?}", form);
        }
    }

    #[test]
    fn packed_sequences_are_separate_sequences(spec in specs(), chunk in 1..12usize) {
        let case = Case::new(&spec);
        for form in [Form::Recurrent, Form::Masked, Form::Chunked { chunk }] {
            let packed = case.run(form).all();
            let mut separate: Vec<Vec<f64>> = vec![Vec::new(); packed.len()];
            for sequence in 0..case.sizes.sequences {
                let tokens: Vec<usize> = (case.offsets[sequence]..case.offsets[sequence + 1]).collect();
                let mut one = case.take(&tokens, vec![0, tokens.len()]);
                for state in [&mut one.state, &mut one.grad_state] {
                    *state = state.select(&[sequence]);
                }
                for (all, (_, part)) in separate.iter_mut().zip(one.run(form).all()) {
                    all.extend(part);
                }
            }
            if case.sizes.sequences > 0 {
                let separate = packed.iter().map(|(name, _)| *name).zip(separate).collect();
                assert_close("packed", &packed, &separate, 1e-15);
            }
        }
    }

    /// Grouped heads give the same as keys and queries repeated for each value head, with summed gradients.
    #[test]
    fn grouped_heads_are_repeated_heads(spec in specs(), chunk in 1..12usize) {
        let grouped = Case::new(&spec);
        let (heads, group) = (grouped.sizes.heads, grouped.sizes.group());
        let width = grouped.sizes.dim_k;
        let repeat = |data: &[f64]| -> Vec<f64> {
            data.chunks(width).flat_map(|row| row.repeat(group)).collect()
        };
        let mut repeated = grouped.clone();
        repeated.sizes.key_heads = heads;
        repeated.q = repeat(&grouped.q);
        repeated.k = repeat(&grouped.k);
        repeated.state = falcon_kernels::State::fresh(&grouped.rule, &repeated.sizes);
        repeated.grad_state = repeated.state.clone();
        for (to, from) in [(&mut repeated.state, &grouped.state), (&mut repeated.grad_state, &grouped.grad_state)] {
            to.memory.clone_from(&from.memory);
            to.tail_v.clone_from(&from.tail_v);
            to.tail_len.clone_from(&from.tail_len);
            to.started.clone_from(&from.started);
            to.last_key = repeat(&from.last_key);
            to.tail_x = repeat(&from.tail_x);
        }
        // The gradient of a shared key is the sum over its copies; it is compared as that of the first copy.
        for data in [&mut repeated.grad_state.last_key, &mut repeated.grad_state.tail_x] {
            for (i, row) in data.chunks_mut(width).enumerate() {
                if i % group != 0 { row.fill(0.0) }
            }
        }
        let sum = |name: &str, data: Vec<f64>| {
            let shared = ["q", "k", "last_key", "tail_x"].iter().any(|end| name.ends_with(end));
            if !shared { return data }
            let forward = !name.starts_with("grad");
            data.chunks(width * group).flat_map(|rows| (0..width).map(move |i| {
                if forward { rows[i] } else { rows.iter().skip(i).step_by(width).sum() }
            }).collect::<Vec<_>>()).collect()
        };
        for form in [Form::Recurrent, Form::Masked, Form::Chunked { chunk }] {
            let expected = repeated.run(form).all().into_iter().map(|(name, data)| (name, sum(name, data))).collect();
            assert_close("grouped", &grouped.run(form).all(), &expected, 1e-12);
        }
    }

    /// The backward pass of the recurrent form agrees with finite differences of the loss in every input.
    #[test]
    fn gradients_match_differences(spec in specs(), direction in any::<u64>()) {
        let rule = Rule { clamp: spec.rule.clamp.map(|_| 1e-3), ..spec.rule };
        let spec = Spec { rule, gain: (0.2, 1.0), ridge: (0.0, 0.5), ..spec };
        let case = Case::new(&spec);
        // The gradient jumps where the clamp begins, so finite differences across that point do not approximate it.
        prop_assume!(!near_the_clamp(&case));
        check_differences(&case, direction)?;
    }
}

/// The loss whose gradients `run` computes: the products of the outputs and of the outgoing state with their upstream
/// gradients, summed up.
fn loss(case: &Case<f64>) -> f64 {
    let outcome = case.forward(Form::Recurrent);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (state, up) = (&outcome.state, &case.grad_state);
    dot(&outcome.out, &case.grad_out)
        + dot(&state.memory, &up.memory)
        + dot(&state.last_key, &up.last_key)
        + dot(&state.tail_x, &up.tail_x)
        + dot(&state.tail_v, &up.tail_v)
}

/// Whether some decay factor `1 − ηλ` is so close to the clamp that a small step might cross it.
fn near_the_clamp(case: &Case<f64>) -> bool {
    let Some(least) = case.rule.clamp else { return false };
    let realised = case.call(Form::CHUNKED).coefficients(&case.state).unwrap();
    let width = case.sizes.gain_width(&case.rule);
    let ridges = realised.lambda.iter().flat_map(|lambda| std::iter::repeat_n(lambda, width));
    realised.eta.iter().zip(ridges).any(|(eta, lambda)| (1.0 - eta * lambda - least).abs() < 2e-3)
}

/// Compares the derivative of the loss along a random direction with a finite difference, for each input in turn.
fn check_differences(case: &Case<f64>, seed: u64) -> Result<(), TestCaseError> {
    let grads = case.run(Form::Recurrent).grads;
    let mut random = falcon_testkit::Random::new(seed);
    for (index, (name, grad)) in grads.iter().enumerate() {
        // With a detached ridge the gradient is meant to differ from the true one.
        if matches!(case.rule.decay, Decay::ScaledRidge { detach: true })
            && ["k", "last_key", "tail_x"].iter().any(|end| name.ends_with(end))
        {
            continue;
        }
        let direction = random.normals(grad.len(), 1.0);
        let expected: f64 = grad.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let moved = |h: f64| {
            let mut case = case.clone();
            let data: &mut [f64] = match index {
                0 => &mut case.q,
                1 => &mut case.k,
                2 => &mut case.v,
                3 => &mut case.gain,
                4 => &mut case.decay,
                5 => &mut case.state.memory,
                6 => &mut case.state.last_key,
                7 => &mut case.state.tail_x,
                _ => &mut case.state.tail_v,
            };
            // A gain or a gate at an end of its range may leave the range; the direction is then skipped.
            for (x, d) in data.iter_mut().zip(&direction) {
                *x += h * d;
            }
            let fits = Call::new(&case.rule, Form::Recurrent, case.inputs()).is_ok();
            fits.then(|| loss(&case))
        };
        let h = 1e-5;
        let (Some(up), Some(down), Some(up2), Some(down2)) =
            (moved(h), moved(-h), moved(2.0 * h), moved(-2.0 * h))
        else {
            continue;
        };
        let found = (8.0 * (up - down) - (up2 - down2)) / (12.0 * h);
        let scale = grad.iter().map(|g| g.abs()).fold(1.0, f64::max);
        prop_assert!(
            (found - expected).abs() <= 2e-5 * scale * (grad.len() as f64).sqrt().max(1.0),
            "{name}: differences {found}, gradient {expected}"
        );
    }
    Ok(())
}

/// Rules that are special cases of others.
mod reductions {
    use super::*;

    #[test]
    fn equal_gains_for_all_columns_act_as_one_shared_gain() {
        for (each, shared) in [(Rule::FALCON_2, Rule::FALCON_1), (Rule::FALCON_2A, Rule::FALCON_1A)] {
            let one = Case::new(&Spec { continued: true, ..Spec::new(shared, 23, 7) });
            let columns = one.sizes.dim_v;
            let mut two = Case { rule: each, ..one.clone() };
            two.gain = one.gain.iter().flat_map(|g| std::iter::repeat_n(*g, columns)).collect();
            for form in [Form::Recurrent, Form::Masked, Form::Chunked { chunk: 5 }] {
                let expected = one.run(form).all();
                let mut found = two.run(form).all();
                for (name, values) in &mut found {
                    if *name == "grad gain" {
                        *values = values.chunks(columns).map(|columns| columns.iter().sum()).collect();
                    }
                }
                assert_close(&format!("{form:?}"), &found, &expected, 1e-11);
            }
        }
    }

    /// Two tokens make one pair, and a window of four that holds one pair writes as a window of one.
    #[test]
    fn a_window_with_one_pair_acts_as_a_window_of_one() {
        let rules = [(Rule::FALCON_3, Rule::FALCON_1), (Rule::FALCON_3A, Rule::FALCON_1A)];
        for ((windowed, plain), seed) in rules.into_iter().flat_map(|rules| (0..20).map(move |seed| (rules, seed)))
        {
            let plain = Case::new(&Spec::new(plain, 2, seed));
            let mut windowed = Case::new(&Spec::new(Rule { decay: plain.rule.decay, ..windowed }, 2, seed));
            windowed.grad_out.clone_from(&plain.grad_out);
            windowed.state.memory.clone_from(&plain.state.memory);
            windowed.grad_state = windowed.state.zeros_like();
            let plain = Case { grad_state: plain.state.zeros_like(), ..plain };
            for form in [Form::Recurrent, Form::Masked, Form::CHUNKED] {
                let no_tail = |case: &Case<f64>| {
                    case.run(form).all().into_iter().filter(|(name, _)| !name.contains("tail")).collect()
                };
                assert_close(&format!("{form:?}"), &no_tail(&windowed), &no_tail(&plain), 1e-12);
            }
        }
    }

    #[test]
    fn a_window_longer_than_the_sequence_acts_as_one_of_its_length() {
        for rule in [Rule::FALCON_3, Rule::FALCON_3A] {
            let long = Case::new(&Spec::new(Rule { window: 50, ..rule }, 6, 3));
            let short = Case::new(&Spec::new(Rule { window: 6, ..rule }, 6, 3));
            for form in [Form::Recurrent, Form::Masked, Form::CHUNKED] {
                assert_eq!(long.forward(form).out, short.forward(form).out, "{form:?}");
            }
        }
    }
}

#[test]
fn one_token_and_empty_batches() {
    for (_, rule) in Rule::ALL {
        for lengths in [vec![], vec![0], vec![1], vec![0, 1, 0]] {
            for continued in [false, true] {
                let spec = Spec { lengths: lengths.clone(), continued, ..Spec::new(rule, 0, 11) };
                let case = Case::new(&spec);
                let expected = case.run(Form::Recurrent).all();
                for form in [Form::Masked, Form::CHUNKED] {
                    assert_close(&format!("{rule:?} {lengths:?}"), &case.run(form).all(), &expected, 1e-12);
                }
            }
        }
    }
}

/// Widths and lengths larger than the tiles and blocks of the kernels, and not multiples of them.
#[test]
fn wide_heads_and_long_chunks() {
    falcon_kernels::poison_scratch();
    let windowed = Rule { window: 7, read: Read::Before, ..Rule::FALCON_3 };
    // With a window of 20, a pair is written by more steps than a block of the triangular system has.
    let long = [Rule::FALCON_3, Rule::FALCON_3A].map(|rule| Rule { window: 20, ..rule });
    let more = [windowed, Rule { objective: Objective::InnerProduct, ..windowed }, long[0], long[1]];
    let rules = Rule::ALL.iter().map(|(_, rule)| *rule).chain(more);
    for rule in rules.chain([Rule { read: Read::Before, ..Rule::FALCON_2 }]) {
        let spec =
            Spec { heads: 1, key_heads: 1, dim_k: 33, dim_v: 49, continued: true, ..Spec::new(rule, 150, 6) };
        let case = Case::new(&spec);
        let expected = case.run(Form::Recurrent);
        for chunk in [64, 100] {
            let found = case.run(Form::Chunked { chunk });
            assert_close(&format!("{rule:?}, chunk {chunk}"), &found.all(), &expected.all(), TOLERANCE);
        }
        assert_close(&format!("{rule:?}, decoder"), &case.decode().forward(), &expected.forward(), TOLERANCE);
    }
}

/// Gains and ridges at the ends of their ranges, zero keys, and ε = 0: everything stays finite, and the forms agree. A
/// zero key writes nothing.
#[test]
fn gains_ridges_and_keys_at_the_ends_of_their_ranges() {
    for (name, rule) in Rule::ALL {
        // Four keys are set to zero below, and one step must see no others in its window.
        let rule = Rule { eps: 0.0, window: rule.window.min(4), ..rule };
        let mut case = Case::new(&Spec { continued: true, ..Spec::new(rule, 12, 8) });
        let width = case.sizes.key_heads * case.sizes.dim_k;
        // As many zero keys as a window has pairs.
        case.k[3 * width..7 * width].fill(0.0);
        // A key so small that nothing can be divided by its square.
        case.k[8 * width..9 * width].fill(1e-160);
        for (i, gain) in case.gain.iter_mut().enumerate() {
            *gain = if i % 3 == 0 { 0.0 } else { 2.0 };
        }
        case.decay.iter_mut().step_by(2).for_each(|decay| *decay = 0.0);
        let expected = case.run(Form::Recurrent).all();
        for (tensor, values) in &expected {
            assert!(values.iter().all(|x| x.is_finite()), "{name}: {tensor}");
        }
        for form in [Form::Masked, Form::Chunked { chunk: 5 }] {
            assert_close(&format!("{name} {form:?}"), &case.run(form).all(), &expected, TOLERANCE);
        }
        // The token at which all pairs of the window have a zero key.
        let at = if rule.align == Align::Next { 7 } else { 6 };
        for form in [Form::Recurrent, Form::Masked, Form::CHUNKED] {
            let before = case.take(&(0..at).collect::<Vec<_>>(), vec![0, at]).forward(form).state;
            let one = Case { state: before.clone(), ..case.take(&[at], vec![0, 1]) };
            let gamma = one.call(form).coefficients(&before).unwrap().gamma;
            let (gains, size) = (one.sizes.gain_width(&rule), before.memory.len() / one.sizes.heads);
            let columns = rule.state_columns(one.sizes.dim_v);
            let kept = |i: usize| gamma[i / size * gains + i % columns % gains] * before.memory[i];
            let expected: Vec<f64> = (0..before.memory.len()).map(kept).collect();
            assert_eq!(one.forward(form).state.memory, expected, "{name} {form:?}: a zero key writes nothing");
        }
    }
}

/// Later tokens do not change earlier outputs, even if they are not finite.
#[test]
fn earlier_outputs_do_not_depend_on_later_non_finite_tokens() {
    falcon_kernels::poison_scratch();
    let windows = [Rule { window: 7, ..Rule::FALCON_3 }, Rule { window: 20, ..Rule::FALCON_3A }];
    let rules = Rule::ALL.iter().map(|(_, rule)| *rule).chain(windows);
    for rule in rules.flat_map(|rule| [Read::After, Read::Before].map(|read| Rule { read, ..rule })) {
        let case = Case::new(&Spec { heads: 1, key_heads: 1, continued: true, ..Spec::new(rule, 90, 12) });
        let (dim_k, dim_v) = (case.sizes.dim_k, case.sizes.dim_v);
        for form in [Form::Recurrent, Form::Masked, Form::Chunked { chunk: 40 }, Form::CHUNKED] {
            let expected = case.forward(form).out;
            assert!(
                expected.iter().all(|x| x.is_finite()),
                "{rule:?} {form:?}: the unchanged case must be finite"
            );
            for (at, bad) in [(1, f64::INFINITY), (30, f64::NAN), (63, f64::NEG_INFINITY), (70, f64::INFINITY)] {
                let [mut value, mut key, mut query] = [case.clone(), case.clone(), case.clone()];
                value.v[at * dim_v + 1] = bad;
                key.k[at * dim_k + 1] = bad;
                query.q[at * dim_k + 1] = bad;
                for (tensor, other) in [("v", value), ("k", key), ("q", query)] {
                    let found = other.forward(form).out;
                    assert_eq!(found[..at * dim_v], expected[..at * dim_v], "{rule:?} {form:?}: {tensor} at {at}");
                }
            }
        }
    }
}

/// The same numbers laid out as `[heads, time, dim]`, read through strides, give the same bits.
#[test]
fn strides_change_nothing() {
    let case = Case::new(&Spec::new(Rule::FALCON_3, 21, 3));
    let (tokens, heads) = (case.sizes.tokens, case.sizes.heads);
    let transpose = |data: &[f64]| -> Vec<f64> {
        let width = data.len() / tokens / heads;
        (0..heads)
            .flat_map(|h| (0..tokens).map(move |t| (t * heads + h) * width))
            .flat_map(|start| data[start..start + width].to_vec())
            .collect()
    };
    let moved = [&case.q, &case.k, &case.v, &case.gain, &case.decay].map(|data| transpose(data));
    let view = |i: usize| {
        let width = moved[i].len() / tokens / heads;
        View::strided(&moved[i], [tokens, heads, width], [width, tokens * width]).unwrap()
    };
    let inputs = Inputs {
        q: view(0),
        k: view(1),
        v: view(2),
        gain: Some(view(3)),
        decay: Some(view(4)),
        offsets: &case.offsets,
    };
    let (mut state, mut out) = (case.state.clone(), vec![0.0; case.grad_out.len()]);
    Call::new(&case.rule, Form::CHUNKED, inputs).unwrap().forward(&mut state, &mut out).unwrap();
    let plain = case.forward(Form::CHUNKED);
    assert_eq!((out, state), (plain.out, plain.state));
}

#[test]
fn threads_do_not_change_a_bit() {
    falcon_kernels::poison_scratch();
    for (name, rule) in Rule::ALL {
        let many = Spec { lengths: vec![33, 5], heads: 4, ..Spec::new(rule, 0, 5) };
        // Fewer heads than threads, so that their columns are divided among threads.
        let one = Spec { heads: 1, key_heads: 1, dim_k: 40, dim_v: 192, ..Spec::new(rule, 70, 5) };
        let two = Spec { heads: 2, key_heads: 1, ..one.clone() };
        // Sums that the matrix library splits.
        let deep = Spec { dim_k: 600, dim_v: 128, ..one.clone() };
        // Products of blocks that the matrix library computes.
        let middle = Spec { dim_k: 300, dim_v: 128, ..one.clone() };
        // So many chunks that several waves of them are prepared ahead.
        let long = Spec { dim_k: 5, dim_v: 66, lengths: vec![400], ..one.clone() };
        let forms = [Form::Recurrent, Form::Masked, Form::Chunked { chunk: 16 }];
        let cases = [many, one, two, deep, middle];
        let cases = cases.iter().flat_map(|spec| forms.map(|form| (spec, form)));
        for (spec, form) in cases.chain([(&long, Form::Chunked { chunk: 4 })]) {
            let case = Case::new(spec).to_f32();
            let run = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| case.run(form).all())
            };
            let expected = run(1);
            for threads in [2, 3, 7] {
                assert_eq!(run(threads), expected, "{name} in {form:?} with {threads} threads");
            }
        }
    }
}
