//! Checkpoints of jobs in half precision without masters, for jobs with masters, and the other way round.

use super::types::{adamw, builder, bytes, momentum, pipeline, saved, trained};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, TensorData};
use burn_pipeline::Pipeline;
use burn_pipeline::stage::Precision;
use burn_pipeline::train::{Checkpoint, CheckpointError, Checkpoints};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use tempfile::{TempDir, tempdir};

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// A job whose masters are f32.
fn mixed(dtype: DType, optimizer: fn() -> ModuleOptimizer) -> Pipeline {
    let precision = if dtype == DType::BF16 { Precision::bf16() } else { Precision::f16() };
    builder("GPipe", 1, dtype, optimizer).precision(precision).build().unwrap()
}

/// All tensors of a checkpoint, weights and moments, by name.
fn tensors(checkpoint: &Checkpoint) -> BTreeMap<String, TensorData> {
    let entries = std::fs::read_dir(checkpoint.folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut tensors = BTreeMap::new();
    for path in entries.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors")) {
        let file = std::fs::read(path).unwrap();
        for (name, view) in SafeTensors::deserialize(&file).unwrap().tensors() {
            let dtype = match view.dtype() {
                safetensors::Dtype::BF16 => DType::BF16,
                safetensors::Dtype::F16 => DType::F16,
                safetensors::Dtype::F32 => DType::F32,
                other => panic!("{other:?}"),
            };
            let data = TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype);
            tensors.insert(name, data);
        }
    }
    tensors
}

/// Saves a pipeline in a folder of its own.
fn save(pipeline: &mut Pipeline, folder: &TempDir) -> Checkpoint {
    Checkpoint::open(pipeline.save(&Checkpoints::new(folder.path().join("again")), &()).unwrap()).unwrap()
}

#[test]
fn weights_and_moments_in_half_precision_become_masters_of_the_same_values() {
    for dtype in HALVES {
        for (kind, optimizer) in [("adamw", adamw as fn() -> ModuleOptimizer), ("momentum", momentum), ("sgd", sgd)] {
            let folder = tempdir().unwrap();
            let (checkpoint, _) = saved(&folder, dtype, optimizer);
            let mut resumed = mixed(dtype, optimizer);
            resumed.load(&checkpoint).unwrap();
            assert_eq!(resumed.progress().steps, 2);
            let (half, masters) = (tensors(&checkpoint), tensors(&save(&mut resumed, &folder)));
            assert!(half.keys().eq(masters.keys()), "{dtype:?}, {kind}");
            for (name, master) in &masters {
                assert_eq!((half[name].dtype(), master.dtype()), (dtype, DType::F32), "{name}");
                // Each bf16 number is the upper half of the f32 number; Burn widens f16 exactly.
                let exact = |value: f32| match dtype {
                    DType::BF16 => value.to_bits() & 0xffff == 0,
                    _ => value.to_bits() & 0x1fff == 0,
                };
                assert!(master.iter::<f32>().all(exact), "{name}");
                assert!(master.iter::<f64>().eq(half[name].iter::<f64>()), "{dtype:?}, {kind}: {name}");
            }
            trained(&mut resumed, dtype, 2);
        }
    }
}

#[test]
fn masters_become_parameters_in_half_precision_rounded_once_and_moments_are_refused() {
    for dtype in HALVES {
        for (kind, optimizer) in [("adamw", adamw as fn() -> ModuleOptimizer), ("momentum", momentum), ("sgd", sgd)] {
            let folder = tempdir().unwrap();
            let mut masters = mixed(dtype, optimizer);
            trained(&mut masters, dtype, 2);
            let checkpoint = save(&mut masters, &folder);
            let mut half = pipeline("1F1B", 2, dtype, optimizer);
            let before = bytes(&mut half);
            if kind == "sgd" {
                half.load(&checkpoint).unwrap();
                // A step that overflows in f16 is skipped.
                assert_eq!(half.progress().steps, masters.progress().steps);
            } else {
                let error = half.load(&checkpoint).unwrap_err();
                assert!(matches!(error, CheckpointError::OptimizerState(_)), "{error}");
                let says = format!("was saved as F32, and an optimizer's state is not rounded to {dtype:?}");
                assert!(error.to_string().contains(&says) && error.to_string().contains("weight"), "{error}");
                assert_eq!(bytes(&mut half), before, "a refused checkpoint changed the weights");
                half.load_weights(&checkpoint).unwrap();
            }
            let saved = tensors(&checkpoint);
            let named = half.named_weights().unwrap().into_iter().flatten();
            for weight in named {
                let (master, own) = (&saved[&weight.names[0]], weight.value.to_data().unwrap());
                assert_eq!(own.dtype(), dtype);
                let pairs = master.iter::<f32>().zip(own.as_bytes().chunks(2));
                for (master, own) in pairs {
                    let own = u16::from_le_bytes([own[0], own[1]]);
                    assert_eq!(own, nearest(master, dtype), "{master:e} of {:?}", weight.names);
                }
            }
            trained(&mut half, dtype, 1);
        }
    }
}

/// The bits of the number in half precision that is nearest, and even if two are; of normal numbers.
fn nearest(value: f32, dtype: DType) -> u16 {
    let bits = value.to_bits();
    match dtype {
        DType::BF16 => ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16,
        _ => {
            // The exponent of f32 starts 112 below that of f16; 13 bits are rounded away.
            let magnitude = (bits & 0x7fff_ffff) - (112 << 23);
            let rounded = (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13;
            (bits >> 16 & 0x8000) as u16 | rounded as u16
        }
    }
}

#[test]
fn other_pairs_of_types_are_refused_by_name() {
    let folder = tempdir().unwrap();
    let (checkpoint, _) = saved(&folder, DType::BF16, sgd);
    for dtype in [DType::F16, DType::F64] {
        let mut other = pipeline("GPipe", 1, dtype, sgd);
        let error = other.load_weights(&checkpoint).unwrap_err();
        assert!(matches!(&error, CheckpointError::Structure { .. }), "{error}");
        assert!(error.to_string().contains("of bf16"), "{error}");
        trained(&mut other, dtype, 1);
    }
}
