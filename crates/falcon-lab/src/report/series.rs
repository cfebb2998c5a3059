//! Reduces and smooths long series of points.

use crate::pictures::Point;

/// The number of intervals into which a long line is divided; two points of each are drawn.
pub const BUCKETS: usize = 400;

/// The largest number of points of a smoothed line.
pub const SMOOTH_POINTS: usize = 400;

/// The points with finite coordinates, in order of steps.
pub fn drawable(points: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut points: Vec<Point> = points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Keeps the first and the last point, and the lowest and the highest of each of `buckets` intervals between them.
/// Unlike means, this preserves spikes.
pub fn downsample(points: &[Point], buckets: usize) -> Vec<Point> {
    let [first, inner @ .., last] = points else { return points.to_vec() };
    if inner.len() <= 2 * buckets {
        return points.to_vec();
    }
    let mut kept = vec![*first];
    for bucket in 0..buckets {
        let interval = &inner[inner.len() * bucket / buckets..inner.len() * (bucket + 1) / buckets];
        let by_value = |&a: &usize, &b: &usize| interval[a].1.total_cmp(&interval[b].1);
        let lowest = (0..interval.len()).min_by(by_value).expect("an interval has more than two points");
        let highest = (0..interval.len()).max_by(by_value).expect("an interval has more than two points");
        kept.push(interval[lowest.min(highest)]);
        kept.push(interval[lowest.max(highest)]);
    }
    kept.push(*last);
    kept
}

/// Weighted means over all points within `reach` steps, at no more than [`SMOOTH_POINTS`] points.
///
/// The window is centred, so that the line does not lag. It shrinks towards the first step, where losses fall
/// steeply, and is truncated at the last, where a mean over fewer points is still better than a single step.
pub fn smooth(points: &[Point], reach: f64) -> Vec<Point> {
    let count = points.len().min(SMOOTH_POINTS);
    let at = |index: usize| if count < 2 { 0 } else { index * (points.len() - 1) / (count - 1) };
    (0..count).map(|index| points[at(index)].0).map(|x| (x, mean_around(points, x, reach))).collect()
}

/// Weights decrease linearly to zero, so that a spike becomes a small tent; equal weights would make it a plateau.
fn mean_around(points: &[Point], x: f64, reach: f64) -> f64 {
    let reach = reach.min(x - points[0].0);
    let start = points.partition_point(|point| point.0 < x - reach);
    let end = points.partition_point(|point| point.0 <= x + reach);
    let weight = |point: &Point| 1.0 - (point.0 - x).abs() / (reach + 1.0);
    let total: f64 = points[start..end].iter().map(weight).sum();
    // Not differences of cumulative sums: the rounding errors of a spike would affect all later points.
    points[start..end].iter().map(|point| weight(point) / total * point.1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize) -> Vec<Point> {
        (0..count).map(|step| (step as f64, (step as f64 * 12.9898).sin() * 43758.5453 % 1.0)).collect()
    }

    #[test]
    fn ends_and_extremes_are_kept() {
        let mut points = noise(100_000);
        points[61_803].1 = 50.0;
        points[27_182].1 = -50.0;
        let kept = downsample(&points, 400);
        assert_eq!(kept.len(), 802);
        assert!(kept.contains(&points[61_803]) && kept.contains(&points[27_182]));
        assert_eq!((kept[0], kept[801]), (points[0], points[99_999]));
        assert!(kept.is_sorted_by(|a, b| a.0 <= b.0));
        for few in [0, 1, 2, 3, 802] {
            assert_eq!(downsample(&points[..few], 400), points[..few]);
        }
    }

    #[test]
    fn a_smoothed_line_stays_among_its_points() {
        assert_eq!(smooth(&[], 5.0), []);
        assert_eq!(smooth(&[(3.0, 7.0)], 5.0), [(3.0, 7.0)]);
        // A straight line is its own centred mean, except where the window is cut off.
        let line: Vec<Point> = (0..1000).map(|step| (step as f64, 2.0 * step as f64)).collect();
        let smoothed = smooth(&line, 20.0);
        assert_eq!(smoothed.len(), SMOOTH_POINTS);
        assert_eq!((smoothed[0].0, smoothed[SMOOTH_POINTS - 1].0), (0.0, 999.0));
        assert!(smoothed.iter().filter(|(x, _)| *x < 979.0).all(|(x, y)| (y - 2.0 * x).abs() < 1e-8));
        let mut spiked = noise(1000);
        spiked[500].1 = 1e30;
        assert!(
            smooth(&spiked, 20.0).iter().filter(|(x, _)| (x - 500.0).abs() > 20.0).all(|(_, y)| y.abs() < 1.0)
        );
    }

    #[test]
    fn only_finite_points_are_drawn_in_order_of_steps() {
        let points = [(2.0, 1.0), (1.0, f64::NAN), (0.0, 3.0), (3.0, f64::INFINITY)];
        assert_eq!(drawable(points.into_iter()), [(0.0, 3.0), (2.0, 1.0)]);
    }
}
