//! Four layers over two ranks learn a sine: the smallest whole program.

#![allow(clippy::print_stdout, reason = "it is a program")]

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, activation::tanh};
use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext, init_seeded};

/// The widths between layers.
const WIDTHS: [usize; 5] = [1, 32, 32, 32, 1];

/// Some consecutive layers of the model, as an ordinary Burn module.
#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
    is_last: bool,
}

/// The stage's input and output.
impl Stage for Layers {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let last = self.layers.len() - 1;
        self.layers.iter().enumerate().fold(x, |x, (i, layer)| match self.is_last && i == last {
            true => layer.forward(x),
            false => tanh(layer.forward(x)),
        })
    }
}

/// Builds a stage on the rank that holds it. The last one gets the loss.
fn stage(at: &StageContext) -> StageBox {
    let linear = |i: usize, device: &Device| LinearConfig::new(WIDTHS[i], WIDTHS[i + 1]).init(device);
    let layers = at.layers(4).map(|i| init_seeded(i as u64, &at.device, |device| linear(i, device)));
    let part = Layers { layers: layers.collect(), is_last: at.is_last() };
    match at.is_last() {
        true => StageBox::with_loss(part, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean()),
        false => StageBox::new(part),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let mut pipeline = Pipeline::builder()
        .schedule("1F1B", Size::new(2, 4)) // two ranks, four microbatches
        .stages(stage)
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
