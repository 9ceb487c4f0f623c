//! A model that reads plain numbers and strings beside its tensors, different in each microbatch, and sends some to
//! its next part.

use crate::cases::read;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::boundary;
use burn_pipeline::stage::{Accumulation, Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use pipeline_tests::noise::noise;
use pipeline_tests::reference::{Reference, whole};

const LAYERS: usize = 8;
const WIDTH: usize = 4;
const RATE: f64 = 1e-2;
pub(crate) const STEPS: usize = 3;
/// The samples of each microbatch.
const SIZES: [usize; 4] = [3, 2, 3, 1];
pub(crate) const MICROBATCHES: usize = SIZES.len();

/// The numbers and strings of one microbatch.
#[derive(Clone, Debug)]
struct Plain {
    heat: f64,
    smooth: bool,
    skipped: Option<i64>,
    language: String,
}

impl Plain {
    fn of(step: usize, microbatch: usize) -> Self {
        let at = step * MICROBATCHES + microbatch;
        Self {
            heat: [0.5, 1.25, -0.0, 0.75, 0.5][at % 5],
            smooth: at % 3 == 1,
            skipped: (at % 4 > 1).then_some((at % LAYERS) as i64),
            language: ["de", "en"][at / 2 % 2].to_owned(),
        }
    }
}

/// The values between parts: hidden states, the number of layers so far, and the language.
#[derive(Debug)]
pub(crate) struct Signal {
    x: Tensor<2>,
    depth: i64,
    trail: String,
}
boundary!(struct Signal { x, depth, trail });

#[derive(Module, Debug)]
pub(crate) struct Part {
    layers: Vec<Linear>,
    first: usize,
}

impl Part {
    fn new(at: &StageContext) -> Self {
        let layer = |index: usize| {
            init_seeded(700 + index as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device))
        };
        Self { layers: at.layers(LAYERS).map(layer).collect(), first: at.layers(LAYERS).start }
    }
}

impl Stage for Part {
    type Input = Signal;
    type Extra = (Tensor<2>, f64, (bool, Option<i64>), String);
    type Output = Signal;

    fn extras(&self) -> Vec<&'static str> {
        vec!["mask", "heat", "mode", "language"]
    }

    fn forward(&self, input: Signal, (mask, heat, (smooth, skipped), language): Self::Extra) -> Signal {
        let Signal { mut x, mut depth, mut trail } = input;
        assert_eq!((depth, trail.len()), (self.first as i64, self.first * language.len()), "{trail}");
        for layer in &self.layers {
            assert!(trail.ends_with(&language) || depth == 0, "{trail} of {language}");
            if skipped != Some(depth) {
                let y = layer.forward(x.clone()).mul_scalar(heat as f32 + depth as f32 / 8.0) * mask.clone();
                let y = if smooth { gelu(y) } else { tanh(y) };
                x = x + if language == "de" { y } else { y.neg() };
            }
            depth += 1;
            trail += &language;
        }
        Signal { x, depth, trail }
    }
}

fn loss(y: Signal, target: Tensor<2>) -> Tensor<1> {
    (y.x - target).square().mean()
}

fn rows(seed: usize, samples: usize) -> Tensor<2> {
    Tensor::from_data(TensorData::new(noise(seed as u64, samples * WIDTH), [samples, WIDTH]), &Device::flex())
}

/// Input, target and mask of a microbatch.
fn tensors(step: usize, microbatch: usize) -> [Tensor<2>; 3] {
    [0, 1, 2].map(|kind| rows(100 * step + 10 * microbatch + kind, SIZES[microbatch]))
}

fn input(x: Tensor<2>) -> Signal {
    Signal { x, depth: 0, trail: String::new() }
}

fn batch(step: usize) -> Batch {
    let piece = |microbatch| {
        let ([x, target, mask], plain) = (tensors(step, microbatch), Plain::of(step, microbatch));
        let batch = Batch::new(input(x)).target(target).extra("mask", mask);
        let batch = batch.extra("heat", plain.heat).extra("mode", (plain.smooth, plain.skipped));
        batch.extra("language", plain.language)
    };
    Batch::from_microbatches((0..MICROBATCHES).map(piece).collect())
}

pub(crate) fn stage(at: &StageContext) -> StageBox {
    if at.is_last() { StageBox::with_loss(Part::new(at), loss) } else { StageBox::new(Part::new(at)) }
}

/// A pipeline without its schedule.
pub(crate) fn builder(recomputed: bool) -> Builder {
    let builder = Pipeline::builder().devices(vec![Device::flex()]).stages(move |at| stage(at).recomputed(recomputed));
    builder.optimizer(|| AdamWConfig::new().init()).accumulation(Accumulation::Ordered)
}

/// Losses and weights after each step.
pub(crate) type Steps = Vec<(f64, Vec<Vec<f32>>)>;

/// The plain loop's steps.
pub(crate) fn plain_loop() -> Steps {
    let mut reference = Reference::new(Part::new(&whole()));
    let step = |step: usize| {
        let given = reference.step(&SIZES, RATE, None, |model, microbatch| {
            let ([x, target, mask], plain) = (tensors(step, microbatch), Plain::of(step, microbatch));
            let extra = (mask.autodiff(), plain.heat, (plain.smooth, plain.skipped), plain.language);
            loss(model.forward(input(x.autodiff()), extra), target.autodiff())
        });
        (given.loss, reference.weights())
    };
    (0..STEPS).map(step).collect()
}

/// A pipeline's steps.
pub(crate) fn train(pipeline: &mut Pipeline) -> Steps {
    let step = |step: usize| {
        let loss = pipeline.step(batch(step), RATE).unwrap().loss;
        (loss, pipeline.weights().unwrap().iter().flatten().map(read).collect())
    };
    (0..STEPS).map(step).collect()
}
