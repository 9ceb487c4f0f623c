//! What changes weights keeps the masters; overflows change the loss scale; what does not go together is refused.

use super::Blocks;
use super::{
    LAYERS, MICROBATCHES, Plain, RATE, SAMPLES, WIDTH, batch, blocks, builder, data, loss, precision, weights,
};
use burn::module::{Module, Param, ParamGroup};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{LossScale, Precision, SplitBackward};
use burn_pipeline::train::{OnNonFinite, ScaleProgress};
use burn_pipeline::{Batch, Builder, Matmuls, Pipeline, Stage, StageBox, StageContext};
use pipeline_tests::device::device;

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
    let rounded = refused(builder("1F1B", 2, 1, precision(FloatDType::BF16, 1.0)).matmuls(Matmuls::Bf16));
    assert!(rounded.contains("`Builder::precision` does not work with `Builder::matmuls`"), "{rounded}");
    let half = precision(FloatDType::BF16, 1.0).reduce_in_half();
    let ordered = refused(builder("1F1B", 2, 2, half));
    assert!(ordered.contains("sums that pass from replica to replica are not rounded"), "{ordered}");
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
fn a_stage_that_mixes_element_types_is_pointed_to_the_guide() {
    // The norm is not kept, and computes in f32.
    let mut pipeline = builder("1F1B", 2, 1, Precision::bf16()).build().unwrap();
    let error = pipeline.step(batch(0), RATE).unwrap_err().to_string();
    assert!(error.contains("dtype mismatch") && error.contains("see the guide, `half_precision`"), "{error}");
    for split in [SplitBackward::Captured, SplitBackward::Auto] {
        let mut pipeline = builder("ZBH1", 2, 1, Precision::bf16()).split(split).build().unwrap();
        let error = pipeline.step(batch(0), RATE).unwrap_err().to_string();
        let names = error.contains("operands of different element types") && error.contains("`half_precision`");
        assert!(names, "{split:?}: {error}");
    }
    let mut pipeline = builder("1F1B", 2, 1, None).stages(half_and_whole).build().unwrap();
    let error = pipeline.step(batch(0), RATE).unwrap_err().to_string();
    assert!(error.contains("dtype mismatch") && !error.contains("half_precision"), "{error}");
}

/// A stage that adds tensors of two types without a precision.
fn half_and_whole(at: &StageContext) -> StageBox {
    let new = || Param::from_tensor(Tensor::ones([1, WIDTH], (&at.device, DType::BF16)));
    let pair = Pair { scale: new(), shift: new() };
    if at.is_last() { StageBox::with_loss(pair, loss) } else { StageBox::new(pair) }
}
