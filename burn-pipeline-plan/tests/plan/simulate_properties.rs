//! Properties of every simulation over random schedules, sizes and costs.

use burn_pipeline_plan::cost::{LinkCost, LinkCosts, Profile, StageCost};
use burn_pipeline_plan::plan::{Action, CheckError, CheckOptions, Op, Plan, Task, Transport};
use burn_pipeline_plan::schedule::{Chunks, Size, all};
use burn_pipeline_plan::simulate::{Bounds, SimulateError, SimulateOptions, Simulation, simulate};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::collections::HashMap;

/// A schedule's plan at a random size that it accepts.
fn plans(ranks: usize, microbatches: usize) -> impl Strategy<Value = Plan> {
    let size = (0..all().len(), 1..=ranks, 1..=4usize, 1..=microbatches);
    size.prop_filter_map("the schedule does not accept the size", |(schedule, ranks, chunks, microbatches)| {
        let schedule = &all()[schedule];
        let chunks = if let Chunks::Exactly(n) = schedule.info().chunks { n } else { chunks };
        schedule.build(Size { ranks, chunks, microbatches }).ok()
    })
}

fn stage() -> impl Strategy<Value = StageCost> {
    let amount = || 0.0..4.0f64;
    (amount(), amount(), amount(), prop::option::of(amount()), prop::option::of(amount()), amount()).prop_map(
        |(forward, input, weight, backward, overlap, message_bytes)| StageCost {
            forward,
            input: Some(input),
            weight: Some(weight),
            backward,
            overlap,
            message_bytes,
            activation_bytes: 2.0,
            freed_at_input_bytes: 0.5,
            unshard: 0.25,
            unsharded_bytes: 1.25,
            reduce_grad: 0.75,
            ..StageCost::default()
        },
    )
}

/// A plan with different costs for every stage, and links.
pub(crate) fn priced(ranks: usize, microbatches: usize) -> impl Strategy<Value = (Plan, Profile)> {
    plans(ranks, microbatches).prop_flat_map(|plan| {
        let stages = prop::collection::vec(stage(), plan.stages());
        let link = (0.0..1.0f64, prop::option::of(0.5..4.0f64));
        (Just(plan), stages, link).prop_map(|(plan, stages, (latency, bandwidth))| {
            let links = LinkCosts { default: LinkCost { latency, bandwidth }, between: Vec::new() };
            (plan, Profile::new(stages, links).unwrap())
        })
    })
}

pub(crate) fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Rendezvous), (0..4usize).prop_map(Transport::Buffered), Just(Transport::Unbounded)]
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

/// Start and end of every task if values cross in no time and fused pairs run one after the other. Found by passing
/// over all rows until nothing changes: no queue, no clock, no state but the ends.
pub(crate) fn longest_paths(plan: &Plan, profile: &Profile) -> HashMap<Task, f64> {
    let seconds = |task: Task| {
        let stage = profile.stages()[task.stage().index()];
        match task.op() {
            Op::Forward => stage.forward,
            Op::BackwardInput => stage.input_backward(),
            Op::BackwardWeight => stage.weight_backward(),
            _ => stage.full_backward(),
        }
    };
    let mut ends: HashMap<Task, f64> = HashMap::new();
    loop {
        let mut moved = false;
        for rank in 0..plan.ranks() {
            let mut free = 0.0;
            for task in plan.tasks(rank) {
                let (stage, m) = (task.stage(), task.microbatch().unwrap());
                let end = |op, stage| ends.get(&Task::new(stage, op, m)).copied().unwrap_or(0.0);
                let backward = |stage| end(Op::BackwardInput, stage).max(end(Op::Backward, stage));
                let alone = plan.first_trained() > 0 && stage.index() == plan.first_trained();
                let input = match task.op() {
                    Op::Forward => stage.previous().map_or(0.0, |s| end(Op::Forward, s)),
                    Op::BackwardWeight if !alone => backward(stage),
                    _ => plan.placement().next(stage).map_or(0.0, backward),
                };
                free = input.max(free) + seconds(task);
                moved |= ends.insert(task, free) != Some(free);
            }
        }
        if !moved {
            return ends;
        }
    }
}

/// Every rank's time is accounted for, nothing overlaps, and no order of actions could have been faster.
fn sound(plan: &Plan, profile: &Profile, step: &Simulation) -> Result<(), TestCaseError> {
    let bounds = Bounds::new(plan, profile).unwrap();
    prop_assert!(step.makespan >= bounds.makespan() * (1.0 - 1e-9), "{} < {bounds:?}", step.makespan);
    prop_assert!(step.span <= step.makespan * (1.0 + 1e-9));
    for (rank, report) in step.ranks.iter().enumerate() {
        let idle: f64 = report.idle.iter().map(|i| i.end - i.start).sum();
        prop_assert!(near(idle + report.busy + report.occupied, step.makespan), "rank {rank}: {report:?}");
        let computing = step.events.iter().filter(|e| e.rank == rank && e.action.tasks().any(|t| t.op().is_compute()));
        let events: Vec<_> = computing.collect();
        prop_assert!(events.windows(2).all(|pair| pair[0].end <= pair[1].start));
        prop_assert!(report.memory.iter().all(|point| point.total() > -1e-9));
        let last = report.memory.last().map_or(0.0, |point| point.activations + point.receive_buffers);
        prop_assert!(last.abs() < 1e-6, "rank {rank} keeps {last} bytes");
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_simulation_never_beats_its_bounds((plan, profile) in priced(16, 64)) {
        sound(&plan, &profile, &simulate(&plan, &profile, &SimulateOptions::default()).unwrap())?;
    }

    #[test]
    fn without_transfer_times_it_is_the_longest_path((plan, profile) in priced(10, 32)) {
        let strip = |cost: &StageCost| StageCost { overlap: None, message_bytes: 0.0, ..*cost };
        let stages: Vec<StageCost> = profile.stages().iter().map(strip).collect();
        let profile = Profile::new(stages, LinkCosts::default()).unwrap();
        let step = simulate(&plan, &profile, &SimulateOptions::default()).unwrap();
        let ends = longest_paths(&plan, &profile);
        prop_assert_eq!(step.events.len(), ends.len());
        for event in &step.events {
            let task = event.action.tasks().next().unwrap();
            prop_assert!(near(event.end, ends[&task]), "{task} ends at {} and not at {}", event.end, ends[&task]);
        }
    }

    #[test]
    fn a_checked_plan_never_deadlocks(
        (plan, profile) in priced(8, 24),
        transport in transport(),
        overlap in any::<bool>(),
        shard in any::<bool>(),
    ) {
        let plan = if shard { plan.with_unshard(3).unwrap() } else { plan };
        let lowered = plan.with_transfers().unwrap();
        let checked = lowered.check(&CheckOptions { transport, ..CheckOptions::default() }).unwrap();
        let step = simulate(checked.plan(), &profile, &SimulateOptions { transport, overlap }).unwrap();
        sound(checked.plan(), &profile, &step)?;
    }

    #[test]
    fn written_transfers_that_nothing_holds_back_cost_what_unwritten_ones_do((plan, profile) in priced(8, 24)) {
        // A fused pair that runs one after the other has its forward's result half-way, but its sends are written
        // after the pair. So the pairs have their own cost here. A bandwidth would let messages queue.
        let links = LinkCosts { default: LinkCost { bandwidth: None, ..profile.links().default }, between: Vec::new() };
        let fuse = |cost: &StageCost| StageCost { overlap: Some(cost.overlap.unwrap_or(3.0)), ..*cost };
        let profile = Profile::new(profile.stages().iter().map(fuse).collect(), links).unwrap();
        let options = SimulateOptions { transport: Transport::Unbounded, overlap: true };
        let lowered = simulate(&plan.with_transfers().unwrap(), &profile, &options).unwrap();
        let unlowered = simulate(&plan, &profile, &options).unwrap();
        prop_assert!(near(lowered.makespan, unlowered.makespan), "{} and {}", lowered.makespan, unlowered.makespan);
        for (a, b) in lowered.ranks.iter().zip(&unlowered.ranks) {
            prop_assert!(near(a.end, b.end) && near(a.start, b.start) && a.peak_activations == b.peak_activations);
        }
    }

    #[test]
    fn transfers_that_take_no_time_change_nothing((plan, profile) in priced(8, 24), transport in transport()) {
        let fuse = |cost: &StageCost| StageCost { overlap: Some(cost.overlap.unwrap_or(3.0)), ..*cost };
        let profile = Profile::new(profile.stages().iter().map(fuse).collect(), LinkCosts::default()).unwrap();
        let options = SimulateOptions { transport, overlap: true };
        let lowered = simulate(&plan.with_transfers().unwrap(), &profile, &options).unwrap();
        let unlowered = simulate(&plan, &profile, &options).unwrap();
        prop_assert!(near(lowered.makespan, unlowered.makespan), "{} and {}", lowered.makespan, unlowered.makespan);
    }

    #[test]
    fn what_check_refuses_as_a_deadlock_deadlocks_and_what_it_accepts_does_not(
        (plan, profile) in priced(5, 8),
        transport in transport(),
        (lower, overlap) in any::<(bool, bool)>(),
        swaps in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index)>(), 1..4),
    ) {
        let plan = if lower { plan.with_transfers().unwrap() } else { plan };
        let mut rows: Vec<Vec<Action>> = plan.rows().to_vec();
        for (rank, a, b) in swaps {
            let row = rank.index(rows.len());
            let row = &mut rows[row];
            let (a, b) = (a.index(row.len()), b.index(row.len()));
            // Mostly neighbours, so that many plans pass the simpler checks.
            let neighbour = (a + 1).min(row.len() - 1);
            row.swap(a, if b % 4 == 0 { b } else { neighbour });
        }
        let plan = plan.with_rows(rows);
        let verdict = plan.clone().check(&CheckOptions { transport, ..CheckOptions::default() });
        let outcome = simulate(&plan, &profile, &SimulateOptions { transport, overlap });
        match verdict {
            Ok(_) => prop_assert!(outcome.is_ok(), "{outcome:?}"),
            Err(error) if matches!(*error, CheckError::Deadlock { .. }) => {
                prop_assert!(matches!(outcome, Err(SimulateError::Deadlock { .. })), "{error}\n{outcome:?}");
            }
            Err(_) => {}
        }
    }
}
