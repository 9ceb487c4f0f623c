//! A small model whose layers defer the gradients of their weights, and its training over NCCL and by the plain loop,
//! both with computing on the mock's processors.

use crate::cases::{Case, range, read};
use crate::{TIMEOUT, link};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Tensor, TensorData};
use burn_pipeline::ops::DeferredForward;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use pipeline_tests::device::device;
use pipeline_tests::noise::noise;
use pipeline_tests::reference::{Reference, whole};
use std::ops::Range;

/// As many layers as four ranks have stages with two chunks.
const LAYERS: usize = 8;
const WIDTH: usize = 4;

pub(super) const STEPS: usize = 2;
pub(super) const RATE: f64 = 1e-2;

/// What a loss may differ from the plain loop's, relative to it.
pub(super) const ROUNDING: f64 = 1e-6;

#[derive(Module, Debug)]
pub(super) struct Layers {
    layers: Vec<Linear>,
}

impl Layers {
    fn new(at: &StageContext) -> Self {
        let layer =
            |place| init_seeded(place as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
        Self { layers: at.layers(LAYERS).map(layer).collect() }
    }
}

impl Stage for Layers {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| relu(layer.forward_deferred(x.clone())) + x)
    }
}

fn distance(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

/// The model's data.
pub(super) struct Tower {
    x: Tensor<2>,
    target: Tensor<2>,
}

impl Tower {
    pub(super) fn new(samples: usize) -> Self {
        let draw = |seed| {
            let values: Vec<f32> = noise(seed, samples * WIDTH);
            Tensor::from_data(TensorData::new(values, [samples, WIDTH]), &device())
        };
        Self { x: draw(1), target: draw(2) }
    }

    fn pieces(&self, samples: Range<usize>) -> [Tensor<2>; 2] {
        [&self.x, &self.target].map(|tensor| tensor.clone().slice([samples.clone()]))
    }

    /// The loss of the whole batch as the plain loop computes it, without gradients.
    pub(super) fn evaluated(&self, model: &Layers, microbatches: &[usize]) -> f64 {
        let model = model.valid();
        let of = |piece: usize| {
            let [x, target] = self.pieces(range(microbatches, piece));
            f64::from(distance(model.forward(x, ()), target).into_scalar::<f32>()) * microbatches[piece] as f64
        };
        (0..microbatches.len()).map(of).sum::<f64>() / microbatches.iter().sum::<usize>() as f64
    }

    /// Each step's loss by the plain loop. `parts` are the microbatches of each replica.
    pub(super) fn plain(&self, microbatches: &[usize], parts: &[Vec<usize>]) -> (Vec<f64>, Reference<Layers>) {
        let mut plain = Reference::new(self.model());
        let loss = |model: &Layers, piece| self.loss(model, range(microbatches, piece));
        let losses = (0..STEPS).map(|_| plain.step_in_parts(microbatches, parts, RATE, None, loss).loss).collect();
        (losses, plain)
    }
}

impl Case for Tower {
    type Model = Layers;

    fn model(&self) -> Layers {
        Layers::new(&whole())
    }

    fn stage(at: &StageContext) -> StageBox {
        let layers = Layers::new(at);
        let names = burn_pipeline::stage::Names::default().layers_from("layers", at.layers(LAYERS).start);
        let stage = if at.is_last() { StageBox::with_loss(layers, distance) } else { StageBox::new(layers) };
        stage.named(names)
    }

    fn batch(&self) -> Batch {
        Batch::new(self.x.clone()).target(self.target.clone())
    }

    fn loss(&self, model: &Layers, samples: Range<usize>) -> Tensor<1> {
        let [x, target] = self.pieces(samples).map(Tensor::autodiff);
        distance(model.forward(x, ()), target)
    }
}

/// A pipeline of this process's rank over a new link, as the options say.
pub(super) fn pipeline(schedule: &str, size: Size, options: impl FnOnce(Builder) -> Builder) -> Pipeline {
    let (link, device) = link();
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![device]).stages(Tower::stage);
    let builder = builder.optimizer(|| AdamWConfig::new().init()).split(SplitBackward::Captured).timeout(TIMEOUT);
    options(builder).build_rank(Box::new(link)).unwrap()
}

/// The losses of further steps.
pub(super) fn losses(pipeline: &mut Pipeline, case: &Tower, steps: usize) -> Vec<f64> {
    (0..steps).map(|_| pipeline.step(case.batch(), RATE).unwrap().loss).collect()
}

/// All weights, in model order.
pub(super) fn weights(pipeline: &mut Pipeline) -> Vec<f32> {
    pipeline.weights().unwrap().iter().flatten().flat_map(read).collect()
}

/// The largest difference of losses from those of the plain loop, relative to them.
pub(super) fn apart(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max)
}

/// The largest difference of weights, relative to the largest weight.
pub(super) fn weights_apart(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |largest, weight| largest.max(weight.abs()));
    let most = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    f64::from(most / largest)
}
