//! The table of a benchmark.

use serde_json::Value;

use crate::tables::TextTable;

/// The results of a benchmark, for people and for programs.
#[derive(Clone, Debug)]
pub struct BenchTable {
    /// What was measured, and how.
    pub title: String,
    /// The table for people.
    pub text: TextTable,
    /// The same rows as JSON objects.
    pub rows: Vec<Value>,
}

/// Formats a number with three significant digits, or all digits before the decimal point.
pub(super) fn three_digits(value: f64) -> String {
    match value.abs() {
        x if x >= 99.95 => format!("{value:.0}"),
        x if x >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([1.234, 12.345, 99.97, 1234.5].map(three_digits), ["1.23", "12.3", "100", "1234"]);
    }
}
