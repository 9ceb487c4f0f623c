//! The check accepts good plans, and refuses each kind of bad plan with the right error.

use crate::golden_text as golden;
use burn_pipeline_plan::plan::{
    Action, CheckError, CheckOptions, MicrobatchTask, Op, Placement, Plan, StageId, Task, Transport,
};
use burn_pipeline_plan::schedule::{Size, by_name};

/// Transports, the strictest first.
pub(crate) const TRANSPORTS: [Transport; 4] =
    [Transport::Rendezvous, Transport::Buffered(1), Transport::Buffered(2), Transport::Unbounded];

pub(crate) fn under(transport: Transport) -> CheckOptions {
    CheckOptions { transport, ..CheckOptions::default() }
}

pub(crate) fn plan(text: &str) -> Plan {
    Plan::from_csv("test", text).unwrap()
}

pub(crate) fn refused(text: &str) -> CheckError {
    *plan(text).check(&CheckOptions::default()).expect_err(text)
}

#[test]
fn every_golden_order_is_proved_lowered_and_unlowered() {
    let orders = golden::orders().into_iter().chain(golden::orders_2_15());
    let mut proofs = 0;
    for (_, order) in orders {
        let sharded = order.with_reduce_grad().with_unshard(3).unwrap();
        for transport in TRANSPORTS {
            for form in [&order, &sharded] {
                let lowered = form.with_transfers().unwrap();
                let checked =
                    lowered.clone().check(&under(transport)).unwrap_or_else(|e| panic!("{}: {e}", order.name()));
                assert_eq!((checked.plan(), checked.transport()), (&lowered, transport));
                proofs += 1;
            }
        }
        let unlowered = order.clone().check(&CheckOptions::default()).unwrap();
        assert_eq!(unlowered.into_plan(), order);
    }
    println!("proofs of golden orders: {proofs}");
}

#[test]
fn a_task_out_of_place_is_refused_with_its_place() {
    assert!(matches!(
        refused("0F0,0B0\n1B0,1F0\n"),
        CheckError::Unmet { rank: 1, step: 0, task, needs, .. }
            if task == Task::new(1, Op::Backward, 0) && needs == Task::new(1, Op::Forward, 0)
    ));
    assert!(matches!(refused("0F0,0F0,0B0\n"), CheckError::Duplicate { rank: 0, step: 1, first: 0, .. }));
    assert!(matches!(refused("0F0,0B0,0B0\n"), CheckError::Duplicate { step: 2, first: 1, .. }));
    assert!(matches!(refused("0F0,0I0,0W0,0W0\n"), CheckError::Duplicate { step: 3, first: 2, .. }));
    assert!(matches!(refused("0F0,0W0,0I0\n"), CheckError::Unmet { step: 1, .. }));
    assert!(matches!(refused("0F0,0I0,0B0\n"), CheckError::BothBackwards { step: 2, first: 1, .. }));
    assert!(matches!(refused("0F0,0B0,0I0\n"), CheckError::BothBackwards { step: 2, first: 1, .. }));
    assert!(matches!(refused("0F0,0B0,0W0\n"), CheckError::BothBackwards { step: 2, first: 1, .. }));
    assert!(matches!(refused("0F0,1F0,0B0,1B0\n"), CheckError::Unmet { step: 2, .. }));
}

#[test]
fn a_task_left_out_is_named() {
    let missing = |text: &str| match refused(text) {
        CheckError::Missing { rank, step, task, .. } => (rank, step, task.to_string()),
        other => panic!("{other}"),
    };
    assert_eq!(missing("0F0,0F1,0B0\n"), (0, 3, "0B1".into()));
    assert_eq!(missing("0F0,0F1,0I0,0I1,0W0\n"), (0, 5, "0W1".into()));
    assert_eq!(missing("0F0,0F2\n"), (0, 2, "0F1".into()));
    assert_eq!(missing("0F0\n1F0\n2F0,2B0\n"), (0, 1, "0B0".into()));
    assert_eq!(missing("0F0,1F0,1B0,0B0,1REDUCE_GRAD\n").2, "0REDUCE_GRAD");
    // One cell names four billion microbatches: no table of that size is allocated.
    assert_eq!(missing("0F4000000000\n"), (0, 1, "0F0".into()));
}

#[test]
fn stages_and_microbatches_that_are_not_there_are_refused() {
    let placement = Placement::free(2, vec![0, 1]).unwrap();
    let with = |rows: &str| {
        let plan = Plan::new("test", placement.clone(), vec![1], golden::rows(rows)).unwrap();
        *plan.check(&CheckOptions::default()).unwrap_err()
    };
    assert!(matches!(with("0F0,0F1\n1F0"), CheckError::NoSuchMicrobatch { rank: 0, step: 1, microbatches: 1, .. }));
    assert!(matches!(with("0F0\n1F0,2F0"), CheckError::NoSuchStage { rank: 1, step: 1, stages: 2, .. }));
    assert!(matches!(with("'0F0\n1F0"), CheckError::NoSuchStage { rank: 0, routes: 1, .. }));
    assert!(matches!(with("0F0,1F0\n1F0"), CheckError::WrongRank { rank: 0, step: 1, placed: 1, .. }));
}

#[test]
fn a_fused_cell_must_hold_a_forward_and_a_backward_of_something_else() {
    assert!(plan("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n").check(&CheckOptions::default()).is_ok());
    assert!(matches!(refused("(0F0;0B0)OVERLAP_F_B\n"), CheckError::NotFusible { rank: 0, step: 0, .. }));
    let two_forwards = Action::Overlap(MicrobatchTask::new(0, Op::Forward, 0), MicrobatchTask::new(0, Op::Forward, 1));
    let plan = Plan::infer("test", vec![vec![two_forwards]]).unwrap();
    assert!(matches!(*plan.check(&CheckOptions::default()).unwrap_err(), CheckError::NotFusible { .. }));
}

const LOWERED: &str = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";

#[test]
fn every_value_that_crosses_ranks_is_sent_and_received_once() {
    assert!(plan(LOWERED).check(&CheckOptions::default()).is_ok());
    let without = |cell: &str| refused(&LOWERED.replace(&format!("{cell},"), "").replace(&format!(",{cell}\n"), "\n"));
    assert!(
        matches!(without("0SEND_F0"), CheckError::Missing { rank: 0, task, .. } if task == Task::new(0, Op::SendForward, 0))
    );
    assert!(
        matches!(without("1SEND_B0"), CheckError::Missing { rank: 1, task, .. } if task == Task::new(1, Op::SendBackward, 0))
    );
    assert!(
        matches!(without("1RECV_F0"), CheckError::Unmet { rank: 1, step: 0, needs, .. } if needs == Task::new(1, Op::ReceiveForward, 0))
    );
    assert!(
        matches!(without("0RECV_B0"), CheckError::Unmet { rank: 0, step: 2, needs, .. } if needs == Task::new(0, Op::ReceiveBackward, 0))
    );
    let twice = |cell: &str| refused(&LOWERED.replace(cell, &format!("{cell},{cell}")));
    for cell in ["0SEND_F0", "1RECV_F0", "1SEND_B0", "0RECV_B0"] {
        assert!(matches!(twice(cell), CheckError::Duplicate { .. }), "{cell}");
    }
    let early = refused("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
    assert!(
        matches!(early, CheckError::Unmet { rank: 0, step: 0, needs, .. } if needs == Task::new(0, Op::Forward, 0))
    );
    // A forward-only plan receives a gradient that no rank sends.
    let lone = refused("0F0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0\n");
    assert!(matches!(lone, CheckError::Missing { rank: 1, task, .. } if task == Task::new(1, Op::SendBackward, 0)));
}

#[test]
fn nothing_is_sent_between_neighbours_on_one_rank_or_beyond_the_ends() {
    let same_rank = refused("0F0,0SEND_F0,1RECV_F0,1F0\n");
    assert!(
        matches!(same_rank, CheckError::NeedlessTransfer { step: 1, neighbour: Some(n), .. } if n == StageId::new(1))
    );
    let end = refused("0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n");
    assert!(matches!(end, CheckError::NeedlessTransfer { rank: 1, step: 2, neighbour: None, .. }));
}

#[test]
fn both_ends_of_a_channel_must_agree_on_the_order() {
    let text = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1RECV_F0,1F0,1F1\n";
    for transport in TRANSPORTS {
        let error = plan(text).check(&under(transport)).unwrap_err();
        assert!(matches!(
            *error,
            CheckError::ChannelOrder { rank: 1, step: 0, from: 0, sent_step: 1, position: 0, received, sent, .. }
                if received == Task::new(1, Op::ReceiveForward, 1) && sent == Task::new(0, Op::SendForward, 0)
        ));
    }
}

/// Two routes in opposite directions: both ranks send before they receive.
const CROSSED: &str = "0F0,0SEND_F0,'1RECV_F0,'1F0\n'0F0,'0SEND_F0,1RECV_F0,1F0\n";

#[test]
fn a_plan_that_deadlocks_under_rendezvous_may_run_with_a_buffer() {
    let error = plan(CROSSED).check(&under(Transport::Rendezvous)).unwrap_err();
    let CheckError::Deadlock { transport: Some(Transport::Rendezvous), cycle, .. } = &*error else { panic!("{error}") };
    let reported: Vec<_> = cycle.iter().map(|w| (w.rank, w.step, w.action.to_string(), w.needs.to_string())).collect();
    let expected = [(0, 1, "0SEND_F0".into(), "1RECV_F0".into()), (1, 1, "'0SEND_F0".into(), "'1RECV_F0".into())];
    assert_eq!(reported, expected);
    assert!(plan(CROSSED).check(&under(Transport::Buffered(0))).is_err());
    assert!(plan(CROSSED).check(&under(Transport::Buffered(1))).is_ok());
    assert!(plan(CROSSED).check(&under(Transport::Unbounded)).is_ok());
}

#[test]
fn a_buffer_of_k_lets_k_sends_go_ahead_and_no_more() {
    // Each rank makes k values of its own route, sends all of them, and only then receives.
    let rows = |k: usize| {
        let row = |own: &str, other: &str| {
            let made = (0..k).map(|m| format!("{own}F{m},{own}SEND_F{m}"));
            let used = (0..k).map(|m| format!("{other}RECV_F{m},{other}F{m}"));
            made.chain(used).collect::<Vec<_>>().join(",")
        };
        format!("{}\n{}\n", row("0", "'1"), row("'0", "1"))
    };
    for k in 1..6 {
        assert!(plan(&rows(k)).check(&under(Transport::Buffered(k))).is_ok());
        let error = plan(&rows(k)).check(&under(Transport::Buffered(k - 1))).unwrap_err();
        let CheckError::Deadlock { cycle, .. } = &*error else { panic!("{error}") };
        // The send that finds the buffer full, and the receive that would make room.
        assert_eq!((cycle.len(), cycle[0].step), (2, 2 * (k - 1) + 1));
        assert_eq!(cycle[0].needs, Task::new(1, Op::ReceiveForward, 0));
    }
}

#[test]
fn an_unlowered_plan_whose_rows_wait_in_a_circle_is_refused() {
    let error = refused("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n");
    let CheckError::Deadlock { transport: None, cycle, .. } = &error else { panic!("{error}") };
    assert_eq!(cycle.iter().map(|w| (w.rank, w.step)).collect::<Vec<_>>(), [(0, 1), (1, 0)]);
    assert_eq!(cycle[0].needs, Task::new(1, Op::Backward, 0));
}

#[test]
fn parameters_are_gathered_whenever_a_stage_computes() {
    assert!(plan("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0\n").check(&CheckOptions::default()).is_ok());
    assert!(matches!(refused("0UNSHARD,0F0,0RESHARD,0B0\n"), CheckError::Sharded { step: 3, .. }));
    assert!(matches!(refused("0F0,0UNSHARD,0B0\n"), CheckError::Sharded { step: 0, .. }));
    assert!(matches!(refused("0UNSHARD,0F0,1F0,1B0,0B0\n"), CheckError::Sharded { step: 2, .. }));
    assert!(matches!(refused("0RESHARD,0F0,0B0\n"), CheckError::Sharded { step: 0, .. }));
    assert!(matches!(refused("0UNSHARD,0UNSHARD,0F0,0B0\n"), CheckError::UnshardedTwice { step: 1, .. }));
}

#[test]
fn parameters_that_are_gathered_are_used_before_they_are_released_and_before_the_row_ends() {
    let unused = |csv: &str, expected: (usize, usize)| {
        let error = refused(csv);
        let CheckError::UnusedUnshard { rank, step, action, .. } = &error else { panic!("{csv}: {error}") };
        assert_eq!((*rank, *step), expected, "{csv}");
        assert!(error.to_string().contains(&format!("{action} gathers parameters that no F, B, I or W")), "{error}");
    };
    unused("0UNSHARD,0F0,0B0,0RESHARD,0UNSHARD\n", (0, 4));
    unused("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD,0UNSHARD,0RESHARD\n", (0, 5));
    unused("0UNSHARD,0F0,0RESHARD,0UNSHARD,0WAIT_UNSHARD,0RESHARD,0UNSHARD,0B0\n", (0, 3));
    unused("0UNSHARD,0F0,0B0\n1UNSHARD,1F0,1B0,1RESHARD,1UNSHARD\n", (1, 4));
    // Missing tasks are reported first.
    assert!(matches!(refused("0UNSHARD,0F0,0RESHARD,0UNSHARD,1UNSHARD,1F0,1B0\n"), CheckError::Missing { .. }));
}

#[test]
fn gradients_are_reduced_once_after_the_last_of_them() {
    assert!(plan("0F0,0F1,0B0,0I1,0W1,0REDUCE_GRAD\n").check(&CheckOptions::default()).is_ok());
    let early = refused("0F0,0F1,0B0,0I1,0REDUCE_GRAD,0W1\n");
    assert!(matches!(early, CheckError::ReducedEarly { step: 4, done: 1, microbatches: 2, .. }));
    assert!(matches!(refused("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"), CheckError::Duplicate { step: 3, first: 2, .. }));
}

#[test]
fn live_activations_and_received_payloads_stay_under_their_caps() {
    let options = |activation_cap, received_cap| CheckOptions { activation_cap, received_cap, ..Default::default() };
    let two_stages = "0F0,1F0,0F1,1F1,1B0,0B0,1I1,1W1,0I1,0W1\n";
    assert!(plan(two_stages).check(&options(Some(2.0), None)).is_ok());
    let error = *plan(two_stages).check(&options(Some(1.9), None)).unwrap_err();
    assert!(matches!(error, CheckError::ActivationCap { step: 3, live, cap, .. } if live == 2.0 && cap == 1.9));
    // Evaluation keeps nothing for a backward.
    assert!(plan("0F0,0F1,0F2\n").check(&options(Some(0.0), None)).is_ok());

    let hoard = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n";
    assert!(plan(hoard).check(&options(None, Some(2))).is_ok());
    let error = *plan(hoard).check(&options(None, Some(1))).unwrap_err();
    assert!(matches!(error, CheckError::ReceivedCap { rank: 1, step: 1, held: 2, cap: 1, .. }));
    let error = *plan("0F0\n1F0\n").check(&options(None, Some(1))).unwrap_err();
    assert!(matches!(error, CheckError::ReceivedCapUnlowered { cap: 1 }));
}

#[test]
fn an_error_shows_the_grid_around_it() {
    let error = refused("0F0,0F1,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n").to_string();
    let expected = "rank 0, step 2: 0F1 has already run at step 1; remove one of the two\n        \
                    Rank 0 Rank 1\n\
                    Step 0: 0F0    1F0   \n\
                    Step 1: 0F1    1B0   \n\
                    Step 2: 0F1    1F1    <-- ERROR HERE\n\
                    Step 3: 0B0    1B1   \n\
                    Step 4: 0B1          ";
    assert_eq!(error, expected);
}

#[test]
fn an_error_in_a_large_plan_shows_only_what_is_around_it() {
    let mut rows = by_name("1F1B").unwrap().build(Size::new(64, 100)).unwrap().rows().to_vec();
    rows[40].remove(150);
    let plan = Plan::infer("test", rows).unwrap();
    let error = plan.check(&CheckOptions::default()).unwrap_err();
    let CheckError::Missing { rank: 40, step: 199, .. } = *error else { panic!("{error}") };
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1 + 1 + 5, "{text}");
    assert!(text.contains(" Rank 36 ") && text.contains("Rank 43") && !text.contains("Rank 44"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("Step 199: "), "{text}");
    assert_eq!(text.matches("<-- ERROR HERE").count(), 1);
}

/// The largest running count of +1s and -1s, for each rank.
fn peaks(plan: &Plan, change: impl Fn(Task) -> i64) -> Vec<i64> {
    let peak = |rank: usize| {
        let mut sum = 0;
        plan.tasks(rank)
            .map(|task| {
                sum += change(task);
                sum
            })
            .max()
            .unwrap_or(0)
            .max(0)
    };
    (0..plan.ranks()).map(peak).collect()
}

#[test]
fn a_plan_fits_its_own_peaks_and_nothing_smaller() {
    let mut tried = 0;
    for (_, order) in golden::orders_2_15() {
        let plan = order.with_transfers().unwrap();
        let activations = peaks(&plan, |task| match task.op() {
            Op::Forward => 1,
            op => -i64::from(op.gives_weight_gradient()),
        });
        let share = plan.ranks() as f64 / plan.stages() as f64;
        let peak = activations.iter().map(|&n| n as f64 * share).fold(0.0, f64::max);
        let with = |cap| CheckOptions { activation_cap: Some(cap), ..CheckOptions::default() };
        assert!(plan.clone().check(&with(peak)).is_ok(), "{}", plan.name());
        let error = plan.clone().check(&with(peak - 0.01)).unwrap_err();
        assert!(matches!(*error, CheckError::ActivationCap { live, .. } if live == peak), "{}: {error}", plan.name());

        let crosses = |stage: Option<StageId>| stage.is_some_and(|s| plan.placement().crosses_after(s));
        let received = peaks(&plan, |task| match task.op() {
            Op::ReceiveForward | Op::ReceiveBackward => 1,
            Op::Forward => -i64::from(crosses(task.stage().previous())),
            op if op.gives_input_gradient() => -i64::from(crosses(Some(task.stage()))),
            _ => 0,
        });
        let peak = received.into_iter().max().unwrap() as usize;
        let with = |cap| CheckOptions { received_cap: Some(cap), ..CheckOptions::default() };
        assert!(plan.clone().check(&with(peak)).is_ok(), "{}", plan.name());
        if let Some(less) = peak.checked_sub(1) {
            let error = plan.clone().check(&with(less)).unwrap_err();
            assert!(matches!(*error, CheckError::ReceivedCap { held, .. } if held == peak), "{}: {error}", plan.name());
        }
        tried += 1;
    }
    println!("orders checked against their own peaks: {tried}");
}
