//! Weights and moments of element types other than f32: a resumed job continues bit for bit, or is refused before
//! anything changes.
//!
//! Burn's optimizers load their state in the default type of the default device, which a process chooses once. So
//! the tests that resume run in a separate process for each type: this test's binary, run with the filter
//! `goes_on`.

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
use burn::tensor::{DType, Device, DeviceConfig, FloatDType, Tensor, TensorData};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Names, Stage, StageBox};
use burn_pipeline::train::{Builder, Checkpoint, Checkpoints, Pipeline};
use std::process::Command;
use tempfile::{TempDir, tempdir};

const TYPE: &str = "BURN_PIPELINE_TEST_TYPE";
const WIDTH: usize = 6;
const LAYERS: usize = 4;
const SAMPLES: usize = 8;
const RATE: f64 = 1e-2;

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Part {
    layers: Vec<Layer>,
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| x.matmul(layer.weight.val()).tanh())
    }
}

fn tensor(seed: usize, rows: usize, dtype: DType, device: &Device) -> Tensor<2> {
    let values = pipeline_tests::noise::noise(seed as u64, rows * WIDTH);
    Tensor::from_data(TensorData::new(values, [rows, WIDTH]), (device, dtype))
}

fn batch(dtype: DType) -> Batch {
    let device = Device::flex();
    Batch::new(tensor(7, SAMPLES, dtype, &device)).target(tensor(8, SAMPLES, dtype, &device))
}

pub(super) fn pipeline(schedule: &str, ranks: usize, dtype: DType, optimizer: fn() -> ModuleOptimizer) -> Pipeline {
    builder(schedule, ranks, dtype, optimizer).build().unwrap()
}

pub(super) fn builder(schedule: &str, ranks: usize, dtype: DType, optimizer: fn() -> ModuleOptimizer) -> Builder {
    let builder = Pipeline::builder().schedule(schedule, Size::new(ranks, 4)).devices(vec![Device::flex()]);
    builder.optimizer(optimizer).stages(move |at| {
        let share = at.layers(LAYERS);
        let weight = |layer| Param::from_tensor(tensor(layer, WIDTH, dtype, &at.device));
        let part = Part { layers: share.clone().map(|layer| Layer { weight: weight(layer) }).collect() };
        let stage = match at.is_last() {
            false => StageBox::new(part),
            true => StageBox::with_loss(part, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean()),
        };
        stage.named(Names::default().layers_from("layers", share.start))
    })
}

pub(super) fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).init()
}

pub(super) fn momentum() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()
}

pub(super) fn bytes(pipeline: &mut Pipeline) -> Vec<(DType, Vec<u8>)> {
    let data = |weight: &AnyTensor| weight.to_data().unwrap();
    let weights = pipeline.weights().unwrap();
    weights.iter().flatten().map(data).map(|data| (data.dtype(), data.as_bytes().to_vec())).collect()
}

/// A step's loss, and the weights after it.
pub(super) type Step = (u64, Vec<(DType, Vec<u8>)>);

pub(super) fn trained(pipeline: &mut Pipeline, dtype: DType, steps: usize) -> Vec<Step> {
    let step = |_| (pipeline.step(batch(dtype), RATE).unwrap().loss.to_bits(), bytes(pipeline));
    (0..steps).map(step).collect()
}

/// A pipeline that was saved after two steps, the checkpoint, and the next two steps.
pub(super) fn saved(folder: &TempDir, dtype: DType, optimizer: fn() -> ModuleOptimizer) -> (Checkpoint, Vec<Step>) {
    let mut pipeline = pipeline("1F1B", 2, dtype, optimizer);
    trained(&mut pipeline, dtype, 2);
    let checkpoint = Checkpoint::open(pipeline.save(&Checkpoints::new(folder.path()), &()).unwrap()).unwrap();
    (checkpoint, trained(&mut pipeline, dtype, 2))
}

#[test]
#[ignore = "other tests run it, each in its own process"]
fn goes_on() {
    let Ok(name) = std::env::var(TYPE) else { return };
    let types = [FloatDType::BF16, FloatDType::F16, FloatDType::F64];
    let default = types.into_iter().find(|dtype| format!("{dtype:?}") == name).unwrap();
    Device::flex().configure(DeviceConfig::default().float_dtype(default)).unwrap();
    let dtype = DType::from(default);
    for (kind, optimizer) in [("adamw", adamw as fn() -> ModuleOptimizer), ("momentum", momentum)] {
        let folder = tempdir().unwrap();
        let (checkpoint, expected) = saved(&folder, dtype, optimizer);
        for (schedule, ranks) in [("1F1B", 2), ("GPipe", 1), ("ZBH1", 4)] {
            let mut resumed = pipeline(schedule, ranks, dtype, optimizer);
            resumed.load(&checkpoint).unwrap();
            assert_eq!(trained(&mut resumed, dtype, 2), expected, "{name}, {kind}, {schedule} on {ranks} ranks");
        }
    }
}

#[test]
fn a_job_whose_default_type_is_that_of_its_weights_goes_on_bit_for_bit_on_any_cut() {
    for name in ["BF16", "F16", "F64"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "checkpoint::types::goes_on", "--ignored", "--nocapture"]).env(TYPE, name);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}");
    }
}

#[test]
fn moments_that_burn_would_convert_are_refused_by_name_and_the_pipeline_goes_on() {
    for dtype in [DType::BF16, DType::F16, DType::F64] {
        for (kind, optimizer) in [("adamw", adamw as fn() -> ModuleOptimizer), ("momentum", momentum)] {
            let folder = tempdir().unwrap();
            let (checkpoint, expected) = saved(&folder, dtype, optimizer);
            // The pipeline that is to load it has taken as many steps.
            let mut other = pipeline("GPipe", 1, dtype, optimizer);
            trained(&mut other, dtype, 2);
            let before = bytes(&mut other);
            let error = other.load(&checkpoint).unwrap_err().to_string();
            assert!(error.contains(&format!("was saved as {dtype:?}")) && error.contains("as F32"), "{error}");
            assert!(error.contains("weight") && error.contains("Device::configure"), "{error}");
            assert_eq!(bytes(&mut other), before, "a refused checkpoint changed the weights");
            assert_eq!(other.progress().steps, 2);
            assert_eq!(trained(&mut other, dtype, 2), expected, "{dtype:?}, {kind}");
            // All its weights can be loaded.
            other.load_weights(&checkpoint).unwrap();
            assert_eq!(bytes(&mut other), before);
        }
    }
}

#[test]
fn an_optimizer_without_moments_goes_on_in_every_type() {
    for dtype in [DType::BF16, DType::F16, DType::F64] {
        let folder = tempdir().unwrap();
        let plain = || SgdConfig::new().init();
        let (checkpoint, expected) = saved(&folder, dtype, plain);
        let mut resumed = pipeline("GPipe", 1, dtype, plain);
        resumed.load(&checkpoint).unwrap();
        assert_eq!(trained(&mut resumed, dtype, 2), expected, "{dtype:?}");
    }
}
