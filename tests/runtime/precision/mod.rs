//! Mixed precision ([`Precision`]) equals the plain loop that is written in the guide (`half_precision`), bit for bit:
//! masters in f32, rounded copies in forward and backward, sums in f32, a scaled loss.

mod changes;
mod compiled;
mod frozen;
mod merged;
mod parity;
mod wire;

use burn::module::{Module, ParamGroup};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::{LossScale, Precision, init_seeded};
use burn_pipeline::{Accumulation, Batch, Builder, Pipeline, Stage, StageBox, StageContext};
use pipeline_tests::device::device;

const WIDTH: usize = 8;
const LAYERS: usize = 4;
/// Three rows a microbatch: Flex rounds an f16 matmul's products one by one where there are two (a weight's gradient
/// over two rows), or one row.
const SAMPLES: usize = 12;
const MICROBATCHES: usize = 4;
const RATE: f64 = 1e-2;

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Blocks {
    blocks: Vec<Block>,
}

impl Blocks {
    /// The residual stream has the type of the matrices, and norms compute in their own.
    fn run(&self, x: Tensor<2>) -> Tensor<2> {
        self.blocks.iter().fold(x, |x, block| {
            let half: FloatDType = block.up.weight.val().dtype().into();
            let normed = block.norm.forward(x.clone().cast(FloatDType::F32)).cast(half);
            x.cast(half) + block.down.forward(gelu(block.up.forward(normed)))
        })
    }
}

impl Stage for Blocks {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.run(x)
    }
}

fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (y.cast(FloatDType::F32) - target).square().mean()
}

fn blocks(layers: std::ops::Range<usize>, device: &Device) -> Blocks {
    let block = |layer| {
        init_seeded(layer as u64, device, |device| Block {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 2 * WIDTH).init(device),
            down: LinearConfig::new(2 * WIDTH, WIDTH).init(device),
        })
    };
    Blocks { blocks: layers.map(block).collect() }
}

fn data(step: usize) -> [Tensor<2>; 2] {
    let values = |seed| pipeline_tests::noise::noise(seed + step as u64, SAMPLES * WIDTH);
    [1, 51].map(|seed| Tensor::<1>::from_floats(&*values(seed), &device()).reshape([SAMPLES, WIDTH]))
}

/// The guide's own plain loop.
#[allow(unreachable_pub, reason = "a user copies it as it is")]
#[path = "../../../burn-pipeline/src/_guide/half_precision.rs"]
mod written;

struct Plain {
    masters: Blocks,
    optimizer: ModuleOptimizer,
    half: FloatDType,
    /// The loss scale.
    factor: f64,
    /// 1, or the number of replicas that reduce in half.
    replicas: usize,
}

impl Plain {
    fn new(half: FloatDType, factor: f64) -> Self {
        let masters = blocks(0..LAYERS, &device().autodiff());
        Self { masters, optimizer: AdamWConfig::new().init(), half, factor, replicas: 1 }
    }

    /// Returns the loss.
    fn step(&mut self, [x, target]: [Tensor<2>; 2]) -> f64 {
        let size = SAMPLES / MICROBATCHES;
        let loss = |copies: &Blocks, i: usize| {
            let part = |tensor: &Tensor<2>| tensor.clone().narrow(0, i * size, size).autodiff();
            loss(copies.run(part(&x)), part(&target))
        };
        let (masters, how) = (self.masters.clone(), (self.half, self.factor, MICROBATCHES, self.replicas));
        let (stepped, mean) =
            written::step(masters, &mut self.optimizer, RATE, how, |path| path.contains("norm"), loss);
        self.masters = stepped;
        mean
    }

    fn weights(&self) -> Vec<f32> {
        pipeline_tests::reference::weights(&self.masters).concat()
    }
}

fn precision(half: FloatDType, factor: f64) -> Precision {
    let made = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
    made.keep(ParamGroup::from_predicate("norm")).loss_scale(LossScale { initial: factor, ..LossScale::default() })
}

fn builder(schedule: &str, ranks: usize, replicas: usize, precision: impl Into<Option<Precision>>) -> Builder {
    let info = by_name(schedule).unwrap();
    let chunks = if let Chunks::Exactly(chunks) = info.info().chunks { chunks } else { 1 };
    let builder = Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES / replicas })
        .devices(vec![device()])
        .data_parallel(replicas)
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .stages(|at: &StageContext| {
            let part = blocks(at.layers(LAYERS), &at.device);
            let names = burn_pipeline::stage::Names::default().layers_from("blocks", at.layers(LAYERS).start);
            match at.is_last() {
                false => StageBox::new(part).named(names),
                true => StageBox::with_loss(part, loss).named(names),
            }
        });
    match precision.into() {
        Some(precision) => builder.precision(precision),
        None => builder,
    }
}

fn batch(step: usize) -> Batch {
    let [x, target] = data(step);
    Batch::new(x).target(target)
}

fn weights(pipeline: &mut Pipeline) -> Vec<f32> {
    let read = |weight: &burn_pipeline::payload::AnyTensor| {
        let data = weight.to_data().unwrap();
        assert_eq!(data.dtype(), DType::F32, "masters are f32");
        data.iter::<f32>().collect::<Vec<_>>()
    };
    pipeline.weights().unwrap().iter().flatten().flat_map(read).collect()
}
