//! A complete run learns to add numbers of up to three digits within seconds.

use falcon_lm::config::{Layer, RunConfig};
use falcon_lm::monitor::Monitor;
use falcon_lm::train::{Outcome, Record, Trainer, Watch};

/// Keeps the last validation accuracy.
struct Validation(f64);

impl Monitor for Validation {}

impl Watch for Validation {
    fn record(&mut self, record: &Record) {
        if let Record::Eval(record) = record
            && record.split == "validation"
        {
            self.0 = record.total.accuracy;
        }
    }
}

#[test]
fn a_micro_model_learns_to_add() {
    let keys = [
        "model.preset=falcon-1a.3",
        "model.hidden_size=64",
        "model.num_heads=2",
        "model.num_hidden_layers=2",
        "model.intermediate_size=128",
        "model.mup_base_width=64",
        "task.max_width=3",
        "task.beyond=4",
        "task.sparse_until=0.6",
        // With half as many, rounding decides whether a seed passes: every third one does not.
        "train.steps=800",
        "train.batch=64",
        "train.lr=5e-3",
    ];
    let layers: Vec<Layer> = keys.iter().map(|key| Layer::set(key).unwrap()).collect();
    let config = RunConfig::resolve(&layers).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut watch = Validation(0.0);
    let mut trainer = Trainer::open(&config, folder.path(), &mut watch).unwrap();
    assert_eq!(trainer.run(&mut watch).unwrap(), Outcome::Finished);
    assert!(watch.0 > 0.95, "expected more than 0.95 of the digits to be right, got {}", watch.0);
}
