//! Blocks with experts in DualPipe's fused actions: a forward and a backward, interleaved operation by operation,
//! give the numbers of the plain loop.

use crate::cases::{Got, Text, ahead, builder, distance, pipelined, plain, rich};
use crate::parity::assert_close;
use burn_pipeline::execute::{FusedActions, Tuning};
use burn_pipeline::plan::Action;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::Builder;
use pipeline_examples::moe::gpt::MoeGptConfig;

const SCHEDULES: [(&str, usize, usize); 3] = [("DualPipe", 2, 1), ("DualPipe", 4, 1), ("DualPipeV", 2, 2)];

fn fused((name, ranks, chunks): (&str, usize, usize), config: &MoeGptConfig, fused: FusedActions) -> Builder {
    let size = Size { ranks, chunks, microbatches: 8 };
    let builder = builder(by_name(name).unwrap().as_ref(), size, config, |part, _| part);
    builder
        .split(SplitBackward::Captured)
        .tuning(Tuning { fused, ..Tuning::default() })
        .accumulation(Accumulation::Ordered)
}

#[test]
fn experts_in_interleaved_actions_have_the_gradients_of_one_device() {
    for config in [ahead(), rich()] {
        // Uneven: seeds of 1 and 1/2 are in one fused action.
        let expected = plain(&config, &[11], 8);
        for schedule in SCHEDULES {
            let interleaved = pipelined(fused(schedule, &config, FusedActions::Interleave), &[11], &config);
            assert_close(&distance(&config, &interleaved, &expected), schedule.0);
            let Got { gradients, observed, loss } =
                pipelined(fused(schedule, &config, FusedActions::Sequence), &[11], &config);
            assert_eq!(interleaved.loss, loss, "{schedule:?}");
            assert_eq!(interleaved.observed, observed, "{schedule:?}");
            assert_eq!(interleaved.gradients, gradients, "{schedule:?}: bit for bit");
        }
    }
}

#[test]
fn every_fused_action_of_blocks_with_experts_was_interleaved() {
    let config = ahead();
    for schedule in SCHEDULES {
        let mut pipeline = fused(schedule, &config, FusedActions::Interleave).build().unwrap();
        let report = pipeline.accumulate(Text::new(1, 8).batch()).unwrap();
        let plan = pipeline.plan(8).unwrap();
        let overlaps = |actions: &mut dyn Iterator<Item = Action>| {
            actions.filter(|action| matches!(action, Action::Overlap(..))).count()
        };
        let planned = overlaps(&mut plan.plan().rows().iter().flatten().copied());
        assert!(planned > 0, "{schedule:?} has no fused action at this size");
        assert_eq!(overlaps(&mut report.timeline.events.iter().map(|event| event.action)), planned, "{schedule:?}");
    }
}
