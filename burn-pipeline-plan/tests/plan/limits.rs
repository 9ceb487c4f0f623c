//! Counts and edges for which no table fits in memory: they are refused, or take no room.

use crate::check::plan;
use crate::pricing::stage;
use burn_pipeline_plan::cost::{LinkCosts, Partition, PartitionError, Profile, UniformCosts};
use burn_pipeline_plan::plan::{Action, Placement, Plan, PlanError, Task};
use burn_pipeline_plan::schedule::{ForwardOnly, Schedule, ScheduleError, Size};
use burn_pipeline_plan::simulate::{Bounds, SimulateError, SimulateOptions, simulate};
use std::time::{Duration, Instant};

#[test]
fn counts_of_a_forward_only_plan_are_checked_before_its_rows_are_built() {
    let over = |placement, counts: &[usize]| ForwardOnly::over(placement, counts.to_vec()).unwrap_err();
    let (one, two) = (Placement::looped(2, 2).unwrap(), Placement::bidirectional(2).unwrap());
    for microbatches in [usize::MAX, 1 << 40, Task::MAX_MICROBATCHES + 2] {
        let many = ScheduleError::Plan(PlanError::TooManyMicrobatches { microbatches });
        assert_eq!(over(one.clone(), &[microbatches]), many);
        assert_eq!(over(two.clone(), &[1, microbatches]), many);
        assert_eq!(over(two.clone(), &[microbatches]), PlanError::Routes { counts: 1, routes: 2 }.into());
    }
    assert_eq!(over(one.clone(), &[0]), PlanError::NoMicrobatch.into());
    // Counts that can be numbered, but whose rows would not fit in memory, are refused as by the schedule.
    let size = Size::new(2, 1 << 31).with_chunks(2);
    assert_eq!(over(one, &[1 << 31]), ForwardOnly.build(size).unwrap_err());
    assert!(over(two, &[1 << 31, 1 << 31]).to_string().contains("at most 134217728 forwards"));
}

#[test]
fn an_even_cut_into_more_stages_than_a_plan_can_have_is_refused() {
    let many = PartitionError::Stages { layers: usize::MAX, stages: 1 << 40 };
    assert_eq!(Partition::even(usize::MAX, 1 << 40), Err(many.clone()));
    assert!(many.to_string().ends_with("choose 1 to 65535"));
    assert_eq!(Partition::even(usize::MAX, 65_535).unwrap().stages(), 65_535);
}

#[test]
fn bounds_look_only_at_the_microbatches_that_a_plan_runs() {
    // Four billion microbatches of one stage, and 65000 that reach one of 65000 stages.
    let wide = Placement::looped(1, 65_000).unwrap();
    let first = (0..65_000).map(|m| Action::forward(0, m)).collect();
    let wide = Plan::new("wide", wide, vec![65_000], vec![first]).unwrap();
    let begun = Instant::now();
    for (plan, busiest) in [(plan("0F4294967294\n"), 3.0), (wide, 195_000.0)] {
        let profile = Profile::new(vec![stage(3.0, 1.0, 1.0); plan.stages()], LinkCosts::default()).unwrap();
        let bounds = Bounds::new(&plan, &profile).unwrap();
        assert_eq!((bounds.critical_path, bounds.busiest_rank), (3.0, busiest));
    }
    // Looking at every pair of stage and microbatch would take minutes.
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_plan_with_many_skip_edges_and_one_cell_is_simulated_in_little_memory() {
    let edges = (0..1024usize).flat_map(|from| (from + 2..1024.min(from + 120)).map(move |to| (from, to).into()));
    let placement = Placement::looped(2, 512).unwrap();
    let rows = vec![vec!["0SEND_F0".parse().unwrap()], Vec::new()];
    let plan = Plan::new("edges", placement, vec![1024], rows).unwrap().with_skips(edges.collect()).unwrap();
    assert!(plan.skips().len() > 113_000);
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let error = simulate(&plan, &profile, &SimulateOptions::default()).unwrap_err();
    assert!(matches!(error, SimulateError::Deadlock { .. }), "{error}");
}
