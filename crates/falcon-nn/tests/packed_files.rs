//! Models with weights in fewer bits on disk.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::Device;
use falcon_nn::{CONFIG_FILE, Model, ModelConfig, PRESETS, WEIGHTS_FILE, WeightFormat};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use self::common::{config, numbers, tensor, tokens};

const PACKED: [WeightFormat; 2] = [WeightFormat::Bf16, WeightFormat::Int8];

/// A tensor of a file.
type Raw = (Dtype, Vec<usize>, Vec<u8>);

fn read(folder: &Path) -> BTreeMap<String, Raw> {
    let bytes = fs::read(folder.join(WEIGHTS_FILE)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let raw = |tensor: &TensorView<'_>| (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec());
    tensors.iter().map(|(name, tensor)| (name.clone(), raw(tensor))).collect()
}

fn write(folder: &Path, tensors: &BTreeMap<String, Raw>) {
    let views = tensors
        .iter()
        .map(|(name, (kind, shape, bytes))| (name, TensorView::new(*kind, shape.clone(), bytes).unwrap()));
    fs::write(folder.join(WEIGHTS_FILE), safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn packed_models_are_loaded_as_they_were_saved() {
    let device = Device::flex();
    for &name in PRESETS {
        for (tied, format) in [(true, PACKED[0]), (false, PACKED[0]), (true, PACKED[1]), (false, PACKED[1])] {
            let (folder, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            // More than one block in a row, the last of which is not full.
            let config = ModelConfig { tie_word_embeddings: tied, intermediate_size: 40, ..config(name) };
            let packed = config.init(3, &device).unwrap().packed(format);
            packed.save_for(folder.path(), Some("0123456789abcdef")).unwrap();
            let loaded = Model::load(folder.path(), &device).unwrap();
            assert_eq!((loaded.weights(), loaded.config()), (format, packed.config()), "{name}");
            let ids = || tensor(&tokens(9, 1), &device).unsqueeze();
            assert_eq!(numbers(loaded.forward(ids())), numbers(packed.forward(ids())), "{name}, {format}");
            assert_eq!(
                falcon_nn::tokenizer_fingerprint(folder.path()).unwrap().as_deref(),
                Some("0123456789abcdef")
            );
            loaded.save_for(again.path(), Some("0123456789abcdef")).unwrap();
            for file in [CONFIG_FILE, WEIGHTS_FILE] {
                assert_eq!(
                    fs::read(folder.path().join(file)).unwrap(),
                    fs::read(again.path().join(file)).unwrap(),
                    "{name}, {format}: {file}"
                );
            }
        }
    }
}

/// Matrices are in the format, gates in `bf16`, and everything else is as it was.
#[test]
fn tensors_of_packed_models_have_the_documented_types() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let model = config("falcon-1a.3").init(3, &device).unwrap();
    model.clone().packed(WeightFormat::Int8).save(folder.path()).unwrap();
    let tensors = read(folder.path());
    let of = |name: &str| (tensors[name].0, tensors[name].1.clone());
    assert_eq!(of("model.layers.0.mlp.down_proj.weight"), (Dtype::I8, vec![16, 24]));
    assert_eq!(of("model.layers.0.mlp.down_proj.weight.scales"), (Dtype::F32, vec![16, 1]));
    assert_eq!(of("model.layers.1.attn.b_proj.weight").0, Dtype::BF16);
    assert_eq!(of("model.norm.weight"), (Dtype::F32, vec![16]));
    let scales = tensors.keys().filter(|name| name.ends_with(".scales")).count();
    let integers = tensors.values().filter(|(kind, ..)| *kind == Dtype::I8).count();
    assert_eq!((scales, tensors.len()), (integers, model.parameters().len() + integers));
    model.packed(WeightFormat::Bf16).save(folder.path()).unwrap();
    let kinds: Vec<Dtype> = read(folder.path()).into_values().map(|(kind, ..)| kind).collect();
    assert!(kinds.contains(&Dtype::BF16) && kinds.contains(&Dtype::F32) && !kinds.contains(&Dtype::I8));
    let json = fs::read_to_string(folder.path().join(CONFIG_FILE)).unwrap();
    assert!(json.contains("\"weight_format\": \"bf16\""), "{json}");
}

#[test]
fn packed_files_that_are_damaged_are_refused() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let model = config("falcon-1.3").init(3, &device).unwrap();
    let refused = || Model::load(path, &device).map(|_| ()).unwrap_err().to_string();
    let (matrix, gate) = ("model.layers.1.attn.k_proj.weight", "model.layers.1.attn.b_proj.weight");
    let scales = format!("{matrix}.scales");
    let f32s = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();

    model.clone().packed(WeightFormat::Int8).save(path).unwrap();
    let whole = read(path);
    let json = fs::read_to_string(path.join(CONFIG_FILE)).unwrap();
    let with = |change: &dyn Fn(&mut BTreeMap<String, Raw>)| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        write(path, &tensors);
        refused()
    };
    type Change<'a> = (&'a dyn Fn(&mut BTreeMap<String, Raw>), &'a str);
    let set = |name: &str, raw: Raw| {
        let name = name.to_string();
        move |tensors: &mut BTreeMap<String, Raw>| drop(tensors.insert(name.clone(), raw.clone()))
    };
    let scale = |number: f32| {
        let (scales, mut numbers) = (scales.clone(), vec![0.5; 16]);
        numbers[2] = number;
        set(&scales, (Dtype::F32, vec![16, 1], f32s(&numbers)))
    };
    let changes: [Change<'_>; 14] = [
        (&|tensors| drop(tensors.remove(&scales)), "no tensor \"model.layers.1.attn.k_proj.weight.scales\""),
        (
            &|tensors| drop(tensors.remove(matrix)),
            "no tensor \"model.layers.1.attn.k_proj.weight\", of shape [16, 16]",
        ),
        (&|tensors| drop(tensors.remove("model.norm.weight")), "no tensor \"model.norm.weight\""),
        (
            &set(&scales, (Dtype::F32, vec![16, 2], f32s(&[1.0; 32]))),
            "has shape [16, 2], its configuration says [16, 1]",
        ),
        (
            &set(&scales, (Dtype::F16, vec![16, 1], vec![0; 32])),
            "is F16, and where config.json says weight_format int8",
        ),
        (&scale(f32::NAN), "holds NaN at index [2, 0], and a scale is from 0 to"),
        (&scale(f32::INFINITY), "holds inf at index [2, 0]"),
        (&scale(-0.25), "holds -0.25 at index [2, 0]"),
        (&scale(f32::MAX), "and a scale is from 0 to 2.6584558e36"),
        (
            &set(matrix, (Dtype::I8, vec![16, 15], vec![0; 240])),
            "has shape [16, 15], its configuration says [16, 16]",
        ),
        (
            &set(matrix, (Dtype::F32, vec![16, 16], vec![0; 1024])),
            "is F32, and where config.json says weight_format int8 it must be I8",
        ),
        (
            &set(gate, (Dtype::I8, vec![2, 16], vec![0; 32])),
            "is I8, and where config.json says weight_format int8 it must be BF16",
        ),
        (
            &set("model.norm.weight", (Dtype::I8, vec![16], vec![0; 16])),
            "tensor \"model.norm.weight\" is I8; only F32, F16 and BF16",
        ),
        (&set(&format!("{gate}.scales"), (Dtype::F32, vec![2, 1], vec![0; 8])), "belongs to no part of the model"),
    ];
    for (change, message) in changes {
        let refused = with(change);
        assert!(refused.contains(message), "{message}: {refused}");
        assert!(refused.contains(WEIGHTS_FILE), "{refused}");
    }
    // A scale of zero is that of a block of zeros.
    let mut zero = whole.clone();
    scale(0.0)(&mut zero);
    write(path, &zero);
    assert!(Model::load(path, &device).is_ok());

    write(path, &whole);
    let bytes = fs::read(path.join(WEIGHTS_FILE)).unwrap();
    for end in [bytes.len() - 3, bytes.len() / 2] {
        fs::write(path.join(WEIGHTS_FILE), &bytes[..end]).unwrap();
        assert!(refused().contains("cut off: tensor \"model."), "{}", refused());
    }
    write(path, &whole);
    for (format, message) in [
        ("\"int4\"", "weight_format: unknown weight format \"int4\": did you mean \"int8\"?"),
        ("7", "weight_format: unknown weight format \"7\""),
        ("\"bf16\"", "is I8, and where config.json says weight_format bf16 it must be BF16"),
        ("\"f32\"", "is I8; only F32, F16 and BF16 can be read"),
    ] {
        fs::write(path.join(CONFIG_FILE), json.replace("\"int8\"", format)).unwrap();
        assert!(refused().contains(message), "{message}: {}", refused());
    }
    fs::write(path.join(CONFIG_FILE), json.replace("\"hidden_size\": 16", "\"hidden_size\": 1048576")).unwrap();
    assert!(refused().contains("its configuration describes a model of"), "{}", refused());

    // A bf16 model.
    model.packed(WeightFormat::Bf16).save(path).unwrap();
    let mut tensors = read(path);
    tensors.get_mut(matrix).unwrap().2[3] = 0x7f;
    tensors.get_mut(matrix).unwrap().2[2] = 0x80;
    write(path, &tensors);
    assert!(refused().contains("k_proj.weight\" holds inf at index [0, 1]"), "{}", refused());
    tensors.insert(matrix.into(), (Dtype::F32, vec![16, 16], vec![0; 1024]));
    write(path, &tensors);
    assert!(refused().contains("it must be BF16; convert the model again"), "{}", refused());
}
