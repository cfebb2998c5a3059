//! Every preset: streaming, packing, gradients, learning, sizes.

mod common;

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, activation};
use falcon_nn::{
    DecayGate, Engine, FeatureMap, GainGate, MatrixInit, Mechanism, MixerConfig, MixerKind, Model, ModelConfig,
    OutputNorm, PRESETS, Sequences, WeightFormat,
};

use self::common::{VOCABULARY, assert_near, config, numbers, tensor, tokens};

#[test]
fn streaming_gives_the_logits_of_the_whole_sequence() {
    let device = Device::flex();
    for &name in PRESETS {
        let model = config(name).init(1, &device).unwrap();
        let (batch, time) = (2, 21);
        let ids = tokens(batch * time, 3);
        let ids = tensor(&ids, &device).reshape([batch, time]);
        let whole = numbers(model.forward(ids.clone()));
        for cuts in [vec![0, 20, 21], vec![0, 1, 2, 3, 21], vec![0, 8, 9, 16, 21], (0..=21).collect()] {
            let mut state = model.state(batch);
            let mut pieces = Vec::new();
            for cut in cuts.windows(2) {
                let piece = ids.clone().slice([0..batch, cut[0]..cut[1]]);
                // A copy of the state must serve as well.
                state = state.clone();
                pieces.push(if cut[1] - cut[0] == 1 {
                    let piece: Vec<u32> = piece.into_data().iter::<u32>().collect();
                    model.step(&piece, &mut state).unsqueeze_dim(1)
                } else {
                    model.resume(piece, &mut state)
                });
            }
            assert_near(&format!("{name} cut at {cuts:?}"), &numbers(Tensor::cat(pieces, 1)), &whole);
            assert_eq!(state.positions(), [time; 2]);
        }
    }
}

/// A model with weights in fewer bits says nearly what the model says, and the same at once and token by token, alone and
/// beside other sequences.
#[test]
fn packed_weights_change_logits_little() {
    let device = Device::flex();
    for &name in PRESETS {
        let model = config(name).init(1, &device).unwrap();
        let (batch, time) = (3, 21);
        let ids = tensor(&tokens(batch * time, 3), &device).reshape([batch, time]);
        let expected = numbers(model.forward(ids.clone()));
        assert_eq!(numbers(model.clone().packed(WeightFormat::F32).forward(ids.clone())), expected);
        for (format, bound) in [(WeightFormat::Bf16, 0.02), (WeightFormat::Int8, 0.1)] {
            let packed = model.clone().packed(format);
            assert_eq!(packed.weights(), format);
            let whole = numbers(packed.forward(ids.clone()));
            let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
            let error =
                norm(&mut whole.iter().zip(&expected).map(|(x, y)| x - y)) / norm(&mut expected.iter().copied());
            assert!(error > 0.0 && error < bound, "{name}, {format}: {error}");
            let step = |ids: Tensor<2, Int>| {
                let [count, _] = ids.dims();
                let mut state = packed.state(count);
                let rows = (0..time).map(|t| {
                    let ids: Vec<u32> =
                        ids.clone().slice([0..count, t..t + 1]).into_data().iter::<u32>().collect();
                    packed.step(&ids, &mut state).unsqueeze_dim::<3>(1)
                });
                numbers(Tensor::cat(rows.collect(), 1))
            };
            let stepped = step(ids.clone());
            assert_near(&format!("{name}, {format}, token by token"), &stepped, &whole);
            let alone = step(ids.clone().slice([1..2, 0..time]));
            assert_eq!(alone, stepped[alone.len()..2 * alone.len()], "{name}, {format}: one sequence of several");
            let none = packed.run(&[], &Sequences::packed(&[]), &mut packed.state(0));
            assert_eq!(none.dims()[0], 0, "{name}, {format}: no tokens");
        }
    }
}

#[test]
fn packed_sequences_are_separate_sequences() {
    let device = Device::flex();
    for &name in PRESETS {
        let model = config(name).init(2, &device).unwrap();
        let lengths = [5, 1, 9];
        let ids = tokens(15, 5);
        let sequences = Sequences::packed(&lengths);
        let packed = numbers(model.run(&ids, &sequences, &mut model.state(3)));
        let alone: Vec<f32> = sequences
            .offsets()
            .windows(2)
            .flat_map(|w| {
                let ids = tensor(&ids[w[0]..w[1]], &device).unsqueeze();
                numbers(model.forward(ids))
            })
            .collect();
        assert_near(name, &packed, &alone);
    }
}

/// Pieces of unequal length, with the state saved and loaded between them, also if the sequences end equally long; and
/// empty pieces.
#[test]
fn unequal_pieces_are_continued() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.safetensors");
    for (name, engine) in PRESETS.iter().flat_map(|name| [(*name, Engine::Kernels), (*name, Engine::Tensors)]) {
        let model = Model::new(&config(name), engine, 2, &device).unwrap();
        let ids = tokens(2 * 10, 5);
        let ids = [&ids[..10], &ids[10..]];
        let whole: Vec<Vec<f32>> =
            ids.iter().map(|ids| numbers(model.forward(tensor(ids, &device).unsqueeze()))).collect();
        let mut state = model.state(2);
        let (mut got, mut done) = ([Vec::new(), Vec::new()], [0, 0]);
        for lengths in [[3, 5], [5, 3], [1, 1], [1, 1]] {
            let piece: Vec<u32> = (0..2).flat_map(|i| ids[i][done[i]..done[i] + lengths[i]].to_vec()).collect();
            let nothing = model.resume(Tensor::zeros([2, 0], &device), &mut state);
            assert_eq!(nothing.dims(), [2, 0, VOCABULARY]);
            let out = numbers(model.run(&piece, &Sequences::packed(&lengths), &mut state));
            let (first, second) = out.split_at(lengths[0] * VOCABULARY);
            got[0].extend_from_slice(first);
            got[1].extend_from_slice(second);
            done = [done[0] + lengths[0], done[1] + lengths[1]];
            model.save_state(&state, &file).unwrap();
            state = model.load_state(&file).unwrap();
            assert_eq!(state.positions(), done);
        }
        for (got, whole) in got.iter().zip(&whole) {
            assert_near(&format!("{name} by {engine:?}"), got, whole);
        }
    }
}

/// A state is continued in several ways: sequences of equal and unequal lengths, some selected twice, some left out.
#[test]
fn selected_and_joined_states_continue_their_sequences() {
    let device = Device::flex();
    for (name, engine) in PRESETS.iter().flat_map(|name| [(*name, Engine::Kernels), (*name, Engine::Tensors)]) {
        let model = Model::new(&config(name), engine, 2, &device).unwrap();
        for lengths in [vec![6, 6, 6], vec![4, 7, 5], vec![6]] {
            let begun = Sequences::packed(&lengths);
            let read = tokens(begun.tokens(), 5);
            let mut state = model.state(lengths.len());
            model.hidden(&read, &begun, &mut state);
            for picks in [vec![lengths.len() - 1, 0, lengths.len() - 1], vec![0]] {
                let ends: Vec<Vec<u32>> = (0..picks.len()).map(|i| tokens(2 + i % 2, i + 1)).collect();
                let more = Sequences::packed(&ends.iter().map(Vec::len).collect::<Vec<_>>());
                let mut picked = model.select(&state, &picks);
                let got = numbers(model.run(&ends.concat(), &more, &mut picked));
                let whole: Vec<f32> = picks
                    .iter()
                    .zip(&ends)
                    .flat_map(|(pick, end)| {
                        let range = begun.offsets()[*pick]..begun.offsets()[pick + 1];
                        let ids = [&read[range.clone()], end].concat();
                        numbers(model.forward(tensor(&ids, &device).unsqueeze()))[range.len() * VOCABULARY..]
                            .to_vec()
                    })
                    .collect();
                assert_near(&format!("{name} by {engine:?}, {picks:?} of {lengths:?}"), &got, &whole);
                // Selected one by one and joined again.
                let apart = picks.iter().map(|pick| model.select(&state, &[*pick])).collect();
                let again = model.run(&ends.concat(), &more, &mut model.join(apart));
                assert_near(&format!("{name} by {engine:?}, joined"), &numbers(again), &got);
                // Beside a fresh sequence.
                let mut mixed = model.join(vec![model.state(1), model.select(&state, &picks[..1])]);
                let both = [&ends[0][..], &ends[0]].concat();
                let both = numbers(model.run(&both, &Sequences::uniform(2, ends[0].len()), &mut mixed));
                let alone = numbers(model.forward(tensor(&ends[0], &device).unsqueeze()));
                let expected = [alone.as_slice(), &got[..alone.len()]].concat();
                assert_near(&format!("{name} by {engine:?}, beside nothing"), &both, &expected);
            }
        }
    }
}

/// A state without sequences that is joined with others does not change them.
#[test]
fn a_state_without_sequences_can_be_joined() {
    let device = Device::flex();
    for &name in PRESETS {
        let model = config(name).init(2, &device).unwrap();
        let mut state = model.state(2);
        model.resume(tensor(&tokens(12, 5), &device).reshape([2, 6]), &mut state);
        let mut joined = model.join(vec![model.select(&state, &[]), model.select(&state, &[1, 0])]);
        assert_eq!(joined.positions(), [6, 6], "{name}");
        let mut picked = model.select(&state, &[1, 0]);
        let [got, expected] = [&mut joined, &mut picked].map(|state| numbers(model.step(&[3, 4], state)));
        assert_near(name, &got, &expected);
    }
}

fn layer() -> falcon_nn::Mixer {
    MixerConfig::preset("falcon-1.3", 16, 2).unwrap().init(16, 0, &Device::flex()).unwrap()
}

#[test]
fn a_layer_accepts_inputs_without_tokens() {
    let (layer, nothing) = (layer(), Tensor::<2>::zeros([0, 16], &Device::flex()));
    for sequences in [Sequences::packed(&[]), Sequences::uniform(2, 0)] {
        let mut state = layer.state(sequences.count());
        assert_eq!(layer.run(nothing.clone(), &sequences, &mut state).dims(), [0, 16]);
    }
}

#[test]
#[should_panic(expected = "the width of the input must be the hidden size of the layer")]
fn inputs_of_another_width_are_refused() {
    let layer = layer();
    layer.forward(Tensor::zeros([1, 3, 15], &Device::flex()));
}

#[test]
#[should_panic(expected = "the state must hold as many sequences as are given")]
fn states_of_other_sequences_are_refused() {
    let device = Device::flex();
    // With this engine, rotary positions are computed for each sequence of the state.
    let model = Model::new(&config("transformer"), Engine::Tensors, 1, &device).unwrap();
    model.resume(Tensor::zeros([2, 3], &device), &mut model.state(1));
}

/// With both engines, a non-finite gate makes everything after it NaN, including the memory.
#[test]
fn non_finite_gates_make_everything_nan() {
    let device = Device::flex();
    let cases = [("falcon-1.3", "attn.b_proj.weight", f32::NAN), ("mamba2", "attn.a_bias", f32::INFINITY)];
    for (preset, parameter, value, engine) in
        cases.into_iter().flat_map(|(a, b, c)| [Engine::Kernels, Engine::Tensors].map(|engine| (a, b, c, engine)))
    {
        let model = Model::new(&config(preset), engine, 1, &device).unwrap().with_parameters(|name, values| {
            if name == format!("model.layers.1.{parameter}") { vec![value; values.len()] } else { values }
        });
        let mut state = model.state(1);
        let ids = tensor(&tokens(6, 1), &device).unsqueeze::<2>();
        assert!(numbers(model.resume(ids, &mut state)).iter().any(|x| x.is_nan()));
        assert!(numbers(model.step(&[3], &mut state)).iter().all(|x| x.is_nan()), "{preset} by {engine:?}");
    }
}

/// Mean cross-entropy of each token given the tokens before it.
fn loss(model: &Model, ids: Tensor<2, Int>) -> Tensor<1> {
    let [batch, time] = ids.dims();
    let logits = model.forward(ids.clone().slice([0..batch, 0..time - 1]));
    let targets = ids.slice([0..batch, 1..time]).unsqueeze_dim::<3>(2);
    activation::log_softmax(logits, 2).gather(2, targets).mean().neg()
}

#[test]
fn ten_steps_lower_the_loss() {
    let device = Device::flex().autodiff();
    for &name in PRESETS {
        let mut model = config(name).init(4, &device).unwrap();
        let mut optimizer = AdamWConfig::new().init();
        let ids = tensor(&tokens(4 * 18, 2), &device).reshape([4, 18]);
        let value = |model: &Model| numbers(loss(model, ids.clone()))[0];
        let first = value(&model);
        assert!((first - (VOCABULARY as f32).ln()).abs() < 0.3, "{name} starts from {first}");
        for _ in 0..10 {
            let grads = GradientsParams::from_grads(loss(&model, ids.clone()).backward(), &model);
            model = optimizer.step(1e-2, model, grads);
        }
        let last = value(&model);
        assert!(last < first - 0.2, "{name}: {first} to {last}");
        // A model without autodiff computes the same loss.
        let ids = ids.clone().inner();
        assert!((numbers(loss(&model.valid(), ids))[0] - last).abs() < 1e-5);
    }
}

/// For every parameter, the change of the loss along the signs of its gradient agrees with the gradient.
#[test]
fn gradients_match_differences() {
    let device = Device::flex().autodiff();
    for &name in PRESETS {
        let model = ModelConfig { num_hidden_layers: 1, ..config(name) }.init(5, &device).unwrap();
        let ids = tensor(&tokens(3 * 14, 4), &device).reshape([3, 14]);
        let gradients = model.gradients(loss(&model, ids.clone()).backward());
        for (moving, grad) in model.parameters().iter().map(|parameter| &parameter.name).zip(&gradients) {
            assert!(grad.iter().any(|g| *g != 0.0), "{name}: no gradient reaches {moving}");
            let slope: f64 = grad.iter().map(|g| f64::from(g.abs())).sum();
            let moved = |by: f32| {
                let model = model.clone().with_parameters(|parameter, mut values| {
                    if parameter == moving {
                        values.iter_mut().zip(grad).for_each(|(x, g)| *x += by * g.signum());
                    }
                    values
                });
                f64::from(numbers(loss(&model, ids.clone()))[0])
            };
            // The step is long enough for the loss to change by much more than its rounding error. The differences over
            // two step lengths are combined so that the error of third order cancels.
            let step = (2e-3 / slope).min(2e-2) as f32;
            let [long, short] =
                [step, step / 2.0].map(|step| (moved(step) - moved(-step)) / (2.0 * f64::from(step)));
            let (difference, rounding) = ((4.0 * short - long) / 3.0, 2e-6 / f64::from(step));
            assert!(
                (difference - slope).abs() < 0.01 * slope + rounding,
                "{name}, {moving}: {difference} measured, {slope} by gradient"
            );
        }
    }
}

#[test]
fn sizes_have_the_expected_numbers_of_parameters() {
    let vocabulary_of_gpt2 = 50257;
    for &name in PRESETS {
        let tiny = ModelConfig::preset(name, "tiny", 256).unwrap();
        let model = tiny.init(0, &Device::flex()).unwrap();
        let counted: usize = model.parameters().iter().map(|p| p.shape.iter().product::<usize>()).sum();
        assert_eq!(counted, tiny.parameter_count(), "{name}");
        for (size, vocabulary, expected, within) in [
            ("micro", 12, 410e3, 0.03),
            ("tiny", 256, 0.855e6, 0.03),
            ("tiny-wide", 14, 1.2e6, 0.03),
            ("small", 4096, 12.1e6, 0.02),
            ("130m", vocabulary_of_gpt2, if name == "transformer" { 123.5e6 } else { 130.0e6 }, 0.02),
            ("340m", vocabulary_of_gpt2, if name == "transformer" { 353.0e6 } else { 380.0e6 }, 0.02),
        ] {
            let count = ModelConfig::preset(name, size, vocabulary).unwrap().parameter_count() as f64;
            assert!((count / expected - 1.0).abs() < within, "{name} {size}: {count}");
        }
    }
}

/// The standard deviation of an initial matrix follows from the hidden size, or from the number of inputs of the
/// matrix. For matrices that end a residual branch it is divided by the root of the 4 layers, or of the 8 branches.
#[test]
fn initial_matrices_have_the_configured_deviation() {
    let deviation = |init: MatrixInit, part: &str| {
        let mut config = ModelConfig::preset("falcon-1a.3", "tiny", 16).unwrap();
        config.matrix_init = init;
        let mut found = None;
        config.init(3, &Device::flex()).unwrap().visit_parameters(|name, _, values| {
            if name == format!("model.layers.2.{part}.weight") {
                let numbers = values.to_vec();
                let squares: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
                found = Some((squares / numbers.len() as f64).sqrt());
            }
        });
        found.unwrap()
    };
    let root = |x: f64| x.sqrt().recip();
    for (part, half_width, fan_in) in [
        ("attn.k_proj", 0.5 * root(128.0), root(128.0)),
        ("attn.o_proj", 0.5 * root(128.0 * 4.0), root(128.0 * 8.0)),
        ("mlp.up_proj", 0.5 * root(128.0), root(128.0)),
        ("mlp.down_proj", 0.5 * root(128.0 * 4.0), root(320.0 * 8.0)),
        // Uniform between ±1/√4.
        ("attn.v_conv1d", 0.5 * root(3.0), 0.5 * root(3.0)),
    ] {
        for (init, expected) in [(MatrixInit::HalfWidth, half_width), (MatrixInit::FanIn, fan_in)] {
            let got = deviation(init, part);
            assert!((got / expected - 1.0).abs() < 0.06, "{init:?} {part}: {got}, not {expected}");
        }
    }
}

/// Configurations of versions that did not have these keys are read with the values that those versions used.
#[test]
fn configurations_of_earlier_versions_are_read() {
    let config = ModelConfig::preset("falcon-1a.3", "tiny", 16).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&config.to_json()).unwrap();
    for key in ["matrix_init", "lambda_init", "step_eps", "gamma_floor"] {
        assert!(json.as_object_mut().unwrap().remove(key).is_some(), "{key}");
    }
    let old = ModelConfig::from_json(&json.to_string()).unwrap();
    let Mechanism::Rule(rule) = old.mixer.mechanism().unwrap() else { panic!("a rule") };
    assert_eq!((old.matrix_init, rule.eps, rule.clamp), (MatrixInit::FanIn, 1e-6, Some(1e-3)));
}

/// Layers with the same seed are equal, with different seeds they are not.
#[test]
fn the_seed_determines_the_parameters() {
    let device = Device::flex();
    let layer = |seed| MixerConfig::preset("falcon-1.3", 16, 2).unwrap().init(16, seed, &device).unwrap();
    let x = Tensor::<3>::ones([1, 5, 16], &device);
    let [a, b, c] = [1, 1, 2].map(|seed| numbers(layer(seed).forward(x.clone())));
    assert_eq!(a, b);
    assert_ne!(a, c);
}

#[test]
fn unknown_presets_and_sizes_are_refused_with_a_suggestion() {
    let refusal = |name, size| ModelConfig::preset(name, size, 9).unwrap_err().to_string();
    assert_eq!(refusal("falcon-1a.4", "tiny"), "unknown preset \"falcon-1a.4\"; did you mean \"falcon-1a.1\"?");
    assert!(refusal("transformer", "huge").contains("known are micro, tiny, tiny-wide, small, 130m, 340m"));
}

/// The size of a state is fixed, except with softmax attention.
#[test]
fn states_do_not_grow() {
    let device = Device::flex();
    for &name in PRESETS {
        let model = config(name).init(6, &device).unwrap();
        let mut state = model.state(1);
        let mut sizes = Vec::new();
        for t in 0..20 {
            model.step(&tokens(1, t), &mut state);
            sizes.push(state.bytes());
        }
        assert_eq!(sizes[5] == sizes[19], name != "transformer", "{name}: {sizes:?}");
        let known = config(name).state_size().map(|numbers| numbers * size_of::<f32>());
        assert_eq!(known, (name != "transformer").then_some(sizes[19]), "{name}");
    }
}

#[test]
fn configurations_are_checked() {
    let good = config("falcon-1a.3");
    assert_eq!(ModelConfig::from_json(&good.to_json()).unwrap(), good);
    let refusal = |change: fn(&mut ModelConfig)| {
        let mut config = config("falcon-1a.3");
        change(&mut config);
        ModelConfig::from_json(&config.to_json()).unwrap_err().to_string()
    };
    assert_eq!(refusal(|c| c.hidden_size = 0), "hidden_size must be from 1 to 1048576, got 0");
    assert!(refusal(|c| c.mixer.num_heads = usize::MAX).starts_with("num_heads must be from 1 to"));
    assert!(refusal(|c| c.mixer.conv_size = 1 << 40).starts_with("conv_size must be from 0 to 1024"));
    assert!(refusal(|c| c.mixer.norm_eps = 0.0).contains("norm_eps must be above 0, in 32 bits, got 0"));
    assert!(refusal(|c| c.mixer.norm_eps = 1e-50).contains("in 32 bits"));
    assert!(refusal(|c| c.mixer.lambda_init = [0.5, 1.0]).contains("lambda_init must be two numbers from 1e-6"));
    assert!(refusal(|c| c.mixer.step_eps = -1.0).contains("step_eps must be 0 or more, got -1"));
    assert!(
        refusal(|c| c.mixer.gamma_floor = Some(1.0))
            .contains("gamma_floor must be \"none\", or from 0 to below 1")
    );
    assert!(refusal(|c| c.mixer.lambda_scale = 1e39).contains("lambda_scale must be 0 or more"));
    assert!(refusal(|c| c.mixer.window = 20_000).contains("window must be from 1 to 16320"));
    assert!(
        MixerConfig::preset("falcon-1.3", 100, 0)
            .unwrap_err()
            .to_string()
            .starts_with("num_heads must be at least 1")
    );
    assert_eq!(
        refusal(|c| c.mixer.mixer = MixerKind::Softmax),
        "mixer \"softmax\" needs gain \"none\", decay \"none\", align \"same\": it has no memory that is written to"
    );
    let mut softmax = config("transformer").mixer;
    assert_eq!(softmax.mechanism().unwrap(), Mechanism::Softmax);
    softmax.window = 2;
    let message = softmax.validate().unwrap_err().to_string();
    assert_eq!(message, "mixer \"softmax\" needs window 1: it has no memory that is written to");
    let memory = |c: &mut ModelConfig| (c.mixer.head_dim, c.mixer.head_v_dim) = (1 << 15, 1 << 14);
    assert_eq!(
        refusal(memory),
        "num_heads times head_dim times head_v_dim must be from 1 to 268435456, got 1073741824"
    );
    let window = |c: &mut ModelConfig| {
        (c.mixer.window, c.mixer.head_dim, c.mixer.head_v_dim) = (16_001, 1 << 13, 1 << 13);
    };
    assert_eq!(
        refusal(window),
        "window - 1 times the widths of keys and values must be from 0 to 268435456, got 524288000"
    );
    assert!(refusal(|c| c.num_hidden_layers = usize::MAX).starts_with("num_hidden_layers must be from 1 to"));
    let deep = ModelConfig { num_hidden_layers: usize::MAX, ..config("falcon-1.3") };
    assert!(deep.init(0, &Device::flex()).unwrap_err().to_string().starts_with("num_hidden_layers must be"));
    let delta = |c: &mut ModelConfig| {
        c.mixer.mixer = "falcon-2".parse().unwrap();
        (c.mixer.gain, c.mixer.decay) = (GainGate::Delta, DecayGate::Selective);
    };
    assert!(refusal(delta).contains("one gain for all columns"));
    for name in ["mamba2", "falcon-1.3"] {
        let message = MixerConfig::preset(name, 0, 4).unwrap_err().to_string();
        assert_eq!(message, "hidden_size must be from 1 to 1048576, got 0");
        assert!(MixerConfig::preset(name, usize::MAX, 1).is_err());
        let layer = MixerConfig::preset(name, 32, 4).unwrap();
        let message = layer.init(0, 0, &Device::flex()).unwrap_err().to_string();
        assert_eq!(message, "hidden_size must be from 1 to 1048576, got 0");
    }
    // This preset chooses its heads itself, so the given number need not divide the hidden size.
    assert!(MixerConfig::preset("mamba2", 64, 5).is_ok());
    assert!(MixerConfig::preset("mamba2", 100, 4).unwrap_err().to_string().contains("a multiple of 32"));
    assert!(
        MixerConfig::preset("falcon-1.3", 100, 3).unwrap_err().to_string().contains("a multiple of num_heads = 3")
    );
    let unknown = good.to_json().replace("\"falcon-1a\"", "\"falcon-1b\"");
    let message = ModelConfig::from_json(&unknown).unwrap_err().to_string();
    assert!(message.contains("unknown mixer \"falcon-1b\"; did you mean \"falcon-1\"?"), "{message}");
    assert!(refusal(|c| c.mixer.num_key_heads = 3).contains("a divisor of num_heads = 2, got 3"));
    assert!(refusal(|c| c.mixer.window = 0).contains("window must be from 1 to"));
    assert!(
        refusal(|c| c.mixer.feature_map = FeatureMap::SquaredRelu)
            .starts_with("gain \"eta\" needs keys of known energy")
    );
    assert!(refusal(|c| c.mixer.rope_theta = Some(0.5)).contains("rope_theta must be above 1, got 0.5"));
    assert!(refusal(|c| c.mixer.lambda_scale = -1.0).contains("lambda_scale must be 0 or more, got -1"));
}

/// Grouped queries, every feature map, normalised values: options that no preset uses can be streamed, too.
#[test]
fn options_combine() {
    let device = Device::flex();
    let change: [fn(&mut MixerConfig); 6] = [
        |c| (c.num_heads, c.num_key_heads) = (4, 2),
        |c| (c.gain, c.feature_map) = (GainGate::Beta, FeatureMap::SquaredRelu),
        |c| (c.gain, c.feature_map) = (GainGate::Beta, FeatureMap::EluPlusOne),
        |c| (c.feature_map, c.value_norm) = (FeatureMap::Relu, true),
        |c| (c.conv_size, c.rope_theta) = (1, Some(100.0)),
        |c| (c.decay, c.output_norm) = (DecayGate::Selective, OutputNorm::None),
    ];
    for (index, change) in change.iter().enumerate() {
        for name in ["falcon-1.3", "falcon-2a.3", "falcon-3.3"] {
            let mut config = config(name);
            change(&mut config.mixer);
            let model = config.init(8, &device).unwrap();
            let ids = tensor(&tokens(10, 3), &device).unsqueeze::<2>();
            let whole = numbers(model.forward(ids.clone()));
            let mut state = model.state(1);
            let first = model.resume(ids.clone().slice([0..1, 0..4]), &mut state);
            let rest = (4..10).map(|t| model.resume(ids.clone().slice([0..1, t..t + 1]), &mut state));
            let pieces = std::iter::once(first).chain(rest).collect();
            assert_near(&format!("{name}, change {index}"), &numbers(Tensor::cat(pieces, 1)), &whole);
        }
    }
}
