//! Tables for terminals and pages.

/// A line of a table in Markdown.
pub fn table_line(out: &mut String, cells: &[String]) {
    *out += &format!("| {} |\n", cells.join(" | "));
}

/// Its first lines: the first column to the left, numbers to the right.
pub fn table_head(out: &mut String, titles: &[String]) {
    table_line(out, titles);
    *out += &format!("|---|{}\n", "--:|".repeat(titles.len().saturating_sub(1)));
}
