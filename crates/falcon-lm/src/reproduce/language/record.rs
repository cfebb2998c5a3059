//! What the experiment leaves behind.

use std::fmt::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{PAPER, PaperRow, RowResult, TASKS};
use crate::evaluate::{BENCHMARKS, BenchmarkResult, TextResult, TextScore};
use crate::report::{Curve, Fit, fitted_curves, table_head, table_line, thousands};
use crate::reproduce::results::{
    Column, Results, Spread, cost, first, names, paper_row, seeds, seeds_in_words, table_of,
};
use crate::reproduce::search::{ModelSearch, SearchRecord};

/// Names of the files.
const TABLE_FILE: &str = "table.md";
const CURVES_FILE: &str = "curves.svg";

/// An experiment, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageRecord {
    /// Its scale.
    pub scale: String,
    /// The command that repeats it.
    pub command: String,
    /// Of the program.
    pub version: String,
    /// What it ran on.
    pub machine: String,
    /// The configuration of the first row, which all others share but for the model.
    pub config: String,
    /// Runs that belong to it, if not all of them are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<usize>,
    /// How the learning rate and the scale of the embedding of each row were chosen, where that was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRecord>,
    /// What became of each model and seed.
    pub rows: Vec<RowResult>,
}

impl Results for LanguageRecord {
    type Row = RowResult;

    fn rows(&self) -> &[RowResult] {
        &self.rows
    }

    fn marker(&self) -> String {
        format!("<!-- lm {} -->", self.scale)
    }

    fn table(&self) -> String {
        let mut out = self.mark() + &table_of(&self.names(), &self.perplexities());
        for shots in self.shots() {
            _ = write!(out, "\n{}", self.accuracies(shots));
        }
        out + "\n" + &self.decided()
    }

    /// Without the benchmarks, and what a reader wants first.
    fn summary(&self) -> String {
        self.mark() + &table_of(&self.names(), &first(self.perplexities())) + "\n" + &self.decided()
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        let search =
            self.search.as_ref().map_or_else(String::new, |search| search.table() + "\n" + &search.notes() + "\n");
        let page = format!("# Language models: {}\n\n{}\n{search}{}", self.scale, self.table(), self.notes());
        vec![(TABLE_FILE, page), (CURVES_FILE, self.curves())]
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

/// What a text is called: its file, without `.txt` and what follows.
fn title(text: &TextResult) -> String {
    let name = Path::new(&text.text).file_name().map_or(text.text.as_str().into(), |name| name.to_string_lossy());
    name.split(".txt").next().unwrap_or(&name).to_string()
}

/// A number that may have many digits.
fn wide(spread: Spread) -> String {
    match spread {
        Spread { mean, .. } if mean < 1e5 => spread.show(0),
        Spread { mean, deviation: Some(deviation) } => format!("{mean:.2e} ± {deviation:.1e}"),
        Spread { mean, deviation: None } => format!("{mean:.2e}"),
    }
}

impl LanguageRecord {
    fn names(&self) -> Vec<&str> {
        names(self.rows.iter().map(|row| row.name.as_str()))
    }

    fn of(&self, name: &str) -> Vec<&RowResult> {
        self.rows.iter().filter(|row| row.name == name).collect()
    }

    fn over(&self, name: &str, f: impl Fn(&RowResult) -> f64) -> Spread {
        Spread::of(&self.of(name).into_iter().map(f).collect::<Vec<_>>())
    }

    fn shots(&self) -> Vec<usize> {
        let mut shots: Vec<usize> = self.rows.iter().flat_map(|row| &row.benchmarks).map(|b| b.shots).collect();
        shots.sort_unstable();
        shots.dedup();
        shots
    }

    /// What a row made of LAMBADA with the fewest examples that it was asked with.
    fn lambada<'a>(&self, row: &'a RowResult) -> Option<&'a BenchmarkResult> {
        find(row, "lambada_openai", *self.shots().first()?)
    }

    fn perplexities(&self) -> Vec<Column<'_>> {
        let Some(a_row) = self.rows.first() else { return Vec::new() };
        let of = |name: &str, text: usize, f: fn(&TextScore) -> f64| {
            self.over(name, |row| row.texts.get(text).map_or(f64::NAN, |text| f(&text.score)))
        };
        let mut columns = vec![
            Column::new(
                true,
                format!("perplexity after {} tokens", thousands(a_row.tokens as u64)),
                str::to_string,
            ),
            Column::new(true, "parameters", |name| thousands(self.of(name)[0].parameters as u64)),
        ];
        if self.rows.iter().any(|row| row.state.is_some()) {
            columns.push(Column::new(true, "state", |name| {
                self.of(name)[0].state.map_or_else(|| "–".into(), |state| state.to_string())
            }));
        }
        if let Some(search) = &self.search {
            let chosen =
                |name: &str, show: fn(&ModelSearch) -> String| search.of(name).map_or_else(|| "–".into(), show);
            columns.push(Column::new(false, "learning rate", move |name| chosen(name, ModelSearch::lr)));
            columns.push(Column::new(false, "embedding scale", move |name| {
                chosen(name, ModelSearch::initializer_range)
            }));
        }
        columns.extend([
            Column::new(false, "best step", |name| {
                format!("{:.0}", self.over(name, |row| row.best_step as f64).mean)
            }),
            Column::new(true, "validation, per token", move |name| {
                of(name, 0, TextScore::token_perplexity).show(2)
            }),
            Column::new(true, "bits per byte", move |name| of(name, 0, TextScore::bits_per_byte).show(3)),
        ]);
        columns.extend(a_row.texts.iter().enumerate().skip(1).map(|(text, result)| {
            Column::new(false, format!("{}, per word", title(result)), move |name| {
                wide(of(name, text, TextScore::word_perplexity))
            })
        }));
        if self.rows.iter().all(|row| self.lambada(row).is_some()) {
            let found = |row: &RowResult| self.lambada(row).expect("all rows have it").clone();
            columns.push(Column::new(false, "LAMBADA", move |name| {
                wide(self.over(name, |row| found(row).perplexity.map_or(f64::NAN, |p| p.mean)))
            }));
            columns.push(Column::new(false, "last word right", move |name| {
                self.over(name, |row| found(row).acc.mean).percent()
            }));
        }
        columns.push(Column::new(true, "minutes", |name| {
            format!("{:.1}", self.over(name, |row| row.seconds / 60.0).mean)
        }));
        let papers = [("FineWeb-Edu", 2), ("WikiText", 0), ("LAMBADA", 1)];
        columns.extend(papers.map(|(text, index)| {
            Column::new(index == 2, format!("paper: {text}"), move |name| {
                let paper = PAPER
                    .iter()
                    .find(|paper| paper_row(name) == Some(paper.preset))
                    .and_then(|paper| paper.perplexities);
                paper.map_or_else(|| "–".to_string(), |of| format!("{:.2}", of[index]))
            })
        }));
        columns
    }

    fn accuracies(&self, shots: usize) -> String {
        let Some(first) = self.rows.first() else { return String::new() };
        let asked: Vec<&str> = TASKS.into_iter().filter(|task| find(first, task, shots).is_some()).collect();
        if asked.is_empty() {
            return String::new();
        }
        let mut out = String::new();
        let mut titles = vec![format!("accuracy, {shots}-shot")];
        titles.extend(asked.iter().map(|task| {
            let benchmark = BENCHMARKS.iter().find(|benchmark| benchmark.name == *task).expect("one of the nine");
            format!("{}{}", benchmark.title, if benchmark.normalised { "*" } else { "" })
        }));
        titles.extend(["average", "paper: average"].map(String::from));
        table_head(&mut out, &titles);
        let shown = |row: &RowResult, task: &str| find(row, task, shots).map_or(f64::NAN, |b| b.shown().mean);
        for name in self.names() {
            let mut cells = vec![name.to_string()];
            cells.extend(
                asked.iter().map(|task| format!("{:.1}", 100.0 * self.over(name, |row| shown(row, task)).mean)),
            );
            let average =
                |row: &RowResult| asked.iter().map(|task| shown(row, task)).sum::<f64>() / asked.len() as f64;
            cells.push(self.over(name, average).percent());
            let paper =
                PAPER.iter().find(|paper| paper_row(name) == Some(paper.preset) && asked.len() == TASKS.len());
            cells.push(match (paper, shots) {
                (Some(paper), 0) => format!("{:.1}", PaperRow::average(&paper.zero_shot)),
                (Some(paper), 1) => format!("{:.1}", PaperRow::average(&paper.one_shot)),
                _ => "–".into(),
            });
            table_line(&mut out, &cells);
        }
        let chance: Vec<f64> =
            asked.iter().map(|task| find(first, task, shots).map_or(f64::NAN, |found| found.chance)).collect();
        let mut cells = vec!["*guessing*".to_string()];
        cells.extend(chance.iter().map(|chance| format!("{:.1}", 100.0 * chance)));
        cells.push(format!("{:.1}", 100.0 * chance.iter().sum::<f64>() / chance.len() as f64));
        cells.push(String::new());
        table_line(&mut out, &cells);
        // The largest of all runs; of the average, the root of the sum of squares over their number.
        let error = |task: &str| {
            let of = self.rows.iter().filter_map(|row| find(row, task, shots)).map(|found| found.shown().stderr);
            of.fold(0.0, f64::max)
        };
        let errors: Vec<f64> = asked.iter().map(|task| error(task)).collect();
        let of_average = errors.iter().map(|error| error * error).sum::<f64>().sqrt() / errors.len() as f64;
        let mut cells = vec!["*standard error of one run*".to_string()];
        cells.extend(errors.iter().chain([&of_average]).map(|error| format!("{:.1}", 100.0 * error)));
        cells.push(String::new());
        table_line(&mut out, &cells);
        out
    }

    /// Which differences of validation perplexity the seeds support: two means of `n` differ where they are further apart than
    /// `t √(2 s²/n)` in logarithms, `s²` pooled over all rows.
    fn decided(&self) -> String {
        let seeds = seeds(self.names().iter().map(|name| self.of(name).len()));
        let loss = |row: &RowResult| row.texts.first().map_or(f64::NAN, |text| text.score.token_perplexity().ln());
        let mut rows: Vec<(&str, Spread)> =
            self.names().into_iter().map(|name| (name, self.over(name, loss))).collect();
        if rows.is_empty() {
            return String::new();
        }
        if seeds.1 < 2 {
            return "One seed: differences may be chance.\n".into();
        }
        let means = format!("Means over {}; ± is the standard deviation over them.", seeds_in_words(seeds));
        if rows.len() < 2 {
            return means + "\n";
        }
        // Of the row that has fewest: what is said then holds for all.
        let (seeds, _) = seeds;
        if seeds < 2 {
            return means + " One seed of some: differences may be chance.\n";
        }
        let variances = rows.iter().filter_map(|(_, spread)| spread.deviation).map(|deviation| deviation.powi(2));
        let pooled = variances.sum::<f64>() / rows.len() as f64;
        let freedom = rows.len() * (seeds - 1);
        let apart = student(freedom) * (2.0 * pooled / seeds as f64).sqrt();
        rows.sort_by(|(_, a), (_, b)| a.mean.total_cmp(&b.mean));
        let steps = rows.windows(2).map(|pair| {
            let sign = if pair[1].1.mean - pair[0].1.mean > apart { "<" } else { "≈" };
            format!(" {sign} {}", pair[1].0)
        });
        let order: String = std::iter::once(rows[0].0.to_string()).chain(steps).collect();
        format!(
            "{means} Validation perplexities of two rows differ beyond the spread over seeds where they are more than {:.1}% apart \
             (95%, spread pooled over rows, pairs not corrected for their number): {order}, where ≈ is a neighbour that does not.\n",
            100.0 * (apart.exp() - 1.0)
        )
    }

    fn notes(&self) -> String {
        let Some(first) = self.rows.first() else { return String::new() };
        let questions: Vec<String> = first
            .benchmarks
            .iter()
            .filter(|benchmark| benchmark.shots == first.benchmarks[0].shots)
            .map(|benchmark| format!("{} {}", benchmark.name, thousands(benchmark.items as u64)))
            .collect();
        let texts: Vec<String> = first
            .texts
            .iter()
            .map(|text| {
                let joined = text.detokenizer.map_or(String::new(), |_| " (detokenized, page by page)".into());
                format!("{} {} tokens{joined}", title(text), thousands(text.score.tokens as u64))
            })
            .collect();
        format!(
            "Scale `{}`: all rows at {} tokens, {}. {}. [Validation while training](curves.svg).\n\n\
             ```console\n$ {}\n```\n\n\
             What is measured is the checkpoint that was best on a part of the validation text while training. Texts are read in windows of \
             the length of training: {}. Questions of each benchmark, from all over its file: {}; the standard errors are the largest of all \
             runs. * is `acc_norm`, the others `acc`, as lm-evaluation-harness has them. The paper's models have 124M to 130M parameters and \
             read 49.2 billion tokens of FineWeb-Edu: its figures are beside these to compare orders, not heights.\n\n\
             The first row's configuration; the others differ in the seed{} and in what their names say:\n\n```toml\n{}```\n",
            self.scale,
            thousands(first.tokens as u64),
            cost(self.rows.iter().map(|row| (row.seconds, row.threads))),
            self.machines(),
            self.command,
            texts.join(", "),
            if questions.is_empty() { "none asked".into() } else { questions.join(", ") },
            if self.search.is_some() { ", in what was searched for" } else { "" },
            self.config,
        )
    }

    /// Validation perplexity over tokens, the mean over seeds, as an SVG picture.
    fn curves(&self) -> String {
        let curve = |name: &str| {
            let rows = self.of(name);
            let points = rows[0].curve.iter().enumerate().map(|(index, (tokens, _))| {
                let losses: Vec<f64> =
                    rows.iter().filter_map(|row| row.curve.get(index)).map(|(_, l)| *l).collect();
                (*tokens as f64 / 1e6, Spread::of(&losses).mean.exp())
            });
            Curve { name: name.to_string(), points: points.filter(|(tokens, _)| *tokens > 0.0).collect() }
        };
        let all: Vec<Curve> = self.names().into_iter().map(curve).collect();
        let title = "Validation perplexity per token while training";
        fitted_curves(title, "million tokens learnt from", [Fit::Zero, Fit::Decades], &all)
    }
}

fn find<'a>(row: &'a RowResult, name: &str, shots: usize) -> Option<&'a BenchmarkResult> {
    row.benchmarks.iter().find(|found| found.name == name && found.shots == shots)
}

/// The 97.5% quantile of Student's distribution: known where there are few degrees of freedom, else by its expansion around the normal one.
fn student(freedom: usize) -> f64 {
    const FEW: [f64; 5] = [12.706, 4.303, 3.182, 2.776, 2.571];
    if let Some(known) = FEW.get(freedom.wrapping_sub(1)) {
        return *known;
    }
    let (z, n) = (1.959_964_f64, freedom as f64);
    z + (z.powi(3) + z) / (4.0 * n)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n.powi(2))
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * n.powi(3))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::data::Detokenizer;
    use crate::evaluate::Estimate;
    use crate::reproduce::results::StateSize;
    use crate::reproduce::search::{Point, Trial, choose};

    fn record(seeds: u64) -> LanguageRecord {
        let text = |name: &str, nats: f64| TextResult {
            text: format!("data/{name}"),
            fingerprint: "f".into(),
            detokenizer: (name == "wiki.txt.xz").then_some(Detokenizer::WikiText),
            window: Some(512),
            score: TextScore { nats, tokens: 100, bytes: 400, words: 80 },
        };
        let benchmark = |name: &str, shots: usize, acc: f64| BenchmarkResult {
            name: name.into(),
            shots,
            items: 500,
            fingerprint: "f".into(),
            chance: 0.5,
            acc: Estimate { mean: acc, stderr: 0.02 },
            acc_norm: Some(Estimate { mean: acc + 0.1, stderr: 0.02 }),
            perplexity: (name == "lambada_openai").then_some(Estimate { mean: 1e3, stderr: 10.0 }),
        };
        let row = |name: &str, seed: u64, loss: f64| RowResult {
            name: name.into(),
            seed,
            parameters: 1_000_000,
            state: None,
            best_step: 1000,
            tokens: 2_000_000,
            seconds: 60.0,
            threads: 1,
            curve: vec![(0, 8.0), (1_000_000, loss + 1.0), (2_000_000, loss)],
            texts: vec![text("a.valid.txt", 100.0 * loss), text("wiki.txt.xz", 80.0 * 3.0)],
            benchmarks: [0, 1]
                .into_iter()
                .flat_map(|shots| ["lambada_openai", "piqa", "hellaswag"].map(|name| benchmark(name, shots, 0.4)))
                .collect(),
            origin: None,
        };
        let rows = [("retnet", 4.2), ("falcon-1a.3", 4.0), ("falcon-3a.3", 4.001)].into_iter();
        let rows =
            rows.flat_map(|(name, loss)| (0..seeds).map(move |seed| (name, seed, loss + 0.002 * seed as f64)));
        LanguageRecord {
            scale: "small".into(),
            command: "falcon reproduce lm".into(),
            version: "0".into(),
            machine: "a".into(),
            config: "[model]\n".into(),
            planned: None,
            search: None,
            rows: rows.map(|(name, seed, loss)| row(name, seed, loss)).collect(),
        }
    }

    #[test]
    fn tables_have_means_and_the_papers_figures() {
        let table = record(1).table();
        // e^4.2, 4.2 nats · 100 / 400 bytes / ln 2, e^(240 / 80)
        let retnet =
            "| retnet | 1,000,000 | 1000 | 66.69 | 1.515 | 20 | 1000 | 40.0 | 1.0 | 18.79 | 36.86 | 65.16 |";
        assert!(table.contains(retnet), "{table}");
        assert!(table.contains("| falcon-3a.3 |") && table.contains("| – | – | – |"), "{table}");
        assert!(
            table.contains("| retnet | 40.0 | 50.0 | 45.0 | – |"),
            "acc of PIQA, acc_norm of HellaSwag: {table}"
        );
        assert!(table.contains("| *guessing* | 50.0 | 50.0 | 50.0 |  |"), "{table}");
        // √(2 · 0.02²) / 2
        assert!(table.contains("| *standard error of one run* | 2.0 | 2.0 | 1.4 |  |"), "{table}");
        assert!(table.contains("One seed"), "{table}");
    }

    /// What was added to records later is not in those that were written before, and is not put into them.
    #[test]
    fn old_records_are_read_and_stay_as_they_are() {
        let json = serde_json::to_string(&record(1)).unwrap();
        for key in ["planned", "search", "state"] {
            assert!(!json.contains(&format!("{key:?}")), "{key}: {json}");
        }
        assert_eq!(serde_json::from_str::<LanguageRecord>(&json).unwrap(), record(1));
        let page = &record(1).files()[0].1;
        assert!(page.contains("the others differ in the seed and in what their names say"), "{page}");
        assert!(!page.contains("search") && !page.contains("state |"), "{page}");
    }

    #[test]
    fn what_is_not_done_is_marked() {
        let part = LanguageRecord { planned: Some(9), ..record(2) };
        let mark = "**Partial: 6 of 9 runs are done.**\n\n| perplexity";
        assert!(part.table().starts_with(mark) && part.summary().starts_with(mark), "{}", part.table());
        assert!(part.files()[0].1.starts_with(&format!("# Language models: small\n\n{mark}")));
        assert_eq!(record(2).mark(), "");
    }

    /// A record is not replaced by one of the same experiment that has less of it.
    #[test]
    fn what_there_is_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let there = || LanguageRecord::read(folder.path()).unwrap().rows.len();
        let part = |rows: usize, command: &str| {
            let mut part = LanguageRecord { planned: Some(9), command: command.into(), ..record(3) };
            part.rows.truncate(rows);
            part.keep(folder.path()).unwrap();
        };
        part(2, "this");
        assert_eq!(there(), 2);
        part(1, "this");
        assert_eq!(there(), 2);
        part(3, "this");
        assert_eq!(there(), 3);
        part(1, "another");
        assert_eq!(there(), 1);
    }

    #[test]
    fn what_was_searched_for_is_shown() {
        let trial = |lr: f64, loss: f64| Trial {
            point: Point { lr, initializer_range: 0.02 },
            loss: Some(loss),
            seconds: 60.0,
            fingerprint: None,
        };
        let searched = |name: &str, losses: [f64; 3]| {
            let trials: Vec<Trial> =
                [5e-4, 1e-3, 2e-3].into_iter().zip(losses).map(|(lr, l)| trial(lr, l)).collect();
            ModelSearch { name: name.into(), rows: vec![name.into()], chosen: choose(&trials), trials }
        };
        let models = vec![searched("retnet", [5.0, 4.0, 4.5]), searched("falcon-1a.3", [5.0, 4.0, 3.0])];
        let mut record =
            LanguageRecord { search: Some(SearchRecord { seed: 1000, steps: 250, models }), ..record(1) };
        record.rows[0].state = Some(StateSize::Fixed(16_384));
        record.rows[1].state = Some(StateSize::Grows);
        let folder = tempfile::tempdir().unwrap();
        record.write(folder.path()).unwrap();
        assert_eq!(LanguageRecord::read(folder.path()).unwrap(), record);
        let json = fs::read_to_string(folder.path().join("results.json")).unwrap();
        assert!(json.contains("\"fixed\": 16384") && json.contains("\"state\": \"grows\""), "{json}");
        let page = fs::read_to_string(folder.path().join(TABLE_FILE)).unwrap();
        for line in [
            "| retnet | 1,000,000 | 16,384 | 1e-3 | 0.02 | 1000 | 66.69 |",
            "| falcon-1a.3 | 1,000,000 | grows | 2e-3 ↑ | 0.02 | 1000 |",
            "| falcon-3a.3 | 1,000,000 | – | – | – | 1000 |",
            "| search: validation loss after 250 steps | learning rate | embedding scale | 5e-4, 0.02 |",
            "| falcon-1a.3 | 2e-3 ↑ | 0.02 | 5.000 | 4.000 | 3.000 |",
            "All rows had the same grid and the same effort",
            "6 runs and 6 minutes",
            "differ in the seed, in what was searched for and in what their names say",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        let summary = record.summary();
        assert!(!summary.contains("learning rate") && summary.contains("| state |"), "{summary}");
    }

    /// By hand: three seeds 0.002 apart have s = 0.002 in every row, so rows differ beyond 2.447 · 0.002 · √(2/3) = 0.0040.
    #[test]
    fn only_what_seeds_support_is_said() {
        let table = record(3).table();
        assert!(table.contains("more than 0.4% apart"), "{table}");
        assert!(table.contains("falcon-1a.3 ≈ falcon-3a.3 < retnet"), "{table}");
        assert!(table.contains("66.82 ± 0.13"), "{table}");
        let mut fewer = record(3);
        fewer.rows.remove(0);
        assert!(fewer.table().contains("Means over 2 to 3 seeds;"), "{}", fewer.table());
        fewer.rows.remove(0);
        let said = "Means over 1 to 3 seeds; ± is the standard deviation over them. One seed of some:";
        assert!(fewer.table().contains(said), "{}", fewer.table());
        let mut one = record(3);
        one.rows.truncate(3);
        assert!(one.table().ends_with("Means over 3 seeds; ± is the standard deviation over them.\n"));
    }

    #[test]
    fn quantiles_are_students() {
        for (freedom, known) in [(1, 12.706), (5, 2.571), (6, 2.447), (10, 2.228), (20, 2.086), (1 << 30, 1.96)] {
            assert!((student(freedom) / known - 1.0).abs() < 1e-3, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        record(2).write(folder.path()).unwrap();
        assert_eq!(LanguageRecord::read(folder.path()).unwrap(), record(2));
        let page = fs::read_to_string(folder.path().join(TABLE_FILE)).unwrap();
        assert!(page.contains(&record(2).table()) && page.contains("$ falcon reproduce lm"));
        assert!(page.contains("a.valid 100 tokens, wiki 100 tokens (detokenized, page by page)"), "{page}");
        let svg = fs::read_to_string(folder.path().join(CURVES_FILE)).unwrap();
        assert!(svg.contains("falcon-3a.3") && !svg.contains("NaN"));
        let page = "<!-- lm small -->\nold\n<!-- end -->\n";
        let page = record(2).put_into(page).unwrap();
        assert!(page.contains("| retnet |") && !page.contains("guessing"), "{page}");
    }
}
