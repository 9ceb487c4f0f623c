//! Every schedule, both engines, recomputed stages, and models of which everything, something or nothing trains.

use super::{Contract, Data, Gradients, LAYERS, MICROBATCHES, RATE, builder, loss, plain, stack, whole};
use burn_pipeline::execute::{FusedActions, Tuning};
use burn_pipeline::schedule::{Chunks, all};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::{Size, StageBox, StageContext};
use pipeline_tests::device::few;
use std::collections::BTreeSet;

/// Every schedule with backwards, at the sizes that cut the model's layers into stages.
fn every_size() -> Vec<(&'static str, Size)> {
    let mut sizes = Vec::new();
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let info = schedule.info();
        let chunks = if let Chunks::Exactly(n) = info.chunks { n } else { 2 };
        for (ranks, chunks) in [(LAYERS, 1), (LAYERS / chunks, chunks)] {
            let size = Size { ranks, chunks, microbatches: MICROBATCHES };
            let plan = schedule.build(size).ok().filter(|plan| plan.stages() == LAYERS);
            if plan.is_some() && !sizes.contains(&(info.name, size)) {
                sizes.push((info.name, size));
            }
        }
    }
    let names: BTreeSet<&str> = sizes.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), all().len() - 1, "every schedule fits: {names:?}");
    few(sizes, 2)
}

#[test]
fn every_schedule_gives_the_gradients_of_the_plain_loop_whatever_is_frozen() {
    let expected = plain(&whole(), &Data::new(0), &Contract::mean());
    for (name, size) in every_size() {
        for trained in [&[][..], &[2, 3], &[0, 1, 2, 3]] {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                let tuning = Tuning { fused: FusedActions::Interleave, ..Tuning::default() };
                let mut pipeline = builder(name, size, trained).split(split).tuning(tuning).build().unwrap();
                let report = pipeline.accumulate(Data::new(0).batch()).unwrap();
                assert_eq!(Gradients::of(&report), expected, "{name} at {size:?}, {trained:?} train, {split:?}");
            }
        }
    }
}

#[test]
fn gradients_in_the_order_in_which_they_come_are_the_same() {
    let expected = plain(&whole(), &Data::new(0), &Contract::mean());
    for (name, size) in [("ZBH1", Size::new(4, MICROBATCHES)), ("DualPipe", Size::new(4, MICROBATCHES))] {
        let mut pipeline = builder(name, size, &[1]).accumulation(Accumulation::AsTheyCome).build().unwrap();
        let report = pipeline.step(Data::new(0).batch(), RATE).unwrap();
        assert_eq!(Gradients::of(&report), expected, "{name}");
    }
}

#[test]
fn recomputed_stages_give_them_too() {
    let expected = plain(&whole(), &Data::new(0), &Contract::mean());
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        for trained in [&[][..], &[1, 3]] {
            let builder = builder("1F1B", Size::new(4, MICROBATCHES), &[]).split(split);
            let mut pipeline = builder
                .stages(move |at: &StageContext| {
                    let part = stack(at.layers(LAYERS), trained, &at.device);
                    let made = if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) };
                    made.recomputed(true)
                })
                .build()
                .unwrap();
            let report = pipeline.accumulate(Data::new(0).batch()).unwrap();
            assert_eq!(Gradients::of(&report), expected, "{split:?}, {trained:?} train");
        }
    }
}

#[test]
fn compiled_stages_give_the_same_under_every_schedule_and_the_plain_loops_up_to_rounding() {
    let near = plain(&whole(), &Data::new(0), &Contract::mean());
    let mut first = None;
    for (name, size) in every_size() {
        for trained in [&[][..], &[0, 2]] {
            let mut pipeline = builder(name, size, trained).compile(true).build().unwrap();
            let got = Gradients::of(&pipeline.accumulate(Data::new(0).batch()).unwrap());
            let pairs =
                |got: &[f32], near: &[f32]| got.iter().zip(near).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            for (got, near) in [(&got.input, &near.input), (&got.shift, &near.shift), (&got.prompt, &near.prompt)] {
                assert!(got.len() == near.len() && pairs(got, near) < 1e-6, "{name}: {got:?}, {near:?}");
            }
            assert_eq!(*first.get_or_insert(got.clone()), got, "{name} at {size:?}, {trained:?} train");
        }
    }
}
