//! Counts for which no table fits in memory, which are refused.

use burn_pipeline_plan::cost::{Partition, PartitionError};
use burn_pipeline_plan::plan::{Placement, PlanError, Task};
use burn_pipeline_plan::schedule::{ForwardOnly, Schedule, ScheduleError, Size};

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
