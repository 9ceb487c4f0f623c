//! What one candidate costs: lowered, checked, simulated, with recomputation where that is asked for.

use super::error::DropReason;
use super::ground::Ground;
use super::passes::PassChoice;
use super::request::{Recompute, Request};
use crate::cost::{Profile, StageCost};
use crate::plan::{CheckOptions, CheckedPlan, Plan};
use crate::simulate::{Simulation, simulate};

/// A candidate that fits, with everything that was made for it.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    pub(super) plan: CheckedPlan,
    pub(super) profile: Profile,
    pub(super) simulation: Simulation,
    /// Seconds of the step: the simulation's, and the reduction of replicas.
    pub(super) seconds: f64,
    /// Stages that recompute.
    pub(super) recomputing: Vec<usize>,
}

/// Prices a plan on its ground; none where the choice would repeat an earlier one.
pub(super) fn price(
    request: &Request,
    ground: &Ground,
    plan: &Plan,
    recompute: Recompute,
    passes: PassChoice,
) -> Option<Result<Priced, DropReason>> {
    let stages = plan.stages();
    match (recompute, request.cap) {
        (Recompute::Never, _) => run(request, ground, plan, Vec::new(), passes).map(|run| within(request, run)),
        (Recompute::Everywhere, _) => {
            run(request, ground, plan, (0..stages).collect(), passes).map(|run| within(request, run))
        }
        (Recompute::WhereNeeded, None) => None,
        (Recompute::WhereNeeded, Some(cap)) => {
            let mut recomputing = Vec::new();
            loop {
                let priced = match run(request, ground, plan, recomputing.clone(), passes)? {
                    Ok(priced) => priced,
                    Err(reason) => return Some(Err(reason)),
                };
                let before = recomputing.len();
                recomputing.extend(over(&priced, cap));
                recomputing.sort_unstable();
                recomputing.dedup();
                match recomputing.len() {
                    // None or all of them are other choices.
                    0 => return None,
                    all if all == stages => return None,
                    same if same == before => return Some(within(request, Ok(priced))),
                    _ => {}
                }
            }
        }
    }
}

/// Prices a plan with these stages recomputing; none where the pass changes nothing.
pub(super) fn price_as(
    request: &Request,
    ground: &Ground,
    plan: &Plan,
    recomputing: Vec<usize>,
    passes: PassChoice,
) -> Option<Result<Priced, DropReason>> {
    Some(within(request, run(request, ground, plan, recomputing, passes)?))
}

/// The stages of ranks above the cap.
fn over(priced: &Priced, cap: f64) -> Vec<usize> {
    let full = priced.simulation.ranks.iter().enumerate().filter(|(_, report)| report.peak_bytes > cap);
    let placement = priced.plan.plan().placement();
    full.flat_map(|(rank, _)| placement.stages_of(rank)).map(|stage| stage.index()).collect()
}

/// Drops what is above the cap.
fn within(request: &Request, priced: Result<Priced, DropReason>) -> Result<Priced, DropReason> {
    let priced = priced?;
    let (peak, makespan) = (priced.simulation.peak_bytes(), priced.seconds);
    match request.cap {
        Some(cap) if peak > cap => Err(DropReason::OverCap { peak, cap, makespan }),
        _ => Ok(priced),
    }
}

/// Lowers, checks and simulates a plan with these stages recomputing.
fn run(
    request: &Request,
    ground: &Ground,
    plan: &Plan,
    recomputing: Vec<usize>,
    passes: PassChoice,
) -> Option<Result<Priced, DropReason>> {
    let profile = match recomputed(request, ground, &recomputing) {
        Ok(profile) => profile,
        Err(reason) => return Some(Err(reason)),
    };
    let plan = match plan.clone().with_skips(profile.skips().to_vec()) {
        Ok(plan) => plan,
        Err(error) => return Some(Err(error.into())),
    };
    let lowered = match passes.lower(&plan, &profile, request.simulate)? {
        Ok(lowered) => lowered,
        Err(reason) => return Some(Err(reason)),
    };
    Some(finish(request, ground, lowered, profile, recomputing))
}

/// Checks and simulates a lowered plan.
fn finish(
    request: &Request,
    ground: &Ground,
    lowered: Plan,
    profile: Profile,
    recomputing: Vec<usize>,
) -> Result<Priced, DropReason> {
    let check = CheckOptions { transport: request.simulate.transport, ..CheckOptions::default() };
    let plan = lowered.check(&check)?;
    let simulation = simulate(plan.plan(), &profile, &request.simulate)?;
    let seconds = simulation.makespan + ground.reduction;
    Ok(Priced { plan, profile, simulation, seconds, recomputing })
}

/// The ground's profile with these stages recomputing: each keeps its input alone.
pub(super) fn recomputed(request: &Request, ground: &Ground, recomputing: &[usize]) -> Result<Profile, DropReason> {
    if recomputing.is_empty() {
        return Ok(ground.profile.clone());
    }
    let stages = ground.profile.stages();
    let stage = |(index, stage): (usize, &StageCost)| {
        let before = index.checked_sub(1).map(|before| stages[before].message_bytes);
        let past = ground.profile.skips().iter().filter(|edge| edge.to == index);
        let past: f64 = past.map(|edge| stages[edge.from].skip_bytes).sum();
        let input = before.unwrap_or(request.workloads[ground.workload].input_bytes) + past;
        if recomputing.contains(&index) { stage.recomputing(input) } else { *stage }
    };
    let stages = stages.iter().enumerate().map(stage).collect();
    Ok(ground.profile.with_stages(stages)?)
}
