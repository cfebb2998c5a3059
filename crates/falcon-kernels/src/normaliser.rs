//! The denominator of a normalised read.
//!
//! The last column of the memory sums the weights of all writes, so a read gives `(n, d)`: the weighted sum of values
//! and the sum of weights. With positive features `d ≥ 0`, and the read is `n / (d + ε)`. With signed features `d` can
//! be zero or negative, and adding ε could make the denominator smaller. Here `d` is moved *away from zero* and keeps
//! its sign:
//!
//! ```text
//! o = n / safe(d)        safe(d) = d + ε  if d ≥ 0,   d − ε  if d < 0
//! ```
//!
//! For `d ≥ 0` this is the published form. For all `d`, `|safe(d)| ≥ ε`, and far from zero the read approaches `n / d`.
//! Where `safe(d)` is exactly 0 (ε = 0 and nothing has been written), the read is `o = 0` and has no gradient.

use crate::Real;

/// The denominator of the [module](self).
fn safe<F: Real>(d: F, eps: F) -> F {
    if d < F::zero() { d - eps } else { d + eps }
}

/// `o = n / safe(d)` with `raw = (n, d)`.
pub(crate) fn divide<F: Real>(raw: &[F], eps: F, out: &mut [F]) {
    let (d, n) = raw.split_last().expect("a normalised memory has a column for the weights");
    let d = safe(*d, eps);
    if d == F::zero() {
        return out.fill(F::zero());
    }
    for (o, n) in out.iter_mut().zip(n) {
        *o = *n / d;
    }
}

/// Adjoint of [`divide`]: `dn = do / safe(d)`, `dd = −(o·do) / safe(d)`. Replaces `raw` by its gradient.
pub(crate) fn divide_backward<F: Real>(raw: &mut [F], eps: F, grad_out: &[F]) {
    let (d, n) = raw.split_last_mut().expect("a normalised memory has a column for the weights");
    let safe = safe(*d, eps);
    if safe == F::zero() {
        *d = F::zero();
        return n.fill(F::zero());
    }
    *d = F::zero();
    for (n, grad) in n.iter_mut().zip(grad_out) {
        *d -= *n / safe * *grad / safe;
        *n = *grad / safe;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_denominator_keeps_its_sign_and_moves_away_from_zero() {
        let eps = 0.25;
        for (d, expected) in [(0.0, 0.25), (-0.0, 0.25), (1.0, 1.25), (-1.0, -1.25), (-1e-9, -0.25 - 1e-9)] {
            assert_eq!(safe(d, eps), expected);
        }
    }

    #[test]
    fn reads_at_and_below_zero_are_finite() {
        let read = |d: f64, eps: f64| {
            let mut out = [f64::NAN];
            divide(&[2.0, d], eps, &mut out);
            out[0]
        };
        assert_eq!(read(0.0, 0.5), 4.0);
        assert_eq!(read(-0.5, 0.5), -2.0);
        assert_eq!(read(-1.5, 0.5), -1.0);
        assert_eq!(read(0.0, 0.0), 0.0);
    }

    #[test]
    fn gradients_match_differences() {
        let eps = 0.1;
        for d in [0.7, 0.01, -0.03, -2.0] {
            let loss = |n: [f64; 2], d: f64| {
                let mut out = [0.0; 2];
                divide(&[n[0], n[1], d], eps, &mut out);
                out[0] * 0.3 - out[1] * 1.1
            };
            let mut raw = [0.5, -0.4, d];
            divide_backward(&mut raw, eps, &[0.3, -1.1]);
            let h = 1e-6;
            let by_d = (loss([0.5, -0.4], d + h) - loss([0.5, -0.4], d - h)) / (2.0 * h);
            let by_n = (loss([0.5 + h, -0.4], d) - loss([0.5 - h, -0.4], d)) / (2.0 * h);
            assert!((raw[2] - by_d).abs() < 1e-5 * by_d.abs().max(1.0), "{d}: {} {by_d}", raw[2]);
            assert!((raw[0] - by_n).abs() < 1e-6, "{d}");
        }
    }
}
