//! Models and states on disk: what is saved can be loaded; damaged files and files of another kind are refused.

mod common;

use std::path::Path;

use burn::tensor::Device;
use falcon_nn::{Engine, Model, ModelConfig, NamedArrays, PRESETS, SavedState, Sequences};

use self::common::{assert_near, config, numbers, tensor, tokens};

#[test]
fn saved_models_are_loaded() {
    let device = Device::flex();
    for &name in PRESETS {
        for tied in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let model = ModelConfig { tie_word_embeddings: tied, ..config(name) }.init(3, &device).unwrap();
            model.save(folder.path()).unwrap();
            let loaded = Model::load(folder.path(), &device).unwrap();
            assert_eq!(model.config(), loaded.config());
            let ids = tensor(&tokens(9, 1), &device).unsqueeze();
            assert_eq!(numbers(model.forward(ids.clone())), numbers(loaded.forward(ids)), "{name}");
        }
    }
}

#[test]
fn damaged_checkpoints_are_refused() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let model = config("falcon-1.3").init(3, &device).unwrap();
    model.save(folder.path()).unwrap();
    let weights = folder.path().join(falcon_nn::WEIGHTS_FILE);
    let whole = std::fs::read(&weights).unwrap();
    let load = || refusal(Model::load(folder.path(), &device));

    std::fs::write(&weights, &whole[..whole.len() - 7]).unwrap();
    // Tensors lie in the order of their names.
    assert!(load().contains("cut off: tensor \"model.norm.weight\" ends at byte"), "{}", load());
    std::fs::write(&weights, &whole[..whole.len() / 3]).unwrap();
    assert!(load().contains("cut off: tensor \"model."), "{}", load());
    for damaged in [b"hello".as_slice(), b"", &whole[..40], &[255; 64]] {
        std::fs::write(&weights, damaged).unwrap();
        assert!(load().contains("not a safetensors file"), "{}", load());
    }

    // Same length, so the header stays valid.
    let renamed = replace(&whole, b"layers.1.attn.k_proj", b"layers.1.attn.x_proj");
    std::fs::write(&weights, &renamed).unwrap();
    let message = load();
    assert!(message.contains("no tensor \"model.layers.1.attn.k_proj.weight\""), "{message}");
    assert!(message.contains("did you mean \"model.layers.1.attn.x_proj.weight\"?"), "{message}");

    std::fs::write(&weights, &whole).unwrap();
    let config_file = folder.path().join(falcon_nn::CONFIG_FILE);
    let json = std::fs::read_to_string(&config_file).unwrap();
    std::fs::write(&config_file, json.replace("\"vocab_size\": 13", "\"vocab_size\": 14")).unwrap();
    let message = load();
    assert!(
        message.contains("\"model.embeddings.weight\" has shape [13, 16], its configuration says [14, 16]"),
        "{message}"
    );
    std::fs::write(&config_file, json.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")).unwrap();
    assert!(load().contains("\"model.layers.1."), "{}", load());
    std::fs::write(&config_file, json.replace("\"conv_size\"", "\"conv_sise\"")).unwrap();
    assert!(load().contains("conv_size"), "{}", load());
    std::fs::write(&config_file, json.replace("\"window\": 1", "\"window\": 1, \"windows\": 2")).unwrap();
    assert!(load().contains("unknown key \"windows\"; did you mean \"window\"?"), "{}", load());
    std::fs::write(&config_file, json.replace("\"hidden_size\": 16", "\"hidden_size\": 1048576")).unwrap();
    assert!(load().contains("its configuration describes a model of"), "{}", load());
    std::fs::write(&config_file, json.replace("falcon_fwa", "llama")).unwrap();
    assert!(load().contains("model_type is \"llama\"") && load().contains("only \"falcon_fwa\""), "{}", load());
    std::fs::write(&config_file, json.replace("\"hidden_size\"", "\"use_cache\": true, \"hidden_size\"")).unwrap();
    assert!(Model::load(folder.path(), &device).is_ok(), "keys of other programs must be ignored");
    std::fs::write(&weights, replace(&whole, b"\"F32\"", b"\"I32\"")).unwrap();
    assert!(load().contains("only F32, F16 and BF16 can be read"), "{}", load());
    std::fs::remove_file(&weights).unwrap();
    assert!(load().contains("model.safetensors"), "{}", load());
    assert!(refusal(Model::load(Path::new("/nonexistent"), &device)).contains("/nonexistent"));
}

/// Weights as other programs write them: in shards, as 16-bit floats, with copies.
#[test]
fn weights_of_other_programs_are_read_or_refused_with_a_reason() {
    use safetensors::Dtype;
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let (path, weights) = (|name: &str| folder.path().join(name), folder.path().join(falcon_nn::WEIGHTS_FILE));
    let tied = ModelConfig { tie_word_embeddings: true, ..config("transformer") };
    let model = tied.init(3, &device).unwrap();
    model.save(folder.path()).unwrap();
    let whole = falcon_nn::read_arrays(&weights).unwrap();
    let ids = || tensor(&tokens(9, 1), &device).unsqueeze();
    let expected = numbers(model.forward(ids()));
    let load = || Model::load(folder.path(), &device);

    // Copies of tied weights and rotary frequencies.
    let mut more = whole.clone();
    let embedding = whole["model.embeddings.weight"].clone();
    more.insert("lm_head.weight".into(), embedding.clone());
    let (theta, dim) = (tied.mixer.rope_theta.unwrap(), tied.mixer.head_dim);
    let frequencies: Vec<f32> = (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64) as f32).collect();
    let rotary = "model.layers.0.attn.rotary_emb.inv_freq";
    more.insert(rotary.into(), (vec![dim / 2], frequencies.clone()));
    falcon_nn::write_arrays(&weights, &more).unwrap();
    assert_eq!(numbers(load().unwrap().forward(ids())), expected);
    let refusal_with = |name: &str, numbers: Vec<f32>| {
        let mut wrong = more.clone();
        wrong.insert(name.into(), (vec![numbers.len()], numbers));
        falcon_nn::write_arrays(&weights, &wrong).unwrap();
        refusal(load())
    };
    let message = refusal_with("lm_head.weight", embedding.1.iter().map(|x| x + 1.0).collect());
    assert!(message.contains("it must equal model.embeddings.weight"), "{message}");
    let message = refusal_with(rotary, frequencies.iter().map(|x| x * 2.0).collect());
    assert!(message.contains("inv_freq") && message.contains("rope_theta"), "{message}");
    let message = refusal_with("model.layers.0.attn.bias", vec![0.0]);
    assert!(message.contains("\"model.layers.0.attn.bias\" belongs to no part"), "{message}");
    let message = refusal_with("model.norm.weight", vec![f32::NAN; 16]);
    assert!(message.contains("tensor \"model.norm.weight\" holds NaN at index [0]"), "{message}");

    // 16-bit floats without rounding.
    let rounded: NamedArrays = whole
        .iter()
        .map(|(name, (shape, numbers))| {
            let numbers = numbers.iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect();
            (name.clone(), (shape.clone(), numbers))
        })
        .collect();
    falcon_nn::write_arrays(&weights, &rounded).unwrap();
    let expected_rounded = numbers(load().unwrap().forward(ids()));
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = rounded
        .iter()
        .map(|(name, (shape, numbers))| {
            (name, shape, numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, data)| {
        (name.as_str(), safetensors::tensor::TensorView::new(Dtype::BF16, shape.to_vec(), data).unwrap())
    });
    std::fs::write(&weights, safetensors::serialize(views, None).unwrap()).unwrap();
    assert_eq!(numbers(load().unwrap().forward(ids())), expected_rounded);

    // Shards.
    std::fs::remove_file(&weights).unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let part = |odd: usize| -> NamedArrays {
        let mine = whole.iter().enumerate().filter(|(index, _)| index % 2 == odd);
        mine.map(|(_, (name, array))| (name.clone(), array.clone())).collect()
    };
    (0..2).for_each(|odd| falcon_nn::write_arrays(&path(shards[odd]), &part(odd)).unwrap());
    let write_index = |change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let names = whole.keys().enumerate();
        let mut map = names.map(|(index, name)| (name.clone(), shards[index % 2].into())).collect();
        change(&mut map);
        let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
        std::fs::write(path(falcon_nn::INDEX_FILE), index.to_string()).unwrap();
    };
    write_index(&|_| ());
    assert_eq!(numbers(load().unwrap().forward(ids())), expected);
    let first = whole.keys().next().unwrap().clone();
    for away in ["../model-00001-of-00002.safetensors", "/etc/passwd", "..", ""] {
        write_index(&|map| drop(map.insert(first.clone(), away.into())));
        assert!(
            refusal(load()).contains("not the name of a file in the same folder"),
            "{away}: {}",
            refusal(load())
        );
    }
    write_index(&|map| drop(map.insert(first.clone(), shards[1].into())));
    assert!(refusal(load()).contains("is not listed for that file"), "{}", refusal(load()));
    write_index(&|map| drop(map.insert("model.more".into(), shards[1].into())));
    let message = refusal(load());
    assert!(
        message.contains("tensor \"model.more\" should be in") && message.contains("does not have it"),
        "{message}"
    );
    write_index(&|map| map.clear());
    assert!(refusal(load()).contains("lists no tensor"), "{}", refusal(load()));
    write_index(&|_| ());
    std::fs::remove_file(path(shards[1])).unwrap();
    assert!(refusal(load()).contains("the shard \"model-00002-of-00002.safetensors\""), "{}", refusal(load()));
}

#[test]
fn saved_states_are_resumed() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.safetensors");
    for &name in PRESETS {
        let model = config(name).init(6, &device).unwrap();
        let ids = tensor(&tokens(2 * 12, 3), &device).reshape([2, 12]);
        let mut state = model.state(2);
        model.save_state(&state, &file).unwrap();
        assert_eq!(model.load_state(&file).unwrap().positions(), [0, 0], "{name}: a fresh state");
        model.resume(ids.clone().slice([0..2, 0..7]), &mut state);
        model.save_state(&state, &file).unwrap();
        let rest = ids.slice([0..2, 7..12]);
        let expected = numbers(model.resume(rest.clone(), &mut state));
        // By either engine: the saved numbers are the same.
        for engine in [Engine::Kernels, Engine::Tensors] {
            let model = Model::new(&config(name), engine, 6, &device).unwrap();
            let mut loaded = model.load_state(&file).unwrap();
            assert_eq!(loaded.positions(), [7, 7]);
            assert_near(
                &format!("{name} by {engine:?}"),
                &numbers(model.resume(rest.clone(), &mut loaded)),
                &expected,
            );
            assert_eq!(loaded.bytes(), state.bytes(), "{name}");
        }
        let mut other = config(name);
        other.num_hidden_layers = 1;
        let refused = other.init(6, &device).unwrap().load_state(&file).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("\"layers.1.") && refused.contains("another model?"), "{name}: {refused}");
    }
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let model = config("gated-deltanet").init(6, &device).unwrap();
    assert!(model.load_state(&file).map(|_| ()).unwrap_err().to_string().contains("state.safetensors"));
}

/// A saved state with any bit changed is refused, and so are states of other format versions.
#[test]
fn states_that_were_changed_are_refused() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.state");
    let model = config("falcon-1.3").init(1, &device).unwrap();
    let mut state = model.state(1);
    model.resume(tensor(&tokens(7, 2), &device).unsqueeze(), &mut state);
    model.save_state(&state, &file).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let refusal = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        model.load_state(&file).map(|_| ()).unwrap_err().to_string()
    };
    let (header, data) = (8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize, whole.len());
    for at in (header..data).step_by(41) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        let message = refusal(&bytes);
        assert!(message.contains("a.state: damaged: its content has the SHA-256"), "byte {at}: {message}");
    }
    for other in ["2", "9"] {
        let version = format!("\\\"version\\\":\\\"{other}\\\"");
        let bytes = replace(&whole, br#"\"version\":\"3\""#, version.as_bytes());
        let message = refusal(&bytes);
        assert!(
            message.contains(&format!("format version {other:?}, but this version of falcon reads \"3\"")),
            "{message}"
        );
    }
    // Before version 2, positions were a tensor and there was no metadata.
    let mut arrays = model.export_state(&state).arrays;
    arrays.insert("positions".into(), (vec![1, 2], vec![0.0, 7.0]));
    falcon_nn::write_arrays(&file, &arrays).unwrap();
    let old = refusal(&std::fs::read(&file).unwrap());
    assert!(old.contains("earlier version") && old.contains("--state-out"), "{old}");
    falcon_nn::write_arrays(&file, &NamedArrays::new()).unwrap();
    let other = refusal(&std::fs::read(&file).unwrap());
    assert!(other.contains("not a saved state"), "{other}");
}

#[test]
fn states_with_impossible_contents_are_refused() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.safetensors");
    let model = config("falcon-3.3").init(1, &device).unwrap();
    let mut state = model.state(1);
    model.resume(tensor(&tokens(7, 2), &device).unsqueeze(), &mut state);
    model.save_state(&state, &file).unwrap();
    let whole = SavedState::read(&file).unwrap();
    let refusal = |change: &dyn Fn(&mut SavedState)| {
        let mut saved = whole.clone();
        change(&mut saved);
        saved.write(&file).unwrap();
        model.load_state(&file).map(|_| ()).unwrap_err().to_string()
    };
    let message = refusal(&|saved| saved.positions = vec![1 << 60]);
    assert!(message.contains("\"positions\" holds \"1152921504606846976\", where a whole number"), "{message}");
    for bad in [f32::NAN, f32::INFINITY] {
        let last: Vec<usize> = whole.arrays["layers.1.memory"].0.iter().map(|size| size - 1).collect();
        let message = refusal(&|saved| {
            let (_, numbers) = saved.arrays.get_mut("layers.1.memory").unwrap();
            *numbers.last_mut().unwrap() = bad;
        });
        assert!(
            message.contains(&format!("tensor \"layers.1.memory\" holds {bad} at index {last:?}")),
            "{message}"
        );
    }
    let message = refusal(&|saved| saved.arrays.retain(|name, _| !name.starts_with("layers.0.conv")));
    assert!(
        message.contains("layers.0.conv"),
        "the last tokens before a convolution are part of a state: {message}"
    );
    let message = refusal(&|saved| drop(saved.arrays.remove("layers.0.tail_keys")));
    assert!(message.contains("no tensor \"layers.0.tail_keys\""), "{message}");
    let message = refusal(&|saved| saved.positions.clear());
    assert!(message.contains("layers.0") && message.contains("has shape [1,"), "{message}");
    // A million sequences in the positions, but one in the memory: nothing is allocated for them.
    let message = refusal(&|saved| saved.positions = vec![0; 1 << 20]);
    assert!(message.contains("layers.0") && message.contains("1048576"), "{message}");
}

/// Only arrays and positions are saved; everything else in a state follows from them. States of fresh, short and long
/// sequences are restored exactly.
#[test]
fn restored_states_are_equal() {
    let device = Device::flex();
    for &name in PRESETS {
        let model = config(name).init(6, &device).unwrap();
        let (mut short, mut long) = (model.state(2), model.state(1));
        model.run(&tokens(3, 3), &Sequences::packed(&[1, 2]), &mut short);
        model.run(&tokens(9, 4), &Sequences::packed(&[9]), &mut long);
        let state = model.join(vec![model.state(1), short, long]);
        let restored = model.import_state(model.export_state(&state), Path::new("file")).unwrap();
        let next = |mut state: falcon_nn::ModelState| {
            numbers(model.run(&tokens(9, 5), &Sequences::packed(&[2, 1, 3, 3]), &mut state))
        };
        assert_eq!(next(restored), next(state), "{name}");
    }
}

/// A cache has one part for all sequences, or one for each.
#[test]
fn caches_with_impossible_parts_are_refused() {
    let device = Device::flex();
    let model = config("transformer").init(1, &device).unwrap();
    let mut state = model.state(3);
    model.run(&tokens(16, 2), &Sequences::packed(&[4, 7, 5]), &mut state);
    let refusal = |mut saved: SavedState, change: fn(&mut NamedArrays)| {
        change(&mut saved.arrays);
        model.import_state(saved, Path::new("file")).map(|_| ()).unwrap_err().to_string()
    };
    let read = || model.export_state(&state);
    let message = refusal(read(), |arrays| drop(arrays.remove("layers.0.cache.2.keys")));
    assert!(message.contains("\"layers.0.cache\" holds 2 parts for 3 sequences"), "{message}");
    let message = refusal(read(), |arrays| drop(arrays.remove("layers.1.cache.2.values")));
    assert!(message.contains("no tensor \"layers.1.cache.2.values\""), "{message}");
    let message = refusal(SavedState { positions: vec![0; 3], ..read() }, |_| ());
    assert!(message.contains("\"layers.0.cache.0.keys\" has shape [1, 2, 4, 8]"), "{message}");
    let message = refusal(model.export_state(&model.state(3)), |arrays| {
        for name in ["cache.0.keys", "cache.0.values", "cache.1.keys", "cache.1.values"] {
            arrays.insert(format!("layers.0.{name}"), (vec![1, 2, 0, 8], Vec::new()));
        }
    });
    assert!(message.contains("\"layers.0.cache\" holds 2 parts for 3 sequences"), "{message}");
}

fn refusal(result: Result<Model, falcon_nn::FileError>) -> String {
    result.map(|_| ()).unwrap_err().to_string()
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}
