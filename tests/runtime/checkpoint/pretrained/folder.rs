//! Folders as Hugging Face's `transformers` writes them: one file or shards with an index, safetensors or PyTorch's.

use super::pytorch::STATE_DICT;
use super::{COMPUTED, MODEL, assert_close, builder, exported, floats, logits};
use crate::checkpoint::{on_each_rank, weights};
use burn::store::{PyTorchToBurnAdapter, PytorchStore};
use burn::tensor::{DType, TensorData};
use burn_pipeline::stage::Precision;
use burn_pipeline::train::{CheckpointError, Pretrained};
use safetensors::tensor::{TensorView, serialize_to_file};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::tempdir;

/// Two shards of PyTorch's format (`goldens/shards.py`): the embedding and two layers, and the rest.
const FIRST: &[u8] = include_bytes!("goldens/first.bin");
const SECOND: &[u8] = include_bytes!("goldens/second.bin");

const INDEX: &str = "model.safetensors.index.json";

fn index(map: &BTreeMap<String, String>) -> String {
    serde_json::json!({ "metadata": { "total_size": 0 }, "weight_map": map }).to_string()
}

/// The file of a tensor, if the first two layers and the embedding are in one file and the rest in another.
fn file_of(name: &str, kind: &str) -> String {
    let first = ["embed_tokens", "layers.0.", "layers.1."].iter().any(|part| name.contains(part));
    format!("model-0000{}-of-00002.{kind}", if first { 1 } else { 2 })
}

/// Stores the model in two files with an index, and files that are no part of it.
fn shards(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let all = SafeTensors::deserialize(MODEL).unwrap().tensors();
    let mut files: BTreeMap<String, Vec<(String, TensorView)>> = BTreeMap::new();
    for (name, view) in all {
        files.entry(file_of(&name, "safetensors")).or_default().push((name, view));
    }
    let map = files.iter().flat_map(|(file, held)| held.iter().map(|(name, _)| (name.clone(), file.clone())));
    std::fs::write(folder.join(INDEX), index(&map.collect())).unwrap();
    for (file, held) in files {
        serialize_to_file(held, None, &folder.join(file)).unwrap();
    }
    for stray in ["config.json", "model-00003-of-00003.safetensors", "pytorch_model.bin", "tokenizer.model"] {
        std::fs::write(folder.join(stray), "stray").unwrap();
    }
}

fn from(folder: &Path) -> Pretrained {
    Pretrained::folder(folder).adapter(PyTorchToBurnAdapter)
}

/// The error of a load on one rank; the weights stay.
fn refused(folder: &Path) -> CheckpointError {
    let mut pipeline = builder("GPipe", 1, 1).build().unwrap();
    let before = weights(&mut pipeline);
    let error = pipeline.load_pretrained(&from(folder)).unwrap_err();
    assert_eq!(weights(&mut pipeline), before, "{error}");
    error
}

#[test]
fn each_rank_opens_only_the_files_of_its_own_stages() {
    let folder = tempdir().unwrap();
    // Each rank has a folder without the file that the other one needs.
    for rank in [0, 1] {
        let own = folder.path().join(rank.to_string());
        shards(&own);
        std::fs::remove_file(own.join(format!("model-0000{}-of-00002.safetensors", 2 - rank))).unwrap();
    }
    on_each_rank(&builder("1F1B", 2, 1), 2, |rank, pipeline| {
        pipeline.load_pretrained(&from(&folder.path().join(rank.to_string()))).unwrap();
        assert!(
            floats(&exported(pipeline, &folder.path().join("back"))) == floats(MODEL),
            "rank {rank}: other weights"
        );
    });
    // Four stages need both files on each side.
    let errors = on_each_rank(&builder("Interleaved1F1B", 2, 2), 2, |rank, pipeline| {
        pipeline.load_pretrained(&from(&folder.path().join(rank.to_string()))).unwrap_err().to_string()
    });
    assert!(errors[0].contains("model-00002-of-00002.safetensors"), "{}", errors[0]);
}

#[test]
fn what_a_folder_lacks_is_named_with_its_file() {
    let folder = tempdir().unwrap();
    let stored = |error: &CheckpointError| matches!(error, CheckpointError::Store { store: 0, .. });
    let error = refused(folder.path());
    assert!(stored(&error) && error.to_string().contains("holds none of model.safetensors,"), "{error}");

    shards(folder.path());
    let (second, head) = (folder.path().join("model-00002-of-00002.safetensors"), "lm_head.weight");
    let whole = std::fs::read(&second).unwrap();
    let views = || SafeTensors::deserialize(&whole).unwrap().tensors().into_iter();
    serialize_to_file(views().filter(|(name, _)| name != head), None, &second).unwrap();
    let error = refused(folder.path()).to_string();
    let says = format!("{} does not hold `lm_head.weight`, which its index says", second.display());
    assert!(error.contains(&says), "{error}");

    let narrow = TensorView::new(Dtype::F32, vec![39, 16], &MODEL[..39 * 16 * 4]).unwrap();
    let other = |(name, view): (String, _)| if name == head { (name, narrow.clone()) } else { (name, view) };
    serialize_to_file(views().map(other), None, &second).unwrap();
    let CheckpointError::Pretrained { mismatched, .. } = refused(folder.path()) else { panic!("another error") };
    let says = "`lm_head.weight` (stored as `lm_head.weight` in model-00002-of-00002.safetensors) is [16, 39] of F32, \
                the model's `lm_head.weight` is [16, 40] of F32";
    assert_eq!(mismatched, [says]);

    std::fs::write(&second, &whole[..whole.len() / 2]).unwrap();
    assert!(refused(folder.path()).to_string().contains("model-00002-of-00002.safetensors: "));
    std::fs::remove_file(&second).unwrap();
    assert!(refused(folder.path()).to_string().contains("model-00002-of-00002.safetensors: "));

    let out = BTreeMap::from([(head.to_owned(), "../model.safetensors".to_owned())]);
    for (text, says) in [(index(&out), "`../model.safetensors`, which is no file of the folder"), ("{}".into(), INDEX)]
    {
        std::fs::write(folder.path().join(INDEX), text).unwrap();
        let error = refused(folder.path());
        assert!(stored(&error) && error.to_string().contains(says), "{error}");
    }
}

#[test]
fn files_of_torch_are_read_whole_or_in_shards_that_keep_their_layers_numbers() {
    let folder = tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    std::fs::create_dir_all(&whole).unwrap();
    std::fs::create_dir_all(&parts).unwrap();
    std::fs::write(whole.join("pytorch_model.bin"), STATE_DICT).unwrap();
    let map = floats(MODEL).into_keys().map(|name| (name.clone(), file_of(&name, "bin"))).collect();
    std::fs::write(parts.join("pytorch_model.bin.index.json"), index(&map)).unwrap();
    std::fs::write(parts.join("model-00001-of-00002.bin"), FIRST).unwrap();
    std::fs::write(parts.join("model-00002-of-00002.bin"), SECOND).unwrap();
    for files in [&whole, &parts] {
        let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
        pipeline.load_pretrained(&from(files)).unwrap();
        assert_close(&logits(&mut pipeline), &floats(COMPUTED)["logits"].1, 1e-4, "files of torch");
        assert!(floats(&exported(&mut pipeline, &folder.path().join("back"))) == floats(MODEL), "other weights");
    }
}

#[test]
fn stores_of_torch_s_shards_must_keep_their_layers_numbers() {
    let folder = tempdir().unwrap();
    let paths = ["first.bin", "second.bin"].map(|name| folder.path().join(name));
    std::fs::write(&paths[0], FIRST).unwrap();
    std::fs::write(&paths[1], SECOND).unwrap();
    let of = |contiguous: bool| {
        let [first, second] = paths.clone();
        let open = move |path: &Path| PytorchStore::from_file(path).map_indices_contiguous(contiguous);
        let weights = Pretrained::new(move || open(&first)).and(move || open(&second));
        weights.adapter(PyTorchToBurnAdapter)
    };
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    let error = pipeline.load_pretrained(&of(true)).unwrap_err().to_string();
    assert!(error.contains("holds `model.layers.0.") && error.contains("map_indices_contiguous(false)"), "{error}");
    pipeline.load_pretrained(&of(false)).unwrap();
    assert!(floats(&exported(&mut pipeline, &folder.path().join("back"))) == floats(MODEL), "other weights");
}

#[test]
fn values_of_every_float_type_on_disk_become_the_masters() {
    for (disk, dtype) in [(Dtype::BF16, DType::BF16), (Dtype::F16, DType::F16), (Dtype::F32, DType::F32)] {
        let folder = tempdir().unwrap();
        // The values that the file holds: rounded, and widened again.
        let (mut held, mut expected) = (BTreeMap::new(), BTreeMap::new());
        for (name, (shape, values)) in floats(MODEL) {
            let rounded = TensorData::new(values, shape.clone()).convert_dtype(dtype);
            expected.insert(name.clone(), (shape.clone(), rounded.iter::<f32>().collect::<Vec<_>>()));
            held.insert(name, (shape, rounded.as_bytes().to_vec()));
        }
        let views = held
            .iter()
            .map(|(name, (shape, bytes))| (name.clone(), TensorView::new(disk, shape.clone(), bytes).unwrap()));
        serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
        for precision in [None, Some(Precision::bf16())] {
            let builder = builder("1F1B", 2, 1);
            let is_mixed = precision.is_some();
            let builder = precision.into_iter().fold(builder, |builder, precision| builder.precision(precision));
            let mut pipeline = builder.build().unwrap();
            pipeline.load_pretrained(&from(folder.path())).unwrap();
            let back = floats(&exported(&mut pipeline, &folder.path().join("back")));
            assert!(back == expected, "{dtype:?}, masters: {is_mixed}");
        }
    }
}
