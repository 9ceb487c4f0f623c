//! A step in which the first three of four stages are frozen, measured and as simulated.
//!
//! `cargo bench -p benches --bench frozen [-- --rounds N]`: 16 layers over two ranks with two stages each; the
//! contestants' steps alternate. *To the input* has the same frozen layers and a trained bias before them, so gradients
//! go through all stages, as they would if frozen stages were not known.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::spread::Spread;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Distribution, Tensor, activation::gelu};
use burn_pipeline::layers::{Layer, LayerContext, Model, Sequential};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::train::StepReport;
use burn_pipeline::{Batch, Pipeline, Size};
use std::time::Instant;

const WIDTH: usize = 512;
const LAYERS: usize = 16;
const SAMPLES: usize = 512;
const MICROBATCHES: usize = 8;

#[derive(Module, Debug)]
struct Biased {
    bias: Option<Param<Tensor<1>>>,
    linear: Linear,
}

impl Biased {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = match &self.bias {
            Some(bias) => x + bias.val().unsqueeze::<2>(),
            None => x,
        };
        gelu(self.linear.forward(x))
    }
}

/// A model whose layers train from this one on.
fn model(first_trained: usize, biased: bool) -> Model {
    let make = move |at: &LayerContext| {
        let linear = LinearConfig::new(WIDTH, WIDTH).init(&at.device);
        let linear = if at.layer < first_trained { linear.no_grad() } else { linear };
        let bias = (biased && at.layer == 0).then(|| Param::from_tensor(Tensor::zeros([WIDTH], &at.device)));
        Biased { bias, linear }
    };
    let layers = Sequential::new().repeat(LAYERS, Layer::new("layers", make, Biased::forward));
    layers.loss(|y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean())
}

fn main() {
    let rounds: usize = Flags::read(&[("--rounds N", "rounds; 15 if absent")]).number("--rounds", 15);
    let size = Size::new(2, MICROBATCHES).with_chunks(2);
    let frozen = LAYERS * 3 / 4;
    let models = [
        ("all train", model(0, false)),
        ("three frozen, to the input", model(frozen, true)),
        ("three frozen", model(frozen, false)),
    ];
    let mut rows = models.map(|(name, model)| {
        let builder = Pipeline::builder().layers(model).schedule("Interleaved1F1B", size);
        let builder = builder.devices(vec![Device::flex()]).optimizer(|| AdamWConfig::new().init());
        (name, builder.build().unwrap(), Vec::new(), Vec::new())
    });
    let random = || Tensor::<2>::random([SAMPLES, WIDTH], Distribution::Normal(0.0, 1.0), &Device::flex());
    let batch = Batch::new(random()).target(random());
    for round in 0..rounds + 2 {
        for (_, pipeline, seconds, reports) in &mut rows {
            let began = Instant::now();
            let report = pipeline.step(batch.clone(), 1e-4).unwrap();
            if round >= 2 {
                seconds.push(began.elapsed().as_secs_f64());
                reports.push(report);
            }
        }
    }
    println!("{LAYERS} layers of {WIDTH}, {SAMPLES} samples, {MICROBATCHES} microbatches, two ranks of two stages\n");
    println!("| | step ms | pass ms as simulated |");
    println!("|---|---|---|");
    for (name, pipeline, seconds, reports) in &mut rows {
        let profile = StepReport::profile(pipeline.placement(), reports).unwrap();
        let plan = pipeline.plan(MICROBATCHES).unwrap();
        let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
        println!("| {name} | {} | {:.0} |", Spread::of(seconds), simulated.makespan * 1e3);
    }
}
