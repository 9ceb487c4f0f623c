//! The files that the tests read, and the pipelines that they share.

#![allow(dead_code, reason = "each test program uses some of it")]

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::{Batch, Pipeline};
use burn_pipeline_moe::cache::CachePlace;
use finetune_llama::config::Llama;
use finetune_llama::model::PLACE;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) fn device() -> Device {
    Device::flex()
}

/// A folder of this package.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

pub(crate) fn llama(name: &str) -> Llama {
    Llama::read(&folder(name)).unwrap()
}

/// A tensor of f32, or of bf16 as f32: shape and values.
pub(crate) fn floats(path: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let file = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let view = tensors.tensor(name).unwrap();
    let values = match view.dtype() {
        safetensors::Dtype::BF16 => {
            let wide = |bytes: &[u8]| f32::from_le_bytes([0, 0, bytes[0], bytes[1]]);
            view.data().chunks(2).map(wide).collect()
        }
        safetensors::Dtype::F32 => view.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        other => panic!("{name} is {other:?}"),
    };
    (view.shape().to_vec(), values)
}

/// The names of a file's tensors.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let file = std::fs::read(path).unwrap();
    SafeTensors::deserialize(&file).unwrap().names().into_iter().map(str::to_owned).collect()
}

/// All tensors of a file.
pub(crate) fn all_floats(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    names(path).into_iter().map(|name| (name.clone(), floats(path, &name))).collect()
}

pub(crate) fn integers(path: &Path, name: &str) -> (Vec<usize>, Vec<i64>) {
    let file = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let view = tensors.tensor(name).unwrap();
    let values = view.data().chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect();
    (view.shape().to_vec(), values)
}

/// The tokens of a file, without the last `less` of each row.
pub(crate) fn ids(path: &Path, skip: usize, less: usize) -> Tensor<2, Int> {
    let (shape, values) = integers(path, "tokens");
    let all = Tensor::<2, Int>::from_data(TensorData::new(values, [shape[0], shape[1]]), &device());
    all.narrow(1, skip, shape[1] - skip - less)
}

pub(crate) fn tokens(path: &Path) -> Batch {
    Batch::new(ids(path, 0, 0)).extra(PLACE, None::<CachePlace>)
}

pub(crate) fn logits(pipeline: &mut Pipeline, batch: Batch) -> Vec<f32> {
    pipeline.eval(batch).unwrap().output::<Tensor<3>>().unwrap().into_data().iter::<f32>().collect()
}
