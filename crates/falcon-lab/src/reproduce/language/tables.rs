//! The tables and pictures of the experiment.

use std::fmt::Write;
use std::path::Path;

use falcon_lm::evaluate::{BENCHMARKS, BenchmarkResult, TextResult};
use falcon_lm::scores::TextScore;

use super::experiment::{
    LanguageExperiment, LanguageMeasured, LanguageRecord, LanguageSettings, LanguageTraining,
};
use super::paper::{BENCHMARK_ORDER, PAPER, PaperLanguage};
use crate::format::thousands;
use crate::pictures::{Fit, NamedLine, fitted_chart};
use crate::reproduce::columns::{
    Column, MISSING, Spread, important, markdown_table, paper_preset, seeds_in_words,
};
use crate::reproduce::record::{Experiment, RowResult};
use crate::reproduce::trial::ModelSearch;
use crate::tables::{table_head, table_line};

/// Names of the files.
const TABLE_FILE: &str = "table.md";
const CURVES_FILE: &str = "curves.svg";

impl Experiment for LanguageExperiment {
    const NAME: &'static str = "lm";
    type Settings = LanguageSettings;
    type Training = LanguageTraining;
    type Measured = LanguageMeasured;

    fn table(record: &LanguageRecord) -> String {
        let mut out = record.partial_mark() + &markdown_table(&record.names(), &record.perplexities());
        for shots in record.shots() {
            _ = write!(out, "\n{}", record.accuracies(shots));
        }
        out + "\n" + &record.significance()
    }

    /// The most important columns, without the benchmarks.
    fn summary(record: &LanguageRecord) -> String {
        let columns = important(record.perplexities());
        record.partial_mark() + &markdown_table(&record.names(), &columns) + "\n" + &record.significance()
    }

    fn files(record: &LanguageRecord) -> Vec<(&'static str, String)> {
        let search = record.search.as_ref();
        let search = search.map_or_else(String::new, |search| search.table() + "\n" + &search.notes() + "\n");
        let title = format!("# Language models: {}", record.scale);
        let page = format!("{title}\n\n{}\n{search}{}", record.table(), record.notes());
        vec![(TABLE_FILE, page), (CURVES_FILE, record.curves())]
    }
}

/// The title of a text: the name of its file without `.txt` and what follows.
fn title(text: &TextResult) -> String {
    let name = Path::new(&text.text).file_name().map_or(text.text.as_str().into(), |name| name.to_string_lossy());
    name.split(".txt").next().unwrap_or(&name).to_string()
}

/// Formats a number that may be very large.
fn large(spread: Spread) -> String {
    match spread {
        Spread { mean, .. } if mean < 1e5 => spread.show(0),
        Spread { mean, deviation: Some(deviation) } => format!("{mean:.2e} ± {deviation:.1e}"),
        Spread { mean, deviation: None } => format!("{mean:.2e}"),
    }
}

impl LanguageRecord {
    fn shots(&self) -> Vec<usize> {
        let mut shots: Vec<usize> =
            self.rows.iter().flat_map(|row| &row.measured.benchmarks).map(|b| b.shots).collect();
        shots.sort_unstable();
        shots.dedup();
        shots
    }

    /// The result of a row on LAMBADA, with the fewest examples that were used.
    fn lambada<'a>(&self, row: &'a RowResult<LanguageExperiment>) -> Option<&'a BenchmarkResult> {
        find(row, "lambada_openai", *self.shots().first()?)
    }

    fn perplexities(&self) -> Vec<Column<'_>> {
        let Some(first) = self.rows.first() else { return Vec::new() };
        let score = |name: &str, text: usize, value: fn(&TextScore) -> f64| {
            self.spread(name, |row| row.measured.texts.get(text).map_or(f64::NAN, |text| value(&text.score)))
        };
        let head = format!("perplexity after {} tokens", thousands(first.training.tokens as u64));
        let mut columns = vec![Column::new(true, head, str::to_string), self.parameters_column(true)];
        columns.extend(self.state_column());
        if let Some(search) = &self.search {
            let chosen = |name: &str, show: fn(&ModelSearch) -> String| {
                search.model_of(name).map_or_else(|| MISSING.into(), show)
            };
            columns.push(Column::new(false, "learning rate", move |name| chosen(name, ModelSearch::lr)));
            columns.push(Column::new(false, "embedding scale", move |name| {
                chosen(name, ModelSearch::initializer_range)
            }));
        }
        columns.extend([
            self.best_step_column(),
            Column::new(true, "validation, per token", move |name| {
                score(name, 0, TextScore::token_perplexity).show(2)
            }),
            Column::new(true, "bits per byte", move |name| score(name, 0, TextScore::bits_per_byte).show(3)),
        ]);
        columns.extend(first.measured.texts.iter().enumerate().skip(1).map(|(text, result)| {
            Column::new(false, format!("{}, per word", title(result)), move |name| {
                large(score(name, text, TextScore::word_perplexity))
            })
        }));
        if self.rows.iter().all(|row| self.lambada(row).is_some()) {
            let found = |row: &RowResult<LanguageExperiment>| self.lambada(row).expect("all rows have it").clone();
            columns.push(Column::new(false, "LAMBADA", move |name| {
                large(self.spread(name, |row| found(row).perplexity.map_or(f64::NAN, |p| p.mean)))
            }));
            columns.push(Column::new(false, "last word right", move |name| {
                self.spread(name, |row| found(row).acc.mean).percent()
            }));
        }
        columns.push(self.minutes_column());
        let papers = [("FineWeb-Edu", 2), ("WikiText", 0), ("LAMBADA", 1)];
        columns.extend(papers.map(|(text, index)| {
            Column::new(index == 2, format!("paper: {text}"), move |name| {
                let paper = PAPER.iter().find(|paper| paper_preset(name) == Some(paper.preset));
                let perplexities = paper.and_then(|paper| paper.perplexities);
                perplexities.map_or_else(|| MISSING.to_string(), |numbers| format!("{:.2}", numbers[index]))
            })
        }));
        columns
    }

    fn accuracies(&self, shots: usize) -> String {
        let Some(first) = self.rows.first() else { return String::new() };
        let asked: Vec<&str> =
            BENCHMARK_ORDER.into_iter().filter(|task| find(first, task, shots).is_some()).collect();
        if asked.is_empty() {
            return String::new();
        }
        let mut out = String::new();
        let mut titles = vec![format!("accuracy, {shots}-shot")];
        titles.extend(asked.iter().map(|task| {
            let benchmark =
                BENCHMARKS.iter().find(|benchmark| benchmark.name == *task).expect("a known benchmark");
            format!("{}{}", benchmark.title, if benchmark.normalised { "*" } else { "" })
        }));
        titles.extend(["average", "paper: average"].map(String::from));
        table_head(&mut out, &titles);
        let shown = |row: &RowResult<LanguageExperiment>, task: &str| {
            find(row, task, shots).map_or(f64::NAN, |b| b.shown().mean)
        };
        for name in self.names() {
            let mut cells = vec![name.to_string()];
            cells.extend(
                asked.iter().map(|task| format!("{:.1}", 100.0 * self.spread(name, |row| shown(row, task)).mean)),
            );
            let average = |row: &RowResult<LanguageExperiment>| {
                asked.iter().map(|task| shown(row, task)).sum::<f64>() / asked.len() as f64
            };
            cells.push(self.spread(name, average).percent());
            let paper = PAPER
                .iter()
                .find(|paper| paper_preset(name) == Some(paper.preset) && asked.len() == BENCHMARK_ORDER.len());
            cells.push(match (paper, shots) {
                (Some(paper), 0) => format!("{:.1}", PaperLanguage::average(&paper.zero_shot)),
                (Some(paper), 1) => format!("{:.1}", PaperLanguage::average(&paper.one_shot)),
                _ => MISSING.into(),
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
        // The largest standard errors of all runs. That of the average is the root of the sum of their squares, divided
        // by the number of benchmarks.
        let error = |task: &str| {
            let found = self.rows.iter().filter_map(|row| find(row, task, shots));
            found.map(|found| found.shown().stderr).fold(0.0, f64::max)
        };
        let errors: Vec<f64> = asked.iter().map(|task| error(task)).collect();
        let average_error = errors.iter().map(|error| error * error).sum::<f64>().sqrt() / errors.len() as f64;
        let mut cells = vec!["*standard error of one run*".to_string()];
        cells.extend(errors.iter().chain([&average_error]).map(|error| format!("{:.1}", 100.0 * error)));
        cells.push(String::new());
        table_line(&mut out, &cells);
        out
    }

    /// Which differences in validation perplexity are significant, in words. Two means over `n` seeds differ
    /// significantly if their logarithms are more than `t √(2 s²/n)` apart, with `s²` pooled over all rows.
    fn significance(&self) -> String {
        let seeds = self.seed_counts();
        let loss = |row: &RowResult<LanguageExperiment>| {
            row.measured.texts.first().map_or(f64::NAN, |text| text.score.token_perplexity().ln())
        };
        let mut rows: Vec<(&str, Spread)> =
            self.names().into_iter().map(|name| (name, self.spread(name, loss))).collect();
        if rows.is_empty() {
            return String::new();
        }
        if seeds.1 < 2 {
            return "One seed: differences may be due to chance.\n".into();
        }
        let means = format!("Means over {}; ± is the standard deviation over them.", seeds_in_words(seeds));
        if rows.len() < 2 {
            return means + "\n";
        }
        // The row with the fewest seeds determines the threshold, so that it holds for all.
        let (seeds, _) = seeds;
        if seeds < 2 {
            return means + " Some rows have one seed only: differences may be due to chance.\n";
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
            "{means} The validation perplexities of two rows differ significantly if they are more than {:.1}% apart (95% \
             confidence, variance pooled over rows, no correction for the number of pairs): {order}, where ≈ joins neighbours \
             that do not differ significantly.\n",
            100.0 * (apart.exp() - 1.0)
        )
    }

    fn notes(&self) -> String {
        let Some(first) = self.rows.first() else { return String::new() };
        let questions: Vec<String> = first
            .measured
            .benchmarks
            .iter()
            .filter(|benchmark| benchmark.shots == first.measured.benchmarks[0].shots)
            .map(|benchmark| format!("{} {}", benchmark.name, thousands(benchmark.items as u64)))
            .collect();
        let texts: Vec<String> = first
            .measured
            .texts
            .iter()
            .map(|text| {
                let joined = text.detokenizer.map_or(String::new(), |_| " (detokenized, page by page)".into());
                format!("{} {} tokens{joined}", title(text), thousands(text.score.tokens as u64))
            })
            .collect();
        format!(
            "Scale `{}`: all rows trained on {} tokens, {}. {}. [Validation during training](curves.svg).\n\n\
             ```console\n$ {}\n```\n\n\
             The checkpoint that was best on a part of the validation text during training is evaluated. Texts are read in \
             windows of the length of training: {}. Questions of each benchmark, spread over its file: {}; the standard errors \
             are the largest of all runs. * is `acc_norm`, the others are `acc`, as defined by lm-evaluation-harness. The \
             paper's models have 124M to 130M parameters and were trained on 49.2 billion tokens of FineWeb-Edu: compare the \
             order of its rows with these, not the values.\n\n\
             The configuration of the first row; the others differ in the seed{} and in what their names say:\n\n```toml\n{}```\n",
            self.scale,
            thousands(first.training.tokens as u64),
            self.cost(),
            self.machines(),
            self.command,
            texts.join(", "),
            if questions.is_empty() { "none asked".into() } else { questions.join(", ") },
            if self.search.is_some() { ", in the values that were searched for" } else { "" },
            self.config,
        )
    }

    /// Validation perplexity during training, the mean over seeds, as an SVG file.
    fn curves(&self) -> String {
        let line = |name: &str| {
            let rows = self.seeds_of(name);
            let points = rows[0].measured.curve.iter().enumerate().map(|(index, (tokens, _))| {
                let losses: Vec<f64> =
                    rows.iter().filter_map(|row| row.measured.curve.get(index)).map(|(_, l)| *l).collect();
                (*tokens as f64 / 1e6, Spread::of(&losses).mean.exp())
            });
            NamedLine { name: name.to_string(), points: points.filter(|(tokens, _)| *tokens > 0.0).collect() }
        };
        let lines: Vec<NamedLine> = self.names().into_iter().map(line).collect();
        let title = "Validation perplexity per token during training";
        fitted_chart(title, "million training tokens", [Fit::Zero, Fit::Tight], &lines)
    }
}

fn find<'a>(row: &'a RowResult<LanguageExperiment>, name: &str, shots: usize) -> Option<&'a BenchmarkResult> {
    row.measured.benchmarks.iter().find(|found| found.name == name && found.shots == shots)
}

/// The 97.5% quantile of Student's t distribution: tabulated for few degrees of freedom, else by its expansion around
/// the normal distribution.
fn student(freedom: usize) -> f64 {
    const FEW: [f64; 5] = [12.706, 4.303, 3.182, 2.776, 2.571];
    if let Some(quantile) = FEW.get(freedom.wrapping_sub(1)) {
        return *quantile;
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
    use falcon_lm::data::Detokenizer;
    use falcon_lm::evaluate::Estimate;

    use crate::reproduce::{SearchPoint, SearchRecord, StateSize, Trial, choose};

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
            training: LanguageTraining { tokens: 2_000_000 },
            seconds: 60.0,
            threads: 1,
            measured: LanguageMeasured {
                curve: vec![(0, 8.0), (1_000_000, loss + 1.0), (2_000_000, loss)],
                texts: vec![text("a.valid.txt", 100.0 * loss), text("wiki.txt.xz", 80.0 * 3.0)],
                benchmarks: [0, 1]
                    .into_iter()
                    .flat_map(|shots| {
                        ["lambada_openai", "piqa", "hellaswag"].map(|name| benchmark(name, shots, 0.4))
                    })
                    .collect(),
            },
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
            settings: LanguageSettings {},
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

    /// Fields that were added to records later are optional: a record without them is read, and is written without
    /// them.
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
    fn incomplete_records_are_marked() {
        let part = LanguageRecord { planned: Some(9), ..record(2) };
        let mark = "**Partial: 6 of 9 runs are done.**\n\n| perplexity";
        assert!(part.table().starts_with(mark) && part.summary().starts_with(mark), "{}", part.table());
        assert!(part.files()[0].1.starts_with(&format!("# Language models: small\n\n{mark}")));
        assert_eq!(record(2).partial_mark(), "");
    }

    /// A record is replaced by one of another command, even if that has fewer rows.
    #[test]
    fn a_partial_record_does_not_replace_a_larger_one() {
        let folder = tempfile::tempdir().unwrap();
        let recorded = || LanguageRecord::read(folder.path()).unwrap().rows.len();
        let part = |rows: usize, command: &str| {
            let mut part = LanguageRecord { planned: Some(9), command: command.into(), ..record(3) };
            part.rows.truncate(rows);
            part.write_partial(folder.path()).unwrap();
        };
        part(2, "this");
        assert_eq!(recorded(), 2);
        part(1, "this");
        assert_eq!(recorded(), 2);
        part(3, "this");
        assert_eq!(recorded(), 3);
        part(1, "another");
        assert_eq!(recorded(), 1);
    }

    #[test]
    fn the_search_is_shown() {
        let trial = |lr: f64, loss: f64| Trial {
            point: SearchPoint { lr, initializer_range: 0.02 },
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
            "differ in the seed, in the values that were searched for and in what their names say",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        let summary = record.summary();
        assert!(!summary.contains("learning rate") && summary.contains("| state |"), "{summary}");
    }

    /// By hand: three seeds 0.002 apart have s = 0.002 in every row, so rows differ beyond 2.447 · 0.002 · √(2/3) =
    /// 0.0040.
    #[test]
    fn only_significant_differences_are_reported() {
        let table = record(3).table();
        assert!(table.contains("more than 0.4% apart"), "{table}");
        assert!(table.contains("falcon-1a.3 ≈ falcon-3a.3 < retnet"), "{table}");
        assert!(table.contains("66.82 ± 0.13"), "{table}");
        let mut fewer = record(3);
        fewer.rows.remove(0);
        assert!(fewer.table().contains("Means over 2 to 3 seeds;"), "{}", fewer.table());
        fewer.rows.remove(0);
        let some = "Means over 1 to 3 seeds; ± is the standard deviation over them. Some rows have one seed only:";
        assert!(fewer.table().contains(some), "{}", fewer.table());
        let mut one = record(3);
        one.rows.truncate(3);
        assert!(one.table().ends_with("Means over 3 seeds; ± is the standard deviation over them.\n"));
    }

    #[test]
    fn quantiles_are_those_of_students_t_distribution() {
        for (freedom, exact) in [(1, 12.706), (5, 2.571), (6, 2.447), (10, 2.228), (20, 2.086), (1 << 30, 1.96)] {
            assert!((student(freedom) / exact - 1.0).abs() < 1e-3, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn a_written_record_can_be_read() {
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
