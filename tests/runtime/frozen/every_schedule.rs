//! Every schedule runs without the backwards of frozen stages, and gives the plain loop's numbers.

use super::{LAYERS, MICROBATCHES, batch, builder, plain, weights};
use burn_pipeline::Size;
use burn_pipeline::execute::{FusedActions, Tuning};
use burn_pipeline::plan::{Op, Plan, Task};
use burn_pipeline::schedule::{Chunks, all};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::{BuildError, Pipeline, PipelineError};
use std::collections::BTreeSet;

const RATE: f64 = 1e-2;

/// Every schedule at the sizes that cut the model's layers into stages.
fn sizes() -> Vec<(&'static str, Size)> {
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
    sizes
}

/// The computations of all ranks.
fn computed(pipeline: &mut Pipeline, step: usize) -> BTreeSet<Task> {
    let report = pipeline.step(batch(step), RATE).unwrap();
    let tasks = report.timeline.events.iter().flat_map(|event| event.action.tasks());
    tasks.filter(|task| task.op().is_compute()).collect()
}

#[test]
fn every_schedule_equals_the_plain_loop_without_the_backwards_of_frozen_stages() {
    let sizes = sizes();
    let names: BTreeSet<&str> = sizes.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), all().len() - 1, "every schedule fits: {names:?}");
    for first in [1, 2, 3] {
        let trained: &'static [usize] = Vec::leak((first..LAYERS).collect());
        let (losses, expected) = plain(trained, 2);
        for &(name, size) in &sizes {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                let tuning = Tuning { fused: FusedActions::Interleave, ..Tuning::default() };
                let mut pipeline = builder(name, size, trained).split(split).tuning(tuning).build().unwrap();
                let place = format!("{name} at {size:?}, from {first}, {split:?}");
                let plan = pipeline.plan(MICROBATCHES).unwrap();
                assert_eq!(plan.plan().first_trained(), first, "{place}");
                let planned = (0..size.ranks).flat_map(|rank| plan.plan().tasks(rank));
                let planned: BTreeSet<Task> = planned.filter(|task| task.op().is_compute()).collect();
                let ran = computed(&mut pipeline, 0);
                assert_eq!(ran, planned, "{place}");
                assert!(!ran.iter().any(|task| task.op().is_backward() && task.stage().index() < first), "{place}");
                let of_first = ran.iter().filter(|task| task.op().is_backward() && task.stage().index() == first);
                assert!(
                    of_first.clone().count() == MICROBATCHES
                        && of_first.clone().all(|task| task.op() == Op::BackwardWeight)
                );
                assert_eq!(pipeline.step(batch(1), RATE).unwrap().loss, losses[1], "{place}");
                assert!(weights(&mut pipeline) == expected, "{place}");
            }
        }
    }
}

#[test]
fn frozen_stages_hold_nothing_for_a_backward() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let held = |trained: &'static [usize]| {
            let mut pipeline = builder("GPipe", Size::new(LAYERS, MICROBATCHES), trained).split(split).build().unwrap();
            pipeline.step(batch(0), RATE).unwrap().peak_held
        };
        assert_eq!(held(&[0, 1, 2, 3]), [MICROBATCHES; LAYERS]);
        assert_eq!(held(&[2, 3]), [0, 0, MICROBATCHES, MICROBATCHES], "{split:?}");
    }
}

#[test]
fn whole_backwards_for_weights_alone_are_not_merged_as_second_parts_are() {
    let (losses, expected) = plain(&[3], 2);
    let tuning = Tuning { merge_weights: true, ..Tuning::default() };
    let builder = builder("GPipe", Size::new(LAYERS, MICROBATCHES), &[3]).accumulation(Accumulation::AsTheyCome);
    let mut pipeline = builder.split(SplitBackward::Captured).tuning(tuning).build().unwrap();
    for (step, loss) in losses.iter().enumerate() {
        assert_eq!(pipeline.step(batch(step), RATE).unwrap().loss, *loss);
    }
    assert!(weights(&mut pipeline) == expected);
}

/// The rows of GPipe on four ranks, from this stage on, as a file has them.
fn file(first: usize) -> Plan {
    let schedule = burn_pipeline::schedule::by_name("GPipe").unwrap();
    let plan = schedule.build(Size::new(LAYERS, MICROBATCHES)).unwrap().train_from(first).unwrap();
    Plan::from_csv("mine", &plan.with_transfers().unwrap().to_csv()).unwrap()
}

#[test]
fn a_plan_from_a_file_may_leave_out_what_frozen_stages_do_not_need() {
    let (losses, _) = plain(&[2, 3], 1);
    for first in [0, 1, 2] {
        let mut pipeline = builder("1F1B", Size::new(4, 4), &[2, 3]).plan(file(first)).build().unwrap();
        assert_eq!(pipeline.plan(MICROBATCHES).unwrap().plan().first_trained(), 2);
        assert_eq!(pipeline.step(batch(0), RATE).unwrap().loss, losses[0], "from {first}");
    }
}

#[test]
fn a_plan_without_the_backward_of_a_stage_that_trains_is_refused() {
    let refused = builder("1F1B", Size::new(4, 4), &[1, 2, 3]).plan(file(2)).build().map(drop).unwrap_err();
    assert!(
        matches!(&refused, BuildError::Pass(error) if error.to_string().contains("train from stage 1")),
        "{refused}"
    );

    // A stage that is thawed later needs its backward, too.
    let mut pipeline = builder("1F1B", Size::new(4, 4), &[2, 3]).plan(file(2)).build().unwrap();
    pipeline.step(batch(0), RATE).unwrap();
    let thawed = pipeline.replace_module(1, |stack: super::Stack, _: &burn_pipeline::StageContext| {
        let mut stack = stack;
        for layer in &mut stack.layers {
            layer.weight = layer.weight.clone().set_require_grad(true);
        }
        stack
    });
    assert!(matches!(thawed.unwrap_err(), PipelineError::Plan(_)));
    assert!(matches!(pipeline.step(batch(1), RATE).unwrap_err(), PipelineError::Plan(_)));
}

#[test]
fn where_nothing_trains_a_step_runs_to_the_loss_and_is_refused() {
    let mut pipeline = builder("1F1B", Size::new(4, 4), &[]).build().unwrap();
    assert!(matches!(pipeline.step(batch(0), RATE).unwrap_err(), PipelineError::TrainsNothing { .. }));
    assert_eq!(pipeline.step(batch(0), 0.0).unwrap().loss, plain(&[3], 1).0[0]);
}
