use super::{ReportError, RunRecord};
use crate::train::METRICS_FILE;

#[test]
fn a_folder_is_read_or_the_reason_says_which_file() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("first");
    let said = || RunRecord::read(&folder).unwrap_err().to_string();
    assert!(matches!(RunRecord::read(&folder), Err(ReportError::NotARun { .. })));
    std::fs::create_dir(&folder).unwrap();
    assert!(said().contains("first: not a run"), "{}", said());
    let (config, metrics) = (folder.join("config.toml"), folder.join(METRICS_FILE));
    std::fs::write(&config, "[model]\npreset = \n").unwrap();
    assert!(said().contains("config.toml") && said().contains("line 2"), "{}", said());
    std::fs::write(&config, "[model]\npreset = \"retnet\"\n").unwrap();
    assert!(said().contains(METRICS_FILE), "{}", said());
    std::fs::write(&metrics, "{}\n").unwrap();
    assert!(said().contains(METRICS_FILE) && said().contains("line 1"), "{}", said());
    std::fs::write(&metrics, "").unwrap();
    let run = RunRecord::read(&folder).unwrap();
    assert_eq!((run.name.as_str(), run.records.len()), ("first", 0));
    assert_eq!(run.config["model"]["preset"].as_str(), Some("retnet"));
    std::fs::remove_file(&config).unwrap();
    assert!(said().contains("config.toml"), "{}", said());
}
