//! The tables and pictures of the experiment.

use std::ops::RangeInclusive;

use falcon_lm::tasks::addition::one_digit_tests;

use super::experiment::{
    AdditionExperiment, AdditionMeasured, AdditionRecord, AdditionSettings, AdditionTraining,
};
use super::measure::WidthResult;
use super::paper::{PAPER, PaperAddition};
use crate::pictures::{
    Axis, AxisScale, Chart, ChartLine, DigitMap, LineStyle, Tick, TickFormat, digit_maps, svg_file,
};
use crate::reproduce::columns::{
    Column, MISSING, Spread, important, markdown_table, paper_preset, seeds_in_words,
};
use crate::reproduce::record::{Experiment, RowResult};

/// Names of the files.
const TABLE_FILE: &str = "table.md";
const CURVES_FILE: &str = "curves.svg";
const DIGITS_FILE: &str = "digits.svg";

/// Selects one of the results of a width.
type Value = fn(&WidthResult) -> f64;

impl Experiment for AdditionExperiment {
    const NAME: &'static str = "addition";
    type Settings = AdditionSettings;
    type Training = AdditionTraining;
    type Measured = AdditionMeasured;

    fn table(record: &AdditionRecord) -> String {
        let own = "; *own digits* is the percentage of right digits with the model's own digits as input";
        record.partial_mark() + &markdown_table(&record.names(), &record.columns()) + &record.caption(own)
    }

    fn summary(record: &AdditionRecord) -> String {
        let columns = important(record.columns());
        record.partial_mark() + &markdown_table(&record.names(), &columns) + &record.caption("")
    }

    fn files(record: &AdditionRecord) -> Vec<(&'static str, String)> {
        let title = format!("# Addition with more digits than in training: {}", record.scale);
        let page = format!("{title}\n\n{}\n{}", record.table(), record.notes());
        vec![(TABLE_FILE, page), (CURVES_FILE, record.curves()), (DIGITS_FILE, record.digits())]
    }
}

impl AdditionRecord {
    /// The mean and deviation of a fraction over the seeds that have it, in percent.
    fn percent(&self, name: &str, value: impl Fn(&RowResult<AdditionExperiment>) -> Option<f64>) -> String {
        let values: Vec<f64> = self.seeds_of(name).into_iter().filter_map(value).collect();
        if values.is_empty() { MISSING.into() } else { Spread::of(&values).percent() }
    }

    /// The widths that were evaluated but not trained: first those up to one and a half times the trained width,
    /// which the paper evaluates, then the others.
    fn beyond(&self) -> Vec<RangeInclusive<usize>> {
        let widest =
            self.rows.iter().filter_map(|row| row.measured.widths.last()).map(|w| w.width).max().unwrap_or(0);
        let last = self.settings.max_width.saturating_mul(3).div_ceil(2);
        let ranges = [self.settings.max_width + 1..=last.min(widest), last + 1..=widest];
        ranges.into_iter().filter(|range| !range.is_empty()).collect()
    }

    fn columns(&self) -> Vec<Column<'_>> {
        let trained = format!("trained on 1–{} digits", self.settings.max_width);
        let mut columns = vec![Column::new(true, trained, str::to_string), self.parameters_column(false)];
        columns.extend(self.state_column());
        columns.push(self.best_step_column());
        let validation = |name: &str| self.percent(name, |row| Some(row.training.validation));
        columns.push(Column::new(true, "validation", validation));
        if self.rows.iter().any(|row| row.training.exact_validation.is_some()) {
            let exact = |name: &str| self.percent(name, |row| row.training.exact_validation);
            columns.push(Column::new(true, "validation, exact", exact));
        }
        for range in self.beyond() {
            let widths = span(&range);
            let values: [(bool, String, Value); 3] = [
                (true, format!("{widths} digits"), |width| width.accuracy),
                (true, format!("{widths}, exact"), |width| width.exact),
                (false, format!("{widths}, own digits"), |width| width.free),
            ];
            for (important, title, value) in values {
                let range = range.clone();
                columns.push(Column::new(important, title, move |name| {
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
                    let rows = self.seeds_of(name).into_iter();
                    100.0 * mean(rows.filter_map(|row| mean_over(row, &(width..=width), value)))
                };
                columns.push(Column::new(false, title, move |name| {
                    format!("{:.0} / {:.0}", at(name, ends[0]), at(name, ends[1]))
                }));
            }
        }
        columns.push(self.minutes_column());
        let paper = |title: &'static str, important: bool, show: fn(&PaperAddition) -> String| {
            Column::new(important, title, move |name: &str| {
                let paper = PAPER.iter().find(|paper| paper_preset(name) == Some(paper.preset));
                paper.map_or_else(|| MISSING.to_string(), show)
            })
        };
        columns.push(paper("paper: validation", true, |p| format!("{:.1}", p.validation)));
        columns.push(paper("paper: 33–48", true, |p| format!("{:.1}", p.beyond)));
        columns.push(paper("paper: 33 / 48", false, |p| format!("{:.0} / {:.0}", p.first, p.last)));
        columns
    }

    fn caption(&self, more: &str) -> String {
        let seeds = self.seed_counts();
        let spread = match seeds.1 > 1 {
            true => format!(" Mean ± standard deviation over {}.", seeds_in_words(seeds)),
            false => String::new(),
        };
        format!(
            "\nPercentages of right digits of the sum, with the true digits before them as input (teacher forcing); *exact* is the \
             percentage of sums in which all digits are right{more}. The paper's numbers may be either: its text calls them the \
             accuracy of the target suffix, an earlier version called the same numbers the exact match of sequences, and those \
             for 33 and 48 digits are whole percentages.{spread}\n"
        )
    }

    fn notes(&self) -> String {
        format!(
            "Scale `{}`: {} test samples of each width, {}. {}. \
             [Accuracy by width](curves.svg), [by digit](digits.svg).\n\n\
             ```console\n$ {}\n```\n\n\
             The hash of a prompt decides whether it belongs to training, validation or test, so that no prompt is in two of \
             them; the same sum with its operands exchanged may be. Of the 100 sums of two one-digit numbers, {} are test prompts, \
             which are drawn repeatedly.\n\n\
             The configuration of the first row; the others differ in the seed and in what their names say:\n\n```toml\n{}```\n",
            self.scale,
            self.settings.samples,
            self.cost(),
            self.machines(),
            self.command,
            one_digit_tests(),
            self.config,
        )
    }

    /// Accuracy by width, the mean over seeds, as an SVG file: of digits and, below, of whole sums.
    fn curves(&self) -> String {
        let digits = self.chart("Right digits of the sum, with the true digits as input", |width| width.accuracy);
        let exact = self.chart("Exact match: sums in which all digits are right", |width| width.exact);
        svg_file(&[digits, exact], &self.names())
    }

    fn chart(&self, title: &str, value: Value) -> Chart {
        let line = |(series, name): (usize, &str)| {
            let rows = self.seeds_of(name);
            let widths = rows[0].measured.widths.iter().map(|width| width.width);
            let points = widths.enumerate().map(|(index, width)| {
                let values = rows.iter().filter_map(|row| row.measured.widths.get(index)).map(value);
                (width as f64, mean(values))
            });
            ChartLine { series, points: points.collect(), style: LineStyle::Plain }
        };
        let lines: Vec<ChartLine> = self.names().into_iter().enumerate().map(line).collect();
        let widest = lines.iter().filter_map(|line| line.points.last()).map(|(x, _)| *x as usize).max();
        let widest = widest.unwrap_or(1);
        let tick = |width: usize| Tick { at: width as f64, label: width.to_string(), name: None };
        let x = Axis {
            name: "digits of an operand".into(),
            scale: AxisScale::linear(0.5, widest as f64 + 0.5),
            ticks: (1..=widest).step_by(widest.div_ceil(17)).map(tick).collect(),
            format: TickFormat::Number,
            parts: vec![(0.5, String::new()), (self.settings.max_width as f64 + 0.5, "not in training →".into())],
        };
        let y = Axis::numbers("", AxisScale::linear(0.0, 1.0), TickFormat::Percent);
        Chart { title: title.into(), unit: String::new(), x, y, lines }
    }

    /// The accuracy of every digit of every width, the mean over seeds, as an SVG file: it shows where a model fails.
    fn digits(&self) -> String {
        let map = |name: &str| {
            let rows = self.seeds_of(name);
            let digits = |(index, width): (usize, &WidthResult)| {
                let widths = || rows.iter().filter_map(move |row| row.measured.widths.get(index));
                (0..width.digits.len())
                    .map(|digit| mean(widths().filter_map(|width| width.digits.get(digit).copied())))
                    .collect()
            };
            let rows = rows[0].measured.widths.iter().enumerate().map(digits).collect();
            DigitMap { name: name.to_string(), rows }
        };
        let maps: Vec<DigitMap> = self.names().into_iter().map(map).collect();
        digit_maps(
            "Accuracy of each digit of the sum, with the true digits as input",
            self.settings.max_width,
            &maps,
        )
    }
}

/// A range of widths in words.
fn span(range: &RangeInclusive<usize>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

/// The mean over the widths of a row; none if it has none of them.
fn mean_over(row: &RowResult<AdditionExperiment>, range: &RangeInclusive<usize>, value: Value) -> Option<f64> {
    let widths = row.measured.widths.iter().filter(|width| range.contains(&width.width));
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
            training: AdditionTraining { validation: 1.0, exact_validation: None },
            seconds: 60.0,
            threads: 2,
            measured: AdditionMeasured {
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
            },
            origin: None,
        };
        AdditionRecord {
            scale: "quick".into(),
            command: "falcon reproduce addition".into(),
            version: "0".into(),
            machine: "a machine".into(),
            settings: AdditionSettings { max_width: 4, samples: 10 },
            config: "[task]\n".into(),
            planned: None,
            search: None,
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
        // Exact: 0.5·0.5² = 0.125 and 0.5·0.7² = 0.245, with a mean of 0.185 and a deviation of 0.12/√2 = 0.0849.
        let retnet = "| retnet | 1,000 | 90 | 100.0 ± 0.0 | 60.0 ± 14.1 | 18.5 ± 8.5 | 30.0 ± 7.1 | 60 / 60 \
                      | 18 / 18 | 1.0 | 99.7 | 82.9 | 99 / 63 |";
        assert!(table.contains(retnet), "{table}");
        let deltanet = "| deltanet | 1,000 | 90 | 100.0 ± 0.0 | 25.0 ± 0.0 | 3.1 ± 0.0 |";
        assert!(table.contains(deltanet) && table.contains("| – | – | – |"), "{table}");
        assert!(table.contains("over 2 seeds") && table.contains("The paper's numbers may be either"), "{table}");
        let summary = record().summary();
        assert!(
            summary.contains("| retnet | 100.0 ± 0.0 | 60.0 ± 14.1 | 18.5 ± 8.5 | 1.0 | 99.7 | 82.9 |"),
            "{summary}"
        );
        let mut fewer = record();
        fewer.rows.remove(0);
        assert!(fewer.table().contains("over 1 to 2 seeds."), "{}", fewer.table());
    }

    /// Widths that the paper does not evaluate are not mixed with those that it does.
    #[test]
    fn widths_far_beyond_have_columns_of_their_own() {
        let mut record = record();
        for row in &mut record.rows {
            let far =
                |width| WidthResult { width, accuracy: 0.1, exact: 0.02, free: 0.3, digits: vec![0.1; width + 1] };
            row.measured.widths.extend([7, 8].map(far));
        }
        assert_eq!(record.beyond(), [5..=6, 7..=8]);
        let summary = record.summary();
        assert!(summary.contains("| 5–6 digits | 5–6, exact | 7–8 digits | 7–8, exact |"), "{summary}");
        assert!(summary.contains("| 25.0 ± 0.0 | 3.1 ± 0.0 | 10.0 ± 0.0 | 2.0 ± 0.0 |"), "{summary}");
        assert!(record.table().contains("| 7–8, own digits | 5 / 6 |"), "{}", record.table());
        // One and a half times 32 digits is 48.
        record.settings.max_width = 32;
        record.rows[0].measured.widths.last_mut().unwrap().width = 64;
        assert_eq!(record.beyond(), [33..=48, 49..=64]);
        // One and a half times one digit is rounded up to two.
        record.settings.max_width = 1;
        record.rows[0].measured.widths.last_mut().unwrap().width = 3;
        record.rows.truncate(1);
        assert_eq!(record.beyond(), [2..=2, 3..=3]);
        assert!(record.summary().contains("| 2 digits | 2, exact | 3 digits |"), "{}", record.summary());
    }

    #[test]
    fn optional_values_are_shown_where_they_are_recorded() {
        let mut record = record();
        for hidden in ["state", "validation, exact"] {
            assert!(!record.table().contains(hidden), "{hidden}");
        }
        record.rows[0].training.exact_validation = Some(0.75);
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
        assert!(svg.contains("viewBox=\"0 0 860 880\"") && svg.ends_with("</g>\n</svg>\n"), "{svg}");
        let (digits, exact) = svg.split_once("Exact match").unwrap();
        assert!(
            digits.contains("Right digits") && digits.contains("<g transform=\"translate(0 440)\">"),
            "{digits}"
        );
        // The axes are 348 high from 44 on. Widths 5 and 6 of deltanet, the second row, are at 25% of digits and
        // 3.125% of sums.
        let height = |part: f64| format!("{}", (44.0 + 348.0 * (1.0 - part)).round());
        let last = |chart: &str| {
            let path = chart.lines().find(|line| line.starts_with("<path class=\"line r1\"")).unwrap();
            path.rsplit('"')
                .nth(1)
                .unwrap()
                .rsplit(' ')
                .next()
                .unwrap()
                .parse::<f64>()
                .unwrap()
                .round()
                .to_string()
        };
        assert_eq!((last(digits), last(exact)), (height(0.25), height(0.03125)));
    }

    #[test]
    fn a_written_record_can_be_read() {
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
    fn only_the_table_of_a_page_is_replaced() {
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
