//! The kernels in `f32` at extreme inputs: all results are finite, and close to those of the same kernels in `f64`.

use falcon_kernels::rule::{Align, Decay, Gain};
use falcon_kernels::{Form, Rule};
use falcon_testkit::{Case, Spec, rms_error};

const FORMS: [Form; 2] = [Form::Recurrent, Form::CHUNKED];

/// The clamp of those rules in [`Rule::ALL`] that have one: the least decay factor γ that a ridge leaves.
const CLAMP: f64 = 1e-3;

/// Runs a random case in `f32` and in `f64`, and compares outputs, outgoing state and gradients. The error of a tensor
/// is the RMS of the difference divided by the RMS of the `f64` tensor; it may be at most `tolerance`. All tensors with
/// larger errors are reported together.
fn compare_with_f64(label: &str, spec: &Spec, tolerance: f64) {
    let double = Case::new(spec);
    let single = double.to_f32();
    let (mut failures, mut worst) = (Vec::new(), 0f64);
    for form in FORMS {
        for ((name, a), (_, b)) in single.run(form).all().iter().zip(&double.run(form).all()) {
            let error = rms_error(a, b);
            worst = worst.max(error);
            if error.is_nan() || error > tolerance {
                failures.push(format!("{form:?} {name}: {error:.1e}"));
            }
        }
    }
    println!("{label}: {worst:.1e}");
    assert!(failures.is_empty(), "{label}: errors above {tolerance:.0e}: {}", failures.join(", "));
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
        let gate = (CLAMP, CLAMP);
        let spec = Spec { gain: (1.1, 1.9), ridge: (1e4, 1e5), gate, ..spec(rule, 256) };
        if rule.decay != Decay::Gate {
            let case = Case::new(&spec);
            let realised = case.call(Form::CHUNKED).coefficients(&case.state).unwrap();
            let clamped = realised.gamma.iter().filter(|gamma| **gamma == CLAMP).count();
            // Where a value is paired with the key of the token before it, the first token has no pair: it writes
            // nothing, and its γ is 1.
            let unpaired = usize::from(rule.align == Align::Next);
            let expected = realised.gamma.len() * (256 - unpaired) / 256;
            assert_eq!(clamped, expected, "{name}: γ must be clamped at every token that has a pair");
        }
        compare_with_f64(name, &spec, 1e-5);
    }
}

/// Each step keeps only about a fifth of the memory.
#[test]
fn decay_factors_that_average_0_2() {
    for (name, rule) in Rule::ALL.into_iter().filter(|(_, rule)| decays(rule)) {
        let spec = Spec { gain: (0.6, 1.0), ridge: (1e3, 1e4), gate: (0.0, 0.4), ..spec(rule, 256) };
        compare_with_f64(name, &spec, 1e-5);
    }
}

#[test]
fn keys_from_tiny_to_huge() {
    for key_norm in [1e-6, 1e-3, 1.0, 1e2, 1e4] {
        for (name, rule) in Rule::ALL {
            compare_with_f64(&format!("{name} at {key_norm:e}"), &Spec { key_norm, ..spec(rule, 192) }, 1e-5);
        }
    }
}

/// If a ridge overflows, the step forgets everything. If ε is outside the range of the number type, the step leaves the
/// memory unchanged. In both cases all results are finite.
#[test]
fn ridges_and_epsilons_that_overflow() {
    for (name, rule) in Rule::ALL.into_iter().filter(|(_, rule)| matches!(rule.decay, Decay::ScaledRidge { .. })) {
        let case = Case::new(&Spec { key_norm: 1e3, ridge: (1e35, 3e38), ..spec(rule, 40) }).to_f32();
        for form in [Form::Recurrent, Form::CHUNKED] {
            let finite = case.run(form).all().into_iter().all(|(_, values)| values.iter().all(|x| x.is_finite()));
            assert!(finite, "{name} in {form:?}: all results must be finite");
        }
    }
    for (name, rule) in Rule::ALL.into_iter().filter(|(_, rule)| rule.gain == Gain::Beta) {
        let rule = Rule { eps: 1e300, ..rule };
        let case = Case::new(&spec(rule, 40)).to_f32();
        for form in [Form::Recurrent, Form::CHUNKED] {
            let found = case.run(form);
            assert_eq!(found.state.memory, case.state.memory, "{name} in {form:?}: the memory must not change");
            let finite = found.all().into_iter().all(|(_, values)| values.iter().all(|x| x.is_finite()));
            assert!(finite, "{name} in {form:?}: all results must be finite");
        }
    }
}

/// Every rule at usual settings over two chunks and a few tokens.
#[test]
fn everyday_settings() {
    for (name, rule) in Rule::ALL {
        compare_with_f64(name, &Spec { continued: true, ..spec(rule, 131) }, 1e-5);
    }
}

#[test]
fn a_hundred_thousand_tokens() {
    for (name, rule) in Rule::ALL {
        // Decay factors close to 1: a read sums the writes of about a hundred tokens, and rounding errors add up.
        let spec = Spec { ridge: (0.0, 0.03), gate: (0.97, 1.0), ..spec(rule, 100_000) };
        compare_with_f64(name, &spec, 1e-4);
    }
}
