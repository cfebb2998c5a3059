//! What the golden cases do not cover: packed sequences, grouped heads, segments, empty sequences, Mamba-2, and other
//! number formats. Each must agree with runs that the golden cases do cover.

mod common;

use common::File;
use falcon_scan::{Options, Tensors};
use safetensors::Dtype;
use serde_json::Value;

/// One case of each kind of state.
const CASES: [&str; 12] = [
    "falcon1_ridge_scaled",
    "falcon2_clamp",
    "falcon3_ridge_off",
    "falcon3_same_step",
    "falcon1a_ridge_off",
    "falcon3a_ctx_eta",
    "base_normlinattn_decay_p0",
    "base_retnet_p0",
    "base_gated_deltanet_p0",
    "base_online_ridge_p0",
    "base_rls_p0",
    "base_ssm_zoh_p0",
];

/// Tensors that have no time axis.
const STATES: [&str; 12] = [
    "in.S0",
    "in.z0",
    "in.h0",
    "in.k_last",
    "in.tail_x",
    "in.tail_v",
    "up.S",
    "up.z",
    "up.P",
    "up.h",
    "in.A",
    "in.decay",
];

fn is_state(file: &File, name: &str) -> bool {
    STATES.contains(&name) || (name == "in.lam" && file.meta["variant"] == "rls")
}

/// Parameters of a head that all sequences share, and whose gradients add up.
fn is_shared(file: &File, name: &str) -> bool {
    let name = name.trim_start_matches("in.").trim_start_matches("grad.");
    name == "A" || name == "decay" || (name == "lam" && file.meta["variant"] == "rls")
}

fn run(file: &File) -> Tensors {
    let options = Options { grad: true, ..Options::default() };
    falcon_scan::run(&file.bytes(), &options).unwrap().tensors
}

fn refusal(file: &File) -> String {
    falcon_scan::run(&file.bytes(), &Options::default()).unwrap_err().to_string()
}

/// The file with only the tokens `from..to`.
fn slice(file: &File, from: usize, to: usize) -> File {
    let mut part = file.clone();
    part.meta.remove("T");
    for (name, tensor) in &file.tensors {
        if !is_state(file, name) {
            let mut shape = tensor.shape.clone();
            let row: usize = shape[1..].iter().product();
            shape[0] = to - from;
            part.set(name, &shape, &file.numbers(name)[from * row..to * row]);
        }
    }
    part
}

/// Makes `file` continue the run whose results are `before`.
fn continue_from(file: &mut File, before: &Tensors) {
    for key in ["continued", "sentinel", "n_tail"] {
        file.meta.remove(key);
    }
    for name in ["S", "k_last", "tail_x", "tail_v"] {
        // With align "same" a last key is of no use.
        if name == "k_last" && file.meta["align"] == "same" {
            continue;
        }
        if let Some(tensor) = before.get(&format!("out.{name}")) {
            let name = if name == "S" { "in.S0".into() } else { format!("in.{name}") };
            file.set(&name, &tensor.shape, &tensor.to_f64());
        }
    }
}

fn assert_close(what: &str, a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len(), "{what}");
    let scale = b.iter().fold(0.0, |most: f64, x| most.max(x.abs())).max(1e-3);
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 1e-11 * scale, "{what}[{i}]: {a} {b}");
    }
}

#[test]
fn packed_sequences_equal_separate_ones() {
    for name in CASES {
        let whole = File::golden(name);
        let tokens = whole.tensors["up.o"].shape[0];
        let cuts = [0, tokens / 2, tokens];
        // The initial states differ, so that mixing them up would show.
        let mut parts: Vec<File> = cuts.windows(2).map(|cut| slice(&whole, cut[0], cut[1])).collect();
        for start in ["in.S0", "in.z0", "in.h0"] {
            if whole.tensors.contains_key(start) {
                let scaled: Vec<f64> = whole.numbers(start).iter().map(|x| x * 0.5).collect();
                parts[1].set(start, &whole.tensors[start].shape, &scaled);
            }
        }
        let mut packed = whole.clone();
        packed.set_integers("in.cu_seqlens", &cuts.map(|cut| cut as i64));
        for (tensor, found) in &whole.tensors {
            if is_state(&whole, tensor) && !is_shared(&whole, tensor) {
                let numbers: Vec<f64> = parts.iter().flat_map(|part| part.numbers(tensor)).collect();
                packed.set(tensor, &[&[2], &found.shape[..]].concat(), &numbers);
            }
        }
        let (packed, parts) = (run(&packed), parts.iter().map(run).collect::<Vec<_>>());
        let expected: Vec<&str> = parts[0].iter().map(|(name, _)| name).collect();
        let names: Vec<&str> =
            packed.iter().map(|(name, _)| name).filter(|name| *name != "out.tail_len").collect();
        assert_eq!(names, expected, "{name}");
        for tensor in names {
            if tensor.starts_with("out.tail") {
                continue;
            }
            let numbers: Vec<Vec<f64>> = parts.iter().map(|part| part.get(tensor).unwrap().to_f64()).collect();
            let expected = if is_shared(&whole, tensor) {
                numbers[0].iter().zip(&numbers[1]).map(|(a, b)| a + b).collect()
            } else {
                numbers.concat()
            };
            assert_close(&format!("{name} {tensor}"), &packed.get(tensor).unwrap().to_f64(), &expected);
        }
    }
}

#[test]
fn packed_tails_may_differ_in_length() {
    // 20 tokens, window 7: sequences of 3, 16 and 1 tokens leave tails of 2, 6 and 0 pairs.
    let whole = File::golden("falcon3_ridge_off");
    let mut packed = whole.clone();
    packed.set_integers("in.cu_seqlens", &[0, 3, 19, 20]);
    for name in ["in.S0", "up.S"] {
        packed.set(name, &[3, 1, 3, 4], &whole.numbers(name).repeat(3));
    }
    let first = run(&packed);
    assert_eq!(first.get("out.tail_len").unwrap().to_f64(), [2.0, 6.0, 0.0]);
    assert_eq!(first.get("out.tail_x").unwrap().shape, [3, 6, 1, 3]);
    let short = run(&slice(&whole, 0, 3));
    let padded = first.get("out.tail_x").unwrap().to_f64();
    assert_close("tail of the short one", &padded[..6], &short.get("out.tail_x").unwrap().to_f64());
    assert!(padded[6..18].iter().all(|x| *x == 0.0), "the short tail is padded with zeros: {padded:?}");

    // Continued with the same tokens, the short sequence must give the same results as on its own.
    let mut next = packed.clone();
    continue_from(&mut next, &first);
    next.set_integers("in.tail_len", &[2, 6, 0]);
    let next = run(&next);
    let mut alone = slice(&whole, 0, 3);
    continue_from(&mut alone, &short);
    let alone = run(&alone);
    let out = alone.get("out.o").unwrap().to_f64();
    assert_close("o", &next.get("out.o").unwrap().to_f64()[..out.len()], &out);
    let grad = alone.get("grad.tail_x").unwrap().to_f64();
    assert_close("grad.tail_x", &next.get("grad.tail_x").unwrap().to_f64()[..grad.len()], &grad);
}

#[test]
fn two_segments_equal_the_whole_sequence() {
    for name in
        ["falcon1_ridge_scaled", "falcon2_same_step", "falcon3_ridge_off", "falcon3_same_step", "falcon3a_ctx_eta"]
    {
        let whole = File::golden(name);
        let tokens = whole.tensors["in.q"].shape[0];
        let expected = run(&whole);
        for cut in [1, 2, tokens - 1] {
            let first = run(&slice(&whole, 0, cut));
            let mut second = slice(&whole, cut, tokens);
            continue_from(&mut second, &first);
            let second = run(&second);
            for tensor in ["out.o", "aux.eta", "aux.gamma"] {
                let joined = [&first, &second].map(|part| part.get(tensor).unwrap().to_f64()).concat();
                assert_close(&format!("{name} {cut} {tensor}"), &joined, &expected.get(tensor).unwrap().to_f64());
            }
            for tensor in ["out.S", "out.k_last", "out.tail_x", "out.tail_v"] {
                let [a, b] = [&second, &expected]
                    .map(|run| run.get(tensor).map(|tensor| (tensor.shape.clone(), tensor.to_f64())));
                assert_eq!(a.is_some(), b.is_some(), "{name} {tensor}");
                if let (Some(a), Some(b)) = (a, b) {
                    assert_eq!(a.0, b.0, "{name} {tensor}");
                    assert_close(&format!("{name} {cut} {tensor}"), &a.1, &b.1);
                }
            }
        }
    }
}

#[test]
fn grouped_heads_equal_repeated_key_heads() {
    for name in [
        "falcon2_ridge_off",
        "falcon3_beta_gt1",
        "falcon3a_continuation",
        "base_normlinattn_decay_p0",
        "base_rls_p0",
    ] {
        let file = File::golden(name);
        let keys: Vec<&str> = ["in.q", "in.k", "in.k_last", "in.tail_x"]
            .into_iter()
            .filter(|name| file.tensors.contains_key(*name))
            .collect();
        let (mut grouped, mut repeated) = (file.clone(), file.clone());
        for key in &keys {
            let mut shape = file.tensors[*key].shape.clone();
            let dim = shape[shape.len() - 1];
            let numbers = file.numbers(key);
            let first: Vec<&[f64]> = numbers.chunks(dim).step_by(2).collect();
            repeated.set(
                key,
                &shape,
                &first.iter().flat_map(|row| [*row, *row]).flatten().copied().collect::<Vec<_>>(),
            );
            let heads = shape.len() - 2;
            shape[heads] = 1;
            grouped.set(key, &shape, &first.concat());
        }
        let (grouped, repeated) = (run(&grouped), run(&repeated));
        for (tensor, expected) in repeated.iter() {
            let found = grouped.get(tensor).unwrap().to_f64();
            let expected = expected.to_f64();
            let by_key = keys.iter().any(|key| tensor.strip_prefix("grad.") == key.strip_prefix("in."));
            let dim = file.tensors["in.q"].shape[2];
            let expected: Vec<f64> = if by_key {
                // The gradients of the heads of a group add up.
                expected
                    .chunks(2 * dim)
                    .flat_map(|pair| (0..dim).map(|i| pair[i] + pair[dim + i]).collect::<Vec<_>>())
                    .collect()
            } else if ["out.k_last", "out.tail_x"].contains(&tensor) {
                expected.chunks(dim).step_by(2).flatten().copied().collect()
            } else {
                expected
            };
            assert_close(&format!("{name} {tensor}"), &found, &expected);
        }
    }
}

#[test]
fn a_file_without_tokens_keeps_its_state() {
    for name in CASES.into_iter().chain(["falcon3_continuation", "falcon2_continuation"]) {
        let file = slice(&File::golden(name), 0, 0);
        let found = run(&file);
        assert_eq!(found.get("out.o").unwrap().shape[0], 0, "{name}");
        for (start, end) in [
            ("in.S0", "out.S"),
            ("in.h0", "out.h"),
            ("in.k_last", "out.k_last"),
            ("in.tail_x", "out.tail_x"),
            ("up.S", "grad.S0"),
        ] {
            if let (true, Some(end)) = (file.tensors.contains_key(start), found.get(end)) {
                assert_eq!(end.to_f64(), file.numbers(start), "{name} {start}");
            }
        }
        assert_eq!(found.get("out.k_last").is_some(), file.tensors.contains_key("in.k_last"), "{name}");
    }
}

#[test]
fn defaults_are_the_documented_ones() {
    for (name, detach) in
        [("falcon3_ridge_scaled", true), ("falcon3a_ridge_scaled", true), ("falcon2_ridge_scaled", false)]
    {
        let file = File::golden(name);
        assert_eq!((&file.meta["detach"], &file.meta["read"]), (&detach.into(), &"after".into()), "{name}");
        let expected = run(&file);
        assert_eq!(run(&file.with("detach", Value::Null).with("read", Value::Null)), expected, "{name}");
        assert_ne!(run(&file.with("detach", !detach)), expected, "{name}: the option must matter here");
    }
}

#[test]
fn bad_offsets_are_refused() {
    let mut file = File::golden("base_linattn_same_p0");
    for offsets in [&[0, 3][..], &[1, 7], &[0, 8], &[0, 5, 3, 7], &[-1, 7], &[]] {
        file.set_integers("in.cu_seqlens", offsets);
        assert!(refusal(&file).contains("in.cu_seqlens"), "{offsets:?}");
    }
    file.set_integers("in.cu_seqlens", &[0, 7, 7]);
    assert!(refusal(&file).contains("in.S0 has shape [2, 4, 3], expected [2, 2, 4, 3]"), "{}", refusal(&file));
    let mut file = File::golden("falcon1_ridge_scaled").without("in.S0");
    file.set_integers("in.cu_seqlens", &[0, 2, 2, 5]);
    assert!(refusal(&file).contains("sequence 1 of in.cu_seqlens"), "{}", refusal(&file));
}

#[test]
fn mamba2_matches_its_recurrence() {
    let mut file = File::golden("base_gated_deltanet_p0").with("variant", "mamba2");
    file.tensors.retain(|name, _| name.starts_with("in."));
    let (q, k, v) = (file.numbers("in.q"), file.numbers("in.k"), file.numbers("in.v"));
    let (delta, gate, mut s) = (file.numbers("in.eta"), file.numbers("in.g"), file.numbers("in.S0"));
    let (heads, dx, dv) = (2, 4, 3);
    let mut out = Vec::new();
    for row in 0..7 * heads {
        let h = row % heads;
        for c in 0..dv {
            let mut sum = 0.0;
            for i in 0..dx {
                let s = &mut s[(h * dx + i) * dv + c];
                *s = gate[row] * *s + delta[row] * k[row * dx + i] * v[row * dv + c];
                sum += *s * q[row * dx + i];
            }
            out.push(sum);
        }
    }
    let found = falcon_scan::run(&file.bytes(), &Options::default()).unwrap().tensors;
    assert_close("o", &found.get("out.o").unwrap().to_f64(), &out);
    assert_close("S", &found.get("out.S").unwrap().to_f64(), &s);
}

#[test]
fn formats_shorter_than_f64_are_read() {
    let mut file = File::golden("base_linattn_same_p0");
    // Multiples of 1/8 up to 4 are exact in all formats.
    for (name, tensor) in file.clone().tensors {
        let rounded: Vec<f64> =
            file.numbers(&name).iter().map(|x| (x * 8.0).round().clamp(-32.0, 32.0) / 8.0).collect();
        file.set(&name, &tensor.shape, &rounded);
    }
    let expected = run(&file);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        let mut short = file.clone();
        for (name, tensor) in &mut short.tensors {
            tensor.dtype = dtype;
            tensor.bytes = file.numbers(name).iter().flat_map(|x| encode(dtype, *x as f32)).collect();
        }
        assert_eq!(run(&short), expected, "{dtype:?}");
    }
}

fn encode(dtype: Dtype, x: f32) -> Vec<u8> {
    let bits = x.to_bits();
    match dtype {
        Dtype::F16 if x == 0.0 => vec![0, 0],
        Dtype::F16 => {
            let exponent = ((bits >> 23 & 0xff) as i32 - 127 + 15) as u32;
            ((bits >> 16 & 0x8000 | exponent << 10 | bits >> 13 & 0x3ff) as u16).to_le_bytes().to_vec()
        }
        Dtype::BF16 => bits.to_le_bytes()[2..].to_vec(),
        _ => bits.to_le_bytes().to_vec(),
    }
}
