//! Comparison of results, tensor by tensor.

/// Results with their names.
pub type Named = Vec<(&'static str, Vec<f64>)>;

/// `max |a − b| / max |b|`, or `max |a|` if `b` is all 0. NaN if any number is NaN.
pub fn max_error(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |m: f64, x| if x.is_nan() || m.is_nan() { f64::NAN } else { m.max(x.abs()) })
    };
    let difference = largest(&mut a.iter().zip(b).map(|(a, b)| a - b));
    let scale = largest(&mut b.iter().copied());
    if scale == 0.0 { difference } else { difference / scale }
}

/// The root mean square of the difference divided by that of `b`, or the root mean square of `a` if `b` is all 0.
pub fn rms_error(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = square(&mut a.iter().zip(b).map(|(a, b)| a - b));
    let scale = square(&mut b.iter().copied());
    if scale == 0.0 { difference } else { difference / scale }
}

/// Panics if the [`max_error`] between a tensor of `a` and the tensor of the same name in `b` is above `tolerance`. The
/// message lists all such tensors.
pub fn assert_close(label: &str, a: &Named, b: &Named, tolerance: f64) {
    let names = |named: &Named| named.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names(a), names(b), "{label}: names of tensors");
    let mut failures = Vec::new();
    for ((name, a), (_, b)) in a.iter().zip(b) {
        let error = max_error(a, b);
        if error.is_nan() || error > tolerance {
            failures.push(format!("{name}: {error:.2e}"));
        }
    }
    assert!(failures.is_empty(), "{label}: errors above {tolerance:.0e}: {}", failures.join(", "));
}
