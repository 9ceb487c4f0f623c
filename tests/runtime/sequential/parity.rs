//! Every cut and schedule, uneven cuts, replicas, checkpoints and chosen schedules equal the plain loop.

use super::{MICROBATCHES, batch, builder, model, plain, weights};
use burn_pipeline::cost::{LinkCosts, Partition, Profile, StageCost};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::{AutoOptions, Choice, Decision};
use burn_pipeline::{AutoPipeline, Checkpoints};
use tempfile::tempdir;

#[test]
fn every_cut_and_schedule_equals_the_plain_loop_bit_for_bit() {
    let (losses, expected) = plain(3);
    for (schedule, ranks) in [
        ("GPipe", 1),
        ("1F1B", 2),
        ("1F1B", 3),
        ("GPipe", 4),
        ("Interleaved1F1B", 2),
        ("ZBH1", 5),
        ("ZBVZeroBubble", 4),
        ("DualPipeV", 2),
    ] {
        for split in [SplitBackward::Eager, SplitBackward::Auto] {
            let mut pipeline = builder(schedule, ranks).split(split).build().unwrap();
            for (step, loss) in losses.iter().enumerate() {
                let report = pipeline.step(batch(step), 1e-2).unwrap();
                assert_eq!(report.loss, *loss, "{schedule} over {ranks}, {split:?}, step {step}");
            }
            assert!(weights(&mut pipeline) == expected, "{schedule} over {ranks}, {split:?}");
        }
    }
}

#[test]
fn uneven_cuts_and_replicas_equal_the_plain_loop() {
    let (losses, expected) = plain(2);
    for boundaries in [vec![1, 2], vec![2, 7], vec![4, 5], vec![6, 7]] {
        let cut = Partition::from_boundaries(model().layers(), &boundaries).unwrap();
        let mut pipeline = builder("1F1B", 3).cut(cut).build().unwrap();
        for (step, loss) in losses.iter().enumerate() {
            assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss, "{boundaries:?}");
        }
        assert!(weights(&mut pipeline) == expected, "{boundaries:?}");
    }
    let pipeline = builder("1F1B", 2).schedule("1F1B", Size::new(2, 2)).data_parallel(2).sharded(true);
    let mut pipeline = pipeline.build().unwrap();
    for (step, loss) in losses.iter().enumerate() {
        assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss);
    }
    assert!(weights(&mut pipeline) == expected);
}

#[test]
fn a_checkpoint_fits_another_cut() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    let mut first = builder("1F1B", 3).build().unwrap();
    first.step(batch(0), 1e-2).unwrap();
    first.save(&checkpoints, &()).unwrap();
    let mut second = builder("ZBVZeroBubble", 2).build().unwrap();
    second.load(&checkpoints.latest().unwrap()).unwrap();
    let expected = plain(2);
    assert_eq!(second.step(batch(1), 1e-2).unwrap().loss, expected.0[1]);
    assert!(weights(&mut second) == expected.1);
}

#[test]
fn a_chosen_schedule_may_cut_anywhere_and_skips_follow() {
    let (losses, expected) = plain(6);
    // A head that costs as much as all other layers.
    let layer = |index| {
        let seconds = if index == 7 { 7.0 } else { 1.0 };
        let (input, weight) = (Some(seconds), Some(seconds));
        let layer = StageCost { forward: seconds, input, weight, activation_bytes: 10.0, ..StageCost::default() };
        StageCost { message_bytes: 1.0, weight_bytes: 100.0, ..layer }
    };
    let profile = Profile::new((0..8).map(layer).collect(), LinkCosts::default()).unwrap();
    let options = AutoOptions { warm_up: 1, measured: 1, trial: 0, ..AutoOptions::default() };
    // Copies of all layers on one rank, which would balance any cut, do not fit.
    let options = AutoOptions { gain: f64::NEG_INFINITY, cap: Some(3150.0), ..options };
    let size = Size::new(2, MICROBATCHES);
    let mut auto = AutoPipeline::new(builder("1F1B", 2), size, options).unwrap().with_profile(profile);
    for (step, loss) in losses.iter().enumerate() {
        assert_eq!(auto.step(batch(step), 1e-2).unwrap().loss, *loss, "step {step}");
    }
    let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
    let cut = &planned.best.partition;
    assert_ne!(*cut, Partition::even(8, cut.stages()).unwrap());
    assert!(weights(auto.pipeline()) == expected);
}
