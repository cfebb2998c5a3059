//! A row of a table, and its form on the command line: a preset, possibly with some settings changed.

/// A row of a table: a preset, possibly with some settings changed.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// The name in the table: the preset and the changed settings, without `model.`, as in `falcon-1a.3 align=same`.
    pub name: String,
    /// The name of the preset, as in `falcon-1a.3`.
    pub preset: String,
    /// The changed settings in the form of `falcon train --set`, as in `model.align=same`.
    pub set: Vec<String>,
}

impl TableRow {
    /// Parses a row such as `falcon-1a.3` or `falcon-1a.3+model.align=same`.
    pub fn parse(text: &str) -> Self {
        // A `+` begins a setting only if the name of a section follows it: numbers such as 1e+4 have a `+`, too.
        let begins_setting =
            |at: &usize| ["model.", "task.", "train."].iter().any(|section| text[at + 1..].starts_with(section));
        let starts: Vec<usize> = text.match_indices('+').map(|(at, _)| at).filter(begins_setting).collect();
        let ends = starts.iter().skip(1).copied().chain([text.len()]);
        let set: Vec<String> = starts.iter().zip(ends).map(|(start, end)| text[start + 1..end].into()).collect();
        let preset = &text[..starts.first().copied().unwrap_or(text.len())];
        let short = set.iter().map(|set| set.strip_prefix("model.").unwrap_or(set));
        let name = std::iter::once(preset).chain(short).collect::<Vec<_>>().join(" ");
        Self { name, preset: preset.into(), set }
    }
}

/// Splits a comma-separated list of rows. Commas within brackets belong to a value.
pub(super) fn split_list(list: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let separates = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    list.split(separates).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_parsed() {
        let row = TableRow::parse("falcon-1a.3+model.align=same+task.sparse=0");
        assert_eq!(
            (row.preset.as_str(), row.name.as_str()),
            ("falcon-1a.3", "falcon-1a.3 align=same task.sparse=0")
        );
        assert_eq!(TableRow::parse("retnet+model.rope_theta=1e+4").set, ["model.rope_theta=1e+4"]);
    }

    #[test]
    fn lists_are_split_at_commas_outside_brackets() {
        let list = "retnet,falcon-1a.3+model.lambda_init=[0.01,0.1]+model.window=2,mamba2";
        let rows = ["retnet", "falcon-1a.3+model.lambda_init=[0.01,0.1]+model.window=2", "mamba2"];
        assert_eq!(split_list(list), rows);
    }
}
