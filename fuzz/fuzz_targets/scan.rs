//! Runs arbitrary bytes, and arbitrary but plausible files, through `falcon-scan`.

#![no_main]

mod recipe;

use falcon_kernels::Form;
use falcon_scan::{Dtype, Options, Tensors};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(&choice) = data.last() else { return };
    let options = options(choice);
    // A safetensors file has its JSON header after 8 bytes of length.
    if data.get(8) == Some(&b'{') {
        let _ = falcon_scan::run(data, &options);
        return;
    }
    let Ok(recipe) = recipe::Recipe::read(data) else { return };
    let file = recipe.bytes();
    let Ok(found) = falcon_scan::run(&file, &options) else { return };
    if recipe.comparable && options.dtype == Dtype::F64 {
        let reference = Options { form: Form::Recurrent, ..options };
        let expected = falcon_scan::run(&file, &reference).expect("all forms accept the same files");
        compare(&found.tensors, &expected.tensors);
    }
});

/// All combinations of options, from one byte.
fn options(choice: u8) -> Options {
    let chunk = [1, 2, 3, 5, 16, 64][usize::from(choice >> 4) % 6];
    Options {
        grad: choice & 1 == 1,
        dtype: if choice & 2 == 0 { Dtype::F64 } else { Dtype::F32 },
        form: match choice >> 2 & 3 {
            0 => Form::Recurrent,
            1 => Form::Masked,
            _ => Form::Chunked { chunk },
        },
        max_memory: 256 << 20,
    }
}

/// Forms differ by rounding only. Where the recurrence itself amplifies rounding errors, its results are large, and
/// they are not compared.
fn compare(found: &Tensors, expected: &Tensors) {
    let largest =
        expected.iter().flat_map(|(_, tensor)| tensor.to_f64()).fold(1.0, |most: f64, x| most.max(x.abs()));
    if largest > 1e4 {
        return;
    }
    for (name, tensor) in expected.iter() {
        let other = found.get(name).expect("all forms give the same tensors");
        assert_eq!(tensor.shape, other.shape, "{name}");
        for (a, b) in other.to_f64().iter().zip(tensor.to_f64()) {
            assert!((a - b).abs() <= 1e-6 * largest, "{name}: {a} {b}");
        }
    }
}
