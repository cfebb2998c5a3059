//! What a call refuses, and what it does at its edges.

use falcon_kernels::rule::Normaliser;
use falcon_kernels::{Decoder, Error, Form, Inputs, Rule, State, View, backward, coefficients, forward, record};
use falcon_testkit::{Case, Spec, max_error};

fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn bad_calls_say_what_is_wrong_and_change_nothing() {
    let case = Case::new(&Spec::new(Rule::FALCON_3, 5, 1));
    let (rule, inputs) = (case.rule, case.inputs());
    let before = case.state.clone();
    let mut state = before.clone();
    let mut out = vec![0.0; case.grad_out.len()];

    let zero = Form::Chunked { chunk: 0 };
    assert_eq!(
        said(forward(&rule, zero, &inputs, &mut state, &mut out)),
        "the chunk size must be at least 1, got 0"
    );
    let short = said(forward(&rule, Form::CHUNKED, &inputs, &mut state, &mut out[1..]));
    assert_eq!(short, "out has 39 elements, expected 40");
    let mut other = Case::new(&Spec { dim_k: 4, ..Spec::new(rule, 5, 1) }).state;
    let wrong = said(forward(&rule, Form::CHUNKED, &inputs, &mut other, &mut out));
    assert_eq!(wrong, "the state has dim_k 4, the call needs 5");
    state.tail_len[0] = 2;
    let tail = said(forward(&rule, Form::CHUNKED, &inputs, &mut state, &mut out));
    assert!(tail.contains("a tail of 2 pairs but no last key"), "{tail}");
    state.tail_len[0] = 9;
    assert!(
        said(forward(&rule, Form::CHUNKED, &inputs, &mut state, &mut out))
            .contains("a tail of 9 pairs, the window has use for at most 3")
    );
    state.tail_len[0] = 0;
    state.memory.pop();
    assert!(said(forward(&rule, Form::CHUNKED, &inputs, &mut state, &mut out)).contains("memory elements"));
    state.memory.push(before.memory[before.memory.len() - 1]);
    assert_eq!(state, before, "refused calls leave the state alone");
    assert!(out.iter().all(|x| *x == 0.0));

    let upstream = said(backward(&rule, Form::CHUNKED, &inputs, &before, &out[1..], None));
    assert!(upstream.starts_with("grad_out has 39 elements"), "{upstream}");
    let upstream = said(backward(&rule, Form::CHUNKED, &inputs, &before, &out, Some(&other)));
    assert_eq!(upstream, "grad_state: the state has dim_k 4, the call needs 5");
    let mut decoder = Decoder::new(&rule, state.clone()).unwrap();
    let steps = said(decoder.step(&inputs, &mut out));
    assert_eq!(steps, "a step takes 1 token of each sequence, got 5 of sequence 0");
    assert!(Decoder::new(&Rule { window: 0, ..rule }, state.clone()).is_err());
    let other = said(Decoder::new(&Rule { window: 9, ..rule }, state));
    assert_eq!(other, "the state has tail capacity 3, the call needs 8");
}

/// A broadcast view can claim more tokens than there are bytes; nothing is computed for it.
#[test]
fn sizes_that_overflow_are_refused() {
    let (one, two) = ([1.0], [1.0, 1.0]);
    let tokens = 1 << 63;
    let key = View::strided(&one, [tokens, 1, 1], [0, 0]).unwrap();
    let v = View::strided(&two, [tokens, 2, 1], [0, 1]).unwrap();
    let inputs = Inputs { q: key, k: key, v, gain: None, decay: None, offsets: &[0, tokens] };
    let error = said(inputs.fresh_state(&Rule::LINEAR_ATTENTION));
    assert!(error.ends_with("tokens of 2 heads and width 1 are more than an array can hold"), "{error}");
    // Numbers that can be counted, but not their bytes.
    let tokens = 1 << 61;
    let key = View::strided(&one, [tokens, 1, 1], [0, 0]).unwrap();
    let inputs = Inputs { q: key, k: key, v: key, gain: None, decay: None, offsets: &[0, tokens] };
    let none = Inputs { q: View::new(&[], [0, 1, 1]).unwrap(), ..inputs };
    let none = Inputs { k: none.q, v: none.q, offsets: &[0, 0], ..none };
    let state = none.fresh_state(&Rule::LINEAR_ATTENTION).unwrap();
    let error = said(coefficients(&Rule::LINEAR_ATTENTION, &inputs, &state));
    assert!(error.contains("more than an array can hold"), "{error}");
    // A state is there without a token, too.
    let none = View::<f64>::new(&[], [0, 1, 2]).unwrap();
    let wide = View::new(&[], [0, 1, 1 << 62]).unwrap();
    let inputs = Inputs { q: none, k: none, v: wide, gain: None, decay: None, offsets: &[0, 0] };
    let error = said(inputs.fresh_state(&Rule::LINEAR_ATTENTION));
    assert!(error.starts_with("the state of 1 sequences"), "{error}");
    let wide = View::new(&[], [0, 1, usize::MAX]).unwrap();
    let error = said(Inputs { v: wide, ..inputs }.fresh_state(&Rule::NORMALISED_LINEAR_ATTENTION));
    assert!(error.starts_with("the state of 1 sequences"), "{error}");
}

#[test]
fn the_masked_form_refuses_what_it_cannot_hold() {
    let tokens = 100_000;
    let ones = vec![1f32; tokens];
    let view = View::new(&ones, [tokens, 1, 1]).unwrap();
    let inputs = Inputs { q: view, k: view, v: view, gain: None, decay: None, offsets: &[0, tokens] };
    let mut state = inputs.fresh_state(&Rule::LINEAR_ATTENTION).unwrap();
    let mut out = vec![0.0; tokens];
    let error = said(forward(&Rule::LINEAR_ATTENTION, Form::Masked, &inputs, &mut state, &mut out));
    assert!(
        error.contains("100000 tokens") && error.ends_with("at most 16384 tokens: use chunked or recurrent"),
        "{error}"
    );
    let huge = Form::Chunked { chunk: usize::MAX };
    let error = said(forward(&Rule::LINEAR_ATTENTION, huge, &inputs, &mut state, &mut out));
    assert!(error.ends_with("together at most 16384; use shorter chunks or the recurrent form"), "{error}");
}

/// A tape gives the gradients of the call it recorded, and the outputs of a plain one.
#[test]
fn a_tape_is_a_forward_pass_and_its_gradients() {
    for (name, rule) in Rule::ALL {
        let case = Case::new(&Spec { continued: true, lengths: vec![70, 3, 0], ..Spec::new(rule, 0, 2) });
        let (form, inputs) = (Form::Chunked { chunk: 16 }, case.inputs());
        let (mut state, mut out) = (case.state.clone(), vec![0.0; case.grad_out.len()]);
        let tape = record(&rule, form, &inputs, &mut state, &mut out).unwrap();
        let plain = case.forward(form);
        assert_eq!((&out, &state), (&plain.out, &plain.state), "{name}");
        let up = Some(&case.grad_state);
        let grads = tape.backward(&inputs, &case.grad_out, up).unwrap();
        let expected = backward(&rule, Form::Recurrent, &inputs, &case.state, &case.grad_out, up).unwrap();
        for (tensor, found, expected) in [
            ("q", &grads.q, &expected.q),
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
        let other = Inputs { offsets: &[0, 71, 73, 73], ..inputs };
        let error = said(tape.backward(&other, &case.grad_out, up));
        assert!(error.contains("[0, 70, 73, 73]") && error.contains("[0, 71, 73, 73]"), "{error}");
    }
}

/// Signed features take the total weight of a normalised read to zero and below: the read stays finite and keeps the
/// sign of the quotient, in every form.
#[test]
fn normalised_reads_with_signed_features() {
    let rule = Rule { normaliser: Some(Normaliser { eps: 0.5 }), ..Rule::LINEAR_ATTENTION };
    // Weights q·k sum to 1, 0 and −2; values times weights to 3, 1 and −3.
    let (q, k, v) = ([1.0, 1.0, 1.0], [1.0, -1.0, -2.0], [3.0, 2.0, 2.0]);
    let view = |data| View::new(data, [3, 1, 1]).unwrap();
    let inputs = Inputs { q: view(&q), k: view(&k), v: view(&v), gain: None, decay: None, offsets: &[0, 3] };
    for form in [Form::Recurrent, Form::Masked, Form::CHUNKED] {
        let mut state: State<f64> = inputs.fresh_state(&rule).unwrap();
        let mut out = [0.0; 3];
        forward(&rule, form, &inputs, &mut state, &mut out).unwrap();
        assert_eq!(out, [3.0 / 1.5, 1.0 / 0.5, -3.0 / -2.5], "{form:?}");
        assert_eq!(state.memory, [-3.0, -2.0], "the sum and its weight, {form:?}");
    }
}
