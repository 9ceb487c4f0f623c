//! Lower bounds on the makespan: no order of the plan's actions is faster.
//!
//! 1. *Critical path*: the longest chain of actions and crossings of one microbatch.
//! 2. *Busiest rank*: the work of the rank with the most work.
//! 3. *Memory bubble*: in a loop with one chunk per rank, if rank 0 runs `k` forwards before its first backward, it
//!    idles for at least `(p-1)(I+2c) + (p-k)F`, where `c` is the time of a message (Qi et al., Zero Bubble Pipeline
//!    Parallelism, 2023, arXiv:2401.10241, section 3 and appendix).

use crate::cost::{Costs, Profile, ProfileError};
use crate::plan::{Action, Op, Plan, StageId, Task};
use std::collections::{HashMap, HashSet};

/// Lower bounds on the makespan of a plan, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// The longest chain of actions and crossings of one microbatch.
    pub critical_path: f64,
    /// Compute seconds of the busiest rank.
    pub busiest_rank: f64,
    /// Idle seconds of rank 0 that follow from its number of warm-up forwards. `None` unless the placement is a loop
    /// with one chunk per rank and all stages cost the same.
    pub memory_bubble: Option<f64>,
    /// Compute seconds of rank 0. Together with its memory bubble, they bound the makespan.
    rank_0: f64,
}

impl Bounds {
    /// The bounds of a plan under the costs of a profile.
    ///
    /// # Errors
    /// Returns [`ProfileError`] if the profile does not fit the plan's placement.
    pub fn new(plan: &Plan, profile: &Profile) -> Result<Self, ProfileError> {
        let costs = &profile.costs(plan.placement())?;
        // Collectives can run beside computations, so they do not bound the makespan.
        let computes = |action: &Action| action.tasks().any(|t| t.op().is_work());
        let training = plan.has_backward();
        let piece = |op: Op| costs.pieces().piece_seconds(op, training);
        let seconds = |&action: &Action| match action {
            Action::Single(task) if task.op().is_piece() => piece(task.op()),
            action if computes(&action) => costs.action_seconds(action),
            _ => 0.0,
        };
        let work = |row: &Vec<Action>| row.iter().map(seconds).sum::<f64>();
        Ok(Self {
            critical_path: critical_path(plan, costs),
            busiest_rank: plan.rows().iter().map(work).fold(0.0, f64::max),
            memory_bubble: memory_bubble_of(plan, costs),
            rank_0: plan.tasks(0).filter(|t| t.op().is_compute()).map(|t| costs.task_seconds(t)).sum(),
        })
    }

    /// The largest of the bounds, in seconds.
    pub fn makespan(&self) -> f64 {
        let rank_0 = self.memory_bubble.map_or(0.0, |bubble| bubble + self.rank_0);
        self.critical_path.max(self.busiest_rank).max(rank_0)
    }
}

/// The least idle seconds of a rank with `warmup` forwards before its first backward: `(p-1)(I+2c) + (p-k)F`, or zero.
///
/// Between the start of the first forward and the start of the first backward, `p` forwards and `p-1` backwards run one
/// after the other across all ranks, and only `k` forwards of this rank fill that time.
fn memory_bubble(ranks: usize, warmup: usize, forward: f64, input: f64, transfer: f64) -> f64 {
    let (p, k) = (ranks as f64, warmup as f64);
    ((p - 1.0) * (input + 2.0 * transfer) + (p - k) * forward).max(0.0)
}

/// The memory bubble of rank 0, if the formula's assumptions hold.
fn memory_bubble_of(plan: &Plan, costs: &Costs<'_>) -> Option<f64> {
    let placement = plan.placement();
    let ranks = plan.ranks();
    let in_line = placement.routes() == 1
        && placement.stages() == ranks
        && (0..ranks).all(|s| placement.rank_of(StageId::new(s)) == s);
    let fused = plan.rows().iter().flatten().any(|a| matches!(a, Action::Overlap(..)));
    if !in_line || fused || !plan.has_backward() || plan.first_trained() > 0 {
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

/// The longest chain of any microbatch: its forwards, its backwards, then the last `W`.
fn critical_path(plan: &Plan, costs: &Costs<'_>) -> f64 {
    let mut seconds: HashMap<Task, f64> = HashMap::new();
    for &action in plan.rows().iter().flatten() {
        // A fused action gives both results at its end. If both parts are on one chain, its seconds count once.
        let fused = costs.fused_seconds(action);
        for (i, task) in action.tasks().filter(|t| t.op().is_compute()).enumerate() {
            let once = fused.map(|seconds| if i == 0 && one_chain(action) { 0.0 } else { seconds });
            seconds.insert(task, once.unwrap_or_else(|| costs.task_seconds(task)));
        }
    }
    // The plan may count far more microbatches than its rows run.
    let run: HashSet<(usize, usize)> =
        seconds.keys().filter_map(|task| Some((task.stage().route(), task.microbatch()?))).collect();
    let counted = |&(route, m): &(usize, usize)| plan.microbatches().get(route).is_some_and(|&count| m < count);
    run.into_iter().filter(counted).map(|(route, m)| path(plan, costs, &seconds, route, m)).fold(0.0, f64::max)
}

/// Returns true if both parts of a fused action have the same microbatch and route.
fn one_chain(action: Action) -> bool {
    let Action::Overlap(a, b) = action else { return false };
    (a.stage().route(), a.microbatch()) == (b.stage().route(), b.microbatch())
}

/// The longest chain of one microbatch.
fn path(plan: &Plan, costs: &Costs<'_>, seconds: &HashMap<Task, f64>, route: usize, microbatch: usize) -> f64 {
    let placement = plan.placement();
    let of = |stage, op| seconds.get(&Task::new(stage, op, microbatch)).copied();
    let crossing = |from: StageId, to: StageId, output_of| {
        costs.crossing_seconds(placement.rank_of(from), placement.rank_of(to), output_of)
    };
    let mut time = 0.0;
    let mut longest: f64 = 0.0;
    for index in 0..placement.stages() {
        let stage = StageId::in_route(route, index);
        // What follows a forward that the plan does not run adds nothing, so the result stays a lower bound.
        let Some(forward) = of(stage, Op::Forward) else { break };
        time += stage.previous().map_or(0.0, |previous| crossing(previous, stage, previous)) + forward;
        longest = longest.max(time);
    }
    for index in (0..placement.stages()).rev() {
        let stage = StageId::in_route(route, index);
        let alone = of(stage, Op::BackwardWeight).filter(|_| plan.trains_alone(stage));
        let begins = of(stage, Op::Backward).or(of(stage, Op::BackwardInput)).or(alone);
        let Some(input) = begins else { return longest };
        time += placement.next(stage).map_or(0.0, |next| crossing(next, stage, stage)) + input;
        longest = longest.max(time + of(stage, Op::BackwardWeight).filter(|_| alone.is_none()).unwrap_or(0.0));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_bubble_falls_to_zero_with_more_forwards() {
        // With F = I = 1 and c = 0, 2p-1 forwards fill the time until the first backward.
        let bubble = |k| memory_bubble(4, k, 1.0, 1.0, 0.0);
        assert_eq!((bubble(4), bubble(6), bubble(7), bubble(8)), (3.0, 1.0, 0.0, 0.0));
    }
}
