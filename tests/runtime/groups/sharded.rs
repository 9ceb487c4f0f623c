//! Two replicas of a pipeline of two ranks, each with a piece of every parameter, compute what one device computes.

use super::control::{Tamper, on_links};
use super::{RATE, SCHEDULES, difference, gradients, parts, replicated, weights};
use crate::cases::{Case, Stack, Text, range, sizes};
use burn_pipeline::plan::{CheckError, Op, Plan};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::{BuildError, Builder, Checkpoint, Checkpoints, Pipeline};
use pipeline_tests::device::few;
use pipeline_tests::reference::Reference;
use tempfile::tempdir;

/// Small enough that gradients are clipped.
const CLIP: f64 = 0.05;

fn sharded<C: Case>(schedule: (&str, usize), most: usize) -> Builder {
    replicated::<C>(schedule, 4, 2).sharded(true).gathered_stages(most)
}

/// Three steps: losses and weights.
fn assert_equal<C: Case>(case: &C, builder: Builder, samples: usize, place: &str) {
    let mut pipeline = builder.build().unwrap();
    let mut reference = Reference::new(case.model());
    let count = (4 * 2).min(samples);
    let sizes = sizes(samples, count);
    for step in 0..3 {
        let place = format!("{place}, {samples} samples, step {step}");
        let loss_of = |model: &C::Model, i: usize| case.loss(model, range(&sizes, i));
        let expected = reference.step_in_parts(&sizes, &parts(count, 1, 2), RATE, None, loss_of);
        assert_eq!(pipeline.step(case.batch(), RATE).unwrap().loss, expected.loss, "{place}");
        assert_eq!(weights(&mut pipeline), reference.weights(), "{place}");
    }
}

#[test]
fn shards_equal_the_plain_loop_bit_for_bit() {
    for schedule in SCHEDULES {
        for most in [1, 3] {
            // Even and uneven microbatches and replicas.
            for samples in [16, 13, 7] {
                let place = format!("{schedule:?}, at most {most} gathered");
                assert_equal(&Stack::new(samples), sharded::<Stack>(schedule, most), samples, &place);
            }
            assert_equal(&Text::new(8), sharded::<Text>(schedule, most), 8, &format!("{schedule:?}, {most}, text"));
        }
    }
}

#[test]
fn captured_and_recomputed_stages_take_gathered_parameters() {
    for schedule in few(vec![("Interleaved1F1B", 2), ("ZBVZeroBubble", 2)], 1) {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            for recompute in [false, true] {
                let builder = sharded::<Stack>(schedule, 1).split(split);
                let builder = builder.stages(move |at| Stack::stage(at).recomputed(recompute));
                assert_equal(&Stack::new(13), builder, 13, &format!("{schedule:?}, {split:?}, recompute {recompute}"));
            }
        }
    }
}

#[test]
fn sums_over_several_batches_and_clipped_ones_equal_the_plain_loop() {
    for schedule in SCHEDULES {
        for (samples, batches) in [(8, 1), (8, 3), (13, 3)] {
            let case = Stack::new(samples);
            let of_one = sizes(samples, 8);
            let all: Vec<usize> = (0..batches).flat_map(|_| of_one.clone()).collect();
            let loss_of = |model: &_, i: usize| case.loss(model, range(&of_one, i % 8));
            let parts = parts(8, batches, 2);
            let mut reference = Reference::new(case.model());
            let expected = reference.step_in_parts(&all, &parts, RATE, Some(CLIP), loss_of);
            let build = || sharded::<Stack>(schedule, 2).clip_norm(CLIP).build().unwrap();
            let (mut pipeline, mut other) = (build(), build());
            for _ in 1..batches {
                pipeline.accumulate(case.batch()).unwrap();
                other.accumulate(case.batch()).unwrap();
            }
            other.accumulate(case.batch()).unwrap();
            let report = pipeline.step(case.batch(), RATE).unwrap();
            let place = format!("{schedule:?}, {samples} samples, {batches} batches");
            // The norm's squares are added piece by piece and batches one by one: a few roundings to 2^-24.
            let norm = report.gradient_norm.unwrap();
            assert!((norm - expected.norm).abs() < 1e-6 * expected.norm, "{place}: {norm} for {}", expected.norm);
            assert!((report.loss - expected.loss).abs() < 1e-14 * expected.loss, "{place}");
            let distance = difference(&gradients(&mut other), &expected.gradients);
            assert!(distance < 1e-6 * CLIP as f32, "{place}: {distance}");
        }
    }
}

#[test]
fn ordered_sums_of_sharded_gradients_equal_the_plain_loop_bit_for_bit() {
    for schedule in [("1F1B", 1), ("ZBVZeroBubble", 2), ("DualPipe", 1)] {
        for (samples, batches) in [(16, 1), (13, 1), (13, 3), (7, 2)] {
            let case = Stack::new(samples);
            let of_one = sizes(samples, 8.min(samples));
            let all: Vec<usize> = (0..batches).flat_map(|_| of_one.clone()).collect();
            let loss_of = |model: &_, i: usize| case.loss(model, range(&of_one, i % of_one.len()));
            let mut reference = Reference::new(case.model());
            let builder = sharded::<Stack>(schedule, 2).accumulation(Accumulation::Ordered);
            let mut pipeline = builder.build().unwrap();
            for step in 0..2 {
                reference.step(&all, RATE, None, loss_of);
                for _ in 1..batches {
                    pipeline.accumulate(case.batch()).unwrap();
                }
                pipeline.step(case.batch(), RATE).unwrap();
                let place = format!("{schedule:?}, {samples} samples, {batches} batches, step {step}");
                assert_eq!(weights(&mut pipeline), reference.weights(), "{place}");
            }
        }
    }
}

#[test]
fn single_stages_can_be_sharded_or_left_whole() {
    for (of_all, of_one) in [(true, false), (false, true)] {
        for schedule in [("1F1B", 1), ("Interleaved1F1B", 2)] {
            let build = move || {
                let builder = replicated::<Stack>(schedule, 4, 2).sharded(of_all);
                // The last stage's limit differs from the others'.
                builder.stages(move |at| match at.is_last() {
                    true => Stack::stage(at).sharded(of_one),
                    false => Stack::stage(at),
                })
            };
            let place = format!("{schedule:?}, all {of_all}, the last {of_one}");
            assert_equal(&Stack::new(13), build(), 13, &place);
            // Accumulated and clipped, then resumed from a checkpoint by replicas with whole parameters.
            let case = Stack::new(16);
            let step = |pipeline: &mut Pipeline| {
                pipeline.accumulate(case.batch()).unwrap();
                pipeline.step(case.batch(), RATE).unwrap();
                weights(pipeline)
            };
            let (mut mixed, mut whole) =
                (build().build().unwrap(), replicated::<Stack>(schedule, 4, 2).build().unwrap());
            let distance = difference(&step(&mut mixed), &step(&mut whole));
            // Batches of sharded stages are added one by one.
            assert!(distance < 1e-5, "{place}: {distance}");
            let folder = tempdir().unwrap();
            let saved = mixed.save(&Checkpoints::new(folder.path()), &()).unwrap();
            whole.load(&Checkpoint::open(&saved).unwrap()).unwrap();
            assert_eq!(weights(&mut whole), weights(&mut mixed), "{place}");
            let distance = difference(&step(&mut mixed), &step(&mut whole));
            assert!(distance < 1e-5, "{place}: {distance}");
        }
    }
}

#[test]
fn both_directions_can_be_sharded() {
    let case = Stack::new(16);
    let sizes = sizes(16, 8);
    let mut reference = Reference::new(case.model());
    let loss_of = |model: &_, i: usize| case.loss(model, range(&sizes, i));
    let expected = reference.step(&sizes, RATE, None, loss_of);
    let mut pipeline = sharded::<Stack>(("DualPipe", 1), 3).build().unwrap();
    assert_eq!(pipeline.accumulate(case.batch()).unwrap().loss, expected.loss);
    let largest = expected.gradients.iter().flatten().fold(0.0f32, |largest, g| largest.max(g.abs()));
    let distance = difference(&gradients(&mut pipeline), &expected.gradients);
    assert!(distance < 1e-6 * largest, "{distance} of {largest}");
}

#[test]
fn the_plan_says_when_parameters_are_gathered() {
    let case = Text::new(16);
    let mut pipeline = sharded::<Text>(("Interleaved1F1B", 2), 1).build().unwrap();
    let report = pipeline.step(case.batch(), RATE).unwrap();
    for rank in 0..4 {
        let count = |op: Op| {
            let of_rank = report.timeline.events.iter().filter(|event| event.rank == rank);
            of_rank.flat_map(|event| event.action.tasks()).filter(|task| task.op() == op).count()
        };
        assert!(count(Op::Unshard) > 2 && count(Op::Unshard) == count(Op::Reshard) + 1, "rank {rank}");
        assert_eq!(count(Op::ReduceGrad), 2, "rank {rank}");
    }
}

#[test]
fn a_plan_that_gathers_what_nothing_uses_is_refused_before_it_loses_an_update() {
    let row = |stage: usize, last: &str| {
        let cells =
            ["UNSHARD", "F0", "F1", "F2", "F3", "B0", "B1", "B2", "B3", "REDUCE_GRAD", "RESHARD"].map(String::from);
        cells.into_iter().chain((!last.is_empty()).then(|| last.to_owned())).map(move |cell| format!("{stage}{cell}"))
    };
    let rows = |last: [&str; 2]| {
        let rows = last.iter().enumerate().map(|(stage, last)| row(stage, last).collect::<Vec<_>>().join(","));
        Plan::from_csv("mine", &rows.collect::<Vec<_>>().join("\n")).unwrap()
    };
    let builder = |last| sharded::<Stack>(("GPipe", 1), 3).plan(rows(last));
    for last in [["UNSHARD", "UNSHARD"], ["UNSHARD", ""], ["", "UNSHARD"]] {
        for accumulation in [Accumulation::AsTheyCome, Accumulation::Ordered] {
            let refused = builder(last).accumulation(accumulation).build().unwrap_err();
            let BuildError::Check(error) = refused else { panic!("{refused}") };
            assert!(matches!(*error, CheckError::UnusedUnshard { step: 11.., .. }), "{error}");
        }
    }
    assert_equal(&Stack::new(16), builder(["", ""]), 16, "without it");
}

#[test]
fn checkpoints_hold_whole_tensors_and_fit_any_number_of_replicas() {
    let case = Stack::new(16);
    let replicas = |sharded| replicated::<Stack>(("1F1B", 1), 4, 2).sharded(sharded).build().unwrap();
    let next = |pipeline: &mut Pipeline| {
        pipeline.step(case.batch(), RATE).unwrap();
        weights(pipeline)
    };
    for saves_sharded in [true, false] {
        let mut saving = replicas(saves_sharded);
        next(&mut saving);
        next(&mut saving);
        let folder = tempdir().unwrap();
        let saved = saving.save(&Checkpoints::new(folder.path()), &()).unwrap();
        let straight = next(&mut saving);
        for loads_sharded in [true, false] {
            let mut resumed = replicas(loads_sharded);
            next(&mut resumed);
            resumed.load(&Checkpoint::open(&saved).unwrap()).unwrap();
            assert_eq!(next(&mut resumed), straight, "saved sharded: {saves_sharded}, loaded: {loads_sharded}");
        }
        // One rank adds in another order, so its weights are compared before it steps.
        let mut alone = replicated::<Stack>(("1F1B", 1), 8, 1).build().unwrap();
        alone.load(&Checkpoint::open(&saved).unwrap()).unwrap();
        let mut again = replicas(true);
        again.load(&Checkpoint::open(&saved).unwrap()).unwrap();
        assert_eq!(weights(&mut again), weights(&mut alone));
    }
}

#[test]
fn modules_and_evaluations_see_whole_parameters() {
    for samples in [1, 16] {
        let case = Stack::new(samples);
        let read = |builder: Builder| {
            let mut pipeline = builder.build().unwrap();
            let loss = pipeline.eval(case.batch()).unwrap().loss;
            let module = pipeline.module::<pipeline_tests::mlp::Mlp>(1).unwrap();
            (loss, pipeline_tests::reference::weights(&module), weights(&mut pipeline))
        };
        let whole = read(replicated::<Stack>(("1F1B", 1), 4, 2));
        assert_eq!(read(sharded::<Stack>(("1F1B", 1), 1)), whole, "{samples} samples");
    }
}

#[test]
fn another_average_of_shards_is_noticed() {
    let case = Stack::new(16);
    let distance = |tamper| {
        let builder = sharded::<Stack>(("1F1B", 1), 1);
        let ranks = on_links(&builder, tamper, |pipeline| {
            pipeline.accumulate(case.batch()).unwrap();
            gradients(pipeline)
        });
        let sizes = sizes(16, 8);
        let loss_of = |model: &_, i: usize| case.loss(model, range(&sizes, i));
        let expected = Reference::new(case.model()).step_in_parts(&sizes, &parts(8, 1, 2), RATE, None, loss_of);
        difference(&ranks[0], &expected.gradients)
    };
    assert_eq!(distance(Tamper::Not), 0.0);
    assert!(distance(Tamper::Scale(0.5)) > 1e-3 && distance(Tamper::Scale(0.0)) > 1e-3);
}
