//! The price of one candidate: its plan is lowered, checked and simulated with the requested recomputation.
//!
//! A candidate that would repeat an earlier one has no price: functions here return `Ok(None)`.

use super::error::DropReason;
use super::layout::Layout;
use super::passes::PassChoice;
use super::request::{Recompute, Request};
use crate::cost::{Profile, StageCost};
use crate::pass::overlap::{OverlapOptions, PassReport};
use crate::plan::{CheckOptions, CheckedPlan, Plan};
use crate::simulate::{Simulation, simulate};

/// A candidate's plan as it would run, with costs and simulation.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    pub(super) plan: CheckedPlan,
    pub(super) profile: Profile,
    pub(super) simulation: Simulation,
    /// Seconds of the step: the simulation's, plus the reduction over replicas.
    pub(super) seconds: f64,
    pub(super) recomputing: Vec<usize>,
    pub(super) overlap: Vec<PassReport>,
}

/// Prices a plan on its layout, with this choice of recomputation and passes.
pub(super) fn price(
    request: &Request,
    layout: &Layout,
    plan: &Plan,
    recompute: Recompute,
    passes: PassChoice,
) -> Result<Option<Priced>, DropReason> {
    let stages = plan.stages();
    let cap = match (recompute, request.cap) {
        (Recompute::Never, _) => return price_recomputing(request, layout, plan, Vec::new(), passes),
        (Recompute::Everywhere, _) => {
            return price_recomputing(request, layout, plan, (0..stages).collect(), passes);
        }
        (Recompute::WhereNeeded, None) => return Ok(None),
        (Recompute::WhereNeeded, Some(cap)) => cap,
    };
    // Stages of ranks above the cap recompute. That changes times, and so memory elsewhere. Hence the loop, until no
    // rank above the cap has stages left to recompute.
    let mut recomputing = Vec::new();
    loop {
        let Some(priced) = run(request, layout, plan, recomputing.clone(), passes)? else { return Ok(None) };
        let before = recomputing.len();
        recomputing.extend(stages_over(&priced, cap));
        recomputing.sort_unstable();
        recomputing.dedup();
        match recomputing.len() {
            // No stages and all stages are the other two choices.
            0 => return Ok(None),
            all if all == stages => return Ok(None),
            same if same == before => return within_cap(request, priced).map(Some),
            _ => {}
        }
    }
}

/// Prices a plan with these stages recomputing.
pub(super) fn price_recomputing(
    request: &Request,
    layout: &Layout,
    plan: &Plan,
    recomputing: Vec<usize>,
    passes: PassChoice,
) -> Result<Option<Priced>, DropReason> {
    run(request, layout, plan, recomputing, passes)?.map(|priced| within_cap(request, priced)).transpose()
}

/// The stages of the ranks above the cap.
fn stages_over(priced: &Priced, cap: f64) -> Vec<usize> {
    let full = priced.simulation.ranks.iter().enumerate().filter(|(_, report)| report.peak_bytes > cap);
    let placement = priced.plan.plan().placement();
    full.flat_map(|(rank, _)| placement.stages_of(rank)).map(|stage| stage.index()).collect()
}

/// Returns the candidate, or an error if it is above the cap.
fn within_cap(request: &Request, priced: Priced) -> Result<Priced, DropReason> {
    let (peak, makespan) = (priced.simulation.peak_bytes(), priced.seconds);
    match request.cap {
        Some(cap) if peak > cap => Err(DropReason::OverCap { peak, cap, makespan }),
        _ => Ok(priced),
    }
}

/// Lowers, checks and simulates a plan with these stages recomputing. Ignores the cap.
fn run(
    request: &Request,
    layout: &Layout,
    plan: &Plan,
    recomputing: Vec<usize>,
    passes: PassChoice,
) -> Result<Option<Priced>, DropReason> {
    let profile = recomputed(request, layout, &recomputing)?;
    let plan = plan.clone().with_skips(profile.skips().to_vec())?;
    let options = OverlapOptions { simulate: request.simulate, ..request.overlap };
    let lowered = passes.lower(&plan, &profile, (&request.overlap_passes, &options))?;
    let Some(lowered) = lowered else { return Ok(None) };
    let (overlap, lowered) = (lowered.reports, lowered.plan);
    let plan = lowered.check(&CheckOptions { transport: request.simulate.transport, ..CheckOptions::default() })?;
    let simulation = simulate(plan.plan(), &profile, &request.simulate)?;
    let seconds = simulation.makespan + layout.reduction;
    Ok(Some(Priced { plan, profile, simulation, seconds, recomputing, overlap }))
}

/// The layout's profile with these stages recomputing: each keeps only its input.
pub(super) fn recomputed(request: &Request, layout: &Layout, recomputing: &[usize]) -> Result<Profile, DropReason> {
    if recomputing.is_empty() {
        return Ok(layout.profile.clone());
    }
    let stages = layout.profile.stages();
    let stage = |(index, stage): (usize, &StageCost)| {
        let before = index.checked_sub(1).map(|before| stages[before].message_bytes);
        let past = layout.profile.skips().iter().filter(|edge| edge.to == index);
        let past: f64 = past.map(|edge| stages[edge.from].skip_bytes).sum();
        let input = before.unwrap_or(request.workloads[layout.workload].input_bytes) + past;
        // A stage before the first one that trains has no backward that could recompute.
        let recomputes = recomputing.contains(&index) && index >= layout.profile.first_trained();
        if recomputes { stage.recomputing(input) } else { *stage }
    };
    let stages = stages.iter().enumerate().map(stage).collect();
    Ok(layout.profile.with_stages(stages)?)
}
