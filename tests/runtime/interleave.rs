//! Fused actions give the same numbers, interleaved or one after the other.

use crate::cases::{Case, Stack, Text};
use crate::parity::{assert_parity, builder};
use burn_pipeline::execute::{FusedActions, Tuning};
use burn_pipeline::plan::Action;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::{Builder, StepReport};
use pipeline_tests::device::few;

const SCHEDULES: [(&str, usize, usize); 3] = [("DualPipe", 2, 1), ("DualPipe", 4, 1), ("DualPipeV", 2, 2)];

fn fused<C: Case>((name, ranks, chunks): (&str, usize, usize), microbatches: usize) -> Builder {
    let size = Size { ranks, chunks, microbatches };
    let builder = builder::<C>(by_name(name).unwrap().as_ref(), size).accumulation(Accumulation::Ordered);
    builder.tuning(Tuning { fused: FusedActions::Interleave, ..Tuning::default() })
}

fn overlaps(actions: impl Iterator<Item = Action>) -> usize {
    actions.filter(|action| matches!(action, Action::Overlap(..))).count()
}

#[test]
fn interleaved_captured_stages_equal_the_plain_loop_bit_for_bit() {
    for schedule in few(SCHEDULES.to_vec(), 1) {
        let builder = fused::<Text>(schedule, 8).split(SplitBackward::Captured);
        assert_parity(&Text::new(8), &builder, 8, 8, schedule.0);
        let builder = fused::<Stack>(schedule, 11).split(SplitBackward::Captured);
        assert_parity(&Stack::new(11), &builder, 11, 11, schedule.0);
    }
}

#[test]
fn stages_that_cannot_be_taken_apart_run_one_after_the_other() {
    for schedule in SCHEDULES {
        let builder = fused::<Text>(schedule, 8).split(SplitBackward::Eager);
        assert_parity(&Text::new(8), &builder, 8, 8, schedule.0);
        let report = builder.build().unwrap().accumulate(Text::new(8).batch()).unwrap();
        assert_eq!(overlaps(report.timeline.events.iter().map(|event| event.action)), 0);
    }
}

#[test]
fn the_timeline_shows_every_fused_action_that_was_interleaved() {
    for schedule in SCHEDULES {
        let builder = fused::<Text>(schedule, 8).split(SplitBackward::Captured);
        let mut pipeline = builder.clone().build().unwrap();
        let report = pipeline.accumulate(Text::new(8).batch()).unwrap();
        let plan = pipeline.plan(8).unwrap();
        let planned = overlaps(plan.plan().rows().iter().flatten().copied());
        assert!(planned > 0, "{} has no fused action at this size", schedule.0);
        assert_eq!(overlaps(report.timeline.events.iter().map(|event| event.action)), planned, "{}", schedule.0);

        // Flex computes synchronously, so by default nothing is interleaved on it.
        let report = builder
            .tuning(Tuning { fused: FusedActions::Auto, ..Tuning::default() })
            .build()
            .unwrap()
            .accumulate(Text::new(8).batch())
            .unwrap();
        assert_eq!(overlaps(report.timeline.events.iter().map(|event| event.action)), 0);
    }
}

#[test]
fn interleaved_actions_are_measured_as_such() {
    let mut pipeline = fused::<Text>(("DualPipeV", 2, 2), 8).split(SplitBackward::Captured).build().unwrap();
    let reports: Vec<_> = (0..2).map(|_| pipeline.step(Text::new(8).batch(), 1e-3).unwrap()).collect();
    let profile = StepReport::profile(pipeline.placement(), &reports).unwrap();
    assert!(profile.stages().iter().any(|stage| stage.overlap.is_some_and(|seconds| seconds > 0.0)));
}
