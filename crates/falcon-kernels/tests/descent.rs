//! The paper's lemma: a step of size `η < 2/L` lowers the objective it descends,
//!
//! ```text
//! f(S⁺) ≤ f(S) − η (2 − ηL)/2 · ‖∇f(S)‖²
//! ```
//!
//! at every token, for all six rules, as long as the clamp is not active. `L = E + λ` for regression, `λ` for the inner
//! product; with per-column gains the lemma holds column by column.

use falcon_kernels::{Decoder, Form, Rule};
use falcon_testkit::{Case, Spec};

const FALCONS: [(&str, Rule); 6] = [
    ("falcon-1", Rule::FALCON_1),
    ("falcon-2", Rule::FALCON_2),
    ("falcon-3", Rule::FALCON_3),
    ("falcon-1a", Rule::FALCON_1A),
    ("falcon-2a", Rule::FALCON_2A),
    ("falcon-3a", Rule::FALCON_3A),
];

/// A bound counts as sharp if some step comes closer to it than this, in units of `η²L/2 · ‖∇f(S)‖²`. With gains up to
/// 1.99, no step comes closer to the trivial bound `f(S⁺) ≤ f(S)` than `2/1.99 − 1 = 5e-3`.
const SHARP: f64 = 4e-3;

/// The objective of one step: the pairs of its window and the ridge.
struct Objective<'a> {
    regression: bool,
    pairs: Vec<(&'a [f64], &'a [f64])>,
    lambda: f64,
    dim_v: usize,
}

impl Objective<'_> {
    /// Value and squared gradient norm in one column of the memory.
    fn at(&self, memory: &[f64], column: usize) -> (f64, f64) {
        let column_of =
            |memory: &[f64]| -> Vec<f64> { memory.iter().skip(column).step_by(self.dim_v).copied().collect() };
        let s = column_of(memory);
        let count = self.pairs.len() as f64;
        let mut value = self.lambda / 2.0 * s.iter().map(|s| s * s).sum::<f64>();
        let mut gradient: Vec<f64> = s.iter().map(|s| self.lambda * s).collect();
        for (x, v) in &self.pairs {
            let prediction: f64 = x.iter().zip(&s).map(|(x, s)| x * s).sum();
            let slope = if self.regression {
                value += (v[column] - prediction).powi(2) / 2.0 / count;
                (prediction - v[column]) / count
            } else {
                value -= v[column] * prediction / count;
                -v[column] / count
            };
            gradient.iter_mut().zip(*x).for_each(|(g, x)| *g += slope * x);
        }
        (value, gradient.iter().map(|g| g * g).sum())
    }
}

#[test]
fn every_step_descends() {
    for (name, rule) in FALCONS {
        let rule = Rule { clamp: None, ..rule };
        let spec =
            Spec { heads: 1, key_heads: 1, gain: (0.01, 1.99), ridge: (0.0, 2.0), ..Spec::new(rule, 200, 9) };
        let case = Case::new(&spec);
        let realised = case.call(Form::CHUNKED).coefficients(&case.state).unwrap();
        let (dim_k, dim_v, width) = (spec.dim_k, spec.dim_v, case.sizes.gain_width(&rule));
        let mut decoder = Decoder::new(&rule, case.state.clone()).unwrap();
        let mut out = vec![0.0; dim_v];
        // The smallest distance from the bound, and the smallest distance from the trivial bound f(S⁺) ≤ f(S); both in
        // units of η²L/2 · ‖∇f‖².
        let (mut tightest, mut trivial) = (f64::INFINITY, f64::INFINITY);
        for t in 0..case.sizes.tokens {
            let before = decoder.state().memory.clone();
            decoder.step(&case.take(&[t], vec![0, 1]).inputs(), &mut out).unwrap();
            let after = &decoder.state().memory;
            // The pairs (k_{j−1}, v_j) of the window. The first token has none and must change nothing.
            let pairs: Vec<_> = ((t + 1).saturating_sub(rule.window).max(1)..=t)
                .map(|j| (&case.k[(j - 1) * dim_k..j * dim_k], &case.v[j * dim_v..(j + 1) * dim_v]))
                .collect();
            if pairs.is_empty() {
                assert_eq!(*after, before, "{name}: the first token has no pair and must write nothing");
                continue;
            }
            let lambda = realised.lambda[t];
            let objective = Objective { regression: rule.erases(), pairs, lambda, dim_v };
            let smoothness = lambda + if rule.erases() { realised.energy[t] } else { 0.0 };
            for column in 0..dim_v {
                let eta = realised.eta[t * width + column % width];
                assert!(eta * smoothness < 2.0, "{name}: the step is too long at {t}");
                let ((f, gradient), (after, _)) = (objective.at(&before, column), objective.at(after, column));
                let bound = f - eta * (2.0 - eta * smoothness) / 2.0 * gradient;
                assert!(
                    after <= bound + 1e-12 * (1.0 + f.abs()),
                    "{name} at {t}, column {column}: {after} > {bound}"
                );
                let curvature_term = eta * eta * smoothness * gradient / 2.0;
                tightest = tightest.min((bound - after) / curvature_term);
                trivial = trivial.min((f - after) / curvature_term);
            }
        }
        // The lemma is sharp: a smaller L would violate it somewhere. f(S⁺) ≤ f(S) is not sharp, because gains are
        // below 2.
        assert!(tightest < SHARP, "{name}: always at least {tightest} from the bound, so the test is not sharp");
        assert!(
            trivial > SHARP,
            "{name}: within {trivial} of the trivial bound, so the test does not tell the bounds apart"
        );
    }
}

/// Along the key that is written, the memory is multiplied by `γ − ηE = 1 − β` (with ε = 0): beyond `β = 1` what was
/// stored there changes its sign, and it still shrinks as long as `β < 2`.
#[test]
fn gains_above_one_flip_the_sign() {
    for beta in [0.25, 1.0, 1.5, 1.9375] {
        for ridge in [0.0, 0.5] {
            let rule = Rule { eps: 0.0, clamp: None, ..Rule::FALCON_1 };
            let mut case = Case::new(&Spec { heads: 1, key_heads: 1, continued: true, ..Spec::new(rule, 1, 4) });
            case.gain = vec![beta];
            case.decay = vec![ridge];
            case.v.fill(0.0);
            // Reading along the key shows the eigenvalue.
            case.q.clone_from(&case.state.last_key);
            let before: Vec<f64> = (0..case.sizes.dim_v)
                .map(|c| {
                    (0..case.sizes.dim_k).map(|k| case.q[k] * case.state.memory[k * case.sizes.dim_v + c]).sum()
                })
                .collect();
            for (after, before) in case.forward(Form::CHUNKED).out.iter().zip(before) {
                let eigenvalue = after / before;
                assert!((eigenvalue - (1.0 - beta)).abs() < 1e-12, "β = {beta}, λ̄ = {ridge}: {eigenvalue}");
            }
        }
    }
}
