//! Mixed precision ([`Precision`]) equals the plain loop that is written in [`Plain`], bit for bit: masters in f32,
//! rounded copies in forward and backward, sums in f32, a scaled loss.

use crate::checkpoint::Folder;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::{LossScale, Precision, SplitBackward, init_seeded};
use burn_pipeline::train::ScaleProgress;
use burn_pipeline::{Accumulation, Batch, Builder, Checkpoints, Pipeline, Stage, StageBox, StageContext};
use pipeline_tests::device::device;
use std::collections::HashMap;

const WIDTH: usize = 8;
const LAYERS: usize = 4;
const SAMPLES: usize = 8;
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

/// The plain loop: the whole of mixed precision in Burn's own operations.
struct Plain {
    master: Blocks,
    optimizer: ModuleOptimizer,
    half: FloatDType,
    /// The loss scale.
    factor: f64,
}

/// A module whose matrices and biases, but not its norms, are rounded.
struct Round(FloatDType, Vec<String>);

impl ModuleMapper for Round {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.1.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.1.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.1.iter().any(|name| name == "norm") {
            true => param,
            false => param.map(|value| value.inner().cast(self.0).autodiff().require_grad()),
        }
    }
}

/// Gradients in f32, added to sums or made Burn's.
struct Sums<'a> {
    of: Option<&'a burn::tensor::Gradients>,
    sums: HashMap<u64, burn_pipeline::payload::AnyTensor>,
    factor: f64,
    made: GradientsParams,
}

impl ModuleVisitor for Sums<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let sum = self.sums.remove(&param.id.val()).map(|sum| Tensor::<D>::from_dispatch(sum.into_dispatch()));
        match self.of {
            Some(gradients) => {
                let Some(gradient) = param.val().grad(gradients) else { return };
                let gradient = gradient.cast(FloatDType::F32);
                let sum = match sum {
                    Some(sum) => sum + gradient,
                    None => gradient,
                };
                self.sums.insert(param.id.val(), burn_pipeline::payload::AnyTensor::new(sum));
            }
            None => sum.into_iter().for_each(|sum| self.made.register(param.id, sum * self.factor)),
        }
    }
}

impl Plain {
    fn new(half: FloatDType, factor: f64) -> Self {
        let master = blocks(0..LAYERS, &device().autodiff());
        Self { master, optimizer: AdamWConfig::new().init(), half, factor }
    }

    /// A step over microbatches of one size. Returns the loss.
    fn step(&mut self, [x, target]: [Tensor<2>; 2]) -> f64 {
        let copy = self.master.clone().map(&mut Round(self.half, Vec::new()));
        let mut sums = Sums { of: None, sums: HashMap::new(), factor: 1.0, made: GradientsParams::new() };
        let (mut mean, size) = (0.0, SAMPLES / MICROBATCHES);
        for i in 0..MICROBATCHES {
            let part = |tensor: &Tensor<2>| tensor.clone().narrow(0, i * size, size).autodiff();
            let value = loss(copy.run(part(&x)), part(&target));
            mean += value.clone().into_scalar::<f32>() as f64 / MICROBATCHES as f64;
            let gradients = value.mul_scalar(self.factor).backward();
            sums = Sums { of: Some(&gradients), sums: sums.sums, factor: 1.0, made: GradientsParams::new() };
            copy.visit(&mut sums);
            sums.of = None;
            sums = Sums { of: None, sums: sums.sums, factor: 1.0, made: GradientsParams::new() };
        }
        sums.factor = 1.0 / MICROBATCHES as f64 / self.factor;
        self.master.visit(&mut sums);
        self.master = self.optimizer.step(RATE, self.master.clone(), sums.made);
        mean
    }

    fn weights(&self) -> Vec<f32> {
        pipeline_tests::reference::weights(&self.master).concat()
    }
}

fn precision(half: FloatDType, factor: f64) -> Precision {
    let made = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
    made.keep(ParamGroup::from_predicate("norm")).loss_scale(LossScale { initial: factor, ..LossScale::default() })
}

fn builder(schedule: &str, ranks: usize, replicas: usize, precision: Precision) -> Builder {
    let info = by_name(schedule).unwrap();
    let chunks = if let Chunks::Exactly(chunks) = info.info().chunks { chunks } else { 1 };
    Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES / replicas })
        .devices(vec![device()])
        .data_parallel(replicas)
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .precision(precision)
        .stages(|at: &StageContext| {
            let part = blocks(at.layers(LAYERS), &at.device);
            let names = burn_pipeline::stage::Names::default().layers_from("blocks", at.layers(LAYERS).start);
            match at.is_last() {
                false => StageBox::new(part).named(names),
                true => StageBox::with_loss(part, loss).named(names),
            }
        })
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

#[test]
fn every_schedule_and_engine_equals_the_written_plain_loop_bit_for_bit() {
    for (half, factor) in [(FloatDType::BF16, 1.0), (FloatDType::F16, 1024.0)] {
        let mut plain = Plain::new(half, factor);
        let losses: Vec<f64> = (0..4).map(|step| plain.step(data(step))).collect();
        let expected = plain.weights();
        for schedule in ["GPipe", "1F1B", "Interleaved1F1B", "ZBH1", "ZBVZeroBubble", "DualPipe", "LoopedBFS"] {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                for (replicas, sharded) in [(1, false), (2, false), (2, true)] {
                    if schedule == "DualPipe" && replicas > 1 {
                        continue;
                    }
                    let of = format!("{half:?}, {schedule}, {split:?}, {replicas} replicas, sharded: {sharded}");
                    let builder = builder(schedule, 2, replicas, precision(half, factor));
                    let mut pipeline = builder.split(split).sharded(sharded).build().unwrap();
                    let got: Vec<f64> = (0..4).map(|step| pipeline.step(batch(step), RATE).unwrap().loss).collect();
                    assert_eq!(got, losses, "{of}");
                    assert!(weights(&mut pipeline) == expected, "{of}: weights differ");
                }
            }
        }
    }
}

#[test]
fn sums_of_many_bf16_gradients_keep_growing() {
    // In bf16, 256 + 1 is 256.
    let ones = |precision: Option<Precision>| {
        let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 512)).devices(vec![device()]);
        let builder = builder.reduction(burn_pipeline::stage::Reduction::Sum);
        let builder = match precision {
            Some(precision) => builder.precision(precision),
            None => builder,
        };
        let stages = |at: &StageContext| {
            let weight = Param::from_tensor(Tensor::ones([1, 1], (&at.device, DType::BF16)));
            StageBox::with_loss(One { weight }, |y: Tensor<2>, _: Tensor<2>| y.sum())
        };
        let mut pipeline = builder.stages(stages).build().unwrap();
        let ones = || Tensor::<2>::ones([512, 1], (&device(), DType::BF16));
        pipeline.accumulate(Batch::new(ones()).target(ones())).unwrap();
        let gradients = pipeline.take_gradients().unwrap().concat();
        gradients[0].as_ref().unwrap().to_data().unwrap().iter::<f32>().next().unwrap()
    };
    assert_eq!((ones(None), ones(Some(Precision::bf16()))), (256.0, 512.0));
}

#[derive(Module, Debug)]
struct One {
    weight: Param<Tensor<2>>,
}

impl Stage for One {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        x.matmul(self.weight.val())
    }
}

#[test]
fn an_overflow_is_skipped_on_all_ranks_and_the_scale_falls_then_grows() {
    for (replicas, sharded) in [(1, false), (2, true)] {
        let scale = LossScale { initial: 2f64.powi(24), interval: 2, ..LossScale::default() };
        let precision = Precision::f16().keep(ParamGroup::from_predicate("norm")).loss_scale(scale);
        let mut pipeline = builder("1F1B", 2, replicas, precision).sharded(sharded).build().unwrap();
        let before = weights(&mut pipeline);
        let mut factors = Vec::new();
        for step in 0..40 {
            let report = pipeline.step(batch(step), RATE).unwrap();
            let factor = report.loss_scale.unwrap();
            let next = pipeline.progress().loss_scale.unwrap();
            match report.skipped {
                Some(_) => assert_eq!(next, ScaleProgress { factor: factor / 2.0, steps: 0 }),
                None if next.steps == 0 => assert_eq!(next.factor, 2.0 * factor),
                None => assert_eq!(next, ScaleProgress { factor, steps: 1 }),
            }
            factors.push((factor, report.skipped.is_some()));
            if factors.iter().all(|(_, skipped)| *skipped) {
                assert!(weights(&mut pipeline) == before, "a skipped step changed weights");
            }
        }
        let skipped = factors.iter().filter(|(_, skipped)| *skipped).count();
        assert!(skipped >= 2 && factors[0].1, "{factors:?}");
        assert_eq!(pipeline.progress().steps as usize, 40 - skipped);
        assert!(weights(&mut pipeline) != before && weights(&mut pipeline).iter().all(|w| w.is_finite()));
    }
}

#[test]
fn a_job_resumes_on_another_cut_with_its_scale_and_the_same_bits() {
    let folder = Folder::new("precision");
    let checkpoints = Checkpoints::new(&*folder);
    let scale = || LossScale { initial: 2f64.powi(24), interval: 2, ..LossScale::default() };
    let precision = || Precision::f16().keep(ParamGroup::from_predicate("norm")).loss_scale(scale());
    let mut one = builder("1F1B", 2, 1, precision()).build().unwrap();
    (0..12).for_each(|step| drop(one.step(batch(step), RATE).unwrap()));
    one.save(&checkpoints, &()).unwrap();
    for (schedule, ranks, replicas, sharded) in [("GPipe", 1, 1, false), ("ZBH1", 4, 1, false), ("1F1B", 2, 2, true)] {
        let mut other = builder(schedule, ranks, replicas, precision()).sharded(sharded).build().unwrap();
        other.load(&checkpoints.latest().unwrap()).unwrap();
        assert_eq!(other.progress(), checkpoints.latest().unwrap().progress());
        let mut same = builder("1F1B", 2, 1, precision()).build().unwrap();
        same.load(&checkpoints.latest().unwrap()).unwrap();
        for step in 12..16 {
            let reports = [&mut other, &mut same].map(|pipeline| pipeline.step(batch(step), RATE).unwrap());
            assert_eq!(reports[0].loss, reports[1].loss);
            assert_eq!(reports[0].loss_scale, reports[1].loss_scale);
        }
        assert!(weights(&mut other) == weights(&mut same), "{schedule}");
    }
}
