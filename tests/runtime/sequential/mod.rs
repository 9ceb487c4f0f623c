//! A model given as a list of layers ([`Sequential`]) equals the plain loop over the same layers, in every cut: with
//! skips, extras of the batch, tied layers, rules and checkpoints.

mod compile_errors;
mod context;
mod parity;
mod recomputed;
mod refusals;
mod stages;
mod wiring;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::layers::{LayerContext, Model};
use burn_pipeline::payload::Skip;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::{Accumulation, Batch, Builder, Layer, Pipeline, Sequential, init_seeded};
use pipeline_tests::device::device;
use pipeline_tests::reference::Reference;

const WORDS: usize = 11;
const WIDTH: usize = 6;
/// Layers on the way down, and on the way up.
const LEVELS: usize = 3;
const SAMPLES: usize = 8;
const LENGTH: usize = 4;
const MICROBATCHES: usize = 4;
const SEED: u64 = 5;

/// The model by hand: values of the way down are added on the way up, last first.
#[derive(Module, Debug)]
struct Whole {
    embed: Embedding,
    down: Vec<Linear>,
    up: Vec<Linear>,
    head: Linear,
}

impl Whole {
    fn new(device: &Device) -> Self {
        let seed = |layer: usize| SEED * 1_000_003 + layer as u64;
        let linears = |first: usize, count: usize, to: usize| {
            let linear = |layer| init_seeded(seed(layer), device, |device| LinearConfig::new(WIDTH, to).init(device));
            (first..first + count).map(linear).collect::<Vec<Linear>>()
        };
        Self {
            embed: init_seeded(seed(0), device, |device| EmbeddingConfig::new(WORDS, WIDTH).init(device)),
            down: linears(1, LEVELS, WIDTH),
            up: linears(1 + LEVELS, LEVELS, WIDTH),
            head: linears(1 + 2 * LEVELS, 1, WORDS).remove(0),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>, mask: &Tensor<3, Bool>) -> Tensor<3> {
        let mut levels = Vec::new();
        let mut x = self.embed.forward(ids);
        for down in &self.down {
            x = gelu(down.forward(x)).mask_fill(mask.clone(), 0.5);
            levels.push(x.clone());
        }
        for up in &self.up {
            x = gelu(up.forward(x)) + levels.pop().unwrap();
        }
        self.head.forward(x)
    }
}

fn square(width: usize) -> impl Fn(&LayerContext) -> Linear + Clone {
    move |at| LinearConfig::new(WIDTH, width).init(&at.device)
}

fn loss(scores: Tensor<3>, wanted: Tensor<3>) -> Tensor<1> {
    (scores - wanted).square().mean()
}

/// The same model as a list.
fn model() -> Model {
    listed(false)
}

/// The same, with the layers on the way down recomputed or not.
fn listed(recomputed: bool) -> Model {
    let embed = |at: &LayerContext| EmbeddingConfig::new(WORDS, WIDTH).init(&at.device);
    let down = |down: &Linear, (x, mask): (Tensor<3>, Tensor<3, Bool>)| {
        let x = gelu(down.forward(x)).mask_fill(mask, 0.5);
        (x.clone(), Skip(x))
    };
    let up = |up: &Linear, (x, Skip(level)): (Tensor<3>, Skip<Tensor<3>>)| gelu(up.forward(x)) + level;
    let down = Layer::new("down", square(WIDTH), down);
    let down = if recomputed { down.recomputed() } else { down };
    Sequential::new()
        .then(Layer::new("embed", embed, Embedding::forward))
        .repeat(LEVELS, down.extras(["mask"]).skip_out("level"))
        .repeat(LEVELS, Layer::new("up", square(WIDTH), up).skip_in("level"))
        .then(Layer::new("head", square(WORDS), Linear::forward))
        .seed(SEED)
        .loss(loss)
}

struct Data {
    ids: Tensor<2, Int>,
    mask: Tensor<3, Bool>,
    wanted: Tensor<3>,
}

fn data(step: usize) -> Data {
    let values = |seed, count| pipeline_tests::noise::noise(seed + step as u64, count);
    let floats = |seed, width: usize| {
        let values = values(seed, SAMPLES * LENGTH * width);
        Tensor::<1>::from_floats(&*values, &device()).reshape([SAMPLES, LENGTH, width])
    };
    let ids = Tensor::<1, Int>::arange(0..(SAMPLES * LENGTH) as i64, &device()).add_scalar(step as i64);
    Data {
        ids: ids.remainder_scalar(WORDS as i64).reshape([SAMPLES, LENGTH]),
        mask: floats(31, WIDTH).greater_elem(0.6),
        wanted: floats(7, WORDS),
    }
}

fn batch(step: usize) -> Batch {
    let Data { ids, mask, wanted } = data(step);
    Batch::new(ids).extra("mask", mask).target(wanted)
}

fn plain(steps: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut plain = Reference::new(Whole::new(&device().autodiff()));
    let losses = (0..steps).map(|step| {
        let (data, size) = (data(step), SAMPLES / MICROBATCHES);
        let loss_of = |whole: &Whole, i: usize| {
            let mask = data.mask.clone().narrow(0, i * size, size);
            let scores = whole.forward(data.ids.clone().narrow(0, i * size, size), &mask);
            loss(scores, data.wanted.clone().narrow(0, i * size, size).autodiff())
        };
        plain.step(&[size; MICROBATCHES], 1e-2, None, loss_of).loss
    });
    let losses = losses.collect();
    (losses, pipeline_tests::reference::weights(&plain.model))
}

fn builder(schedule: &str, ranks: usize) -> Builder {
    let chunks = if let Chunks::Exactly(chunks) = by_name(schedule).unwrap().info().chunks { chunks } else { 1 };
    Pipeline::builder()
        .layers(model())
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES })
        .devices(vec![device()])
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
}

/// Weights by name, in the order of the whole model.
fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let stages = pipeline.weights().unwrap();
    stages.into_iter().flatten().map(|weight| weight.to_data().unwrap().iter::<f32>().collect()).collect()
}

fn linear(name: &str) -> Layer<Linear, Tensor<2>, Tensor<2>> {
    Layer::new(name, |at| LinearConfig::new(3, 3).init(&at.device), Linear::forward)
}
