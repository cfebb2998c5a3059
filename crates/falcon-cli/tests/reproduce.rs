//! `falcon reproduce`: the files it writes, and the work it does not repeat. How well models learn is not tested here.

use std::fs;
use std::path::Path;
use std::process::Command;

use falcon_lab::reproduce::addition::{AdditionExperiment, AdditionRecord};
use falcon_lab::reproduce::language::{LanguageExperiment, LanguageRecord};
use falcon_lab::reproduce::{Experiment, ExperimentRecord, RESULTS_FILE};
use falcon_lm::config::RunConfig;
use falcon_lm::data::Detokenizer;
use falcon_lm::evaluate::BENCHMARKS;
use tempfile::TempDir;

mod experiments;

use experiments::{addition, corpus, interrupt, lm, stdout_of};

/// The cells of a line, without padding.
fn cells(line: &str) -> String {
    line.split('|').map(str::trim).collect::<Vec<_>>().join("|")
}

#[test]
fn rows_are_run_once_and_recorded() {
    let folder = TempDir::new().unwrap();
    let args = ["--models", "falcon-1a.3,retnet", "--seeds", "2"];
    let first = stdout_of(&addition(&args, folder.path()));
    let lines: Vec<String> = first.lines().map(cells).collect();
    assert!(lines.iter().any(|line| line.starts_with("|falcon-1a.3|")), "{first}");
    assert!(lines.iter().any(|line| line.starts_with("|retnet|") && line.ends_with("|99.7|82.9|")), "{first}");
    let widths: Vec<usize> = first.lines().take(4).map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "the columns are not aligned:\n{first}");
    let record = AdditionRecord::read(folder.path()).unwrap();
    let rows: Vec<(&str, u64)> = record.rows.iter().map(|row| (row.name.as_str(), row.seed)).collect();
    assert_eq!(rows, [("falcon-1a.3", 0), ("falcon-1a.3", 1), ("retnet", 0), ("retnet", 1)]);
    assert!(
        record.rows.iter().all(|row| row.measured.widths.len() == 3 && row.seconds > 0.0 && row.best_step <= 12)
    );
    assert!(record.rows.iter().all(|row| row.training.exact_validation.is_some()));
    assert!(record.command.contains("--models falcon-1a.3,retnet --seeds 2 --steps 12"), "{}", record.command);
    for file in ["table.md", "curves.svg", "digits.svg", "report.html", "retnet-s1/config.toml"] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
    // A second time, the same numbers come from the same runs.
    let metrics = folder.path().join("retnet-s0/metrics.jsonl");
    let before = fs::read(&metrics).unwrap();
    assert_eq!(stdout_of(&addition(&args, folder.path())), first);
    assert_eq!(fs::read(&metrics).unwrap(), before);
    // Other rows in the same folder, and the table made again from the record.
    let more =
        stdout_of(&addition(&["--models", "falcon-1a.3", "--seeds", "1", "--ablation", "timing"], folder.path()));
    assert_eq!(more.matches("| falcon-1a.3 ").count(), 4, "{more}");
    let from = Command::new(env!("CARGO_BIN_EXE_falcon"))
        .args(["reproduce", "addition", "--from"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(more.starts_with(&stdout_of(&from)), "{more}");
}

/// Sums can also be written in ways in which their lengths vary.
#[test]
fn sums_of_unequal_lengths_are_learnt_and_measured() {
    let folder = TempDir::new().unwrap();
    let options = ["order=sum-reversed", "operands=independent", "leading_zeros=false"];
    let options = options.map(|option| format!("--set=task.{option}"));
    let args = [&["--models", "transformer,falcon-1a.3"][..], &options.each_ref().map(String::as_str)].concat();
    stdout_of(&addition(&args, folder.path()));
    let record = AdditionRecord::read(folder.path()).unwrap();
    for line in ["order = \"sum-reversed\"", "operands = \"independent\"", "leading_zeros = false"] {
        assert!(record.config.contains(line), "{line}: {}", record.config);
    }
    for row in &record.rows {
        // The sum of two numbers of n digits has up to n + 1 digits, whatever the options.
        assert_eq!(
            row.measured.widths.iter().map(|width| width.digits.len()).collect::<Vec<_>>(),
            [2, 3, 4],
            "{}",
            row.name
        );
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_jobs() {
    let results = ["1", "3"].map(|jobs| {
        let folder = TempDir::new().unwrap();
        let args = ["--models", "falcon-1a.3,retnet", "--seeds", "2", "--threads", "3", "--jobs", jobs];
        stdout_of(&addition(&args, folder.path()));
        let mut rows = AdditionRecord::read(folder.path()).unwrap().rows;
        let threads = rows.iter_mut().map(|row| std::mem::take(&mut row.threads)).collect::<Vec<_>>();
        assert_eq!(threads, [3 / jobs.parse::<usize>().unwrap(); 4]);
        rows.iter_mut().for_each(|row| row.seconds = 0.0);
        rows
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn wrong_rows_are_refused_before_anything_is_trained() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out");
    let ran = addition(&["--models", "retnet,falcon-7"], &output);
    assert!(!ran.status.success() && !output.exists());
    assert!(String::from_utf8_lossy(&ran.stderr).contains("falcon-7: model: unknown preset \"falcon-7\""));
    let large = addition(&["--models", "retnet,mamba2", "--set=train.batch=1048576", "--jobs", "2"], &output);
    let stderr = String::from_utf8_lossy(&large.stderr).into_owned();
    assert!(!large.status.success() && !output.exists(), "{stderr}");
    assert!(
        stderr.contains("2 runs at the same time need about ") && stderr.contains("--no-memory-check"),
        "{stderr}"
    );
    let transformer = addition(&["--models", "transformer", "--ablation", "timing"], &output);
    assert!(
        String::from_utf8_lossy(&transformer.stderr)
            .contains("a Transformer has no memory whose timing could vary")
    );
    let none =
        Command::new(env!("CARGO_BIN_EXE_falcon")).args(["reproduce", "addition", "--from", "nowhere"]).output();
    assert!(String::from_utf8_lossy(&none.unwrap().stderr).contains("nowhere/results.json"));
}

/// Recorded tables and pictures are those that the program makes from their records.
fn check_recorded<E: Experiment>() {
    let experiment = E::NAME;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results").join(experiment);
    for entry in fs::read_dir(&folder).unwrap() {
        let kept = entry.unwrap().path();
        let record = ExperimentRecord::<E>::read(&kept).unwrap();
        let again = TempDir::new().unwrap();
        record.write(again.path()).unwrap();
        for name in record.files().into_iter().map(|(name, _)| name).chain([RESULTS_FILE]) {
            let [kept, made] = [kept.as_path(), again.path()].map(|f| fs::read_to_string(f.join(name)).unwrap());
            assert_eq!(kept, made, "falcon reproduce {experiment} --from makes {name} of {folder:?} again");
        }
    }
}

#[test]
fn recorded_tables_and_pictures_are_up_to_date() {
    check_recorded::<AdditionExperiment>();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    for scale in ["quick", "small"] {
        let record = AdditionRecord::read(&root.join("results/addition").join(scale)).unwrap();
        assert_eq!(record.scale, scale);
        let command = format!("falcon reproduce addition --from results/addition/{scale} --into README.md");
        assert_eq!(record.put_into(&readme).unwrap(), readme, "{command}");
    }
    check_recorded::<LanguageExperiment>();
    let record = LanguageRecord::read(&root.join("results/lm/small")).unwrap();
    let command = "falcon reproduce lm --from results/lm/small --into README.md";
    assert_eq!(record.put_into(&readme).unwrap(), readme, "{command}");
}

#[test]
fn language_models_are_trained_once_and_measured_in_full() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    let models = ["--models", "retnet,falcon-1.3", "--tokenizer", "bytes", "--output", "out"];
    let few = stdout_of(&lm(&models, folder.path()));
    assert!(few.contains("| retnet ") && !few.contains("shot") && few.contains("One seed"), "{few}");
    // More evaluations of models that are trained already.
    let metrics = folder.path().join("out/retnet-s0/metrics.jsonl");
    let before = fs::read(&metrics).unwrap();
    let args = [models.as_slice(), &["--text", "wiki.txt", "--detokenize", "wikitext", "--data", "eval"]].concat();
    let shown = stdout_of(&lm(&args, folder.path()));
    assert_eq!(fs::read(&metrics).unwrap(), before);
    let all = fs::read_to_string(folder.path().join("out/table.md")).unwrap();
    assert!(
        all.contains("accuracy, 0-shot") && all.contains("accuracy, 1-shot") && all.contains("wiki, per word")
    );
    let record = LanguageRecord::read(&folder.path().join("out")).unwrap();
    assert_eq!(record.rows.len(), 2);
    for row in &record.rows {
        assert_eq!(
            (row.measured.texts.len(), row.measured.benchmarks.len(), row.training.tokens),
            (2, 2 * BENCHMARKS.len(), 12 * 2 * 16),
            "{}",
            row.name
        );
        // The whole validation text is evaluated, not just the part that is used during training.
        assert_eq!(row.measured.texts[0].score.bytes, fs::read(folder.path().join("valid.txt")).unwrap().len());
        // The other text is read as WikiText: a page of 1 + 3 + 100 words and an empty one, without the spaces around
        // line ends.
        let [plain, wiki] = [&row.measured.texts[0], &row.measured.texts[1]];
        assert_eq!((plain.detokenizer, wiki.detokenizer), (None, Some(Detokenizer::WikiText)));
        assert_eq!((wiki.score.words, wiki.score.bytes - wiki.score.tokens), (105, 3));
        assert_eq!(row.measured.curve.iter().map(|(tokens, _)| *tokens).collect::<Vec<_>>(), [192, 384]);
    }
    let command = &record.command;
    assert!(
        command.ends_with("--tokenizer bytes --text wiki.txt --detokenize wikitext --data eval")
            && command.contains("--train train.txt --valid valid.txt"),
        "{command}"
    );
    assert_eq!(stdout_of(&lm(&args, folder.path())), shown);
}

#[test]
fn a_tokenizer_is_learnt_where_none_is_given() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    let ran = lm(&["--models", "falcon-1a.3", "--output", "out", "--json"], folder.path());
    assert!(
        serde_json::from_str::<serde_json::Value>(&stdout_of(&ran)).unwrap()["rows"][0]["parameters"].is_u64()
    );
    assert!(folder.path().join("out/tokenizer.json").exists());
    let cost = lm(&["--models", "retnet", "--tokenizer", "out/tokenizer.json", "--estimate"], folder.path());
    let estimate = stdout_of(&cost);
    assert!(estimate.contains("retnet") && estimate.contains("days"), "{estimate}");
    let none = lm(&["--data", "nowhere", "--output", "other"], folder.path());
    assert!(String::from_utf8_lossy(&none.stderr).contains("nowhere/lambada_openai.jsonl"));
    let seen = lm(&["--text", "train.txt", "--output", "other"], folder.path());
    assert!(String::from_utf8_lossy(&seen.stderr).contains("train.txt is also in --train"));
    assert!(!folder.path().join("other").exists(), "both errors are found before anything is written");
    // The record does not have the path of the output folder.
    let record = LanguageRecord::read(&folder.path().join("out")).unwrap();
    assert!(record.config.contains("tokenizer = \"tokenizer.json\""), "{}", record.config);
    // A tokenizer is not used for another text.
    fs::write(folder.path().join("train.txt"), "snow lies on the field ".repeat(300)).unwrap();
    let other = lm(&["--models", "retnet", "--output", "out"], folder.path());
    assert!(String::from_utf8_lossy(&other.stderr).contains("this tokenizer was trained on other text"));
}

/// Paths are recorded as they were given, except for that of a tokenizer that was trained here.
#[test]
fn paths_are_recorded_as_they_were_given() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    fs::create_dir(folder.path().join("about")).unwrap();
    fs::copy(folder.path().join("train.txt"), folder.path().join("about/x.txt")).unwrap();
    let args = ["reproduce", "lm", "--models", "retnet", "--output", "out", "--train", "about/x.txt"];
    let less =
        ["--set=task.length=16", "--set=train.batch=2", "--set=model.hidden_size=16", "--set=model.num_heads=2"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.current_dir(folder.path()).env("FALCON_CACHE", folder.path().join("cache"));
    stdout_of(&command.args(args).args(["--valid", "valid.txt", "--steps", "1"]).args(less).output().unwrap());
    let record = LanguageRecord::read(&folder.path().join("out")).unwrap();
    for line in ["train = \"about/x.txt\"", "valid = \"valid.txt\"", "tokenizer = \"tokenizer.json\""] {
        assert!(record.config.contains(line), "{line}: {}", record.config);
    }
}

/// Every point of the grid is tried once, with the seed of the search, and the rows use the best of them.
#[test]
fn settings_are_searched_for_once_and_recorded() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    let at = |name: &str| folder.path().join("out").join(name);
    let args = ["--models", "retnet,falcon-1a.3+train.lr=2e-3", "--tokenizer", "bytes", "--output", "out"];
    let args = [args.as_slice(), &["--seeds", "2", "--search=6"]].concat();
    let ran = lm(&args, folder.path());
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(stderr.contains("search for retnet: lr "), "{stderr}");
    let shown = stdout_of(&ran);
    assert!(shown.contains("| retnet ") && !shown.contains("learning rate"), "{shown}");
    let record = LanguageRecord::read(&folder.path().join("out")).unwrap();
    assert!(record.command.ends_with("--tokenizer bytes --search=6"), "{}", record.command);
    let search = record.search.as_ref().unwrap();
    assert_eq!((search.seed, search.steps, search.models.len()), (1000, 6, 2));
    for (model, count) in search.models.iter().zip([6, 2]) {
        assert_eq!(model.trials.len(), count, "{}", model.name);
        let best = model.trials.iter().map(|trial| trial.loss.unwrap()).fold(f64::INFINITY, f64::min);
        let chosen = model.chosen.unwrap();
        assert!(model.trials.iter().any(|trial| trial.point == chosen && trial.loss == Some(best)));
        for seed in 0..2 {
            let run = at(&format!("{}-s{seed}/config.toml", model.name.replace(' ', "-")));
            let config = RunConfig::read(&run).unwrap();
            assert_eq!((config.train.schedule.lr, config.train.schedule.steps), (chosen.lr, 12));
            assert_eq!(config.model.initializer_range, chosen.initializer_range);
        }
    }
    assert_eq!(fs::read_dir(at("search")).unwrap().count(), 8);
    let trial = RunConfig::read(&at("search/retnet-lr2e-3-emb0.02/config.toml")).unwrap();
    assert_eq!((trial.train.seed, trial.train.schedule.lr, trial.model.initializer_range), (1000, 2e-3, 0.02));
    let page = fs::read_to_string(at("table.md")).unwrap();
    assert!(page.contains("| search: validation loss after 6 steps | learning rate |"), "{page}");
    // A second time, nothing is trained again. With another learning rate, the existing runs cannot be used.
    let metrics = at("search/retnet-lr2e-3-emb0.02/metrics.jsonl");
    let before = fs::read(&metrics).unwrap();
    assert_eq!(stdout_of(&lm(&args, folder.path())), shown);
    assert_eq!(fs::read(&metrics).unwrap(), before);
    let none = lm(&[&args[..args.len() - 1], &["--set=train.lr=7e-3"]].concat(), folder.path());
    assert!(String::from_utf8_lossy(&none.stderr).contains("holds a run of another configuration"));
    let both = lm(&["--search", "--no-search"], folder.path());
    assert!(String::from_utf8_lossy(&both.stderr).contains("cannot be used with"));
}

/// Whether a run has done some steps.
#[cfg(unix)]
fn trains_in(folder: &Path) -> bool {
    fs::metadata(folder.join("metrics.jsonl")).is_ok_and(|metrics| metrics.len() > 2000)
}

/// An interrupt during the search is not a failure, and no row is started.
#[cfg(unix)]
#[test]
fn an_interrupt_saves_the_search() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.current_dir(folder.path()).env("FALCON_CACHE", folder.path().join("cache"));
    command.args(["reproduce", "lm", "--train", "train.txt", "--valid", "valid.txt", "--tokenizer", "bytes"]);
    command.args(["--models", "retnet", "--output", "out", "--jobs", "1", "--steps=100000", "--search=100000"]);
    command.args(["--set=model.hidden_size=16", "--set=model.num_heads=2", "--set=task.length=16"]);
    command.args(["--set=train.save_every=100000", "--set=train.eval_every=100000"]);
    let process = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let trial = folder.path().join("out/search/retnet-lr2e-3-emb0.005");
    let ran = interrupt(process, || trains_in(&trial));
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted; all progress is saved, and the same command resumes"), "{stderr}");
    assert_eq!(fs::read_dir(trial.join("checkpoints")).unwrap().count(), 1);
    assert!(!folder.path().join("out/retnet-s0").exists());
}

/// The search of one model may fail without affecting the others.
#[test]
fn a_model_that_diverges_at_every_point_is_reported() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    let args = ["--models", "retnet+train.lr=1e38,falcon-1a.3+train.lr=1e-3", "--tokenizer", "bytes"];
    let ran = lm(&[args.as_slice(), &["--output", "out", "--search"]].concat(), folder.path());
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("retnet train.lr=1e38: training diverged at every point of the search"), "{stderr}");
    let record = LanguageRecord::read(&folder.path().join("out")).unwrap();
    assert_eq!((record.rows.len(), record.planned), (1, Some(2)));
    let search = record.search.as_ref().unwrap();
    // The trials are as long as the runs, although 250 steps are the default.
    assert_eq!((search.models[0].chosen, search.steps), (None, 12));
    let page = fs::read_to_string(folder.path().join("out/table.md")).unwrap();
    assert!(page.contains("| retnet train.lr=1e38 | – | – | diverged | diverged | – | – |"), "{page}");
}

#[test]
fn rows_of_the_timing_ablation_share_a_search() {
    let folder = TempDir::new().unwrap();
    corpus(folder.path());
    let args = ["--models", "transformer,falcon-1a.3", "--tokenizer", "bytes", "--ablation", "timing"];
    let args = [args.as_slice(), &["--set", "train.lr=1e-3", "--search=2"]].concat();
    stdout_of(&lm(&args, folder.path()));
    let output = folder.path().join("runs/lm-quick-timing");
    let record = LanguageRecord::read(&output).unwrap();
    let names: Vec<&str> = record.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names.len(), names[2]), (4, "falcon-1a.3 align=next read=before"));
    let search = record.search.as_ref().unwrap();
    assert_eq!((search.models.len(), search.models[0].trials.len()), (1, 2));
    assert_eq!(search.models[0].rows, names);
    assert!(record.command.contains("--ablation timing --train"), "{}", record.command);
    let cost = lm(&[args.as_slice(), &["--estimate"]].concat(), folder.path());
    assert!(stdout_of(&cost).contains("1 seed(s) per row and the search: "));
}

/// After a kill, the record has the runs that were done, and says that it is partial.
#[cfg(unix)]
#[test]
fn a_killed_experiment_has_a_partial_record() {
    let folder = TempDir::new().unwrap();
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
        command.args(["reproduce", "addition", "--models", "retnet,falcon-1a.3", "--jobs", "1", "--steps", "300"]);
        command.args(["--set=model.hidden_size=16", "--set=model.num_heads=2", "--set=train.batch=4"]);
        command.arg("--output").arg(folder.path());
        command
    };
    let mut process = command().stderr(std::process::Stdio::null()).spawn().unwrap();
    // This file is written last.
    while !folder.path().join("digits.svg").exists() {
        assert!(process.try_wait().unwrap().is_none(), "the process ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let record = AdditionRecord::read(folder.path()).unwrap();
    assert_eq!((record.rows.len(), record.planned), (1, Some(2)));
    let page = || fs::read_to_string(folder.path().join("table.md")).unwrap();
    assert!(page().contains("**Partial: 1 of 2 runs are done.**"), "{}", page());
    // Tables made again from the record say so too.
    let mut from = Command::new(env!("CARGO_BIN_EXE_falcon"));
    let again = stdout_of(&from.args(["reproduce", "addition", "--from"]).arg(folder.path()).output().unwrap());
    assert!(again.starts_with("**Partial: 1 of 2 runs are done.**"), "{again}");
    stdout_of(&command().output().unwrap());
    let record = AdditionRecord::read(folder.path()).unwrap();
    assert_eq!((record.rows.len(), record.planned), (2, None));
    assert!(!page().contains("Partial"), "{}", page());
}

/// Tables are put between their markers, and the rest of the page is unchanged.
#[test]
fn tables_are_put_into_a_page() {
    let folder = TempDir::new().unwrap();
    stdout_of(&addition(&["--models", "retnet"], folder.path()));
    let page = folder.path().join("page.md");
    fs::write(&page, "before\n<!-- addition quick -->\nold\n<!-- end -->\nafter\n").unwrap();
    let into = |page: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
        command
            .args(["reproduce", "addition", "--from"])
            .arg(folder.path())
            .arg("--into")
            .arg(page)
            .output()
            .unwrap()
    };
    let table = stdout_of(&into(&page));
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("before\n<!-- addition quick -->\n| ") && text.ends_with("<!-- end -->\nafter\n"));
    let row = cells(table.lines().nth(2).unwrap());
    assert!(text.lines().any(|line| cells(line) == row) && !text.contains("old"), "{text}");
    fs::write(&page, "no place for it").unwrap();
    let ran = into(&page);
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("page.md"), "{ran:?}");
    assert_eq!(fs::read_to_string(&page).unwrap(), "no place for it");
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_all_rows() {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.args(["reproduce", "addition", "--models", "retnet,falcon-1a.3", "--jobs", "2", "--threads", "2"]);
    command.args([
        "--set=model.hidden_size=16",
        "--set=model.num_heads=2",
        "--set=train.batch=4",
        "--steps=100000",
    ]);
    // No checkpoint is written before the interrupt, however fast a row is.
    command.args(["--set=train.save_every=100000", "--set=train.eval_every=100000"]);
    let process = command.arg("--output").arg(folder.path()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let rows = ["retnet-s0", "falcon-1a.3-s0"].map(|row| folder.path().join(row));
    let ran = interrupt(process, || rows.iter().all(|row| trains_in(row)));
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted; all progress is saved, and the same command resumes"), "{stderr}");
    for row in ["retnet-s0", "falcon-1a.3-s0"] {
        assert_eq!(fs::read_dir(folder.path().join(row).join("checkpoints")).unwrap().count(), 1, "{row}");
    }
}

#[test]
fn every_row_that_fails_is_reported() {
    let folder = TempDir::new().unwrap();
    for row in ["falcon-1a.3-s0", "retnet-s0"] {
        fs::create_dir_all(folder.path().join(row)).unwrap();
        fs::write(folder.path().join(row).join("config.toml"), "not a run").unwrap();
    }
    let ran = addition(&["--models", "falcon-1a.3,retnet"], folder.path());
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("warning: falcon-1a.3, seed 0") && stderr.contains("error: retnet, seed 0"),
        "{stderr}"
    );
}

#[test]
fn a_row_that_fails_does_not_stop_the_others() {
    let folder = TempDir::new().unwrap();
    let args = ["--models", "falcon-1a.3,retnet"];
    fs::create_dir_all(folder.path().join("falcon-1a.3-s0")).unwrap();
    fs::write(folder.path().join("falcon-1a.3-s0/config.toml"), "not a run").unwrap();
    let ran = addition(&args, folder.path());
    let (out, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("falcon-1a.3, seed 0") && out.contains("| retnet "), "{stderr} {out}");
    let record = AdditionRecord::read(folder.path()).unwrap();
    assert_eq!(record.rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["retnet"]);
}
