//! From values to places on an axis, and the round numbers beside it.

use super::html::thousands;

/// How an axis chooses its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// From zero.
    Zero,
    /// From zero, for fractions of 1: never so fine that next to nothing looks like much.
    Part,
    /// Around the values; logarithmic if they span more than a decade.
    Decades,
}

/// How numbers beside an axis are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    /// As they are.
    Number,
    /// A part of one, in percent.
    Percent,
}

/// A range of values, not empty, on an axis from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub low: f64,
    pub high: f64,
    pub log: bool,
}

/// Intervals between ticks, about.
const INTERVALS: f64 = 4.0;

impl Scale {
    pub fn linear(low: f64, high: f64) -> Self {
        Self { low, high, log: false }
    }

    /// A range for `values`, or none if there are none.
    pub fn fit(values: impl Iterator<Item = f64> + Clone, fit: Fit) -> Option<Self> {
        let (low, high) = range(values.clone())?;
        let positive = range(values.filter(|&value| value > 0.0));
        match (fit, positive) {
            (Fit::Decades, Some((least, most))) if most > 10.0 * least => {
                // A single zero that is not quite one must not press all else together.
                let least = least.max(1e-9 * most);
                let margin = (most / least).powf(0.03);
                Some(Self { low: least / margin, high: most * margin, log: true })
            }
            (Fit::Part, _) if high > 0.0 => Some(Self::round(low.min(0.0), high.max(0.01))),
            (Fit::Zero | Fit::Part, _) => Some(Self::round(low.min(0.0), high)),
            _ => Some(Self::round(low, high)),
        }
    }

    /// The smallest range between ticks that holds `low` and `high`.
    fn round(low: f64, high: f64) -> Self {
        // Values that are all the same stand in the middle, or on zero.
        let apart = (high - low) > 1e-9 * low.abs().max(high.abs());
        let (low, high) = match (apart, low == 0.0) {
            (true, _) => (low, high),
            (false, true) => (0.0, 1.0),
            (false, false) => (low - 0.1 * low.abs(), high + 0.1 * high.abs()),
        };
        let mut scale = Self::linear(low, high);
        // Wider ranges have wider steps: twice, so that the ends are on ticks.
        for _ in 0..2 {
            let step = round_step(scale.high - scale.low);
            // Not a step more for what a last digit sticks out.
            let (first, last) = ((low / step + 1e-6).floor(), (high / step - 1e-6).ceil());
            scale = Self::linear(first * step, last * step);
        }
        scale
    }

    /// Where `value` stands, 0 to 1; what is off the axis stands at its end.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }

    /// Round numbers on the axis, in order.
    pub fn ticks(&self) -> Vec<f64> {
        if self.log {
            return self.log_ticks();
        }
        let step = round_step(self.high - self.low);
        let (first, last) = ((self.low / step - 1e-6).ceil() as i64, (self.high / step + 1e-6).floor() as i64);
        (first..=last).map(|count| count as f64 * step).collect()
    }

    /// Powers of ten, with 2 and 5 between them if there are few.
    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let factors: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let stride = (decades / 6.0).ceil() as i32;
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let powers = (first..=last).filter(|power| power.rem_euclid(stride) == 0);
        let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        all.filter(|&tick| self.low <= tick && tick <= self.high).collect()
    }

    /// The ticks with what is written beside them.
    pub fn labelled_ticks(&self, format: Format) -> Vec<(f64, String)> {
        let ticks = self.ticks();
        let step = if self.log { 0.0 } else { round_step(self.high - self.low) };
        let most = ticks.iter().fold(0.0, |most: f64, tick| most.max(tick.abs()));
        let label = |&tick: &f64| match format {
            Format::Percent => format!("{}%", number(100.0 * tick, 100.0 * step, 100.0)),
            Format::Number => number(tick, if self.log { tick } else { step }, if self.log { tick } else { most }),
        };
        ticks.iter().map(|tick| (*tick, label(tick))).collect()
    }
}

/// Least and largest, or none of none.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// 1, 2 or 5 times a power of ten.
fn round_step(span: f64) -> f64 {
    let rough = span / INTERVALS;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| rough <= 1.3 * factor * power).unwrap_or(10.0);
    factor * power
}

/// A tick among others of which the largest is `most`, exact to `step`.
fn number(tick: f64, step: f64, most: f64) -> String {
    // Rounded at first: 0.3, not 0.30000000000000004.
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

    fn labels(scale: Scale, format: Format) -> Vec<String> {
        scale.labelled_ticks(format).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        assert_eq!(labels(Scale::linear(0.0, 2000.0), Format::Number), ["0", "500", "1,000", "1,500", "2,000"]);
        assert_eq!(
            labels(Scale::linear(0.0, 100_000.0), Format::Number),
            ["0", "20k", "40k", "60k", "80k", "100k"]
        );
        assert_eq!(labels(Scale::linear(0.0, 1.0), Format::Percent), ["0%", "20%", "40%", "60%", "80%", "100%"]);
        assert_eq!(labels(Scale::linear(0.0, 3e-4), Format::Number), ["0", "1e-4", "2e-4", "3e-4"]);
        assert_eq!(
            labels(Scale::linear(0.0, 1e-4), Format::Number),
            ["0", "2e-5", "4e-5", "6e-5", "8e-5", "1e-4"]
        );
        assert_eq!(labels(Scale::linear(0.985, 1.0), Format::Number), ["0.985", "0.990", "0.995", "1.000"]);
        for exponent in -12..12 {
            for mantissa in [1.0, 1.7, 3.0, 7.9] {
                let high = mantissa * 10f64.powi(exponent);
                let scale = Scale::linear(-0.3 * high, high);
                let ticks = scale.ticks();
                assert!((3..=8).contains(&ticks.len()), "{high}: {ticks:?}");
                assert!(ticks.iter().all(|tick| (0.0..=1.0).contains(&scale.place(*tick))));
                let mut labels = labels(scale, Format::Number);
                labels.dedup();
                assert_eq!(labels.len(), ticks.len(), "{labels:?}");
            }
        }
    }

    #[test]
    fn more_than_a_decade_is_logarithmic() {
        let fit = |values: &[f64], fit| Scale::fit(values.iter().copied(), fit).unwrap();
        let scale = fit(&[0.02, 2.5], Fit::Decades);
        assert!(scale.log);
        assert_eq!(labels(scale, Format::Number), ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]);
        assert!((scale.place(0.02) - 1.0 + scale.place(2.5)).abs() < 1e-12);
        assert_eq!(scale.place(0.0), 0.0);
        assert_eq!(labels(fit(&[1e-5, 1e3], Fit::Decades), Format::Number), ["1e-4", "0.01", "1", "100"]);
        assert_eq!(fit(&[0.5, 2.5], Fit::Decades), Scale::linear(0.5, 2.5));
        assert!(!fit(&[0.0, 0.02, 2.5], Fit::Zero).log);
    }

    #[test]
    fn a_range_holds_its_values_and_is_never_empty() {
        assert_eq!(Scale::fit(std::iter::empty(), Fit::Decades), None);
        let same = [[0.0, 0.0], [3.0, 3.0], [-2.0, -2.0]];
        for values in same.into_iter().chain([[0.1, 0.30000000000000004], [0.936, 0.984], [1e-300, 1.0]]) {
            for fit in [Fit::Zero, Fit::Part, Fit::Decades] {
                let scale = Scale::fit(values.into_iter(), fit).unwrap();
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
        assert_eq!(Scale::fit([0.0, 1e-9].into_iter(), Fit::Part), Some(Scale::linear(0.0, 0.01)));
        assert_eq!(Scale::fit([0.0, 0.0].into_iter(), Fit::Part), Some(Scale::linear(0.0, 1.0)));
        assert_eq!(Scale::fit([0.4, 0.97].into_iter(), Fit::Zero), Some(Scale::linear(0.0, 1.0)));
    }
}
