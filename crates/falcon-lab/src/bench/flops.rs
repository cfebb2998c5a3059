//! Useful floating-point operations (FLOPs): the products of the chunked form, counted by hand.

use falcon_kernels::{Form, Rule};

/// Useful FLOPs per token and head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flops {
    pub forward: f64,
    pub backward: f64,
}

/// Counts the useful FLOPs of a rule. A multiplication and an addition count as two, a triangular product as half of
/// a full one; gains, decays, copies and sums are not counted. A chunk has `C` tokens, queries `Q`, pairs `X` and
/// `V`, and the incoming memory `S`; `dS` is the gradient of the outgoing memory, and `T(M)` the triangle of `M`. The
/// numbers below are those of a chunk divided by `C`, that is, per token.
///
/// Linear rules, `O = QS + T(QXᵀ) V`, `S' = S + XᵀV`:
///
/// ```text
/// forward    2 dk dv each   QS, XᵀV
///              C dk         QXᵀ
///              C dv         T(QXᵀ) V
/// backward   2 dk dv each   dQ: dO Sᵀ;  dX: V dSᵀ;  dV: X dS;  dS: Qᵀ dO
///              C dk each    QXᵀ again;  dQ: T(dO Vᵀ) X;  dX: T(dO Vᵀ)ᵀ Q
///              C dv each    dO Vᵀ;  dV: T(QXᵀ)ᵀ dO
/// ```
///
/// Regression rules write `U` instead of `V`, with `(I + T(XXᵀ)) U = V − XS`. With `W` the gradient of the right-hand
/// side, `(I + T(XXᵀ))ᵀ W = dU`, they need in addition
///
/// ```text
/// forward    2 dk dv        XS
///              C dk         XXᵀ
///              C dv         the solve
/// backward   2 dk dv each   XS again;  dX: W Sᵀ;  dS: Xᵀ W
///              C dk each    XXᵀ again;  dX: T(W Uᵀ) X and T(W Uᵀ)ᵀ X
///              C dv each    the solve again;  its transpose;  W Uᵀ
/// ```
///
/// In a linear rule, a window of `B > 1` pairs adds nothing, because it can be folded into the values. In a regression
/// each step has `B` errors of `B` terms, `2 B² dv`, once forward and twice backward.
pub(super) fn useful(rule: &Rule, dim: usize, chunk: usize) -> Flops {
    let chunk = Form::Chunked { chunk }.stretch(rule).unwrap_or(chunk);
    let (dim_k, dim_v, chunk) = (dim as f64, rule.state_columns(dim) as f64, chunk as f64);
    let memory = 2.0 * dim_k * dim_v;
    let (inner_k, inner_v) = (chunk * dim_k, chunk * dim_v);
    let linear = Flops {
        forward: 2.0 * memory + inner_k + inner_v,
        backward: 4.0 * memory + 3.0 * inner_k + 2.0 * inner_v,
    };
    if !rule.erases() {
        return linear;
    }
    let window = if rule.window > 1 { 2.0 * (rule.window * rule.window) as f64 * dim_v } else { 0.0 };
    Flops {
        forward: linear.forward + memory + inner_k + inner_v + window,
        backward: linear.backward + 3.0 * memory + 3.0 * inner_k + 3.0 * inner_v + 2.0 * window,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_square_chunks_are_counted() {
        // With C = dk = dv = d everything is a multiple of d².
        let units = |rule: &Rule, chunk: usize| {
            let Flops { forward, backward } = useful(rule, 64, chunk);
            [forward, backward].map(|flops| flops / 4096.0)
        };
        assert_eq!(units(&Rule::FALCON_1A, 64), [6.0, 13.0]);
        assert_eq!(units(&Rule::FALCON_3A, 64), [6.0, 13.0]);
        assert_eq!(units(&Rule::FALCON_1, 64), [10.0, 25.0]);
        assert_eq!(units(&Rule::FALCON_3, 64), [10.5, 26.0]);
        // Per-column rules have chunks of up to 64.
        assert_eq!(units(&Rule::FALCON_2, 128), [10.0, 25.0]);
        assert_eq!(units(&Rule::FALCON_2A, 128), [6.0, 13.0]);
    }
}
