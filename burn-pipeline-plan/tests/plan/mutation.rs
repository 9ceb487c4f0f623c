//! Plans with one fault: a cell deleted, repeated, swapped or moved. The check must agree with `brute_force`, and its
//! error must name the fault.

use crate::any_schedule;
use crate::brute_force::is_legal;
use crate::check::{TRANSPORTS, under};
use burn_pipeline_plan::pass::{PassError, Placing, WaitOptions};
use burn_pipeline_plan::plan::{Action, CheckError, Plan, Task, Transport};
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::test_runner::Config;

fn check(plan: &Plan, transport: Transport) -> Result<(), CheckError> {
    plan.clone().check(&under(transport)).map(drop).map_err(|error| *error)
}

/// A plan of any schedule at a random small size, in any stage of lowering. Sizes that a schedule refuses are
/// replaced by GPipe's.
fn plans() -> impl Strategy<Value = Plan> {
    let placing = || prop_oneof![Just(Placing::Implicit), Just(Placing::AtOnce), Just(Placing::Late)];
    let waits = prop_oneof![
        Just(WaitOptions::default()),
        (placing(), placing(), placing(), placing()).prop_map(|(sends, receives, unshards, reductions)| {
            WaitOptions { sends, receives, unshards, reductions, ..WaitOptions::default() }
        })
    ];
    let form = (any::<[bool; 4]>(), waits);
    (any_schedule::plans(5, 3, 6), form).prop_map(|(mut plan, ([merge, shard, reduce, lower], waits))| {
        if merge {
            plan = plan.merge_backward();
        }
        if shard {
            plan = plan.with_unshard(2).unwrap();
        }
        if reduce {
            plan = plan.with_reduce_grad();
        }
        let plan = if lower { plan.with_transfers().unwrap() } else { plan.without_idle() };
        plan.with_waits(&waits)
    })
}

/// Picks a cell of the plan: its rank and index.
fn pick(plan: &Plan, at: usize) -> (usize, usize) {
    let cells: usize = plan.rows().iter().map(Vec::len).sum();
    let mut at = at % cells;
    for (rank, row) in plan.rows().iter().enumerate() {
        if at < row.len() {
            return (rank, at);
        }
        at -= row.len();
    }
    unreachable!("the index is below the number of cells")
}

fn edited(plan: &Plan, rank: usize, edit: impl FnOnce(&mut Vec<Action>)) -> Plan {
    let mut rows = plan.rows().to_vec();
    edit(&mut rows[rank]);
    plan.with_rows(rows)
}

/// Asserts that both checks agree on a plan under every transport. Returns the library's error under the strictest
/// one.
fn agreed(plan: &Plan) -> Result<(), CheckError> {
    let opinions = TRANSPORTS.map(|transport| {
        let ours = check(plan, transport);
        assert_eq!(
            ours.is_ok(),
            is_legal(plan, transport),
            "{transport}: {:?}\n{}",
            ours.map_err(|e| e.to_string()),
            plan.grid()
        );
        ours
    });
    // A plan that passes under a transport passes under every less strict one.
    assert!(opinions.windows(2).all(|pair| pair[0].is_err() || pair[1].is_ok()));
    let [strictest, ..] = opinions;
    if let Err(CheckError::Deadlock { cycle, .. }) = &strictest {
        assert_cycle(plan, cycle);
    }
    assert_passes(plan, &strictest);
    strictest
}

/// Passes follow every plan that passes the check, and refuse others with its error.
fn assert_passes(plan: &Plan, checked: &Result<(), CheckError>) {
    let passed = [plan.with_transfers(), plan.with_idle(), plan.with_unshard(2)];
    for error in passed.into_iter().filter_map(Result::err) {
        let unfit = matches!(error, PassError::Lowered | PassError::Vocabulary { .. });
        let found = checked.clone().map_err(|fault| PassError::Check(Box::new(fault)));
        assert!(unfit || found == Err(error.clone()), "{error}\n{}", plan.grid());
    }
}

/// Each rank of the cycle is at the step that the error names, and needs a task that the next rank has not reached.
fn assert_cycle(plan: &Plan, cycle: &[burn_pipeline_plan::plan::Waiting]) {
    assert!(!cycle.is_empty());
    for (here, next) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
        assert_eq!(plan.row(here.rank)[here.step], here.action);
        let same = |task: Task| {
            let split = task.op().gives_input_gradient() && here.needs.op().gives_input_gradient();
            (task.stage(), task.microbatch()) == (here.needs.stage(), here.needs.microbatch())
                && (task.op() == here.needs.op() || split)
        };
        let found = plan.row(next.rank).iter().position(|action| action.tasks().any(same));
        assert!(found.is_some_and(|found| found >= next.step), "{here:?} {next:?}\n{}", plan.grid());
    }
}

proptest! {
    #![proptest_config(Config { cases: 400, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_schedule_passes_in_every_form(plan in plans()) {
        assert_eq!(agreed(&plan), Ok(()), "{}", plan.name());
    }

    #[test]
    fn a_deleted_cell_is_missed(plan in plans(), at in any::<usize>()) {
        let (rank, step) = pick(&plan, at);
        let gone = plan.row(rank)[step];
        let result = agreed(&edited(&plan, rank, |row| {
            row.remove(step);
        }));
        let names = |task: Task| gone.tasks().any(|g| {
            let backward = g.op().gives_input_gradient() && task.op().gives_input_gradient();
            (g.stage(), g.microbatch()) == (task.stage(), task.microbatch()) && (g.op() == task.op() || backward)
        });
        match result {
            // A plan may have one UNSHARD or RESHARD too many, and a plan without any backward is forward-only.
            Ok(()) => assert!(gone.tasks().all(|t| !t.op().has_microbatch() || t.op().is_wait() || t.op().gives_weight_gradient() || t.op().gives_input_gradient())),
            Err(CheckError::Missing { task, .. }) => assert!(names(task), "{task} for {gone}"),
            Err(CheckError::Unmet { needs, .. }) => assert!(names(needs), "{needs} for {gone}"),
            Err(CheckError::Sharded { task, .. }) => assert!(gone.tasks().any(|g| g.stage() == task.stage())),
            Err(CheckError::UnshardedTwice { action, .. } | CheckError::UnusedUnshard { action, .. }) => {
                assert!(gone.tasks().any(|g| action.tasks().any(|a| g.stage() == a.stage())));
            }
            Err(CheckError::ReducedEarly { action, .. }) => {
                assert!(gone.tasks().any(|g| g.op().gives_weight_gradient() && action.tasks().any(|a| g.stage() == a.stage())));
            }
            Err(other) => panic!("{gone} deleted: {other}"),
        }
    }

    #[test]
    fn a_repeated_cell_is_noticed(plan in plans(), at in any::<usize>(), later in any::<usize>()) {
        let (rank, step) = pick(&plan, at);
        let action = plan.row(rank)[step];
        let to = step + 1 + later % (plan.row(rank).len() - step);
        match agreed(&edited(&plan, rank, |row| row.insert(to, action))) {
            Err(CheckError::Duplicate { step: found, first, task, .. }) => {
                // Gathering, releasing and their waits alternate, so a copy may make a later cell the surplus one.
                assert!((found, first) == (to, step) || !task.op().has_microbatch(), "{action}: {found} and {first}");
                assert!(action.tasks().any(|t| t == task));
            }
            // Gathering, its wait and releasing may be repeated if they alternate.
            other => assert!(action.tasks().all(|t| !t.op().has_microbatch()), "{action} repeated: {other:?}"),
        }
    }

    #[test]
    fn swapped_cells_are_refused_unless_the_order_is_still_legal(plan in plans(), at in any::<usize>(), with in any::<usize>(), near in any::<bool>()) {
        let (rank, step) = pick(&plan, at);
        let length = plan.row(rank).len();
        let other = if near { (step + 1) % length } else { with % length };
        match agreed(&edited(&plan, rank, |row| row.swap(step, other))) {
            Ok(())
            | Err(
                CheckError::Unmet { .. }
                | CheckError::ChannelOrder { .. }
                | CheckError::Deadlock { .. }
                | CheckError::Sharded { .. }
                | CheckError::UnshardedTwice { .. }
                | CheckError::UnusedUnshard { .. }
                | CheckError::ReducedEarly { .. }
                | CheckError::LateWait { .. },
            ) => {}
            // If a stage is gathered twice, the wait of one comes before the start of the other.
            Err(CheckError::Duplicate { task, .. }) if !task.op().has_microbatch() => {}
            Err(error) => panic!("swapped: {error}"),
        }
    }

    #[test]
    fn a_cell_on_another_rank_belongs_where_it_was(plan in plans(), at in any::<usize>(), to in any::<usize>()) {
        let (rank, step) = pick(&plan, at);
        if plan.ranks() > 1 {
            let other = (rank + 1 + to % (plan.ranks() - 1)) % plan.ranks();
            let action = plan.row(rank)[step];
            let removed = edited(&plan, rank, |row| {
            row.remove(step);
        });
            let moved = edited(&removed, other, |row| row.insert(to % (row.len() + 1), action));
            match agreed(&moved) {
                Err(CheckError::WrongRank { placed, .. }) => assert_eq!(placed, rank),
                // The rank that lost it may be checked first.
                other => assert!(other.is_err(), "{action} moved"),
            }
        }
    }

    #[test]
    fn a_cell_replaced_by_any_task_is_judged_alike(
        plan in plans(),
        at in any::<usize>(),
        (replica, stage, microbatch) in (0..2usize, 0..8usize, 0..8usize),
        op in prop_oneof![Just(0usize), 1..17usize],
    ) {
        use burn_pipeline_plan::plan::{Op, StageId};
        let (rank, step) = pick(&plan, at);
        let stage = StageId::in_route(replica, stage);
        let op = Op::ALL[op];
        let task = if op.has_microbatch() { Task::new(stage, op, microbatch) } else { Task::whole_stage(stage, op) };
        let _ = agreed(&edited(&plan, rank, |row| row[step] = task.into()));
    }

    #[test]
    fn shuffled_rows_are_judged_alike(plan in plans(), seed in any::<u64>(), swaps in 1..40usize) {
        let mut rows = plan.rows().to_vec();
        let mut state = seed;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for _ in 0..swaps {
            let rank = next(rows.len());
            if rows[rank].len() > 1 {
                let at = next(rows[rank].len() - 1);
                rows[rank].swap(at, at + 1);
            }
        }
        let _ = agreed(&plan.with_rows(rows));
    }
}
