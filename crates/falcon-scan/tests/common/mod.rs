//! Files to test with: a golden case taken apart, changed and put together again.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    fn view(&self) -> TensorView<'_> {
        TensorView::new(self.dtype, self.shape.clone(), &self.bytes).unwrap()
    }
}

/// A file that can be changed.
#[derive(Clone)]
pub struct File {
    pub meta: Map<String, Value>,
    pub tensors: BTreeMap<String, Tensor>,
}

pub fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../golden/{name}.safetensors"))
}

impl File {
    /// The inputs of a golden case.
    pub fn golden(name: &str) -> Self {
        let mut file = Self::parse(&std::fs::read(golden_path(name)).unwrap());
        file.tensors.retain(|name, _| name.starts_with("in.") || name.starts_with("up."));
        file
    }

    pub fn parse(bytes: &[u8]) -> Self {
        let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
        let meta = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["meta"]).unwrap();
        let tensors = SafeTensors::deserialize(bytes)
            .unwrap()
            .iter()
            .map(|(name, view)| {
                let (dtype, shape, bytes) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                (name.to_string(), Tensor { dtype, shape, bytes })
            })
            .collect();
        Self { meta, tensors }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let meta = serde_json::to_string(&self.meta).unwrap();
        let info = [("meta".to_string(), meta)].into_iter().collect();
        let views = self.tensors.iter().map(|(name, tensor)| (name, tensor.view()));
        safetensors::serialize(views, Some(info)).unwrap()
    }

    pub fn numbers(&self, name: &str) -> Vec<f64> {
        self.tensors[name].bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
    }

    pub fn set(&mut self, name: &str, shape: &[usize], numbers: &[f64]) {
        assert_eq!(shape.iter().product::<usize>(), numbers.len(), "{name}");
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.tensors.insert(name.into(), Tensor { dtype: Dtype::F64, shape: shape.to_vec(), bytes });
    }

    pub fn set_integers(&mut self, name: &str, numbers: &[i64]) {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.tensors.insert(name.into(), Tensor { dtype: Dtype::I64, shape: vec![numbers.len()], bytes });
    }

    /// The same file with one number changed.
    pub fn poke(&self, name: &str, at: usize, value: f64) -> Self {
        let mut file = self.clone();
        file.tensors.get_mut(name).unwrap().bytes[at * 8..][..8].copy_from_slice(&value.to_le_bytes());
        file
    }

    /// The same file with one key of `meta` changed; `null` removes it.
    pub fn with(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut file = self.clone();
        file.meta.insert(key.into(), value.into());
        file
    }

    pub fn without(&self, name: &str) -> Self {
        let mut file = self.clone();
        file.tensors.remove(name).unwrap();
        file
    }
}
