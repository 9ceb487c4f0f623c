//! Fused actions give the same numbers, interleaved or one after the other.

use crate::cases::{Case, Stack, Text};
use crate::parity::{assert_parity, builder};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_pipeline::execute::{FusedActions, Tuning};
use burn_pipeline::plan::Action;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, StageContext, StepReport};
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

const WIDTH: usize = 64;

/// A layer that may declare that it cannot be captured.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    reads: bool,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(x).tanh()
    }

    fn skip_capture(&self) -> Option<&'static str> {
        self.reads.then_some("it reads values")
    }
}

#[test]
fn the_parts_of_a_fused_action_that_were_not_interleaved_are_measured_apart() {
    let stage = |at: &StageContext| {
        let number = at.layers(4).start;
        let linear = init_seeded(number as u64, &at.device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
        // Each rank has one stage of the first half, and one of the second.
        let layer = Layer { linear, reads: number >= 2 };
        match at.is_last() {
            false => StageBox::new(layer),
            true => StageBox::with_loss(layer, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean()),
        }
    };
    let size = Size { ranks: 2, chunks: 2, microbatches: 8 };
    let builder = Pipeline::builder().schedule("DualPipeV", size).devices(vec![Device::flex()]).stages(stage);
    let tuning = Tuning { fused: FusedActions::Interleave, ..Tuning::default() };
    let mut pipeline = builder.split(SplitBackward::Auto).tuning(tuning).build().unwrap();
    let x = Tensor::<2>::ones([512, WIDTH], &Device::flex());
    let report = pipeline.accumulate(Batch::new(x.clone()).target(x)).unwrap();
    let engines = pipeline.engines().unwrap();
    assert_eq!(engines.iter().filter(|(_, engine)| engine.captured).count(), 2);
    let events = report.timeline.events;
    for rank in 0..2 {
        let mut own: Vec<_> = events.iter().filter(|event| event.rank == rank && event.end > event.start).collect();
        own.sort_by(|a, b| a.start.total_cmp(&b.start));
        for two in own.windows(2) {
            assert!(two[1].start >= two[0].end, "rank {rank}: {} and {}", two[0].action, two[1].action);
        }
    }
}
