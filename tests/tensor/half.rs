//! Tensor-parallel stages in half precision: sums over members are made in f32, in member order, and rounded once. So
//! training equals, bit for bit, the guide's plain loop over a model that computes its matmuls in the same parts.

use burn::module::{Module, ModuleMapper, Param, ParamGroup};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::module::linear;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{LossScale, Precision, SplitBackward, init_seeded};
use burn_pipeline::{Accumulation, Batch, Builder, Pipeline, Stage, StageBox, StageContext};
use pipeline_tests::device::device;

const WIDTH: usize = 8;
const HIDDEN: usize = 16;
const BLOCKS: usize = 4;
const SAMPLES: usize = 8;
const MICROBATCHES: usize = 4;
const STEPS: usize = 4;
const RATE: f64 = 1e-2;
/// Two halves are added with one rounding anyway, four are not.
const MEMBERS: usize = 4;

/// The guide's own plain loop.
#[allow(unreachable_pub, reason = "a user copies it as it is")]
#[path = "../../burn-pipeline/src/_guide/half_precision.rs"]
mod written;

/// An ordinary block.
#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Whole {
    blocks: Vec<Block>,
}

/// Rounds, or widens, all parameters.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.inner().cast(self.0).autodiff().require_grad())
    }
}

fn block(layer: usize, own: FloatDType, device: &Device) -> Block {
    let block = init_seeded(layer as u64, device, |device| Block {
        norm: LayerNormConfig::new(WIDTH).init(device),
        up: LinearConfig::new(WIDTH, HIDDEN).init(device),
        down: LinearConfig::new(HIDDEN, WIDTH).init(device),
    });
    block.map(&mut Cast(own))
}

/// The norm in the type of its parameters, in the type of the matrices.
fn normed(norm: &LayerNorm, x: Tensor<2>) -> Tensor<2> {
    let own = FloatDType::from(x.dtype());
    norm.forward(x.cast(FloatDType::from(norm.gamma.dtype()))).cast(own)
}

impl Whole {
    /// Computes each member's part, and adds the parts in this type.
    fn run(&self, x: Tensor<2>, sums: FloatDType) -> Tensor<2> {
        self.blocks.iter().fold(x, |x, block| {
            let own = FloatDType::from(block.up.weight.val().dtype());
            let x = x.cast(own);
            // The gradients of its uses are added in this type too, those of the last use first.
            let (input, each) = (normed(&block.norm, x.clone()).cast(sums), HIDDEN / MEMBERS);
            let part = |member: usize| {
                let columns = block.up.weight.val().narrow(1, member * each, each);
                let bias = block.up.bias.as_ref().unwrap().val().narrow(0, member * each, each);
                let hidden = gelu(linear(input.clone().cast(own), columns, Some(bias)));
                linear(hidden, block.down.weight.val().narrow(0, member * each, each), None).cast(sums)
            };
            let mut parts: Vec<Tensor<2>> = (0..MEMBERS).rev().map(part).collect();
            parts.reverse();
            let sum = parts.into_iter().reduce(|sum, part| sum + part).unwrap().cast(own);
            x + (sum + block.down.bias.as_ref().unwrap().val().unsqueeze())
        })
    }
}

/// A block that is cut over a group.
#[derive(Module, Debug)]
struct CutBlock {
    norm: LayerNorm,
    up: ColumnLinear,
    down: RowLinear,
}

#[derive(Module, Debug)]
struct Part {
    blocks: Vec<CutBlock>,
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.blocks.iter().fold(x, |x, block| {
            let x = x.cast(FloatDType::from(block.up.linear.weight.val().dtype()));
            x.clone() + block.down.forward(gelu(block.up.forward(normed(&block.norm, x))))
        })
    }
}

fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let wide = if y.dtype() == DType::F64 { FloatDType::F64 } else { FloatDType::F32 };
    (y.cast(wide) - target.cast(wide)).square().mean()
}

fn data(step: usize) -> [Tensor<2>; 2] {
    let values = |seed| pipeline_tests::noise::noise(seed + step as u64, SAMPLES * WIDTH);
    [1, 51].map(|seed| Tensor::<1>::from_floats(&*values(seed), &device()).reshape([SAMPLES, WIDTH]))
}

/// Losses and weights of the plain loop.
fn plain(half: FloatDType, factor: f64, sums: FloatDType) -> (Vec<f64>, Vec<f32>) {
    let blocks = (0..BLOCKS).map(|layer| block(layer, FloatDType::F32, &device().autodiff())).collect();
    let (mut masters, mut optimizer) = (Whole { blocks }, AdamWConfig::new().init());
    let size = SAMPLES / MICROBATCHES;
    let step = |step: usize| {
        let [x, target] = data(step);
        let loss = |copies: &Whole, i: usize| {
            let part = |tensor: &Tensor<2>| tensor.clone().narrow(0, i * size, size).autodiff();
            loss(copies.run(part(&x), sums), part(&target))
        };
        let (how, keeps) = ((half, factor, MICROBATCHES, 1), |path: &str| path.contains("norm"));
        let (stepped, mean) = written::step(masters.clone(), &mut optimizer, RATE, how, keeps, loss);
        masters = stepped;
        mean
    };
    let losses = (0..STEPS).map(step).collect();
    (losses, pipeline_tests::reference::weights(&masters).concat())
}

fn builder(own: FloatDType, (schedule, chunks): (&str, usize), ranks: usize, replicas: usize) -> Builder {
    Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES / replicas })
        .devices(vec![device()])
        .data_parallel(replicas)
        .tensor_parallel(MEMBERS)
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .stages(move |at: &StageContext| {
            let cut = |layer| {
                let Block { norm, up, down } = block(layer, own, &at.device);
                CutBlock { norm, up: ColumnLinear::cut(up, &at.group), down: RowLinear::cut(down, &at.group) }
            };
            let part = Part { blocks: at.layers(BLOCKS).map(cut).collect() };
            if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) }
        })
}

/// Losses and weights of a pipeline, with the type of its weights.
fn trained(builder: Builder) -> (Vec<f64>, Vec<f64>, DType) {
    let mut pipeline = builder.build().unwrap();
    let step = |step| {
        let [x, target] = data(step);
        pipeline.step(Batch::new(x).target(target), RATE).unwrap().loss
    };
    let losses = (0..STEPS).map(step).collect();
    let weights = pipeline.weights().unwrap().concat();
    let types: Vec<DType> = weights.iter().map(|weight| weight.dtype()).collect();
    assert!(types.iter().all(|dtype| *dtype == types[0]), "{types:?}");
    let values = weights.iter().flat_map(|weight| weight.to_data().unwrap().iter::<f64>().collect::<Vec<_>>());
    (losses, values.collect(), types[0])
}

fn precision(half: FloatDType, factor: f64) -> Precision {
    let made = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
    made.keep(ParamGroup::from_predicate("norm")).loss_scale(LossScale { initial: factor, ..LossScale::default() })
}

#[test]
fn tensor_parallel_stages_in_half_precision_equal_the_written_plain_loop_bit_for_bit() {
    for (half, factor) in [(FloatDType::BF16, 1.0), (FloatDType::F16, 1024.0)] {
        let (losses, weights) = plain(half, factor, FloatDType::F32);
        assert!(weights != plain(half, factor, half).1, "{half:?}: the type of the sums changes nothing");
        for schedule in [("1F1B", 1), ("ZBVZeroBubble", 2)] {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                for (ranks, replicas, sharded) in [(1, 1, false), (2, 1, false), (2, 2, false), (1, 2, true)] {
                    let builder = builder(FloatDType::F32, schedule, ranks, replicas).split(split).sharded(sharded);
                    let got = trained(builder.precision(precision(half, factor)));
                    let of = format!("{half:?}, {schedule:?}, {split:?}, {ranks} ranks, {replicas} replicas");
                    assert_eq!((&got.0, got.2), (&losses, DType::F32), "{of}");
                    assert!(got.1.iter().zip(&weights).all(|(got, own)| *got == f64::from(*own)), "{of}");
                }
            }
        }
    }
}

#[test]
fn parameters_in_f64_are_not_rounded_by_a_precision_in_a_group_or_alone() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let of = || builder(FloatDType::F64, ("1F1B", 1), 2, 1).split(split);
        let expected = trained(of());
        assert_eq!(expected.2, DType::F64);
        let got = trained(of().precision(precision(FloatDType::BF16, 1.0)));
        assert!(got == expected, "in a group, {split:?}");
        let alone = |builder: Builder| trained(builder.tensor_parallel(1));
        assert!(alone(of().precision(precision(FloatDType::BF16, 1.0))) == alone(of()), "alone, {split:?}");
    }
}
