//! Causes of idle time found in events alone, compared with the simulator's causes on its own track, and by hand.

use crate::any_schedule::plans;
use burn_pipeline_plan::cost::{Profile, UniformCosts};
use burn_pipeline_plan::plan::{Op, Plan, Task};
use burn_pipeline_plan::simulate::{IdleCause, IdlePeriod, SimulateOptions, Simulation, idle_periods, simulate};
use burn_pipeline_plan::trace::{Event, Track};
use proptest::prelude::{ProptestConfig, Strategy, prop_assert, proptest};

fn simulated(plan: &Plan, transfer: f64) -> Simulation {
    let costs = UniformCosts::new(1.0, 1.25, 0.75).with_transfer(transfer);
    simulate(plan, &Profile::uniform(plan.placement(), costs).unwrap(), &SimulateOptions::default()).unwrap()
}

fn seconds(periods: &[IdlePeriod], cause: IdleCause) -> f64 {
    periods.iter().filter(|idle| idle.cause == cause).map(|idle| idle.end - idle.start).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_simulation_s_own_track_gives_its_causes(
        plan in plans(5, 3, 9), lowered in proptest::bool::ANY,
        transfer in (0u32..40).prop_map(|n| f64::from(n) / 16.0),
        first in 0..3_usize,
    ) {
        let first = first.min(plan.placement().stages() - 1);
        let plan = if plan.is_lowered() { plan } else { plan.train_from(first).unwrap() };
        let plan = if lowered && !plan.is_lowered() { plan.with_transfers().unwrap() } else { plan };
        let step = simulated(&plan, transfer);
        for (periods, rank) in idle_periods(&step.track("measured")).iter().zip(&step.ranks) {
            for cause in IdleCause::SIMULATED {
                let (found, simulated) = (seconds(periods, cause), rank.idle_of(cause));
                prop_assert!((found - simulated).abs() < 1e-9, "{}: {cause}: {found} for {simulated}", plan.name());
            }
        }
    }
}

#[test]
fn what_no_value_and_no_transfer_explains_is_overhead() {
    let event = |rank, op, stage, start, end| Event { rank, action: Task::new(stage, op, 0).into(), start, end };
    let events = vec![
        event(0, Op::Forward, 0, 0.0, 1.0),
        event(1, Op::ReceiveForward, 1, 0.0, 1.5),
        event(1, Op::Forward, 1, 2.0, 3.0),
        event(1, Op::Backward, 1, 3.0, 5.0),
        event(0, Op::ReceiveBackward, 0, 1.0, 5.5),
        event(0, Op::Backward, 0, 6.0, 8.0),
    ];
    let found = idle_periods(&Track { name: "by hand".into(), ranks: 3, events });
    let of = |rank: usize| found[rank].iter().map(|i| (i.start, i.end, i.cause)).collect::<Vec<_>>();
    assert_eq!(
        of(0),
        [(1.0, 5.0, IdleCause::Gradient), (5.0, 5.5, IdleCause::Transfer), (5.5, 6.0, IdleCause::Overhead),]
    );
    assert_eq!(of(1), [(0.0, 2.0, IdleCause::WarmUp), (5.0, 8.0, IdleCause::CoolDown)]);
    assert_eq!(of(2), [(0.0, 8.0, IdleCause::WarmUp)]);
}
