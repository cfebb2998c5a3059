//! Text tables: the first column to the left, numbers to the right.

use std::fmt;

/// A table for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    rows: Vec<Vec<String>>,
}

impl Text {
    /// A table with these columns.
    pub fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |c: usize| self.rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        for row in &self.rows {
            for (c, cell) in row.iter().enumerate() {
                match c {
                    0 => write!(f, "{cell:<0$}", widths[c])?,
                    _ => write!(f, "  {cell:>0$}", widths[c])?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A number with three digits that matter, or all before the point.
pub(super) fn short(value: f64) -> String {
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
    fn columns_line_up() {
        let mut text = Text::new(&["rule", "ms"]);
        text.row(vec!["falcon-1".into(), short(12.345)]);
        assert_eq!(text.to_string(), "rule        ms\nfalcon-1  12.3\n");
        assert_eq!([1.234, 99.97, 1234.5].map(short), ["1.23", "100", "1234"]);
    }
}
