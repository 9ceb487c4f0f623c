//! Parameters that are built in half precision and frozen: their masters, their copies, and the rules that step them.

use super::{MICROBATCHES, WIDTH, data};
use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Distribution, FloatDType, Tensor};
use burn_pipeline::layers::LayerContext;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::Precision;
use burn_pipeline::train::MemoryMeter;
use burn_pipeline::{Batch, Builder, Layer, Pipeline, Sequential};
use pipeline_tests::device::device;

const RATE: f64 = 1e-2;
const LAYERS: usize = 3;

/// A matrix that is built in half precision, and its moving average, which no gradient reaches.
#[derive(Module, Debug)]
struct Matrix {
    weight: Param<Tensor<2>>,
    average: Param<Tensor<2>>,
}

impl Matrix {
    fn new(half: FloatDType, at: &LayerContext) -> Self {
        let weight = Tensor::<2>::random([WIDTH, WIDTH], Distribution::Normal(0.0, 0.3), &at.device).cast(half);
        let average = Param::from_tensor(weight.clone().detach()).set_require_grad(false);
        Self { weight: Param::from_tensor(weight.detach()), average }
    }

    /// The precision rounds both parameters.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        assert_eq!(self.weight.dtype(), self.average.dtype());
        x.cast(self.weight.dtype()).matmul(self.weight.val())
    }

    /// The guide's rule, in the types that the module has.
    fn follow(mut self) -> Self {
        let weight = self.weight.val().detach();
        self.average = self.average.map(|average| average * 0.99 + weight * 0.01);
        self
    }
}

/// Matrices in half precision with a loss in half precision.
fn builder(half: FloatDType, follows: bool) -> Builder {
    let layer = Layer::new("layers", move |at| Matrix::new(half, at), Matrix::forward);
    let layer = if follows { layer.after_step(|own, _, _| own.follow()) } else { layer };
    let model = Sequential::new().repeat(LAYERS, layer);
    let model = model.loss(|y: Tensor<2>, target: Tensor<2>| (y.clone() - target.cast(y.dtype())).square().mean());
    let rounded = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
    Pipeline::builder()
        .layers(model)
        .schedule("1F1B", Size::new(LAYERS, MICROBATCHES))
        .devices(vec![device()])
        .optimizer(|| AdamWConfig::new().init())
        .precision(rounded)
}

fn batch(step: usize) -> Batch {
    let [x, target] = data(step);
    Batch::new(x).target(target)
}

/// The stored weights and averages.
fn stored(pipeline: &mut Pipeline, name: &str) -> Vec<(DType, Vec<f32>)> {
    let named = pipeline.named_weights().unwrap().concat().into_iter();
    let named = named.filter(|weight| weight.names[0].ends_with(name));
    named.map(|weight| (weight.value.dtype(), weight.value.to_data().unwrap().iter().collect())).collect()
}

#[test]
fn a_parameter_that_is_frozen_after_some_steps_keeps_its_master_and_is_rounded_for_forwards() {
    for half in [FloatDType::BF16, FloatDType::F16] {
        let mut pipeline = builder(half, false).build().unwrap();
        (0..3).for_each(|step| drop(pipeline.step(batch(step), RATE).unwrap()));
        let before = stored(&mut pipeline, "weight").swap_remove(1);
        pipeline.replace_layer(1, |own: Matrix, _| own.no_grad()).unwrap();
        (3..6).for_each(|step| drop(pipeline.step(batch(step), RATE).unwrap()));
        assert_eq!(before.0, DType::F32, "{half:?}");
        assert_eq!(stored(&mut pipeline, "weight").swap_remove(1), before, "{half:?}");
    }
}

#[test]
fn a_moving_average_of_weights_built_in_half_follows_their_masters_in_f32() {
    for half in [FloatDType::BF16, FloatDType::F16] {
        let mut pipeline = builder(half, true).build().unwrap();
        let mut averages: Vec<Vec<f32>> = stored(&mut pipeline, "average").into_iter().map(|(_, own)| own).collect();
        for step in 0..5 {
            // A step that the loss scale skips runs no rule.
            if pipeline.step(batch(step), RATE).unwrap().skipped.is_some() {
                continue;
            }
            for (average, (_, weight)) in averages.iter_mut().zip(stored(&mut pipeline, "weight")) {
                average.iter_mut().zip(weight).for_each(|(average, weight)| *average = *average * 0.99 + weight * 0.01);
            }
        }
        let expected: Vec<(DType, Vec<f32>)> = averages.into_iter().map(|average| (DType::F32, average)).collect();
        assert_eq!(stored(&mut pipeline, "average"), expected, "{half:?}");
    }
}

/// A meter that has nothing to count: the test is that the measurement runs.
struct Nothing;

impl MemoryMeter for Nothing {
    fn allocated(&self) -> usize {
        0
    }

    fn take_peak(&self) -> usize {
        0
    }
}

#[test]
fn layers_and_memory_of_a_model_whose_loss_is_half_are_measured() {
    let microbatch = || {
        let [x, target] = data(0).map(|tensor| tensor.narrow(0, 0, 3));
        Batch::new(x).target(target)
    };
    for half in [FloatDType::BF16, FloatDType::F16] {
        let measured = builder(half, false).measure_layers(microbatch(), &['B', 'B', 'L'], 1).unwrap();
        assert_eq!(measured.layers.len(), LAYERS);
        let profile = builder(half, false).measure_memory(microbatch(), &Nothing).unwrap();
        assert_eq!(profile.stages().len(), LAYERS);
    }
}
