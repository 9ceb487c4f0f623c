//! Properties of every overlap pass over random schedules, sizes, costs, waits and budgets. With debug assertions, the
//! iterative passes also compare the memory that they updated swap by swap with a recount of each row.

use crate::brute_force::{is_legal, one_order};
use crate::simulate_properties::{priced, transport};
use burn_pipeline_plan::cost::Profile;
use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass, Overlapped, StartReport};
use burn_pipeline_plan::pass::{Placing, WaitOptions};
use burn_pipeline_plan::plan::{Action, CheckOptions, Plan};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestCaseError};
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::num::NonZeroUsize;

fn waits() -> impl Strategy<Value = WaitOptions> {
    let placing = || prop_oneof![1 => Just(Placing::Implicit), 3 => Just(Placing::AtOnce), 3 => Just(Placing::Late)];
    (placing(), placing(), placing(), placing(), 0..4usize).prop_map(
        |(sends, receives, unshards, reductions, outstanding)| WaitOptions {
            sends,
            receives,
            unshards,
            reductions,
            outstanding: NonZeroUsize::new(outstanding),
            ..WaitOptions::default()
        },
    )
}

/// A lowered plan with waits, and costs for it.
pub(crate) fn lowered() -> impl Strategy<Value = (Plan, Profile)> {
    (priced(5, 8), any::<[bool; 3]>(), waits()).prop_map(|((plan, profile), [merge, shard, reduce], waits)| {
        let plan = if merge { plan.merge_backward() } else { plan };
        let plan = if shard { plan.with_unshard(2).unwrap() } else { plan };
        let plan = if reduce { plan.with_reduce_grad() } else { plan };
        (plan.with_transfers().unwrap().with_waits(&waits), profile)
    })
}

pub(crate) fn options() -> impl Strategy<Value = OverlapOptions> {
    let bytes = prop_oneof![Just(0.0), 0.0..20.0f64];
    let reach = prop_oneof![0..6usize, Just(usize::MAX)];
    let margin = prop_oneof![Just(0.0), 0.0..2.0f64];
    let share = prop_oneof![Just(0.0), 0.0..0.5f64];
    (transport(), any::<[bool; 2]>(), bytes, share, reach, 0..6usize, margin).prop_map(
        |(transport, [overlap, estimates], extra_bytes, extra_share, reach, group, margin)| OverlapOptions {
            simulate: SimulateOptions { transport, overlap },
            extra_bytes,
            extra_share,
            reach,
            group,
            margin,
            estimates,
        },
    )
}

/// Asserts that the result is legal, no slower, within the budget, and has the same cells.
fn sound(before: &Plan, profile: &Profile, options: &OverlapOptions, after: &Overlapped) -> Result<(), TestCaseError> {
    let transport = options.simulate.transport;
    after.plan.clone().check(&CheckOptions { transport, ..CheckOptions::default() }).unwrap();
    prop_assert!(is_legal(&after.plan, transport), "{}", after.plan.grid());
    let (old, new) = (
        simulate(before, profile, &options.simulate).unwrap(),
        simulate(&after.plan, profile, &options.simulate).unwrap(),
    );
    prop_assert!(new.makespan <= old.makespan * (1.0 + 1e-6), "{} > {}", new.makespan, old.makespan);
    for (old, new) in old.ranks.iter().zip(&new.ranks) {
        let most = old.peak_bytes * (1.0 + options.extra_share) + options.extra_bytes;
        prop_assert!(new.peak_bytes <= most * (1.0 + 1e-6) + 1e-6, "{} > {most}", new.peak_bytes);
    }
    for report in &after.reports {
        // By construction, not for lack of a better plan.
        prop_assert!(report.kept.as_ref().is_none_or(|kept| !kept.contains("was refused")), "{:?}", report.kept);
        prop_assert!(report.makespan_after <= report.makespan_before * (1.0 + 1e-6));
        for start in &report.starts {
            // The computations named as hiding a start take at least as long as the hidden part, and each is needed.
            let named = start.hidden_by.iter().map(|(_, seconds)| seconds).sum::<f64>();
            let last = start.hidden_by.last().map_or(0.0, |(_, seconds)| *seconds);
            prop_assert!(named > start.hidden - 1e-6 || start.hidden_by.len() == StartReport::NAMED, "{start:?}");
            prop_assert!(named - last <= start.communication + 1e-6 && start.along.len() <= options.group, "{start:?}");
        }
        // One line a start: its seconds are hidden or exposed.
        for line in report.to_string().lines().filter(|line| line.contains("SEND_") || line.contains("RECV_")) {
            let cells: Vec<f64> = line.split_whitespace().skip(2).take(4).map_while(|cell| cell.parse().ok()).collect();
            let [takes, hidden, before, after] = cells[..] else { continue };
            prop_assert!(hidden >= 0.0 && before >= 0.0 && (hidden + after - takes).abs() < 2e-4, "{line}");
        }
    }
    Ok(())
}

fn sorted(plan: &Plan) -> Vec<Vec<Action>> {
    let mut rows: Vec<Vec<Action>> =
        plan.rows().iter().map(|row| row.iter().copied().filter(|a| !a.is_idle()).collect()).collect();
    rows.iter_mut().for_each(|row| row.sort());
    rows
}

proptest! {
    #![proptest_config(Config { cases: 200, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_pass_keeps_plans_legal_no_slower_and_within_the_budget(
        (plan, profile) in lowered(),
        options in options(),
        pass in 0..OverlapPass::ALL.len(),
    ) {
        let after = plan.run_passes(&profile, &[OverlapPass::ALL[pass]], &options).unwrap();
        sound(&plan, &profile, &options, &after)?;
        prop_assert_eq!(sorted(&after.plan), sorted(&plan));
        prop_assert_eq!(&plan.run_passes(&profile, &[OverlapPass::ALL[pass]], &options).unwrap(), &after);
    }

    #[test]
    fn all_of_them_together_do_too((plan, profile) in lowered(), options in options()) {
        let after = plan.overlap(&profile, &OverlapPass::ALL, &options).unwrap();
        sound(&plan, &profile, &options, &after)?;
        prop_assert_eq!(after.reports.len(), OverlapPass::ALL.len());
        // All ranks follow one order of messages, so no place of a wait could make it deadlock.
        prop_assert!(one_order(&after.plan).is_some());
    }

    #[test]
    fn without_a_bound_a_greedy_pass_has_nothing_left_to_do(
        (plan, profile) in lowered(),
        pass in 0..4usize,
        transport in transport(),
    ) {
        // No costs: no transfer takes time, and memory is unlimited.
        let simulate = SimulateOptions { transport, overlap: true };
        let options = OverlapOptions { simulate, extra_bytes: 1e9, reach: usize::MAX, ..OverlapOptions::default() };
        let pass = OverlapPass::ALL[pass];
        let once = plan.run_passes(&profile, &[pass], &options).unwrap();
        if once.reports[0].kept.is_none() && once.reports[0].reach == usize::MAX {
            let twice = once.plan.run_passes(&profile, &[pass], &options).unwrap();
            prop_assert_eq!(twice.plan, once.plan);
        }
    }
}
