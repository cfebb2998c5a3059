//! The largest eigenvalues of small symmetric matrices, for the curvature of windows.

/// Matrices that are computed side by side, one in each lane of the vector registers. Twice as many as a register holds,
/// because a rotation is a chain of divisions and roots, each of which waits for the one before.
pub(crate) const LANES: usize = 16;

/// One entry of [`LANES`] matrices.
pub(crate) type Lanes = [f64; LANES];

/// The most sweeps of cyclic Jacobi. Matrices of the sizes used here need about five.
const MAX_SWEEPS: usize = 64;

/// The largest eigenvalue of each symmetric `n × n` matrix in `a`, which is overwritten.
///
/// Cyclic Jacobi in `f64`, until the norm off the diagonal is below `precision` times the norm of the matrix. A matrix
/// that has converged is not changed any more, so its result does not depend on the matrices in the other lanes.
///
/// If `vectors` (`n × n`) is not empty, its first `n` entries become a unit eigenvector. If the largest eigenvalue is
/// repeated, the gradient is not unique, and the eigenvector of the first of the equal diagonal entries is chosen; for
/// orthogonal keys of equal length this is the oldest of them.
#[inline(always)]
pub(crate) fn top_eigenpairs(a: &mut [Lanes], n: usize, precision: f64, vectors: &mut [Lanes]) -> Lanes {
    debug_assert!(a.len() == n * n && (vectors.is_empty() || vectors.len() == n * n));
    vectors.fill([0.0; LANES]);
    for i in 0..n.min(vectors.len()) {
        vectors[i * n + i] = [1.0; LANES];
    }
    let square = |entries: &mut dyn Iterator<Item = usize>, a: &[Lanes]| {
        let mut sum = [0.0; LANES];
        for index in entries {
            for lane in 0..LANES {
                sum[lane] += a[index][lane] * a[index][lane];
            }
        }
        sum
    };
    let scale = normalise(a, n);
    let whole = square(&mut (0..n * n), a);
    for _ in 0..MAX_SWEEPS {
        let off = square(&mut (0..n).flat_map(|i| (0..i).map(move |j| i * n + j)), a);
        let mut open = [0.0; LANES];
        for lane in 0..LANES {
            open[lane] = if off[lane] > whole[lane] * precision * precision { 1.0 } else { 0.0 };
        }
        if open == [0.0; LANES] {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(a, vectors, n, (p, q), &open);
            }
        }
    }
    let (mut best, mut top) = ([0; LANES], a[0]);
    for i in 1..n {
        for lane in 0..LANES {
            if a[i * n + i][lane] > top[lane] {
                (best[lane], top[lane]) = (i, a[i * n + i][lane]);
            }
        }
    }
    for lane in 0..LANES {
        top[lane] *= scale[lane];
    }
    if !vectors.is_empty() {
        // Column `best` of each matrix is copied to the first `n` entries, one of which it still needs itself.
        for lane in 0..LANES {
            let first = vectors[best[lane]][lane];
            for i in 1..n {
                vectors[i][lane] = vectors[i * n + best[lane]][lane];
            }
            vectors[0][lane] = first;
        }
    }
    top
}

/// Divides each matrix by the power of two of its largest diagonal entry, and returns these powers. The division is
/// exact, and afterwards squares of entries neither overflow nor underflow where it matters.
#[inline(always)]
fn normalise(a: &mut [Lanes], n: usize) -> Lanes {
    let mut scale = [0f64; LANES];
    for i in 0..n {
        for lane in 0..LANES {
            scale[lane] = scale[lane].max(a[i * n + i][lane].abs());
        }
    }
    for lane in 0..LANES {
        // Only the exponent. Zeros, subnormal and non-finite numbers have none to divide by.
        let power = f64::from_bits(scale[lane].to_bits() & f64::INFINITY.to_bits());
        scale[lane] = if power.is_normal() { power } else { 1.0 };
    }
    for entry in a {
        for lane in 0..LANES {
            entry[lane] /= scale[lane];
        }
    }
    scale
}

/// One Jacobi rotation in the plane `(p, q)` that makes `a[p][q]` zero, in the lanes that are `open`.
#[inline(always)]
fn rotate(a: &mut [Lanes], vectors: &mut [Lanes], n: usize, (p, q): (usize, usize), open: &Lanes) {
    let (app, apq, aqq) = (a[p * n + p], a[p * n + q], a[q * n + q]);
    let (mut t, mut c, mut s) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        let theta = (aqq[lane] - app[lane]) / (2.0 * apq[lane]);
        let turn = 1f64.copysign(theta) / (theta.abs() + (1.0 + theta * theta).sqrt());
        // No rotation, also where 0/0 made `turn` NaN.
        let still = apq[lane] == 0.0 || open[lane] == 0.0;
        t[lane] = if still { 0.0 } else { turn };
        c[lane] = 1.0 / (1.0 + t[lane] * t[lane]).sqrt();
        s[lane] = t[lane] * c[lane];
    }
    for lane in 0..LANES {
        a[p * n + p][lane] -= t[lane] * apq[lane];
        a[q * n + q][lane] += t[lane] * apq[lane];
        let rest = if open[lane] == 0.0 { apq[lane] } else { 0.0 };
        a[p * n + q][lane] = rest;
        a[q * n + p][lane] = rest;
    }
    for r in 0..n {
        if r != p && r != q {
            turn(a, r * n + p, r * n + q, &c, &s);
            a[p * n + r] = a[r * n + p];
            a[q * n + r] = a[r * n + q];
        }
        if !vectors.is_empty() {
            turn(vectors, r * n + p, r * n + q, &c, &s);
        }
    }
}

/// `(x, y) ← (c x − s y, s x + c y)`.
#[inline(always)]
fn turn(entries: &mut [Lanes], x: usize, y: usize, c: &Lanes, s: &Lanes) {
    let (old_x, old_y) = (entries[x], entries[y]);
    for lane in 0..LANES {
        entries[x][lane] = c[lane] * old_x[lane] - s[lane] * old_y[lane];
        entries[y][lane] = s[lane] * old_x[lane] + c[lane] * old_y[lane];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The eigenpair of the matrix in lane 3, with other matrices in the other lanes. Checks `A u = μ u` and `|u| = 1`;
    /// the caller checks that `μ` is the largest eigenvalue.
    fn check(a: &[f64], n: usize) -> (f64, Vec<f64>) {
        let others = |x: f64| [7.0 * x, 0.0, x + 1.0, x, -x, 1e-9 * x, 2.0, 0.5];
        let mut lanes: Vec<Lanes> = a.iter().map(|x| std::array::from_fn(|lane| others(*x)[lane % 8])).collect();
        let alone = top_eigenpairs(&mut a.iter().map(|x| [*x; LANES]).collect::<Vec<_>>(), n, 1e-17, &mut []);
        let mut vectors = vec![[0.0; LANES]; n * n];
        let mu = top_eigenpairs(&mut lanes, n, 1e-17, &mut vectors)[3];
        assert_eq!(mu, alone[0], "other lanes and eigenvectors do not change the result");
        let top: Vec<f64> = vectors[..n].iter().map(|lanes| lanes[3]).collect();
        let scale = a.iter().fold(1e-300, |m: f64, x| m.max(x.abs()));
        for i in 0..n {
            let product: f64 = (0..n).map(|j| a[i * n + j] * top[j]).sum();
            assert!((product - mu * top[i]).abs() <= 1e-13 * scale, "{a:?}");
        }
        assert!((top.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-13);
        (mu, top)
    }

    #[test]
    fn finds_the_top_pair() {
        assert_eq!(check(&[2.0, 1.0, 1.0, 2.0], 2).0, 3.0);
        // Keys of norm 1e±80 have Gram entries of 1e±160, whose squares are outside the range of f64.
        for scale in [1.0, 1e-12, 1e8, 1e-160, 1e160] {
            for spectrum in
                [&[3.0, 1.0, 0.5][..], &[0.0, 1.0, 0.0, 0.0, 0.999], &[0.1; 8], &[7.0, 1e-9, 6.9, 0.0, 2.0]]
            {
                let n = spectrum.len();
                let (a, q) = with_spectrum(spectrum, scale);
                let largest = (0..n).max_by(|i, j| spectrum[*i].total_cmp(&spectrum[*j])).unwrap();
                let (mu, top) = check(&a, n);
                let expected = scale * spectrum[largest];
                assert!((mu - expected).abs() <= 1e-13 * expected, "{spectrum:?} times {scale:e}: {mu}");
                if spectrum.iter().filter(|x| **x == spectrum[largest]).count() == 1 {
                    let along: f64 = (0..n).map(|i| top[i] * q[i * n + largest]).sum();
                    assert!((along.abs() - 1.0).abs() < 1e-12, "{spectrum:?} times {scale:e}: {along}");
                }
            }
        }
    }

    /// `scale · Q diag(spectrum) Qᵀ`, and `Q`, whose columns are the eigenvectors: a product of reflections.
    fn with_spectrum(spectrum: &[f64], scale: f64) -> (Vec<f64>, Vec<f64>) {
        let n = spectrum.len();
        let mut q: Vec<f64> = (0..n * n).map(|ij| f64::from(u8::from(ij / n == ij % n))).collect();
        for reflection in 0..3 {
            let u: Vec<f64> =
                (0..n).map(|i| ((i * 37 + reflection * 53 + 11) % 101) as f64 / 50.0 - 1.0).collect();
            let square: f64 = u.iter().map(|u| u * u).sum();
            for line in q.chunks_exact_mut(n) {
                let along: f64 = line.iter().zip(&u).map(|(q, u)| q * u).sum();
                line.iter_mut().zip(&u).for_each(|(q, u)| *q -= 2.0 * along / square * u);
            }
        }
        let entry = |i: usize, j: usize| (0..n).map(|l| q[i * n + l] * spectrum[l] * q[j * n + l]).sum::<f64>();
        ((0..n * n).map(|ij| scale * entry(ij / n, ij % n)).collect(), q)
    }

    #[test]
    fn ties_go_to_the_first() {
        assert_eq!(check(&[1.0, 0.0, 0.0, 1.0], 2).1, [1.0, 0.0]);
        assert_eq!(check(&[0.0; 9], 3).1, [1.0, 0.0, 0.0]);
        assert_eq!(check(&[1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0], 3).1, [0.0, 1.0, 0.0]);
    }
}
