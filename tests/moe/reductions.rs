//! The injected scale under every reduction: mean, sum, and a sum with a weight per token.

use crate::cases::{cut_up, noise};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, LOSS_SEED, Loss, Reduction, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, StageContext};
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights};
use burn_pipeline_moe::layers::{BlockKind, LayerAuxiliary, MixtureOfExperts, MixtureOfExpertsConfig};
use std::ops::Range;

const D: usize = 4;
const SEQ: usize = 3;
const LAYERS: usize = 4;

/// Layers of experts whose injected losses are weighted by the number of tokens that count.
#[derive(Module, Debug)]
struct Part {
    layers: Vec<MixtureOfExperts>,
    last: Linear,
    weighted: bool,
}

fn losses() -> AuxiliaryLosses {
    let weights = AuxiliaryWeights { load_balance: 1.0, router_z: 0.5, depth_router: 0.0 };
    AuxiliaryLosses::new(weights, &[BlockKind::Experts; LAYERS])
}

impl Part {
    fn new(at: &StageContext, reduction: Reduction) -> Self {
        let config = MixtureOfExpertsConfig::new(D, 3, 3);
        let layer = |layer: usize| init_seeded(70 + layer as u64, &at.device, |device| config.init(device));
        let last = init_seeded(99, &at.device, |device| LinearConfig::new(D, D).init(device));
        Self { layers: at.layers(LAYERS).map(layer).collect(), last, weighted: reduction == Reduction::Weighted }
    }

    fn run(&self, x: Tensor<3>) -> (Tensor<3>, Vec<LayerAuxiliary>) {
        let mut left = Vec::new();
        let x = self.layers.iter().fold(x, |x, layer| {
            let (y, auxiliary) = layer.forward(x.clone());
            left.push(auxiliary);
            x + y
        });
        (x, left)
    }
}

impl Stage for Part {
    type Input = Tensor<3>;
    type Extra = (Tensor<1>, Tensor<2>);
    type Output = Tensor<3>;

    fn extras(&self) -> Vec<&'static str> {
        vec![LOSS_SEED, "counts"]
    }

    fn forward(&self, x: Tensor<3>, (seed, counts): (Tensor<1>, Tensor<2>)) -> Tensor<3> {
        let (x, left) = self.run(x);
        let scale = if self.weighted { seed * counts.sum() } else { seed };
        losses().inject(x, &left, scale)
    }
}

/// The main loss of a microbatch, before the divisions of the loss contract.
fn main(y: Tensor<3>, target: Tensor<3>, counts: Tensor<2>, reduction: Reduction) -> Tensor<1> {
    let squares = (y - target).square();
    match reduction {
        Reduction::Mean => squares.mean(),
        Reduction::Sum => squares.sum(),
        Reduction::Weighted => (squares * counts.unsqueeze_dim::<3>(2)).sum(),
    }
}

struct Data {
    x: Tensor<3>,
    target: Tensor<3>,
    counts: Tensor<2>,
}

impl Data {
    fn new(seed: u64, samples: usize) -> Self {
        let device = Device::flex();
        let draw =
            |seed| Tensor::<1>::from_floats(&*noise(seed, samples * SEQ * D), &device).reshape([samples, SEQ, D]);
        let counts: Vec<f32> =
            (0..samples * SEQ).map(|i| if (i * 7 + seed as usize).is_multiple_of(3) { 0.0 } else { 1.0 }).collect();
        let counts = Tensor::<1>::from_floats(&*counts, &device).reshape([samples, SEQ]);
        Self { x: draw(10 * seed), target: draw(10 * seed + 1), counts }
    }

    fn batch(&self) -> Batch {
        let target = (self.target.clone(), self.counts.clone());
        Batch::new(self.x.clone()).target(target).extra("counts", self.counts.clone())
    }

    /// A microbatch's main and auxiliary loss, and its weight in the whole.
    fn loss(&self, model: &Part, samples: Range<usize>, reduction: Reduction) -> (Tensor<1>, f64) {
        let cut = |t: &Tensor<3>| t.clone().narrow(0, samples.start, samples.len()).autodiff();
        let counts = self.counts.clone().narrow(0, samples.start, samples.len());
        let tokens = counts.clone().sum().into_scalar::<f32>() as f64;
        let (y, left) = model.run(cut(&self.x));
        let main = main(y, cut(&self.target), counts.autodiff(), reduction);
        let auxiliary = losses().total(&left).unwrap();
        match reduction {
            Reduction::Mean => ((main + auxiliary).mul_scalar(samples.len() as f64), samples.len() as f64),
            Reduction::Sum => (main + auxiliary, 1.0),
            Reduction::Weighted => (main + auxiliary.mul_scalar(tokens), tokens),
        }
    }
}

struct Rows<'a>(&'a GradientsParams, f64, Vec<Vec<f32>>);

impl ModuleVisitor for Rows<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let gradient = self.0.get::<R>(param.id).map(|g| g.mul_scalar(self.1));
        self.2.extend(gradient.map(|g| g.into_data().iter::<f32>().collect::<Vec<f32>>()));
    }
}

/// The gradients of one loss over all samples of all batches.
fn plain(batches: &[Data], microbatches: usize, reduction: Reduction) -> Vec<Vec<f32>> {
    let model = Part::new(&pipeline_tests::reference::whole(), reduction);
    let (mut sum, mut weight) = (GradientsAccumulator::new(), 0.0);
    let sizes: Vec<usize> = batches.iter().map(|data| data.x.dims()[0]).collect();
    for (batch, samples) in cut_up(&sizes, microbatches) {
        let (loss, weighs) = batches[batch].loss(&model, samples, reduction);
        sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        weight += weighs;
    }
    let divisor = if reduction == Reduction::Sum { 1.0 } else { weight };
    let sum = sum.grads();
    let mut rows = Rows(&sum, 1.0 / divisor, Vec::new());
    model.visit(&mut rows);
    rows.2
}

fn stage(at: &StageContext, reduction: Reduction) -> StageBox {
    let part = Part::new(at, reduction);
    if !at.is_last() {
        return StageBox::new(part);
    }
    StageBox::with_loss(part, move |y: Tensor<3>, (target, counts): (Tensor<3>, Tensor<2>)| {
        let weight = counts.clone().sum();
        let value = main(y, target, counts, reduction);
        if reduction == Reduction::Weighted { Loss::weighted(value, weight) } else { value.into() }
    })
}

#[test]
fn every_reduction_weighs_auxiliary_losses_as_the_main_loss() {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Weighted] {
        for (name, chunks) in [("1F1B", 1), ("ZBVZeroBubble", 2), ("DualPipe", 1)] {
            for (microbatches, samples) in [(1, vec![3]), (4, vec![7]), (3, vec![5, 4, 8])] {
                let data: Vec<Data> = samples.iter().enumerate().map(|(i, &n)| Data::new(i as u64 + 1, n)).collect();
                let expected = plain(&data, microbatches, reduction);
                let size = Size { ranks: 2, chunks, microbatches };
                let builder = Pipeline::builder().schedule(name, size).reduction(reduction);
                let builder = builder.devices(vec![Device::flex()]).stages(move |at| stage(at, reduction));
                let mut pipeline = builder.build().unwrap();
                data.iter().for_each(|data| drop(pipeline.accumulate(data.batch()).unwrap()));
                let got = pipeline.take_gradients().unwrap();
                let got: Vec<Vec<f32>> =
                    got.iter().flatten().flatten().map(|g| g.to_data().unwrap().iter::<f32>().collect()).collect();
                assert_eq!(got.len(), expected.len());
                for (got, expected) in got.iter().zip(&expected) {
                    let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                    let difference = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
                    assert!(
                        difference < 2e-5 * largest,
                        "{reduction:?}, {name}, {samples:?}: {difference:e} of {largest:e}"
                    );
                }
            }
        }
    }
}
