//! One candidate to price: how its plan is made, on which layout, with which recomputation and passes.
//!
//! A synthesised plan is made under a cap in three steps:
//!
//! 1. The synthesis does not count messages on their way as the simulation of the lowered plan does. So its plan may be
//!    above the cap, and then the synthesis runs again with the cap lowered by the excess.
//! 2. How far the cap has to be lowered is first found with little effort.
//! 3. Then the full effort runs under the lowered cap. The faster of the plans that fit is kept.

use super::error::{DropReason, PlannerError};
use super::families::families;
use super::layout::Layout;
use super::passes::PassChoice;
use super::price::{Priced, price, price_recomputing, recomputed};
use super::report::{Candidate, Strategy};
use super::request::{Recompute, Request};
use super::synthesis::Synthesis;
use crate::plan::Plan;
use crate::schedule::Size;

/// The quick effort of the synthesis tries this many times fewer list schedules.
const QUICKER: usize = 16;

/// How often the quick effort lowers the cap.
const TIGHTENINGS: usize = 3;

/// How the plan of a job is made.
#[derive(Clone, Debug)]
pub(super) enum Maker {
    /// By the family with this index in the layout's list of [`families`].
    Family(usize),
    /// By the synthesis, from these plans, with these stages recomputing.
    Synthesis { effort: Synthesis, starts: Vec<Plan>, recomputing: Vec<usize> },
    /// The plan exists.
    Given(Plan, Strategy),
    /// The plan exists and was made for these stages recomputing.
    Made(Plan, Strategy, Vec<usize>),
}

/// One candidate to price.
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

/// The plan of a family for a layout.
pub(super) fn build(request: &Request, layout: &Layout, family: usize) -> Result<Plan, DropReason> {
    let microbatches = request.workloads[layout.workload].microbatches;
    let (_, family) = families(request, layout).swap_remove(family);
    Ok(family.build(Size::new(request.ranks, microbatches).with_chunks(layout.shape.chunks))?)
}

impl Job<'_> {
    /// Makes the plan and prices it; `None` if that would repeat an earlier job.
    pub(super) fn run(&self, request: &Request) -> Result<Option<(Plan, Priced)>, DropReason> {
        let plan = match &self.maker {
            Maker::Synthesis { effort, starts, recomputing } => {
                return self.synthesise(request, *effort, starts, recomputing).map(Some);
            }
            Maker::Given(plan, _) | Maker::Made(plan, ..) => plan.clone(),
            Maker::Family(index) => build(request, self.layout, *index)?,
        };
        let priced = match &self.maker {
            Maker::Made(_, _, recomputing) => {
                price_recomputing(request, self.layout, &plan, recomputing.clone(), self.passes)?
            }
            _ => price(request, self.layout, &plan, self.recompute, self.passes)?,
        };
        Ok(priced.map(|priced| (plan, priced)))
    }

    /// Makes a schedule for the layout and prices it, as the module's text says.
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
            Maker::Family(index) => Strategy::Family(families(request, self.layout).swap_remove(*index).0),
            Maker::Synthesis { .. } => Strategy::Synthesised,
        }
    }

    /// The candidate that this job makes.
    pub(super) fn candidate(&self, request: &Request, plan: &Plan, priced: &Priced) -> Candidate {
        Candidate {
            strategy: self.strategy(request),
            placement: plan.placement().kind(),
            chunks: self.layout.shape.chunks,
            cut: self.layout.cut,
            partition: self.layout.partition.clone(),
            microbatches: request.workloads[self.layout.workload].microbatches,
            spread_vocabulary: priced.profile.vocabulary().is_some(),
            members: 1,
            groups: Vec::new(),
            recomputing: priced.recomputing.clone(),
            passes: self.passes,
            seconds: priced.seconds,
            peak_bytes: priced.simulation.peak_bytes(),
            pareto: false,
        }
    }

    /// A description of the job, for a candidate that is dropped.
    pub(super) fn describe(&self, request: &Request) -> String {
        let (strategy, shape, cut) = (self.strategy(request), self.layout.shape, self.layout.cut);
        let microbatches = request.workloads[self.layout.workload].microbatches;
        let merged = if self.passes == PassChoice::AsBuilt { String::new() } else { format!(", {}", self.passes) };
        let recompute = match self.recompute {
            Recompute::Never => String::new(),
            other => format!(", recomputing {other}"),
        };
        let spread = if self.layout.profile.vocabulary().is_some() { ", vocabulary spread" } else { "" };
        format!(
            "{strategy}, {microbatches} microbatches, {} placement of {} a rank, {cut} cut{spread}{recompute}{merged}",
            shape.kind, shape.chunks
        )
    }
}
