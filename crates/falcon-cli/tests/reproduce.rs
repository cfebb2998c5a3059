//! `falcon reproduce addition`: what it leaves, and what it does not do again. What models learn is not judged here.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use falcon_lm::reproduce::AdditionRecord;
use tempfile::TempDir;

fn addition(args: &[&str], output: &Path) -> Output {
    let tiny = ["hidden_size=16", "num_heads=2", "intermediate_size=16"].map(|key| format!("--set=model.{key}"));
    let small =
        ["--set=task.max_width=2", "--set=task.beyond=3", "--set=task.eval_samples=4", "--set=train.batch=4"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_falcon"));
    command.args(["reproduce", "addition", "--steps", "12"]).args(tiny).args(small).args(args);
    command.arg("--output").arg(output).output().unwrap()
}

fn printed(ran: &Output) -> String {
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[test]
fn rows_are_run_once_and_recorded() {
    let folder = TempDir::new().unwrap();
    let args = ["--models", "falcon-1a.3,retnet", "--seeds", "2"];
    let first = printed(&addition(&args, folder.path()));
    assert!(
        first.contains("| falcon-1a.3 |")
            && first.contains("| retnet |")
            && first.contains("| 99.7 | 82.9 | 99 / 63 |")
    );
    let record = AdditionRecord::read(folder.path()).unwrap();
    let rows: Vec<(&str, u64)> = record.rows.iter().map(|row| (row.name.as_str(), row.seed)).collect();
    assert_eq!(rows, [("falcon-1a.3", 0), ("falcon-1a.3", 1), ("retnet", 0), ("retnet", 1)]);
    assert!(record.rows.iter().all(|row| row.widths.len() == 3 && row.seconds > 0.0 && row.best_step <= 12));
    assert!(record.command.contains("--models falcon-1a.3,retnet --seeds 2 --steps 12"), "{}", record.command);
    for file in ["table.md", "curves.svg", "digits.svg", "report.html", "retnet-s1/config.toml"] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
    // Again: the same numbers, from the same runs.
    let metrics = folder.path().join("retnet-s0/metrics.jsonl");
    let before = fs::read(&metrics).unwrap();
    assert_eq!(printed(&addition(&args, folder.path())), first);
    assert_eq!(fs::read(&metrics).unwrap(), before);
    // Another row beside them, and the table alone.
    let more =
        printed(&addition(&["--models", "falcon-1a.3", "--seeds", "1", "--ablation", "timing"], folder.path()));
    assert_eq!(more.matches("| falcon-1a.3 ").count(), 4, "{more}");
    let from = Command::new(env!("CARGO_BIN_EXE_falcon"))
        .args(["reproduce", "addition", "--from"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(more.starts_with(&printed(&from)), "{more}");
}

#[test]
fn wrong_rows_are_refused_before_anything_is_trained() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out");
    let ran = addition(&["--models", "retnet,falcon-7"], &output);
    assert!(!ran.status.success() && !output.exists());
    assert!(String::from_utf8_lossy(&ran.stderr).contains("unknown preset \"falcon-7\""));
    let none =
        Command::new(env!("CARGO_BIN_EXE_falcon")).args(["reproduce", "addition", "--from", "nowhere"]).output();
    assert!(String::from_utf8_lossy(&none.unwrap().stderr).contains("nowhere/results.json"));
}

/// Tables and pictures are what their records say, and the front page shows them.
#[test]
fn recorded_results_are_what_is_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    for scale in ["quick"] {
        let folder = root.join("results/addition").join(scale);
        let record = AdditionRecord::read(&folder).unwrap();
        assert_eq!(record.scale, scale);
        let again = TempDir::new().unwrap();
        record.write(again.path()).unwrap();
        for file in ["results.json", "table.md", "curves.svg", "digits.svg"] {
            let [kept, made] = [folder.as_path(), again.path()].map(|f| fs::read_to_string(f.join(file)).unwrap());
            assert_eq!(kept, made, "falcon reproduce addition --from results/addition/{scale} makes {file} again");
        }
        let command = format!("falcon reproduce addition --from results/addition/{scale} --into README.md");
        assert_eq!(record.put_into(&readme).unwrap(), readme, "{command}");
    }
}
