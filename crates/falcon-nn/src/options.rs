//! The options of a mixer and a model that have names in configurations.

use serde::{Deserialize, Serialize};

macro_rules! option {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }
    };
}

option! {
    /// An activation function.
    Activation {
        /// The identity, `x`.
        None,
        /// `x σ(x)`.
        Silu,
    }
}
option! {
    /// Normalisation of queries and keys.
    QkNorm {
        /// No normalisation.
        None,
        /// To a mean square of 1.
        Rms,
        /// To length 1.
        L2,
    }
}
option! {
    /// Standard deviation of the initial matrices inside the blocks of a model with hidden size `d`.
    MatrixInit {
        /// `1 / √fan_in`; matrices that end a residual branch are divided by the square root of the number of branches.
        FanIn,
        /// `0.5 / √d`; matrices that end a residual branch are divided by the square root of the number of layers.
        HalfWidth,
    }
}
option! {
    /// Feature map of queries and keys.
    FeatureMap {
        /// `x`.
        Identity,
        /// `ELU(x) + 1`.
        EluPlusOne,
        /// `max(x, 0)`.
        Relu,
        /// `max(x, 0)²`.
        SquaredRelu,
        /// `x σ(x)`, as in Lightning attention.
        Silu,
    }
}
option! {
    /// How the step size is computed from `h`, the normalised input of the mixer.
    GainGate {
        /// The step size is 1.
        None,
        /// `β = 2σ(w·h)` and `η = β / (E + λ + ε)`: the paper's ctx-β.
        Beta,
        /// `η = softplus(w·h + b) / Ē`, which is `1 / Ē` where `w·h = 0`: the paper's ctx-η. The network controls the
        /// step size itself, and no energy divides it. Its unit is `1 / Ē`, with `Ē` the nominal energy of a
        /// normalised key ([`crate::MixerConfig::nominal_energy`]). For a rule that erases, `η ≤ 2 / (Ē (1 + λ̄))`, so
        /// that `η (E + λ) ≤ 2`.
        Eta,
        /// `η = σ(w·h)`, as in DeltaNet.
        Sigmoid,
        /// `η = Δ = softplus(w·h + b)`, as in Mamba-2. The decay uses the same `Δ`.
        Delta,
    }
}
option! {
    /// How the decay is computed.
    DecayGate {
        /// No decay.
        None,
        /// A ridge `λ_scale σ(w·h + b)`. It is `λ̄`, in units of the energy, or `λ` itself for rules whose ridge is
        /// absolute, such as `online-ridge`.
        Lambda,
        /// `γ = 1 − 2^(−5−i)` for head `i`, as in RetNet.
        Fixed,
        /// `γ = exp(−(8 / H)(1 − l / L) i)` for head `i` of `H` in layer `l` of `L`, both counted from 0, as in
        /// Lightning attention.
        Lightning,
        /// `γ = exp(−A Δ)`, `Δ = softplus(w·h + b)`, with a learned `A` for each head, as in Mamba-2 and Gated
        /// DeltaNet.
        Selective,
    }
}
option! {
    /// Normalisation of the output of the mechanism.
    OutputNorm {
        /// No normalisation.
        None,
        /// Each head by itself.
        Head,
        /// All heads together.
        All,
    }
}
option! {
    /// Gate on the output `o` of the mechanism.
    OutputGate {
        /// No gate.
        None,
        /// `norm(o) ⊙ silu(W h)`.
        AfterNorm,
        /// `norm(o ⊙ silu(W h))`.
        BeforeNorm,
    }
}
