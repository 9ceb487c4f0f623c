//! Models given as lists of layers: layers that read an extra, in every cut.

use super::{MICROBATCHES, WIDTH};
use crate::cases::noise;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, activation::tanh};
use burn_pipeline::layers::{LayerContext, Model};
use burn_pipeline::{Accumulation, Batch, Layer, Pipeline, Sequential, Size};
use pipeline_tests::device::device;

const SAMPLES: usize = 8;

fn linear(layer: usize, device: &Device) -> Linear {
    let values = Tensor::<1>::from_floats(&*noise(layer as u64 + 20, WIDTH * WIDTH), device).reshape([WIDTH, WIDTH]);
    let made = LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(device);
    Linear { weight: Param::from_tensor(values), ..made }.no_grad()
}

fn at(at: &LayerContext) -> Linear {
    linear(at.layer, &at.device)
}

fn gated(layer: &Linear, (x, gate): (Tensor<2>, Tensor<2>)) -> Tensor<2> {
    tanh(layer.forward(x)) * gate
}

fn plain_layer(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    tanh(layer.forward(x))
}

fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (y - wanted).square().mean()
}

/// Frozen layers. The first, the fourth and the last read the gate.
fn model() -> Model {
    Sequential::new()
        .then(Layer::new("first", at, gated).extras(["gate"]))
        .repeat(2, Layer::new("inner", at, plain_layer))
        .then(Layer::new("fourth", at, gated).extras(["gate"]))
        .then(Layer::new("last", at, gated).extras(["gate"]))
        .loss(loss)
}

fn data() -> [Tensor<2>; 3] {
    let rows = |seed| Tensor::<1>::from_floats(&*noise(seed, SAMPLES * WIDTH), &device()).reshape([SAMPLES, WIDTH]);
    [7, 8, 9].map(rows)
}

/// The gradients of the input and of the gate in the plain loop.
fn plain() -> [Vec<f32>; 2] {
    let [x, gate, wanted] = data();
    let layers: Vec<Linear> = (0..5).map(|layer| linear(layer, &device().autodiff())).collect();
    let size = SAMPLES / MICROBATCHES;
    let (mut inputs, mut gates) = (Vec::new(), Vec::new());
    for i in 0..MICROBATCHES {
        let part = |of: &Tensor<2>| of.clone().narrow(0, i * size, size).autodiff();
        let (x, gate) = (part(&x).require_grad(), part(&gate).require_grad());
        let y = gated(&layers[0], (x.clone(), gate.clone()));
        let y = plain_layer(&layers[2], plain_layer(&layers[1], y));
        let y = gated(&layers[4], (gated(&layers[3], (y, gate.clone())), gate.clone()));
        let gradients = loss(y, part(&wanted)).backward();
        inputs.push(x.grad(&gradients).unwrap());
        gates.push(gate.grad(&gradients).unwrap());
    }
    let scaled = |all| Tensor::cat(all, 0).mul_scalar(1.0 / MICROBATCHES as f64);
    [inputs, gates].map(|all: Vec<Tensor<2>>| scaled(all).into_data().iter::<f32>().collect())
}

#[test]
fn layers_that_read_an_extra_give_the_sum_of_their_gradients_in_every_cut() {
    let [x, gate, wanted] = data();
    let expected = plain();
    for (schedule, size) in [
        ("1F1B", Size::new(1, MICROBATCHES)),
        ("1F1B", Size::new(2, MICROBATCHES)),
        ("ZBH1", Size::new(3, MICROBATCHES)),
        ("1F1B", Size::new(5, MICROBATCHES)),
        ("ZBVZeroBubble", Size::new(2, MICROBATCHES).with_chunks(2)),
        ("DualPipe", Size::new(2, MICROBATCHES)),
    ] {
        let builder = Pipeline::builder().layers(model()).schedule(schedule, size).devices(vec![device()]);
        let mut pipeline = builder.input_gradients(true).accumulation(Accumulation::Ordered).build().unwrap();
        let batch = Batch::new(x.clone()).target(wanted.clone()).extra("gate", gate.clone());
        let report = pipeline.accumulate(batch).unwrap();
        let read = |tensor: Tensor<2>| tensor.into_data().iter::<f32>().collect::<Vec<f32>>();
        let got = [report.input_gradient(), report.extra_gradient("gate")].map(|got| read(got.unwrap()));
        assert_eq!(got[0], expected[0], "the input's, {schedule} at {size:?}");
        let near = got[1].iter().zip(&expected[1]).all(|(a, b)| (a - b).abs() <= 1e-7);
        assert!(near, "the gate's, {schedule} at {size:?}: {:?}, {:?}", got[1], expected[1]);
        // A stage with two of the readers adds their gradients first; otherwise the order is the plain loop's.
        if size.ranks * size.chunks != 2 {
            assert_eq!(got[1], expected[1], "the gate's, {schedule} at {size:?}");
        }
    }
}
