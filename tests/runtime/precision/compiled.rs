//! Compiled stages in half precision: one function under every schedule, near the plain loop, in half of the bytes.

use super::{MICROBATCHES, Plain, RATE, SAMPLES, WIDTH, batch, builder, data, precision, weights};
use burn::module::{Module, Param, ParamGroup};
use burn::optim::AdamWConfig;
use burn::tensor::{FloatDType, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{LossScale, Precision, SplitBackward};
use burn_pipeline::{Batch, Builder, Pipeline, Stage, StageBox, StageContext, StepReport};
use pipeline_tests::device::device;

/// Asserts that all stages are compiled, and that the interpreter runs none of their operations.
fn assert_compiled(pipeline: &mut Pipeline, of: &str) {
    for (place, engine) in pipeline.engines().unwrap() {
        assert!(engine.captured, "{of}, {place}: {}", engine.reason);
        let programs = &engine.programs[0];
        for program in [programs.forward(), programs.backward()] {
            let text = program.compiled().unwrap_or_default();
            assert!(text.contains("fused") && !text.contains("interpreted"), "{of}, {place}: {text}");
        }
    }
}

/// Losses of some steps, and the weights after them.
fn trained(builder: Builder, steps: usize, of: &str) -> (Vec<f64>, Vec<f32>) {
    let mut pipeline = builder.compile(true).build().unwrap();
    let losses = (0..steps).map(|step| pipeline.step(batch(step), RATE).unwrap().loss).collect();
    assert_compiled(&mut pipeline, of);
    (losses, weights(&mut pipeline))
}

#[test]
fn every_schedule_gives_what_one_compiled_rank_gives_bit_for_bit() {
    for (half, factor) in [(FloatDType::BF16, 1.0), (FloatDType::F16, 1024.0)] {
        let alone = trained(builder("GPipe", 1, 1, precision(half, factor)), 4, "alone");
        for schedule in ["GPipe", "1F1B", "Interleaved1F1B", "ZBH1", "ZBVZeroBubble", "DualPipe", "LoopedBFS"] {
            for (replicas, sharded) in [(1, false), (2, false), (2, true)] {
                if schedule == "DualPipe" && replicas > 1 {
                    continue;
                }
                let of = format!("{half:?}, {schedule}, {replicas} replicas, sharded: {sharded}");
                let builder = builder(schedule, 2, replicas, precision(half, factor)).sharded(sharded);
                assert!(trained(builder, 4, &of) == alone, "{of}");
            }
        }
    }
}

/// Where the two differ, a number was rounded to the other side, and 50 steps multiply that. What is rounded differs in
/// the last bits of f32: an approximated `gelu`, and sums in another order. Products of bf16 have 16 bits, so f32 adds
/// some of them exactly in any order. Those of f16 have 22, and f16's roundings are eight times as near: measured, the
/// first one differs in step 1, in one number. Loss scaling has no part in it: a power of two changes no digit.
#[test]
fn losses_of_fifty_steps_are_those_of_the_written_plain_loop_within_some_roundings() {
    for (half, factor, bound) in [(FloatDType::BF16, 1.0, 2f64.powi(-10)), (FloatDType::F16, 1024.0, 2f64.powi(-7))] {
        let mut plain = Plain::new(half, factor);
        let expected: Vec<f64> = (0..50).map(|step| plain.step(data(step))).collect();
        let (losses, _) = trained(builder("1F1B", 2, 1, precision(half, factor)), 50, "fifty steps");
        let apart = losses.iter().zip(&expected).map(|(loss, plain)| (loss - plain).abs() / plain);
        let most = apart.fold(0.0, f64::max);
        println!("{half:?}: relative difference of losses {most:.1e}");
        assert!(most <= bound, "{half:?}: {most:e}");
    }
}

#[test]
fn an_overflow_is_skipped_and_the_scale_falls() {
    let scale = LossScale { initial: 2f64.powi(24), interval: 2, ..LossScale::default() };
    let half = || Precision::f16().keep(ParamGroup::from_predicate("norm")).loss_scale(scale);
    let run = |schedule: &str, ranks: usize| {
        let mut pipeline = builder(schedule, ranks, 1, half()).compile(true).build().unwrap();
        let before = weights(&mut pipeline);
        let step = |step| {
            let report = pipeline.step(batch(step), RATE).unwrap();
            let skipped = report.skipped.is_some();
            assert!(!skipped || step > 0 || weights(&mut pipeline) == before, "a skipped step changed weights");
            (report.loss, report.loss_scale.unwrap(), skipped)
        };
        let steps: Vec<(f64, f64, bool)> = (0..20).map(step).collect();
        (steps, weights(&mut pipeline))
    };
    let (steps, trained) = run("1F1B", 2);
    assert!(steps[0].2 && steps[1].1 == steps[0].1 / 2.0, "{steps:?}");
    assert!(steps.iter().any(|(_, _, skipped)| !skipped) && trained.iter().all(|weight| weight.is_finite()));
    assert!(run("ZBH1", 4) == (steps, trained));
}

/// Two matrices with a function between them.
#[derive(Module, Debug)]
struct Two {
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
}

impl Stage for Two {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        x.matmul(self.up.val()).tanh().matmul(self.down.val())
    }
}

#[test]
fn compiled_stages_hold_half_of_the_bytes_of_f32() {
    let held = |half: Option<Precision>| {
        let dtype = if half.is_some() { FloatDType::BF16 } else { FloatDType::F32 };
        let builder = Pipeline::builder().schedule("ZBH1", Size::new(2, MICROBATCHES)).devices(vec![device()]);
        let builder = builder.split(SplitBackward::Captured).optimizer(|| AdamWConfig::new().init()).compile(true);
        let builder = half.map_or(builder.clone(), |half| builder.precision(half));
        let stages = |at: &StageContext| {
            let ones = || Param::from_tensor(Tensor::ones([WIDTH, WIDTH], &at.device));
            let part = Two { up: ones(), down: ones() };
            match at.is_last() {
                true => StageBox::with_loss(part, |y: Tensor<2>, _: Tensor<2>| y.mean()),
                false => StageBox::new(part),
            }
        };
        let mut pipeline = builder.stages(stages).build().unwrap();
        let ones = || Tensor::<2>::ones([SAMPLES, WIDTH], &device()).cast(dtype);
        let mut step = || pipeline.step(Batch::new(ones()).target(ones()), RATE).unwrap();
        let reports: [StepReport; 2] = [step(), step()];
        assert_compiled(&mut pipeline, "two matrices");
        reports[1].peak_held_bytes.iter().map(|bytes| bytes.unwrap()).collect::<Vec<_>>()
    };
    let [half, full] = [held(Some(Precision::bf16())), held(None)];
    assert!(full.iter().all(|bytes| *bytes > 0));
    assert_eq!(half.iter().map(|bytes| 2 * bytes).collect::<Vec<_>>(), full);
}
