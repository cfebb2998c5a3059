//! `f32` at extreme inputs: results are finite and close to those of the same code in `f64`.

use falcon_kernels::rule::{Align, Decay, Gain};
use falcon_kernels::{Form, Rule};
use falcon_testkit::{Case, Spec, rms_error};

const FORMS: [Form; 2] = [Form::Recurrent, Form::CHUNKED];

/// Every tensor of the `f32` run, outputs, state and gradients, within `tolerance` of `f64` (RMS of the difference over
/// RMS). All failures of a spec are reported together.
fn check(label: &str, spec: &Spec, tolerance: f64) {
    let exact = Case::new(spec);
    let rounded = exact.to_f32();
    let (mut far, mut worst) = (Vec::new(), 0f64);
    for form in FORMS {
        for ((name, a), (_, b)) in rounded.run(form).all().iter().zip(&exact.run(form).all()) {
            let error = rms_error(a, b);
            worst = worst.max(error);
            if error.is_nan() || error > tolerance {
                far.push(format!("{form:?} {name}: {error:.1e}"));
            }
        }
    }
    println!("{label}: {worst:.1e}");
    assert!(far.is_empty(), "{label}: above {tolerance:.0e}: {}", far.join(", "));
}

fn spec(rule: Rule, tokens: usize) -> Spec {
    Spec { heads: 1, key_heads: 1, dim_k: 16, dim_v: 8, ..Spec::new(rule, tokens, 17) }
}

fn decays(rule: &Rule) -> bool {
    rule.decay != Decay::None
}

#[test]
fn every_step_clamped() {
    for (name, rule) in Rule::ALL.into_iter().filter(|(_, rule)| decays(rule) && rule.clamp.is_some()) {
        let gate = (1e-3, 1e-3);
        let spec = Spec { gain: (1.1, 1.9), ridge: (1e4, 1e5), gate, ..spec(rule, 256) };
        if rule.decay != Decay::Gate {
            let case = Case::new(&spec);
            let realised = case.call(Form::CHUNKED).coefficients(&case.state).unwrap();
            let clamped = realised.gamma.iter().filter(|gamma| **gamma == 1e-3).count();
            // Nothing is written at the first token where a value meets the previous key.
            let boundary = usize::from(rule.align == Align::Next);
            assert_eq!(clamped, realised.gamma.len() * (256 - boundary) / 256, "{name}: all but the boundary");
        }
        check(name, &spec, 1e-5);
    }
}

#[test]
fn carries_that_average_a_fifth() {
    for (name, rule) in Rule::ALL.into_iter().filter(|(_, rule)| decays(rule)) {
        let spec = Spec { gain: (0.6, 1.0), ridge: (1e3, 1e4), gate: (0.0, 0.4), ..spec(rule, 256) };
        check(name, &spec, 1e-5);
    }
}

#[test]
fn keys_from_tiny_to_huge() {
    for key_norm in [1e-6, 1e-3, 1.0, 1e2, 1e4] {
        for (name, rule) in Rule::ALL {
            check(&format!("{name} at {key_norm:e}"), &Spec { key_norm, ..spec(rule, 192) }, 1e-5);
        }
    }
}

/// A ridge that overflows forgets everything, and an ε outside the range of the number type leaves the memory
/// unchanged. Neither gives NaN.
#[test]
fn ridges_that_overflow() {
    for (name, rule) in Rule::ALL.into_iter().filter(|(_, rule)| matches!(rule.decay, Decay::ScaledRidge { .. })) {
        let case = Case::new(&Spec { key_norm: 1e3, ridge: (1e35, 3e38), ..spec(rule, 40) }).to_f32();
        for form in [Form::Recurrent, Form::CHUNKED] {
            let finite = case.run(form).all().into_iter().all(|(_, values)| values.iter().all(|x| x.is_finite()));
            assert!(finite, "{name} in {form:?}");
        }
    }
    for (name, rule) in Rule::ALL.into_iter().filter(|(_, rule)| rule.gain == Gain::Beta) {
        let rule = Rule { eps: 1e300, ..rule };
        let case = Case::new(&spec(rule, 40)).to_f32();
        for form in [Form::Recurrent, Form::CHUNKED] {
            let found = case.run(form);
            assert_eq!(found.state.memory, case.state.memory, "{name} in {form:?}");
            let finite = found.all().into_iter().all(|(_, values)| values.iter().all(|x| x.is_finite()));
            assert!(finite, "{name} in {form:?}");
        }
    }
}

/// Every rule at usual settings over two chunks and a few tokens.
#[test]
fn everyday_settings() {
    for (name, rule) in Rule::ALL {
        check(name, &Spec { continued: true, ..spec(rule, 131) }, 1e-5);
    }
}

#[test]
fn a_hundred_thousand_tokens() {
    for (name, rule) in Rule::ALL {
        // Carries of 0.97 to 1: a memory some hundred tokens deep, so that sums are long.
        let spec = Spec { ridge: (0.0, 0.03), gate: (0.97, 1.0), ..spec(rule, 100_000) };
        check(name, &spec, 1e-4);
    }
}
