//! Every golden case in every form, in `f32` and `f64`: names, shapes and numbers.
//!
//! The cases come from an independent `f64` implementation; `golden/README.md` describes them. They are run through
//! `falcon-scan`, which reads the files and calls the kernels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use falcon_kernels::Form;
use falcon_scan::{Dtype, Options};
use safetensors::SafeTensors;
use serde_json::Value;

/// The number of cases, so that none can disappear unnoticed.
const CASES: usize = 73;

const FORMS: [Form; 6] = [
    Form::Recurrent,
    Form::Masked,
    Form::Chunked { chunk: 1 },
    Form::Chunked { chunk: 5 },
    Form::Chunked { chunk: 16 },
    Form::Chunked { chunk: 64 },
];

struct Golden {
    name: String,
    bytes: Vec<u8>,
    /// `out.*`, `aux.*` and `grad.*`: shape and numbers.
    expected: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    /// How far a plain f32 implementation is from the numbers, by tensor.
    f32_error: BTreeMap<String, f64>,
}

fn load() -> Vec<Golden> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    paths.sort();
    let cases: Vec<Golden> = paths
        .iter()
        .map(|path| {
            let bytes = std::fs::read(path).unwrap();
            let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
            let meta: Value = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["meta"]).unwrap();
            let errors = meta["f32_ref_err"].as_object().unwrap();
            let f32_error = errors.iter().map(|(name, error)| (name.clone(), error.as_f64().unwrap())).collect();
            let expected = SafeTensors::deserialize(&bytes)
                .unwrap()
                .iter()
                .filter(|(name, _)| !name.starts_with("in.") && !name.starts_with("up."))
                .map(|(name, view)| {
                    let numbers = view.data().as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
                    (name.to_string(), (view.shape().to_vec(), numbers))
                })
                .collect();
            Golden { name: path.file_stem().unwrap().to_str().unwrap().into(), bytes, expected, f32_error }
        })
        .collect();
    assert_eq!(cases.len(), CASES);
    cases
}

/// The relative error allowed for a tensor, and the absolute error allowed if all expected numbers are 0.
fn tolerance(case: &Golden, dtype: Dtype, tensor: &str) -> (f64, f64) {
    match dtype {
        Dtype::F64 => (1e-10, 1e-12),
        Dtype::F32 => (20.0 * case.f32_error.get(tensor).unwrap_or(&0.0) + 5e-6, 1e-6),
    }
}

fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    // NaN must be kept, which `f64::max` does not do.
    numbers.fold(0.0, |most: f64, x| if most.is_nan() || x.abs() <= most { most } else { x.abs() })
}

/// The differences of one run from the expected results, one line each.
fn differences(case: &Golden, form: Form, dtype: Dtype) -> Vec<String> {
    let options = Options { form, dtype, grad: true, ..Options::default() };
    let found = match falcon_scan::run(&case.bytes, &options) {
        Ok(outcome) => outcome.tensors,
        Err(error) => return vec![format!("error: {error}")],
    };
    let mut differences = Vec::new();
    let names: Vec<&str> = found.iter().map(|(name, _)| name).collect();
    let expected: Vec<&str> = case.expected.keys().map(String::as_str).collect();
    if names != expected {
        differences.push(format!("names {names:?}, expected {expected:?}"));
    }
    for (name, (shape, expected)) in &case.expected {
        let Some(tensor) = found.get(name) else { continue };
        if tensor.shape != *shape {
            differences.push(format!("{name}: shape {:?}, expected {shape:?}", tensor.shape));
            continue;
        }
        let (relative, absolute) = tolerance(case, dtype, name);
        let scale = largest(expected.iter().copied());
        let error = largest(tensor.to_f64().iter().zip(expected).map(|(a, b)| a - b));
        let allowed = if scale == 0.0 { absolute } else { relative * scale };
        if error.is_nan() || error > allowed {
            differences.push(format!("{name}: error {error:.2e}, allowed {allowed:.2e} (largest {scale:.2e})"));
        }
    }
    differences
}

fn check(dtype: Dtype) {
    let mut report = String::new();
    let cases = load();
    for case in &cases {
        for form in FORMS {
            for difference in differences(case, form, dtype) {
                writeln!(report, "{} {form:?} {dtype:?} {difference}", case.name).unwrap();
            }
        }
    }
    assert!(report.is_empty(), "{} differences:\n{report}", report.lines().count());
}

#[test]
fn golden_f64() {
    check(Dtype::F64);
}

#[test]
fn golden_f32() {
    check(Dtype::F32);
}
