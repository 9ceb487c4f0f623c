//! Four layers over two ranks learn a sine: the smallest whole program.

#![allow(clippy::print_stdout, reason = "it is a program")]

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, activation::tanh};
use burn_pipeline::{Batch, Layer, Pipeline, Sequential, Size};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let curved = |layer: &Linear, x: Tensor<2>| tanh(layer.forward(x));
    let model = Sequential::new()
        .then(Layer::new("up", |at| LinearConfig::new(1, 32).init(&at.device), curved))
        .repeat(2, Layer::new("inner", |at| LinearConfig::new(32, 32).init(&at.device), curved))
        .then(Layer::new("down", |at| LinearConfig::new(32, 1).init(&at.device), Linear::forward))
        .loss(|y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean());
    let device = Device::flex();
    let mut pipeline = Pipeline::builder()
        .layers(model)
        .schedule("1F1B", Size::new(2, 4)) // two ranks, four microbatches
        .optimizer(|| AdamWConfig::new().init())
        .devices(vec![device.clone()])
        .build()?;

    let x = Tensor::<1>::from_floats(std::array::from_fn::<f32, 64, _>(|i| i as f32 / 10.0 - 3.2), &device);
    let x = x.reshape([64, 1]);
    let wanted = x.clone().sin();
    for step in 1..=500 {
        let report = pipeline.step(Batch::new(x.clone()).target(wanted.clone()), 3e-3)?;
        if step % 100 == 0 {
            println!("step {step}: loss {:.6}", report.loss);
        }
    }
    let seen = pipeline.eval(Batch::new(Tensor::<2>::from_floats([[1.0], [2.0]], &device)))?;
    println!("sin(1) and sin(2) are about {:.3?}", seen.output::<Tensor<2>>()?.into_data().try_to_vec::<f32>()?);
    Ok(())
}
