//! What the engine takes for granted: that a plan's actions are about the plan's own stages and microbatches.

use super::error::SimulateError;
use crate::plan::skips::edge_of;
use crate::plan::{Op, Plan, Task};

/// Tables of this many entries are always made, however few actions the plan has.
const SMALL_TABLE: usize = 1 << 20;

/// Refuses actions that name what the plan does not have.
pub(super) fn validate(plan: &Plan) -> Result<(), SimulateError> {
    let (slots, most) = (plan.placement().slots(), plan.microbatches().iter().copied().max().unwrap_or(0));
    let actions: usize = plan.rows().iter().map(Vec::len).sum();
    // A plan that runs each stage for each microbatch has more actions than table entries.
    if slots.saturating_mul(most) > actions.saturating_mul(2).max(SMALL_TABLE) {
        return Err(SimulateError::Sparse { microbatches: most, stages: slots, actions });
    }
    for (rank, row) in plan.rows().iter().enumerate() {
        for (step, &action) in row.iter().enumerate() {
            if let Some(reason) = action.tasks().find_map(|task| fault(plan, rank, task)) {
                return Err(SimulateError::Foreign { rank, step, action, reason });
            }
        }
    }
    Ok(())
}

fn fault(plan: &Plan, rank: usize, task: Task) -> Option<&'static str> {
    let (placement, stage) = (plan.placement(), task.stage());
    if !placement.contains(stage) {
        return Some("the plan has no such stage");
    }
    if placement.rank_of(stage) != rank {
        return Some("the stage lives on another rank");
    }
    if task.microbatch().is_some_and(|m| m >= plan.microbatches()[stage.replica()]) {
        return Some("the stage's route has fewer microbatches");
    }
    if task.is_skip() {
        let known = edge_of(task).is_some_and(|edge| plan.skips().contains(&edge));
        return (!known).then_some("the plan has no edge between these stages");
    }
    let peer = match task.op().awaits().unwrap_or(task.op()) {
        Op::SendForward | Op::ReceiveBackward => placement.next(stage),
        Op::SendBackward | Op::ReceiveForward => stage.previous(),
        _ => return None,
    };
    peer.is_none().then_some("there is no stage at the other end of this transfer")
}
