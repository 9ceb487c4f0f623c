//! Schedules, engines, replicas, shards and a resume on another cut give the bits of the written plain loop.

use super::{MICROBATCHES, Plain, RATE, SAMPLES, batch, builder, data, precision, weights};
use burn::module::ParamGroup;
use burn::optim::AdamWConfig;
use burn::tensor::{FloatDType, Int, Tensor};
use burn_pipeline::payload::Validate;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{LossScale, Precision, SplitBackward};
use burn_pipeline::train::SharedParameter;
use burn_pipeline::{Accumulation, Batch, Checkpoints, Pipeline};
use pipeline_examples::gpt::{GptConfig, Signal};
use pipeline_tests::device::device;
use tempfile::tempdir;

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
fn replicas_that_reduce_in_half_equal_the_written_plain_loop_bit_for_bit() {
    for (half, factor) in [(FloatDType::BF16, 1.0), (FloatDType::F16, 1024.0)] {
        let of = |replicas| {
            let mut plain = Plain { replicas, ..Plain::new(half, factor) };
            let losses: Vec<f64> = (0..4).map(|step| plain.step(data(step))).collect();
            (losses, plain.weights())
        };
        let expected = of(2);
        assert!(expected != of(1), "{half:?}: rounding what crosses changes nothing");
        for schedule in ["GPipe", "1F1B"] {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                for sharded in [false, true] {
                    let builder = builder(schedule, 2, 2, precision(half, factor).reduce_in_half());
                    let builder = builder.accumulation(Accumulation::AsTheyCome).split(split).sharded(sharded);
                    let mut pipeline = builder.build().unwrap();
                    let losses: Vec<f64> = (0..4).map(|step| pipeline.step(batch(step), RATE).unwrap().loss).collect();
                    let of = format!("{half:?}, {schedule}, {split:?}, sharded: {sharded}");
                    assert!((losses, weights(&mut pipeline)) == expected, "{of}");
                }
            }
        }
    }
}

#[test]
fn a_job_resumes_on_another_cut_with_its_scale_and_the_same_bits() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
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
