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

/// The same Markdown with the cells of its tables padded, so that columns stand below each other on a terminal.
///
/// ```
/// # use falcon_lm::report::aligned;
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
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let columns: Vec<(usize, bool)> = (0..count)
        .map(|column| {
            let cells = || rows.iter().filter_map(move |row| row.get(column).copied());
            let widest = cells().filter(|cell| !is_rule(cell)).map(|cell| cell.chars().count()).max();
            (widest.unwrap_or(0), cells().any(|cell| is_rule(cell) && cell.ends_with(':')))
        })
        .collect();
    let cell = |(cell, (width, right)): (&&str, &(usize, bool))| match (is_rule(cell), *right) {
        (true, true) => format!("{}:|", "-".repeat(width + 1)),
        (true, false) => format!("{}|", "-".repeat(width + 2)),
        (false, true) => format!(" {cell:>width$} |"),
        (false, false) => format!(" {cell:<width$} |"),
    };
    rows.iter().map(|row| format!("|{}\n", row.iter().zip(&columns).map(cell).collect::<String>())).collect()
}
