//! Files that cannot be run: every refusal names what is wrong, where, and what to do.

mod common;

use common::File;
use falcon_kernels::Form;
use falcon_scan::Options;
use serde_json::Value;

/// Runs a file with gradients, and expects an error of one line that contains all `words`.
fn refused(what: &str, bytes: &[u8], words: &[&str]) {
    let options = Options { grad: true, ..Options::default() };
    let error = falcon_scan::run(bytes, &options).expect_err(what).to_string();
    for word in words {
        assert!(error.contains(word), "{what}: {error:?} lacks {word:?}");
    }
    assert_eq!(error.lines().count(), 1, "{what}: {error}");
}

fn base() -> File {
    File::golden("falcon3_continuation")
}

#[test]
fn broken_containers_are_refused() {
    let bytes = base().bytes();
    refused("empty", b"", &["safetensors"]);
    refused("garbage", &[0xa5; 100], &["safetensors"]);
    for length in [4, 9, 200, bytes.len() - 1] {
        refused("truncated", &bytes[..length], &["safetensors"]);
    }
    refused("trailing bytes", &[&bytes[..], &[0]].concat(), &["safetensors"]);
    let mut wrong_length = bytes.clone();
    wrong_length[..8].copy_from_slice(&(1u64 << 60).to_le_bytes());
    refused("header length", &wrong_length, &["safetensors", "header too large"]);

    let header =
        |header: &str, data: &[u8]| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    let tensor = r#"{"dtype":"F64","shape":[1],"data_offsets":[0,8]}"#;
    let meta = r#""__metadata__":{"meta":"{}"}"#;
    refused("no meta", &header(&format!(r#"{{"in.q":{tensor}}}"#), &[0; 8]), &["meta", "json.dumps"]);
    refused("overlap", &header(&format!(r#"{{{meta},"a":{tensor},"b":{tensor}}}"#), &[0; 8]), &["offset"]);
    refused("twice", &header(&format!(r#"{{{meta},"a":{tensor},"a":{tensor}}}"#), &[0; 8]), &["\"a\" twice"]);
    let huge = r#"{"dtype":"F64","shape":[4294967296,4294967296,16],"data_offsets":[0,8]}"#;
    refused("huge shape", &header(&format!(r#"{{{meta},"a":{huge}}}"#), &[0; 8]), &["overflow"]);
    let empty = header(&format!("{{{meta}}}"), &[]);
    refused("empty meta", &empty, &["meta has no \"kind\""]);
    let not_json = header(r#"{"__metadata__":{"meta":"{"}}"#, &[]);
    refused("meta is not JSON", &not_json, &["meta", "JSON"]);
    let mut not_utf8 = empty.clone();
    not_utf8[12] = 0xff;
    refused("not UTF-8", &not_utf8, &["safetensors", "UTF-8"]);
}

#[test]
fn bad_meta_is_refused() {
    let base = base();
    refused("window 0", &base.with("B", 0).bytes(), &["\"B\" is 0", "at least 1"]);
    refused("tail longer than the window", &base.with("B", 6).bytes(), &["\"B\" is 6", "6 pairs"]);
    refused("no window", &base.with("B", Value::Null).bytes(), &["no \"B\"", "falcon3"]);
    refused("negative window", &base.with("B", -3).bytes(), &["\"B\" is -3"]);
    refused("variant", &base.with("variant", "falcon9").bytes(), &["\"falcon9\"", "falcon3a"]);
    refused("kind", &base.with("kind", "baseline").bytes(), &["\"falcon3\"", "deltanet"]);
    refused("no align", &base.with("align", Value::Null).bytes(), &["no \"align\"", "\"next\""]);
    refused("no eps", &base.with("eps", Value::Null).bytes(), &["no \"eps\"", "beta"]);
    refused("eps_gamma", &base.with("eps_gamma", 1.0).bytes(), &["\"eps_gamma\" is 1.0", "[0, 1)"]);
    refused("negative eps", &base.with("eps", -1).bytes(), &["\"eps\" is -1", "a number, at least 0"]);
    let normalised = File::golden("base_normlinattn_decay_p0").with("eps_attn", -0.5);
    refused("eps_attn", &normalised.bytes(), &["\"eps_attn\" is -0.5", "a number, at least 0"]);
    refused("text for eps", &base.with("eps", "small").bytes(), &["\"eps\" is \"small\"", "a number"]);
    refused("T", &base.with("T", 6).bytes(), &["\"T\" is 6", "in.q has size 5"]);
    refused("H", &base.with("H", "1").bytes(), &["\"H\" is \"1\"", "whole number"]);
    refused(
        "continued",
        &base.with("continued", false).bytes(),
        &["\"continued\" is false", "in.k_last is there"],
    );
    refused("sentinel", &base.with("sentinel", true).bytes(), &["\"sentinel\" is true"]);
    refused("window of falcon1", &File::golden("falcon1_clamp").with("B", 4).bytes(), &["\"B\" is 4", "falcon3"]);
    refused("order", &File::golden("base_ssm_zoh_p0").with("order", "second").bytes(), &["\"second\"", "\"zoh\""]);
}

#[test]
fn bad_tensors_are_refused() {
    let base = base();
    let mut short = base.clone();
    short.set("in.k", &[4, 1, 8], &[0.5; 32]);
    refused("shape", &short.bytes(), &["in.k has shape [4, 1, 8]", "[5, 1, 8]"]);
    let mut flat = base.clone();
    flat.set("in.q", &[5, 8], &[0.5; 40]);
    refused("rank", &flat.bytes(), &["in.q has shape [5, 8]", "3 axes"]);
    let mut hollow = base.clone();
    hollow.set("in.v", &[5, 1, 0], &[]);
    refused("zero width", &hollow.bytes(), &["in.v has shape [5, 1, 0]", "at least 1"]);
    refused("no values", &base.without("in.v").bytes(), &["in.v is missing"]);
    refused("no gain", &base.without("in.gain").bytes(), &["in.gain is missing", "falcon3 needs it"]);
    refused("no upstream", &base.without("up.o").bytes(), &["up.o is missing", "--grad"]);
    refused("half a tail", &base.without("in.tail_v").bytes(), &["in.tail_v is missing", "in.tail_x"]);
    let mut typo = base.clone();
    typo.set("in.lambda", &[5, 1], &[0.0; 5]);
    refused("unknown tensor", &typo.bytes(), &["does not use in.lambda"]);
    refused("ridge off", &base.with("ridge", "off").bytes(), &["does not use in.lam"]);
    refused("last key with same", &base.with("align", "same").bytes(), &["does not use in.k_last"]);
    let mut integers = base.clone();
    integers.tensors.get_mut("in.q").unwrap().dtype = safetensors::Dtype::I64;
    refused("integers", &integers.bytes(), &["in.q is I64", "F32"]);
    let mut heads = File::golden("falcon2_ridge_off");
    heads.set("in.q", &[12, 3, 8], &[0.5; 288]);
    refused("groups", &heads.bytes(), &["in.v has 2 heads and in.q 3"]);
}

/// Only rules with a window keep pairs. The other rules refuse tensors of a tail, even if its length is 0.
#[test]
fn tails_of_rules_without_a_window_are_refused() {
    for packed in [false, true] {
        let mut file = File::golden("falcon1_clamp");
        let [tokens, heads, dim_k] = file.tensors["in.q"].shape[..] else { panic!() };
        let dim_v = file.tensors["in.v"].shape[2];
        file.meta.remove("continued");
        file.meta.remove("sentinel");
        file.meta.remove("n_tail");
        let lead = if packed { vec![1] } else { vec![] };
        for (name, shape, needed) in [
            ("in.k_last", [heads, dim_k].to_vec(), true),
            ("in.tail_x", [2, heads, dim_k].to_vec(), true),
            ("in.tail_v", [2, heads, dim_v].to_vec(), true),
            ("in.S0", [heads, dim_k, dim_v].to_vec(), false),
            ("up.S", [heads, dim_k, dim_v].to_vec(), false),
        ] {
            if needed || file.tensors.contains_key(name) {
                let shape = [&lead[..], &shape].concat();
                file.set(name, &shape, &vec![0.5; shape.iter().product()]);
            }
        }
        if packed {
            file.set_integers("in.cu_seqlens", &[0, tokens as i64]);
            file.set_integers("in.tail_len", &[0]);
        }
        refused("a tail of falcon1", &file.bytes(), &["falcon1 does not use in.tail_"]);
        let (file, name) = (file.without("in.tail_x").without("in.tail_v"), "in.tail_len");
        if packed {
            refused("lengths of tails", &file.bytes(), &["falcon1 does not use in.tail_len"]);
            refused("n_tail", &file.without(name).with("n_tail", 2).bytes(), &["\"n_tail\" is 2"]);
        }
    }
}

#[test]
fn bad_numbers_are_refused() {
    let base = base();
    for (value, word) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (f64::NEG_INFINITY, "-inf")] {
        let message = |place: &str| format!("{place} is {word}: inputs must be finite");
        for (name, at, place) in [
            ("in.q", 9, "in.q[1, 0, 1]"),
            ("in.k", 39, "in.k[4, 0, 7]"),
            ("in.v", 0, "in.v[0, 0, 0]"),
            ("in.S0", 17, "in.S0[0, 2, 1]"),
            ("in.gain", 3, "in.gain[3, 0]"),
            ("in.lam", 2, "in.lam[2, 0]"),
            ("in.k_last", 5, "in.k_last[0, 5]"),
            ("in.tail_x", 8, "in.tail_x[1, 0, 0]"),
            ("in.tail_v", 47, "in.tail_v[5, 0, 7]"),
            ("up.o", 1, "up.o[0, 0, 1]"),
            ("up.S", 63, "up.S[0, 7, 7]"),
        ] {
            refused(name, &base.poke(name, at, value).bytes(), &[&message(place)]);
        }
    }
    refused("beta", &base.poke("in.gain", 3, 2.5).bytes(), &["in.gain[3, 0] is 2.5: beta must be in [0, 2]"]);
    refused("ridge", &base.poke("in.lam", 1, -0.5).bytes(), &["in.lam[1, 0] is -0.5: lambda must be at least 0"]);
    let columns = File::golden("falcon2_clamp").poke("in.gain", 6, -1.0);
    refused("per-column gain", &columns.bytes(), &["in.gain[1, 0, 2] is -1: beta"]);
    let retnet = File::golden("base_retnet_p0").poke("in.decay", 1, 1.5);
    refused("decay", &retnet.bytes(), &["in.decay[1] is 1.5: gamma must be in [0, 1]"]);
    let rls = File::golden("base_rls_p0").poke("in.lam", 1, 0.0);
    refused("lambda", &rls.bytes(), &["in.lam[1] is 0: lambda must be greater than 0"]);
    let ssm = File::golden("base_ssm_zoh_p0").poke("in.dt", 3, -0.25);
    refused("dt", &ssm.bytes(), &["in.dt[1, 1] is -0.25", "at least 0"]);
    let grows = File::golden("base_ssm_zoh_p0").poke("in.A", 0, 1e6);
    refused("overflow", &grows.bytes(), &["the result out.", "scale them down"]);
}

/// The size of a state is a product of widths, so that a small file can need terabytes.
#[test]
fn small_files_that_need_huge_memory_are_refused() {
    let wide = 1 << 20;
    let mut file = File::golden("base_linattn_same_p0");
    file.tensors.clear();
    for key in ["T", "H", "dx", "dv"] {
        file.meta.remove(key);
    }
    for name in ["in.q", "in.k", "in.v", "up.o"] {
        file.set(name, &[1, 1, wide], &vec![0.0; wide]);
    }
    refused("wide", &file.bytes(), &["GiB", "--max-memory"]);
    for name in ["in.q", "in.k", "in.v", "up.o"] {
        file.set(name, &[0, 1 << 40, 1 << 20], &[]);
    }
    refused("no tokens, many heads", &file.bytes(), &["GiB", "--max-memory"]);

    // No tensor limits the window, but a window longer than all pairs costs nothing: the new tail has the 6 pairs of
    // the old one and 5 more.
    let found = falcon_scan::run(&base().with("B", u64::MAX).bytes(), &Options::default()).unwrap();
    assert_eq!(found.tensors.get("out.tail_x").unwrap().shape, [11, 1, 8]);
}

/// The error names the first offset that is wrong.
#[test]
fn bad_offsets_are_refused() {
    let file = |offsets: &[i64]| {
        let mut file = File::golden("base_linattn_same_p0");
        let tokens = file.tensors["in.q"].shape[0] as i64;
        for name in ["in.S0", "up.S"] {
            file.tensors.remove(name);
        }
        let offsets: Vec<i64> = offsets.iter().map(|&at| if at == i64::MAX { tokens } else { at }).collect();
        file.set_integers("in.cu_seqlens", &offsets);
        (file.bytes(), tokens)
    };
    // Stands for the number of tokens.
    let end = i64::MAX;
    assert!(falcon_scan::run(&file(&[0, 2, 2, end]).0, &Options::default()).is_ok());
    for (offsets, position, got) in [
        (&[1, end][..], 0, "1"),
        (&[0, 3, 2, end], 2, "2"),
        (&[0, -1, end], 1, "-1"),
        (&[0, 1000, end], 1, "1000"),
        (&[0, 2], 1, "2"),
        (&[0], 0, "0"),
    ] {
        let (bytes, tokens) = file(offsets);
        let place = format!("in.cu_seqlens[{position}] is {got}: offsets must start at 0");
        refused("offsets", &bytes, &[&place, &format!("end at {tokens} (the tokens)")]);
    }
}

/// Per-column rules compute a long chunk in short pieces, and must not be refused for memory that they do not use.
#[test]
fn the_memory_estimate_depends_on_the_form() {
    let (tokens, width) = (4096, 4);
    let mut file = File::golden("falcon2_ridge_off");
    file.tensors.clear();
    for key in ["T", "H", "dx", "dv"] {
        file.meta.remove(key);
    }
    for name in ["in.q", "in.k", "in.v", "in.gain", "up.o"] {
        file.set(name, &[tokens, 1, width], &vec![0.5; tokens * width]);
    }
    let options = |form| Options { form, grad: true, max_memory: 16 << 20, ..Options::default() };
    for form in [Form::Recurrent, Form::Chunked { chunk: 4096 }] {
        assert!(falcon_scan::run(&file.bytes(), &options(form)).is_ok(), "{form:?}");
    }
    let error = falcon_scan::run(&file.bytes(), &options(Form::Masked)).unwrap_err().to_string();
    assert!(error.contains("--max-memory"), "{error}");
}

/// Tensors that are neither `in.` nor `up.` are ignored, whatever their names.
#[test]
fn other_tensors_are_ignored() {
    let options = Options { grad: true, ..Options::default() };
    let plain = File::golden("base_linattn_same_p0");
    let mut more = plain.clone();
    for name in ["", "out.o", "note"] {
        more.set(name, &[1], &[f64::NAN]);
    }
    let [plain, more] = [plain, more].map(|file| falcon_scan::run(&file.bytes(), &options).unwrap().tensors);
    assert_eq!(more, plain);
}
