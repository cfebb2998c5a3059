//! The variants that a file may name, and the rule or solver of each with the options of the file.

use falcon_kernels::Rule;
use falcon_kernels::rule::{Align, Decay, Gain, Normaliser, Read};
use falcon_kernels::solvers::ssm::Order;

use crate::error::ScanError;
use crate::file::ScanFile;

/// How a variant is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Method {
    /// By the kernels.
    Rule(Rule),
    /// By the solver for recursive least squares.
    Rls { align: Align },
    /// By the solver for diagonal state-space models.
    Ssm { order: Order },
}

/// The name of a tensor, if there is one.
type Name = Option<&'static str>;

/// A variant before the options of a file are applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub name: &'static str,
    /// Whether its `kind` is `falcon`; otherwise it is `baseline`.
    pub falcon: bool,
    base: Base,
    /// The tensor with the gains, if the rule has any.
    pub gain: Name,
    /// The tensor with the ridges or gates, if the rule has any.
    pub decay: Name,
}

/// The rule or solver of a variant before the options of a file are applied.
#[derive(Clone, Copy, Debug)]
enum Base {
    Rule(Rule),
    Rls,
    Ssm,
}

const fn falcon(name: &'static str, rule: Rule) -> Variant {
    Variant { name, falcon: true, base: Base::Rule(rule), gain: Some("in.gain"), decay: Some("in.lam") }
}

const fn baseline(name: &'static str, base: Base, gain: Name, decay: Name) -> Variant {
    Variant { name, falcon: false, base, gain, decay }
}

const VARIANTS: [Variant; 15] = [
    falcon("falcon1", Rule::FALCON_1),
    falcon("falcon2", Rule::FALCON_2),
    falcon("falcon3", Rule::FALCON_3),
    falcon("falcon1a", Rule::FALCON_1A),
    falcon("falcon2a", Rule::FALCON_2A),
    falcon("falcon3a", Rule::FALCON_3A),
    baseline("linear_attention", Base::Rule(Rule::LINEAR_ATTENTION), None, None),
    baseline(
        "normalized_linear_attention",
        Base::Rule(Rule::NORMALISED_LINEAR_ATTENTION),
        Some("in.eta"),
        Some("in.lam"),
    ),
    baseline("retnet", Base::Rule(Rule::RETNET), None, Some("in.decay")),
    baseline("mamba2", Base::Rule(Rule::MAMBA_2), Some("in.eta"), Some("in.g")),
    baseline("deltanet", Base::Rule(Rule::DELTANET), Some("in.gain"), None),
    baseline("gated_deltanet", Base::Rule(Rule::GATED_DELTANET), Some("in.eta"), Some("in.g")),
    baseline("online_ridge", Base::Rule(Rule::ONLINE_RIDGE), Some("in.beta"), Some("in.lam")),
    baseline("rls", Base::Rls, None, Some("in.lam")),
    baseline("ssm_zoh", Base::Ssm, None, None),
];

/// The names of all variants, as they are written in `meta`.
pub fn names() -> impl Iterator<Item = &'static str> {
    VARIANTS.iter().map(|variant| variant.name)
}

const ALIGNS: [(&str, Align); 2] = [("next", Align::Next), ("same", Align::Same)];
const READS: [(&str, Read); 2] = [("after", Read::After), ("before", Read::Before)];
const GAINS: [(&str, Gain); 2] = [("beta", Gain::Beta), ("eta", Gain::Eta)];
const ORDERS: [(&str, Order); 2] = [("zoh", Order::ZeroOrderHold), ("first", Order::First)];

impl Variant {
    /// The variant that `kind` and `variant` name.
    pub fn find(file: &ScanFile<'_>) -> Result<Variant, ScanError> {
        let kinds = [("falcon", true), ("baseline", false)];
        let falcon = file.meta.need_choice("kind", &kinds, "every file")?;
        let choices: Vec<_> = VARIANTS.iter().filter(|v| v.falcon == falcon).map(|v| (v.name, *v)).collect();
        file.meta.need_choice("variant", &choices, "every file")
    }

    /// The rule or solver with all options of `meta` except the window.
    pub fn method(&self, file: &ScanFile<'_>) -> Result<Method, ScanError> {
        let (meta, name) = (&file.meta, self.name);
        let Base::Rule(base) = self.base else {
            meta.choice("read", &READS[..1])?;
            return match self.base {
                Base::Ssm => Ok(Method::Ssm { order: meta.need_choice("order", &ORDERS, name)? }),
                _ => Ok(Method::Rls { align: meta.need_choice("align", &ALIGNS, name)? }),
            };
        };
        let mut rule = Rule {
            align: meta.need_choice("align", &ALIGNS, name)?,
            read: meta.choice("read", &READS)?.unwrap_or(Read::After),
            ..base
        };
        if self.gain == Some("in.gain") {
            rule.gain = meta.need_choice("gain_kind", &GAINS, name)?;
        }
        if self.falcon {
            // Rules with a window detach the ridge by default, the others do not.
            let default = base.decay == Decay::ScaledRidge { detach: true };
            let detach = meta.flag("detach")?.unwrap_or(default);
            let ridges =
                [("off", Decay::None), ("actual", Decay::Ridge), ("scaled", Decay::ScaledRidge { detach })];
            rule.decay = meta.need_choice("ridge", &ridges, name)?;
        }
        if base.normaliser.is_some() {
            rule.normaliser = Some(Normaliser { eps: meta.need_number("eps_attn", name)? });
            rule.gain = if self.gain.is_some_and(|name| file.has(name)) { Gain::Eta } else { Gain::Unit };
            rule.decay = if self.decay.is_some_and(|name| file.has(name)) { Decay::Ridge } else { Decay::None };
        }
        if rule.gain == Gain::Beta {
            rule.eps = meta.need_number("eps", &format!("{name} with a beta gain"))?;
        }
        // Only online ridge has no clamp.
        if matches!(rule.decay, Decay::Ridge | Decay::ScaledRidge { .. }) && base.clamp.is_some() {
            rule.clamp = Some(meta.need_number("eps_gamma", &format!("{name} with a ridge"))?);
        }
        Ok(Method::Rule(rule))
    }

    /// Whether each step of the variant writes the last `B` pairs. The other variants write one pair.
    pub fn slides(&self) -> bool {
        matches!(self.base, Base::Rule(Rule { window, .. }) if window > 1)
    }
}
