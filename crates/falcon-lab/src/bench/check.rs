//! Comparison of this version's speed with a recorded one: `falcon bench --check` and `--record`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use falcon_lm::machine;
use falcon_lm::monitor::Monitor;
use serde_json::json;

use super::error::BenchError;
use super::ratios::{RatioRow, all_rows, instructions, measure};
use super::recorded::{Compared, RatioFile, RatioFileError, Verdict, compare};
use super::schedule::median;
use super::table::BenchTable;
use crate::tables::TextTable;

/// A row is compared again, up to this number of times in all, if it seems to have fallen; each is recorded from as
/// many measurements.
const ATTEMPTS: usize = 3;

/// What to measure, and what to compare it with.
#[derive(Clone, Debug)]
pub struct RatioOptions {
    /// The file of recorded ratios.
    pub file: PathBuf,
    /// Only rows whose names contain one of these texts; all rows if there is none.
    pub rows: Vec<String>,
    /// The number of rounds, after one to warm up.
    pub repeats: u16,
}

/// The result of a comparison.
#[derive(Debug)]
pub struct RatioCheck {
    /// All rows.
    pub table: BenchTable,
    /// The number of rows that could be compared.
    pub compared: usize,
    /// The names of the rows that fell.
    pub fallen: Vec<String>,
    /// What a reader should know about the comparison, such as that it was recorded on another machine.
    pub notes: Vec<String>,
}

/// Measures ratios, and compares them with those recorded for the same vector instructions. A ratio fell if it is
/// smaller by more than `tolerance` in three measurements, of which the best counts.
pub fn check_ratios(
    options: &RatioOptions,
    tolerance: f64,
    monitor: &mut dyn Monitor,
) -> Result<RatioCheck, BenchError> {
    let (file, rows) = (RatioFile::read(&options.file)?, options.rows()?);
    let instructions = instructions();
    let Some(section) = file.section(instructions).filter(|section| !section.ratios.is_empty()) else {
        let (path, known) = (options.file.clone(), file.known());
        return Err(BenchError::NotRecorded { path, instructions, known });
    };
    // What was recorded of other rows than those asked for is not compared.
    let recorded: BTreeMap<String, f64> = section
        .ratios
        .iter()
        .filter(|(row, _)| options.asks_for(row))
        .map(|(row, ratio)| (row.clone(), *ratio))
        .collect();
    if !rows.iter().any(|row| recorded.contains_key(&row.name)) {
        let known = section.ratios.keys().map(|row| format!("\n  {row}")).collect();
        return Err(BenchError::Rows { asked: options.rows.join(", "), known });
    }
    let order: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    monitor.stage("timings");
    let mut measured = measure(&rows, options.repeats.into(), monitor)?;
    let mut compared = compare(&recorded, &measured, &order, tolerance);
    for _ in 1..ATTEMPTS {
        let fell = |row: &&RatioRow| compared.iter().any(|c| c.row == row.name && c.verdict == Verdict::Fell);
        let again: Vec<RatioRow> = rows.iter().filter(fell).cloned().collect();
        if again.is_empty() {
            break;
        }
        monitor.stage(&format!("timings of {} that fell, again", rows_of(again.len())));
        for (row, ratio) in measure(&again, options.repeats.into(), monitor)? {
            measured.entry(row).and_modify(|best| *best = best.max(ratio)).or_insert(ratio);
        }
        compared = compare(&recorded, &measured, &order, tolerance);
    }
    let named = |verdict: Verdict| compared.iter().filter(move |row| row.verdict == verdict).map(|row| &row.row);
    let mut notes = Vec::new();
    let machine = machine::describe();
    if section.machine != machine {
        notes.push(format!(
            "recorded on another machine ({}, and this is {machine}), where ratios may differ",
            section.machine
        ));
    }
    for (verdict, what) in [
        (Verdict::NotRecorded, "not compared, because the file does not have it"),
        (Verdict::NotMeasured, "not compared, because this version does not measure it"),
    ] {
        notes.extend(named(verdict).map(|row| format!("{row:?} is {what}; record the file again")));
    }
    let fallen: Vec<String> = named(Verdict::Fell).cloned().collect();
    let kept = named(Verdict::Kept).count();
    let table = comparison(instructions, &compared);
    Ok(RatioCheck { table, compared: kept + fallen.len(), fallen, notes })
}

/// Measures ratios, and writes them to the file's section of this machine's vector instructions: the median of three
/// measurements. Other sections, and other rows if only some are asked for, stay as they are.
pub fn record_ratios(options: &RatioOptions, monitor: &mut dyn Monitor) -> Result<BenchTable, BenchError> {
    let rows = options.rows()?;
    // A file of something else is refused before anything is measured.
    let mut file = if options.file.exists() { RatioFile::read(&options.file)? } else { RatioFile::empty() };
    let mut attempts: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for attempt in 1..=ATTEMPTS {
        monitor.stage(&format!("timings, {attempt} of {ATTEMPTS}"));
        for (row, ratio) in measure(&rows, options.repeats.into(), monitor)? {
            attempts.entry(row).or_default().push(ratio);
        }
    }
    // Three digits say all that is known.
    let rounded = |ratio: f64| (ratio * 1e3).round().max(1.0) / 1e3;
    let measured: BTreeMap<String, f64> =
        attempts.into_iter().map(|(row, ratios)| (row, rounded(median(ratios)))).collect();
    let instructions = instructions();
    let section = file.section_mut(instructions);
    if options.rows.is_empty() {
        // Rows that this version does not measure go.
        section.ratios.clear();
    }
    (section.machine, section.version) = (machine::describe(), env!("CARGO_PKG_VERSION").into());
    section.ratios.extend(measured.clone());
    file.write(&options.file)?;
    let mut text = TextTable::new(&["speed", "ratio"]);
    let mut values = Vec::new();
    for (row, ratio) in rows.iter().filter_map(|row| Some((&row.name, measured.get(&row.name)?))) {
        text.row(vec![row.clone(), format!("{ratio:.3}")]);
        values.push(json!({ "table": "recorded", "instructions": instructions, "row": row, "recorded": ratio }));
    }
    Ok(BenchTable { title: title(instructions, "recorded"), text, rows: values })
}

impl RatioOptions {
    fn asks_for(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|text| row.contains(text))
    }

    fn rows(&self) -> Result<Vec<RatioRow>, BenchError> {
        let (rows, rest): (Vec<_>, Vec<_>) = all_rows().into_iter().partition(|row| self.asks_for(&row.name));
        if rows.is_empty() {
            let known = rest.into_iter().map(|row| format!("\n  {}", row.name)).collect();
            return Err(BenchError::Rows { asked: self.rows.join(", "), known });
        }
        Ok(rows)
    }
}

/// A number of rows, in words.
fn rows_of(count: usize) -> String {
    if count == 1 { "1 row".into() } else { format!("{count} rows") }
}

fn title(instructions: &str, what: &str) -> String {
    format!("Speed relative to this machine's, {instructions}, one thread: {what}")
}

fn comparison(instructions: &str, compared: &[Compared]) -> BenchTable {
    let mut text = TextTable::new(&["speed", "recorded", "measured", "change", ""]);
    let mut rows = Vec::new();
    for row in compared {
        let shown = |ratio: Option<f64>| ratio.map_or("–".into(), |ratio| format!("{ratio:.3}"));
        let change = row.change().map_or(String::new(), |change| format!("{:+.0}%", 100.0 * change));
        let verdict = if row.verdict == Verdict::Kept { String::new() } else { row.verdict.to_string() };
        text.row(vec![row.row.clone(), shown(row.recorded), shown(row.measured), change, verdict]);
        rows.push(json!({
            "table": "ratios", "instructions": instructions, "row": row.row, "recorded": row.recorded,
            "measured": row.measured, "change": row.change(), "verdict": row.verdict.to_string(),
        }));
    }
    BenchTable { title: title(instructions, "recorded and measured"), text, rows }
}

impl From<RatioFileError> for BenchError {
    fn from(error: RatioFileError) -> Self {
        Self::Ratios(Box::new(error))
    }
}
