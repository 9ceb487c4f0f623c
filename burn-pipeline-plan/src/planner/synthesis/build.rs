//! The synthesis from end to end: list schedules, branch and bound, local search, and the choice among their orders.
//!
//! 1. The list scheduler ([`super::list`]) runs with some hundred rules that split every backward. If whole backwards
//!    may be cheaper or hold less memory, they are tried in two more ways: as a `B` in place of each `I` whose `W`
//!    follows at once, and by rules that never split. One microbatch at a time is an order too, and so are the given
//!    plans that fit.
//! 2. Branch and bound ([`super::branch`]) solves small plans: with enough nodes it finds the optimum under the cap.
//! 3. Otherwise local search ([`super::local`]) improves the best few orders, and branch and bound runs once more.
//! 4. Each `I` with the `W` right behind it becomes one `B`, if that is neither slower nor takes more memory.
//! 5. Steps 1 to 4 do not count messages in flight. If the simulated peak is above the cap, the cap is lowered by the
//!    excess and the synthesis starts again.
//!
//! Backwards are whole or split one by one. Choosing the better of all whole and all split, and merging afterwards,
//! missed 318 of 720 small optima, by up to 13 %.

use super::instance::{Instance, Step, joined};
use super::{branch, list, local, timing};
use crate::cost::Profile;
use crate::plan::{Placement, Plan};
use crate::planner::error::{PlannerError, refuse_long};
use crate::simulate::{SimulateError, SimulateOptions, Simulation, simulate};
use rayon::prelude::*;

/// The effort of a synthesis, and its memory cap.
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
    /// The most bytes that a rank may hold, as [`simulate`] counts them; `None` for no limit.
    pub cap: Option<f64>,
    /// The number of best orders that local search improves. With 0, the best list schedule is the result.
    pub starts: usize,
    /// The effort of local search on one order, in steps: evaluating one change of an order of `n` steps costs `n`.
    pub effort: usize,
    /// The most nodes that branch and bound visits, for plans of at most 128 steps. Eight times as many if whole
    /// backwards are tried beside split ones, since the same steps then have more orders.
    pub nodes: usize,
    /// The effort of the list scheduler, in steps: for orders of `n` steps, `listing / n` of its rules are tried, and
    /// at least 8.
    pub listing: usize,
}

impl Default for Synthesis {
    fn default() -> Self {
        Self { cap: None, starts: 4, effort: 5_000_000, nodes: 50_000, listing: 1_000_000 }
    }
}

/// A synthesised plan.
#[derive(Clone, PartialEq, Debug)]
pub struct SynthesisedPlan {
    /// The plan, without transfers, named `Synthesised`.
    pub plan: Plan,
    /// The simulated seconds of the plan, without transfers.
    pub makespan: f64,
    /// A lower bound on the seconds of every order for the same placement and costs.
    pub lower_bound: f64,
    /// The origin of the plan: a rule of the list scheduler, a given plan, or branch and bound.
    pub start: String,
}

/// The most forwards of an order over all stages: a synthesis holds up to thirty orders at once.
const MOST_FORWARDS: usize = 1 << 20;

/// How often the cap is lowered to leave memory for messages.
const TIGHTENINGS: usize = 5;

/// Rows of steps with their makespan and origin.
struct Order {
    makespan: f64,
    start: String,
    rows: Vec<Vec<Step>>,
}

impl Synthesis {
    /// Returns the fastest plan found under the cap for `microbatches` (one count per route). `starts` are plans for
    /// the same placement and counts; the search improves them as well as the list schedules.
    ///
    /// # Errors
    /// Returns [`PlannerError::NoOrderFits`] if no order fits under the cap, [`PlannerError::TooLong`] above 1048576
    /// forwards over all stages, and other [`PlannerError`]s if the arguments do not fit together.
    pub fn build(
        &self,
        profile: &Profile,
        placement: &Placement,
        microbatches: &[usize],
        starts: &[Plan],
    ) -> Result<SynthesisedPlan, PlannerError> {
        if microbatches.len() != placement.routes() || microbatches.iter().all(|&m| m == 0) {
            return Err(PlannerError::Counts { counts: microbatches.to_vec(), routes: placement.routes() });
        }
        let forwards =
            microbatches.iter().fold(0usize, |sum, m| sum.saturating_add(m.saturating_mul(placement.stages())));
        refuse_long("a synthesised plan", forwards, MOST_FORWARDS)?;
        let cap = self.cap.unwrap_or(f64::INFINITY);
        let (mut limit, mut found) = (cap, None);
        // A quick search finds how much memory messages need. The full search then runs with that limit.
        let quick = Self { starts: 0, listing: self.listing / 8, ..*self };
        let efforts =
            if self.starts == 0 { vec![(*self, TIGHTENINGS)] } else { vec![(quick, TIGHTENINGS), (*self, 2)] };
        for (effort, times) in efforts {
            for _ in 0..times {
                let made = effort.attempt(profile, placement, microbatches, starts, (limit, cap))?;
                let Some((made, peak)) = made else { break };
                if peak <= cap * (1.0 + 1e-9) {
                    let faster = |other: &SynthesisedPlan| made.makespan < other.makespan;
                    found = if found.as_ref().is_none_or(faster) { Some(made) } else { found };
                    break;
                }
                limit -= (peak - cap) * (1.0 + 1e-9);
            }
        }
        found.ok_or(PlannerError::NoOrderFits { cap })
    }

    /// The fastest plan that stays under `limit` without messages and under `cap` with them, and its peak with
    /// messages. If no plan stays under `cap` with messages, the plan with the lowest peak.
    fn attempt(
        &self,
        profile: &Profile,
        placement: &Placement,
        microbatches: &[usize],
        starts: &[Plan],
        (limit, cap): (f64, f64),
    ) -> Result<Option<(SynthesisedPlan, f64)>, PlannerError> {
        let costs = profile.costs(placement)?;
        let instance = Instance::new(&costs, microbatches, limit);
        let mut orders = self.listed(&instance, true);
        if instance.mixes {
            let joined = |order: &Order| order_of(&instance, joined(&order.rows), format!("{}, joined", order.start));
            let joined: Vec<Order> = orders.par_iter().filter_map(joined).collect();
            orders.extend(joined);
            orders.extend(self.listed(&instance, false));
        }
        orders.extend(given_orders(&instance, placement, microbatches, starts));
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

    /// The best few orders, improved; the fastest first.
    fn improved(&self, instance: &Instance, mut orders: Vec<Order>) -> Vec<Order> {
        let known = fastest(&orders);
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
        // With the same best makespan, branch and bound would visit the same nodes again and find nothing.
        if fastest(&improved) < known {
            self.finish(instance, &mut improved);
        }
        improved.sort_by(|a, b| a.makespan.total_cmp(&b.makespan));
        improved
    }

    /// Adds the result of branch and bound if it is faster than all orders. Returns true if the fastest order is then
    /// proven optimal.
    fn finish(&self, instance: &Instance, orders: &mut Vec<Order>) -> bool {
        let best = fastest(orders);
        if self.starts == 0 || best.is_infinite() {
            return false;
        }
        let nodes = if instance.mixes { self.nodes.saturating_mul(8) } else { self.nodes };
        let finished = branch::finish(instance, best, nodes);
        let order = |(makespan, rows)| Order { makespan, start: "branch and bound".into(), rows };
        orders.extend(finished.rows.map(order));
        finished.proven
    }

    /// The orders of the list scheduler's rules, with all backwards split or all whole. For a long plan, only every
    /// n-th rule is used.
    fn listed(&self, instance: &Instance, split: bool) -> Vec<Order> {
        let rules = list::rules(split);
        let most = (self.listing / instance.steps().max(1)).clamp(8, rules.len());
        let stride = rules.len().div_ceil(most);
        // The rules come from nested loops, the inner ones over an even number of choices. An even stride would reach
        // only half of the innermost choices; an odd stride reaches all.
        let stride = if stride > 1 { stride | 1 } else { 1 };
        let chosen: Vec<list::Rule> = rules.into_iter().step_by(stride).collect();
        let order = |rule: list::Rule| order_of(instance, list::schedule(instance, rule)?, rule.to_string());
        let mut orders: Vec<Order> = chosen.into_par_iter().filter_map(order).collect();
        orders.extend(order_of(instance, list::one_by_one(instance, !split), "one microbatch at a time".into()));
        orders
    }
}

/// The least makespan of the orders; infinite if there are none.
fn fastest(orders: &[Order]) -> f64 {
    orders.iter().map(|order| order.makespan).fold(f64::INFINITY, f64::min)
}

/// The plan with each `I` and the `W` right behind it merged into one `B`, if that is neither slower nor takes more
/// memory.
fn merged_or_not(plan: Plan, profile: &Profile) -> Result<(Plan, Simulation), SimulateError> {
    let options = SimulateOptions::default();
    let merged = plan.merge_backward();
    let (split, joined) = (simulate(&plan, profile, &options)?, simulate(&merged, profile, &options)?);
    let better = joined.makespan <= split.makespan && joined.peak_bytes() <= split.peak_bytes();
    Ok(if better { (merged, joined) } else { (plan, split) })
}

/// The order of these rows, if they are complete, fit under the cap, and can run.
fn order_of(instance: &Instance, rows: Vec<Vec<Step>>, start: String) -> Option<Order> {
    let fits = rows.iter().enumerate().all(|(rank, row)| instance.fits(instance.peak(rank, row)));
    let complete = instance.is_complete(&rows);
    let makespan = timing::Timing::new(instance).run(instance, &rows).filter(|_| fits && complete)?;
    Some(Order { makespan, start, rows })
}

/// The orders of the given plans that have this placement and these counts.
fn given_orders(instance: &Instance, placement: &Placement, microbatches: &[usize], starts: &[Plan]) -> Vec<Order> {
    let alike = starts.iter().filter(|plan| plan.placement() == placement && plan.microbatches() == microbatches);
    alike.filter_map(|plan| order_of(instance, Instance::rows_of(plan)?, plan.name().to_owned())).collect()
}
