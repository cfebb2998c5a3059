//! Compares the tensor operations in `f32` with the recurrent kernels in `f64`, on numbers that both represent exactly.

use burn::tensor::{Device, Tensor, TensorData};
use falcon_kernels::rule::{Align, Decay, Gain, Normaliser, Objective, Read};
use falcon_kernels::{Form, Rule};
use falcon_testkit::{Case, Named, Spec, assert_close};

use super::coefficients::Coefficients;
use super::pairs::Pairs;
use super::{RuleInputs, TensorState, scan};

const OUTPUT_TOLERANCE: f64 = 2e-6;
const GRADIENT_TOLERANCE: f64 = 1e-5;

/// The tensors of a case, which are leaves of the graph on a device with autodiff.
struct Leaves {
    inputs: RuleInputs,
    state: TensorState,
}

fn tensor<const D: usize>(values: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
    let tensor = Tensor::from_data(TensorData::new(values, shape), device);
    if device.is_autodiff() { tensor.require_grad() } else { tensor }
}

fn leaves(case: &Case<f64>, device: &Device) -> Leaves {
    let inputs = case.inputs();
    let sizes = case.sizes;
    let tail = case.rule.tail_capacity();
    let tail_of = |values: &[f64], heads, dim| {
        (tail > 0).then(|| tensor(values, [sizes.sequences, tail, heads, dim], device))
    };
    let columns = case.rule.state_columns(sizes.dim_v);
    Leaves {
        inputs: RuleInputs {
            q: tensor(&case.q, inputs.q.shape(), device),
            k: tensor(&case.k, inputs.k.shape(), device),
            v: tensor(&case.v, inputs.v.shape(), device),
            gain: inputs.gain.map(|view| tensor(&case.gain, view.shape(), device)),
            decay: inputs.decay.map(|view| tensor(&case.decay, view.shape(), device)),
        },
        state: TensorState {
            memory: tensor(&case.state.memory, [sizes.sequences, sizes.heads, sizes.dim_k, columns], device),
            last_key: tensor(&case.state.last_key, [sizes.sequences, sizes.key_heads, sizes.dim_k], device),
            tail_x: tail_of(&case.state.tail_x, sizes.key_heads, sizes.dim_k),
            tail_v: tail_of(&case.state.tail_v, sizes.heads, sizes.dim_v),
            tail_len: case.state.tail_len.clone(),
            started: case.state.started.clone(),
        },
    }
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter::<f32>().map(f64::from).collect()
}

fn optional<const D: usize>(tensor: &Option<Tensor<D>>) -> Vec<f64> {
    tensor.as_ref().map(numbers).unwrap_or_default()
}

fn named(out: &Tensor<3>, state: &TensorState) -> Named {
    vec![
        ("out", numbers(out)),
        ("memory", numbers(&state.memory)),
        ("last_key", numbers(&state.last_key)),
        ("tail_x", optional(&state.tail_x)),
        ("tail_v", optional(&state.tail_v)),
    ]
}

/// Outputs, outgoing state and all gradients of a case by tensor operations.
fn run(case: &Case<f64>, chunk: usize) -> (Named, Named) {
    let device = Device::flex().autodiff();
    let Leaves { inputs, state } = leaves(case, &device);
    let (out, after) = scan(&case.rule, inputs.clone(), &case.offsets, state.clone(), chunk);
    let results = named(&out, &after);

    let upstream = |values: &[f64]| -> Tensor<1> {
        let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
        let count = values.len();
        Tensor::from_data(TensorData::new(values, [count]), &device)
    };
    let flat = |x: Tensor<4>| {
        let count = x.dims().iter().product::<usize>();
        x.reshape([count])
    };
    let count = case.grad_out.len();
    let mut loss = (out.reshape([count]) * upstream(&case.grad_out)).sum();
    loss = loss + (flat(after.memory) * upstream(&case.grad_state.memory)).sum();
    loss = loss + (flat(after.last_key.unsqueeze()) * upstream(&case.grad_state.last_key)).sum();
    for (tail, grad) in [(after.tail_x, &case.grad_state.tail_x), (after.tail_v, &case.grad_state.tail_v)] {
        if let Some(tail) = tail {
            loss = loss + (flat(tail) * upstream(grad)).sum();
        }
    }
    let grads = loss.backward();
    // Tensors that the loss does not depend on have no gradient.
    fn gradient_of<const D: usize>(tensor: &Tensor<D>, grads: &burn::tensor::Gradients) -> Vec<f64> {
        let zeros = || vec![0.0; tensor.dims().iter().product()];
        tensor.grad(grads).map_or_else(zeros, |grad| numbers(&grad))
    }
    let gradients = vec![
        ("grad q", gradient_of(&inputs.q, &grads)),
        ("grad k", gradient_of(&inputs.k, &grads)),
        ("grad v", gradient_of(&inputs.v, &grads)),
        ("grad gain", inputs.gain.map(|t| gradient_of(&t, &grads)).unwrap_or_default()),
        ("grad decay", inputs.decay.map(|t| gradient_of(&t, &grads)).unwrap_or_default()),
        ("grad memory", gradient_of(&state.memory, &grads)),
        ("grad last_key", gradient_of(&state.last_key, &grads)),
        ("grad tail_x", state.tail_x.map(|t| gradient_of(&t, &grads)).unwrap_or_default()),
        ("grad tail_v", state.tail_v.map(|t| gradient_of(&t, &grads)).unwrap_or_default()),
    ];
    (results, gradients)
}

fn check(label: &str, case: &Case<f64>, chunk: usize) {
    let (results, gradients) = run(case, chunk);
    let expected = case.run(Form::Recurrent);
    assert_close(label, &results, &expected.forward(), OUTPUT_TOLERANCE);
    assert_close(label, &gradients, &expected.grads, GRADIENT_TOLERANCE);
}

/// The presets, and combinations that no preset uses.
fn rules() -> Vec<(String, Rule)> {
    let mut rules: Vec<(String, Rule)> = Rule::ALL.iter().map(|(name, rule)| (name.to_string(), *rule)).collect();
    let regression = Rule::FALCON_3;
    let inner = Rule::FALCON_3A;
    let normaliser = Some(Normaliser { eps: 1e-6 });
    for (name, rule) in [
        ("window 2, same", Rule { window: 2, align: Align::Same, ..regression }),
        ("window 3, read before", Rule { window: 3, read: Read::Before, ..regression }),
        ("window 3, inner, same, before", Rule { window: 3, align: Align::Same, read: Read::Before, ..inner }),
        ("window 90, inner, next", Rule { window: 90, ..inner }),
        ("window 20", Rule { window: 20, ..regression }),
        ("window 3, gate", Rule { window: 3, gain: Gain::Eta, decay: Decay::Gate, ..regression }),
        ("window 3, inner, gate", Rule { window: 3, decay: Decay::Gate, ..inner }),
        (
            "window 5, unit, normalised",
            Rule { window: 5, normaliser, ..Rule { gain: Gain::Unit, decay: Decay::Gate, ..inner } },
        ),
        ("window 3, live ridge", Rule { window: 3, decay: Decay::ScaledRidge { detach: false }, ..regression }),
        ("window 3, decayed", Rule { window: 3, objective: Objective::DecayedRegression, ..regression }),
        ("columns, same, before", Rule { align: Align::Same, read: Read::Before, ..Rule::FALCON_2 }),
        ("columns, gate", Rule { gain: Gain::Eta, decay: Decay::Gate, ..Rule::FALCON_2 }),
        ("columns, inner, gate, before", Rule { read: Read::Before, decay: Decay::Gate, ..Rule::FALCON_2A }),
        (
            "columns, decayed, ridge",
            Rule { objective: Objective::DecayedRegression, decay: Decay::Ridge, ..Rule::FALCON_2 },
        ),
        ("columns, no decay", Rule { decay: Decay::None, ..Rule::FALCON_2 }),
        ("eta, scaled ridge", Rule { gain: Gain::Eta, ..Rule::FALCON_1 }),
        ("unit, ridge", Rule { gain: Gain::Unit, decay: Decay::Ridge, ..Rule::FALCON_1A }),
        (
            "detached ridge, before",
            Rule { read: Read::Before, decay: Decay::ScaledRidge { detach: true }, ..Rule::FALCON_1 },
        ),
        ("gated deltanet, next, before", Rule { align: Align::Next, read: Read::Before, ..Rule::GATED_DELTANET }),
        ("normalised, next, gate", Rule { normaliser, align: Align::Next, ..Rule::RETNET }),
    ] {
        rules.push((name.to_string(), rule));
    }
    rules
}

#[test]
fn all_rules_at_all_lengths() {
    for (seed, (name, rule)) in rules().into_iter().enumerate() {
        for length in [1, 2, 15, 16, 17, 70] {
            let spec = Spec::new(rule, length, seed as u64);
            check(&format!("{name}, {length} tokens"), &Case::new(&spec), 16);
        }
        let spec = Spec { dim_k: 16, dim_v: 8, ..Spec::new(rule, 65, 100 + seed as u64) };
        check(&format!("{name}, chunks of 64"), &Case::new(&spec), 64);
    }
}

#[test]
fn continued_grouped_and_unequal_sequences() {
    for (seed, (name, rule)) in rules().into_iter().enumerate() {
        let seed = 200 + seed as u64;
        let spec = Spec { heads: 4, key_heads: 2, continued: true, ..Spec::new(rule, 19, seed) };
        for lengths in [vec![19], vec![1], vec![5, 22], vec![0, 7, 7, 0], vec![3, 3, 3]] {
            let spec = Spec { lengths: lengths.clone(), ..spec.clone() };
            check(&format!("{name}, continued, {lengths:?}"), &Case::new(&spec), 8);
            let spec = Spec { continued: false, ..spec };
            check(&format!("{name}, fresh, {lengths:?}"), &Case::new(&spec), 8);
        }
    }
}

#[test]
fn zero_gates_and_clamped_steps() {
    for (seed, (name, rule)) in rules().into_iter().enumerate() {
        let spec = Spec {
            ridge: (0.5, 40.0),
            gain: (0.5, 2.0),
            gate: (0.0, 1.0),
            ..Spec::new(rule, 40, 300 + seed as u64)
        };
        // Unclamped, γ = 1 − ηλ of such ridges would grow without bound.
        if rule.gain != Gain::Beta
            && matches!(rule.decay, Decay::Ridge | Decay::ScaledRidge { .. })
            && rule.clamp.is_none()
        {
            continue;
        }
        let mut case = Case::new(&spec);
        if rule.decay == Decay::Gate {
            case.decay.iter_mut().step_by(3).for_each(|gate| *gate = 0.0);
        }
        if rule.gain != Gain::Unit {
            case.gain.iter_mut().step_by(7).for_each(|gain| *gain = 0.0);
        }
        check(&format!("{name}, harsh"), &case, 16);
    }
}

#[test]
fn keys_of_zero() {
    for eps in [0.0, 1e-6] {
        for (seed, (name, rule)) in rules().into_iter().enumerate() {
            let rule = Rule { eps, ..rule };
            let mut case = Case::new(&Spec::new(rule, 20, 400 + seed as u64));
            let width = case.sizes.key_heads * case.sizes.dim_k;
            case.k[3 * width..12 * width].fill(0.0);
            check(&format!("{name}, zero keys, eps {eps}"), &case, 16);
        }
    }
}

#[test]
fn pieces_equal_the_whole() {
    let device = Device::flex();
    for (seed, (name, rule)) in rules().into_iter().enumerate() {
        let case = Case::new(&Spec::new(rule, 23, 500 + seed as u64));
        let Leaves { inputs, mut state } = leaves(&case, &device);
        let whole = scan(&rule, inputs.clone(), &[0, 23], state.clone(), 16);
        let mut outs = Vec::new();
        // Single tokens at first, then longer pieces, one of them empty.
        for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 9), (9, 9), (9, 22), (22, 23)] {
            if from == to {
                let empty = RuleInputs {
                    q: Tensor::zeros([0, 2, 5], &device),
                    k: Tensor::zeros([0, 2, 5], &device),
                    v: Tensor::zeros([0, 2, 4], &device),
                    gain: None,
                    decay: None,
                };
                let (out, same) = scan(&rule, empty, &[0, 0], state, 16);
                assert_eq!(out.dims(), [0, 2, 4]);
                state = same;
                continue;
            }
            let (out, after) = scan(&rule, inputs.tokens(from..to), &[0, to - from], state, 16);
            outs.push(out);
            state = after;
        }
        assert_close(&name, &named(&Tensor::cat(outs, 0), &state), &named(&whole.0, &whole.1), OUTPUT_TOLERANCE);
        assert_eq!((state.tail_len, state.started), (whole.1.tail_len, whole.1.started));
    }
}

#[test]
fn fresh_states_give_the_results_of_the_kernels() {
    let device = Device::flex();
    for (name, rule) in rules() {
        let case = Case::new(&Spec::new(rule, 9, 3));
        let state = TensorState::from_state(&falcon_kernels::State::fresh(&rule, &case.sizes), &device);
        let mut fresh = case.clone();
        fresh.state = falcon_kernels::State::fresh(&rule, &case.sizes);
        let (out, after) = scan(&rule, leaves(&case, &device).inputs, &case.offsets, state, 16);
        assert_close(&name, &named(&out, &after), &fresh.forward(Form::Recurrent).forward(), OUTPUT_TOLERANCE);
    }
}

/// Makes the largest eigenvalues of windows almost equal: keys become orthogonal and of equal length, up to `noise`.
fn close_keys(case: &mut Case<f64>, noise: f64) {
    let (heads, dim) = (case.sizes.key_heads, case.sizes.dim_k);
    for (row, key) in case.k.chunks_exact_mut(dim).enumerate() {
        for (c, x) in key.iter_mut().enumerate() {
            *x = f64::from((noise * *x + f64::from(u8::from(c == row / heads % dim))) as f32);
        }
    }
}

#[test]
fn close_and_equal_eigenvalues() {
    for (window, noise) in [(2, 1e-2), (4, 1e-2), (2, 0.0), (3, 0.0)] {
        let mut case = Case::new(&Spec { dim_k: 4, ..Spec::new(Rule { window, ..Rule::FALCON_3 }, 24, 7) });
        close_keys(&mut case, noise);
        check(&format!("window {window}, noise {noise}"), &case, 16);
    }
}

#[test]
fn coefficients_are_those_of_the_kernels() {
    let device = Device::flex();
    for (seed, (name, rule)) in rules().into_iter().enumerate() {
        let rule = Rule { align: Align::Same, ..rule };
        let (time, dim_k) = (20, 5);
        let mut case =
            Case::new(&Spec { heads: 1, key_heads: 1, dim_k, ..Spec::new(rule, time, 600 + seed as u64) });
        if seed % 2 == 0 {
            close_keys(&mut case, 1e-2);
        }
        let expected = case.call(Form::CHUNKED).coefficients(&case.state).expect("a valid case");
        let Leaves { inputs, .. } = leaves(&case, &device);
        let pairs = Pairs::new(inputs.k.reshape([1, time, dim_k]), rule.window, 0, false);
        let gains = |x: Option<Tensor<3>>| x.map(|x| x.swap_dims(0, 1));
        let found = Coefficients::new(&rule, gains(inputs.gain), gains(inputs.decay), &pairs);
        let width = case.sizes.gain_width(&rule);
        let counts = (0..time).flat_map(|step| std::iter::repeat_n(pairs.count(step) as f64, width));
        let eta = numbers(&found.write).iter().zip(counts).map(|(write, count)| write * count).collect();
        let found: Named = vec![("eta", eta), ("gamma", numbers(&found.gamma))];
        assert_close(&name, &found, &vec![("eta", expected.eta), ("gamma", expected.gamma)], 1e-6);
    }
}

/// Long and wide sequences with correlated keys and large gains: the effect of rounding on the triangular systems.
#[test]
fn long_sequences_of_correlated_keys() {
    for (seed, (name, rule)) in Rule::ALL.into_iter().enumerate() {
        let spec =
            Spec { dim_k: 32, dim_v: 16, heads: 1, key_heads: 1, ..Spec::new(rule, 300, 700 + seed as u64) };
        let mut case = Case::new(&spec);
        let common: Vec<f64> = case.k[..32].to_vec();
        for key in case.k.chunks_exact_mut(32) {
            key.iter_mut().zip(&common).for_each(|(x, common)| *x = f64::from((0.5 * *x + 0.5 * common) as f32));
        }
        check(&format!("{name}, correlated"), &case, 64);
    }
}
