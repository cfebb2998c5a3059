//! What an experiment leaves behind: a file with everything, a table and a picture made from it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use falcon_nn::write_file;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::addition::{PAPER, RowResult, WidthResult};
use super::picture::{Curve, Triangle, curves_over_widths, digits_of_widths};
use crate::report::thousands;
use crate::tasks::addition::one_digit_tests;

/// Names of the files.
const RECORD_FILE: &str = "results.json";
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
    /// What became of each model and seed.
    pub rows: Vec<RowResult>,
}

/// Why a record cannot be kept or read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is none.
    #[error("{path}: not a record of this experiment: {error}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// A page that has no place for the table.
    #[error("no place for the table: it goes between a line {begin:?} and one {end:?}")]
    NoPlace {
        /// The line before.
        begin: String,
        /// The line after.
        end: &'static str,
    },
}

/// A mean and how far its parts are from it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    mean: f64,
    /// Standard deviation over seeds; none of a single one.
    deviation: Option<f64>,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self { mean, deviation: (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()) }
    }

    fn percent(&self) -> String {
        match self.deviation {
            Some(deviation) => format!("{:.1} ± {:.1}", 100.0 * self.mean, 100.0 * deviation),
            None => format!("{:.1}", 100.0 * self.mean),
        }
    }
}

impl AdditionRecord {
    /// Reads what [`AdditionRecord::write`] wrote.
    pub fn read(folder: &Path) -> Result<Self, RecordError> {
        let path = folder.join(RECORD_FILE);
        let json = fs::read(&path).map_err(|error| RecordError::Io { path: path.clone(), error })?;
        serde_json::from_slice(&json).map_err(|error| RecordError::Json { path, error })
    }

    /// Writes the record, and the table and the pictures made from it.
    pub fn write(&self, folder: &Path) -> Result<(), RecordError> {
        fs::create_dir_all(folder).map_err(|error| RecordError::Io { path: folder.into(), error })?;
        let mut json = serde_json::to_vec_pretty(self).expect("a record is plain data");
        json.push(b'\n');
        let page = format!("{}\n{}", self.table(), self.notes());
        for (name, bytes) in [
            (RECORD_FILE, json),
            (TABLE_FILE, page.into()),
            (CURVES_FILE, self.curves().into()),
            (DIGITS_FILE, self.digits().into()),
        ] {
            let path = folder.join(name);
            write_file(&path, &bytes).map_err(|error| RecordError::Io { path, error })?;
        }
        Ok(())
    }

    /// Names of the rows, in the order they were run.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        names
    }

    fn of(&self, name: &str) -> Vec<&RowResult> {
        self.rows.iter().filter(|row| row.name == name).collect()
    }

    /// The table, in Markdown.
    pub fn table(&self) -> String {
        let widest = self.rows.iter().filter_map(|row| row.widths.last()).map(|w| w.width).max().unwrap_or(0);
        let (first, w) = (self.max_width + 1, self.max_width);
        let seeds = self.names().first().map_or(0, |name| self.of(name).len());
        let mut out = format!(
            "| trained on 1–{w} digits | parameters | best step | validation | {first}–{widest} digits | {first} / {widest} | exact, {first}–{widest} | own digits | minutes | paper: validation | 33–48 | 33 / 48 |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        );
        for name in self.names() {
            let rows = self.of(name);
            let over =
                |f: &dyn Fn(&RowResult) -> f64| Spread::of(&rows.iter().map(|row| f(row)).collect::<Vec<_>>());
            let beyond = |f: fn(&WidthResult) -> f64| {
                over(&|row| mean(row.widths.iter().filter(|width| width.width > w).map(f)))
            };
            let at = |width: usize| {
                let of =
                    |row: &RowResult| row.widths.iter().find(|w| w.width == width).map_or(0.0, |w| w.accuracy);
                format!("{:.0}", 100.0 * over(&of).mean)
            };
            let paper = PAPER.iter().find(|paper| paper.preset == name).map_or_else(
                || "| – | – | –".to_string(),
                |p| format!("| {:.1} | {:.1} | {:.0} / {:.0}", p.validation, p.beyond, p.first, p.last),
            );
            _ = writeln!(
                out,
                "| {name} | {} | {:.0} | {} | {} | {} / {} | {} | {} | {:.1} {paper} |",
                thousands(rows[0].parameters as u64),
                over(&|row| row.best_step as f64).mean,
                over(&|row| row.validation).percent(),
                beyond(|width| width.accuracy).percent(),
                at(first),
                at(widest),
                beyond(|width| width.exact).percent(),
                beyond(|width| width.free).percent(),
                over(&|row| row.seconds / 60.0).mean,
            );
        }
        let spread =
            if seeds > 1 { format!(" Mean ± standard deviation over {seeds} seeds.") } else { String::new() };
        out + &format!(
            "\nTeacher-forced accuracy of target digits in percent, as in the paper; *exact* is whole sums, *own digits* lets the model read what it said.{spread}\n"
        )
    }

    fn notes(&self) -> String {
        let seconds: f64 = self.rows.iter().map(|row| row.seconds).sum();
        let threads = |least: fn(usize, usize) -> usize| self.rows.iter().map(|row| row.threads).reduce(least);
        let threads = match (threads(usize::min).unwrap_or(0), threads(usize::max).unwrap_or(0)) {
            (1, 1) => "one thread a run".to_string(),
            (least, most) if least == most => format!("{most} threads a run"),
            (least, most) => format!("{least} to {most} threads a run"),
        };
        format!(
            "Scale `{}`: {} test samples of each width, {threads}, {:.0} minutes of all runs together. {}. Falcon {}. \
             [Accuracy by width](curves.svg), [by digit](digits.svg).\n\n\
             ```console\n$ {}\n```\n\n\
             A prompt belongs to training, validation or test by its hash, so none is in two of them; the sum with operands exchanged \
             may be. Of the 100 sums of one digit, {} are test prompts, drawn again and again.\n\n\
             The first row's configuration; the others differ in the model and the seed alone:\n\n```toml\n{}```\n",
            self.scale,
            self.samples,
            seconds / 60.0,
            self.machine,
            self.version,
            self.command,
            one_digit_tests(),
            self.config,
        )
    }

    /// A Markdown page with the table in its place: between `<!-- addition SCALE -->` and `<!-- end -->`.
    pub fn put_into(&self, page: &str) -> Result<String, RecordError> {
        let begin = format!("<!-- addition {} -->\n", self.scale);
        let end = "<!-- end -->";
        let place = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
        let (before, after) = place.ok_or_else(|| RecordError::NoPlace { begin: begin.trim().into(), end })?;
        Ok(format!("{before}{begin}{}{end}{after}", self.table()))
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
        let curves: Vec<Curve> = self.names().into_iter().map(curve).collect();
        curves_over_widths(
            "Accuracy of target digits, teacher-forced",
            "digits of an operand",
            self.max_width as f64,
            &curves,
        )
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
    use super::*;

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
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        record().write(folder.path()).unwrap();
        assert_eq!(AdditionRecord::read(folder.path()).unwrap(), record());
        let table = fs::read_to_string(folder.path().join(TABLE_FILE)).unwrap();
        assert!(table.starts_with(&record().table()) && table.contains("$ falcon reproduce addition"));
        assert!(table.contains("2 threads a run, 4 minutes"), "{table}");
        for picture in [CURVES_FILE, DIGITS_FILE] {
            let svg = fs::read_to_string(folder.path().join(picture)).unwrap();
            assert!(svg.contains("retnet") && svg.contains("deltanet") && !svg.contains("NaN"));
        }
        fs::write(folder.path().join(RECORD_FILE), "{}").unwrap();
        assert!(AdditionRecord::read(folder.path()).unwrap_err().to_string().contains("not a record"));
    }

    #[test]
    fn a_page_keeps_all_but_the_table() {
        let record = record();
        let page = "before\n<!-- addition quick -->\nold\n<!-- end -->\nafter\n<!-- end -->\n";
        let new = record.put_into(page).unwrap();
        assert_eq!(
            new,
            format!("before\n<!-- addition quick -->\n{}<!-- end -->\nafter\n<!-- end -->\n", record.table())
        );
        assert_eq!(record.put_into(&new).unwrap(), new);
        let error = record.put_into("<!-- addition small -->\n<!-- end -->").unwrap_err().to_string();
        assert!(error.contains("<!-- addition quick -->"), "{error}");
    }
}
