//! Plans whose transfers have separate waits, and plans whose communication was moved, give the same numbers.

use crate::cases::{Case, Stack, Text};
use crate::parity::{Plain, assert_equal, builder};
use burn_pipeline::cost::{Profile, UniformCosts};
use burn_pipeline::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline::pass::{Placing, WaitOptions};
use burn_pipeline::plan::{Op, Plan};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::simulate::SimulateOptions;
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::Builder;

const SCHEDULES: [(&str, usize, usize); 5] =
    [("1F1B", 3, 1), ("Interleaved1F1B", 2, 2), ("ZBVZeroBubble", 2, 2), ("DualPipe", 4, 1), ("GPipe", 4, 1)];

fn lowered((name, ranks, chunks): (&str, usize, usize), microbatches: usize) -> Plan {
    let size = Size { ranks, chunks, microbatches };
    by_name(name).unwrap().build(size).unwrap().with_transfers().unwrap()
}

fn running<C: Case>((name, ranks, chunks): (&str, usize, usize), microbatches: usize, plan: Plan) -> Builder {
    let size = Size { ranks, chunks, microbatches };
    let builder = builder::<C>(by_name(name).unwrap().as_ref(), size).plan(plan);
    builder.accumulation(Accumulation::Ordered).split(SplitBackward::Eager)
}

#[test]
fn a_plan_with_waits_equals_the_plain_loop_bit_for_bit() {
    let (text, stack) = (Text::new(8), Stack::new(8));
    let (plain_text, plain_stack) = (Plain::new(&text, 8, 8), Plain::new(&stack, 8, 8));
    for schedule in SCHEDULES {
        for placing in [Placing::AtOnce, Placing::Late] {
            let plan = lowered(schedule, 8).with_waits(&WaitOptions::all(placing));
            let mut of_text = running::<Text>(schedule, 8, plan.clone()).build().unwrap();
            assert_equal(&text, &mut of_text, &plain_text, schedule.0);
            let mut of_stack = running::<Stack>(schedule, 8, plan).build().unwrap();
            assert_equal(&stack, &mut of_stack, &plain_stack, schedule.0);
        }
    }
}

#[test]
fn a_plan_whose_communication_was_moved_equals_the_plain_loop_bit_for_bit() {
    let simulate = SimulateOptions { overlap: false, ..SimulateOptions::default() };
    let options = OverlapOptions { simulate, extra_bytes: 8.0, ..OverlapOptions::default() };
    let text = Text::new(8);
    let plain = Plain::new(&text, 8, 8);
    for schedule in SCHEDULES {
        let plan = lowered(schedule, 8);
        let costs = UniformCosts::new(1.0, 1.0, 1.0).with_transfer(0.5);
        let profile = Profile::uniform(plan.placement(), costs).unwrap();
        let moved = plan.overlap(&profile, &OverlapPass::ALL, &options).unwrap().plan;
        assert_ne!(moved.rows(), plan.rows(), "{}", schedule.0);
        assert_equal(&text, &mut running::<Text>(schedule, 8, moved).build().unwrap(), &plain, schedule.0);
    }
}

#[test]
fn the_timeline_shows_every_wait() {
    let schedule = ("1F1B", 3, 1);
    let plan = lowered(schedule, 8).with_waits(&WaitOptions::all(Placing::Late));
    let waits = |op: Op| op.is_wait();
    let planned = plan.rows().iter().flatten().flat_map(|a| a.tasks()).filter(|t| waits(t.op())).count();
    let report = running::<Text>(schedule, 8, plan).build().unwrap().accumulate(Text::new(8).batch()).unwrap();
    let shown = report.timeline.events.iter().flat_map(|e| e.action.tasks()).filter(|t| waits(t.op())).count();
    assert_eq!((shown, planned), (64, 64));
}
