//! Schedules made for a profile: list scheduling under costs and a memory cap, then local search.
//!
//! ```text
//! p=2 v=1 m=3, F = I = W = 1
//! rank 0: 0F0 0F1     0I0 0F2 0I1 0W0 0I2 0W1 0W2
//! rank 1:     1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2
//! ```
//!
//! Guarantees: the plan is complete and in a legal order; simulated with the same profile it keeps every rank under
//! the cap; the same input gives the same plan; where messages take no room, there is a plan whenever one microbatch at
//! a time fits.
//!
//! 1. Some hundred rules of a list scheduler ([`list`]), with backwards split and, where that is cheaper or leaner, whole
//!    or whole wherever a `W` follows its `I` at once; one microbatch at a time; and the plans given as starts, where they
//!    fit.
//! 2. Small plans are finished by branch and bound ([`branch`]): the optimum under the cap,
//!    where its nodes suffice.
//! 3. Else the best few are improved by moving steps along the longest chain ([`local`]), and finished once more.
//! 4. An `I` and the `W` right behind it become one `B` where that is no slower.
//! 5. Messages on their way are not counted while building: where the simulation finds too much memory, the cap is
//!    lowered by the excess, and all begins anew.
//!
//! Source: list scheduling as in Hanayo (Liu et al. 2023) and the heuristic of Zero Bubble (Qi et al. 2023), section
//! 3.1; local search as for job shops.

mod branch;
mod instance;
mod list;
mod local;
mod timing;

use crate::cost::{Profile, ProfileError};
use crate::pass::merge_backward;
use crate::plan::{Placement, Plan, PlanError};
use crate::simulate::{SimulateError, SimulateOptions, Simulation, simulate};
use instance::{Instance, Step, joined};
use rayon::prelude::*;

/// How hard to search, and within what memory.
///
/// ```
/// use burn_pipeline_plan::cost::{Profile, UniformCosts};
/// use burn_pipeline_plan::plan::Placement;
/// use burn_pipeline_plan::planner::Synthesis;
///
/// let placement = Placement::looped(2, 1)?;
/// let profile = Profile::uniform(&placement, UniformCosts::new(1.0, 1.0, 1.0))?;
/// let made = Synthesis::default().build(&profile, &placement, &[3], &[])?;
/// assert_eq!((made.makespan, made.lower_bound), (10.0, 10.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Synthesis {
    /// Bytes that a rank may hold, as [`simulate`] counts them; no limit where there is none.
    pub cap: Option<f64>,
    /// How many of the best orders are improved. 0 leaves the best one as it is.
    pub starts: usize,
    /// Steps timed while one order is improved: each evaluation of a plan of `n` steps takes `n` of them.
    pub effort: usize,
    /// Nodes of branch and bound, over plans of at most 128 steps; eight times as many where whole backwards are tried
    /// beside split ones, which makes more orders of the same steps.
    pub nodes: usize,
    /// Steps of all list schedules together: a plan of `n` steps is built by this many over `n` rules, of some hundred.
    pub listing: usize,
}

impl Default for Synthesis {
    fn default() -> Self {
        Self { cap: None, starts: 4, effort: 5_000_000, nodes: 50_000, listing: 1_000_000 }
    }
}

/// A plan made for a profile.
#[derive(Clone, PartialEq, Debug)]
pub struct SynthesisedPlan {
    /// The plan, without transfers, named `Synthesised`.
    pub plan: Plan,
    /// Its simulated seconds, without transfers written down.
    pub makespan: f64,
    /// No order of the same placement and costs is faster.
    pub lower_bound: f64,
    /// Where its search began: a rule of the list scheduler, or a given plan.
    pub start: String,
}

/// Why no plan was made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SynthesisError {
    /// One microbatch count a route is needed, and at least one microbatch.
    #[error("{counts:?} microbatches for {routes} routes; give one count a route, and at least one microbatch")]
    Microbatches {
        /// Counts given.
        counts: Vec<usize>,
        /// Routes of the placement.
        routes: usize,
    },
    /// Even one microbatch at a time does not fit.
    #[error(
        "no order was found that holds at most {cap} bytes a rank; the stages need more even for one microbatch at a time, or their messages do"
    )]
    DoesNotFit {
        /// The cap.
        cap: f64,
    },
    /// The profile is about another placement.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The rows do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// How often the cap is lowered for messages.
const TIGHTENINGS: usize = 5;

/// An order, and where it came from.
struct Order {
    makespan: f64,
    start: String,
    rows: Vec<Vec<Step>>,
}

impl Synthesis {
    /// A plan for `microbatches` (one count a route) that takes as little time as can be found under the cap. `starts`
    /// are plans of the same placement and counts to improve beside the rules' own.
    ///
    /// # Errors
    /// [`SynthesisError`]; most of all [`SynthesisError::DoesNotFit`].
    pub fn build(
        &self,
        profile: &Profile,
        placement: &Placement,
        microbatches: &[usize],
        starts: &[Plan],
    ) -> Result<SynthesisedPlan, SynthesisError> {
        if microbatches.len() != placement.routes() || microbatches.iter().all(|&m| m == 0) {
            return Err(SynthesisError::Microbatches { counts: microbatches.to_vec(), routes: placement.routes() });
        }
        let cap = self.cap.unwrap_or(f64::INFINITY);
        let (mut limit, mut found) = (cap, None);
        // How much room messages need is found with little effort; then comes all of it.
        let quick = Self { starts: 0, listing: self.listing / 8, ..*self };
        let efforts =
            if self.starts == 0 { vec![(*self, TIGHTENINGS)] } else { vec![(quick, TIGHTENINGS), (*self, 2)] };
        for (effort, times) in efforts {
            for _ in 0..times {
                let made = effort.attempt(profile, placement, microbatches, starts, (limit, cap))?;
                let Some((made, peak)) = made else { break };
                if peak <= cap * (1.0 + 1e-9) {
                    let slower = |other: &SynthesisedPlan| made.makespan < other.makespan;
                    found = if found.as_ref().is_none_or(slower) { Some(made) } else { found };
                    break;
                }
                limit -= (peak - cap) * (1.0 + 1e-9);
            }
        }
        found.ok_or(SynthesisError::DoesNotFit { cap })
    }

    /// The best plan under a limit that leaves messages out, and its peak with them: one that is under the cap, if any of
    /// the improved ones is.
    fn attempt(
        &self,
        profile: &Profile,
        placement: &Placement,
        microbatches: &[usize],
        starts: &[Plan],
        (limit, cap): (f64, f64),
    ) -> Result<Option<(SynthesisedPlan, f64)>, SynthesisError> {
        let costs = profile.costs(placement)?;
        let instance = Instance::new(&costs, microbatches, limit);
        let mut orders = self.listed(&instance, true);
        if instance.mixes {
            let joined = |order: &Order| order_of(&instance, joined(&order.rows), format!("{}, joined", order.start));
            let joined: Vec<Order> = orders.par_iter().filter_map(joined).collect();
            orders.extend(joined);
            orders.extend(self.listed(&instance, false));
        }
        orders.extend(placement_starts(&instance, placement, microbatches, starts));
        let improved = self.improved(&instance, orders);
        let lower_bound = instance.lower_bound();
        let mut leanest = None::<(SynthesisedPlan, f64)>;
        for order in improved {
            let rows = instance.actions(&costs, &order.rows);
            let plan = Plan::new("Synthesised", placement.clone(), microbatches.to_vec(), rows)?;
            let (plan, step) = merged_or_not(plan, profile)?;
            let peak = step.peak_bytes();
            let made = SynthesisedPlan { makespan: step.makespan, lower_bound, start: order.start, plan };
            if peak <= cap * (1.0 + 1e-9) {
                return Ok(Some((made, peak)));
            }
            if leanest.as_ref().is_none_or(|(_, least)| peak < *least) {
                leanest = Some((made, peak));
            }
        }
        Ok(leanest)
    }

    /// The best few orders, improved, the fastest first.
    fn improved(&self, instance: &Instance, mut orders: Vec<Order>) -> Vec<Order> {
        let proven = self.finish(instance, &mut orders);
        orders.sort_by(|a, b| a.makespan.total_cmp(&b.makespan));
        orders.dedup_by(|a, b| a.rows == b.rows);
        orders.truncate(self.starts.max(1));
        if proven || self.starts == 0 {
            return orders;
        }
        let improve = |order: Order| {
            let better = local::improve(instance, order.rows.clone(), self.effort / instance.steps().max(1));
            match better {
                Some((makespan, rows)) => Order { makespan, rows, ..order },
                None => order,
            }
        };
        let mut improved: Vec<Order> = orders.into_par_iter().map(improve).collect();
        self.finish(instance, &mut improved);
        improved.sort_by(|a, b| a.makespan.total_cmp(&b.makespan));
        improved
    }

    /// Adds what branch and bound finds beyond the best order; true where nothing can be faster than the best then.
    fn finish(&self, instance: &Instance, orders: &mut Vec<Order>) -> bool {
        let best = orders.iter().map(|order| order.makespan).fold(f64::INFINITY, f64::min);
        if self.starts == 0 || best.is_infinite() {
            return false;
        }
        let nodes = if instance.mixes { self.nodes.saturating_mul(8) } else { self.nodes };
        let finished = branch::finish(instance, best, nodes);
        let order = |(makespan, rows)| Order { makespan, start: "branch and bound".into(), rows };
        orders.extend(finished.rows.map(order));
        finished.proven
    }

    /// What the rules of the list scheduler give, with backwards split or whole, spread over all rules where the plan is
    /// long.
    fn listed(&self, instance: &Instance, split: bool) -> Vec<Order> {
        let rules = list::rules(split);
        let most = (self.listing / instance.steps().max(1)).clamp(8, rules.len());
        let stride = rules.len().div_ceil(most);
        // A stride that shares no factor with the lists of choices goes through all of them.
        let stride = if stride > 1 { stride | 1 } else { 1 };
        let chosen: Vec<list::Rule> = rules.into_iter().step_by(stride).collect();
        let order = |rule: list::Rule| order_of(instance, list::schedule(instance, rule)?, rule.to_string());
        let mut orders: Vec<Order> = chosen.into_par_iter().filter_map(order).collect();
        orders.extend(order_of(instance, list::one_by_one(instance, !split), "one microbatch at a time".into()));
        orders
    }
}

/// The plan with every `I` and the `W` right behind it as one `B`, if that is neither slower nor larger.
fn merged_or_not(plan: Plan, profile: &Profile) -> Result<(Plan, Simulation), SimulateError> {
    let options = SimulateOptions::default();
    let merged = merge_backward(&plan);
    let (apart, together) = (simulate(&plan, profile, &options)?, simulate(&merged, profile, &options)?);
    let better = together.makespan <= apart.makespan && together.peak_bytes() <= apart.peak_bytes();
    Ok(if better { (merged, together) } else { (plan, apart) })
}

/// Rows with their makespan, if they are complete, can be run and fit.
fn order_of(instance: &Instance, rows: Vec<Vec<Step>>, start: String) -> Option<Order> {
    let fits = rows.iter().enumerate().all(|(rank, row)| instance.fits(instance.peak(rank, row)));
    let complete = instance.is_complete(&rows);
    let makespan = timing::Timing::new(instance).run(instance, &rows).filter(|_| fits && complete)?;
    Some(Order { makespan, start, rows })
}

/// The given plans that are about this placement.
fn placement_starts(instance: &Instance, placement: &Placement, microbatches: &[usize], starts: &[Plan]) -> Vec<Order> {
    let alike = starts.iter().filter(|plan| plan.placement() == placement && plan.microbatches() == microbatches);
    alike.filter_map(|plan| order_of(instance, Instance::rows_of(plan)?, plan.name().to_owned())).collect()
}
