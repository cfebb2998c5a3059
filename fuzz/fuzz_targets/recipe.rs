//! Files made from the bytes of the fuzzer: most of them valid, some with a few errors.

use std::collections::BTreeMap;

use falcon_scan::variants;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

/// The contents of a file, from which [`Recipe::bytes`] makes it.
pub struct Recipe {
    meta: Map<String, Value>,
    tensors: BTreeMap<String, Tensor>,
    /// Whether all numbers are moderate, so that the forms must agree closely.
    pub comparable: bool,
}

struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn view(&self) -> TensorView<'_> {
        TensorView::new(self.dtype, self.shape.clone(), &self.bytes).expect("the bytes fit the type and the shape")
    }
}

/// The range of a random number.
#[derive(Clone, Copy, PartialEq)]
enum Range {
    Signed,
    Positive,
    Unit,
}

impl Recipe {
    /// Reads choices from `data`. When it runs out, all further choices are 0.
    pub fn read(data: &[u8]) -> Result<Self> {
        let bytes = &mut Unstructured::new(data);
        let variants: Vec<&str> = variants().collect();
        let variant = *bytes.choose(&variants)?;
        let falcon = variant.starts_with("falcon");
        let mut recipe = Self { meta: Map::new(), tensors: BTreeMap::new(), comparable: true };
        let tokens = bytes.int_in_range(0..=20)?;
        let key_heads = bytes.int_in_range(1..=2)?;
        let heads = key_heads * bytes.int_in_range(1..=2)?;
        let (dx, dv) = (bytes.int_in_range(1..=5)?, bytes.int_in_range(1..=5)?);
        let same = bytes.ratio(1, 3)?;
        recipe.meta = json!({
            "kind": if falcon { "falcon" } else { "baseline" },
            "variant": variant,
            "align": if same { "same" } else { "next" },
            "read": if bytes.ratio(1, 4)? { "before" } else { "after" },
            "eps": *bytes.choose(&[1e-6, 0.0, 0.5])?,
            "eps_gamma": *bytes.choose(&[1e-3, 0.0, 0.9])?,
            "eps_attn": *bytes.choose(&[1e-6, 0.0, 0.5])?,
            "gain_kind": *bytes.choose(&["beta", "eta"])?,
            "ridge": *bytes.choose(&["off", "actual", "scaled"])?,
            "order": *bytes.choose(&["zoh", "first"])?,
        })
        .as_object()
        .cloned()
        .unwrap_or_default();
        if matches!(variant, "rls" | "ssm_zoh") {
            recipe.meta.remove("read");
        }
        if bytes.ratio(1, 4)? {
            recipe.meta.insert("detach".into(), bytes.arbitrary::<bool>()?.into());
        }

        // Sequences that are cut at arbitrary tokens.
        let sequences = if bytes.ratio(1, 3)? { Some(bytes.int_in_range(1..=3)?) } else { None };
        if let Some(sequences) = sequences {
            let mut cuts = vec![0, tokens as i64];
            for _ in 1..sequences {
                cuts.push(bytes.int_in_range(0..=tokens as i64)?);
            }
            cuts.sort_unstable();
            recipe.integers("in.cu_seqlens", &cuts);
        }
        let state = |shape: &[usize]| sequences.into_iter().chain(shape.iter().copied()).collect::<Vec<usize>>();

        if variant == "ssm_zoh" {
            let (n, din) = (dx, bytes.int_in_range(1..=3)?);
            recipe.add(bytes, "in.x", vec![tokens, heads, din], Range::Signed)?;
            recipe.add(bytes, "in.A", vec![heads, n], Range::Signed)?;
            recipe.add(bytes, "in.Bm", vec![tokens, heads, n, din], Range::Signed)?;
            recipe.add(bytes, "in.Cm", vec![tokens, heads, n, dv], Range::Signed)?;
            recipe.add(bytes, "in.dt", vec![tokens, heads], Range::Positive)?;
            recipe.maybe(bytes, "in.h0", state(&[heads, n]))?;
            recipe.maybe(bytes, "up.h", state(&[heads, n]))?;
        } else {
            recipe.add(bytes, "in.q", vec![tokens, key_heads, dx], Range::Signed)?;
            recipe.add(bytes, "in.k", vec![tokens, key_heads, dx], Range::Signed)?;
            recipe.add(bytes, "in.v", vec![tokens, heads, dv], Range::Signed)?;
            recipe.maybe(bytes, "in.S0", state(&[heads, dx, dv]))?;
            recipe.maybe(bytes, "up.S", state(&[heads, dx, dv]))?;
            recipe.add_gains(bytes, variant, [tokens, heads, dv])?;
        }
        match variant {
            "normalized_linear_attention" => {
                recipe.maybe(bytes, "in.z0", state(&[heads, dx]))?;
                recipe.maybe(bytes, "up.z", state(&[heads, dx]))?;
                // A denominator near 0 amplifies rounding errors.
                recipe.comparable = false;
            }
            "rls" => recipe.maybe(bytes, "up.P", state(&[heads, dx, dx]))?,
            _ => {}
        }
        if falcon {
            let continued = !same && bytes.ratio(1, 2)?;
            if continued {
                recipe.add(bytes, "in.k_last", state(&[key_heads, dx]), Range::Signed)?;
            }
            let window = bytes.int_in_range(1..=6)?;
            let slides = matches!(variant, "falcon3" | "falcon3a");
            // Sometimes a rule without a window gets a tail, which must be refused.
            let has_tail = (continued || same) && (slides || bytes.ratio(1, 8)?);
            let tail = if has_tail { bytes.int_in_range(0..=window - 1)? } else { 0 };
            if slides {
                let window = if bytes.ratio(1, 16)? { u64::MAX } else { window as u64 };
                recipe.meta.insert("B".into(), window.into());
            }
            if tail > 0 {
                recipe.add(bytes, "in.tail_x", state(&[tail, key_heads, dx]), Range::Signed)?;
                recipe.add(bytes, "in.tail_v", state(&[tail, heads, dv]), Range::Signed)?;
            }
            if let (Some(sequences), true) = (sequences, has_tail) {
                let mut lengths = Vec::new();
                for _ in 0..sequences {
                    lengths.push(bytes.int_in_range(0..=tail as i64)?);
                }
                recipe.integers("in.tail_len", &lengths);
            }
        }
        recipe.add(bytes, "up.o", vec![tokens, heads, dv], Range::Signed)?;
        recipe.spoil(bytes)?;
        Ok(recipe)
    }

    fn add_gains(
        &mut self,
        bytes: &mut Unstructured<'_>,
        variant: &str,
        [tokens, heads, dv]: [usize; 3],
    ) -> Result<()> {
        let per_head = vec![tokens, heads];
        match variant {
            "retnet" => self.add(bytes, "in.decay", vec![heads], Range::Unit)?,
            "rls" => self.add(bytes, "in.lam", vec![heads], Range::Positive)?,
            "deltanet" => self.add(bytes, "in.gain", per_head, Range::Positive)?,
            "gated_deltanet" | "mamba2" => {
                self.add(bytes, "in.eta", per_head.clone(), Range::Positive)?;
                self.add(bytes, "in.g", per_head, Range::Unit)?;
            }
            "online_ridge" => {
                self.add(bytes, "in.beta", per_head.clone(), Range::Positive)?;
                self.add(bytes, "in.lam", per_head, Range::Positive)?;
            }
            "normalized_linear_attention" => {
                for name in ["in.eta", "in.lam"] {
                    if bytes.arbitrary()? {
                        self.add(bytes, name, per_head.clone(), Range::Unit)?;
                    }
                }
            }
            _ if variant.starts_with("falcon") => {
                let columns = matches!(variant, "falcon2" | "falcon2a");
                let shape = if columns { vec![tokens, heads, dv] } else { per_head.clone() };
                self.add(bytes, "in.gain", shape, Range::Positive)?;
                if self.meta["ridge"] != "off" {
                    self.add(bytes, "in.lam", per_head, Range::Positive)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn integers(&mut self, name: &str, numbers: &[i64]) {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.tensors.insert(name.into(), Tensor { dtype: Dtype::I64, shape: vec![numbers.len()], bytes });
    }

    fn maybe(&mut self, bytes: &mut Unstructured<'_>, name: &str, shape: Vec<usize>) -> Result<()> {
        if bytes.arbitrary()? { self.add(bytes, name, shape, Range::Signed) } else { Ok(()) }
    }

    fn add(&mut self, bytes: &mut Unstructured<'_>, name: &str, shape: Vec<usize>, range: Range) -> Result<()> {
        let dtype = *bytes.choose(&[Dtype::F64, Dtype::F64, Dtype::F32, Dtype::BF16, Dtype::F16])?;
        let mut data = Vec::new();
        for _ in 0..shape.iter().product() {
            let number = self.number(bytes, range)?;
            match dtype {
                Dtype::F64 => data.extend(number.to_le_bytes()),
                Dtype::F32 => data.extend((number as f32).to_le_bytes()),
                Dtype::BF16 => data.extend(&(number as f32).to_le_bytes()[2..]),
                // These bits are a half-precision number of moderate size in most cases.
                _ => data.extend(((number.abs() * 4096.0) as u16).to_le_bytes()),
            }
        }
        self.tensors.insert(name.into(), Tensor { dtype, shape, bytes: data });
        Ok(())
    }

    /// A number from one byte: an extreme one for the eight largest bytes, else a moderate one.
    fn number(&mut self, bytes: &mut Unstructured<'_>, range: Range) -> Result<f64> {
        let byte: u8 = bytes.arbitrary()?;
        let extremes = [1e-300, 1e-40, 1e-8, 1e8, 1e30, 1e200, f64::INFINITY, f64::NAN];
        if byte >= 248 {
            self.comparable = false;
            return Ok(extremes[usize::from(byte - 248)]);
        }
        let number = f64::from(byte) / 124.0;
        Ok(match range {
            Range::Signed => number - 1.0,
            Range::Positive => number,
            Range::Unit => number / 2.0,
        })
    }

    /// Makes some recipes wrong.
    fn spoil(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        if !bytes.ratio(1, 8)? || self.tensors.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        let name = bytes.choose(&names)?.clone();
        match bytes.int_in_range(0..=5)? {
            0 => drop(self.tensors.remove(&name)),
            1 => {
                let keys: Vec<String> = self.meta.keys().cloned().collect();
                self.meta.remove(bytes.choose(&keys)?);
            }
            2 => {
                let key = *bytes.choose(&["T", "H", "dx", "dv", "B", "n_tail", "eps", "eps_gamma", "n", "din"])?;
                self.meta.insert(key.into(), bytes.arbitrary::<i64>()?.into());
            }
            3 => {
                let key = *bytes.choose(&["continued", "sentinel", "detach"])?;
                self.meta.insert(key.into(), bytes.arbitrary::<bool>()?.into());
            }
            4 => {
                // Another shape for the same numbers.
                if let Some(tensor) = self.tensors.get_mut(&name) {
                    let shift = bytes.int_in_range(0..=tensor.shape.len().saturating_sub(1))?;
                    tensor.shape.rotate_left(shift);
                }
            }
            _ => {
                // No numbers at all, but an axis of arbitrary size.
                if let Some(tensor) = self.tensors.get_mut(&name) {
                    let axis = bytes.int_in_range(0..=tensor.shape.len().saturating_sub(1))?;
                    tensor.bytes.clear();
                    tensor.shape.fill(0);
                    if tensor.shape.len() > 1 {
                        tensor.shape[axis] = bytes.int_in_range(0..=usize::MAX >> 8)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let info = [("meta".to_string(), Value::Object(self.meta.clone()).to_string())].into_iter().collect();
        let views = self.tensors.iter().map(|(name, tensor)| (name, tensor.view()));
        safetensors::serialize(views, Some(info)).expect("sizes are small")
    }
}
