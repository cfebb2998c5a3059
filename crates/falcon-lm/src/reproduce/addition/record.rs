//! What the experiment leaves behind.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{PAPER, PaperRow, RowResult, WidthResult};
use crate::report::{Axes, Curve, Format, Panel, Scale, Triangle, digits_of_widths, panels, thousands};
use crate::reproduce::results::{
    Column, Results, Spread, cost, first, names, paper_row, seeds, seeds_in_words, table_of,
};
use crate::tasks::addition::one_digit_tests;

/// Names of the files.
const TABLE_FILE: &str = "table.md";
const CURVES_FILE: &str = "curves.svg";
const DIGITS_FILE: &str = "digits.svg";

/// What a table shows where there is nothing.
const MISSING: &str = "–";

/// An experiment, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdditionRecord {
    /// Its scale.
    pub scale: String,
    /// The command that repeats it.
    pub command: String,
    /// Of the program.
    pub version: String,
    /// What it ran on.
    pub machine: String,
    /// Largest width in training.
    pub max_width: usize,
    /// Test samples of each width.
    pub samples: usize,
    /// The configuration of the first row, which all others share but for the model.
    pub config: String,
    /// Runs that belong to it, if not all of them are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<usize>,
    /// What became of each model and seed.
    pub rows: Vec<RowResult>,
}

impl Results for AdditionRecord {
    type Row = RowResult;

    fn rows(&self) -> &[RowResult] {
        &self.rows
    }

    fn marker(&self) -> String {
        format!("<!-- addition {} -->", self.scale)
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        let page = format!(
            "# Sums of more digits than were trained: {}\n\n{}\n{}",
            self.scale,
            self.table(),
            self.notes()
        );
        vec![(TABLE_FILE, page), (CURVES_FILE, self.curves()), (DIGITS_FILE, self.digits())]
    }

    fn table(&self) -> String {
        self.mark()
            + &table_of(&self.names(), &self.columns())
            + &self.caption("; *own digits* are right where the model reads what it said itself")
    }

    /// What of it a reader wants first.
    fn summary(&self) -> String {
        self.mark() + &table_of(&self.names(), &first(self.columns())) + &self.caption("")
    }

    fn command(&self) -> &str {
        &self.command
    }

    fn config(&self) -> &str {
        &self.config
    }

    fn machine(&self) -> &str {
        &self.machine
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn planned(&self) -> Option<usize> {
        self.planned
    }
}

/// A figure of a width.
type Value = fn(&WidthResult) -> f64;

impl AdditionRecord {
    fn names(&self) -> Vec<&str> {
        names(self.rows.iter().map(|row| row.name.as_str()))
    }

    fn of(&self, name: &str) -> Vec<&RowResult> {
        self.rows.iter().filter(|row| row.name == name).collect()
    }

    /// Over those seeds that have it, in percent.
    fn percent(&self, name: &str, f: impl Fn(&RowResult) -> Option<f64>) -> String {
        let values: Vec<f64> = self.of(name).into_iter().filter_map(f).collect();
        if values.is_empty() { MISSING.into() } else { Spread::of(&values).percent() }
    }

    /// The widths that were measured and not trained: first those that the paper measures, up to half as many
    /// digits again as in training, then the others.
    fn beyond(&self) -> Vec<RangeInclusive<usize>> {
        let widest = self.rows.iter().filter_map(|row| row.widths.last()).map(|w| w.width).max().unwrap_or(0);
        let last = self.max_width.saturating_mul(3).div_ceil(2);
        let ranges = [self.max_width + 1..=last.min(widest), last + 1..=widest];
        ranges.into_iter().filter(|range| !range.is_empty()).collect()
    }

    fn columns(&self) -> Vec<Column<'_>> {
        let average = |name: &str, f: fn(&RowResult) -> f64| mean(self.of(name).into_iter().map(f));
        let mut columns = vec![
            Column::new(true, format!("trained on 1–{} digits", self.max_width), str::to_string),
            Column::new(false, "parameters", |name| thousands(self.of(name)[0].parameters as u64)),
        ];
        if self.rows.iter().any(|row| row.state.is_some()) {
            columns.push(Column::new(true, "state", |name| {
                self.of(name)[0].state.map_or_else(|| MISSING.into(), |state| state.to_string())
            }));
        }
        columns.push(Column::new(false, "best step", move |name| {
            format!("{:.0}", average(name, |row| row.best_step as f64))
        }));
        columns.push(Column::new(true, "validation", |name| self.percent(name, |row| Some(row.validation))));
        if self.rows.iter().any(|row| row.exact_validation.is_some()) {
            let exact = |name: &str| self.percent(name, |row| row.exact_validation);
            columns.push(Column::new(true, "validation, exact", exact));
        }
        for range in self.beyond() {
            let widths = span(&range);
            let values: [(bool, String, Value); 3] = [
                (true, format!("{widths} digits"), |width| width.accuracy),
                (true, format!("{widths}, exact"), |width| width.exact),
                (false, format!("{widths}, own digits"), |width| width.free),
            ];
            for (first, title, value) in values {
                let range = range.clone();
                columns.push(Column::new(first, title, move |name| {
                    self.percent(name, |row| mean_over(row, &range, value))
                }));
            }
        }
        if let Some(range) = self.beyond().first() {
            let ends = [*range.start(), *range.end()];
            let values: [(&str, Value); 2] = [("", |w| w.accuracy), (", exact", |w| w.exact)];
            for (what, value) in values {
                let title = format!("{} / {}{what}", ends[0], ends[1]);
                let at = move |name: &str, width: usize| {
                    let rows = self.of(name).into_iter();
                    100.0 * mean(rows.filter_map(|row| mean_over(row, &(width..=width), value)))
                };
                columns.push(Column::new(false, title, move |name| {
                    format!("{:.0} / {:.0}", at(name, ends[0]), at(name, ends[1]))
                }));
            }
        }
        columns.push(Column::new(true, "minutes", move |name| {
            format!("{:.1}", average(name, |row| row.seconds / 60.0))
        }));
        let paper = |title: &'static str, first: bool, show: fn(&PaperRow) -> String| {
            Column::new(first, title, move |name: &str| {
                PAPER
                    .iter()
                    .find(|paper| paper_row(name) == Some(paper.preset))
                    .map_or_else(|| MISSING.to_string(), show)
            })
        };
        columns.push(paper("paper: validation", true, |p| format!("{:.1}", p.validation)));
        columns.push(paper("paper: 33–48", true, |p| format!("{:.1}", p.beyond)));
        columns.push(paper("paper: 33 / 48", false, |p| format!("{:.0} / {:.0}", p.first, p.last)));
        columns
    }

    fn caption(&self, more: &str) -> String {
        let seeds = seeds(self.names().iter().map(|name| self.of(name).len()));
        let spread = match seeds.1 > 1 {
            true => format!(" Mean ± standard deviation over {}.", seeds_in_words(seeds)),
            false => String::new(),
        };
        format!(
            "\nTeacher-forced, in percent: the target digits that are right, and *exact*, the sums that are right \
             in all digits{more}. The paper's figures may be either: its text says accuracy of the target suffix, \
             an earlier version called the same numbers exact match of sequences, and those of 33 and 48 digits are \
             whole percents.{spread}\n"
        )
    }

    fn notes(&self) -> String {
        format!(
            "Scale `{}`: {} test samples of each width, {}. {}. \
             [Accuracy by width](curves.svg), [by digit](digits.svg).\n\n\
             ```console\n$ {}\n```\n\n\
             A prompt belongs to training, validation or test by its hash, so none is in two of them; the sum with operands exchanged \
             may be. Of the 100 sums of one digit, {} are test prompts, drawn again and again.\n\n\
             The first row's configuration; the others differ in the seed and in what their names say:\n\n```toml\n{}```\n",
            self.scale,
            self.samples,
            cost(self.rows.iter().map(|row| (row.seconds, row.threads))),
            self.machines(),
            self.command,
            one_digit_tests(),
            self.config,
        )
    }

    /// Accuracy by width, the mean over seeds, as an SVG picture: of digits, and below them of whole sums.
    pub fn curves(&self) -> String {
        let digits = self.panel("Target digits that are right, teacher-forced", |width| width.accuracy);
        panels(&[digits, self.panel("Exact match: sums that are right in all digits", |width| width.exact)])
    }

    fn panel(&self, title: &'static str, value: Value) -> Panel {
        let curve = |name: &str| {
            let rows = self.of(name);
            let widths = rows[0].widths.iter().map(|width| width.width);
            let points = widths.enumerate().map(|(index, width)| {
                (width as f64, mean(rows.iter().filter_map(|row| row.widths.get(index)).map(value)))
            });
            Curve { name: name.to_string(), points: points.collect() }
        };
        let curves: Vec<Curve> = self.names().into_iter().map(curve).collect();
        let widest = curves.iter().filter_map(|curve| curve.points.last()).map(|(x, _)| *x as usize).max();
        let widest = widest.unwrap_or(1);
        let y = Scale::linear(0.0, 1.0);
        let axes = Axes {
            title,
            name: "digits of an operand",
            x: Scale::linear(0.5, widest as f64 + 0.5),
            x_ticks: (1..=widest).step_by(widest.div_ceil(17)).map(|w| (w as f64, w.to_string())).collect(),
            y_ticks: y.labelled_ticks(Format::Percent),
            y,
            border: Some((self.max_width as f64 + 0.5, "never trained →")),
        };
        Panel { axes, curves }
    }

    /// Accuracy of every digit of every width, the mean over seeds, as an SVG picture: where a model fails.
    pub fn digits(&self) -> String {
        let triangle = |name: &str| {
            let rows = self.of(name);
            let of_width = |(index, width): (usize, &WidthResult)| {
                let widths = || rows.iter().filter_map(move |row| row.widths.get(index));
                (0..width.digits.len())
                    .map(|digit| mean(widths().filter_map(|w| w.digits.get(digit).copied())))
                    .collect()
            };
            let rows = rows[0].widths.iter().enumerate().map(of_width).collect();
            Triangle { name: name.to_string(), rows }
        };
        let triangles: Vec<Triangle> = self.names().into_iter().map(triangle).collect();
        digits_of_widths("Accuracy of each target digit, teacher-forced", self.max_width, &triangles)
    }
}

/// Widths in words.
fn span(range: &RangeInclusive<usize>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

/// The mean over widths of a row; none if it has none of them.
fn mean_over(row: &RowResult, range: &RangeInclusive<usize>, value: Value) -> Option<f64> {
    let widths = row.widths.iter().filter(|width| range.contains(&width.width));
    widths.clone().next().map(|_| mean(widths.map(value)))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::reproduce::{RESULTS_FILE, StateSize};

    fn record() -> AdditionRecord {
        let row = |name: &str, seed: u64, beyond: f64| RowResult {
            name: name.into(),
            seed,
            parameters: 1000,
            state: None,
            best_step: 90,
            validation: 1.0,
            exact_validation: None,
            seconds: 60.0,
            threads: 2,
            widths: (1..=6)
                .map(|width| {
                    let accuracy = if width > 4 { beyond } else { 1.0 };
                    WidthResult {
                        width,
                        accuracy,
                        exact: 0.5 * accuracy * accuracy,
                        free: 0.5 * accuracy,
                        digits: vec![accuracy; width + 1],
                    }
                })
                .collect(),
            origin: None,
        };
        AdditionRecord {
            scale: "quick".into(),
            command: "falcon reproduce addition".into(),
            version: "0".into(),
            machine: "a machine".into(),
            max_width: 4,
            samples: 10,
            config: "[task]\n".into(),
            planned: None,
            rows: vec![
                row("retnet", 0, 0.5),
                row("retnet", 1, 0.7),
                row("deltanet", 0, 0.25),
                row("deltanet", 1, 0.25),
            ],
        }
    }

    #[test]
    fn the_table_has_means_and_the_papers_figures() {
        let table = record().table();
        let head = "| trained on 1–4 digits | parameters | best step | validation | 5–6 digits | 5–6, exact \
                    | 5–6, own digits | 5 / 6 | 5 / 6, exact | minutes | paper: validation | paper: 33–48 \
                    | paper: 33 / 48 |";
        assert!(table.starts_with(head), "{table}");
        // Exact: 0.5·0.5² = 0.125 and 0.5·0.7² = 0.245, of which the mean is 0.185 and the deviation 0.12/√2 =
        // 0.0849.
        let retnet = "| retnet | 1,000 | 90 | 100.0 ± 0.0 | 60.0 ± 14.1 | 18.5 ± 8.5 | 30.0 ± 7.1 | 60 / 60 \
                      | 18 / 18 | 1.0 | 99.7 | 82.9 | 99 / 63 |";
        assert!(table.contains(retnet), "{table}");
        let deltanet = "| deltanet | 1,000 | 90 | 100.0 ± 0.0 | 25.0 ± 0.0 | 3.1 ± 0.0 |";
        assert!(table.contains(deltanet) && table.contains("| – | – | – |"), "{table}");
        assert!(table.contains("over 2 seeds") && table.contains("The paper's figures may be either"), "{table}");
        let summary = record().summary();
        assert!(
            summary.contains("| retnet | 100.0 ± 0.0 | 60.0 ± 14.1 | 18.5 ± 8.5 | 1.0 | 99.7 | 82.9 |"),
            "{summary}"
        );
        let mut fewer = record();
        fewer.rows.remove(0);
        assert!(fewer.table().contains("over 1 to 2 seeds."), "{}", fewer.table());
    }

    /// Widths that the paper does not measure are not mixed with those that it does.
    #[test]
    fn widths_far_beyond_have_columns_of_their_own() {
        let mut record = record();
        for row in &mut record.rows {
            let far =
                |width| WidthResult { width, accuracy: 0.1, exact: 0.02, free: 0.3, digits: vec![0.1; width + 1] };
            row.widths.extend([7, 8].map(far));
        }
        assert_eq!(record.beyond(), [5..=6, 7..=8]);
        let summary = record.summary();
        assert!(summary.contains("| 5–6 digits | 5–6, exact | 7–8 digits | 7–8, exact |"), "{summary}");
        assert!(summary.contains("| 25.0 ± 0.0 | 3.1 ± 0.0 | 10.0 ± 0.0 | 2.0 ± 0.0 |"), "{summary}");
        assert!(record.table().contains("| 7–8, own digits | 5 / 6 |"), "{}", record.table());
        // 32 digits and half as many again are 48.
        record.max_width = 32;
        record.rows[0].widths.last_mut().unwrap().width = 64;
        assert_eq!(record.beyond(), [33..=48, 49..=64]);
        // Of one digit, half as many again are rounded up.
        record.max_width = 1;
        record.rows[0].widths.last_mut().unwrap().width = 3;
        record.rows.truncate(1);
        assert_eq!(record.beyond(), [2..=2, 3..=3]);
        assert!(record.summary().contains("| 2 digits | 2, exact | 3 digits |"), "{}", record.summary());
    }

    #[test]
    fn what_only_some_records_have_is_shown_where_it_is() {
        let mut record = record();
        for hidden in ["state", "validation, exact"] {
            assert!(!record.table().contains(hidden), "{hidden}");
        }
        record.rows[0].exact_validation = Some(0.75);
        record.rows[2].state = Some(StateSize::Fixed(4096));
        record.rows[3].state = Some(StateSize::Grows);
        let summary = record.summary();
        assert!(summary.contains("| state | validation | validation, exact |"), "{summary}");
        assert!(summary.contains("| retnet | – | 100.0 ± 0.0 | 75.0 |"), "{summary}");
        assert!(summary.contains("| deltanet | 4,096 | 100.0 ± 0.0 | – |"), "{summary}");
        record.rows.remove(2);
        assert!(record.summary().contains("| deltanet | grows | 100.0 | – |"), "{}", record.summary());
        let folder = tempfile::tempdir().unwrap();
        record.write(folder.path()).unwrap();
        assert_eq!(AdditionRecord::read(folder.path()).unwrap(), record);
    }

    #[test]
    fn digits_and_whole_sums_are_drawn() {
        let svg = record().curves();
        let (digits, exact) = svg.split_once("Exact match").unwrap();
        assert!(digits.contains("Target digits") && digits.contains("viewBox=\"0 0 860 880\""), "{digits}");
        assert!(digits.contains("<g transform=\"translate(0 440)\">") && exact.ends_with("</g>\n</svg>\n"));
        // Width 1 is right, at the height 44 of 100%; deltanet's widths 5 and 6 are at 25% of digits and 3.125% of
        // sums.
        let height = |part: f64| format!("{:.1}", 440.0 - 48.0 - part * (440.0 - 44.0 - 48.0));
        let last = |panel: &str| {
            let path = panel.lines().rfind(|line| line.contains("stroke-linejoin")).unwrap();
            path.split('"').nth(1).unwrap().rsplit(' ').next().unwrap().to_string()
        };
        assert_eq!((last(digits), last(exact)), (height(0.25), height(0.03125)));
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        record().write(folder.path()).unwrap();
        assert_eq!(AdditionRecord::read(folder.path()).unwrap(), record());
        let table = fs::read_to_string(folder.path().join(TABLE_FILE)).unwrap();
        assert!(table.contains(&record().table()) && table.contains("$ falcon reproduce addition"));
        assert!(table.contains("2 threads per run, 4 minutes"), "{table}");
        for picture in [CURVES_FILE, DIGITS_FILE] {
            let svg = fs::read_to_string(folder.path().join(picture)).unwrap();
            assert!(svg.contains("retnet") && svg.contains("deltanet") && !svg.contains("NaN"));
        }
        fs::write(folder.path().join(RESULTS_FILE), "{}").unwrap();
        assert!(AdditionRecord::read(folder.path()).unwrap_err().to_string().contains("not a record"));
    }

    #[test]
    fn a_page_keeps_all_but_the_table() {
        let record = record();
        let page = "before\n<!-- addition quick -->\nold\n<!-- end -->\nafter\n<!-- end -->\n";
        let new = record.put_into(page).unwrap();
        assert_eq!(
            new,
            format!("before\n<!-- addition quick -->\n{}<!-- end -->\nafter\n<!-- end -->\n", record.summary())
        );
        assert_eq!(record.put_into(&new).unwrap(), new);
        let error = record.put_into("<!-- addition small -->\n<!-- end -->").unwrap_err().to_string();
        assert!(error.contains("<!-- addition quick -->"), "{error}");
    }
}
