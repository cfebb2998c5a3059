//! The coordinate check of μP: with width scaling, the changes that a few steps make do not depend on the width;
//! without it, they grow.

use std::collections::HashMap;

use burn::tensor::{Device, Tensor};
use falcon_nn::{MixerConfig, Model, ModelConfig, Sequences, cross_entropy, mup};

const WIDTHS: [usize; 4] = [64, 128, 256, 512];
const VOCABULARY: usize = 32;

fn config(name: &str, width: usize, base: usize) -> ModelConfig {
    let mut config = ModelConfig::preset(name, "tiny", VOCABULARY).unwrap();
    config.hidden_size = width;
    config.num_hidden_layers = 2;
    config.intermediate_size = 2 * width;
    config.mup_base_width = base;
    config.mixer = MixerConfig::preset(name, width, width / 16).unwrap();
    config
}

fn rms(x: &[f32]) -> f64 {
    (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

/// The RMS of the initial logits, of the change of the last hidden state, and of the change of the logits after some
/// steps of Adam.
fn coordinates(config: &ModelConfig) -> [f64; 3] {
    let device = Device::flex().autodiff();
    let mut model = config.init(1, &device).unwrap();
    let (batch, time) = (4, 24);
    let ids: Vec<u32> = (0..batch * time).map(|i| ((i * i + 5 * i) % VOCABULARY) as u32).collect();
    let last = ids.last().copied();
    // Each token's target is the token before it; that of the first is the last.
    let targets: Vec<Option<u32>> =
        std::iter::once(last).chain(ids.iter().copied().map(Some)).take(ids.len()).collect();
    let sequences = Sequences::uniform(batch, time);
    let run = |model: &Model| {
        let hidden = model.hidden(&ids, &sequences, &mut model.state(batch));
        (hidden.clone(), model.logits(hidden))
    };
    let numbers = |tensor: Tensor<2>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let (hidden, logits) = run(&model);
    let before = [numbers(hidden), numbers(logits)];
    let mut moments: HashMap<String, (Vec<f32>, Vec<f32>)> = HashMap::new();
    for step in 1..=4 {
        let (_, logits) = run(&model);
        let mut found = model.gradients(cross_entropy(logits, &targets).backward()).into_iter();
        let mut parameters = model.parameters().into_iter();
        model = model.with_parameters(|name, values| {
            let shape = parameters.next().expect("as many as there are values").shape;
            let rate = 1e-4 * mup::learning_rate_multiplier(config, name, &shape) as f32;
            let grad = found.next().expect("a gradient for every parameter");
            let zeros = || (vec![0.0; grad.len()], vec![0.0; grad.len()]);
            let (first, second) = moments.entry(name.into()).or_insert_with(zeros);
            let mut moved = Vec::with_capacity(values.len());
            for (i, value) in values.iter().enumerate() {
                first[i] = 0.9 * first[i] + 0.1 * grad[i];
                second[i] = 0.95 * second[i] + 0.05 * grad[i] * grad[i];
                let (m, v) = (first[i] / (1.0 - 0.9f32.powi(step)), second[i] / (1.0 - 0.95f32.powi(step)));
                moved.push(value - rate * m / (v.sqrt() + 1e-12));
            }
            moved
        });
    }
    let (hidden, logits) = run(&model);
    let after = [numbers(hidden), numbers(logits)];
    let [hidden, logits] = [0, 1].map(|i| {
        let change: Vec<f32> = after[i].iter().zip(&before[i]).map(|(a, b)| a - b).collect();
        rms(&change)
    });
    [rms(&before[1]), hidden, logits]
}

#[test]
fn updates_do_not_depend_on_the_width() {
    for name in ["falcon-1a.3", "falcon-1.3", "transformer", "gated-deltanet"] {
        let scaled = WIDTHS.map(|width| coordinates(&config(name, width, WIDTHS[0])));
        let plain = WIDTHS.map(|width| coordinates(&config(name, width, width)));
        // The hidden state is normalised, so that its change is bounded.
        for (what, index, expected) in [("hidden", 1, 1.6), ("logits", 2, 5.0)] {
            let growth = |found: &[[f64; 3]]| found[WIDTHS.len() - 1][index] / found[0][index];
            println!(
                "{name} {what}: {:.4?} scaled, {:.4?} not",
                scaled.map(|x| x[index]),
                plain.map(|x| x[index])
            );
            let (with, without) = (growth(&scaled), growth(&plain));
            assert!(
                (0.4..1.6).contains(&with),
                "{name}: the change of {what} must not depend on the width, but it grows {with} times"
            );
            assert!(
                without > expected,
                "{name}: without scaling the change of {what} must grow, but it grows {without} times"
            );
        }
        // Initial logits shrink as the square root of the width.
        assert!(scaled[WIDTHS.len() - 1][0] < scaled[0][0]);
    }
}
