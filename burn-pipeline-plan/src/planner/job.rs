//! One candidate to price: how its plan is made, on which layout, with which recomputation and passes.
//!
//! The synthesis does not count messages in flight as the simulation of the lowered plan does, so its plan may be above
//! the cap. Under a cap, a plan is synthesised in three steps:
//!
//! 1. The synthesis runs with little effort. If the simulated plan is above the cap, the cap is lowered by the excess
//!    and the synthesis runs again, a few times at most.
//! 2. The synthesis runs with full effort under the lowered cap.
//! 3. The fastest plan that fits is kept.

use super::error::{DropReason, PlannerError};
use super::layout::{Layout, describe};
use super::passes::PassChoice;
use super::price::{Priced, price, price_recomputing, recomputed};
use super::report::{Candidate, Strategy};
use super::request::{Recompute, Request};
use super::schedules::schedules;
use super::synthesis::Synthesis;
use crate::plan::Plan;
use crate::schedule::Size;

/// The quick synthesis tries this many times fewer list schedules.
const QUICKER: usize = 16;

/// How often the quick synthesis runs while it lowers the cap.
const TIGHTENINGS: usize = 3;

/// How the plan of a job is made.
#[derive(Clone, Debug)]
pub(super) enum Maker {
    /// By the schedule at this index of the layout's [`schedules`].
    Schedule(usize),
    /// By the synthesis, from these plans, with these stages recomputing.
    Synthesis { effort: Synthesis, starts: Vec<Plan>, recomputing: Vec<usize> },
    /// The plan exists already.
    Given(Plan, Strategy),
    /// The plan exists already, and was made with these stages recomputing.
    Made(Plan, Strategy, Vec<usize>),
}

pub(super) struct Job<'a> {
    pub(super) layout: &'a Layout,
    pub(super) maker: Maker,
    pub(super) recompute: Recompute,
    pub(super) passes: PassChoice,
}

/// The synthesis with little effort: fewer list schedules, none of them improved.
pub(super) fn quick(effort: Synthesis) -> Synthesis {
    Synthesis { starts: 0, listing: effort.listing / QUICKER, ..effort }
}

/// The plan of a schedule for a layout.
pub(super) fn build(request: &Request, layout: &Layout, schedule: usize) -> Result<Plan, DropReason> {
    let microbatches = request.workloads[layout.workload].microbatches;
    let (_, schedule) = schedules(request, layout).swap_remove(schedule);
    Ok(schedule.build(Size::new(request.ranks, microbatches).with_chunks(layout.shape.chunks))?)
}

impl Job<'_> {
    /// Makes the plan and prices it. Returns `None` if that would repeat an earlier job.
    pub(super) fn run(&self, request: &Request) -> Result<Option<(Plan, Priced)>, DropReason> {
        request.workloads[self.layout.workload].check_length(self.layout.placement.stages())?;
        let plan = match &self.maker {
            Maker::Synthesis { effort, starts, recomputing } => {
                return self.synthesise(request, *effort, starts, recomputing).map(Some);
            }
            Maker::Given(plan, _) | Maker::Made(plan, ..) => plan.clone(),
            Maker::Schedule(index) => build(request, self.layout, *index)?,
        };
        let priced = match &self.maker {
            Maker::Made(_, _, recomputing) => {
                price_recomputing(request, self.layout, &plan, recomputing.clone(), self.passes)?
            }
            _ => price(request, self.layout, &plan, self.recompute, self.passes)?,
        };
        Ok(priced.map(|priced| (plan, priced)))
    }

    /// Synthesises a schedule for the layout and prices it; see the module documentation for the steps.
    fn synthesise(
        &self,
        request: &Request,
        effort: Synthesis,
        starts: &[Plan],
        recomputing: &[usize],
    ) -> Result<(Plan, Priced), DropReason> {
        let layout = self.layout;
        let microbatches = request.workloads[layout.workload].microbatches;
        let counts = match layout.placement.routes() {
            1 => vec![microbatches],
            _ => vec![microbatches.div_ceil(2), microbatches / 2],
        };
        let profile = recomputed(request, layout, recomputing)?;
        let nothing_fits = || DropReason::from(PlannerError::NoOrderFits { cap: request.cap.unwrap_or(f64::INFINITY) });
        let attempt = |effort: Synthesis, cap: Option<f64>| {
            let made = Synthesis { cap, ..effort }.build(&profile, &layout.placement, &counts, starts)?;
            let priced = price_recomputing(request, layout, &made.plan, recomputing.to_vec(), PassChoice::AsBuilt)?;
            // `AsBuilt` is the first choice of passes, so it never repeats another one.
            Ok((made.plan, priced.ok_or_else(nothing_fits)?))
        };
        let efforts = match effort.starts {
            0 => vec![(effort, 2)],
            _ => vec![(quick(effort), TIGHTENINGS), (effort, 2)],
        };
        let (mut cap, mut best, mut refused) = (request.cap, None::<(Plan, Priced)>, None);
        for (effort, times) in efforts {
            for _ in 0..times {
                match attempt(effort, cap) {
                    Ok(new) => {
                        let faster = best.as_ref().is_none_or(|(_, old)| new.1.seconds < old.seconds);
                        best = if faster { Some(new) } else { best };
                        break;
                    }
                    Err(DropReason::OverCap { peak, cap: limit, makespan }) => {
                        cap = cap.map(|cap| cap - (peak - limit) * (1.0 + 1e-9));
                        refused.get_or_insert(DropReason::OverCap { peak, cap: limit, makespan });
                    }
                    Err(reason) => {
                        refused.get_or_insert(reason);
                        break;
                    }
                }
            }
        }
        best.ok_or_else(|| refused.unwrap_or_else(nothing_fits))
    }

    fn strategy(&self, request: &Request) -> Strategy {
        match &self.maker {
            Maker::Given(_, strategy) | Maker::Made(_, strategy, _) => strategy.clone(),
            Maker::Schedule(index) => Strategy::Schedule(schedules(request, self.layout).swap_remove(*index).0),
            Maker::Synthesis { .. } => Strategy::Synthesised,
        }
    }

    pub(super) fn candidate(&self, request: &Request, plan: &Plan, priced: &Priced) -> Candidate {
        Candidate {
            strategy: self.strategy(request),
            placement: plan.placement().kind(),
            chunks: self.layout.shape.chunks,
            cut: self.layout.cut,
            partition: self.layout.partition.clone(),
            microbatches: request.workloads[self.layout.workload].microbatches,
            vocabulary_parallel: priced.profile.vocabulary().is_some(),
            members: 1,
            groups: Vec::new(),
            recomputing: priced.recomputing.clone(),
            passes: self.passes,
            seconds: priced.seconds,
            peak_bytes: priced.simulation.peak_bytes(),
            pareto: false,
        }
    }

    /// Describes the job, for a candidate that is dropped.
    pub(super) fn describe(&self, request: &Request) -> String {
        let layout = describe(request, self.layout.workload, self.layout.shape, self.layout.cut);
        let merged = if self.passes == PassChoice::AsBuilt { String::new() } else { format!(", {}", self.passes) };
        let recompute = match self.recompute {
            Recompute::Never => String::new(),
            other => format!(", recomputing {other}"),
        };
        format!("{}, {layout}{recompute}{merged}", self.strategy(request))
    }
}
