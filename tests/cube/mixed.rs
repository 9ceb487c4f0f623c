//! Ranks on devices of different backends give the plain loop's numbers. Floats and booleans are sent between them,
//! and captured stages make booleans in each device's own form.

use crate::{assert_close, devices, turn};
use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{Bool, Device, Tensor, TensorData};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{Pipeline, StageContext};
use pipeline_tests::noise::noise;
use pipeline_tests::reference::{Reference, weights};

const SHAPE: [usize; 2] = [4, 6];
const MICROBATCHES: usize = 2;

/// Layers that scale what their mask selects and pass on the inverted mask. `clamp` uses a mask that autodiff
/// makes.
#[derive(Module, Debug)]
struct Masked {
    layers: Vec<Param<Tensor<1>>>,
}

type Values = (Tensor<2>, Tensor<2, Bool>);

impl Stage for Masked {
    type Input = Values;
    type Extra = ();
    type Output = Values;

    fn forward(&self, input: Values, (): ()) -> Values {
        let apply = |(x, mask): Values, factors: &Param<Tensor<1>>| {
            let scaled = x.clone() * factors.val().unsqueeze();
            (scaled.clamp_min(-0.25).mask_fill(mask.clone(), 0.0) + x, mask.bool_not())
        };
        self.layers.iter().fold(input, apply)
    }
}

fn part(at: &StageContext) -> Masked {
    let layer = |index: usize| Param::from_tensor(Tensor::full([SHAPE[1]], 0.5 + index as f32, &at.device));
    Masked { layers: at.layers(2).map(layer).collect() }
}

fn loss((y, _): Values, target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

fn stage(at: &StageContext) -> StageBox {
    if at.is_last() { StageBox::with_loss(part(at), loss) } else { StageBox::new(part(at)) }
}

fn floats(seed: u64) -> Tensor<2> {
    Tensor::from_data(TensorData::new(noise(seed, SHAPE[0] * SHAPE[1]), SHAPE), &Device::flex())
}

fn input() -> Values {
    (floats(1), floats(2).greater_elem(0.0))
}

/// The loss of one step of the plain loop on Flex, and the weights after it.
fn plain() -> (f64, Vec<f32>) {
    let mut reference = Reference::new(part(&pipeline_tests::reference::whole()));
    let size = SHAPE[0] / MICROBATCHES;
    let step = reference.step(&[size; MICROBATCHES], 1e-2, None, |model, i| {
        let (x, mask) = input();
        let (x, mask) = (x.narrow(0, i * size, size), mask.narrow(0, i * size, size));
        let target = floats(3).narrow(0, i * size, size).autodiff();
        loss(model.forward((x.autodiff(), mask.autodiff()), ()), target)
    });
    (step.loss, weights(&reference.model).concat())
}

#[test]
fn floats_and_booleans_cross_between_backends_eager_and_captured() {
    let _turn = turn();
    let expected = plain();
    for device in devices() {
        for devices in [[Device::flex(), device.clone()], [device.clone(), Device::flex()]] {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                let place = format!("{devices:?}, {split:?}");
                let size = Size::new(2, MICROBATCHES);
                let builder = Pipeline::builder().schedule("1F1B", size).devices(devices.to_vec()).split(split);
                let mut pipeline = builder.stages(stage).optimizer(|| AdamWConfig::new().init()).build().unwrap();
                let report = pipeline.step(Batch::new(input()).target(floats(3)), 1e-2).unwrap();
                assert_close(&[report.loss as f32], &[expected.0 as f32], &place);
                let got = pipeline.weights().unwrap().into_iter().flatten();
                let got: Vec<f32> = got.flat_map(|w| w.to_data().unwrap().iter::<f32>().collect::<Vec<_>>()).collect();
                assert_close(&got, &expected.1, &place);
                let captured = split == SplitBackward::Captured;
                assert!(pipeline.engines().unwrap().iter().all(|(_, report)| report.captured == captured), "{place}");
            }
        }
    }
}
