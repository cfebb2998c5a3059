//! From gains and decays to `w`, `e` and `γ`: the equations of the kernels in tensor operations.
//!
//! ```text
//! E = ‖x‖²                       window 1
//!   = mean ‖x_j‖² over window    inner product, window > 1
//!   = λ_max(Σ x_j x_jᵀ) / B      regression, window > 1
//! λ = ridge, or ridge · E        η = β / (E + λ + ε), or given
//! γ = max(1 − ηλ, ε_γ), or given
//! w = η / B                      e = w, or γ w (decayed regression), or 0 (inner product)
//! ```

use burn::tensor::{Bool, Tensor, TensorData};
use falcon_kernels::Rule;
use falcon_kernels::rule::{Decay, Gain, Objective};

use super::pairs::Pairs;
use super::triangle::{ones, options};

/// How often the Gram matrix of a window is squared. Its top eigenvector dominates once the next eigenvalue is smaller
/// by one part in `2^SQUARINGS`; single precision cannot distinguish closer ones.
const SQUARINGS: usize = 20;

/// The coefficients of all steps, `[batch, time, 1 | dim_v]` each.
pub(super) struct Coefficients {
    pub write: Tensor<3>,
    /// None for rules that do not erase.
    pub erase: Option<Tensor<3>>,
    pub gamma: Tensor<3>,
}

impl Coefficients {
    /// `gain` and `decay` are `[batch, time, 1 | dim_v]`.
    pub fn new(rule: &Rule, gain: Option<Tensor<3>>, decay: Option<Tensor<3>>, pairs: &Pairs) -> Self {
        let energy = rule.uses_energy().then(|| energy(rule, pairs));
        let (eta, gamma) = step_sizes(rule, gain, decay, energy, pairs);
        let write = divide_by_count(eta, pairs);
        let erase = match rule.objective {
            Objective::InnerProduct => None,
            Objective::Regression => Some(write.clone()),
            Objective::DecayedRegression => Some(write.clone() * gamma.clone()),
            other => panic!("{other:?} has no tensor operations yet: use the CPU"),
        };
        Self { write, erase, gamma }
    }
}

/// `η` and `γ`, both as wide as the gain.
fn step_sizes(
    rule: &Rule,
    gain: Option<Tensor<3>>,
    decay: Option<Tensor<3>>,
    energy: Option<Tensor<3>>,
    pairs: &Pairs,
) -> (Tensor<3>, Tensor<3>) {
    let [batch, time, _] = pairs.newest().dims();
    let unpaired = unpaired_steps(pairs);
    let unless = |x: Tensor<3>, mask: &Option<Tensor<3, Bool>>, value: f64| match mask {
        Some(mask) => {
            let shape = x.dims();
            x.mask_fill(mask.clone().expand(shape), value)
        }
        None => x,
    };
    let lambda = match rule.decay {
        Decay::None | Decay::Gate => None,
        Decay::Ridge => decay.clone(),
        Decay::ScaledRidge { detach } => decay
            .clone()
            .zip(energy.clone())
            .map(|(ridge, energy)| ridge * if detach { energy.detach() } else { energy }),
    };
    let (eta, gamma) = match (rule.gain, gain, energy) {
        (Gain::Beta, Some(beta), Some(energy)) => {
            let rest = energy.add_scalar(rule.eps);
            let denominator = lambda.clone().map_or(rest.clone(), |lambda| rest.clone() + lambda);
            // Where the denominator is 0 there is nothing to write, as in a step without a pair. Both are excluded from
            // the division, because 0 · ∞ would reach the gradient.
            let nothing = denominator.clone().lower_elem(f32::MIN_POSITIVE);
            let nothing = Some(match &unpaired {
                Some(unpaired) => nothing.bool_or(unpaired.clone()),
                None => nothing,
            });
            let denominator = unless(denominator, &nothing, 1.0);
            let eta = unless(beta.clone() / denominator.clone(), &nothing, 0.0);
            // 1 − βλ/(E + λ + ε) without cancellation.
            let gamma = lambda.map(|lambda| {
                let kept = rest + beta.neg().add_scalar(1.0) * lambda;
                unless(kept / denominator, &nothing, 1.0)
            });
            (eta, gamma)
        }
        (Gain::Beta, ..) => unreachable!("inputs are checked: β is given, and energies are computed for it"),
        (Gain::Unit | Gain::Eta, gain, _) => {
            let eta = gain.unwrap_or_else(|| ones([batch, time, 1], pairs.newest()));
            let eta = unless(eta, &unpaired, 0.0);
            let gamma = lambda.map(|lambda| (eta.clone() * lambda).neg().add_scalar(1.0));
            (eta, gamma)
        }
    };
    let gamma = match (gamma, rule.decay, decay) {
        (_, Decay::Gate, Some(gate)) => unless(gate, &unpaired, 1.0),
        (None, _, _) => ones(eta.dims(), &eta),
        // A clamped γ passes no gradient.
        (Some(gamma), _, _) => match rule.clamp {
            Some(least) => {
                let clamped = gamma.clone().lower_equal_elem(least);
                gamma.mask_fill(clamped, least)
            }
            None => gamma,
        },
    };
    (eta, gamma)
}

/// Marks the first step of a fresh sequence with next-latent alignment. It has no pair, so `η = 0` and `γ = 1`.
fn unpaired_steps(pairs: &Pairs) -> Option<Tensor<3, Bool>> {
    let [batch, time, _] = pairs.newest().dims();
    pairs.first_unpaired.then(|| {
        let first: Vec<bool> = (0..time).map(|step| step == 0).collect();
        let mask = Tensor::<1, Bool>::from_data(TensorData::new(first, [time]), &pairs.newest().device());
        mask.reshape([1, time, 1]).expand([batch, time, 1])
    })
}

/// Divides `[batch, time, _]` by the number of pairs in each step's window.
fn divide_by_count(x: Tensor<3>, pairs: &Pairs) -> Tensor<3> {
    let [_, time, _] = x.dims();
    if pairs.window == 1 {
        return x;
    }
    let shares: Vec<f32> = (0..time).map(|step| 1.0 / pairs.count(step).max(1) as f32).collect();
    let shares = Tensor::<1>::from_data(TensorData::new(shares, [time]), options(&x));
    x * shares.reshape([1, time, 1])
}

/// `E`, `[batch, time, 1]`.
fn energy(rule: &Rule, pairs: &Pairs) -> Tensor<3> {
    if pairs.window == 1 {
        return pairs.newest().clone().square().sum_dim(2);
    }
    let sum = if rule.erases() {
        curvature(pairs.windows_x())
    } else {
        let [_, rows, _] = pairs.x.dims();
        let time = rows + 1 - pairs.window;
        let energies = pairs.x.clone().square().sum_dim(2);
        let shifted = |slot| energies.clone().slice_dim(1, slot..slot + time);
        (1..pairs.window).fold(shifted(0), |sum, slot| sum + shifted(slot))
    };
    divide_by_count(sum, pairs)
}

/// The largest eigenvalue of `Σ x_j x_jᵀ` over each window, `[batch, time, window, dim_k]` to `[batch, time, 1]`.
///
/// It is `‖Xᵀu‖²` with `u` the top eigenvector of the Gram matrix. To first order the eigenvalue does not change with
/// `u`, so the gradient is exact although none passes through `u`. Windows of zeros have `u = 0`.
fn curvature(windows: Tensor<4>) -> Tensor<3> {
    let [batch, time, window, _] = windows.dims();
    let x = windows.clone().detach();
    let diagonal = Tensor::<2>::eye(window, &x.device()).cast(x.dtype()).reshape([1, 1, window, window]);
    let unit_trace = |gram: Tensor<4>| {
        let trace = (gram.clone() * diagonal.clone()).sum_dim(3).sum_dim(2);
        gram / trace.clamp_min(f32::MIN_POSITIVE)
    };
    let mut power = unit_trace(x.clone().matmul(x.swap_dims(2, 3)));
    for _ in 0..SQUARINGS {
        power = unit_trace(power.clone().matmul(power));
    }
    // Now a projector on the top eigenvectors. Any column other than 0 would do; the longest one, which has the largest
    // diagonal entry, is the most accurate. Of several equal ones the first is taken, that of the oldest pair.
    let longest = (power.clone() * diagonal).sum_dim(2).argmax(3);
    let u = power.gather(3, longest.expand([batch, time, window, 1]));
    let length = u.clone().square().sum_dim(2).sqrt();
    let u = (u / length.clamp_min(f32::MIN_POSITIVE)).detach();
    (windows * u).sum_dim(2).square().sum_dim(3).reshape([batch, time, 1])
}
