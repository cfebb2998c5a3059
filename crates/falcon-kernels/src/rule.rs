//! Rules as data.
//!
//! Every rule of the family is one update of a `dim_k × dim_v` memory `S`,
//!
//! ```text
//! S_t = γ_t S_{t−1} + (1/B_t) Σ_{j ∈ window} x_j (w_t v_j − e_t S_{t−1}ᵀ x_j)ᵀ        o_t = S_tᵀ q_t
//! ```
//!
//! and a [`Rule`] says where `x`, `w`, `e` and `γ` come from. The presets are constants, and so is a new rule.

use crate::error::{Constant, RuleError};

/// The objective whose gradient step is the write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Objective {
    /// `−⟨v, Sᵀx⟩`: the write is Hebbian, nothing is erased (`e = 0`).
    #[default]
    InnerProduct,
    /// `½‖v − Sᵀx‖²`: the write is the prediction error (`e = w = η`).
    Regression,
    /// Regression whose prediction is made by the *decayed* memory `γS` (`w = η`, `e = γη`): Gated DeltaNet.
    DecayedRegression,
}

impl Objective {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::InnerProduct, Self::Regression, Self::DecayedRegression];

    /// Whether the write depends on what the memory predicts for a key.
    pub(crate) fn erases(self) -> bool {
        self != Self::InnerProduct
    }
}

/// Whether a value has one gain or one for each of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// `η_t` is a number.
    Shared,
    /// `η_t` is a vector of `dim_v` numbers.
    Each,
}

/// The key that a value is paired with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Align {
    /// `x_t = k_{t−1}`: the previous key is paired with the current value. The first token of a fresh sequence has no
    /// previous key, so it writes nothing and nothing decays.
    Next,
    /// `x_t = k_t`.
    Same,
}

/// Whether a token reads the memory before or after its own write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Read {
    /// `o_t = S_tᵀ q_t`.
    After,
    /// `o_t = S_{t−1}ᵀ q_t`.
    Before,
}

/// How the step size `η` is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// `η = 1`; there is no gain input.
    Unit,
    /// The input is `β ∈ [0, 2]`, and `η = β / (E + λ + ε)` with `E` the energy of the window.
    Beta,
    /// The input is `η ≥ 0` itself.
    Eta,
}

impl Gain {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Unit, Self::Beta, Self::Eta];
}

/// How the decay factor `γ` is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// `γ = 1`; there is no decay input.
    None,
    /// The input is the ridge `λ ≥ 0`, and `γ = 1 − ηλ`.
    Ridge,
    /// The input is a ridge in units of the energy, `λ = λ̄ E`.
    ScaledRidge {
        /// Whether to treat the factor `E` as a constant in the gradient. The gradient through the step size remains.
        detach: bool,
    },
    /// The input is `γ ∈ [0, 1]` itself. For a fixed decay, repeat it over time with [`crate::View::per_head`].
    Gate,
}

impl Decay {
    /// All variants.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Ridge,
        Self::ScaledRidge { detach: false },
        Self::ScaledRidge { detach: true },
        Self::Gate,
    ];
}

/// Divides a read by the total weight of the writes, as in normalised linear attention.
///
/// The total weight is one more column of the memory, whose values are always 1, so the memory has `dim_v + 1` columns.
/// With signed features it can be zero or negative; see [`crate::normaliser`] for the denominator used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normaliser {
    /// Moves the denominator away from zero.
    pub eps: f64,
}

/// One rule of the family. See the [module](self) for its update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The objective that a write descends.
    pub objective: Objective,
    /// Shared or per-column gains.
    pub columns: Columns,
    /// How many of the latest pairs each step writes, `B ≥ 1`.
    pub window: usize,
    /// The key that a value is paired with.
    pub align: Align,
    /// Whether a token reads before or after its write.
    pub read: Read,
    /// How the step size is given.
    pub gain: Gain,
    /// How the decay factor is given.
    pub decay: Decay,
    /// `ε` of the step size. At most a quarter of the largest value of the number type is used.
    pub eps: f64,
    /// `ε_γ`, the smallest decay factor that a ridge can give. With `None`, it is `γ = 1 − ηλ` without a lower bound.
    pub clamp: Option<f64>,
    /// The normaliser of reads, if any.
    pub normaliser: Option<Normaliser>,
}

impl Rule {
    /// `S ← γS + η x (v − Sᵀx)ᵀ`: regression, one gain.
    pub const FALCON_1: Rule = Rule {
        objective: Objective::Regression,
        columns: Columns::Shared,
        window: 1,
        align: Align::Next,
        read: Read::After,
        gain: Gain::Beta,
        decay: Decay::ScaledRidge { detach: false },
        eps: 1e-6,
        clamp: Some(1e-3),
        normaliser: None,
    };
    /// Falcon-1 with a gain for each value column.
    pub const FALCON_2: Rule = Rule { columns: Columns::Each, ..Rule::FALCON_1 };
    /// Regression over the last `B` pairs (here 4).
    pub const FALCON_3: Rule = Rule { window: 4, decay: Decay::ScaledRidge { detach: true }, ..Rule::FALCON_1 };
    /// `S ← γS + η x vᵀ`: inner product, one gain.
    pub const FALCON_1A: Rule = Rule { objective: Objective::InnerProduct, ..Rule::FALCON_1 };
    /// Falcon-1A with a gain for each value column.
    pub const FALCON_2A: Rule = Rule { objective: Objective::InnerProduct, ..Rule::FALCON_2 };
    /// Inner product over the last `B` pairs (here 4).
    pub const FALCON_3A: Rule = Rule { objective: Objective::InnerProduct, ..Rule::FALCON_3 };
    /// `S ← S + k vᵀ`, not normalised.
    pub const LINEAR_ATTENTION: Rule =
        Rule { align: Align::Same, gain: Gain::Unit, decay: Decay::None, ..Rule::FALCON_1A };
    /// Linear attention divided by the total weight.
    pub const NORMALISED_LINEAR_ATTENTION: Rule =
        Rule { normaliser: Some(Normaliser { eps: 1e-6 }), ..Rule::LINEAR_ATTENTION };
    /// `S ← γS + k vᵀ` with a fixed `γ` per head: RetNet, Lightning attention.
    pub const RETNET: Rule = Rule { decay: Decay::Gate, ..Rule::LINEAR_ATTENTION };
    /// The state-space dual of Mamba-2, `S ← e^{ΔA} S + Δ B xᵀ`: key `B`, query `C`, value `x`, gain `Δ`,
    /// gate `e^{ΔA}`.
    pub const MAMBA_2: Rule = Rule { gain: Gain::Eta, ..Rule::RETNET };
    /// `S ← S + η k (v − Sᵀk)ᵀ`.
    pub const DELTANET: Rule = Rule { align: Align::Same, gain: Gain::Eta, decay: Decay::None, ..Rule::FALCON_1 };
    /// `S ← g (I − η k kᵀ) S + η k vᵀ`.
    pub const GATED_DELTANET: Rule =
        Rule { objective: Objective::DecayedRegression, decay: Decay::Gate, ..Rule::DELTANET };
    /// The paper's reference: first-order online ridge regression, that is Falcon-1 with the ridge itself and
    /// no clamp.
    pub const ONLINE_RIDGE: Rule = Rule { decay: Decay::Ridge, clamp: None, ..Rule::FALCON_1 };

    /// Every preset with its name.
    pub const ALL: [(&'static str, Rule); 13] = [
        ("falcon-1", Rule::FALCON_1),
        ("falcon-2", Rule::FALCON_2),
        ("falcon-3", Rule::FALCON_3),
        ("falcon-1a", Rule::FALCON_1A),
        ("falcon-2a", Rule::FALCON_2A),
        ("falcon-3a", Rule::FALCON_3A),
        ("linear-attention", Rule::LINEAR_ATTENTION),
        ("normalised-linear-attention", Rule::NORMALISED_LINEAR_ATTENTION),
        ("retnet", Rule::RETNET),
        ("mamba-2", Rule::MAMBA_2),
        ("deltanet", Rule::DELTANET),
        ("gated-deltanet", Rule::GATED_DELTANET),
        ("online-ridge", Rule::ONLINE_RIDGE),
    ];

    /// The longest window.
    pub const MAX_WINDOW: usize = 1 << 20;

    /// The longest window of a rule that needs its curvature: every step takes memory of its square and time of its
    /// cube.
    pub const MAX_CURVED_WINDOW: usize = 1 << 10;

    /// Refuses combinations that no kernel can run, with the reason.
    pub fn validate(&self) -> Result<(), RuleError> {
        let Rule { window, columns, gain, objective, .. } = *self;
        if window == 0 {
            return Err(RuleError::EmptyWindow);
        }
        let curved = self.erases() && self.uses_energy();
        let most = if curved { Self::MAX_CURVED_WINDOW } else { Self::MAX_WINDOW };
        if window > most {
            return Err(RuleError::WindowTooLong { window, most, curved });
        }
        if columns == Columns::Each && window > 1 {
            return Err(RuleError::ColumnsWithWindow { window });
        }
        if columns == Columns::Each && gain == Gain::Unit {
            return Err(RuleError::ColumnsWithoutGain);
        }
        if let Some(normaliser) = self.normaliser {
            if objective != Objective::InnerProduct {
                return Err(RuleError::NormalisedRegression);
            }
            if columns == Columns::Each {
                return Err(RuleError::NormalisedColumns);
            }
            check_constant(Constant::Normaliser, normaliser.eps, f64::INFINITY)?;
        }
        check_constant(Constant::Eps, self.eps, f64::INFINITY)?;
        if let Some(clamp) = self.clamp {
            check_constant(Constant::Clamp, clamp, 1.0)?;
        }
        Ok(())
    }

    /// Whether a write erases, that is, subtracts what the memory predicts.
    pub fn erases(&self) -> bool {
        self.objective.erases()
    }

    /// Columns of the memory: those of a value, and one more for a normaliser.
    pub fn state_columns(&self, dim_v: usize) -> usize {
        dim_v.saturating_add(usize::from(self.normaliser.is_some()))
    }

    /// The most pairs from before a segment that its window can hold.
    pub fn tail_capacity(&self) -> usize {
        self.window.saturating_sub(1)
    }

    /// Whether `η` or `λ` depends on the energy of the keys.
    pub fn uses_energy(&self) -> bool {
        self.gain == Gain::Beta || matches!(self.decay, Decay::ScaledRidge { .. })
    }
}

fn check_constant(constant: Constant, value: f64, below: f64) -> Result<(), RuleError> {
    if value >= 0.0 && value < below { Ok(()) } else { Err(RuleError::Constant { constant, value, below }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid() {
        for (name, rule) in Rule::ALL {
            assert_eq!(rule.validate(), Ok(()), "{name}");
        }
    }

    /// With a window of 1, Falcon-3 and 3A are Falcon-1 and 1A, except that their presets detach the ridge.
    #[test]
    fn a_window_of_one_is_no_window() {
        for (windowed, plain) in [(Rule::FALCON_3, Rule::FALCON_1), (Rule::FALCON_3A, Rule::FALCON_1A)] {
            let decay = Decay::ScaledRidge { detach: true };
            assert_eq!(Rule { window: 1, ..windowed }, Rule { decay, ..plain });
        }
    }

    #[test]
    fn impossible_rules_are_refused_with_the_reason() {
        let message = |rule: Rule| rule.validate().unwrap_err().to_string();
        assert_eq!(message(Rule { window: 0, ..Rule::FALCON_3 }), "the window must hold at least 1 pair, got 0");
        assert!(message(Rule { window: usize::MAX, ..Rule::FALCON_3A }).ends_with("too long, at most 1048576"));
        assert!(
            message(Rule { window: 1025, ..Rule::FALCON_3 })
                .ends_with("too long, at most 1024: the curvature of a window costs its cube at every step")
        );
        assert_eq!(message(Rule { window: 4, ..Rule::FALCON_2 }), "per-column gains need window 1, got 4");
        assert!(message(Rule { gain: Gain::Unit, ..Rule::FALCON_2 }).contains("per-column"));
        let normaliser = Some(Normaliser { eps: 1e-6 });
        assert!(message(Rule { normaliser, ..Rule::FALCON_1 }).contains("inner-product"));
        assert!(message(Rule { normaliser, ..Rule::FALCON_2A }).contains("one gain"));
        assert!(message(Rule { eps: f64::NAN, ..Rule::FALCON_1 }).contains("NaN"));
        assert!(message(Rule { clamp: Some(1.0), ..Rule::FALCON_1 }).starts_with("clamp (eps_gamma) must be in"));
    }
}
