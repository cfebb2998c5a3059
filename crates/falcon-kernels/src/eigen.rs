//! The largest eigenvalue of a small symmetric matrix: the curvature of a window of pairs.

/// Sweeps after which cyclic Jacobi has converged for every matrix of a sensible size; it needs about six.
const MAX_SWEEPS: usize = 64;

/// The largest eigenvalue of the symmetric `n × n` matrix `a`, and a unit eigenvector in `top`.
///
/// Cyclic Jacobi in `f64`: accurate for tiny and huge windows alike, and deterministic. Where the largest
/// eigenvalue is repeated the gradient is not unique; the vector chosen is the one that belongs to the first
/// of the equal diagonal entries, so orthogonal keys of equal length give the oldest of them.
/// `a` is destroyed.
pub(crate) fn top_eigenpair(a: &mut [f64], n: usize, top: &mut [f64]) -> f64 {
    debug_assert!(a.len() == n * n && top.len() == n);
    if n == 1 {
        top[0] = 1.0;
        return a[0];
    }
    let mut vectors = vec![0.0; n * n];
    for i in 0..n {
        vectors[i * n + i] = 1.0;
    }
    let scale: f64 = a.iter().map(|x| x * x).sum::<f64>();
    for _ in 0..MAX_SWEEPS {
        let off: f64 = (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i * n + j].powi(2)).sum();
        if off <= scale * 1e-34 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(a, &mut vectors, n, p, q);
            }
        }
    }
    let mut best = 0;
    for i in 1..n {
        if a[i * n + i] > a[best * n + best] {
            best = i;
        }
    }
    for i in 0..n {
        top[i] = vectors[i * n + best];
    }
    a[best * n + best]
}

/// One Jacobi rotation in the plane `(p, q)` that makes `a[p][q]` zero.
fn rotate(a: &mut [f64], vectors: &mut [f64], n: usize, p: usize, q: usize) {
    let apq = a[p * n + q];
    if apq == 0.0 {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
    let t = theta.signum() / (theta.abs() + (1.0 + theta * theta).sqrt());
    let c = 1.0 / (1.0 + t * t).sqrt();
    let s = t * c;
    a[p * n + p] -= t * apq;
    a[q * n + q] += t * apq;
    a[p * n + q] = 0.0;
    a[q * n + p] = 0.0;
    for r in 0..n {
        if r != p && r != q {
            let (arp, arq) = (a[r * n + p], a[r * n + q]);
            a[r * n + p] = c * arp - s * arq;
            a[r * n + q] = s * arp + c * arq;
            a[p * n + r] = a[r * n + p];
            a[q * n + r] = a[r * n + q];
        }
        let (vrp, vrq) = (vectors[r * n + p], vectors[r * n + q]);
        vectors[r * n + p] = c * vrp - s * vrq;
        vectors[r * n + q] = s * vrp + c * vrq;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `A u = μ u`, `|u| = 1`, and no direction has a larger quotient.
    fn check(a: &[f64], n: usize) -> (f64, Vec<f64>) {
        let mut top = vec![0.0; n];
        let mu = top_eigenpair(&mut a.to_vec(), n, &mut top);
        let scale = a.iter().fold(1e-300, |m: f64, x| m.max(x.abs()));
        for i in 0..n {
            let product: f64 = (0..n).map(|j| a[i * n + j] * top[j]).sum();
            assert!((product - mu * top[i]).abs() <= 1e-13 * scale, "{a:?}");
            assert!(mu >= a[i * n + i] - 1e-13 * scale, "{a:?}");
        }
        assert!((top.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-13);
        (mu, top)
    }

    #[test]
    fn finds_the_top_pair() {
        assert_eq!(check(&[2.0, 1.0, 1.0, 2.0], 2).0, 3.0);
        for (n, scale) in [(3, 1.0), (5, 1e-12), (8, 1e8), (17, 1.0)] {
            // A Gram matrix of n vectors of width n + 1, from a small linear congruence.
            let x: Vec<f64> = (0..n * (n + 1)).map(|i| ((i * 37 + 11) % 101) as f64 / 50.0 - 1.0).collect();
            let width = n + 1;
            let gram: Vec<f64> = (0..n * n)
                .map(|ij| (0..width).map(|c| x[ij / n * width + c] * x[ij % n * width + c]).sum::<f64>() * scale)
                .collect();
            check(&gram, n);
        }
    }

    #[test]
    fn ties_go_to_the_first() {
        assert_eq!(check(&[1.0, 0.0, 0.0, 1.0], 2).1, [1.0, 0.0]);
        assert_eq!(check(&[0.0; 9], 3).1, [1.0, 0.0, 0.0]);
        assert_eq!(check(&[1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0], 3).1, [0.0, 1.0, 0.0]);
    }
}
