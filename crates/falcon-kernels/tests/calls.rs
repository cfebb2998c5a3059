//! The checks of a call, and its behaviour at the limits.

use falcon_kernels::rule::{Align, Normaliser};
use falcon_kernels::{Call, Decoder, Error, Form, Grads, GradsMut, Inputs, Rule, Sizes, State, View};
use falcon_testkit::{Case, Spec, max_error};

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn refused_calls_name_the_error_and_change_nothing() {
    let case = Case::new(&Spec::new(Rule::FALCON_3, 5, 1));
    let (rule, inputs) = (case.rule, case.inputs());
    let before = case.state.clone();
    let mut state = before.clone();
    let mut out = vec![0.0; case.grad_out.len()];

    let zero = message(Call::new(&rule, Form::Chunked { chunk: 0 }, inputs));
    assert_eq!(zero, "the chunk size must be at least 1, got 0");
    let impossible = message(Call::new(&Rule { window: 0, ..rule }, Form::CHUNKED, inputs));
    assert_eq!(impossible, "the window must hold at least 1 pair, got 0");
    let call = case.call(Form::CHUNKED);
    let short = message(call.forward(&mut state, &mut out[1..]));
    assert_eq!(short, "out has 39 elements, expected 40");
    let mut other = Case::new(&Spec { dim_k: 4, ..Spec::new(rule, 5, 1) }).state;
    let wrong = message(call.forward(&mut other, &mut out));
    assert_eq!(wrong, "the state has dim_k 4, the call needs 5");
    state.tail_len[0] = 2;
    let tail = message(call.forward(&mut state, &mut out));
    assert!(tail.contains("a tail of 2 pairs but no last key"), "{tail}");
    state.tail_len[0] = 9;
    assert!(
        message(call.forward(&mut state, &mut out)).contains("a tail of 9 pairs, the window can use at most 3")
    );
    state.tail_len[0] = 0;
    state.memory = before.memory[1..].into();
    assert!(message(call.forward(&mut state, &mut out)).contains("memory elements"));
    state.memory.clone_from(&before.memory);
    assert_eq!(state, before, "refused calls leave the state alone");
    assert!(out.iter().all(|x| *x == 0.0));

    let upstream = message(call.backward(&before, &out[1..], None));
    assert!(upstream.starts_with("grad_out has 39 elements"), "{upstream}");
    let upstream = message(call.backward(&before, &out, Some(&other)));
    assert_eq!(upstream, "grad_state: the state has dim_k 4, the call needs 5");
    let mut decoder = Decoder::new(&rule, state.clone()).unwrap();
    let steps = message(decoder.step(&inputs, &mut out));
    assert_eq!(steps, "a step takes 1 token of each sequence, got 5 of sequence 0");
    assert!(Decoder::new(&Rule { window: 0, ..rule }, state.clone()).is_err());
    let other = message(Decoder::new(&Rule { window: 9, ..rule }, state));
    assert_eq!(other, "the state has tail capacity 3, the call needs 8");
}

/// A broadcast view can claim more tokens than an array can hold.
#[test]
fn sizes_that_overflow_are_refused() {
    let (one, two) = ([1.0], [1.0, 1.0]);
    let tokens = 1 << 63;
    let key = View::strided(&one, [tokens, 1, 1], [0, 0]).unwrap();
    let v = View::strided(&two, [tokens, 2, 1], [0, 1]).unwrap();
    let inputs = Inputs { q: key, k: key, v, gain: None, decay: None, offsets: &[0, tokens] };
    let error = message(Call::new(&Rule::LINEAR_ATTENTION, Form::CHUNKED, inputs));
    assert!(error.ends_with("tokens of 2 heads and width 1 are more than an array can hold"), "{error}");
    // The number of elements fits, but the number of bytes does not.
    let tokens = 1 << 61;
    let key = View::strided(&one, [tokens, 1, 1], [0, 0]).unwrap();
    let inputs = Inputs { q: key, k: key, v: key, gain: None, decay: None, offsets: &[0, tokens] };
    let error = message(Call::new(&Rule::LINEAR_ATTENTION, Form::CHUNKED, inputs));
    assert!(error.contains("more than an array can hold"), "{error}");
    // The state has to fit even without tokens.
    let none = View::<f64>::new(&[], [0, 1, 2]).unwrap();
    let wide = View::new(&[], [0, 1, 1 << 62]).unwrap();
    let inputs = Inputs { q: none, k: none, v: wide, gain: None, decay: None, offsets: &[0, 0] };
    let error = message(Call::new(&Rule::LINEAR_ATTENTION, Form::CHUNKED, inputs));
    assert!(error.starts_with("the state of 1 sequences"), "{error}");
    let wide = View::new(&[], [0, 1, usize::MAX]).unwrap();
    let error =
        message(Call::new(&Rule::NORMALISED_LINEAR_ATTENTION, Form::CHUNKED, Inputs { v: wide, ..inputs }));
    assert!(error.starts_with("the state of 1 sequences"), "{error}");
}

#[test]
fn sequences_and_chunks_that_are_too_long_are_refused() {
    let tokens = 100_000;
    let ones = vec![1f32; tokens];
    let view = View::new(&ones, [tokens, 1, 1]).unwrap();
    let inputs = Inputs { q: view, k: view, v: view, gain: None, decay: None, offsets: &[0, tokens] };
    let error = message(Call::new(&Rule::LINEAR_ATTENTION, Form::Masked, inputs));
    assert!(
        error.contains("100000 tokens") && error.ends_with("at most 16384 tokens: use chunked or recurrent"),
        "{error}"
    );
    let huge = Form::Chunked { chunk: usize::MAX };
    let error = message(Call::new(&Rule::LINEAR_ATTENTION, huge, inputs));
    assert!(error.ends_with("together at most 16384; use shorter chunks or the recurrent form"), "{error}");
}

/// A recorded call gives the outputs of a plain forward pass, and its tape the gradients that `Call::backward` gives.
#[test]
fn recording_changes_neither_outputs_nor_gradients() {
    for (name, rule) in Rule::ALL {
        let case = Case::new(&Spec { continued: true, lengths: vec![70, 3, 0], ..Spec::new(rule, 0, 2) });
        let form = Form::Chunked { chunk: 16 };
        let call = case.call(form);
        let (mut state, mut out) = (case.state.clone(), vec![0.0; case.grad_out.len()]);
        let tape = call.record(&mut state, &mut out).unwrap();
        let plain = case.forward(form);
        assert_eq!((&out, &state), (&plain.out, &plain.state), "{name}");
        let upstream = Some(&case.grad_state);
        let grads = tape.backward(&call, &case.grad_out, upstream).unwrap();
        let expected = case.call(Form::Recurrent).backward(&case.state, &case.grad_out, upstream).unwrap();
        for (tensor, found, expected) in [
            ("q", &grads.q[..], &expected.q[..]),
            ("k", &grads.k, &expected.k),
            ("v", &grads.v, &expected.v),
            ("gain", &grads.gain, &expected.gain),
            ("decay", &grads.decay, &expected.decay),
            ("memory", &grads.state.memory, &expected.state.memory),
            ("last key", &grads.state.last_key, &expected.state.last_key),
            ("tail keys", &grads.state.tail_x, &expected.state.tail_x),
            ("tail values", &grads.state.tail_v, &expected.state.tail_v),
        ] {
            assert!(max_error(found, expected) < 1e-10, "{name}: {tensor}");
        }
        // The same bits if the forward pass is run again, and if everything is written into arrays of the caller.
        assert_eq!(call.backward(&case.state, &case.grad_out, upstream).unwrap(), grads, "{name}");
        let (mut again, mut saved) = (case.state.clone(), vec![0.0; call.saved_len()]);
        call.record_into(&mut again, &mut out, &mut saved).unwrap();
        assert_eq!(grads_into(&case, &call, &saved, upstream, &grads), grads, "{name}");
    }
}

/// [`Call::backward_into`] with targets that hold other numbers before, in the sizes of `like`.
fn grads_into(
    case: &Case<f64>,
    call: &Call<'_, f64>,
    saved: &[f64],
    upstream: Option<&State<f64>>,
    like: &Grads<f64>,
) -> Grads<f64> {
    let Sizes { tokens, heads, dim_v, .. } = case.sizes;
    let [mut q, mut k, mut v, mut gain, mut decay] =
        [&like.q, &like.k, &like.v, &like.gain, &like.decay].map(|grad| vec![f64::NAN; grad.len()]);
    let into = GradsMut { q: &mut q, k: &mut k, v: &mut v, gain: &mut gain, decay: &mut decay };
    let grad_out = View::new(&case.grad_out, [tokens, heads, dim_v]).unwrap();
    let state = call.backward_into(&case.state, saved, grad_out, upstream, into).unwrap();
    Grads { q, k, v, gain, decay, state }
}

/// Every gradient is written, and nothing is added to what was in the arrays before: for both alignments, windows longer
/// than a chunk, heads that share keys, and with and without a gradient of the outgoing state.
#[test]
fn gradients_overwrite_their_targets() {
    for (name, rule) in Rule::ALL {
        for (align, window, key_heads) in
            [(Align::Next, 1, 2), (Align::Same, 1, 1), (Align::Same, 6, 2), (Align::Next, 6, 1)]
        {
            let window = if rule.window > 1 { window } else { 1 };
            let rule = Rule { align, window, ..rule };
            let lengths = vec![9, 1, 0, 4];
            let case = Case::new(&Spec { lengths, key_heads, ..Spec::new(rule, 0, 3) });
            let call = case.call(Form::Chunked { chunk: 4 });
            for upstream in [None, Some(&case.grad_state)] {
                let (mut state, mut out) = (case.state.clone(), vec![0.0; case.grad_out.len()]);
                let mut saved = vec![0.0; call.saved_len()];
                call.record_into(&mut state, &mut out, &mut saved).unwrap();
                let expected = case.call(Form::Recurrent).backward(&case.state, &case.grad_out, upstream).unwrap();
                let found = grads_into(&case, &call, &saved, upstream, &expected);
                for (tensor, found, expected) in
                    [("q", &found.q, &expected.q), ("k", &found.k, &expected.k), ("v", &found.v, &expected.v)]
                {
                    // A number that is not finite is not close to anything.
                    assert!(max_error(found, expected) < 1e-10, "{name}, {align:?}, window {window}: {tensor}");
                }
            }
        }
    }
}

/// A tape refuses every call but the one it recorded, and the error names what differs.
#[test]
fn a_tape_refuses_other_calls() {
    let case = Case::new(&Spec { lengths: vec![70, 3, 0], ..Spec::new(Rule::FALCON_1, 0, 2) });
    let (mut state, mut out) = (case.state.clone(), vec![0.0; case.grad_out.len()]);
    let tape = case.call(Form::CHUNKED).record(&mut state, &mut out).unwrap();
    let refused = |rule: &Rule, form: Form, inputs: Inputs<'_, f64>| {
        message(tape.backward(&Call::new(rule, form, inputs).unwrap(), &case.grad_out, None))
    };
    let moved = Inputs { offsets: &[0, 71, 73, 73], ..case.inputs() };
    assert_eq!(
        refused(&case.rule, Form::CHUNKED, moved),
        "the tape recorded the sequence offsets [0, 70, 73, 73], the call has [0, 71, 73, 73]: \
         pass the call that was recorded"
    );
    let error = refused(&case.rule, Form::Chunked { chunk: 16 }, case.inputs());
    assert!(error.starts_with("the tape recorded the form Chunked { chunk: 64 }, the call has"), "{error}");
    let error = refused(&Rule { eps: 0.5, ..case.rule }, Form::CHUNKED, case.inputs());
    assert!(error.starts_with("the tape recorded the rule Rule {") && error.contains("eps: 0.5"), "{error}");
    let narrow = Case::new(&Spec { dim_k: 4, lengths: vec![70, 3, 0], ..Spec::new(Rule::FALCON_1, 0, 2) });
    let error = refused(&case.rule, Form::CHUNKED, narrow.inputs());
    assert_eq!(error, "the state has dim_k 5, the call needs 4");
}

/// With signed features, the total weight of a normalised read can be zero or negative. In every form the read stays
/// finite and keeps the sign of the quotient.
#[test]
fn normalised_reads_with_signed_features() {
    let rule = Rule { normaliser: Some(Normaliser { eps: 0.5 }), ..Rule::LINEAR_ATTENTION };
    // Weights q·k sum to 1, 0 and −2; values times weights to 3, 1 and −3.
    let (q, k, v) = ([1.0, 1.0, 1.0], [1.0, -1.0, -2.0], [3.0, 2.0, 2.0]);
    let view = |data| View::new(data, [3, 1, 1]).unwrap();
    let inputs = Inputs { q: view(&q), k: view(&k), v: view(&v), gain: None, decay: None, offsets: &[0, 3] };
    for form in [Form::Recurrent, Form::Masked, Form::CHUNKED] {
        let call = Call::new(&rule, form, inputs).unwrap();
        let (mut state, mut out) = (call.fresh_state(), [0.0; 3]);
        call.forward(&mut state, &mut out).unwrap();
        assert_eq!(out, [3.0 / 1.5, 1.0 / 0.5, -3.0 / -2.5], "{form:?}");
        assert_eq!(state.memory, [-3.0, -2.0], "the sum and its weight, {form:?}");
    }
}

/// The outgoing last key is a copy of the last token's key, so its gradient is added to that of the token.
#[test]
fn the_gradient_of_the_last_key_reaches_the_last_token() {
    for (align, key_heads) in [(Align::Next, 1), (Align::Next, 2), (Align::Same, 1), (Align::Same, 2)] {
        let rule = Rule { align, ..Rule::FALCON_1 };
        let case = Case::new(&Spec { lengths: vec![9, 1, 0, 4], key_heads, ..Spec::new(rule, 0, 3) });
        let mut upstream = case.grad_state.clone();
        let zeros: [&mut [f64]; 3] = [&mut upstream.memory, &mut upstream.tail_x, &mut upstream.tail_v];
        for zeros in zeros {
            zeros.fill(0.0);
        }
        upstream.last_key.fill(1.0);
        let grad_out = vec![0.0; case.grad_out.len()];
        let grads =
            case.call(Form::Chunked { chunk: 4 }).backward(&case.state, &grad_out, Some(&upstream)).unwrap();
        for (token, row) in grads.k.chunks_exact(key_heads * case.sizes.dim_k).enumerate() {
            let expected = if [8, 9, 13].contains(&token) { 1.0 } else { 0.0 };
            assert!(
                row.iter().all(|x| *x == expected),
                "{align:?}, {key_heads} key heads, token {token}: {row:?}"
            );
        }
    }
}
