//! Mixed precision ([`Precision`]) equals the plain loop that is written in the guide (`half_precision`), bit for bit:
//! masters in f32, rounded copies in forward and backward, sums in f32, a scaled loss.

use crate::checkpoint::Folder;
use burn::module::{Module, Param, ParamGroup};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use burn_pipeline::payload::Validate;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::{LossScale, Precision, SplitBackward, init_seeded};
use burn_pipeline::train::{OnNonFinite, ScaleProgress, SharedParameter};
use burn_pipeline::{Accumulation, Batch, Builder, Checkpoints, Pipeline, Stage, StageBox, StageContext, StepReport};
use pipeline_examples::gpt::{GptConfig, Signal};
use pipeline_tests::device::device;

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

/// The guide's own plain loop.
#[allow(unreachable_pub, reason = "a user copies it as it is")]
#[path = "../../burn-pipeline/src/_guide/half_precision.rs"]
mod written;

struct Plain {
    masters: Blocks,
    optimizer: ModuleOptimizer,
    half: FloatDType,
    /// The loss scale.
    factor: f64,
}

impl Plain {
    fn new(half: FloatDType, factor: f64) -> Self {
        let masters = blocks(0..LAYERS, &device().autodiff());
        Self { masters, optimizer: AdamWConfig::new().init(), half, factor }
    }

    /// Returns the loss.
    fn step(&mut self, [x, target]: [Tensor<2>; 2]) -> f64 {
        let size = SAMPLES / MICROBATCHES;
        let loss = |copies: &Blocks, i: usize| {
            let part = |tensor: &Tensor<2>| tensor.clone().narrow(0, i * size, size).autodiff();
            loss(copies.run(part(&x)), part(&target))
        };
        let (masters, how) = (self.masters.clone(), (self.half, self.factor, MICROBATCHES));
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

/// The losses and the weights of some steps.
fn trained(mut pipeline: Pipeline, change: impl Fn(&mut Pipeline, usize)) -> (Vec<f64>, Vec<f32>) {
    let step = |step| {
        change(&mut pipeline, step);
        pipeline.step(batch(step), RATE).unwrap().loss
    };
    let losses = (0..4).map(step).collect();
    (losses, weights(&mut pipeline))
}

#[test]
fn other_ways_to_run_and_to_change_weights_keep_the_masters() {
    let half = || precision(FloatDType::BF16, 1.0);
    let (losses, expected) = trained(builder("1F1B", 2, 1, half()).build().unwrap(), |_, _| ());
    let same = |pipeline: Pipeline, of: &str, change: fn(&mut Pipeline, usize)| {
        let got = trained(pipeline, change);
        assert!(got == (losses.clone(), expected.clone()), "{of}: losses {:?}, expected {losses:?}", got.0);
    };
    let recomputed = |at: &StageContext| {
        let part = blocks(at.layers(LAYERS), &at.device);
        let stage = if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) };
        stage.recomputed(true)
    };
    same(builder("ZBH1", 2, 1, half()).stages(recomputed).build().unwrap(), "recomputed", |_, _| ());
    same(builder("1F1B", 2, 1, half()).build().unwrap(), "replace_module", |pipeline, step| {
        if step == 2 {
            pipeline.replace_module(1, |part: Blocks, _: &StageContext| part).unwrap();
        }
    });
    same(builder("1F1B", 2, 1, half()).build().unwrap(), "a module taken out", |pipeline, _| {
        let module: Blocks = pipeline.module(0).unwrap();
        assert_eq!(module.blocks[0].up.weight.val().dtype(), DType::F32);
    });
    same(builder("1F1B", 2, 2, half()).sharded(true).build().unwrap(), "evaluations between", |pipeline, step| {
        pipeline.eval(batch(step)).unwrap();
        pipeline.named_weights().unwrap();
    });
}

#[test]
fn replaced_weights_are_masters_and_the_copies_follow_them() {
    let made = |replicas| {
        let builder = builder("1F1B", 2, replicas, precision(FloatDType::BF16, 1.0));
        builder.sharded(replicas > 1).build().unwrap()
    };
    let mut plain = Plain::new(FloatDType::BF16, 1.0);
    for replicas in [1, 2] {
        let mut pipeline = made(replicas);
        let named = pipeline.named_weights().unwrap().concat();
        assert!(named.iter().all(|weight| weight.value.dtype() == DType::F32));
        let doubled = named.into_iter().map(|weight| (weight.id, weight.value.scale(2.0))).collect();
        pipeline.step_to(doubled, Vec::new()).unwrap();
        let before = weights(&mut pipeline);
        let own = plain.weights();
        assert!(before.iter().zip(&own).all(|(got, own)| *got == 2.0 * own), "{replicas} replicas");
        assert_ne!(pipeline.eval(batch(0)).unwrap().loss, made(1).eval(batch(0)).unwrap().loss);
    }
    let loss = plain.step(data(0));
    assert_eq!(made(1).step(batch(0), RATE).unwrap().loss, loss);
}

#[test]
fn features_that_do_not_go_with_a_precision_are_refused_by_their_reason() {
    let refused = |builder: Builder| builder.build().unwrap_err().to_string();
    let rounded = refused(builder("1F1B", 2, 1, precision(FloatDType::BF16, 1.0)).bf16_matmuls(true));
    assert!(rounded.contains("`Builder::precision` does not work with `Builder::bf16_matmuls`"), "{rounded}");
    let empty = refused(builder("1F1B", 2, 1, Precision::bf16().keep(ParamGroup::from_predicate("no such"))));
    assert!(empty.contains("no such"), "{empty}");
    for (scale, reason) in [
        (LossScale { initial: 0.0, ..LossScale::default() }, "above 0"),
        (LossScale { growth: 0.5, ..LossScale::default() }, "grow by 1 or more"),
        (LossScale { backoff: 1.0, ..LossScale::default() }, "below 1"),
        (LossScale { interval: 0, ..LossScale::default() }, "1 or more"),
    ] {
        let error = refused(builder("1F1B", 2, 1, Precision::f16().loss_scale(scale)));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_tied_parameter_is_rounded_by_its_first_name_on_every_cut_and_in_every_step() {
    let config = GptConfig::new().with_d_model(8).with_layers(2).with_heads(2).with_seq(4).with_vocab(8);
    let tied = |ranks: usize, replicas: usize, sharded: bool, kept: &str| {
        let config = config.clone();
        let half = Precision::bf16().keep(ParamGroup::from_predicate("norm")).keep(ParamGroup::from_path(kept));
        Pipeline::builder()
            .schedule("1F1B", Size::new(ranks, MICROBATCHES / replicas))
            .devices(vec![device()])
            .data_parallel(replicas)
            .sharded(sharded)
            .accumulation(Accumulation::Ordered)
            .validate(Validate::EveryMicrobatch)
            .optimizer(|| AdamWConfig::new().init())
            .precision(half)
            .share(SharedParameter::new("table").at("embed.token.weight").at("head.scores.weight"))
            .stages(move |at| config.stage(at))
            .build()
            .unwrap()
    };
    let tokens = |step: usize| {
        let values = |from: usize| (0..SAMPLES * 4).map(|i| ((i * i + from + 3 * step) % 8) as i64).collect::<Vec<_>>();
        let [x, y] = [0, 1].map(|from| Tensor::<1, Int>::from_data(&*values(from), &device()).reshape([SAMPLES, 4]));
        Batch::new(Signal::Tokens(x)).target(y)
    };
    let losses = |mut pipeline: Pipeline| -> Vec<f64> {
        (0..3).map(|step| pipeline.step(tokens(step), RATE).unwrap().loss).collect()
    };
    // The table is `embed.token.weight`, so a group with its other name keeps nothing.
    let expected = losses(tied(2, 1, false, "blocks.0.norm_mlp.gamma"));
    for (ranks, replicas, sharded) in [(1, 1, false), (2, 1, false), (1, 2, true), (2, 2, true)] {
        let got = losses(tied(ranks, replicas, sharded, "head.scores.weight"));
        assert_eq!(got, expected, "{ranks} ranks, {replicas} replicas");
    }
}

/// Two bf16 parameters.
#[derive(Module, Debug)]
struct Pair {
    scale: Param<Tensor<2>>,
    shift: Param<Tensor<2>>,
}

impl Stage for Pair {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        assert_eq!((self.scale.dtype(), self.shift.dtype()), (DType::BF16, DType::BF16));
        x * self.scale.val() + self.shift.val()
    }
}

/// One rank that trains a pair.
fn pair(precision: Precision, action: OnNonFinite) -> Pipeline {
    let stages = |at: &StageContext| {
        let new = || Param::from_tensor(Tensor::ones([1, WIDTH], (&at.device, DType::BF16)));
        StageBox::with_loss(Pair { scale: new(), shift: new() }, |y: Tensor<2>, target: Tensor<2>| {
            (y.cast(FloatDType::F32) - target.cast(FloatDType::F32)).square().mean()
        })
    };
    let builder = Pipeline::builder().schedule("GPipe", Size::new(1, MICROBATCHES)).devices(vec![device()]);
    let builder = builder.optimizer(|| AdamWConfig::new().init()).precision(precision).on_non_finite(action);
    builder.stages(stages).build().unwrap()
}

fn constant(value: f32) -> Batch {
    let full = || Tensor::<2>::full([SAMPLES, WIDTH], value, (&device(), DType::BF16));
    Batch::new(full()).target(full())
}

#[test]
fn a_kept_parameter_that_is_half_by_itself_stays_so_and_has_a_master() {
    let mut pipeline = pair(Precision::bf16().keep(ParamGroup::from_predicate("scale")), OnNonFinite::Error);
    for _ in 0..3 {
        pipeline.step(constant(0.5), RATE).unwrap();
    }
    pipeline.replace_module(0, |pair: Pair, _: &StageContext| pair).unwrap();
    pipeline.step(constant(0.5), RATE).unwrap();
    assert!(weights(&mut pipeline).iter().all(|weight| *weight < 1.0));
}

#[test]
fn a_loss_that_is_no_number_is_no_overflow() {
    for action in [OnNonFinite::Error, OnNonFinite::Skip, OnNonFinite::Pass] {
        let mut pipeline = pair(Precision::bf16().loss_scale(LossScale::default()), action);
        let before = pipeline.progress().loss_scale;
        let stepped = pipeline.step(constant(f32::NAN), RATE);
        assert_eq!(stepped.is_err(), action == OnNonFinite::Error);
        let after = pipeline.progress().loss_scale.unwrap();
        assert_eq!(after.factor, before.unwrap().factor, "{action:?}");
        let stepped = weights(&mut pipeline).iter().any(|weight| weight.is_nan());
        assert_eq!(stepped, action == OnNonFinite::Pass);
    }
}

#[test]
fn messages_and_held_activations_take_half_the_bytes_and_weights_are_counted_as_masters() {
    let step = |half: Option<Precision>| {
        let dtype = if half.is_some() { DType::BF16 } else { DType::F32 };
        let builder = Pipeline::builder().schedule("ZBH1", Size::new(2, MICROBATCHES)).devices(vec![device()]);
        let builder = builder.split(SplitBackward::Captured).optimizer(|| AdamWConfig::new().init());
        let builder = half.map_or(builder.clone(), |half| builder.precision(half));
        let stages = |at: &StageContext| {
            let part = One { weight: Param::from_tensor(Tensor::ones([WIDTH, WIDTH], &at.device)) };
            if at.is_last() {
                StageBox::with_loss(part, |y: Tensor<2>, _: Tensor<2>| y.mean())
            } else {
                StageBox::new(part)
            }
        };
        let mut pipeline = builder.stages(stages).build().unwrap();
        let ones = || Tensor::<2>::ones([SAMPLES, WIDTH], (&device(), dtype));
        let mut step = || pipeline.step(Batch::new(ones()).target(ones()), RATE).unwrap();
        step();
        step()
    };
    let [half, full] = [step(Some(Precision::bf16())), step(None)];
    assert_eq!(half.message_bytes[0] * 2, full.message_bytes[0]);
    let held = |report: &StepReport| report.peak_held_bytes.iter().map(|bytes| bytes.unwrap()).collect::<Vec<_>>();
    assert!(held(&full).iter().all(|bytes| *bytes > 0));
    // Besides activations, a captured stage holds its weight for `I`.
    for (half, full) in held(&half).into_iter().zip(held(&full)) {
        assert_eq!(2 * half, full);
    }
    assert_eq!(half.weight_bytes, full.weight_bytes);
}
