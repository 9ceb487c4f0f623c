//! Exports as folders: shards with an index, as Hugging Face's `transformers` writes and reads them.

use super::{MODEL, builder, exported, floats, from, stored};
use crate::checkpoint::on_each_rank;
use burn::store::{BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, PyTorchToBurnAdapter};
use burn::tensor::DType;
use burn_pipeline::train::{CheckpointError, Export, Pretrained};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::tempdir;

const MOST: u64 = 9_000;

/// The names and contents of a folder's files.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| std::fs::read(entry.path()).unwrap();
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), read(entry))).collect()
}

#[test]
fn shards_hold_every_tensor_once_under_the_index_and_are_read_back_to_the_bit() {
    let folder = tempdir().unwrap();
    let model = stored(&folder);
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    pipeline.load_pretrained(&model).unwrap();
    let out = folder.path().join("out");
    pipeline.export_as(&out, Export::from(BurnToPyTorchAdapter).sharded(MOST)).unwrap();
    let files = files(&out);
    let index: serde_json::Value = serde_json::from_slice(&files["model.safetensors.index.json"]).unwrap();
    let (mut held, mut total, shards) = (BTreeMap::new(), 0, files.len() - 1);
    for (number, (file, bytes)) in (1..).zip(files.iter().filter(|(file, _)| file.ends_with(".safetensors"))) {
        assert_eq!(*file, format!("model-{number:05}-of-{shards:05}.safetensors"));
        let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        let size: usize = tensors.tensors().iter().map(|(_, view)| view.data().len()).sum();
        assert!(size as u64 <= MOST, "{file} has {size} bytes");
        total += size;
        tensors.names().into_iter().for_each(|name| assert_eq!(index["weight_map"][name], **file, "{name}"));
        held.extend(floats(bytes));
    }
    assert_eq!((shards, total, index["metadata"]["total_size"].as_u64()), (5, 36_416, Some(36_416)));
    assert_eq!(index["weight_map"].as_object().unwrap().len(), 39);
    assert!(held == floats(MODEL), "other weights");

    let mut back = builder("1F1B", 4, 1).build().unwrap();
    back.load_pretrained(&Pretrained::folder(&out).adapter(PyTorchToBurnAdapter)).unwrap();
    assert!(floats(&exported(&mut back, &folder.path().join("back"))) == floats(MODEL), "other weights");
}

#[test]
fn ranks_that_are_apart_write_the_folder_of_threads_byte_for_byte() {
    let folder = tempdir().unwrap();
    let model = stored(&folder);
    let how = || Export::from(BurnToPyTorchAdapter).sharded(MOST);
    let mut together = builder("1F1B", 2, 1).build().unwrap();
    together.load_pretrained(&model).unwrap();
    together.export_as(folder.path().join("together"), how()).unwrap();
    on_each_rank(&builder("1F1B", 2, 1), 2, |_, pipeline| {
        pipeline.load_pretrained(&model).unwrap();
        pipeline.export_as(folder.path().join("apart"), how()).unwrap();
    });
    assert!(files(&folder.path().join("apart")) == files(&folder.path().join("together")), "another folder");
}

#[test]
fn a_folder_that_is_not_empty_is_refused_and_a_failed_export_leaves_nothing() {
    let folder = tempdir().unwrap();
    let model = stored(&folder);
    let how = || Export::from(BurnToPyTorchAdapter).sharded(MOST);
    let before = files(folder.path());
    for (path, says) in [(folder.path().to_path_buf(), "not empty"), (folder.path().join("no/folder"), "no/folder")] {
        let errors = on_each_rank(&builder("1F1B", 2, 1), 2, |_, pipeline| {
            pipeline.load_pretrained(&model).unwrap();
            pipeline.export_as(&path, how()).unwrap_err()
        });
        assert!(matches!(errors[0], CheckpointError::Io { .. }), "{}", errors[0]);
        assert!(errors.iter().all(|error| error.to_string().contains(says)), "{}", errors[1]);
    }
    assert!(files(folder.path()) == before, "something was left");
    // What a stopped export has left is no obstacle.
    let partial = folder.path().join("out.partial");
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("model-00001-of-00009.safetensors"), "left").unwrap();
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    pipeline.export_as(folder.path().join("out/"), how()).unwrap();
    assert!(!partial.exists() && !folder.path().join("out/model-00001-of-00009.safetensors").exists());
}

#[test]
fn masters_in_f32_are_written_as_bf16_rounded_to_nearest_even() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    pipeline.load_pretrained(&stored(&folder)).unwrap();
    let out = folder.path().join("out");
    let bf16 = BurnToPyTorchAdapter.chain(FloatCastAdapter::to(DType::BF16));
    pipeline.export_as(&out, Export::from(bf16).sharded(u64::MAX)).unwrap();
    let files = files(&out);
    assert_eq!(files.keys().collect::<Vec<_>>(), ["model.safetensors"]);
    let tensors = SafeTensors::deserialize(&files["model.safetensors"]).unwrap();
    for (name, (shape, values)) in floats(MODEL) {
        // Half of the last bit that stays, less one if that bit is even.
        let rounded = |value: f32| (value.to_bits() + 0x7fff + (value.to_bits() >> 16 & 1)) >> 16;
        let expected: Vec<u8> = values.iter().flat_map(|&value| (rounded(value) as u16).to_le_bytes()).collect();
        let view = tensors.tensor(&name).unwrap();
        assert_eq!((view.dtype(), view.shape(), view.data()), (Dtype::BF16, &*shape, &*expected), "{name}");
    }
    pipeline.load_pretrained(&from(out.join("model.safetensors"))).unwrap();
}
