//! Tests of whole pages, made from synthetic runs.

use std::collections::BTreeMap;
use std::path::Path;

use super::{ReportError, RunRecord, page};
use falcon_lm::scores::Scores;
use falcon_lm::train::{EvalRecord, GatesRecord, METRICS_FILE, Record, StartRecord, StopRecord, TrainRecord};

fn train(step: u64) -> Record {
    Record::Train(TrainRecord {
        step,
        loss: 2.0 / (step as f64).sqrt(),
        accuracy: 1.0 - 1.0 / step as f64,
        lr: 1e-3,
        grad_norm: 3.0 / step as f64,
        tokens: 1000,
        seconds: 0.5,
        task: BTreeMap::from([("width".into(), (step / 10) as f64)]),
    })
}

fn eval(step: u64, split: &str, widths: std::ops::Range<usize>) -> Record {
    let scores = Scores { loss: 1.0 / step as f64, accuracy: 0.5, exact: 0.25, tokens: 400, sequences: 40 };
    let groups = widths.map(|width| (format!("width {width}"), scores)).collect();
    Record::Eval(EvalRecord {
        step,
        split: split.into(),
        total: scores,
        groups,
        about: BTreeMap::new(),
        score: None,
        seconds: 0.1,
    })
}

fn gates(step: u64) -> Record {
    let layer = BTreeMap::from([("beta".into(), 0.5), ("gamma".into(), 0.99)]);
    Record::Gates(GatesRecord { step, layers: vec![layer; 2] })
}

fn start(step: u64) -> Record {
    Record::Start(StartRecord { step, version: "0.1.0".into(), threads: 2, parameters: 412_160, machine: None })
}

fn stop(step: u64, reason: &str) -> Record {
    Record::Stop(StopRecord { step, reason: reason.into(), peak_memory: Some(300 << 20) })
}

/// A run with records of every kind.
fn run(name: &str, steps: u64) -> RunRecord {
    let mut records = vec![start(0)];
    for step in 1..=steps {
        records.push(train(step));
        if step.is_multiple_of(10) {
            records.extend([eval(step, "validation", 1..9), eval(step, "beyond", 9..13), gates(step)]);
        }
    }
    records.push(stop(steps, "finished"));
    let config = format!(
        "[model]\npreset = \"falcon-1a.3\"\n[task]\nname = \"addition\"\n[train]\nsteps = {steps}\nseed = 7\n"
    );
    let (folder, config) = (Path::new("runs").join(name), config.parse().unwrap());
    RunRecord { name: name.into(), folder, config, records, damage: None }
}

fn figures(page: &str) -> Vec<&str> {
    page.split("<figure>").skip(1).map(|rest| rest.split("</figure>").next().unwrap()).collect()
}

fn assert_no_bad_number(page: &str) {
    let drawn = page.split("<main>").nth(1).unwrap().split("<script>").next().unwrap();
    assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
}

#[test]
fn every_chart_has_a_line_for_every_run() {
    for count in [1, 5, 20] {
        let runs: Vec<_> = (0..count).map(|index| run(&format!("run-{index}"), 100 + index)).collect();
        let page = page(&runs);
        let figures = figures(&page);
        // Six training charts, three charts for each of two splits, two charts by group, and one chart for each of two
        // gates in each of two layers.
        assert_eq!(figures.len(), 6 + 6 + 2 + 4);
        for figure in figures {
            for run in 0..count {
                assert!(figure.contains(&format!("<path class=\"line r{run}\" d=\"M")), "{figure}");
            }
        }
        assert_no_bad_number(&page);
        assert_eq!(page.contains(">train.steps<"), count > 1);
        assert!(!page.contains(">train.seed<"));
    }
}

/// A run on text with an evaluation for each of these losses.
fn text_run(name: &str, valid: &str, losses: &[f64]) -> RunRecord {
    let mut run = run(name, 0);
    let config = format!("[task]\nname = \"text\"\ntrain = \"a.txt\"\nvalid = {valid:?}\ntokenizer = \"bytes\"\n");
    run.config = config.parse().unwrap();
    for (index, loss) in losses.iter().enumerate() {
        let Record::Eval(record) = eval(10 * (index as u64 + 1), "validation", 0..0) else { unreachable!() };
        // Assume 1.5 bytes per token.
        let about = [("token perplexity", loss.exp()), ("byte perplexity", (loss * 2.0 / 3.0).exp())];
        let about = about.map(|(name, value)| (name.to_string(), value)).into();
        let total = Scores { loss: *loss, exact: 0.0, ..record.total };
        run.records.push(Record::Eval(EvalRecord { total, about, ..record }));
    }
    run
}

#[test]
fn text_runs_show_perplexity_and_bits_per_byte_and_no_empty_columns() {
    let page = page(&[text_run("book", "v.txt", &[2.0, 1.5])]);
    let titles: Vec<&str> = figures(&page)
        .iter()
        .map(|f| f.split("<figcaption>").nth(1).unwrap().split(" <span>").next().unwrap())
        .collect();
    let expected = ["loss", "perplexity", "bits per byte", "accuracy"].map(|name| format!("Validation {name}"));
    assert_eq!(titles, expected);
    // e^1.5 = 4.482 and 1.5 · 2/3 / ln 2 = 1.443.
    assert!(page.contains("<td>4.482</td><td>1.443</td>"), "{page}");
    assert!(page.contains("<th>bits per byte</th>") && !page.contains("<th>exact</th>"), "{page}");
    // Values that no run has recorded have no column.
    let without = RunRecord { records: vec![], ..run("begun", 0) };
    assert!(!super::page(&[without]).contains("<th>tokens/s</th>"));
}

/// Losses on different texts or tasks are not compared.
#[test]
fn runs_are_compared_only_if_evaluated_alike() {
    let runs = [
        text_run("one", "v.txt", &[3.0, 2.5]),
        run("sums", 20),
        text_run("other text", "", &[1.5, 1.25]),
        text_run("two", "v.txt", &[3.0, 2.0]),
    ];
    let page = page(&runs);
    let parts: Vec<&str> = page.split("<h2 class=\"part\">").skip(1).collect();
    let titles: Vec<&str> = parts.iter().map(|part| part.split('<').next().unwrap()).collect();
    assert_eq!(titles, ["Text: valid = v.txt", "Addition", "Text: valid = none"]);
    // Only the better of the two comparable runs is in bold.
    assert!(parts[0].contains("<b>2.000</b>") && !parts[0].contains("<b>2.500</b>"), "{}", parts[0]);
    assert!(!page.contains("<b>1.250</b>") && !parts[1].contains("<td><b>"), "{page}");
    // Every run keeps its colour, and is drawn only with comparable runs.
    let drawn =
        |part: &str, run: usize| figures(part).iter().all(|f| f.contains(&format!("<path class=\"line r{run}\"")));
    assert!(parts.iter().all(|part| figures(part).len() >= 4));
    let absent = |part: &str, run: usize| figures(part).iter().all(|f| !f.contains(&format!("r{run}\"")));
    assert!(drawn(parts[0], 0) && drawn(parts[0], 3) && absent(parts[0], 1) && absent(parts[0], 2));
    assert!(drawn(parts[1], 1) && absent(parts[1], 0) && drawn(parts[2], 2) && absent(parts[2], 3));
    // Runs that differ in training but not in evaluation are comparable.
    let mut sparse = run("sparse", 20);
    let Some(toml::Value::Table(task)) = sparse.config.get_mut("task") else { unreachable!() };
    task.insert("sparse".into(), 0.5.into());
    assert!(!super::page(&[run("sums", 20), sparse]).contains("class=\"part\""));
}

/// A single evaluation is not charted.
#[test]
fn a_single_evaluation_is_in_the_summary_alone() {
    let mut once = text_run("once", "v.txt", &[2.0]);
    once.records.push(gates(10));
    let page = page(&[once]);
    assert!(figures(&page).is_empty() && !page.contains("<h2>Gates</h2>"), "{page}");
    assert!(page.contains("Evaluated once") && page.contains("<td>7.389</td>"), "{page}");
}

/// Different tokenizers may have the same name.
#[test]
fn tokenizers_are_compared_by_content() {
    let folder = tempfile::tempdir().unwrap();
    let run_with = |name: &str, tokenizer: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
        RunRecord { folder, ..text_run(name, "v.txt", &[2.0]) }
    };
    let [one, same, other] =
        [("one", "{}"), ("same", "{}"), ("other", "[]")].map(|(name, json)| run_with(name, json));
    assert!(!page(&[one.clone(), same.clone()]).contains("class=\"part\""));
    assert_eq!(page(&[one, same, other]).matches("<h2 class=\"part\">Text: tokenizer = bytes (").count(), 2);
}

#[test]
fn the_best_evaluation_has_its_own_chart_if_it_is_not_the_last() {
    let mut run = run("worse", 100);
    let Record::Eval(last) = eval(1, "validation", 1..9) else { unreachable!() };
    run.records.push(Record::Eval(EvalRecord { step: 101, ..last }));
    let page = page(&[run]);
    assert_eq!(page.matches("Accuracy by width").count(), 2 * 2);
    assert!(page.contains("best evaluation") && !page.contains("also its best"));
}

/// The best evaluation is the one with the highest score, even if another has a lower loss.
#[test]
fn the_task_score_decides_which_evaluation_is_best() {
    let mut run = run("scored", 0);
    for (step, score) in [(10, 0.9), (20, 0.7)] {
        let Record::Eval(record) = eval(step, "validation", 1..2) else { unreachable!() };
        run.records.push(Record::Eval(EvalRecord { score: Some(score), ..record }));
    }
    assert_eq!(run.best_validation().unwrap().step, 10);
    run.records.iter_mut().for_each(|record| {
        if let Record::Eval(record) = record {
            record.score = None
        }
    });
    assert_eq!(run.best_validation().unwrap().step, 20, "the lowest loss");
}

#[test]
fn a_long_run_does_not_make_a_long_page() {
    let page = page(&[run("long", 100_000)]);
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn runs_without_records_or_evaluations_are_shown() {
    let with = |name: &str, records| RunRecord { records, ..run(name, 0) };
    let begun = with("begun", vec![]);
    let one_step = with("one step", vec![start(0), train(1)]);
    let bad = TrainRecord { loss: f64::NAN, grad_norm: f64::INFINITY, seconds: 0.0, ..first_step() };
    let failed = with("failed", vec![start(0), Record::Train(bad), stop(1, "the loss is <not> a number")]);
    for runs in [vec![], vec![begun.clone()], vec![begun, one_step, failed]] {
        let page = page(&runs);
        assert_no_bad_number(&page);
        assert!(!page.contains("<h2>Gates</h2>"));
        if runs.is_empty() {
            assert!(page.contains("No runs.") && figures(&page).is_empty());
            continue;
        }
        assert!(page.contains("<p class=\"none\">No evaluation yet.</p>"));
        if runs.len() == 3 {
            assert!(page.contains("the loss is &lt;not&gt; a number") && page.contains(">running<"));
        } else {
            assert!(page.contains("No training step yet.") && figures(&page).is_empty());
        }
    }
}

fn first_step() -> TrainRecord {
    let Record::Train(record) = train(1) else { unreachable!() };
    record
}

#[test]
fn a_resumed_run_is_shown_as_running() {
    let mut run = run("again", 50);
    run.records.push(start(50));
    let page = page(&[run]);
    assert!(page.contains(">running<") && !page.contains(">finished<"));
    assert!(page.contains("resumed at step 50"));
}

#[test]
fn labels_are_escaped_and_distinct() {
    let at = |folder: &str| {
        let folder = Path::new(folder);
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        RunRecord { folder: folder.into(), ..run(&name, 20) }
    };
    let runs = ["/x/a/run", "/x/b/run", "/x/b/other", "/x/c/<b>"].map(at);
    assert_eq!(super::run::labels(&runs), ["a/run", "b/run", "other", "<b>"]);
    let page = page(&runs);
    assert!(page.contains("<b>&lt;b&gt;</b>") && !page.contains("<b><b>"));
    let deeper = ["/x/a/k/run", "/x/b/k/run", "/k/run"].map(at);
    assert_eq!(super::run::labels(&deeper), ["a/k/run", "b/k/run", "k/run"]);
    let same = ["/x/run", "/x/run (2)", "/x/run", "/x/run"].map(at);
    assert_eq!(super::run::labels(&same), ["run", "run (2)", "run (3)", "run (4)"]);
}

#[test]
fn read_errors_name_the_offending_file() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("first");
    let error = || RunRecord::read(&folder).unwrap_err().to_string();
    assert!(matches!(RunRecord::read(&folder), Err(ReportError::NotARun { .. })));
    std::fs::create_dir(&folder).unwrap();
    assert!(error().contains("first: not a run"), "{}", error());
    let (config, metrics) = (folder.join("config.toml"), folder.join(METRICS_FILE));
    std::fs::write(&config, "[model]\npreset = \n").unwrap();
    assert!(error().contains("config.toml") && error().contains("line 2"), "{}", error());
    std::fs::write(&config, "[model]\npreset = \"retnet\"\n").unwrap();
    assert_eq!(RunRecord::read(&folder).unwrap().records, [], "a run that has just started has no records yet");
    // A line that is no record is left out, so that it does not take the others with it.
    let good = serde_json::to_string(&train(1)).unwrap();
    std::fs::write(&metrics, format!("{good}\n{{}}\n{good}\n")).unwrap();
    let run = RunRecord::read(&folder).unwrap();
    assert_eq!(run.records, [train(1), train(1)]);
    let damage = run.damage.unwrap();
    assert!(damage.contains(METRICS_FILE) && damage.contains("line 2"), "{damage}");
    std::fs::write(&metrics, "").unwrap();
    let run = RunRecord::read(&folder).unwrap();
    assert_eq!((run.name.as_str(), run.records.len()), ("first", 0));
    assert_eq!(run.config["model"]["preset"].as_str(), Some("retnet"));
    std::fs::remove_file(&config).unwrap();
    assert!(error().contains("config.toml"), "{}", error());
}
