//! Kernels and tensor operations compute the same model: logits and gradients agree. With the feature `wgpu` the tensor
//! operations run on the default device of wgpu.

mod common;

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData, activation};
use falcon_kernels::rule::{Align, Read};
use falcon_nn::{Engine, Model, ModelConfig, PRESETS};

use self::common::{numbers, small};

const VOCABULARY: usize = 11;

#[cfg(not(feature = "wgpu"))]
fn elsewhere() -> Device {
    Device::flex()
}

#[cfg(feature = "wgpu")]
fn elsewhere() -> Device {
    Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)
}

fn config(name: &str) -> ModelConfig {
    ModelConfig { mup_base_width: 128, ..small(name, VOCABULARY) }
}

/// The logits, and the gradient of every parameter.
fn outcome(config: &ModelConfig, engine: Engine, device: &Device) -> BTreeMap<String, Vec<f32>> {
    let model = Model::new(config, engine, 7, device).unwrap();
    assert_eq!(model.engine(), engine);
    let (batch, time) = (2, 37);
    let ids: Vec<i32> = (0..batch * time).map(|i| ((i * i + 3 * i) % VOCABULARY) as i32).collect();
    let ids = Tensor::from_data(TensorData::new(ids, [batch, time]), device);
    let logits = model.forward(ids);
    let weights: Vec<f32> = (0..batch * time * VOCABULARY).map(|i| (i as f32 * 0.7).sin()).collect();
    let weights = Tensor::from_data(TensorData::new(weights, [batch, time, VOCABULARY]), device);
    let mut found = BTreeMap::from([("logits".to_string(), numbers(logits.clone()))]);
    let grads = (activation::log_softmax(logits, 2) * weights).sum().backward();
    let names = model.parameters().into_iter().map(|parameter| parameter.name);
    found.extend(names.zip(model.gradients(grads)));
    found
}

fn assert_agree(what: &str, config: &ModelConfig) {
    let expected = outcome(config, Engine::Kernels, &Device::flex().autodiff());
    let got = outcome(config, Engine::Tensors, &elsewhere().autodiff());
    assert_eq!(got.len(), expected.len());
    for (name, expected) in expected {
        let got = &got[&name];
        let scale = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
        let error = got.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        // A parameter with one number per head (`D`, `A_log`, a bias) has as its gradient a sum over all tokens and
        // columns whose terms mostly cancel: f32 leaves it between three and four digits.
        let per_head = expected.len() == config.mixer.num_heads;
        let tolerance = if per_head { 5e-4 } else { 1e-4 };
        assert!(error <= tolerance * scale, "{what}, {name}: {error} of {scale}");
    }
}

#[test]
fn both_engines_compute_the_same_model() {
    for &name in PRESETS {
        assert_agree(name, &config(name));
    }
}

/// The combinations of the paper's timing figure, read before or after the write and same-step or shifted pairs, are
/// four different models with any rule.
#[test]
fn alignment_and_read_are_independent_options() {
    for name in ["falcon-1a.3", "falcon-3a.3", "falcon-1.3", "falcon-2.3", "falcon-3.3", "gated-deltanet"] {
        let mut logits = Vec::new();
        for align in [Align::Next, Align::Same] {
            for read in [Read::After, Read::Before] {
                let mut config = config(name);
                (config.mixer.align, config.mixer.read) = (align, read);
                assert_agree(&format!("{name} {align:?} {read:?}"), &config);
                logits.push(outcome(&config, Engine::Kernels, &Device::flex().autodiff()).remove("logits"));
            }
        }
        for (i, one) in logits.iter().enumerate() {
            assert!(logits[..i].iter().all(|other| other != one), "{name}: two of four are the same model");
        }
    }
}
