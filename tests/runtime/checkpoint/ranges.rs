//! Values that a loaded element type cannot hold are refused by their parameter's name, and nothing changes.

use super::types::{builder, bytes, pipeline};
use burn::module::{Module, Param, ParamId};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::store::SafetensorsStore;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_pipeline::schedule::{GPipe, Size};
use burn_pipeline::stage::{Precision, Stage, StageBox};
use burn_pipeline::train::{CheckpointError, Checkpoints, Pipeline, Pretrained, StageContext};
use safetensors::tensor::{TensorView, serialize_to_file};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;
use tempfile::tempdir;

/// Above the largest number of f16, 65504.
const LARGE: f32 = 70_000.0;

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// A job in f32, of which one weight is large.
fn large(value: f32) -> Pipeline {
    let mut pipeline = pipeline("GPipe", 1, DType::F32, sgd);
    let folder = tempdir().unwrap();
    let file = folder.path().join("large.safetensors");
    pipeline.export(&file).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let changed = tensors.tensors().into_iter().map(|(name, view)| {
        let mut data = view.data().to_vec();
        if name == "layers.2.weight" {
            data[..4].copy_from_slice(&value.to_le_bytes());
        }
        (name, (view.shape().to_vec(), data))
    });
    let changed: Vec<_> = changed.collect();
    let views =
        changed.iter().map(|(name, (shape, data))| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, &file).unwrap();
    pipeline.load_pretrained(&stored(&file)).unwrap();
    pipeline
}

fn stored(file: &Path) -> Pretrained {
    let file = file.to_owned();
    Pretrained::new(move || SafetensorsStore::from_file(&file))
}

/// Asserts that a load is refused by name, and changes nothing.
fn refused(pipeline: &mut Pipeline, load: impl FnOnce(&mut Pipeline) -> Result<(), CheckpointError>, says: &str) {
    let before = bytes(pipeline);
    let error = load(pipeline).unwrap_err();
    assert!(matches!(error, CheckpointError::Range { .. }), "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!(bytes(pipeline), before, "{error}");
}

#[test]
fn numbers_that_would_be_infinite_in_f16_are_refused_from_stores_and_checkpoints() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path().join("saved"));
    let file = folder.path().join("model.safetensors");
    let says = "a value of `layers.2.weight` is beyond what f16 holds";
    let half = || pipeline("1F1B", 2, DType::F16, sgd);
    let masters = || builder("1F1B", 2, DType::F32, sgd).precision(Precision::f16()).build().unwrap();
    for (value, fits) in [(LARGE, false), (-LARGE, false), (65_504.0, true), (f32::INFINITY, true)] {
        let mut large = large(value);
        large.export(&file).unwrap();
        large.save(&checkpoints, &()).unwrap();
        let latest = checkpoints.latest().unwrap();
        for mut other in [half(), masters()] {
            if fits {
                other.load_pretrained(&stored(&file)).unwrap();
                other.load(&latest).unwrap();
            } else {
                refused(&mut other, |other| other.load_pretrained(&stored(&file)), says);
                refused(&mut other, |other| other.load(&latest), says);
                refused(&mut other, |other| other.load_weights(&latest), says);
            }
        }
        // bf16 has the range of f32.
        pipeline("1F1B", 2, DType::BF16, sgd).load_pretrained(&stored(&file)).unwrap();
    }
}

/// A weight, and a buffer of integers.
#[derive(Module, Debug)]
struct Counted {
    weight: Param<Tensor<2>>,
    counts: Param<Tensor<1, Int>>,
}

impl Stage for Counted {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
        x.matmul(self.weight.val())
    }
}

type Load<'a> = dyn Fn(&mut Pipeline) -> Result<(), CheckpointError> + 'a;

fn counted(count: i64, dtype: DType) -> Pipeline {
    let stages = move |at: &StageContext| {
        let weight = Param::from_tensor(Tensor::ones([2, 2], &at.device));
        let counts = Tensor::<1, Int>::from_data(TensorData::new(vec![count, 7], [2]), (&at.device, dtype));
        StageBox::new(Counted { weight, counts: Param::initialized(ParamId::new(), counts) })
    };
    let builder = Pipeline::builder().schedule(GPipe, Size::new(1, 1)).devices(vec![Device::flex()]);
    builder.stages(stages).build().unwrap()
}

fn counts(pipeline: &mut Pipeline) -> (DType, Vec<i64>) {
    let mut named = pipeline.named_weights().unwrap().into_iter().flatten();
    let data = named.find(|weight| weight.names[0] == "counts").unwrap().value.to_data().unwrap();
    (data.dtype(), data.iter().collect())
}

#[test]
fn integers_keep_the_type_of_the_model_and_are_refused_where_it_cannot_hold_them() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    for (count, dtype, fits) in [
        (5_000_000_000, DType::I32, false),
        (-5_000_000_000, DType::I32, false),
        (i64::from(i32::MIN), DType::I32, true),
        (5_000_000_000, DType::I64, true),
    ] {
        let mut wide = counted(count, DType::I64);
        let checkpoints = Checkpoints::new(folder.path().join("saved"));
        wide.save(&checkpoints, &()).unwrap();
        wide.export(&file).unwrap();
        let latest = checkpoints.latest().unwrap();
        let mut other = counted(1, dtype);
        let loads: [&Load<'_>; 2] = [&|other: &mut Pipeline| other.load_weights(&latest), &|other: &mut Pipeline| {
            other.load_pretrained(&stored(&file))
        }];
        for load in loads {
            if fits {
                load(&mut other).unwrap();
                assert_eq!(counts(&mut other), (dtype, vec![count, 7]));
            } else {
                refused(&mut other, load, "a value of `counts` is beyond what");
                assert_eq!(counts(&mut other), (dtype, vec![1, 7]));
            }
        }
    }
}
