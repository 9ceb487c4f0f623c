//! What no order of actions can beat: lower bounds to print beside a simulation.
//!
//! 1. *Critical path*: the longest chain of actions and crossings that a single microbatch has to go through.
//! 2. *Busiest rank*: the work of the rank that has most of it.
//! 3. *Memory bubble*: with `k` forwards before the first backward, a rank of a one-chunk pipeline idles at least
//!    `(p-1)(I+2c) + (p-k)F`; section 3 and appendix of Qi et al., Zero Bubble Pipeline Parallelism (2023),
//!    arXiv:2401.10241.

use crate::cost::Costs;
use crate::plan::{Action, Op, Plan, StageId, Task};
use std::collections::HashMap;

/// Lower bounds on the makespan of a plan, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// The longest chain of actions and crossings of one microbatch.
    pub critical_path: f64,
    /// The compute seconds of the busiest rank.
    pub busiest_rank: f64,
    /// Idle seconds of rank 0 that its number of warm-up forwards makes unavoidable; for one chunk a rank in
    /// loop placement, where stages cost the same, else `None`.
    pub memory_bubble: Option<f64>,
    /// Compute seconds of rank 0, to which its memory bubble adds.
    rank_0: f64,
}

impl Bounds {
    /// The bounds of a plan under the costs of its placement.
    pub fn new(plan: &Plan, costs: &Costs<'_>) -> Self {
        // Collectives may run beside computations, so they do not count.
        let computes = |action: &Action| action.tasks().any(|t| t.op().is_compute());
        let seconds = |&action: &Action| if computes(&action) { costs.action_seconds(action) } else { 0.0 };
        let work = |row: &Vec<Action>| row.iter().map(seconds).sum::<f64>();
        Self {
            critical_path: critical_path(plan, costs),
            busiest_rank: plan.rows().iter().map(work).fold(0.0, f64::max),
            memory_bubble: memory_bubble_of(plan, costs),
            rank_0: plan.tasks(0).filter(|t| t.op().is_compute()).map(|t| costs.task_seconds(t)).sum(),
        }
    }

    /// The larger bound on the makespan.
    pub fn makespan(&self) -> f64 {
        let rank_0 = self.memory_bubble.map_or(0.0, |bubble| bubble + self.rank_0);
        self.critical_path.max(self.busiest_rank).max(rank_0)
    }
}

/// Idle seconds that a rank cannot avoid with `warmup` forwards before its first backward: `(p-1)(I+2c) + (p-k)F`,
/// and never below zero.
///
/// From the start of the first forward to that of the first backward, `p` forwards and `p-1` backwards pass one
/// after the other, and only `k` forwards fill that time. How much room it takes to come to zero on all ranks:
/// [`forwards_without_bubble`].
pub fn memory_bubble(ranks: usize, warmup: usize, forward: f64, input: f64, transfer: f64) -> f64 {
    let (p, k) = (ranks as f64, warmup as f64);
    ((p - 1.0) * (input + 2.0 * transfer) + (p - k) * forward).max(0.0)
}

/// Activations that a rank has to be able to hold for a plan without bubbles: `⌊((p-1)(I+2c) + (2p-1)F) / F⌋`.
///
/// Without forwards that take time, no number is enough: `usize::MAX`.
pub fn forwards_without_bubble(ranks: usize, forward: f64, input: f64, transfer: f64) -> usize {
    if forward <= 0.0 {
        return usize::MAX;
    }
    let p = ranks as f64;
    let time = (p - 1.0) * (input + 2.0 * transfer) + (2.0 * p - 1.0) * forward;
    (time / forward).floor() as usize
}

/// The memory bubble of rank 0, where the formula's assumptions hold.
fn memory_bubble_of(plan: &Plan, costs: &Costs<'_>) -> Option<f64> {
    let placement = plan.placement();
    let ranks = plan.ranks();
    let in_line = placement.routes() == 1
        && placement.stages() == ranks
        && (0..ranks).all(|s| placement.rank_of(StageId::new(s)) == s);
    let fused = plan.rows().iter().flatten().any(|a| matches!(a, Action::Overlap(..)));
    if !in_line || fused || !plan.has_backward() {
        return None;
    }
    let stage = |s: usize| {
        let cost = costs.stage(StageId::new(s));
        (cost.forward, cost.input_backward().min(cost.full_backward()))
    };
    let crossing = |from, to, output_of| costs.crossing_seconds(from, to, StageId::new(output_of));
    let transfer = if ranks > 1 { crossing(0, 1, 0) } else { 0.0 };
    let alike = (0..ranks).all(|s| stage(s) == stage(0))
        && (1..ranks).all(|s| crossing(s - 1, s, s - 1) == transfer && crossing(s, s - 1, s - 1) == transfer);
    let before = plan.tasks(0).take_while(|t| !t.op().gives_input_gradient());
    let warmup = before.filter(|t| t.op() == Op::Forward).count();
    alike.then(|| memory_bubble(ranks, warmup, stage(0).0, stage(0).1, transfer))
}

/// The longest chain of one microbatch: forwards up its route, backwards down it, then the last `W`.
fn critical_path(plan: &Plan, costs: &Costs<'_>) -> f64 {
    let mut seconds: HashMap<Task, f64> = HashMap::new();
    for &action in plan.rows().iter().flatten() {
        // A fused action gives its results at its end; were both parts of one chain, they would count once.
        let fused = costs.fused_seconds(action);
        for (i, task) in action.tasks().filter(|t| t.op().is_compute()).enumerate() {
            let once = fused.map(|seconds| if i == 0 && one_chain(action) { 0.0 } else { seconds });
            seconds.insert(task, once.unwrap_or_else(|| costs.task_seconds(task)));
        }
    }
    let routes = plan.microbatches().iter().enumerate();
    let paths = routes.flat_map(|(replica, &count)| (0..count).map(move |m| (replica, m)));
    paths.map(|(replica, m)| path(plan, costs, &seconds, replica, m)).fold(0.0, f64::max)
}

/// Are both parts of a fused action about the same microbatch of the same route?
fn one_chain(action: Action) -> bool {
    let Action::Overlap(a, b) = action else { return false };
    (a.stage().replica(), a.microbatch()) == (b.stage().replica(), b.microbatch())
}

fn path(plan: &Plan, costs: &Costs<'_>, seconds: &HashMap<Task, f64>, replica: usize, microbatch: usize) -> f64 {
    let placement = plan.placement();
    let of = |stage, op| seconds.get(&Task::new(stage, op, microbatch)).copied();
    let crossing = |from: StageId, to: StageId, output_of| {
        costs.crossing_seconds(placement.rank_of(from), placement.rank_of(to), output_of)
    };
    let mut time = 0.0;
    let mut longest: f64 = 0.0;
    for index in 0..placement.stages() {
        let stage = StageId::in_replica(replica, index);
        time += stage.previous().map_or(0.0, |previous| crossing(previous, stage, previous));
        // What the plan does not run adds nothing, so the bound stays one.
        time += of(stage, Op::Forward).unwrap_or(0.0);
        longest = longest.max(time);
    }
    for index in (0..placement.stages()).rev() {
        let stage = StageId::in_replica(replica, index);
        let Some(input) = of(stage, Op::Backward).or(of(stage, Op::BackwardInput)) else { return longest };
        time += placement.next(stage).map_or(0.0, |next| crossing(next, stage, stage)) + input;
        longest = longest.max(time + of(stage, Op::BackwardWeight).unwrap_or(0.0));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_bubble_falls_to_zero_with_more_forwards() {
        // F = I = 1 and c = 0: 2p-1 forwards hide the way there and back.
        let bubble = |k| memory_bubble(4, k, 1.0, 1.0, 0.0);
        assert_eq!((bubble(4), bubble(6), bubble(7), bubble(8)), (3.0, 1.0, 0.0, 0.0));
        assert_eq!(forwards_without_bubble(4, 1.0, 1.0, 0.1), 10);
        assert_eq!(forwards_without_bubble(4, 0.0, 1.0, 0.1), usize::MAX);
    }
}
