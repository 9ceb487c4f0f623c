//! Other features with replicas: tied parameters, both routes, evaluation, checkpoints, and plans from the user.

use super::{RATE, gradients, replicated, weights};
use crate::cases::{Case, Text, range, sizes};
use burn::tensor::Device;
use burn_pipeline::pass::{Placing, WaitOptions};
use burn_pipeline::plan::Op;
use burn_pipeline::schedule::{OneFOneB, Schedule, Size, by_name};
use burn_pipeline::stage::Accumulation;
use burn_pipeline::trace::Event;
use burn_pipeline::train::{AutoOptions, AutoPipeline, BuildError, Builder, Checkpoint, Checkpoints, Pipeline};
use pipeline_examples::gpt::Signal;
use pipeline_tests::reference::Reference;
use tempfile::tempdir;

#[test]
fn both_directions_of_replicas_equal_the_plain_loop_bit_for_bit() {
    for (schedule, samples) in [("DualPipe", 16), ("DualPipe", 13), ("Chimera", 16), ("DualPipeV", 16)] {
        let chunks = if schedule == "DualPipeV" { 2 } else { 1 };
        let case = Text::new(samples);
        let sizes = sizes(samples, samples);
        let mut reference = Reference::new(case.model());
        let builder = replicated::<Text>((schedule, chunks), 8, 2).accumulation(Accumulation::Ordered);
        let mut pipeline = builder.build().unwrap();
        for _ in 0..2 {
            let expected = reference.step(&sizes, RATE, None, |model, i| case.loss(model, range(&sizes, i)));
            assert_eq!(pipeline.step(case.batch(), RATE).unwrap().loss, expected.loss, "{schedule}, {samples}");
            assert_eq!(weights(&mut pipeline), reference.weights(), "{schedule}, {samples}");
        }
    }
}

#[test]
fn every_replica_reduces_at_the_place_that_the_plan_says() {
    let case = Text::new(16);
    let mut pipeline = replicated::<Text>(("Interleaved1F1B", 2), 8, 2).build().unwrap();
    let plan = pipeline.plan(8).unwrap();
    let reduces = |rank: usize| plan.plan().row(rank).iter().filter(|a| a.to_string().contains("REDUCE_GRAD")).count();
    assert_eq!([reduces(0), reduces(1)], [2, 2]);
    let report = pipeline.step(case.batch(), RATE).unwrap();
    for rank in 0..4 {
        let of_rank: Vec<&Event> = report.timeline.events.iter().filter(|event| event.rank == rank).collect();
        let place = |op: Op, last: bool| {
            let is = |event: &&Event| event.action.tasks().any(|task| task.op() == op);
            if last { of_rank.iter().rposition(is) } else { of_rank.iter().position(is) }
        };
        // The first chunk's reduction starts before the other one's last backward.
        let (first, backward) = (place(Op::ReduceGrad, false), place(Op::Backward, true));
        assert!(first.is_some() && first < backward, "rank {rank}: {first:?}, {backward:?}");
        let reduces = |event: &&&Event| event.action.tasks().any(|task| task.op() == Op::ReduceGrad);
        assert_eq!(of_rank.iter().filter(reduces).count(), 2);
    }
}

#[test]
fn a_plan_of_the_users_own_is_run_by_every_replica() {
    let plan = OneFOneB.build(Size::new(2, 4)).unwrap();
    let case = Text::new(8);
    let run = |plan| {
        let builder = replicated::<Text>(("GPipe", 1), 1, 2).plan(plan);
        let mut pipeline = builder.build().unwrap();
        let loss = pipeline.step(case.batch(), RATE).unwrap().loss;
        (loss, weights(&mut pipeline))
    };
    // With and without reductions in the plan.
    assert_eq!(run(plan.with_reduce_grad()), run(plan));
}

#[test]
fn exchanges_with_waits_of_their_own_change_no_number() {
    let case = Text::new(16);
    for schedule in [("Interleaved1F1B", 2), ("ZBVZeroBubble", 2)] {
        let size = Size { ranks: 2, chunks: schedule.1, microbatches: 4 };
        let plan = by_name(schedule.0).unwrap().build(size).unwrap();
        let run = |builder: Builder| {
            let mut pipeline = builder.build().unwrap();
            let losses: Vec<f64> = (0..2).map(|_| pipeline.step(case.batch(), RATE).unwrap().loss).collect();
            (losses, weights(&mut pipeline))
        };
        let whole = run(replicated::<Text>(schedule, 4, 2));
        for placing in [Placing::AtOnce, Placing::Late] {
            for sharded in [false, true] {
                let gathering = if sharded { plan.with_unshard(1).unwrap() } else { plan.clone() };
                let lowered = gathering.with_transfers().unwrap().with_reduce_grad();
                let waiting = lowered.with_waits(&WaitOptions::all(placing));
                let waits = |op| waiting.any_task(|task| task.op() == op);
                assert_eq!((waits(Op::WaitUnshard), waits(Op::WaitReduceGrad)), (sharded, true));
                let builder = replicated::<Text>(schedule, 4, 2).plan(waiting).sharded(sharded);
                assert_eq!(run(builder), whole, "{schedule:?}, {placing:?}, sharded {sharded}");
            }
        }
    }
}

#[test]
fn evaluation_gives_the_outputs_and_the_loss_of_the_whole_batch() {
    // Also a single sample: one replica has nothing to do.
    for samples in [1, 2, 7, 16] {
        let case = Text::new(samples);
        let read = |pipeline: &mut Pipeline| {
            let report = pipeline.eval(case.batch()).unwrap();
            let (Signal::Logits(scores) | Signal::Hidden(scores)) = report.output().unwrap() else {
                panic!("no scores")
            };
            (report.loss, scores.into_data().iter::<f32>().collect::<Vec<f32>>())
        };
        let mut alone = replicated::<Text>(("1F1B", 1), 8.min(samples), 1).build().unwrap();
        let mut replicas = replicated::<Text>(("1F1B", 1), 4, 2).build().unwrap();
        assert_eq!(read(&mut replicas), read(&mut alone), "{samples} samples");
    }
}

#[test]
fn a_checkpoint_is_written_once_and_goes_on_with_any_number_of_replicas() {
    let folder = tempdir().unwrap();
    let case = Text::new(16);
    let build = |replicas: usize| {
        let builder = replicated::<Text>(("1F1B", 1), 16 / replicas, replicas);
        builder.accumulation(Accumulation::Ordered).build().unwrap()
    };
    let mut straight = build(2);
    straight.step(case.batch(), RATE).unwrap();
    let saved = straight.save(&Checkpoints::new(folder.path()), &()).unwrap();
    let files = std::fs::read_dir(&saved).unwrap().flatten();
    let stages = files.filter(|file| file.file_name().to_string_lossy().starts_with("stage-")).count();
    assert_eq!(stages, 2);
    straight.step(case.batch(), RATE).unwrap();
    for replicas in [1, 2, 4] {
        let mut resumed = build(replicas);
        resumed.load(&Checkpoint::open(&saved).unwrap()).unwrap();
        resumed.step(case.batch(), RATE).unwrap();
        assert_eq!(weights(&mut resumed), weights(&mut straight), "{replicas} replicas");
    }
}

#[test]
fn bad_numbers_of_replicas_and_devices_are_refused() {
    let builder = |replicas| replicated::<Text>(("1F1B", 1), 4, replicas);
    assert!(matches!(builder(0).build().unwrap_err(), BuildError::NoReplicas));
    let error = builder(2).devices(vec![Device::flex(); 3]).build().unwrap_err().to_string();
    assert!(error.contains("3 device(s) were given for 4 ranks"), "{error}");
    assert!(builder(2).devices(vec![Device::flex(); 4]).build().is_ok());
}

#[test]
fn a_schedule_that_is_chosen_by_itself_changes_no_number_of_replicas() {
    let size = Size::new(2, 4);
    let case = Text::new(8);
    let train = |gain: f64, sharded: bool| {
        let order = if sharded { Accumulation::AsTheyCome } else { Accumulation::Ordered };
        let builder = replicated::<Text>(("1F1B", 1), 4, 2).accumulation(order).sharded(sharded);
        let options = AutoOptions { warm_up: 1, measured: 2, gain, trial: 0, ..AutoOptions::default() };
        let mut auto = AutoPipeline::new(builder, size, options).unwrap();
        let losses: Vec<f64> = (0..5).map(|_| auto.step(case.batch(), RATE).unwrap().loss).collect();
        let decided = format!("{:?}", auto.decision());
        (losses, weights(auto.pipeline()), decided)
    };
    for sharded in [false, true] {
        // A certain switch, and none.
        let (losses, switched, decided) = train(-1.0, sharded);
        assert!(decided.starts_with("Switched"), "{decided}");
        let (expected, kept, decided) = train(1.0, sharded);
        assert!(decided.starts_with("Kept"), "{decided}");
        if sharded {
            // After the switch, microbatches may be added in another order.
            assert!(losses.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{losses:?}, {expected:?}");
        } else {
            assert_eq!((losses, switched), (expected, kept));
        }
    }
}

#[test]
fn links_are_measured_as_plans_count_ranks() {
    let mut pipeline = replicated::<Text>(("1F1B", 1), 4, 2).build().unwrap();
    let links = pipeline.measure_links().unwrap();
    let mut ends: Vec<(usize, usize)> = links.between.iter().map(|link| (link.from, link.to)).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(0, 1), (1, 0)]);
}

#[test]
fn a_gradient_that_nobody_has_stays_none() {
    // Taking gradients leaves none behind, on any replica.
    let case = Text::new(8);
    let mut pipeline = replicated::<Text>(("1F1B", 1), 4, 2).build().unwrap();
    pipeline.accumulate(case.batch()).unwrap();
    let first = gradients(&mut pipeline);
    assert!(gradients(&mut pipeline).iter().all(Vec::is_empty), "gradients were taken");
    pipeline.accumulate(case.batch()).unwrap();
    assert_eq!(gradients(&mut pipeline), first);
}
