//! A pipeline on a CubeCL device equals the plain loop on it, with and without a split backward.

use crate::{assert_close, devices, turn};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, StageContext};
use pipeline_tests::reference::{Reference, weights};

/// Few and small matmuls, because they take most of the time here.
const WIDTH: usize = 4;
const LAYERS: usize = 4;

const SAMPLES: usize = 4;
const MICROBATCHES: usize = 2;
const STEPS: usize = 2;
const RATE: f64 = 1e-2;

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

impl Stage for Tower {
    type Input = (Tensor<2>, Tensor<2, Int>);
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2, Int>);

    fn forward(&self, (x, steps): Self::Input, (): ()) -> Self::Output {
        let apply = |x: Tensor<2>, layer: &Linear| relu(layer.forward(x.clone())) + x * steps.clone().float();
        (self.layers.iter().fold(x, apply), steps.clone())
    }
}

fn part(at: &StageContext) -> Tower {
    let layer = |index| init_seeded(index as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
    Tower { layers: at.layers(LAYERS).map(layer).collect() }
}

fn loss((y, _): (Tensor<2>, Tensor<2, Int>), target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

fn stage(at: &StageContext) -> StageBox {
    if at.is_last() { StageBox::with_loss(part(at), loss) } else { StageBox::new(part(at)) }
}

struct Data {
    x: Tensor<2>,
    steps: Tensor<2, Int>,
    target: Tensor<2>,
}

impl Data {
    fn new(device: &Device) -> Self {
        let draw = || Tensor::random([SAMPLES, WIDTH], Distribution::Uniform(-1.0, 1.0), device);
        let steps = Tensor::<1, Int>::arange(0..SAMPLES as i64, device).remainder_scalar(3).reshape([SAMPLES, 1]);
        Self { x: draw(), steps, target: draw() }
    }

    fn batch(&self) -> Batch {
        Batch::new((self.x.clone(), self.steps.clone())).target(self.target.clone())
    }

    /// The plain loss of one microbatch, all of equal size.
    fn loss(&self, model: &Tower, microbatch: usize) -> Tensor<1> {
        let size = SAMPLES / MICROBATCHES;
        let piece = microbatch * size..(microbatch + 1) * size;
        let x = self.x.clone().slice([piece.clone()]).autodiff();
        let steps = self.steps.clone().slice([piece.clone()]).autodiff();
        loss(model.forward((x, steps), ()), self.target.clone().slice([piece]).autodiff())
    }
}

fn numbers(tensor: AnyTensor) -> Vec<f32> {
    tensor.to_data().unwrap().iter::<f32>().collect()
}

fn assert_trains_as_the_plain_loop(device: &Device, name: &str, split: SplitBackward) {
    let data = Data::new(device);
    let whole = StageContext {
        index: 0,
        stages: 1,
        rank: 0,
        device: device.clone().autodiff(),
        cut: None,
        group: Default::default(),
        replicas: Default::default(),
    };
    let mut reference = Reference::new(part(&whole));
    let schedule = by_name(name).unwrap();
    let size = Size { ranks: 2, chunks: if name == "1F1B" { 1 } else { 2 }, microbatches: MICROBATCHES };
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![device.clone()]).split(split);
    let mut pipeline = builder.stages(stage).optimizer(|| AdamWConfig::new().init()).build().unwrap();
    for step in 0..STEPS {
        let expected =
            reference.step(&[SAMPLES / MICROBATCHES; MICROBATCHES], RATE, None, |model, i| data.loss(model, i));
        let report = pipeline.step(data.batch(), RATE).unwrap();
        let place = format!("{name}, {split:?}, on {device:?}, step {step}");
        assert_close(&[report.loss as f32], &[expected.loss as f32], &place);
        let got: Vec<f32> = pipeline.weights().unwrap().into_iter().flatten().flat_map(numbers).collect();
        let expected: Vec<f32> = weights(&reference.model).into_iter().flatten().collect();
        assert_close(&got, &expected, &place);
    }
    for (stage, report) in pipeline.engines().unwrap() {
        assert_eq!(report.captured, split == SplitBackward::Captured, "stage {stage}: {}", report.reason);
    }
}

#[test]
fn one_f_one_b_equals_the_plain_loop_on_the_device() {
    let _turn = turn();
    for device in devices() {
        assert_trains_as_the_plain_loop(&device, "1F1B", SplitBackward::Eager);
    }
}

#[test]
fn zbv_with_captured_stages_replayed_on_the_device_equals_the_plain_loop() {
    let _turn = turn();
    for device in devices() {
        assert_trains_as_the_plain_loop(&device, "ZBV", SplitBackward::Captured);
    }
}
