//! A parallel vocabulary in half precision, against the plain loop that is written in the guide (`half_precision`).
//!
//! The parallel embedding alone has that loop's bits. The head's softmax is added in parts, and each part of a gradient
//! is rounded by itself: the first loss agrees as in f32, and what is trained within some roundings. All schedules,
//! engines and replicas have the same bits.

mod model;

use burn::module::ParamGroup;
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{DType, FloatDType, Int, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, LossScale, Names, Precision, SplitBackward, named_weights};
use burn_pipeline::train::Checkpoints;
use burn_pipeline::{Builder, Pipeline, StageBox, StageContext, Vocabulary};
use model::{BLOCKS, Part, SAMPLES, Spread, batch, blocks, cross_entropy, data, scores, token};
use pipeline_tests::device::device;
use std::collections::BTreeMap;
use tempfile::tempdir;

const MICROBATCHES: usize = 4;
const STEPS: usize = 4;
const RATE: f64 = 1e-2;

const SCHEDULES: [(&str, usize); 4] = [("1F1B", 1), ("GPipe", 1), ("ZBH1", 1), ("ZBVZeroBubble", 2)];
const HALVES: [(FloatDType, f64); 2] = [(FloatDType::BF16, 1.0), (FloatDType::F16, 1024.0)];

/// The guide's own plain loop.
#[allow(unreachable_pub, reason = "a user copies it as it is")]
#[path = "../../../burn-pipeline/src/_guide/half_precision.rs"]
mod written;

type Weights = BTreeMap<String, Vec<f32>>;

/// Losses of the steps, and the weights after them.
type Trained = (Vec<f64>, Weights);

/// The written plain loop, which keeps norms in f32, and the head if `keeps` does.
fn plain(spread: Spread, (half, factor): (FloatDType, f64), keeps: fn(&str) -> bool) -> Trained {
    let (mut masters, mut optimizer) = (Part::whole(spread), optimizer());
    let step = |step: usize| {
        let (tokens, targets) = data(step);
        let loss = |copies: &Part, i: usize| {
            let size = SAMPLES / MICROBATCHES;
            let part = |ids: &Tensor<1, Int>| ids.clone().narrow(0, i * size, size).autodiff();
            copies.loss(part(&tokens), part(&targets))
        };
        let how = (half, factor, MICROBATCHES, 1);
        let (stepped, mean) = written::step(masters.clone(), &mut optimizer, RATE, how, keeps, loss);
        masters = stepped;
        mean
    };
    let losses = (0..STEPS).map(step).collect();
    let values = named_weights(&masters, &Names::default()).into_iter();
    let read = |weight: burn_pipeline::stage::NamedWeight| {
        (weight.names[0].clone(), weight.value.to_data().unwrap().iter::<f32>().collect())
    };
    (losses, values.map(read).collect())
}

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().with_epsilon(1e-3).init()
}

fn norms(path: &str) -> bool {
    path.contains("norm")
}

fn norms_and_head(path: &str) -> bool {
    path.contains("norm") || path.contains("scores")
}

fn precision((half, factor): (FloatDType, f64)) -> Precision {
    let made = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
    made.keep(ParamGroup::from_predicate("norm")).loss_scale(LossScale { initial: factor, ..LossScale::default() })
}

fn builder(spread: Spread, (schedule, chunks): (&str, usize), ranks: usize, replicas: usize) -> Builder {
    let vocabulary = match spread {
        Spread::Embedding => Vocabulary::new().embedding("token", token),
        Spread::Both => Vocabulary::new().embedding("token", token).head("scores", scores),
        Spread::Tied => Vocabulary::new().tied("token", token),
    };
    Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES / replicas })
        .devices(vec![device()])
        .data_parallel(replicas)
        .accumulation(Accumulation::Ordered)
        .optimizer(optimizer)
        .vocabulary(vocabulary)
        .stages(move |at: &StageContext| {
            let own_head = (at.is_last() && spread == Spread::Embedding).then(|| scores(&at.device));
            let part = Part { token: None, blocks: blocks(at.layers(BLOCKS), &at.device), scores: own_head };
            let stage =
                if part.scores.is_some() { StageBox::with_loss(part, cross_entropy) } else { StageBox::new(part) };
            stage.named(Names::default().layers_from("blocks", at.layers(BLOCKS).start))
        })
}

fn weights(pipeline: &mut Pipeline) -> Weights {
    let named = pipeline.named_weights().unwrap().into_iter().flatten();
    let read = |weight: burn_pipeline::stage::NamedWeight| {
        let data = weight.value.to_data().unwrap();
        assert_eq!(data.dtype(), DType::F32, "masters are f32");
        (weight.names[0].clone(), data.iter::<f32>().collect())
    };
    named.map(read).collect()
}

fn trained(builder: Builder) -> Trained {
    let mut pipeline = builder.build().unwrap();
    let losses = (0..STEPS).map(|step| pipeline.step(batch(step), RATE).unwrap().loss).collect();
    (losses, weights(&mut pipeline))
}

/// The largest relative difference of losses, and the largest of weights.
fn apart(got: &Trained, expected: &Trained) -> (f64, f32) {
    assert_eq!(got.1.keys().collect::<Vec<_>>(), expected.1.keys().collect::<Vec<_>>());
    let losses = got.0.iter().zip(&expected.0).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
    let pairs = got.1.values().flatten().zip(expected.1.values().flatten());
    (losses, pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
}

/// What a rounding of each gradient changes: losses by some 2^-12, weights by a fraction of a step.
fn assert_near(got: &Trained, expected: &Trained, of: &str) {
    assert!((got.0[0] - expected.0[0]).abs() <= 1e-6 * expected.0[0], "{of}: {:?} for {:?}", got.0, expected.0);
    let (losses, weights) = apart(got, expected);
    println!("{of}: losses differ by {losses:.1e}, weights by {weights:.1e}");
    assert!(losses <= 2f64.powi(-9) && f64::from(weights) <= RATE / 2.0, "{of}: {losses:e}, {weights:e}");
}

#[test]
fn a_parallel_embedding_has_the_bits_of_the_written_plain_loop() {
    for half in HALVES {
        let expected = plain(Spread::Embedding, half, norms);
        for schedule in SCHEDULES {
            for (split, ranks, replicas) in
                [(SplitBackward::Eager, 2, 1), (SplitBackward::Captured, 3, 1), (SplitBackward::Captured, 2, 2)]
            {
                if schedule.1 * ranks > BLOCKS {
                    continue;
                }
                let builder = builder(Spread::Embedding, schedule, ranks, replicas).split(split);
                let got = trained(builder.precision(precision(half)));
                assert!(got == expected, "{half:?}, {schedule:?}, {split:?}, {ranks} ranks, {replicas} replicas");
            }
        }
    }
}

#[test]
fn every_schedule_and_engine_has_the_same_bits_near_the_written_plain_loop() {
    for half in HALVES {
        for spread in [Spread::Both, Spread::Tied] {
            let expected = plain(spread, half, norms);
            let alone = trained(builder(spread, SCHEDULES[0], 2, 1).precision(precision(half)));
            assert_near(&alone, &expected, &format!("{half:?}, {spread:?}"));
            for schedule in SCHEDULES {
                for split in [SplitBackward::Eager, SplitBackward::Captured] {
                    for (replicas, sharded) in [(1, false), (2, false), (2, true)] {
                        let builder = builder(spread, schedule, 2, replicas).split(split).sharded(sharded);
                        let of = format!("{half:?}, {spread:?}, {schedule:?}, {split:?}, {replicas}, {sharded}");
                        assert!(trained(builder.precision(precision(half))) == alone, "{of}");
                    }
                }
            }
        }
    }
}

#[test]
fn compiled_stages_between_a_parallel_vocabulary_train_near_the_written_plain_loop() {
    for half in HALVES {
        let expected = plain(Spread::Both, half, norms);
        let got = trained(builder(Spread::Both, ("ZBVZeroBubble", 2), 2, 1).compile(true).precision(precision(half)));
        assert!(apart(&got, &expected).0 <= 2f64.powi(-8), "{half:?}: {:?} for {:?}", got.0, expected.0);
    }
}

#[test]
fn a_head_that_is_kept_computes_in_f32() {
    let half = HALVES[0];
    let kept = precision(half).keep(ParamGroup::from_predicate("scores"));
    let got = trained(builder(Spread::Both, ("1F1B", 1), 3, 1).precision(kept));
    assert_near(&got, &plain(Spread::Both, half, norms_and_head), "a kept head");
    assert!((got.0[0] - plain(Spread::Both, half, norms).0[0]).abs() > 1e-5, "keeping it changes nothing");
}

#[test]
fn a_checkpoint_has_masters_and_is_resumed_on_any_other_cut() {
    for (half, spread) in HALVES.into_iter().zip([Spread::Both, Spread::Tied]) {
        let build = |ranks, schedule| builder(spread, schedule, ranks, 1).precision(precision(half)).build().unwrap();
        let mut saved = build(2, ("1F1B", 1));
        (0..2).for_each(|step| drop(saved.step(batch(step), RATE).unwrap()));
        let folder = tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        saved.save(&checkpoints, &()).unwrap();
        let held = weights(&mut saved);
        let expected: Vec<f64> = (2..STEPS).map(|step| saved.step(batch(step), RATE).unwrap().loss).collect();
        for (ranks, schedule) in [(1, ("1F1B", 1)), (2, ("ZBVZeroBubble", 2)), (3, ("ZBH1", 1)), (4, ("1F1B", 1))] {
            let mut resumed = build(ranks, schedule);
            resumed.load(&checkpoints.latest().unwrap()).unwrap();
            assert!(weights(&mut resumed) == held, "{spread:?}, {ranks} ranks: other masters");
            let losses: Vec<f64> = (2..STEPS).map(|step| resumed.step(batch(step), RATE).unwrap().loss).collect();
            // With the saved moments; another number of ranks adds the softmax in other parts.
            let near = losses.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 2f64.powi(-9) * b);
            assert!(near && (ranks != 2 || losses == expected), "{spread:?}, {ranks}: {losses:?} for {expected:?}");
        }
    }
}

#[test]
fn an_overflow_of_the_head_skips_the_step_on_all_ranks() {
    let scale = LossScale { initial: 2f64.powi(24), ..LossScale::default() };
    let half = Precision::f16().keep(ParamGroup::from_predicate("norm")).loss_scale(scale);
    let mut pipeline = builder(Spread::Both, ("ZBH1", 1), 3, 1).precision(half).build().unwrap();
    let before = weights(&mut pipeline);
    let report = pipeline.step(batch(0), RATE).unwrap();
    assert!(report.skipped.is_some() && weights(&mut pipeline) == before);
    let steps: Vec<bool> = (1..12).map(|step| pipeline.step(batch(step), RATE).unwrap().skipped.is_some()).collect();
    assert!(!steps[10], "{steps:?}");
    assert!(weights(&mut pipeline).values().flatten().all(|weight| weight.is_finite()));
}
