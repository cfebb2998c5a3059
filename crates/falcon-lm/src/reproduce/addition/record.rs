//! What the experiment leaves behind.

use serde::{Deserialize, Serialize};

use super::{PAPER, PaperRow, RowResult, WidthResult};
use crate::report::{Axes, Curve, Format, Scale, Triangle, curves, digits_of_widths, thousands};
use crate::reproduce::results::{Column, Results, Spread, cost, first, names, seeds, seeds_in_words, table_of};
use crate::tasks::addition::one_digit_tests;

/// Names of the files.
const TABLE_FILE: &str = "table.md";
const CURVES_FILE: &str = "curves.svg";
const DIGITS_FILE: &str = "digits.svg";

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
            + &self.caption("; *exact* is whole sums, *own digits* lets the model read what it said")
    }

    /// What of it a reader wants first.
    fn summary(&self) -> String {
        self.mark() + &table_of(&self.names(), &first(self.columns())) + &self.caption("")
    }

    fn command(&self) -> &str {
        &self.command
    }

    fn runs(&self) -> usize {
        self.rows.len()
    }

    fn planned(&self) -> Option<usize> {
        self.planned
    }
}

impl AdditionRecord {
    fn names(&self) -> Vec<&str> {
        names(self.rows.iter().map(|row| row.name.as_str()))
    }

    fn of(&self, name: &str) -> Vec<&RowResult> {
        self.rows.iter().filter(|row| row.name == name).collect()
    }

    fn over(&self, name: &str, f: impl Fn(&RowResult) -> f64) -> Spread {
        Spread::of(&self.of(name).into_iter().map(f).collect::<Vec<_>>())
    }

    /// Of the widths that were not trained.
    fn beyond(&self, name: &str, f: fn(&WidthResult) -> f64) -> Spread {
        self.over(name, |row| mean(row.widths.iter().filter(|width| width.width > self.max_width).map(f)))
    }

    fn columns(&self) -> Vec<Column<'_>> {
        let widest = self.rows.iter().filter_map(|row| row.widths.last()).map(|w| w.width).max().unwrap_or(0);
        let first = self.max_width + 1;
        let at = move |name: &str, width: usize| {
            let of = |row: &RowResult| row.widths.iter().find(|w| w.width == width).map_or(0.0, |w| w.accuracy);
            format!("{:.0}", 100.0 * self.over(name, of).mean)
        };
        let paper = |name: &str, show: fn(&PaperRow) -> String| {
            PAPER.iter().find(|paper| paper.preset == name).map_or_else(|| "–".to_string(), show)
        };
        vec![
            Column::new(true, format!("trained on 1–{} digits", self.max_width), str::to_string),
            Column::new(false, "parameters", |name| thousands(self.of(name)[0].parameters as u64)),
            Column::new(false, "best step", |name| {
                format!("{:.0}", self.over(name, |row| row.best_step as f64).mean)
            }),
            Column::new(true, "validation", |name| self.over(name, |row| row.validation).percent()),
            Column::new(true, format!("{first}–{widest} digits"), |name| {
                self.beyond(name, |w| w.accuracy).percent()
            }),
            Column::new(false, format!("{first} / {widest}"), move |name| {
                format!("{} / {}", at(name, first), at(name, widest))
            }),
            Column::new(false, format!("exact, {first}–{widest}"), |name| {
                self.beyond(name, |w| w.exact).percent()
            }),
            Column::new(false, "own digits", |name| self.beyond(name, |w| w.free).percent()),
            Column::new(true, "minutes", |name| format!("{:.1}", self.over(name, |row| row.seconds / 60.0).mean)),
            Column::new(true, "paper: validation", move |name| paper(name, |p| format!("{:.1}", p.validation))),
            Column::new(true, "paper: 33–48", move |name| paper(name, |p| format!("{:.1}", p.beyond))),
            Column::new(false, "paper: 33 / 48", move |name| {
                paper(name, |p| format!("{:.0} / {:.0}", p.first, p.last))
            }),
        ]
    }

    fn caption(&self, more: &str) -> String {
        let seeds = seeds(self.names().iter().map(|name| self.of(name).len()));
        let spread = match seeds.1 > 1 {
            true => format!(" Mean ± standard deviation over {}.", seeds_in_words(seeds)),
            false => String::new(),
        };
        format!("\nTeacher-forced accuracy of target digits in percent, as in the paper{more}.{spread}\n")
    }

    fn notes(&self) -> String {
        format!(
            "Scale `{}`: {} test samples of each width, {}. {}. Falcon {}. \
             [Accuracy by width](curves.svg), [by digit](digits.svg).\n\n\
             ```console\n$ {}\n```\n\n\
             A prompt belongs to training, validation or test by its hash, so none is in two of them; the sum with operands exchanged \
             may be. Of the 100 sums of one digit, {} are test prompts, drawn again and again.\n\n\
             The first row's configuration; the others differ in the seed and in what their names say:\n\n```toml\n{}```\n",
            self.scale,
            self.samples,
            cost(self.rows.iter().map(|row| (row.seconds, row.threads))),
            self.machine,
            self.version,
            self.command,
            one_digit_tests(),
            self.config,
        )
    }

    /// Accuracy by width, the mean over seeds, as an SVG picture.
    pub fn curves(&self) -> String {
        let curve = |name: &str| {
            let rows = self.of(name);
            let widths = rows[0].widths.iter().map(|width| width.width);
            let points = widths.enumerate().map(|(index, width)| {
                let accuracy = mean(rows.iter().filter_map(|row| row.widths.get(index)).map(|w| w.accuracy));
                (width as f64, accuracy)
            });
            Curve { name: name.to_string(), points: points.collect() }
        };
        let curves_of: Vec<Curve> = self.names().into_iter().map(curve).collect();
        let widest = curves_of.iter().filter_map(|curve| curve.points.last()).map(|(x, _)| *x as usize).max();
        let widest = widest.unwrap_or(1);
        let y = Scale::linear(0.0, 1.0);
        let axes = Axes {
            title: "Accuracy of target digits, teacher-forced",
            name: "digits of an operand",
            x: Scale::linear(0.5, widest as f64 + 0.5),
            x_ticks: (1..=widest).step_by(widest.div_ceil(17)).map(|w| (w as f64, w.to_string())).collect(),
            y_ticks: y.labelled_ticks(Format::Percent),
            y,
            border: Some((self.max_width as f64 + 0.5, "never trained →")),
        };
        curves(&axes, &curves_of)
    }

    /// Accuracy of every digit of every width, the mean over seeds, as an SVG picture: where a model fails.
    pub fn digits(&self) -> String {
        let triangle = |name: &str| {
            let rows = self.of(name);
            let of_width = |(index, width): (usize, &WidthResult)| {
                let widths = || rows.iter().filter_map(move |row| row.widths.get(index));
                (0..width.digits.len()).map(|digit| mean(widths().map(|w| w.digits[digit]))).collect()
            };
            let rows = rows[0].widths.iter().enumerate().map(of_width).collect();
            Triangle { name: name.to_string(), rows }
        };
        let triangles: Vec<Triangle> = self.names().into_iter().map(triangle).collect();
        digits_of_widths("Accuracy of each target digit, teacher-forced", self.max_width, &triangles)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::reproduce::RESULTS_FILE;

    fn record() -> AdditionRecord {
        let row = |name: &str, seed: u64, beyond: f64| RowResult {
            name: name.into(),
            seed,
            parameters: 1000,
            best_step: 90,
            validation: 1.0,
            seconds: 60.0,
            threads: 2,
            widths: (1..=6)
                .map(|width| {
                    let accuracy = if width > 4 { beyond } else { 1.0 };
                    WidthResult {
                        width,
                        accuracy,
                        exact: 0.0,
                        free: 0.5 * accuracy,
                        digits: vec![accuracy; width + 1],
                    }
                })
                .collect(),
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
        assert!(table.contains("| retnet | 1,000 | 90 | 100.0 ± 0.0 | 60.0 ± 14.1 | 60 / 60 | 0.0 ± 0.0 | 30.0 ± 7.1 | 1.0 | 99.7 | 82.9 | 99 / 63 |"), "{table}");
        assert!(
            table.contains("| deltanet | 1,000 | 90 | 100.0 ± 0.0 | 25.0 ± 0.0 |")
                && table.contains("| – | – | – |"),
            "{table}"
        );
        assert!(table.contains("5–6 digits") && table.contains("over 2 seeds"));
        let summary = record().summary();
        assert!(summary.contains("| retnet | 100.0 ± 0.0 | 60.0 ± 14.1 | 1.0 | 99.7 | 82.9 |"), "{summary}");
        let mut fewer = record();
        fewer.rows.remove(0);
        assert!(fewer.table().contains("over 1 to 2 seeds."), "{}", fewer.table());
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
