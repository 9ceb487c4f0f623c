//! Rows with fixed steps: each value is used in a later step than it is computed in, and no row can be shorter.

use crate::any_schedule::plans;
use crate::golden_text as golden;
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::plan::{CheckError, Op, Plan, StageId, Task};
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use std::collections::BTreeMap;

/// The tasks of a neighbour of which a task needs one.
fn needs(plan: &Plan, task: Task) -> Vec<Task> {
    let Some(microbatch) = task.microbatch() else { return Vec::new() };
    let of = |stage: StageId, ops: &[Op]| ops.iter().map(|&op| Task::new(stage, op, microbatch)).collect();
    match (task.op(), task.stage().previous(), plan.placement().next(task.stage())) {
        (Op::Forward, Some(before), _) => of(before, &[Op::Forward]),
        (Op::Backward | Op::BackwardInput, _, Some(after)) => of(after, &[Op::Backward, Op::BackwardInput]),
        _ => Vec::new(),
    }
}

/// The step of each task, found by raising steps until nothing changes.
fn earliest(plan: &Plan) -> BTreeMap<Task, usize> {
    let mut steps: BTreeMap<Task, usize> = BTreeMap::new();
    loop {
        let before = steps.clone();
        for rank in 0..plan.ranks() {
            let mut free = 0;
            for action in plan.row(rank) {
                let of = |task: Task| needs(plan, task).iter().filter_map(|need| steps.get(need)).max().map(|s| s + 1);
                let step = action.tasks().filter_map(of).fold(free, usize::max);
                steps.extend(action.tasks().map(|task| (task, step)));
                free = step + 1;
            }
        }
        if steps == before {
            return steps;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn padded_rows_run_each_cell_in_the_first_step_that_has_what_it_needs(plan in plans(5, 3, 6)) {
        let (plan, padded) = (plan.without_idle(), plan.with_idle().unwrap());
        prop_assert_eq!(&padded.without_idle(), &plan);
        let expected = earliest(&plan);
        for row in padded.rows() {
            for (step, action) in row.iter().enumerate() {
                action.tasks().for_each(|task| assert_eq!(expected[&task], step, "{task} in\n{}", padded.grid()));
            }
        }
        prop_assert_eq!(&padded.with_idle().unwrap(), &padded);
    }
}

/// Returns true if each value is used in a later step than it is computed in.
fn is_locked(plan: &Plan) -> bool {
    let cells = plan.rows().iter().flat_map(|row| row.iter().enumerate());
    let steps: BTreeMap<Task, usize> =
        cells.flat_map(|(step, action)| action.tasks().map(move |task| (task, step))).collect();
    let ready = |(&task, step): (&Task, &usize)| {
        let needs = needs(plan, task);
        needs.is_empty() || needs.iter().filter_map(|need| steps.get(need)).any(|before| before < step)
    };
    steps.iter().all(ready)
}

#[test]
fn pytorchs_own_orders_are_padded_no_longer_and_those_that_break_there_are_mended() {
    let (mut kept, mut mended) = (0, 0);
    for block in golden::blocks(include_str!("goldens/passes/idle_orders.txt")) {
        let theirs = Plan::infer(block.name, golden::rows(block.body)).unwrap();
        let ours = theirs.with_idle().unwrap();
        assert!(is_locked(&ours), "{}", block.name);
        if is_locked(&theirs) {
            kept += 1;
            let longer = |(ours, theirs): (&Vec<_>, &Vec<_>)| ours.len() > theirs.len();
            assert!(!ours.rows().iter().zip(theirs.rows()).any(longer), "{}", block.name);
        } else {
            mended += 1;
        }
    }
    println!("{kept} of PyTorch's orders are locked to steps, {mended} are not");
    assert!(kept > 50 && mended > 5, "{kept}, {mended}");
}

#[test]
fn what_cannot_be_locked_to_steps_is_refused() {
    let of = |csv: &str| Plan::from_csv("mine", csv).unwrap().with_idle();
    let error = of("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n").unwrap_err();
    let PassError::Check(fault) = &error else { panic!("{error}") };
    assert!(matches!(&**fault, CheckError::Deadlock { cycle, .. } if cycle.len() == 2), "{error}");
    assert_eq!(of("0F0,0SEND_F0\n1RECV_F0,1F0\n").unwrap_err(), PassError::Lowered);
}
