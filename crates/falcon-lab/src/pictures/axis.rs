//! Axes of a chart: their range, where values lie on them, and their ticks.

use crate::format::thousands;

/// How the range of an axis is chosen from the values it has to show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// Linear, starting at zero.
    Zero,
    /// Linear, starting at zero, for fractions of 1. The range is at least 1%, so that negligible values look
    /// negligible.
    Fraction,
    /// Just around the values; logarithmic if they span more than a decade.
    Tight,
}

/// How the numbers beside an axis are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TickFormat {
    /// As plain numbers.
    Number,
    /// As percentages of 1.
    Percent,
}

/// The range of an axis, which is never empty. Positions along the axis run from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxisScale {
    /// The value at position 0.
    pub low: f64,
    /// The value at position 1.
    pub high: f64,
    /// Whether the axis is logarithmic.
    pub log: bool,
}

/// The approximate number of intervals between ticks.
const INTERVALS: f64 = 4.0;

impl AxisScale {
    /// A linear axis from `low` to `high`.
    pub fn linear(low: f64, high: f64) -> Self {
        Self { low, high, log: false }
    }

    /// An axis for `values`; none if there are no values.
    pub fn fit(values: impl Iterator<Item = f64> + Clone, fit: Fit) -> Option<Self> {
        let (low, high) = range(values.clone())?;
        let positive = range(values.filter(|&value| value > 0.0));
        match (fit, positive) {
            (Fit::Tight, Some((least, most))) if most > 10.0 * least => {
                // A single value that is almost zero must not squeeze all others together.
                let least = least.max(1e-9 * most);
                let margin = (most / least).powf(0.03);
                Some(Self { low: least / margin, high: most * margin, log: true })
            }
            (Fit::Fraction, _) if high > 0.0 => Some(Self::round(low.min(0.0), high.max(0.01))),
            (Fit::Zero | Fit::Fraction, _) => Some(Self::round(low.min(0.0), high)),
            _ => Some(Self::round(low, high)),
        }
    }

    /// The smallest range that begins and ends on a tick and contains `low` and `high`.
    fn round(low: f64, high: f64) -> Self {
        // If all values are equal, they are shown in the middle of the range, or at zero.
        let apart = (high - low) > 1e-9 * low.abs().max(high.abs());
        let (low, high) = match (apart, low == 0.0) {
            (true, _) => (low, high),
            (false, true) => (0.0, 1.0),
            (false, false) => (low - 0.1 * low.abs(), high + 0.1 * high.abs()),
        };
        let mut scale = Self::linear(low, high);
        // Rounding widens the range, which may widen the step: two passes put both ends on ticks.
        for _ in 0..2 {
            let step = round_step(scale.high - scale.low);
            // The tolerance keeps a rounding error from adding a whole step.
            let (first, last) = ((low / step + 1e-6).floor(), (high / step - 1e-6).ceil());
            scale = Self::linear(first * step, last * step);
        }
        scale
    }

    /// The position of `value`, from 0 to 1. Values outside the range are placed at its ends.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }

    /// Round numbers within the range, in ascending order.
    pub fn ticks(&self) -> Vec<f64> {
        if self.log {
            return self.log_ticks();
        }
        let step = round_step(self.high - self.low);
        let (first, last) = ((self.low / step - 1e-6).ceil() as i64, (self.high / step + 1e-6).floor() as i64);
        (first..=last).map(|count| count as f64 * step).collect()
    }

    /// Powers of ten, and also twice and five times those if there are few.
    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let factors: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let stride = (decades / 6.0).ceil() as i32;
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let powers = (first..=last).filter(|power| power.rem_euclid(stride) == 0);
        let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        all.filter(|&tick| self.low <= tick && tick <= self.high).collect()
    }

    /// The ticks and their labels.
    pub fn labelled_ticks(&self, format: TickFormat) -> Vec<(f64, String)> {
        let ticks = self.ticks();
        let step = if self.log { 0.0 } else { round_step(self.high - self.low) };
        let most = ticks.iter().fold(0.0, |most: f64, tick| most.max(tick.abs()));
        let label = |&tick: &f64| match format {
            TickFormat::Percent => format!("{}%", number(100.0 * tick, 100.0 * step, 100.0)),
            TickFormat::Number => {
                number(tick, if self.log { tick } else { step }, if self.log { tick } else { most })
            }
        };
        ticks.iter().map(|tick| (*tick, label(tick))).collect()
    }
}

/// The smallest and the largest value; none if there are no values.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// A step of 1, 2 or 5 times a power of ten that divides `span` into about [`INTERVALS`].
fn round_step(span: f64) -> f64 {
    let rough = span / INTERVALS;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| rough <= 1.3 * factor * power).unwrap_or(10.0);
    factor * power
}

/// The label of a tick with the precision of `step`. The largest tick, `most`, determines the unit (k, M, G) of all
/// labels.
fn number(tick: f64, step: f64, most: f64) -> String {
    // A fixed number of decimals: 0.3, not 0.30000000000000004.
    let decimals = |unit: f64| (-(step / unit).log10() - 1e-9).ceil().max(0.0) as usize;
    let suffixed = |unit: f64, suffix: &str| format!("{:.*}{suffix}", decimals(unit), tick / unit);
    match most {
        _ if tick == 0.0 => "0".into(),
        1e9.. => suffixed(1e9, "G"),
        1e6.. => suffixed(1e6, "M"),
        1e4.. => suffixed(1e3, "k"),
        ..9.9e-4 => {
            let power = tick.abs().log10() + 1e-9;
            let unit = 10f64.powf(power.floor());
            let mantissa = format!("{:.*}", decimals(unit), tick / unit);
            format!("{}e{}", mantissa.trim_end_matches(".0"), power.floor())
        }
        1e3.. if tick > 0.0 && step >= 1.0 => thousands(tick.round() as u64),
        _ => suffixed(1.0, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: AxisScale, format: TickFormat) -> Vec<String> {
        scale.labelled_ticks(format).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        assert_eq!(
            labels(AxisScale::linear(0.0, 2000.0), TickFormat::Number),
            ["0", "500", "1,000", "1,500", "2,000"]
        );
        assert_eq!(
            labels(AxisScale::linear(0.0, 100_000.0), TickFormat::Number),
            ["0", "20k", "40k", "60k", "80k", "100k"]
        );
        assert_eq!(
            labels(AxisScale::linear(0.0, 1.0), TickFormat::Percent),
            ["0%", "20%", "40%", "60%", "80%", "100%"]
        );
        assert_eq!(labels(AxisScale::linear(0.0, 3e-4), TickFormat::Number), ["0", "1e-4", "2e-4", "3e-4"]);
        assert_eq!(
            labels(AxisScale::linear(0.0, 1e-4), TickFormat::Number),
            ["0", "2e-5", "4e-5", "6e-5", "8e-5", "1e-4"]
        );
        assert_eq!(
            labels(AxisScale::linear(0.985, 1.0), TickFormat::Number),
            ["0.985", "0.990", "0.995", "1.000"]
        );
        for exponent in -12..12 {
            for mantissa in [1.0, 1.7, 3.0, 7.9] {
                let high = mantissa * 10f64.powi(exponent);
                let scale = AxisScale::linear(-0.3 * high, high);
                let ticks = scale.ticks();
                assert!((3..=8).contains(&ticks.len()), "{high}: {ticks:?}");
                assert!(ticks.iter().all(|tick| (0.0..=1.0).contains(&scale.place(*tick))));
                let mut labels = labels(scale, TickFormat::Number);
                labels.dedup();
                assert_eq!(labels.len(), ticks.len(), "{labels:?}");
            }
        }
    }

    #[test]
    fn more_than_a_decade_is_logarithmic() {
        let fit = |values: &[f64], fit| AxisScale::fit(values.iter().copied(), fit).unwrap();
        let scale = fit(&[0.02, 2.5], Fit::Tight);
        assert!(scale.log);
        assert_eq!(labels(scale, TickFormat::Number), ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]);
        assert!((scale.place(0.02) - 1.0 + scale.place(2.5)).abs() < 1e-12);
        assert_eq!(scale.place(0.0), 0.0);
        assert_eq!(labels(fit(&[1e-5, 1e3], Fit::Tight), TickFormat::Number), ["1e-4", "0.01", "1", "100"]);
        assert_eq!(fit(&[0.5, 2.5], Fit::Tight), AxisScale::linear(0.5, 2.5));
        assert!(!fit(&[0.0, 0.02, 2.5], Fit::Zero).log);
    }

    #[test]
    fn a_range_holds_its_values_and_is_never_empty() {
        assert_eq!(AxisScale::fit(std::iter::empty(), Fit::Tight), None);
        let same = [[0.0, 0.0], [3.0, 3.0], [-2.0, -2.0]];
        for values in same.into_iter().chain([[0.1, 0.30000000000000004], [0.936, 0.984], [1e-300, 1.0]]) {
            for fit in [Fit::Zero, Fit::Fraction, Fit::Tight] {
                let scale = AxisScale::fit(values.into_iter(), fit).unwrap();
                assert!(scale.low < scale.high && values[1] <= scale.high + 1e-6);
                assert!(scale.low <= values[0] || values[0] == 1e-300);
                assert!(values.iter().all(|&value| scale.place(value).is_finite()));
                assert!(scale.ticks().len() >= 2, "{scale:?}");
                if !scale.log {
                    let (ticks, step) = (scale.ticks(), 1e-6 * (scale.high - scale.low));
                    assert!((ticks[0] - scale.low).abs() < step, "{scale:?}: {ticks:?}");
                    assert!((ticks[ticks.len() - 1] - scale.high).abs() < step, "{scale:?}: {ticks:?}");
                }
            }
        }
        assert_eq!(AxisScale::fit([0.0, 1e-9].into_iter(), Fit::Fraction), Some(AxisScale::linear(0.0, 0.01)));
        assert_eq!(AxisScale::fit([0.0, 0.0].into_iter(), Fit::Fraction), Some(AxisScale::linear(0.0, 1.0)));
        assert_eq!(AxisScale::fit([0.4, 0.97].into_iter(), Fit::Zero), Some(AxisScale::linear(0.0, 1.0)));
    }
}
