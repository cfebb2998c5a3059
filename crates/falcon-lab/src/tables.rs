//! Tables in Markdown and for terminals.

use std::fmt;

/// Appends a row of a Markdown table.
pub fn table_line(out: &mut String, cells: &[String]) {
    *out += &format!("| {} |\n", cells.join(" | "));
}

/// Appends the head of a Markdown table. The first column is left-aligned, the others, which hold numbers, are
/// right-aligned.
pub fn table_head(out: &mut String, titles: &[String]) {
    table_line(out, titles);
    *out += &format!("|---|{}\n", "--:|".repeat(titles.len().saturating_sub(1)));
}

/// Pads the cells of all tables in `markdown`, so that columns line up on a terminal.
///
/// ```
/// # use falcon_lab::tables::aligned;
/// let table = "| model | loss |\n|---|--:|\n| retnet | 4.5 |\n\nOne seed.\n";
/// assert_eq!(aligned(table), "| model  | loss |\n|--------|-----:|\n| retnet |  4.5 |\n\nOne seed.\n");
/// ```
pub fn aligned(markdown: &str) -> String {
    let lines: Vec<&str> = markdown.lines().collect();
    let tables = lines.chunk_by(|a, b| a.starts_with('|') == b.starts_with('|'));
    tables.map(|lines| if lines[0].starts_with('|') { padded(lines) } else { lines.join("\n") + "\n" }).collect()
}

fn padded(lines: &[&str]) -> String {
    let rows: Vec<Vec<&str>> =
        lines.iter().map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let is_rule = |cell: &str| cell.contains("--");
    let widths = column_widths(&rows, |cell| if is_rule(cell) { 0 } else { cell.chars().count() });
    let right = |column: usize| rows.iter().any(|row| row.get(column).is_some_and(|cell| cell.ends_with("--:")));
    let right: Vec<bool> = (0..widths.len()).map(right).collect();
    let cell = |(column, cell): (usize, &&str)| {
        let width = widths[column];
        match (is_rule(cell), right[column]) {
            (true, true) => format!("{}:|", "-".repeat(width + 1)),
            (true, false) => format!("{}|", "-".repeat(width + 2)),
            (false, true) => format!(" {cell:>width$} |"),
            (false, false) => format!(" {cell:<width$} |"),
        }
    };
    rows.iter().map(|row| format!("|{}\n", row.iter().enumerate().map(cell).collect::<String>())).collect()
}

fn column_widths<S: AsRef<str>>(rows: &[Vec<S>], width: impl Fn(&str) -> usize) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column| rows.iter().filter_map(|row| row.get(column)).map(|cell: &S| width(cell.as_ref())).max();
    (0..columns).map(|column| widest(column).unwrap_or(0)).collect()
}

/// A plain table for terminals: the first column is left-aligned, the others are right-aligned.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with these column titles and no rows.
    pub fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(ToString::to_string).collect()] }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = column_widths(&self.rows, |cell| cell.chars().count());
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                match column {
                    0 => write!(f, "{cell:<0$}", widths[column])?,
                    _ => write!(f, "  {cell:>0$}", widths[column])?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(&["rule", "ms"]);
        table.row(vec!["falcon-1".into(), "12.3".into()]);
        assert_eq!(table.to_string(), "rule        ms\nfalcon-1  12.3\n");
    }
}
