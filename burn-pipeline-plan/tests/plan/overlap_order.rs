//! The order of starts under the overlap passes, their choices without estimates, and their first moves.

use crate::brute_force::is_legal;
use crate::overlap_properties::{lowered, options};
use burn_pipeline_plan::cost::{Factors, LinkCosts, Profile, StageCost};
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline_plan::plan::{Action, Op, Plan, Task};
use proptest::test_runner::Config;
use proptest::{prop_assert, prop_assert_eq, prop_assume, proptest};

/// A plan of two ranks in which the first delays messages.
const SENDS: &str = "0F0,0F1,0SEND_F0,0WAIT_SEND_F0,0F2,0SEND_F1,0WAIT_SEND_F1,0SEND_F2\n\
    1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2\n";

/// A profile without costs.
fn unknown(plan: &Plan) -> Profile {
    Profile::new(vec![StageCost::default(); plan.stages()], LinkCosts::default()).unwrap()
}

fn is_start(op: Op) -> bool {
    op.is_transfer() || is_collective(op)
}

/// Ranks with copies of a stage, or shards of one, join a collective together.
fn is_collective(op: Op) -> bool {
    matches!(op, Op::Unshard | Op::ReduceGrad)
}

fn starts(plan: &Plan, kept: fn(Op) -> bool) -> Vec<Vec<Task>> {
    (0..plan.ranks()).map(|rank| plan.tasks(rank).filter(|task| kept(task.op())).collect()).collect()
}

fn rows(plan: &Plan) -> Vec<Vec<Action>> {
    plan.rows().iter().map(|row| row.iter().copied().filter(|action| !action.is_idle()).collect()).collect()
}

proptest! {
    #![proptest_config(Config { cases: 200, failure_persistence: None, ..Config::default() })]

    #[test]
    fn no_pass_reorders_collectives_and_only_one_reorders_messages(
        (plan, profile) in lowered(),
        options in options(),
        pass in 0..OverlapPass::ALL.len(),
    ) {
        let pass = OverlapPass::ALL[pass];
        let after = plan.run_passes(&profile, &[pass], &options).unwrap().plan;
        prop_assert_eq!(starts(&after, is_collective), starts(&plan, is_collective));
        if pass != OverlapPass::OrderCommunication {
            prop_assert_eq!(starts(&after, is_start), starts(&plan, is_start));
        }
        let all = plan.overlap(&profile, &OverlapPass::ALL, &options).unwrap().plan;
        prop_assert_eq!(starts(&all, is_collective), starts(&plan, is_collective));
    }

    #[test]
    fn without_estimates_a_start_rises_to_what_it_may_not_pass((plan, _) in lowered(), group in 0..4usize) {
        let options = OverlapOptions { estimates: false, reach: usize::MAX, group, ..OverlapOptions::default() };
        let after = plan.run_passes(&unknown(&plan), &[OverlapPass::ReorderCommunication], &options).unwrap();
        prop_assert_eq!(&after.reports[0].kept, &None);
        let transport = options.simulate.transport;
        for (rank, row) in rows(&after.plan).iter().enumerate() {
            for place in 1..row.len() {
                let has_wait = |op: Op| op.wait().is_some_and(|wait| {
                    let waits = |task: &Task| {
                        let start = row[place].tasks().next().unwrap();
                        task.op() == wait && task.stage() == start.stage() && task.microbatch() == start.microbatch()
                    };
                    row[place + 1..].iter().flat_map(|action| action.tasks()).any(|task| waits(&task))
                });
                let Action::Single(start) = row[place] else { continue };
                let before = row[place - 1].tasks().next().unwrap();
                if !is_start(start.op()) || start.is_skip() || !has_wait(start.op()) || is_start(before.op()) {
                    continue;
                }
                let mut swapped = rows(&after.plan);
                swapped[rank].swap(place, place - 1);
                let swapped = after.plan.with_rows(swapped);
                prop_assert!(!is_legal(&swapped, transport), "{start} may pass {before}: {}", after.plan.to_csv());
            }
        }
    }

    #[test]
    fn without_estimates_seconds_decide_nothing((plan, profile) in lowered(), options in options(), pass in 0..6usize) {
        let options = OverlapOptions { estimates: false, extra_bytes: 1e9, ..options };
        let pass = [OverlapPass::ALL[pass]];
        let none = Factors { forward: 0.0, input: 0.0, weight: 0.0, backward: 0.0, unshard: 0.0, reduce_grad: 0.0, transfer: 0.0 };
        let timeless = profile.scaled(&none).unwrap();
        let [known, unknown] = [&profile, &timeless].map(|costs| plan.run_passes(costs, &pass, &options).unwrap());
        // A result that takes longer is not kept, so there is nothing to compare. The same if messages are ordered by
        // time.
        prop_assume!(known.reports[0].kept.is_none() && pass[0] != OverlapPass::OrderCommunication);
        prop_assume!(known.reports[0].reach == unknown.reports[0].reach);
        prop_assert_eq!(known.plan.rows(), unknown.plan.rows());
    }

    #[test]
    fn every_number_of_moves_gives_a_legal_plan_one_move_from_the_last(
        (plan, profile) in lowered(),
        options in options(),
        pass in 1..OverlapPass::ALL.len(),
    ) {
        let pass = [OverlapPass::ALL[pass], OverlapPass::ReorderCommunication];
        let after = plan.run_passes(&profile, &pass, &options).unwrap().plan;
        let (whole, all) = plan.first_moves(&after, usize::MAX).unwrap();
        prop_assert_eq!(rows(&whole), rows(&after));
        let mut last = rows(&plan);
        for moves in 0..=all {
            let (moved, made) = plan.first_moves(&after, moves).unwrap();
            prop_assert_eq!(made, moves);
            prop_assert!(is_legal(&moved, options.simulate.transport), "{moves} moves: {}", moved.to_csv());
            let now = rows(&moved);
            // One cell was moved; none if there was no move.
            let without = |row: &[Action], place: usize| [&row[..place], &row[place + 1..]].concat();
            let changed: Vec<usize> = (0..now.len()).filter(|&rank| now[rank] != last[rank]).collect();
            prop_assert_eq!(changed.len(), usize::from(moves > 0));
            for rank in changed {
                let (old, new) = (&last[rank], &now[rank]);
                let first = (0..old.len()).find(|&place| old[place] != new[place]).unwrap();
                let from = (first..old.len()).find(|&from| without(old, from) == without(new, first));
                prop_assert!(from.is_some_and(|from| old[from] == new[first]), "{old:?} to {new:?}");
            }
            last = now;
        }
        prop_assert_eq!(last, rows(&after));
    }
}

#[test]
fn greedy_passes_move_as_far_where_nothing_is_known() {
    let plan = Plan::from_csv("test", SENDS).unwrap();
    for estimates in [true, false] {
        let options = OverlapOptions { estimates, ..OverlapOptions::default() };
        let of = |pass| {
            let after = plan.run_passes(&unknown(&plan), &[pass], &options).unwrap();
            assert_eq!(after.reports[0].reach, options.reach, "the plan is that of the report");
            after.plan.row(0).iter().map(Action::to_string).collect::<Vec<_>>().join(" ")
        };
        let raised = "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0WAIT_SEND_F0 0WAIT_SEND_F1";
        assert_eq!(of(OverlapPass::RaiseCommunication), raised);
        let sunk = "0F0 0F1 0SEND_F0 0F2 0SEND_F1 0SEND_F2 0WAIT_SEND_F0 0WAIT_SEND_F1";
        assert_eq!(of(OverlapPass::SinkWaits), sunk);
        assert_eq!(of(OverlapPass::ReorderCompute), raised);
    }
}

#[test]
fn iterative_passes_move_nothing_by_estimates_of_nothing_and_as_far_as_they_may_without() {
    let plan = Plan::from_csv("test", SENDS).unwrap();
    let row = |estimates| {
        let options = OverlapOptions { estimates, ..OverlapOptions::default() };
        let passes = [OverlapPass::SinkWaitsIteratively, OverlapPass::ReorderCommunication];
        let after = plan.run_passes(&unknown(&plan), &passes, &options).unwrap();
        after.plan.row(0).iter().map(Action::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row(true), "0F0 0F1 0SEND_F0 0WAIT_SEND_F0 0F2 0SEND_F1 0WAIT_SEND_F1 0SEND_F2");
    // Each message goes right after its computation. Waits whose results nothing uses go to the end, the last one
    // first.
    assert_eq!(row(false), "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0WAIT_SEND_F1 0WAIT_SEND_F0");
}

#[test]
fn moves_are_counted_from_rank_to_rank_and_another_plan_is_refused() {
    let plan = |text| Plan::from_csv("test", text).unwrap();
    let before = plan("0F0,0F1,0SEND_F0,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
    let after = plan("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n");
    let first = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n";
    let made = |moves| before.first_moves(&after, moves).map(|(plan, made)| (plan.to_csv(), made)).unwrap();
    assert_eq!(made(0), (before.to_csv(), 0));
    assert_eq!(made(1), (first.to_owned(), 1));
    assert_eq!(made(9), (after.to_csv(), 2));
    let other = plan("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1\n");
    assert_eq!(before.first_moves(&other, 1), Err(PassError::OtherCells { rank: 1 }));
    assert_eq!(before.first_moves(&plan("0F0,0F1\n"), 1), Err(PassError::OtherCells { rank: 0 }));
}
